//! Workflows on every store: which end releases which steps, all in one commit.

use std::time::Duration;

use bytes::Bytes;
use semel_core::draft::{Draft, Group, Reads};
use semel_core::enqueue::{Offer, Outcome};
use semel_core::event::EventKind;
use semel_core::ident::{JobId, WorkflowId};
use semel_core::job::{Head, NoteKind};
use semel_core::lease::Bearer;
use semel_core::limits::{PARENT_RESULTS_BYTES_MAX, RETENTION_DEFAULT_S, RETENTION_DISCARDED_S};
use semel_core::settle;
use semel_core::state::{State, StateSet};
use semel_core::tenant::Tenant;
use semel_core::workflow::{self, Cancelled, Created, Status, When};
use semel_store::backend::Verdict::{Applied, Stale};

use crate::fixture::{Fixture, bearer, bytes};
use crate::flows::{batch, chain, create, graph, group, job_of, reads, statuses, stored};
use crate::make::{job, keyed};

const SECOND: Duration = Duration::from_secs(1);

/// A job with one attempt: its first failure is final.
fn once() -> Offer {
    job().attempts(1).offer()
}

fn plain(count: usize) -> Vec<Offer> {
    vec![once(); count]
}

async fn ack(f: &Fixture, head: &Head, result: Option<&str>) {
    let (bearer, result) = (bearer(head), result.map(bytes));
    let settled = f.decide(|draft| settle::complete(draft, head.id, &bearer, result.as_ref())).await;
    assert!(matches!(settled, settle::Settled::Done(_)), "{settled:?}");
}

async fn run(f: &Fixture, result: Option<&str>) -> JobId {
    let (head, _) = f.claim_one().await;
    ack(f, &head, result).await;
    head.id
}

async fn status(f: &Fixture, id: WorkflowId) -> Status {
    stored(f, id).await.unwrap().status
}

async fn parents(f: &Fixture, id: JobId) -> Option<String> {
    let (_, full) = f.full(id).await.unwrap();
    full.note(NoteKind::ParentResults).map(|text| String::from_utf8(text.to_vec()).unwrap())
}

/// A later step has no job before its turn.
pub async fn a_chain_goes_on_step_by_step(f: &Fixture) {
    let (id, workflow) = create(f, &chain(plain(3))).await;
    assert_eq!(workflow.status, Status::Running);
    for expected in ["rww", "crw", "ccr"] {
        assert_eq!(statuses(f, id).await, expected);
        assert_eq!(f.queue("default").await.unwrap().count(State::Available), 1);
        run(f, None).await;
    }
    let workflow = stored(f, id).await.unwrap();
    assert_eq!((workflow.status, workflow.count(|step| step.is_over())), (Status::Completed, 3));
    assert!(workflow.finished_at.is_some());
}

/// The workflow records where and why it stopped.
pub async fn a_chain_stops_at_its_first_failure(f: &Fixture) {
    let (id, _) = create(f, &chain(plain(3))).await;
    run(f, None).await;
    let (head, _) = f.claim_one().await;
    f.fail(&head).await;
    assert_eq!((statuses(f, id).await.as_str(), status(f, id).await), ("cfx", Status::Failed));
    assert_eq!(stored(f, id).await.unwrap().steps[1].error.as_ref().unwrap().code, "boom");
    assert!(f.claim("default", 9).await.jobs.is_empty());
}

/// A step that fails leaves the others alone; the workflow fails once all have ended.
pub async fn the_steps_of_a_group_are_independent(f: &Fixture) {
    let (id, _) = create(f, &group(plain(3))).await;
    let (head, _) = f.claim_one().await;
    f.fail(&head).await;
    assert_eq!((statuses(f, id).await.as_str(), status(f, id).await), ("frr", Status::Running));
    run(f, None).await;
    run(f, None).await;
    assert_eq!((statuses(f, id).await.as_str(), status(f, id).await), ("fcc", Status::Failed));
}

