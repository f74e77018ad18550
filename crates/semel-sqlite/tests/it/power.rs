//! Power cuts: every write, sync and name change of a voyage is recorded, and replayed up to any moment onto
//! a disk that loses what was not synced. Whatever it loses, the store opens, on the last page that was told
//! or the next.
//!
//! - `SEMEL_CUTS=100000`: this many cuts instead of about a thousand.
//! - `SEMEL_SEED=7`: starts from this seed instead of always the same.

use semel_testkit::TempDir;
use semel_testkit::logbook::Page;
use semel_testkit::patience::rounds;
use semel_testkit::sim::dice::Dice;

use super::platter::{Cut, Platter};
use super::tap::{Event, Tap, Trouble};
use super::voyage::{self, Told, VARIABLE, Voyage, begin, judge, pages};

/// Cuts in one run, all shards together.
const CUTS: u64 = 1_024;
const SHARDS: u64 = 4;
/// Cuts of one voyage.
const CUTS_PER_VOYAGE: u64 = 32;
/// Voyages of one store, each on what a cut of the last one left.
const VOYAGES_PER_STORE: u64 = 4;

fn first_seed() -> u64 {
    let Ok(said) = std::env::var("SEMEL_SEED") else { return 1 };
    said.parse().unwrap_or_else(|_| panic!("SEMEL_SEED={said} is no seed"))
}

/// What a cut leaves, and the page that the store is on.
struct Left {
    disk: TempDir,
    page: Page,
}

fn shard(at: u64) {
    semel_testkit::planted::plant_from_environment();
    let cuts = rounds("SEMEL_CUTS", CUTS).div_ceil(SHARDS);
    let first = first_seed() + at * 1_000_000;
    let tap = Tap::new();
    let mut left: Option<Left> = None;
    for turn in 0..cuts.div_ceil(CUTS_PER_VOYAGE) {
        if turn % VOYAGES_PER_STORE == 0 {
            left = None;
        }
        let seed = first + turn;
        left = Some(sail_and_cut(&tap.another(), seed, left));
    }
}

fn sail_and_cut(tap: &Tap, seed: u64, left: Option<Left>) -> Left {
    let mut random = Dice::new(seed);
    let mut from = begin();
    if let Some(left) = &left {
        copy(left.disk.path(), &tap.disk());
        from = left.page.at;
    }
    let mut disk = Platter::of(&tap.disk());
    let voyage = Voyage { seed, from, disk: tap.disk(), pages: tap.pages() };
    let output = tap.run(voyage::TEST, (VARIABLE, voyage.to_text()), Trouble::None);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "seed {seed}: the voyage did not end well: {said}");
    let (record, pages) = (tap.record(), pages(&tap.pages()));
    if let Some(left) = left {
        assert!(pages[0].state == left.page.state, "seed {seed}: it begins on another page");
    }
    // Half of them are just before a sync, when most is at stake.
    let syncs: Vec<usize> = (0..record.len()).filter(|at| is_sync(&record[*at])).collect();
    let mut moment = |turn: u64| match turn % 2 {
        0 => random.below(record.len() as u64 + 1) as usize,
        _ => syncs[random.below(syncs.len() as u64) as usize],
    };
    let mut moments: Vec<usize> = (0..CUTS_PER_VOYAGE).map(&mut moment).collect();
    moments.sort_unstable();
    let chosen = random.below(CUTS_PER_VOYAGE);
    let (mut told, mut done, mut kept) = (Told::default(), 0, None);
    for (turn, moment) in (0..).zip(moments) {
        for event in &record[done..moment] {
            disk.apply(event);
            told.hear(event);
        }
        done = moment;
        let cut = Cut::ALL[random.below(4) as usize];
        let (folder, spare) = (TempDir::in_memory(), TempDir::in_memory());
        disk.after(cut, &mut random, folder.path());
        // Opening changes the files; a copy is kept to go on from, or to be examined.
        copy(folder.path(), spare.path());
        let judged = judge(folder.path(), &told, &pages, turn % 4 == 0).unwrap_or_else(|what| {
            let event = record.get(moment).map_or("the end", name);
            let files = std::env::temp_dir().join(format!("semel-power-{seed}-{turn}"));
            std::fs::create_dir_all(&files).unwrap();
            copy(spare.path(), &files);
            let files = files.display();
            panic!(
                "SEMEL_SEED={seed}, cut {turn}, {cut:?}, before event {moment} ({event}): {what}\nits files: {files}"
            )
        });
        if turn == chosen {
            kept = Some(Left { disk: spare, page: pages[judged].clone() });
        }
    }
    record[done..].iter().for_each(|event| {
        disk.apply(event);
        told.hear(event);
    });
    assert!(told.is_over, "seed {seed}: the voyage broke off");
    disk.agrees_with(&tap.disk());
    kept.unwrap_or_else(|| panic!("seed {seed}: no cut was kept"))
}

