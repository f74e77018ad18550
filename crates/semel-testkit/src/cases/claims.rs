//! Claims: order, bounds, what a grant fills in, and what is not granted.

use std::time::Duration;

use semel_core::ident::QueueName;
use semel_core::job::{Ending, NoteKind};
use semel_core::lease::Unclaimable;
use semel_core::life;
use semel_core::state::State;
use semel_store::backend::Claimed;

use crate::fixture::{Fixture, bytes, claim};
use crate::make::{Want, foreign_id, job, keyed};

const SECOND: Duration = Duration::from_secs(1);

fn types(claimed: &Claimed) -> Vec<String> {
    claimed.jobs.iter().map(|(head, _)| head.job_type.to_string()).collect()
}

/// The order is `(priority descending, available_at, id)`.
pub async fn higher_priority_first_then_the_longest_waiting_then_the_older_id(f: &Fixture) {
    let at = |name: &str, want: Want| want.of_type(name);
    f.create(&at("low", job().priority(-100)).offer()).await;
    f.create(&at("second", job().id(foreign_id(2))).offer()).await;
    f.create(&at("first", job().id(foreign_id(1))).offer()).await;
    f.advance(SECOND).await;
    f.create(&at("later", job().id(foreign_id(0))).offer()).await;
    f.create(&at("high", job().priority(100)).offer()).await;
    f.create(&at("mid", job().priority(1)).offer()).await;
    let claimed = f.claim("default", 10).await;
    assert_eq!(types(&claimed), ["high", "mid", "first", "second", "later", "low"]);
}

/// Queues are served in the order in which the claim names them, whatever their jobs' priorities.
pub async fn the_queue_named_first_is_emptied_first(f: &Fixture) {
    for (queue, priority) in [("a", 5), ("b", 50), ("a", 1), ("c", 100)] {
        f.create(&job().of_type(queue).queue(queue).priority(priority).offer()).await;
    }
    let applied = f.commit_all(Vec::new(), vec![claim(&["nowhere", "a", "b"], 10)]).await;
    assert_eq!(types(&applied.claims[0]), ["a", "a", "b"]);
    assert_eq!(types(&f.claim("c", 10).await), ["c"]);
}

/// A caller may name a queue twice, and its jobs are still granted once.
pub async fn a_queue_named_twice_gives_each_job_once(f: &Fixture) {
    for name in ["first", "second", "third"] {
        f.create(&job().of_type(name).queue("a").offer()).await;
    }
    let applied = f.commit_all(Vec::new(), vec![claim(&["a", "a"], 10)]).await;
    let attempts: Vec<u32> = applied.claims[0].jobs.iter().map(|(head, _)| head.attempt).collect();
    assert_eq!((types(&applied.claims[0]).len(), attempts), (3, vec![1; 3]));
}

/// The limit holds over all named queues together.
pub async fn a_claim_is_bounded_by_its_limit(f: &Fixture) {
    for queue in ["a", "a", "a", "b", "b"] {
        f.create(&job().queue(queue).offer()).await;
    }
    let take = |limit| async move {
        f.commit_all(Vec::new(), vec![claim(&["a", "b"], limit)]).await.claims.remove(0).jobs.len()
    };
    assert_eq!((take(0).await, take(1).await, take(3).await, take(9).await), (0, 1, 3, 1));
}

/// This holds also when both claims name the same queue.
pub async fn two_claims_in_one_commit_never_share_a_job(f: &Fixture) {
    for _ in 0..5 {
        f.create(&job().offer()).await;
    }
    let claims = vec![claim(&["default"], 2), claim(&["default"], 2), claim(&["default"], 2)];
    let applied = f.commit_all(Vec::new(), claims).await;
    let mut ids: Vec<_> =
        applied.claims.iter().flat_map(|claimed| &claimed.jobs).map(|(head, _)| head.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 5);
    assert_eq!(applied.claims.iter().map(|claimed| claimed.jobs.len()).collect::<Vec<_>>(), [2, 2, 1]);
}

/// Enqueueing into a paused queue goes on.
pub async fn a_paused_queue_gives_nothing_until_it_is_resumed(f: &Fixture) {
    let name = QueueName::default();
    f.create(&job().offer()).await;
    f.decide(|draft| life::set_paused(draft, &name, true)).await;
    f.create(&job().offer()).await;
    assert!(f.claim("default", 10).await.jobs.is_empty());
    f.decide(|draft| life::set_paused(draft, &name, false)).await;
    assert_eq!(f.claim("default", 10).await.jobs.len(), 2);
}

