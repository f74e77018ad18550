//! What a worker logs about its runs.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::testing::TestQueue;
use semel::{State, Worker};
use semel_testkit::warnings;
use tokio::sync::mpsc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::harness::{Add, soon, still};

type Begun = mpsc::UnboundedSender<()>;

async fn fails(job: Add, State(begun): State<Begun>) -> Result<(), String> {
    begun.send(()).unwrap();
    match job.a {
        0 => panic!("sesame"),
        1 => std::future::pending().await,
        2 => Err("sesame".to_owned()),
        _ => Ok(()),
    }
}

/// Nothing else would log it, and what a handler says of its failure may be secret.
#[tokio::test]
async fn a_failed_attempt_is_told_without_its_words_and_one_that_ends_the_job_louder() {
    warnings::keep();
    let (semel, _clock) = still();
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    for worker in [Worker::new(&semel), Worker::remote(&admin.url()).unwrap()] {
        let (begun, mut has_begun) = mpsc::unbounded_channel::<()>();
        let working = worker.concurrency(1).state(begun).handle(fails).start().unwrap();
        for (a, error) in [(0, "panic"), (1, "timeout"), (2, "handler_error")] {
            for (attempts, level) in [(1, "ERROR"), (2, "WARN")] {
                let timeout = Duration::from_millis(if a == 1 { 30 } else { 60_000 });
                let job = semel.enqueue(Add { a, b: 0 }).max_attempts(attempts).timeout(timeout);
                let id = job.await.unwrap().id().unwrap().to_string();
                soon(has_begun.recv()).await.unwrap();
                // The next job gets the slot only after the previous one's end was reported.
                let next = semel.enqueue(Add { a: 3, b: 0 }).await.unwrap();
                soon(has_begun.recv()).await.unwrap();
                soon(next.wait()).await.unwrap();
                let told = warnings::with(&id);
                assert!(told.len() == 1 && told[0].starts_with(level), "{told:?}");
                let fields = [r#"job_type="sum.add""#, r#"queue="default""#, "attempt=1"];
                assert!(fields.iter().all(|field| told[0].contains(field)), "{told:?}");
                assert!(told[0].contains(&format!("error={error:?}")), "{told:?}");
                assert!(!told[0].contains("sesame"), "{told:?}");
            }
        }
        soon(working.stop()).await;
    }
    admin.stop().await.unwrap();
}

/// Records the fields of jobs' spans, and when a span is entered or left.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

impl Spans {
    fn keep(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _infallible = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "job"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields(String::new());
        attributes.record(&mut fields);
        self.keep(fields.0);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {
        self.keep("in".to_owned());
    }

    fn exit(&self, _: &Id) {
        self.keep("out".to_owned());
    }
}

#[tokio::test]
async fn what_a_handler_says_stands_in_a_span_that_names_its_job() {
    let spans = Spans::default();
    let _here = tracing::subscriber::set_default(spans.clone());
    let queue = TestQueue::new();
    let handler = async |_: Add, State(spans): State<Spans>| {
        assert_eq!(spans.0.lock().unwrap().last().map(String::as_str), Some("in"));
    };
    let worker = Worker::new(&queue).state(spans.clone()).handle(handler);
    let job = queue.enqueue(Add { a: 1, b: 1 }).await.unwrap();
    let ran = queue.drain(&worker).await;
    assert!(ran[0].outcome.as_ref().is_some_and(semel::Outcome::is_done), "{ran:?}");
    let kept = spans.0.lock().unwrap();
    assert_eq!(kept[0].trim_end(), format!(r#"id={} type="sum.add" attempt=1"#, job.id().unwrap()));
    assert_eq!(kept.last().map(String::as_str), Some("out"));
}