fn name(event: &Event) -> &'static str {
    match event {
        Event::Create { .. } => "a new file",
        Event::Write { .. } => "a write",
        Event::Length { .. } => "a length",
        Event::Sync { .. } => "a sync",
        Event::SyncFolder => "a sync of the folder",
        Event::Failed { .. } => "a failed sync",
        Event::Unlink { .. } => "a file's end",
        Event::Rename { .. } => "a rename",
        Event::Said(_) => "an answer",
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A process ends at a sync, the next one relies on what is in the files, and the power is cut as soon as
/// that one has told of it, and at other moments of its life. Returns how many of the ended ones had written
/// more than they had told.
fn sail_on_after(trouble: impl Fn(u64) -> Trouble) -> u64 {
    let (whole, seed) = (Tap::new(), first_seed());
    let sail = |tap: &Tap, seed, from, trouble| {
        let voyage = Voyage { seed, from, disk: tap.disk(), pages: tap.pages() };
        tap.run(voyage::TEST, (VARIABLE, voyage.to_text()), trouble)
    };
    assert!(sail(&whole, 0, begin(), Trouble::None).status.success());
    let syncs = whole.record().iter().filter(|event| is_sync(event)).count() as u64;
    let mut more = 0;
    for sync in (2..=syncs).step_by(2) {
        let trouble = trouble(sync);
        let tap = whole.another();
        let mut disk = Platter::of(&tap.disk());
        let ended = sail(&tap, 0, begin(), trouble).status;
        // A sync that fails while SQLite closes is reported to nobody.
        assert!(!ended.success() || matches!(trouble, Trouble::Fail(..)), "{trouble:?}");
        let mut told = Told::default();
        for event in tap.record() {
            disk.apply(&event);
            told.hear(&event);
        }
        let before = pages(&tap.pages());
        let Some(last) = told.page else { continue };
        std::fs::remove_dir_all(tap.pages()).unwrap();
        std::fs::create_dir(tap.pages()).unwrap();
        let output = sail(&tap, seed, before[last].at, Trouble::None);
        assert!(output.status.success(), "{trouble:?}: {}", String::from_utf8_lossy(&output.stderr));
        let after = pages(&tap.pages());
        more += u64::from(after[0].state != before[last].state);
        let (mut told, mut random) = (Told::default(), Dice::new(sync + seed * 1_000));
        for (place, event) in tap.record().iter().enumerate() {
            let had_told = told.page;
            disk.apply(event);
            told.hear(event);
            if told.page.is_none() || (had_told.is_some() && random.below(40) > 0) {
                continue;
            }
            let cut = if had_told.is_none() { Cut::Nothing } else { Cut::ALL[random.below(4) as usize] };
            let folder = TempDir::in_memory();
            disk.after(cut, &mut random, folder.path());
            judge(folder.path(), &told, &after, true)
                .unwrap_or_else(|what| panic!("{trouble:?} of {syncs}, {cut:?} after {place}: {what}"));
        }
    }
    more
}

#[test]
fn what_a_killed_process_left_is_on_the_disk_before_anybody_goes_by_it() {
    let more = sail_on_after(|sync| Trouble::Kill(sync, false));
    assert!(more > 4, "only {more} of the killed had written more than they had told");
}

/// Not even the system knows of the failure any more: it takes what is in the files and not on the disk for
/// written.
#[test]
fn what_a_failed_sync_left_is_on_the_disk_before_anybody_goes_by_it() {
    let more = sail_on_after(|sync| Trouble::Fail(sync, ""));
    assert!(more > 4, "only {more} of those whose syncs failed had written more than they had told");
}

fn is_sync(event: &Event) -> bool {
    matches!(event, Event::Sync { .. } | Event::SyncFolder)
}

#[test]
fn nothing_answered_is_lost_by_a_power_cut_1() {
    shard(0);
}

#[test]
fn nothing_answered_is_lost_by_a_power_cut_2() {
    shard(1);
}

#[test]
fn nothing_answered_is_lost_by_a_power_cut_3() {
    shard(2);
}

#[test]
fn nothing_answered_is_lost_by_a_power_cut_4() {
    shard(3);
}
