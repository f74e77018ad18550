//! Workflows built by a program.

use semel::testing::TestQueue;
use semel::{
    Batch, Chain, Envelope, Error, Graph, Group, JobId, Return, Run, Semel, StepStatus, StoredWorkflow,
    Timestamp, Worker, WorkflowId, WorkflowStatus,
};

use crate::harness::{Add, Welcome, on_every_store, soon};

on_every_store! {
    a_chain_hands_its_results_on,
    a_batch_calls_back,
    a_graph_waits_for_what_it_depends_on,
    a_cancelled_workflow_is_waited_for_no_longer,
}

/// Adds up the results of the previous steps.
fn adder(semel: &Semel) -> Worker {
    Worker::new(semel).handle(async |job: Add, run: Run| -> Result<Return<i64>, Error> {
        let before: Vec<Option<i64>> = run.parent_results()?;
        Ok(Return(job.a + job.b + before.into_iter().flatten().sum::<i64>()))
    })
}

fn add(a: i64) -> Add {
    Add { a, b: 0 }
}

/// Each step's name, status and result.
async fn results(semel: &Semel, workflow: &StoredWorkflow) -> Vec<(String, StepStatus, Option<i64>)> {
    let mut found = Vec::new();
    for step in workflow.steps() {
        let result = match step.job() {
            Some(job) => semel.job(job).result::<i64>().await.ok(),
            None => None,
        };
        found.push((step.id().to_owned(), step.status(), result));
    }
    found
}

async fn a_chain_hands_its_results_on(semel: Semel) {
    let working = adder(&semel).start().unwrap();
    let inner = Group::new().with(add(10)).with(Chain::new().then(add(20)).then(add(30)));
    let chain = semel.start(Chain::new().then(add(1)).then(inner).then(add(100))).name("sums").await.unwrap();
    let ended = chain.wait().await.unwrap();
    assert_eq!(
        (ended.status(), ended.name(), ended.id()),
        (WorkflowStatus::Completed, Some("sums"), chain.id())
    );
    assert!(ended.finished_at().unwrap() >= ended.created_at());
    let sums: Vec<i64> = results(&semel, &ended).await.into_iter().filter_map(|(_, _, sum)| sum).collect();
    // 1; 10 + 1; 20 + 1; 30 + 1 + 21; and the last step of the chain gets all before it.
    assert_eq!(sums[..4], [1, 11, 21, 52]);
    assert_eq!(sums[4], 100 + 1 + 11 + 52);
    working.stop().await;
}

async fn a_batch_calls_back(semel: Semel) {
    let working = adder(&semel)
        .handle_type("always.fails", |_: Run| async { Err::<(), _>("no".to_owned()) })
        .start()
        .unwrap();
    let batch = Batch::new()
        .with(add(1))
        .with(Envelope::new("always.fails").max_attempts(1))
        .on_success(add(100))
        .on_failure(add(200))
        .on_complete(add(300));
    let ended = semel.start(batch).await.unwrap().wait().await.unwrap();
    assert_eq!(ended.status(), WorkflowStatus::Failed);
    let mut found = results(&semel, &ended).await;
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let named: Vec<_> = found.iter().map(|(id, status, sum)| (id.as_str(), *status, *sum)).collect();
    assert_eq!(
        named,
        [
            ("on_complete", StepStatus::Completed, Some(301)),
            ("on_failure", StepStatus::Completed, Some(201)),
            ("on_success", StepStatus::Skipped, None),
            ("step-0", StepStatus::Completed, Some(1)),
            ("step-1", StepStatus::Failed, None),
        ]
    );
    assert!(ended.steps().any(|step| step.error() == Some("no")));
    working.stop().await;
}

async fn a_graph_waits_for_what_it_depends_on(semel: Semel) {
    let working = adder(&semel).start().unwrap();
    // A step keeps its own policy: its job exists already the second time, and the step stands for it.
    let once =
        Envelope::of(&add(2)).unique(semel::Unique::by_all_args().on_conflict(semel::OnConflict::Ignore));
    let there = semel.enqueue(add(2)).unique(
        semel::Unique::by_all_args().on_conflict(semel::OnConflict::Ignore).states(semel::JobState::ALL),
    );
    let there = there.await.unwrap();
    there.wait().await.unwrap();
    let graph = Graph::new()
        .step("last", add(1000))
        .depends_on(["a", "b"])
        .step("a", add(1))
        .step("b", once)
        .depends_on(["a"]);
    let ended = semel.start(graph).await.unwrap().wait().await.unwrap();
    let found = results(&semel, &ended).await;
    let named: Vec<_> = found.iter().map(|(id, _, sum)| (id.as_str(), *sum)).collect();
    assert_eq!(named, [("last", Some(1004)), ("a", Some(1)), ("b", Some(3))]);
    working.stop().await;
}