/// How the jobs ended decides which callbacks run; callbacks do not count as jobs.
pub async fn callbacks_come_when_all_jobs_have_ended(f: &Fixture) {
    for (fails, released, ended) in [(false, "ccrsr", Status::Completed), (true, "cfsrr", Status::Failed)] {
        let callbacks = [When::Success, When::Failure, When::Always];
        let callbacks = callbacks.map(|when| (when, job().queue("callbacks").offer())).to_vec();
        let (id, _) = create(f, &batch(plain(2), callbacks)).await;
        run(f, Some("1")).await;
        assert_eq!(statuses(f, id).await, "crwww");
        let (head, _) = f.claim_one().await;
        if fails {
            f.fail(&head).await;
        } else {
            ack(f, &head, None).await;
        }
        assert_eq!((statuses(f, id).await.as_str(), status(f, id).await), (released, Status::Running));
        for (head, full) in f.claim("callbacks", 9).await.jobs {
            assert_eq!(full.note(NoteKind::ParentResults), Some(&bytes("[1,null]")));
            ack(f, &head, None).await;
        }
        let workflow = stored(f, id).await.unwrap();
        assert_eq!((workflow.status, workflow.count(|step| step.is_over())), (ended, 2));
    }
}

/// A diamond: one step, two in parallel, then one.
pub async fn a_step_of_a_graph_waits_for_all_its_parents(f: &Fixture) {
    let mut plan = graph(vec![(once(), vec![]), (once(), vec![0]), (once(), vec![0]), (once(), vec![1, 2])]);
    // The order in which the steps are listed does not matter.
    plan.steps.reverse();
    for step in &mut plan.steps {
        step.after.iter_mut().chain(&mut step.results).for_each(|at| *at = 3 - *at);
    }
    let (id, _) = create(f, &plan).await;
    for expected in ["wwwr", "wrrc", "wrcc", "rccc", "cccc"] {
        // The two in the middle may end in any order.
        let found = statuses(f, id).await;
        assert!(found == expected || (expected == "wrcc" && found == "wcrc"), "{found}");
        if expected != "cccc" {
            run(f, None).await;
        }
    }
    assert_eq!(status(f, id).await, Status::Completed);
}

