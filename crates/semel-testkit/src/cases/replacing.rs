//! `replace` where more than the holders it finds is affected: the follow-ups that their end releases, and
//! the leases it burns (SEMANTICS 4).

use std::time::Duration;

use semel_core::body::Body;
use semel_core::enqueue::{Offer, Outcome};
use semel_core::ident::JobId;
use semel_core::job::{Ending, Head, NoteKind};
use semel_core::life;
use semel_core::sight::Sight;
use semel_core::state::{State, StateSet};
use semel_core::time::Timestamp;
use semel_core::trail::Marks;
use semel_core::unique::{Admission, Disclose, admit};
use semel_core::waiting::Waiters;

use crate::fixture::{Fixture, done};
use crate::flows::{self, chain, create, job_of, statuses};
use crate::make::{Want, job, keyed};

const SECOND: Duration = Duration::from_secs(1);

/// Offers a job that must replace others, and returns it with their ids.
async fn replaced(f: &Fixture, offer: &Offer) -> (Head, Vec<JobId>) {
    match f.enqueue(offer).await {
        Outcome::Replaced { head, cancelled, .. } => (*head, cancelled),
        other => panic!("nothing was replaced: {other:?}"),
    }
}

/// "After `created` nobody else blocks, at the decision's time."
async fn nobody_else_blocks(f: &Fixture, offer: &Offer, created: JobId) {
    let identity = offer.unique.as_ref().unwrap();
    let mut others = f.holders(identity.key).await;
    others.retain(|holder| holder.id != created);
    assert_eq!(admit(&identity.policy, &others, f.now().await, Sight::everything()), Admission::Create);
}

/// A run, and a follow-up that waits for its end.
async fn run_and_follow_up(f: &Fixture) -> (Head, Head) {
    let wish = keyed("a").on_conflict("follow_up");
    f.create(&wish.offer()).await;
    let (run, _) = f.claim_one().await;
    let next = f.create(&wish.offer()).await;
    assert_eq!(next.state, State::Pending);
    (run, next)
}

fn replacing(states: &[State]) -> Want {
    keyed("a").on_conflict("replace").states(states.iter().copied().collect())
}

/// The end of the replaced run releases its follow-up into a state in which it blocks.
pub async fn a_follow_up_that_a_replacement_lets_go_is_replaced_as_well(f: &Fixture) {
    let (run, next) = run_and_follow_up(f).await;
    let offer = replacing(&[State::Available, State::Active]).offer();
    let (new, cancelled) = replaced(f, &offer).await;
    assert_eq!(cancelled, [run.id, next.id], "the one an answer names comes first");
    let after = f.head(next.id).await.unwrap();
    assert_eq!((after.state, after.ending), (State::Cancelled, Some(Ending::Replaced)));
    nobody_else_blocks(f, &offer, new.id).await;
    assert_eq!(f.claim_one().await.0.id, new.id);
    assert!(f.claim("default", 5).await.jobs.is_empty());
}

/// A policy that does not look at the follow-up's new state leaves it alone.
pub async fn a_follow_up_that_a_replacement_lets_go_stays_where_it_does_not_block(f: &Fixture) {
    let (run, next) = run_and_follow_up(f).await;
    let offer = replacing(&[State::Active]).offer();
    let (new, cancelled) = replaced(f, &offer).await;
    assert_eq!(cancelled, [run.id]);
    assert_eq!(f.head(next.id).await.unwrap().state, State::Available);
    nobody_else_blocks(f, &offer, new.id).await;
}

/// However many of the holders are waited for, what each needs is loaded for all of them together.
pub async fn any_number_of_awaited_holders_is_replaced(f: &Fixture) {
    let aside = keyed("a").states(StateSet::EMPTY.with(State::Discarded)).offer();
    let (id, _) = flows::create(f, &flows::group(vec![aside; 100])).await;
    let (new, cancelled) = replaced(f, &keyed("a").on_conflict("replace").offer()).await;
    assert_eq!(cancelled.len(), 100);
    assert_eq!(flows::statuses(f, id).await, "r".repeat(100), "they go on with the new job");
    let (run, _) = f.claim_one().await;
    assert_eq!(run.id, new.id);
    f.complete(&run).await;
    assert_eq!(flows::statuses(f, id).await, "c".repeat(100));
}

/// There are two runs, one of them outside the policy: the follow-up goes on waiting for that one.
pub async fn a_follow_up_of_a_run_that_is_not_replaced_goes_on_waiting(f: &Fixture) {
    let aside = keyed("a").states(StateSet::EMPTY.with(State::Discarded)).attempts(2);
    f.create(&aside.offer()).await;
    let (retried, _) = f.claim_one().await;
    let (run, next) = run_and_follow_up_beside(f).await;
    f.fail(&retried).await;
    let offer = replacing(&[State::Available, State::Active]).offer();
    let (new, cancelled) = replaced(f, &offer).await;
    assert_eq!(cancelled, [run.id]);
    assert_eq!(f.head(next.id).await.unwrap().state, State::Pending, "the other run is to be tried again");
    nobody_else_blocks(f, &offer, new.id).await;
    f.cancel(retried.id).await;
    assert_eq!(f.head(next.id).await.unwrap().state, State::Available);
}

