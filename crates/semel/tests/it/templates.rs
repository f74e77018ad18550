//! Templates in the library: one set for everything that the program offers, the same that a server would
//! use.

use axum::http::Request;
use semel::testing::TestQueue;
use semel::{Chain, Envelope, Error, Return, Run, Semel, Worker};
use semel_testkit::TempDir;
use serde_json::json;
use tower_service::Service as _;

use crate::harness::{Add, Welcome, add, soon};

/// A directory with one template.
fn folder(text: &str) -> TempDir {
    let folder = TempDir::new();
    write(&folder, text);
    folder
}

fn write(folder: &TempDir, text: &str) {
    std::fs::write(folder.path().join("sum.yaml"), text).unwrap();
}

const SUM: &str = "namespace: sum\nname: add\nqueue: sums\nunique:\n  keys: [args]\n  on_conflict: ignore\nschema:\n  items:\n    properties:\n      a: {maximum: 9}\n";

#[tokio::test]
async fn what_a_program_offers_goes_by_its_templates() {
    let folder = folder(SUM);
    let semel = Semel::open("memory:").templates(folder.path()).await.unwrap();
    let first = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    assert_eq!(first.job().unwrap().load().await.unwrap().unwrap().queue(), "sums");
    let again = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    assert!(!again.is_inserted() && again.id() == first.id());
    // Options of a single job take precedence.
    assert!(semel.enqueue(Add { a: 1, b: 2 }).no_unique().await.unwrap().is_inserted());
    assert!(semel.enqueue(Add { a: 1, b: 2 }).key("k").await.unwrap().is_inserted());
    let keyed = semel.enqueue(Add { a: 7, b: 7 }).no_unique().key("k").await.unwrap();
    assert!(!keyed.is_inserted(), "the template's hold and answer, by the key");
    let refused = semel.enqueue(Add { a: 10, b: 2 }).await.unwrap_err();
    let Error::Invalid { pointer, message } = refused else { panic!("{refused}") };
    assert!(pointer == "/args/0/a" && message.contains("more than 9"), "{pointer} {message}");
    // The template does not apply to other types, which keep their own policies.
    assert!(semel.enqueue(Welcome::of(1)).await.unwrap().is_inserted());
    semel.close().await.unwrap();
}

#[tokio::test]
async fn batches_workflows_and_crons_go_by_them_too() {
    let folder = folder(SUM);
    let semel = Semel::open("memory:").templates(folder.path()).await.unwrap();
    let many =
        semel.enqueue_many([Add { a: 1, b: 0 }, Add { a: 1, b: 0 }, Add { a: 10, b: 0 }]).await.unwrap();
    let counts = (many.counts.inserted, many.counts.skipped, many.counts.rejected);
    assert_eq!(counts, (1, 1, 1), "{many:?}");
    let wrong = semel.start(Chain::new().then(Add { a: 10, b: 0 })).await.unwrap_err();
    assert!(wrong.to_string().contains("/steps/0/args/0/a"), "{wrong}");
    let wrong = semel.schedule("daily", "0 0 * * *", Add { a: 10, b: 0 }).await.unwrap_err();
    assert!(wrong.to_string().contains("more than 9"), "{wrong}");
    semel.close().await.unwrap();
}

/// The same request by either way in makes one job, since one function decides it by one set.
#[tokio::test]
async fn a_server_inside_the_program_goes_by_the_same() {
    let folder = folder(SUM);
    let semel = Semel::open("memory:").templates(folder.path()).await.unwrap();
    let first = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    let mut router = semel.router().unwrap();
    let mut post = async |args: serde_json::Value| {
        let body = json!({ "type": "sum.add", "args": [args] }).to_string();
        let request = Request::post("/ojs/v1/jobs").header("content-type", "application/json");
        router.call(request.body(axum::body::Body::from(body)).unwrap()).await.unwrap()
    };
    let answer = post(json!({ "b": 2, "a": 1 })).await;
    let location = answer.headers().get("location").map(|place| place.to_str().unwrap().to_owned());
    assert_eq!(answer.status(), 200, "{location:?}: it is {:?}", first.id());
    assert_eq!(post(json!({ "a": 10 })).await.status(), 400);
    // Reloaded for both at the same moment.
    write(&folder, "namespace: sum\nname: add\nunique: always_unique\n");
    assert_eq!(semel.reload_templates().await.unwrap(), 1);
    assert_eq!(post(json!({ "a": 1, "b": 2 })).await.status(), 201);
    assert!(semel.enqueue(Add { a: 10, b: 2 }).await.unwrap().is_inserted());
    drop(router);
    semel.close().await.unwrap();
}

