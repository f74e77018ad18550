//! Tasks on every store: one identity over a whole workflow, decided before any step exists, and ended with
//! the workflow.

use std::time::Duration;

use semel_core::draft::Reads;
use semel_core::enqueue::{Offer, Outcome};
use semel_core::ident::{JobId, WorkflowId};
use semel_core::job::NoteKind;
use semel_core::lease::Bearer;
use semel_core::life;
use semel_core::settle::{Refusal, Settled};
use semel_core::slot::Due;
use semel_core::state::{State, StateSet};
use semel_core::task::{self, TaskOutcome, TaskPlan, Unfit};
use semel_core::tenant::{Namespace, Tenant};
use semel_core::trail::Failures;
use semel_core::unique::RejectReason;
use semel_core::workflow::{self, Cancelled, Plan, Status};

use semel_store::backend::Verdict::{Applied, Stale};

use crate::fixture::{Fixture, bearer};
use crate::flows::{chain, group, statuses, stored};
use crate::make::{Want, job, keyed};

fn space() -> Namespace {
    Namespace::default()
}

/// A task under a key that is held for ever, with steps one after the other.
fn strict(key: &str, steps: usize) -> TaskPlan {
    let offer = keyed(key).states(StateSet::ALL).args("[{\"context\":1}]").offer();
    TaskPlan { offer, steps: chain(vec![job().attempts(1).offer(); steps]) }
}

async fn create(f: &Fixture, plan: &TaskPlan) -> TaskOutcome {
    let mut reads = Reads::default();
    plan.offer.reads(&mut reads);
    f.decide_on(&reads, |draft| task::create(draft, plan, &space())).await
}

async fn created(f: &Fixture, plan: &TaskPlan) -> WorkflowId {
    match create(f, plan).await {
        TaskOutcome::Created { id, .. } => id,
        other => panic!("not created: {other:?}"),
    }
}

async fn state(f: &Fixture, id: WorkflowId) -> State {
    f.head(id.as_job()).await.unwrap().state
}

async fn status(f: &Fixture, id: WorkflowId) -> Status {
    stored(f, id).await.unwrap().status
}

async fn jobs(f: &Fixture) -> u64 {
    f.queue("default").await.map_or(0, |stats| stats.counts.iter().sum())
}

/// What workers may do to a job is refused for the task.
pub async fn a_task_lives_while_its_steps_run_and_ends_with_the_last(f: &Fixture) {
    let id = created(f, &strict("k", 2)).await;
    for expected in ["rw", "cr"] {
        assert_eq!((statuses(f, id).await.as_str(), state(f, id).await), (expected, State::Active));
        // The task itself is never granted.
        let claimed = f.claim("default", 10).await;
        assert_eq!(claimed.jobs.len(), 1);
        assert_ne!(claimed.jobs[0].0.id, id.as_job());
        assert_eq!(f.due(Due::Lease, 10).await, []);
        assert!(matches!(f.complete(&claimed.jobs[0].0).await, Settled::Done(_)));
    }
    assert_eq!((status(f, id).await, state(f, id).await), (Status::Completed, State::Completed));
    let again = create(f, &strict("k", 2)).await;
    assert!(matches!(again, TaskOutcome::Decided(Outcome::Rejected { .. })), "{again:?}");
}

/// A duplicate creates no step, whatever happened to the first task.
pub async fn a_duplicate_of_a_task_creates_nothing(f: &Fixture) {
    let id = created(f, &strict("k", 3)).await;
    let before = jobs(f).await;
    let again = create(f, &strict("k", 3)).await;
    assert!(matches!(again, TaskOutcome::Decided(Outcome::Rejected { .. })), "{again:?}");
    assert_eq!(jobs(f).await, before);
    f.cancel(id.as_job()).await;
    let again = create(f, &strict("k", 3)).await;
    assert!(matches!(again, TaskOutcome::Decided(Outcome::Rejected { .. })), "{again:?}");
    assert_eq!(jobs(f).await, before);
    created(f, &strict("other", 3)).await;
}

/// A step that fails for good ends the task.
pub async fn a_task_fails_with_its_step(f: &Fixture) {
    let id = created(f, &strict("k", 2)).await;
    let (head, _) = f.claim_one().await;
    f.fail(&head).await;
    assert_eq!((status(f, id).await, state(f, id).await), (Status::Failed, State::Discarded));
    assert_eq!(statuses(f, id).await, "fx");
    let (task, full) = f.full(id.as_job()).await.unwrap();
    assert!(task.started_at.is_some());
    let failures = Failures::decode(full.note(NoteKind::Failures).unwrap()).unwrap().0;
    assert_eq!((failures.len(), &*failures[0].code), (1, "step_failed"));
}

