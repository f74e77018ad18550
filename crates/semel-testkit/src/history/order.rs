//! Reorders a log that has commits in the order in which they began, into an order in which they may have
//! ended.
//!
//! A commit that relies on a record begins after all commits that it relies on are over. Only a claim relies
//! on nothing: it takes whatever is ready when it gets there, so it may have begun before the commit that
//! made a job ready, and stand before it in the log.

use std::collections::{BTreeMap, VecDeque};

use semel_core::event::EventKind;
use semel_core::ident::JobId;
use semel_store::bounds::PLACE_BITS;
use semel_store::log::Recorded;

/// Moves each start of a run behind the commit that made its job ready or gave it its payload. Returns how
/// many starts it moved: none in a log that is in the order of its commits.
pub fn mend(log: &mut Vec<Recorded>) -> usize {
    let mut jobs: BTreeMap<JobId, Told> = BTreeMap::new();
    let mut behind: BTreeMap<usize, usize> = BTreeMap::new();
    for (place, recorded) in log.iter().enumerate() {
        let kind = recorded.event.kind;
        let is_told_beside = EventKind::DUPLICATES.contains(&kind) || kind == EventKind::KeyReleased;
        if !is_told_beside && recorded.event.cron().is_none() {
            let job = jobs.entry(recorded.event.job).or_default();
            behind.extend(job.tell(place, kind).map(|start| (start, place)));
        }
    }
    let mut order: Vec<usize> = (0..log.len()).collect();
    // Behind the whole of that commit, so that it stays in one piece.
    let record = |place: usize| log[place].cursor >> PLACE_BITS;
    let end = |place: usize| (place..log.len()).take_while(|at| record(*at) == record(place)).last();
    order.sort_by_key(|place| match behind.get(place) {
        Some(next) => (end(*next).unwrap_or(*next), true, *place),
        None => (*place, false, *place),
    });
    *log = order.into_iter().map(|place| log[place].clone()).collect();
    behind.len()
}

/// What the log has said about a job so far.
#[derive(Default)]
struct Told {
    stage: Stage,
    /// Starts of the job that the log has too early, when it was not ready.
    early: VecDeque<usize>,
}

/// The stage of a job, as far as it matters for a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Must not start: not there yet, waiting for its time, failed, or over.
    #[default]
    NotReady,
    /// May be ready.
    Ready,
    /// Started at this place, with no event since.
    Started(usize),
}

impl Told {
    /// Takes in an event of the job at `place`. Returns the start that belongs behind it, if there is one.
    fn tell(&mut self, place: usize, kind: EventKind) -> Option<usize> {
        use EventKind::{Amended, Available, Enqueued, Requeued, Started};
        match (kind, self.stage) {
            (Started, Stage::Ready) => self.stage = Stage::Started(place),
            (Started, _) => self.early.push_back(place),
            // A running job is never released or given another payload, so the start came later.
            (Available | Amended, Stage::Started(start)) => return Some(start),
            (Available | Enqueued | Requeued, _) => self.stage = Stage::Ready,
            (Amended, _) => {}
            _ => self.stage = Stage::NotReady,
        }
        let start = self.early.pop_front_if(|_| self.stage == Stage::Ready)?;
        self.stage = Stage::Started(start);
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use semel_core::event::{Event, EventKind};
    use semel_core::ident::{JobType, QueueName};
    use semel_core::time::Timestamp;
    use semel_store::bounds::PLACE_BITS;
    use semel_store::log::Recorded;

    use super::mend;
    use crate::make::foreign_id;
    use EventKind::{
        Amended, Available, Completed, Enqueued, Failed, Requeued, Retrying, Scheduled, Started,
    };

    fn log(events: &[(EventKind, u32)]) -> Vec<Recorded> {
        let event = |(kind, job): &(EventKind, u32)| Event {
            kind: *kind,
            job: foreign_id(*job),
            job_type: JobType::from_stored("a"),
            queue: QueueName::default(),
            attempt: 0,
            amount: 0,
        };
        let record = |(number, told): (u64, _)| Recorded {
            cursor: number << PLACE_BITS,
            at: Timestamp::EPOCH,
            event: event(told),
        };
        (1..).zip(events).map(record).collect()
    }

    #[test]
    fn a_start_is_behind_what_made_its_job_ready_and_nothing_else_is_moved() {
        let mended = |events: &[(EventKind, u32)]| {
            let mut log = log(events);
            mend(&mut log);
            let ids = [foreign_id(1), foreign_id(2)];
            let which = |recorded: &Recorded| 1 + u32::from(recorded.event.job == ids[1]);
            log.iter().map(|recorded| (recorded.event.kind, which(recorded))).collect::<Vec<_>>()
        };
        let right = [(Enqueued, 1), (Amended, 1), (Started, 1), (Requeued, 1), (Started, 1), (Completed, 1)];
        assert_eq!(mended(&right), right);
        let early = [(Started, 1), (Enqueued, 2), (Enqueued, 1), (Started, 2)];
        assert_eq!(mended(&early), [(Enqueued, 2), (Enqueued, 1), (Started, 1), (Started, 2)]);
        let twice = [(Enqueued, 1), (Started, 1), (Started, 1), (Requeued, 1), (Completed, 1)];
        assert_eq!(mended(&twice)[2..], [(Requeued, 1), (Started, 1), (Completed, 1)]);
        let amended = [(Started, 1), (Enqueued, 1), (Amended, 1), (Completed, 1)];
        assert_eq!(mended(&amended), [(Enqueued, 1), (Amended, 1), (Started, 1), (Completed, 1)]);
        let let_go = [(Enqueued, 1), (Started, 1), (Available, 1), (Completed, 1)];
        assert_eq!(mended(&let_go), [(Enqueued, 1), (Available, 1), (Started, 1), (Completed, 1)]);
        let scheduled = [(Started, 1), (Scheduled, 1), (Available, 1), (Completed, 1)];
        assert_eq!(mended(&scheduled), [(Scheduled, 1), (Available, 1), (Started, 1), (Completed, 1)]);
        let all_late = [(Started, 1), (Enqueued, 1), (Available, 1), (Completed, 1)];
        assert_eq!(mended(&all_late), [(Enqueued, 1), (Available, 1), (Started, 1), (Completed, 1)]);
        let again = [
            (Enqueued, 1),
            (Started, 1),
            (Started, 1),
            (Failed, 1),
            (Retrying, 1),
            (Available, 1),
            (Failed, 1),
        ];
        assert_eq!(
            mended(&again)[2..],
            [(Failed, 1), (Retrying, 1), (Available, 1), (Started, 1), (Failed, 1)]
        );
        // A start of a job that was never made ready is not moved.
        let wrong = [(Enqueued, 1), (Started, 1), (Started, 1), (Available, 2)];
        assert_eq!(mended(&wrong), wrong);
    }
}