/// Also where the running job existed before, and goes on.
async fn a_cancelled_workflow_is_waited_for_no_longer(semel: Semel) {
    let shared = semel.enqueue(Welcome::of(1)).await.unwrap();
    let chain = semel.start(Chain::new().then(Welcome::of(1)).then(add(1))).await.unwrap();
    let waiter = {
        let chain = chain.clone();
        tokio::spawn(async move { chain.wait().await.unwrap() })
    };
    let step = chain.load().await.unwrap().unwrap();
    let step = step.steps().next().unwrap();
    assert_eq!((step.job(), step.is_shared()), (shared.id(), true));
    let refused = Envelope::of(&Welcome::of(1)).unique(semel::Unique::by_args(["user_id"]));
    let refused = semel.start(Chain::new().then(refused)).await.unwrap().wait().await.unwrap();
    let step = refused.steps().next().unwrap();
    assert_eq!((step.status(), step.existing()), (StepStatus::Failed, shared.id()));
    chain.cancel().await.unwrap();
    chain.cancel().await.unwrap();
    assert_eq!(soon(waiter).await.unwrap().status(), WorkflowStatus::Cancelled);
    assert!(shared.job().unwrap().load().await.unwrap().unwrap().state().is_live());
}

fn some_id(row: u64) -> JobId {
    JobId::mint(Timestamp::from_millis(1_767_225_600_000), row, 7)
}

#[tokio::test]
async fn a_workflow_is_started_once_under_an_id_of_ones_own() {
    let queue = TestQueue::new();
    let id = WorkflowId::new(some_id(1));
    let first = queue.start(Chain::new().then(add(1)).then(add(2))).id(id).await.unwrap();
    let again = queue.start(Chain::new().then(add(1)).then(add(2))).id(id).await.unwrap();
    assert_eq!((first.id(), again.id(), queue.enqueued::<Add>().await.len()), (id, id, 1));
    let other = queue.start(Chain::new().then(add(1)).then(add(3))).id(id).await;
    assert!(matches!(other, Err(Error::WorkflowIdTaken(taken)) if taken == id));
    let nobody = queue.workflow(WorkflowId::new(some_id(2)));
    assert!(nobody.load().await.unwrap().is_none());
    assert!(matches!(nobody.wait().await, Err(Error::NoWorkflow(_))));
    assert!(matches!(nobody.cancel().await, Err(Error::NoWorkflow(_))));
}

#[tokio::test]
async fn what_is_wrong_with_a_step_is_told_with_its_place() {
    let queue = TestQueue::new();
    let refused = async |started: semel::Start| match started.await {
        Err(Error::Invalid { pointer, message }) => (pointer, message),
        other => panic!("{other:?}"),
    };
    let (pointer, _) = refused(queue.start(Chain::new().then(add(1)).then(Envelope::new("No")))).await;
    assert_eq!(pointer, "/steps/1/type");
    let (_, message) = refused(queue.start(Chain::new().then(Envelope::of(&add(1)).id(some_id(1))))).await;
    assert!(message.contains("its turn"), "{message}");
    let (pointer, _) = refused(queue.start(Batch::new().with(add(1)))).await;
    assert_eq!(pointer, "/callbacks");
    let twice = Batch::new().with(add(1)).on_success(add(2)).on_success(add(3));
    let (_, message) = refused(queue.start(twice)).await;
    assert!(message.contains("on_success") || message.contains("twice"), "{message}");
    let (pointer, _) = refused(queue.start(Graph::new().step("a", add(1)).depends_on(["b"]))).await;
    assert_eq!(pointer, "/steps/0/depends_on/0");
    let broken = Envelope::from_json("{\"type\":\"a.b\",\"args\":[]}],\"name\":\"x\",\"and\":[{}");
    let (_, message) = refused(queue.start(Group::new().with(broken))).await;
    assert!(message.contains("not JSON"), "{message}");
    assert!(queue.enqueued::<Add>().await.is_empty());
}

#[tokio::test]
async fn a_test_that_does_not_care_about_duplicates_has_none_in_workflows_either() {
    let queue = TestQueue::new().without_uniqueness();
    queue.enqueue(Welcome::of(1)).await.unwrap();
    let group = Group::new().with(Welcome::of(1)).with(Welcome::of(1));
    let group = queue.start(group).await.unwrap().load().await.unwrap().unwrap();
    assert!(group.steps().all(|step| !step.is_shared()));
    queue.schedule("c", "@daily", Welcome::of(1)).await.unwrap().trigger().await.unwrap();
    assert_eq!(queue.enqueued::<Welcome>().await.len(), 4);
}

#[cfg(all(feature = "http", feature = "remote"))]
#[tokio::test]
async fn results_are_handed_on_over_http_too() {
    let semel = crate::harness::memory().await;
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let working = Worker::remote(&admin.url())
        .unwrap()
        .handle(async |job: Add, run: Run| -> Result<Return<i64>, Error> {
            Ok(Return(job.a + run.parent_results::<i64>()?.into_iter().sum::<i64>()))
        })
        .start()
        .unwrap();
    let chain = semel.start(Chain::new().then(add(1)).then(add(2)).then(add(3))).await.unwrap();
    let ended = soon(chain.wait()).await.unwrap();
    let sums: Vec<_> = results(&semel, &ended).await.into_iter().map(|(_, _, sum)| sum).collect();
    assert_eq!(sums, [Some(1), Some(3), Some(7)]);
    soon(working.stop()).await;
    admin.stop().await.unwrap();
}