/// Either of the two may be cancelled first.
pub async fn a_task_and_its_steps_are_cancelled_together(f: &Fixture) {
    for by_workflow in [false, true] {
        let plan = strict(if by_workflow { "a" } else { "b" }, 2);
        let id = created(f, &plan).await;
        if by_workflow {
            let cancelled = f.decide(|draft| workflow::cancel(draft, &Tenant::default(), id)).await;
            assert!(matches!(cancelled, Cancelled::Done(_)), "{cancelled:?}");
        } else {
            assert!(matches!(f.cancel(id.as_job()).await, Settled::Done(_)));
        }
        assert_eq!((status(f, id).await, state(f, id).await), (Status::Cancelled, State::Cancelled));
        assert_eq!(statuses(f, id).await, "xx");
        assert!(f.claim("default", 10).await.jobs.is_empty());
        let again = f.cancel(id.as_job()).await;
        assert!(matches!(again, Settled::Refused(Refusal::WrongState(State::Cancelled))), "{again:?}");
    }
}

/// The old task's steps end in the commit that creates the new task, whose steps go on.
pub async fn a_replaced_task_takes_its_steps_with_it(f: &Fixture) {
    let plan = |key: &str| TaskPlan { offer: keyed(key).on_conflict("replace").offer(), ..strict(key, 2) };
    let first = created(f, &plan("k")).await;
    let (head, _) = f.claim_one().await;
    let second = created(f, &plan("k")).await;
    assert_eq!((status(f, first).await, state(f, first).await), (Status::Cancelled, State::Cancelled));
    assert_eq!(statuses(f, first).await, "xx");
    assert!(matches!(f.complete(&head).await, Settled::Refused(_)));
    assert_eq!((statuses(f, second).await.as_str(), state(f, second).await), ("rw", State::Active));
    for _ in 0..2 {
        let (head, _) = f.claim_one().await;
        f.complete(&head).await;
    }
    assert_eq!((status(f, second).await, state(f, second).await), (Status::Completed, State::Completed));
    assert_eq!(status(f, first).await, Status::Cancelled);
}