/// Results come in the order in which they are requested, by whatever path they arrived; none is kept in the
/// end.
pub async fn results_are_handed_on(f: &Fixture) {
    let mut plan = graph(vec![(once(), vec![]), (once(), vec![0]), (once(), vec![1])]);
    plan.steps[2].results = vec![1, 0];
    let (id, _) = create(f, &plan).await;
    run(f, Some(r#"{"n": 1.0}"#)).await;
    assert_eq!(parents(f, job_of(f, id, 1).await).await.unwrap(), r#"[{"n": 1.0}]"#);
    // While the workflow goes on the result is kept, though the job it came from is purged.
    f.advance(Duration::from_secs(RETENTION_DEFAULT_S + 1)).await;
    assert_eq!(f.purge().await, 1);
    run(f, Some("[2]")).await;
    let last = job_of(f, id, 2).await;
    assert_eq!(parents(f, last).await.unwrap(), r#"[[2],{"n": 1.0}]"#);
    run(f, None).await;
    assert_eq!(status(f, id).await, Status::Completed);
    for kind in [semel_core::draft::DocumentKind::Step, semel_core::draft::DocumentKind::StepResult] {
        let seek = semel_store::backend::Seek::Kind { kind, from: None, descending: false, limit: 9 };
        assert_eq!(f.backend().documents(seek).await.unwrap().documents, []);
    }
}

/// A result that does not fit is never dropped silently.
pub async fn results_that_are_too_large_are_named_instead(f: &Fixture) {
    let plan = graph(vec![(once(), vec![]), (once(), vec![]), (once(), vec![0, 1])]);
    let (id, _) = create(f, &plan).await;
    let large = format!("\"{}\"", "a".repeat(PARENT_RESULTS_BYTES_MAX));
    let first = run(f, Some(&large)).await;
    let kind = semel_core::draft::DocumentKind::StepResult;
    let seek = semel_store::backend::Seek::Kind { kind, from: None, descending: false, limit: 9 };
    let kept = f.backend().documents(seek).await.unwrap().documents;
    assert!(kept.iter().all(|(_, kept)| kept.text.len() < 200), "nor kept twice");
    run(f, Some("2")).await;
    let found = parents(f, job_of(f, id, 2).await).await.unwrap();
    assert_eq!(found, format!("[{{\"semel.omitted\":true,\"job_id\":\"{first}\"}},2]"));
}

/// The step's error names the job that blocked it.
pub async fn a_refused_step_fails_with_the_duplicates_error(f: &Fixture) {
    let holder = f.create(&keyed("a").offer()).await;
    let (id, workflow) = create(f, &chain([keyed("a").offer(), once()])).await;
    assert_eq!((statuses(f, id).await.as_str(), workflow.status), ("fx", Status::Failed));
    let error = workflow.steps[0].error.clone().unwrap();
    assert_eq!(error.code, "duplicate");
    // The holder's id is stored separately: a tenant knows the job by another id than the store does.
    assert_eq!(error.holder, Some(holder.id.to_string()));
    let (_, full) = f.full(holder.id).await.unwrap();
    let duplicates = full.note(NoteKind::Duplicates).unwrap();
    assert!(str::from_utf8(duplicates).unwrap().contains(&format!("workflow {id}")), "{duplicates:?}");
    f.maintain().await;
    let log = f.log().await;
    let told =
        log.iter().filter(|recorded| recorded.event.job == holder.id).map(|recorded| recorded.event.kind);
    assert_eq!(told.collect::<Vec<_>>(), [EventKind::Enqueued, EventKind::DuplicateRejected]);
}

/// `ignore`: the step ends as that job does, with its result.
pub async fn a_step_may_stand_for_a_job_that_is_there_already(f: &Fixture) {
    let ignoring = keyed("a").on_conflict("ignore").offer();
    let holder = f.create(&ignoring).await;
    let (id, workflow) = create(f, &chain([ignoring, once()])).await;
    assert_eq!((workflow.steps[0].job(), workflow.steps[0].is_own), (Some(holder.id), false));
    assert_eq!(f.queue("default").await.unwrap().created, 1);
    assert_eq!(run(f, Some("7")).await, holder.id);
    assert_eq!(statuses(f, id).await, "cr");
    assert_eq!(parents(f, job_of(f, id, 1).await).await.unwrap(), "[7]");
}

/// A waiting job takes over the step's args, and then also the results that the step is given.
pub async fn a_job_that_a_step_amends_is_given_what_the_step_is(f: &Fixture) {
    let newest = keyed("a").on_conflict("follow_up").queue("other").offer();
    let (first, _) = create(f, &chain([once(), newest.clone()])).await;
    run(f, Some("1")).await;
    let waiting = job_of(f, first, 1).await;
    assert_eq!(parents(f, waiting).await.unwrap(), "[1]");
    let (second, _) = create(f, &chain([once(), newest.clone()])).await;
    run(f, Some("2")).await;
    assert_eq!(job_of(f, second, 1).await, waiting);
    assert_eq!(parents(f, waiting).await.unwrap(), "[2]");
    let (third, _) = create(f, &group([newest.clone()])).await;
    assert_eq!(job_of(f, third, 0).await, waiting);
    assert_eq!(parents(f, waiting).await, None);
    create(f, &chain([once(), newest.clone()])).await;
    run(f, Some("4")).await;
    assert_eq!(parents(f, waiting).await.unwrap(), "[4]");
    // Nor does a job get a step's results when its args come from a request outside of any workflow.
    assert!(matches!(f.enqueue(&newest).await, Outcome::Amended(_)));
    assert_eq!(parents(f, waiting).await, None);
}

/// The step ends at once, because its policy looks at ended jobs.
pub async fn a_step_may_stand_for_a_job_that_has_ended(f: &Fixture) {
    let states = StateSet::LIVE.with(State::Completed);
    let ignoring = keyed("a").on_conflict("ignore").states(states).offer();
    f.create(&ignoring).await;
    let ended = run(f, Some("7")).await;
    let (id, _) = create(f, &chain([ignoring.clone(), once()])).await;
    assert_eq!(statuses(f, id).await, "cr");
    assert_eq!(job_of(f, id, 0).await, ended);
    assert_eq!(parents(f, job_of(f, id, 1).await).await.unwrap(), "[7]");
    let (id, workflow) = create(f, &group([ignoring])).await;
    assert_eq!((statuses(f, id).await.as_str(), workflow.status), ("c", Status::Completed));
}

/// However long the chain, it advances piece by piece, so that no single decision takes long.
pub async fn a_long_line_of_ended_jobs_goes_on_in_pieces(f: &Fixture) {
    const ENDED: usize = 20;
    let states = StateSet::LIVE.with(State::Completed);
    let mut steps = Vec::new();
    for number in 0..ENDED {
        let offer = keyed(&number.to_string()).on_conflict("ignore").states(states).offer();
        f.finished(&offer).await;
        steps.push(offer);
    }
    steps.push(once());
    let (id, _) = create(f, &chain(steps)).await;
    let mut pieces = 1;
    let key = workflow::key(&Tenant::default(), id);
    while f.decide(|draft| workflow::look(draft, &key)).await == workflow::Looked::WentOn {
        pieces += 1;
    }
    assert_eq!(statuses(f, id).await, format!("{}r", "c".repeat(ENDED)));
    assert_eq!(pieces, 3, "more at once is too much, and less takes long");
    let seek = semel_store::backend::Seek::Due { limit: 9 };
    assert_eq!(f.backend().documents(seek).await.unwrap().documents, [], "nothing more is due");
    run(f, None).await;
    assert_eq!(status(f, id).await, Status::Completed);
}

/// Otherwise the lists of a long chain would be most of what each end writes.
pub async fn a_step_that_was_offered_has_no_list_of_results(f: &Fixture) {
    let mut plan = chain(plain(3));
    plan.steps[2].results = vec![0, 1];
    let (id, _) = create(f, &plan).await;
    let lists = async |f: &Fixture| {
        let workflow = stored(f, id).await.unwrap();
        workflow.steps.iter().map(|step| step.results.len()).collect::<Vec<_>>()
    };
    assert_eq!(lists(f).await, [0, 1, 2]);
    run(f, Some("7")).await;
    assert_eq!(lists(f).await, [0, 0, 2]);
    run(f, Some("8")).await;
    assert_eq!(lists(f).await, [0, 0, 0]);
    assert_eq!(parents(f, job_of(f, id, 2).await).await.unwrap(), "[7,8]");
}

/// A step that waits for the replaced job waits for its replacement.
pub async fn a_step_whose_job_is_replaced_goes_on_with_the_new_one(f: &Fixture) {
    let replacing = keyed("a").on_conflict("replace").offer();
    let (id, _) = create(f, &chain([replacing.clone(), once()])).await;
    let first = job_of(f, id, 0).await;
    for _ in 0..2 {
        f.create(&replacing).await;
        assert_eq!(statuses(f, id).await, "rw");
    }
    let last = run(f, Some("8")).await;
    assert_ne!(first, last);
    assert_eq!(statuses(f, id).await, "cr");
    assert_eq!(job_of(f, id, 0).await, last);
    assert_eq!(parents(f, job_of(f, id, 1).await).await.unwrap(), "[8]");
}

/// The end may be an expiry, a lost lease or a timeout.
pub async fn a_step_ends_with_whatever_ends_its_job(f: &Fixture) {
    let (expiring, _) = create(f, &group([job().queue("q").expires(SECOND).offer()])).await;
    let (leased, _) = create(f, &group([job().attempts(1).times(1_000, 60_000).offer()])).await;
    let (timed, _) = create(f, &group([job().attempts(1).times(60_000, 1_000).offer()])).await;
    assert_eq!(f.claim("default", 2).await.jobs.len(), 2);
    f.advance(SECOND * 2).await;
    f.run_duties().await;
    for (id, code) in [(expiring, None), (leased, Some("lease_expired")), (timed, Some("timeout"))] {
        let workflow = stored(f, id).await.unwrap();
        assert_eq!((statuses(f, id).await.as_str(), workflow.status), ("f", Status::Failed));
        assert_eq!(workflow.steps[0].error.as_ref().map(|error| error.code.as_str()), code);
    }
}

/// Jobs that were created for the workflow are cancelled, running or not; a job that was there before goes
/// on.
pub async fn a_cancelled_workflow_takes_its_jobs_with_it(f: &Fixture) {
    let ignoring = keyed("a").on_conflict("ignore").queue("other").offer();
    let stranger = f.create(&ignoring).await;
    let plan = graph(vec![(once(), vec![]), (once(), vec![]), (ignoring, vec![]), (once(), vec![0, 1, 2])]);
    let (id, _) = create(f, &plan).await;
    let (active, _) = f.claim_one().await;
    let cancelled = f.decide(|draft| workflow::cancel(draft, &Tenant::default(), id)).await;
    assert!(matches!(cancelled, Cancelled::Done(_)), "{cancelled:?}");
    assert_eq!((statuses(f, id).await.as_str(), status(f, id).await), ("xxxx", Status::Cancelled));
    assert_eq!(f.queue("default").await.unwrap().count(State::Cancelled), 2);
    let late = f.decide(|draft| settle::complete(draft, active.id, &bearer(&active), None)).await;
    assert!(matches!(late, settle::Settled::Refused(_)), "{late:?}");
    let (head, _) = f.claim("other", 1).await.jobs.remove(0);
    assert_eq!(head.id, stranger.id);
    ack(f, &head, None).await;
    assert_eq!((statuses(f, id).await.as_str(), status(f, id).await), ("xxxx", Status::Cancelled));
    let again = f.decide(|draft| workflow::cancel(draft, &Tenant::default(), id)).await;
    assert!(matches!(again, Cancelled::Over(Status::Cancelled)), "{again:?}");
}

/// A step whose job was cancelled counts as not completed.
pub async fn a_workflow_is_told_of_a_cancelled_job(f: &Fixture) {
    let (id, _) = create(f, &chain(plain(2))).await;
    f.cancel(job_of(f, id, 0).await).await;
    assert_eq!((statuses(f, id).await.as_str(), status(f, id).await), ("xx", Status::Failed));
}

/// All in one commit.
pub async fn one_job_may_end_steps_of_several_workflows(f: &Fixture) {
    let ignoring = keyed("a").on_conflict("ignore").offer();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(create(f, &chain([ignoring.clone(), once()])).await.0);
    }
    assert_eq!(f.queue("default").await.unwrap().created, 1);
    run(f, Some("7")).await;
    for id in ids {
        assert_eq!(statuses(f, id).await, "cr");
    }
    assert_eq!(f.queue("default").await.unwrap().created, 4);
}

/// A caller that lost the reply and asks again gets the same workflow.
pub async fn the_same_workflow_id_is_answered_as_the_first_time(f: &Fixture) {
    let id = WorkflowId::new(crate::make::foreign_id(1));
    let mut plan = chain(plain(2));
    (plan.id, plan.digest) = (Some(id), Some([1; 32]));
    create(f, &plan).await;
    run(f, None).await;
    let again = f.decide(|draft| workflow::create(draft, &plan)).await;
    let Created::Repeated(repeated, known) = again else { panic!("{again:?}") };
    assert_eq!((repeated, crate::flows::letters(&known).as_str()), (id, "cr"));
    plan.digest = Some([2; 32]);
    let other = f.decide(|draft| workflow::create(draft, &plan)).await;
    assert!(matches!(other, Created::IdTaken(taken) if taken == id), "{other:?}");
    assert_eq!(f.queue("default").await.unwrap().created, 2);
}

/// It is kept as long after its end as a job that ended the same way.
pub async fn a_workflow_is_forgotten_after_its_time(f: &Fixture) {
    let (id, _) = create(f, &group(plain(1))).await;
    let key = workflow::key(&Tenant::default(), id);
    run(f, None).await;
    f.advance(Duration::from_secs(RETENTION_DEFAULT_S - 1)).await;
    assert_eq!(f.decide(|draft| workflow::look(draft, &key)).await, workflow::Looked::NotDue);
    f.advance(SECOND).await;
    let seek = semel_store::backend::Seek::Due { limit: 9 };
    let found = f.backend().documents(seek).await.unwrap().documents;
    assert!(found.iter().map(|(found, _)| found).eq([&key]));
    assert_eq!(f.decide(|draft| workflow::look(draft, &key)).await, workflow::Looked::Forgotten);
    assert_eq!(stored(f, id).await, None);
    let (id, _) = create(f, &group(plain(1))).await;
    f.fail(&f.claim_one().await.0).await;
    f.advance(Duration::from_secs(RETENTION_DISCARDED_S - 1)).await;
    let key = workflow::key(&Tenant::default(), id);
    assert_eq!(f.decide(|draft| workflow::look(draft, &key)).await, workflow::Looked::NotDue);
}

/// The workflow's own events, in order: what happened, and the number of the step or the time it took.
async fn told(f: &Fixture, id: WorkflowId) -> Vec<(EventKind, String, u32)> {
    f.maintain().await;
    let log = f.log().await;
    let own = log.into_iter().map(|recorded| recorded.event).filter(|event| event.job == id.as_job());
    own.map(|event| (event.kind, format!("{}@{}", event.type_name(), event.queue), event.amount)).collect()
}

/// Each event is in the commit that causes it. A workflow's events are in the queue of its first step, those
/// of each step in the queue of its own job.
pub async fn what_becomes_of_a_workflow_is_in_the_log(f: &Fixture) {
    use EventKind::{
        WorkflowCancelled, WorkflowCompleted, WorkflowFailed, WorkflowStarted, WorkflowStepCompleted,
    };
    let tell = |kind, what: &str, amount| (kind, what.to_owned(), amount);
    let first = job().queue("first").attempts(1).offer();
    let (id, _) = create(f, &chain([first.clone(), once()])).await;
    f.advance(SECOND).await;
    let (head, _) = f.claim("first", 1).await.jobs.remove(0);
    ack(f, &head, None).await;
    let begun = [tell(WorkflowStarted, "chain@first", 0), tell(WorkflowStepCompleted, "email.send@first", 0)];
    assert_eq!(told(f, id).await, begun);
    f.advance(SECOND).await;
    run(f, None).await;
    let ended =
        [tell(WorkflowStepCompleted, "email.send@default", 1), tell(WorkflowCompleted, "chain@first", 2_000)];
    assert_eq!(told(f, id).await, [begun, ended].concat());

    let (id, _) = create(f, &group([first.clone()])).await;
    let (head, _) = f.claim("first", 1).await.jobs.remove(0);
    f.fail(&head).await;
    let failed = [tell(WorkflowStarted, "group@first", 0), tell(WorkflowFailed, "group@first", 0)];
    assert_eq!(told(f, id).await, failed);

    let (id, _) = create(f, &group([first])).await;
    f.decide(|draft| workflow::cancel(draft, &Tenant::default(), id)).await;
    let cancelled = [tell(WorkflowStarted, "group@first", 0), tell(WorkflowCancelled, "group@first", 0)];
    assert_eq!(told(f, id).await, cancelled);
}

/// Both or neither are visible: they are one group of writes, applied all or none.
pub async fn an_ack_and_the_next_step_are_one_commit(f: &Fixture) {
    let (id, _) = create(f, &chain(plain(2))).await;
    let (head, _) = f.claim_one().await;
    let group = decided_ack(f, &head, Some(&bytes("1"))).await;
    assert_eq!((statuses(f, id).await.as_str(), f.queue("default").await.unwrap().created), ("rw", 1));
    assert_eq!(f.commit(vec![group]).await, [Applied]);
    assert_eq!((statuses(f, id).await.as_str(), f.queue("default").await.unwrap().created), ("cr", 2));
}

/// The ACK of a run, decided and not yet committed.
async fn decided_ack(f: &Fixture, head: &Head, result: Option<&Bytes>) -> Group {
    let (reads, bearer) = (Reads { heads: vec![head.id], ..Reads::default() }, bearer(head));
    let complete = |draft: &mut Draft| settle::complete(draft, head.id, &bearer, result);
    let (settled, group) = f.decided(&reads, complete).await;
    assert!(matches!(settled, settle::Settled::Done(_)), "{settled:?}");
    group
}

/// On two servers, the second decides again. In one group, the later decision sees the earlier.
pub async fn two_parents_that_end_at_once_release_their_child_once(f: &Fixture) {
    let plan = graph(vec![(once(), vec![]), (once(), vec![]), (once(), vec![0, 1])]);
    let (id, _) = create(f, &plan).await;
    let claimed = f.claim("default", 2).await.jobs;
    let mut groups = Vec::new();
    for (head, _) in &claimed {
        groups.push(decided_ack(f, head, None).await);
    }
    assert_eq!(f.commit(groups).await, [Applied, Stale]);
    assert_eq!(f.queue("default").await.unwrap().created, 2);
    let last = if f.head(claimed[0].0.id).await.unwrap().state == State::Active { 0 } else { 1 };
    ack(f, &claimed[last].0, None).await;
    assert_eq!((statuses(f, id).await.as_str(), f.queue("default").await.unwrap().created), ("ccr", 3));
}

/// The cancellation neither cancels a job that does not exist yet nor misses one that was just created.
pub async fn a_cancellation_is_stale_when_a_step_has_ended(f: &Fixture) {
    let (id, _) = create(f, &chain(plain(2))).await;
    let (head, _) = f.claim_one().await;
    let cancel = |draft: &mut Draft| workflow::cancel(draft, &Tenant::default(), id);
    let (_, cancellation) = f.decided(&reads(id), cancel).await;
    ack(f, &head, None).await;
    assert_eq!(f.commit(vec![cancellation]).await, [Stale]);
    f.decide(|draft| workflow::cancel(draft, &Tenant::default(), id)).await;
    assert_eq!(statuses(f, id).await, "cx");
    assert_eq!(f.head(job_of(f, id, 1).await).await.unwrap().state, State::Cancelled);
    // The other way round.
    let (id, _) = create(f, &chain(plain(2))).await;
    let (head, _) = f.claim_one().await;
    let late = decided_ack(f, &head, None).await;
    f.decide(|draft| workflow::cancel(draft, &Tenant::default(), id)).await;
    assert_eq!(f.commit(vec![late]).await, [Stale]);
    assert_eq!(f.decide(|draft| Ok(draft.now())).await, f.now().await);
    assert!(f.claim("default", 9).await.jobs.is_empty());
    assert!(matches!(f.cancel(head.id).await, settle::Settled::Refused(_)), "{:?}", Bearer::default());
}

/// No step waits for an end that has already come.
pub async fn a_binding_is_stale_when_its_job_has_ended(f: &Fixture) {
    let ignoring = keyed("a").on_conflict("ignore").offer();
    let holder = f.create(&ignoring).await;
    let plan = chain([ignoring, once()]);
    let (_, binding) = f.decided(&Reads::default(), |draft| workflow::create(draft, &plan)).await;
    assert_eq!(run(f, None).await, holder.id);
    assert_eq!(f.commit(vec![binding]).await, [Stale]);
}
