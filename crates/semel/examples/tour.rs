//! What the library does, in one program. `cargo run -p semel --example tour`

#![allow(clippy::print_stdout, reason = "a tour talks")]

use std::time::Duration;

use semel::{Attempt, Enqueued, Envelope, Job, Next, Outcome, Return, Run, Semel, State, Worker};
use serde::{Deserialize, Serialize};

/// One capture per order, for a week also when it is done; asking again is answered with the one that is there.
#[derive(Serialize, Deserialize, Job)]
#[job(type = "payment.capture", max_attempts = 5, retry(initial = "10ms"))]
#[job(unique(args("order"), live_and("completed"), period = "7d", while_active, on_conflict = "ignore"))]
struct Capture {
    order: u64,
    cents: i64,
    #[job(sensitive)]
    card: String,
}

/// A handler takes its job, and whatever else it asks for.
async fn capture(job: Capture, State(fee): State<i64>, attempt: Attempt) -> Result<Return<i64>, String> {
    if attempt.number == 1 {
        return Err("the gateway is busy".to_owned()); // It is tried again, as the type says.
    }
    Ok(Return(job.cents + fee))
}

async fn log(run: Run, next: Next) -> Outcome {
    let outcome = next.run(run.clone()).await;
    println!("{} attempt {}: done {}", run.job_type(), run.attempt(), outcome.is_done());
    outcome
}

/// What the two clicks are told, and how many of the three deliveries were new.
pub(crate) async fn run() -> Result<([i64; 2], u64), semel::Error> {
    let semel = Semel::open("memory:").await?; // Or "sqlite:app.db".
    let worker = Worker::new(&semel).state(30_i64).layer(log).handle(capture).start()?;

    // A double click: two requests, one job, one charge, and both hear of it.
    let click = || Capture { order: 7, cents: 1999, card: "4242 4242".to_owned() };
    let (first, second) = (semel.enqueue(click()).await?, semel.enqueue(click()).await?);
    if let Enqueued::Existing(existing) = &second {
        println!("the second click is job {}: {}", existing.job.id(), existing.reason);
    }
    let told = [first.result::<i64>().await?, second.result::<i64>().await?];
    println!("both are told: {told:?}");

    // Webhooks that are delivered twice, for later.
    let events = ["evt_1", "evt_2", "evt_1"].map(|event| Envelope::of(&click()).key(event));
    let many = semel.enqueue_many(events.map(|job| job.after(Duration::from_secs(3600)))).await?;
    println!("of three deliveries {} were new, {} duplicates", many.counts.inserted, many.counts.skipped);

    worker.stop().await;
    semel.close().await?;
    Ok((told, many.counts.inserted))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), semel::Error> {
    run().await.map(drop)
}