/// The step held the key as well, and has ended in the same commit.
pub async fn a_step_that_ends_with_its_replaced_task_is_named_as_cancelled(f: &Fixture) {
    let waiting = StateSet::EMPTY.with(State::Available);
    let step = keyed("k").states(waiting).offer();
    let id = created(f, &TaskPlan { offer: keyed("k").offer(), steps: group([step]) }).await;
    let step = f.claim_one().await.0;
    assert!(matches!(
        f.decide(|draft| semel_core::settle::give_back(draft, step.id, &bearer(&step))).await,
        Settled::Done(_)
    ));
    let outcome = f.enqueue(&keyed("k").on_conflict("replace").offer()).await;
    let Outcome::Replaced { cancelled, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(cancelled, [id.as_job(), step.id]);
    assert_eq!((statuses(f, id).await.as_str(), state(f, id).await), ("x", State::Cancelled));
}

/// A step that two tasks of a key wait for ends with the one that is replaced, and would fail the other. A
/// finished holder is not replaced, so nothing is done and that task is named unchanged.
pub async fn a_task_that_would_fail_by_what_is_replaced_is_in_the_way_as_it_is(f: &Fixture) {
    let task = || keyed("k").states(StateSet::EMPTY.with(State::Available)).offer();
    let shared = || keyed("s").on_conflict("ignore").queue("shared").offer();
    let first = created(f, &TaskPlan { offer: task(), steps: chain([job().offer(), shared()]) }).await;
    let second = created(f, &TaskPlan { offer: task(), steps: chain([shared()]) }).await;
    let (head, _) = f.claim_one().await;
    f.complete(&head).await;
    let states = [State::Scheduled, State::Pending, State::Active, State::Retryable, State::Discarded];
    let states = states.into_iter().fold(StateSet::EMPTY.with(State::Available), StateSet::with);
    let replacing = keyed("k").states(states).on_conflict("replace").offer();
    let outcome = f.enqueue(&replacing).await;
    let Outcome::Rejected { holder, why } = outcome else { panic!("{outcome:?}") };
    let holder = holder.named().unwrap();
    assert_eq!((holder.id, holder.state), (first.as_job(), State::Active));
    assert_eq!(why, RejectReason::FinishedHolder);
    for (id, steps) in [(first, "cr"), (second, "r")] {
        assert_eq!((statuses(f, id).await.as_str(), state(f, id).await), (steps, State::Active));
    }
    assert_eq!(f.queue("default").await.unwrap().created, 3);
}

/// The task and its workflow are stored together or not at all; the second of two decisions is stale.
pub async fn the_second_of_two_tasks_of_one_identity_is_stale(f: &Fixture) {
    let plan = strict("k", 2);
    let mut reads = Reads::default();
    plan.offer.reads(&mut reads);
    let mut groups = Vec::new();
    for _ in 0..2 {
        let mut draft = f.draft(&reads).await;
        // Anything else that is missing is loaded as in any decision; the key has been read.
        let outcome = task::create(&mut draft, &plan, &space()).unwrap();
        assert!(matches!(outcome, TaskOutcome::Created { .. }), "{outcome:?}");
        groups.push(draft.finish());
    }
    let second = groups.pop().unwrap();
    assert_eq!(f.commit(groups).await, [Applied]);
    let before = jobs(f).await;
    assert_eq!(f.commit(vec![second]).await, [Stale]);
    assert_eq!(jobs(f).await, before);
}

/// What no worker runs cannot be activated, finished or given back.
pub async fn a_task_is_nobodys_to_run(f: &Fixture) {
    let id = created(f, &strict("k", 1)).await.as_job();
    let refused = |settled: Settled| assert!(matches!(settled, Settled::Refused(_)), "{settled:?}");
    refused(f.decide(|draft| life::activate(draft, id)).await);
    refused(f.decide(|draft| semel_core::settle::complete(draft, id, &Bearer::default(), None)).await);
    refused(f.decide(|draft| semel_core::settle::give_back(draft, id, &Bearer::default())).await);
    assert_eq!(f.decide(|draft| semel_core::settle::reap(draft, id)).await, None);
    f.run_duties().await;
    assert_eq!(f.head(id).await.unwrap().state, State::Active);
    // Its work counts as under way all the same: a follow-up waits for its end.
    let outcome = f.enqueue(&keyed("k").on_conflict("follow_up").offer()).await;
    let Outcome::FollowUp(next) = outcome else { panic!("{outcome:?}") };
    let (step, _) = f.claim_one().await;
    f.complete(&step).await;
    assert_eq!(f.head(id).await.unwrap().state, State::Completed);
    assert_eq!(f.claim_one().await.0.id, next.id);
}

/// All its steps may be refused at once; then the task has failed as soon as it exists.
pub async fn a_task_whose_steps_are_all_refused_has_failed(f: &Fixture) {
    f.create(&keyed("held").offer()).await;
    let steps: Plan = group(vec![Offer { ..keyed("held").offer() }; 2]);
    let id = created(f, &TaskPlan { steps, ..strict("k", 1) }).await;
    assert_eq!((status(f, id).await, state(f, id).await), (Status::Failed, State::Discarded));
}

/// Its context is kept byte for byte.
pub async fn a_tasks_context_is_kept_as_it_was_given(f: &Fixture) {
    let context = "[{\"once\" : 1.0,\n \"onboarding_id\":1e2, \"caf\u{e9}\":\"\\u00e9\"}]";
    let plan = TaskPlan { offer: keyed("k").args(context).offer(), ..strict("k", 1) };
    let id: JobId = created(f, &plan).await.as_job();
    f.maintain().await;
    let (_, full) = f.full(id).await.unwrap();
    let body = semel_core::body::Body::decode(&full.body).unwrap();
    assert_eq!(&*body.args, context);
}

/// A policy that would delay the task is refused as unfit, whatever job holds its key.
pub async fn a_task_cannot_be_put_off(f: &Fixture) {
    f.create(&keyed("k").later(Duration::from_secs(60)).offer()).await;
    f.create(&keyed("l").offer()).await;
    f.claim_one().await;
    let before = jobs(f).await;
    let waits = |want: Want| want.policy(|spec| spec.when_active = Some("wait".to_owned()));
    for (offer, why) in [
        (keyed("k").on_conflict("follow_up"), Unfit::FollowsUp),
        (keyed("l").on_conflict("follow_up"), Unfit::FollowsUp),
        (keyed("k").on_conflict("replace_except_schedule"), Unfit::KeepsSchedule),
        (waits(keyed("l").on_conflict("replace")), Unfit::Waits),
    ] {
        let told = create(f, &TaskPlan { offer: offer.offer(), ..strict("x", 1) }).await;
        assert!(matches!(told, TaskOutcome::Unfit(other) if other == why), "{told:?}");
    }
    assert_eq!(jobs(f).await, before);
    // A task that replaces a job which has not begun still begins at once.
    let plan = TaskPlan { offer: keyed("k").on_conflict("replace").offer(), ..strict("k", 1) };
    let id = created(f, &plan).await;
    assert_eq!(state(f, id).await, State::Active);
}