/// State, attempt, worker, fence and deadlines are set by the store's clock, and stored.
pub async fn a_grant_is_filled_in(f: &Fixture) {
    let job = f.create(&job().offer()).await;
    f.advance(SECOND).await;
    let now = f.now().await;
    let (run, _) = f.claim_one().await;
    assert_eq!((run.state, run.attempt, run.started_at), (State::Active, 1, Some(now)));
    assert!(run.version > job.version && run.fence > job.fence);
    let lease = run.lease.as_ref().unwrap();
    assert_eq!(&*lease.worker, "w");
    assert_eq!(lease.visible_until, now.saturating_add(SECOND * 120));
    assert_eq!(lease.run_until, now.saturating_add(SECOND * 30 * 60));
    assert_eq!(f.head(job.id).await, Some(run));
    assert!(f.claim("default", 1).await.jobs.is_empty());
}

/// The job's visibility timeout decides, else the worker's, else the default.
pub async fn a_job_says_how_long_its_lease_lasts(f: &Fixture) {
    f.create(&job().times(5_000, 7_000).offer()).await;
    f.create(&job().offer()).await;
    let mut wish = claim(&["default"], 2);
    wish.grant.visibility_ms = 3_000;
    let applied = f.commit_all(Vec::new(), vec![wish]).await;
    let lasts: Vec<u128> = applied.claims[0]
        .jobs
        .iter()
        .map(|(head, _)| head.lease.as_ref().unwrap().ends_at().since(head.started_at.unwrap()).as_millis())
        .collect();
    assert_eq!(lasts, [5_000, 3_000]);
}

/// A claim returns what a worker needs in one round trip.
pub async fn a_claim_brings_body_and_notes(f: &Fixture) {
    let offers = [job().args(r#"[{"n":1}]"#).offer(), job().args("[2]").id(foreign_id(9)).offer()];
    for offer in &offers {
        let head = f.create(offer).await;
        f.decide_on(&semel_core::draft::Reads { fulls: vec![head.id], ..Default::default() }, |draft| {
            let (mut head, _) = draft.full(head.id)?.unwrap();
            draft.update(&mut head);
            draft.note(head.id, NoteKind::Payload, Some(bytes("note")));
            draft.note(head.id, NoteKind::Marks, Some(bytes("mark")));
            Ok(())
        })
        .await;
    }
    let claimed = f.claim("default", 2).await;
    for (head, full) in claimed.jobs {
        let offer = offers.iter().find(|offer| offer.id.is_some() == (head.id == foreign_id(9))).unwrap();
        assert_eq!(full.body, offer.body);
        assert_eq!(full.note(NoteKind::Payload), Some(&bytes("note")));
        assert_eq!((full.note(NoteKind::Marks), full.notes.len()), (Some(&bytes("mark")), 2));
    }
}

/// The claim tests `expires_at` in the same atomic step.
pub async fn an_expired_job_is_not_granted_whether_or_not_swept(f: &Fixture) {
    let gone = f.create(&job().expires(SECOND).priority(9).offer()).await;
    let good = f.create(&job().offer()).await;
    f.advance(SECOND).await;
    let claimed = f.claim("default", 10).await;
    assert_eq!(claimed.unclaimable, [(gone.id, Unclaimable::Expired)]);
    assert_eq!(claimed.jobs.iter().map(|(head, _)| head.id).collect::<Vec<_>>(), [good.id]);
    assert_eq!(f.head(gone.id).await, Some(gone.clone()), "the engine settles it, not the store");
    assert!(f.decide(|draft| life::expire(draft, gone.id)).await);
    assert!(f.claim("default", 10).await.unclaimable.is_empty());
}

/// The store returns it unclaimed for the core to settle; the jobs behind it are not hidden.
pub async fn a_job_without_attempts_is_not_granted(f: &Fixture) {
    let first = f.create(&job().attempts(1).offer()).await;
    f.decide(|draft| {
        let mut head = draft.head(first.id)?.unwrap();
        head.attempt = 1;
        draft.update(&mut head);
        Ok(())
    })
    .await;
    let good = f.create(&job().offer()).await;
    let claimed = f.claim("default", 10).await;
    assert_eq!(claimed.unclaimable, [(first.id, Unclaimable::Exhausted)]);
    assert_eq!(claimed.jobs[0].0.id, good.id);
    assert!(f.decide(|draft| life::exhaust(draft, first.id)).await);
    let ended = f.head(first.id).await.unwrap();
    assert_eq!((ended.state, ended.ending), (State::Discarded, Some(Ending::Failed)));
}

/// Only jobs that are filed as ready are granted.
pub async fn jobs_that_wait_for_something_are_not_claimed(f: &Fixture) {
    f.create(&job().later(SECOND).offer()).await;
    f.create(&job().pending().offer()).await;
    let cancelled = f.create(&keyed("a").offer()).await;
    f.cancel(cancelled.id).await;
    f.finished(&job().priority(3).offer()).await;
    f.advance(SECOND * 2).await;
    assert!(f.claim("default", 10).await.jobs.is_empty(), "no duty has run");
    f.run_duties().await;
    assert_eq!(f.claim("default", 10).await.jobs.len(), 1);
}
