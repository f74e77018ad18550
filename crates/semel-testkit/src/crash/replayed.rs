//! Replays the log of a store on which processes were killed, and judges the answers to requests of [all
//! policies](super::medley) against it.

use std::collections::BTreeSet;
use std::time::Duration;

use semel_core::ident::{JobId, JobType};
use semel_core::unique::UniquePolicy;
use semel_engine::Engine;
use semel_store::log::LogPage;

use super::{flows, medley, tasks};
use crate::history::lives::Kept;
use crate::history::{Chronicle, Script, Told, Unseen};
use crate::make::key;

/// The number of events read at once.
const PAGE: u32 = 10_000;
/// How much too early PostgreSQL's log, in the order in which transactions began to write, may have the end
/// of a run.
///
/// The statement may take its timestamp and first lock, be held up, and get the lock on the key only after
/// another transaction has come and gone.
const HELD_UP: Duration = Duration::from_secs(1);

/// Counts of what was checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Events in the log.
    pub events: usize,
    /// Decisions that were taken again: admissions and answers.
    pub decisions: usize,
    /// Starts of runs that the log has too early.
    pub moved: usize,
    /// Answers to offers of all policies.
    pub answers: usize,
    /// Acknowledged ends of the runs of such jobs.
    pub ends: usize,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.decisions += other.decisions;
        self.moved += other.moved;
        self.answers += other.answers;
        self.ends += other.ends;
    }
}

/// Replays the log of an idle store, and judges the answers in these lines of the round.
///
/// # Panics
/// With what does not hold; and when any job was not seen.
pub(super) async fn judge(engine: &Engine, round: u64, lines: &[String]) -> Seen {
    let mut told = Told::default();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(medley::read(&mut told, round, &words), "{line}");
    }
    let ids: BTreeSet<JobId> = flows::all(engine).await.iter().map(|head| head.id).collect();
    let mut kept = all_kept(engine, ids.iter().copied().collect()).await;
    let page = whole_log(engine).await;
    // What the dead left unfinished in several partitions is completed on access, which listing is not.
    let jobs = page.events.iter().filter(|told| told.event.cron().is_none()).map(|told| told.event.job);
    let unlisted: BTreeSet<JobId> = jobs.filter(|id| !ids.contains(id)).collect();
    kept.extend(all_kept(engine, unlisted.into_iter().collect()).await);
    let is_postgres = engine.facts().engine == "postgres";
    let slack = if is_postgres { HELD_UP } else { Duration::ZERO };
    let script = Script { tasks: [JobType::from_stored(tasks::TASK)].into(), slack };
    let events = page.events.len();
    let mut chronicle = Chronicle::replay(page, kept, script).unwrap_or_else(|why| panic!("{why}"));
    chronicle.check_told(&told).unwrap_or_else(|why| panic!("{why}"));
    // Nothing is purged, released or dropped here, so anything that is not seen is missing by mistake.
    assert_eq!(chronicle.unseen, Unseen::default(), "{events} events, {} decisions", chronicle.decisions);
    let (decisions, moved) = (chronicle.decisions, chronicle.moved);
    Seen { events, decisions, moved, answers: told.answers.len(), ends: told.runs.len() }
}

/// Those of the jobs that exist.
async fn all_kept(engine: &Engine, ids: Vec<JobId>) -> Vec<Kept> {
    let mut kept = Vec::new();
    for ids in ids.chunks(500) {
        for job in engine.jobs(ids.to_vec()).await.unwrap() {
            let duplicates = job.duplicates.count;
            let (mut head, policy) = (job.head, job.body.unique);
            let admitted_with = policy.as_ref().and_then(UniquePolicy::key_text).map(key);
            assert!(head.key.is_none() || head.key == admitted_with, "{} has another's key", head.id);
            head.key = admitted_with;
            kept.push(Kept { head, policy, duplicates });
        }
    }
    kept
}

async fn whole_log(engine: &Engine) -> LogPage {
    let mut whole = LogPage::default();
    loop {
        let cursor = whole.events.last().map_or(0, |last| last.cursor);
        let page = engine.store().events(cursor, PAGE).await.unwrap();
        if page.events.is_empty() && !page.waits {
            return whole;
        }
        whole.kept_after = page.kept_after;
        whole.events.extend(page.events);
    }
}