/// As [`run_and_follow_up`], beside holders that the run's own policy does not look at.
async fn run_and_follow_up_beside(f: &Fixture) -> (Head, Head) {
    f.create(&keyed("a").states(StateSet::EMPTY.with(State::Discarded)).offer()).await;
    let (run, _) = f.claim_one().await;
    let next = f.create(&keyed("a").on_conflict("follow_up").offer()).await;
    assert_eq!(next.state, State::Pending);
    (run, next)
}

fn waiting() -> Want {
    keyed("a").on_conflict("replace").policy(|spec| spec.when_active = Some("wait".to_owned()))
}

/// Starts a run, and returns the end of its lease.
async fn run_with_lease(f: &Fixture) -> Timestamp {
    f.create(&keyed("a").offer()).await;
    let (run, _) = f.claim_one().await;
    f.advance(SECOND).await;
    run.lease.unwrap().ends_at()
}

/// The replaced run's process goes on although its lease is burned, however often its replacement is replaced
/// meanwhile.
pub async fn a_replacement_of_a_waiting_replacement_waits_as_long(f: &Fixture) {
    let ends_at = run_with_lease(f).await;
    for want in [waiting(), waiting(), waiting().later(SECOND)] {
        let (new, _) = replaced(f, &want.offer()).await;
        assert_eq!((new.state, new.available_at), (State::Scheduled, ends_at));
        f.advance(SECOND).await;
    }
    // Its own start time is later than the lease's end, and the next job need not wait for that time.
    let (late, _) = replaced(f, &waiting().later(SECOND * 3600).offer()).await;
    assert!(late.available_at > ends_at);
    let (new, _) = replaced(f, &waiting().offer()).await;
    assert_eq!((new.state, new.available_at), (State::Scheduled, ends_at));
    f.advance(ends_at.since(f.now().await)).await;
    f.run_duties().await;
    assert_eq!(f.claim_one().await.0.id, new.id);
}

/// A replacement that does not wait itself passes on what a later one has to wait for.
pub async fn a_replacement_that_does_not_wait_passes_the_wait_on(f: &Fixture) {
    let ends_at = run_with_lease(f).await;
    let (now, _) = replaced(f, &keyed("a").on_conflict("replace").offer()).await;
    assert_eq!(now.state, State::Available);
    let (new, _) = replaced(f, &waiting().offer()).await;
    assert_eq!((new.state, new.available_at), (State::Scheduled, ends_at));
    // Once the lease's time is over there is nothing to wait for.
    f.advance(ends_at.since(f.now().await)).await;
    let (new, _) = replaced(f, &waiting().offer()).await;
    assert_eq!((new.state, new.burned_until()), (State::Available, None));
}

/// Activated before the lease's end, it becomes available when the lease ends; activated afterwards, at once.
pub async fn a_replacement_that_is_to_be_activated_waits_as_well(f: &Fixture) {
    let ends_at = run_with_lease(f).await;
    for early in [true, false] {
        let (new, _) = replaced(f, &waiting().pending().offer()).await;
        assert_eq!(new.state, State::Pending);
        if !early {
            f.advance(ends_at.since(f.now().await)).await;
        }
        let active = done(f.decide(|draft| life::activate(draft, new.id)).await);
        if early {
            assert_eq!((active.state, active.available_at), (State::Scheduled, ends_at));
        } else {
            assert_eq!(active.state, State::Available);
        }
    }
}

/// The schedule that the new job takes over may come before the end of the lease that was burned for it.
pub async fn a_schedule_that_is_kept_does_not_end_the_wait_for_a_lease(f: &Fixture) {
    let wish = keyed("a").on_conflict("follow_up");
    f.create(&wish.offer()).await;
    let (run, _) = f.claim_one().await;
    let next = f.create(&wish.later(SECOND * 10).offer()).await;
    assert_eq!(next.state, State::Pending);
    let ends_at = run.lease.as_ref().unwrap().ends_at();
    let states = StateSet::EMPTY.with(State::Active).with(State::Scheduled);
    let offer = waiting().on_conflict("replace_except_schedule").states(states).offer();
    let (new, cancelled) = replaced(f, &offer).await;
    assert_eq!(cancelled, [run.id, next.id]);
    assert_eq!((new.state, new.available_at), (State::Scheduled, ends_at));
    nobody_else_blocks(f, &offer, new.id).await;
}

