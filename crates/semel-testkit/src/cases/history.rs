//! Finished jobs: reading, notes, purging, sending back; and the counters.

use std::time::Duration;

use semel_core::draft::Reads;
use semel_core::job::NoteKind;
use semel_core::life::{self, Revived};
use semel_core::settle::{Refusal, Settled};
use semel_core::slot::Due;
use semel_core::state::State;

use crate::fixture::{Fixture, bytes, done};
use crate::make::{foreign_id, job, key, keyed};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

async fn note(f: &Fixture, id: semel_core::ident::JobId, kind: NoteKind, text: Option<&str>) {
    f.decide_on(&Reads { heads: vec![id], ..Reads::default() }, |draft| {
        let mut head = draft.head(id)?.unwrap();
        draft.update(&mut head);
        draft.note(id, kind, text.map(bytes));
        Ok(())
    })
    .await;
}

/// Head, body and notes stay readable, filed or not, whether the store or the caller chose the id.
pub async fn a_finished_job_can_be_read_until_it_is_purged(f: &Fixture) {
    for want in [keyed("a").args("[1]"), keyed("b").args("[2]").id(foreign_id(4))] {
        let offer = want.offer();
        let head = f.create(&offer).await;
        note(f, head.id, NoteKind::Progress, Some("half")).await;
        let (run, _) = f.claim_one().await;
        let ended = done(f.complete(&run).await);
        for _ in 0..2 {
            let (stored, full) = f.full(head.id).await.unwrap();
            assert_eq!((&stored, &full.body), (&ended, &offer.body));
            assert_eq!(full.notes, [(NoteKind::Progress, bytes("half"))]);
            f.maintain().await;
        }
        assert!(f.cancel(head.id).await == Settled::Refused(Refusal::WrongState(State::Completed)));
        f.advance(DAY).await;
        assert_eq!(f.purge().await, 1);
        assert_eq!((f.full(head.id).await, f.head(head.id).await), (None, None));
        assert_eq!(f.cancel(head.id).await, Settled::Refused(Refusal::NotFound));
    }
}

/// Retention is one day for most jobs, 180 days for discarded ones.
pub async fn nothing_is_purged_before_its_time(f: &Fixture) {
    let completed = f.finished(&job().offer()).await;
    let discarded = f.create(&job().attempts(1).offer()).await;
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    f.maintain().await;
    f.advance(DAY - Duration::from_millis(1)).await;
    assert!(f.due(Due::Purge, 10).await.is_empty());
    assert!(!f.decide(|draft| life::purge(draft, completed.id)).await);
    f.advance(Duration::from_millis(1)).await;
    assert_eq!(f.purge().await, 1);
    assert_eq!(f.head(completed.id).await, None);
    f.advance(DAY * 179 - Duration::from_millis(1)).await;
    assert!(f.due(Due::Purge, 10).await.is_empty());
    assert!(!f.decide(|draft| life::purge(draft, discarded.id)).await);
    assert_eq!(f.purge().await, 0);
    assert!(f.full(discarded.id).await.is_some());
    f.advance(Duration::from_millis(1)).await;
    assert_eq!(f.purge().await, 1);
    assert_eq!(f.head(discarded.id).await, None);
}

/// The record of duplicates comes up to a second late: after the end, and after the filing.
pub async fn a_note_on_a_finished_job_is_kept(f: &Fixture) {
    let ended = f.finished(&keyed("a").offer()).await;
    note(f, ended.id, NoteKind::Duplicates, Some("1")).await;
    f.maintain().await;
    note(f, ended.id, NoteKind::Duplicates, Some("2")).await;
    f.maintain().await;
    let (head, full) = f.full(ended.id).await.unwrap();
    assert_eq!(full.notes, [(NoteKind::Duplicates, bytes("2"))]);
    assert!(head.version > ended.version);
    assert_eq!((head.state, head.fence), (ended.state, ended.fence));
    assert_eq!(
        f.holders(key("a")).await.iter().map(|holder| holder.version).collect::<Vec<_>>(),
        [head.version]
    );
    let stats = f.queue("default").await.unwrap();
    assert_eq!((stats.count(State::Completed), stats.created), (1, 1), "touching it does not count it again");
}

/// `None` removes a note.
pub async fn a_removed_note_is_gone(f: &Fixture) {
    let head = f.create(&job().offer()).await;
    note(f, head.id, NoteKind::Progress, Some("half")).await;
    note(f, head.id, NoteKind::Marks, Some("mark")).await;
    note(f, head.id, NoteKind::Progress, None).await;
    assert_eq!(f.full(head.id).await.unwrap().1.notes, [(NoteKind::Marks, bytes("mark"))]);
    assert_eq!(f.claim_one().await.1.notes, [(NoteKind::Marks, bytes("mark"))]);
}

/// Only a dead letter can be deleted.
pub async fn a_deleted_dead_letter_is_gone(f: &Fixture) {
    let live = f.create(&job().attempts(1).dead_letter().offer()).await;
    let delete = |id| f.decide(move |draft| life::delete_dead_letter(draft, id));
    assert_eq!(delete(live.id).await, Settled::Refused(Refusal::NoDeadLetter(State::Available)));
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    f.maintain().await;
    assert!(matches!(delete(live.id).await, Settled::Done(_)));
    assert_eq!(f.head(live.id).await, None);
    assert_eq!(delete(live.id).await, Settled::Refused(Refusal::NotFound));
    let stats = f.queue("default").await.unwrap();
    assert_eq!((stats.count(State::Discarded), stats.purged, stats.created), (0, 1, 1));
}

/// The job goes through the archive twice.
pub async fn a_revived_job_is_filed_again_when_it_ends_again(f: &Fixture) {
    let head = f.create(&keyed("a").attempts(1).dead_letter().offer()).await;
    for _ in 0..3 {
        let (run, _) = f.claim_one().await;
        f.fail(&run).await;
        assert!(matches!(f.decide(|draft| life::revive(draft, head.id)).await, Revived::Done(_)));
        f.maintain().await;
        assert_eq!(f.head(head.id).await.unwrap().state, State::Available);
    }
    let (run, _) = f.claim_one().await;
    let ended = done(f.complete(&run).await);
    f.maintain().await;
    assert_eq!(f.head(head.id).await, Some(ended));
    let stats = f.queue("default").await.unwrap();
    assert_eq!((stats.created, stats.count(State::Completed), stats.counts.iter().sum::<u64>()), (1, 1, 1));
}

/// The counts hold per queue (invariant 5 of docs/ARCHITECTURE.md).
pub async fn conservation_created_is_live_and_finished_and_purged(f: &Fixture) {
    for round in 0..6 {
        for queue in ["a", "b"] {
            f.create(&keyed("k").on_conflict("replace").queue(queue).offer()).await;
            f.create(&job().queue(queue).attempts(1).offer()).await;
            for (run, _) in f.claim(queue, 1).await.jobs {
                if round % 2 == 0 { drop(f.complete(&run).await) } else { drop(f.fail(&run).await) }
            }
        }
        f.advance(SECOND * 3600 * 9).await;
        f.run_duties().await;
        f.purge().await;
        for queue in f.backend().queues().await.unwrap() {
            assert_eq!(queue.created, queue.counts.iter().sum::<u64>() + queue.purged, "{queue:?}");
        }
    }
    let purged: u64 = f.backend().queues().await.unwrap().iter().map(|queue| queue.purged).sum();
    assert!(purged > 0);
}
