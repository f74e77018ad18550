//! SIGKILL at every sync of a voyage, before or after it is made: the store opens on the last page that was
//! told, or on the next; nothing in it is doubled, and nothing is stuck.

use std::os::unix::process::ExitStatusExt;

use super::tap::{Event, Tap, Trouble};
use super::voyage::{self, Told, VARIABLE, Voyage, begin, judge, pages};

const SHARDS: u64 = 2;

fn sail(tap: &Tap, trouble: Trouble) -> std::process::Output {
    let voyage = Voyage { seed: 0, from: begin(), disk: tap.disk(), pages: tap.pages() };
    tap.run(voyage::TEST, (VARIABLE, voyage.to_text()), trouble)
}

fn shard(at: u64) {
    semel_testkit::planted::plant_from_environment();
    let whole = Tap::new();
    let output = sail(&whole, Trouble::None);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let record = whole.record();
    let syncs = record.iter().filter(|event| matches!(event, Event::Sync { .. } | Event::SyncFolder)).count();
    let all = pages(&whole.pages());
    assert!(syncs > 40 && all.len() >= 18, "{syncs} syncs and {} pages are too few", all.len());
    for sync in (1..=syncs as u64).filter(|sync| sync % SHARDS == at) {
        for after in [false, true] {
            let tap = whole.another();
            let output = sail(&tap, Trouble::Kill(sync, after));
            assert_eq!(output.status.signal(), Some(9), "sync {sync} of {syncs}, after: {after}");
            let mut told = Told::default();
            tap.record().iter().for_each(|event| told.hear(event));
            // The same program at the same times: the pages it would have told are those of the whole voyage.
            for (page, same) in
                pages(&tap.pages()).iter().zip(&all).take(told.page.map_or(0, |page| page + 1))
            {
                assert!(page == same, "two voyages of one program differ on page {}", page.number);
            }
            judge(&tap.disk(), &told, &all, true)
                .unwrap_or_else(|what| panic!("killed at sync {sync} of {syncs}, after: {after}: {what}"));
        }
    }
}

#[test]
fn nothing_answered_is_lost_by_a_kill_at_any_sync_1() {
    shard(0);
}

#[test]
fn nothing_answered_is_lost_by_a_kill_at_any_sync_2() {
    shard(1);
}
