//! What the library does, in one program. `cargo run -p semel --example tour`

#![allow(clippy::print_stdout, reason = "a tour talks")]

use std::sync::Arc;
use std::time::Duration;

use semel::{Attempt, Enqueued, Job, Next, Outcome, Return, Run, Semel, State, Worker};
use serde::{Deserialize, Serialize};

/// One capture per order; asking again is answered with the one that is there.
#[derive(Serialize, Deserialize, Job)]
#[job(type = "payment.capture", max_attempts = 5, retry(initial = "10ms"))]
#[job(unique(args("order"), on_conflict = "ignore"))]
struct Capture {
    order: u64,
    cents: i64,
    #[job(sensitive)]
    card: String,
}

struct Gateway;

#[derive(Debug, thiserror::Error)]
#[error("the gateway is busy")]
struct Busy;

async fn capture(
    job: Capture,
    State(_gateway): State<Arc<Gateway>>,
    attempt: Attempt,
) -> Result<Return<i64>, Busy> {
    if attempt.number == 1 {
        return Err(Busy); // It is tried again, by the type's retry policy.
    }
    println!(
        "captured {} cents of order {} (card …{})",
        job.cents,
        job.order,
        &job.card[job.card.len() - 4..]
    );
    Ok(Return(job.cents))
}

async fn log(run: Run, next: Next) -> Outcome {
    let outcome = next.run(run.clone()).await;
    println!(
        "{} attempt {}: {}",
        run.job_type(),
        run.attempt(),
        if outcome.is_done() { "done" } else { "not done" }
    );
    outcome
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), semel::Error> {
    let semel = Semel::open("memory:").await?; // Or "sqlite:app.db".
    let worker = Worker::new(&semel).state(Arc::new(Gateway)).layer(log).handle(capture).start()?;

    // A double click: two requests, one job, one charge, and both hear of it.
    let click = || Capture { order: 7, cents: 1999, card: "4242424242424242".to_owned() };
    let (first, second) = (semel.enqueue(click()).await?, semel.enqueue(click()).await?);
    if let Enqueued::Existing(existing) = &second {
        println!(
            "the second click is job {}: {}; frees {:?}",
            existing.job.id(),
            existing.reason,
            existing.frees
        );
    }
    let (a, b): (i64, i64) = (first.result().await?, second.result().await?);
    println!("both were told: {a} and {b}");

    // A webhook that is delivered twice, later, in a batch.
    let events = ["evt_1", "evt_2", "evt_1"].map(|event| semel::Envelope::of(&click()).key(event));
    let many = semel.enqueue_many(events.map(|event| event.after(Duration::from_secs(3600)))).await?;
    println!("of three deliveries {} were new and {} duplicates", many.counts.inserted, many.counts.skipped);

    worker.stop().await;
    semel.close().await
}