#[tokio::test]
async fn templates_that_are_wrong_are_told_with_their_lines_and_change_nothing() {
    let folder = folder("namespace: sum\nname: add\nqueue: \"?\"\n");
    let refused = Semel::open("memory:").templates(folder.path()).await.unwrap_err();
    assert!(
        matches!(&refused, Error::Templates { faults } if faults[0].contains("sum.yaml:3:1: /queue")),
        "{refused}"
    );
    write(&folder, SUM);
    let semel = Semel::open("memory:").templates(folder.path()).await.unwrap();
    write(&folder, "namespace: sum\n");
    assert!(matches!(semel.reload_templates().await, Err(Error::Templates { .. })));
    assert!(semel.enqueue(Add { a: 10, b: 2 }).await.is_err(), "the schema from before holds");
    semel.close().await.unwrap();
    let without = Semel::open("memory:").await.unwrap();
    assert!(without.reload_templates().await.unwrap_err().to_string().contains(".templates(folder)"));
    without.close().await.unwrap();
}

#[tokio::test]
async fn a_test_queue_goes_by_templates_too() {
    let folder = folder(SUM);
    let queue = TestQueue::new().templates(folder.path()).unwrap();
    let job = queue.enqueue(Envelope::new("sum.add").arg(json!({ "a": 1, "b": 2 }))).await.unwrap();
    assert_eq!(job.job().unwrap().load().await.unwrap().unwrap().queue(), "sums");
    let ran = queue.drain(&Worker::new(&queue).handle(add)).await;
    assert_eq!(ran.iter().map(|ran| Some(ran.id)).collect::<Vec<_>>(), [job.id()]);
    assert!(TestQueue::new().templates(folder.path().join("nowhere")).is_err());
}

/// Unless the types name queues themselves, and whatever version their jobs have.
#[tokio::test]
async fn a_worker_takes_from_the_queues_of_its_types_templates() {
    let folder = folder(SUM);
    let older = "namespace: sum\nname: add\nversion: \"0.9\"\nqueue: old\nunique: always_unique\n";
    std::fs::write(folder.path().join("older.yaml"), older).unwrap();
    let other = "namespace: legacy\nname: count\nqueue: counts\nunique: always_unique\n";
    std::fs::write(folder.path().join("count.yaml"), other).unwrap();
    let semel = Semel::open("memory:").templates(folder.path()).await.unwrap();
    let working = Worker::new(&semel)
        .handle(add)
        .handle_type("legacy.count", async |run: Run| Return(run.queue().to_owned()))
        .start()
        .unwrap();
    let newest = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    assert_eq!(soon(newest.result::<i64>()).await.unwrap(), 3);
    let text = r#"{"type": "sum.add", "version": "0.9", "args": [{"a": 3, "b": 4}]}"#;
    let older = semel.enqueue(Envelope::from_json(text)).await.unwrap();
    assert_eq!(older.job().unwrap().load().await.unwrap().unwrap().queue(), "old");
    assert_eq!(soon(older.result::<i64>()).await.unwrap(), 7);
    let count = semel.enqueue(Envelope::new("legacy.count")).await.unwrap();
    assert_eq!(soon(count.result::<String>()).await.unwrap(), "counts");
    soon(working.stop()).await;
    semel.close().await.unwrap();
}