/// A job that is to be activated takes over the schedule and still waits for its activation.
pub async fn a_schedule_that_is_kept_activates_nobody(f: &Fixture) {
    let scheduled = f.create(&keyed("a").later(SECOND * 60).offer()).await;
    let offer = keyed("a").on_conflict("replace_except_schedule").pending().offer();
    let (new, cancelled) = replaced(f, &offer).await;
    assert_eq!(cancelled, [scheduled.id]);
    assert_eq!((new.state, new.available_at), (State::Pending, scheduled.available_at));
    let active = done(f.decide(|draft| life::activate(draft, new.id)).await);
    assert_eq!((active.state, active.available_at), (State::Scheduled, scheduled.available_at));
}

/// The new job records its own step, and both workflows are told of its end.
pub async fn a_step_may_replace_the_step_of_another_workflow(f: &Fixture) {
    let replacing = keyed("a").on_conflict("replace").offer();
    let (one, _) = create(f, &chain([replacing.clone(), job().offer()])).await;
    let (other, _) = create(f, &chain([job().priority(9).offer(), replacing, job().offer()])).await;
    let first = job_of(f, one, 0).await;
    let (head, _) = f.claim_one().await;
    f.complete(&head).await;
    let made = job_of(f, other, 1).await;
    assert_ne!(made, first);
    let waiters = f.full(made).await.unwrap().1.note(NoteKind::Waiters).cloned().unwrap();
    assert_eq!(Waiters::decode(&waiters).unwrap().workflow(), Some((other, 1)));
    let (head, _) = f.claim_one().await;
    assert_eq!(head.id, made);
    f.complete(&head).await;
    assert_eq!((statuses(f, one).await, statuses(f, other).await), ("cr".to_owned(), "ccr".to_owned()));
    assert_eq!((job_of(f, one, 0).await, job_of(f, other, 1).await), (made, made));
}

async fn waiters(f: &Fixture, id: JobId) -> Waiters {
    let noted = f.full(id).await.unwrap().1.note(NoteKind::Waiters).cloned();
    noted.map(|text| Waiters::decode(&text).unwrap()).unwrap_or_default()
}

/// All steps wait for the last replacement; each replaced job records whose step it was, and no other's.
pub async fn a_replaced_step_names_its_own_workflow_alone(f: &Fixture) {
    let replacing = keyed("a").on_conflict("replace").offer();
    f.create(&replacing).await;
    let (mut flows, mut jobs) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (id, _) = create(f, &chain([replacing.clone(), job().offer()])).await;
        jobs.push(job_of(f, id, 0).await);
        flows.push(id);
    }
    let (last, before) = jobs.split_last().unwrap();
    for (made, id) in before.iter().zip(&flows) {
        let waiters = waiters(f, *made).await;
        assert_eq!((waiters.0.len(), waiters.workflow()), (1, Some((*id, 0))));
    }
    assert_eq!(waiters(f, *last).await.0.len(), 4);
    let (run, _) = f.claim_one().await;
    f.complete(&run).await;
    for id in flows {
        assert_eq!((statuses(f, id).await, job_of(f, id, 0).await), ("cr".to_owned(), *last));
    }
}

/// Nor is the number of its burned lease ever given out again.
pub async fn a_holder_that_hides_is_not_told_as_what_was_replaced(f: &Fixture) {
    f.create(&keyed("a").policy(|spec| spec.disclose = Some("never".to_owned())).offer()).await;
    let (run, _) = f.claim_one().await;
    let (new, cancelled) = replaced(f, &replacing(&[State::Active]).offer()).await;
    assert_eq!(cancelled, [run.id]);
    let (old, full) = f.full(run.id).await.unwrap();
    assert!(Marks::decode(full.note(NoteKind::Marks).unwrap()).unwrap().undisclosed);
    let (_, full) = f.full(new.id).await.unwrap();
    assert!(Body::decode(&full.body).unwrap().lineage.is_empty());
    assert!(old.fence > run.fence && new.fence >= old.fence);
    // Nor is the replaced job named if the new job hides itself, nor to a caller that may not see jobs.
    let first = f.create(&keyed("b").offer()).await;
    let hiding = keyed("b").on_conflict("replace").policy(|spec| spec.disclose = Some("never".to_owned()));
    let (_, cancelled) = replaced(f, &hiding.offer()).await;
    assert_eq!(cancelled, [first.id]);
    let (_, full) = f.full(first.id).await.unwrap();
    assert!(Marks::decode(full.note(NoteKind::Marks).unwrap()).unwrap().undisclosed);
    f.create(&keyed("c").offer()).await;
    let blind = Offer { inspect: false, ..keyed("c").on_conflict("replace").offer() };
    let outcome = f.enqueue(&blind).await;
    assert!(matches!(&outcome, Outcome::Replaced { disclose: Disclose::Never, .. }), "{outcome:?}");
}
