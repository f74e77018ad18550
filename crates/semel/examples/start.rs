//! The quick start of the guide. `cargo run -p semel --example start`

use semel::{Job, JobId, Return, Semel, Worker};
use serde::{Deserialize, Serialize};

/// One payment per invoice, however often it is asked for: while it waits or runs, and for a week when it is done.
#[derive(Serialize, Deserialize, Job)]
#[job(type = "invoice.pay", max_attempts = 5)]
#[job(unique(args("invoice"), live_and("completed"), period = "7d", while_active, on_conflict = "ignore"))]
struct Pay {
    invoice: u64,
    cents: u64,
}

async fn pay(job: Pay, id: JobId) -> Result<Return<String>, std::io::Error> {
    // The effect. An error is tried again, here up to five times.
    Ok(Return(format!("paid {} cents of invoice {}: receipt {id}", job.cents, job.invoice)))
}

/// Two clicks on one button, the second when it is paid already: one job, one payment, and both hear of it.
pub(crate) async fn run(store: &str) -> Result<[String; 2], semel::Error> {
    let semel = Semel::open(store).await?;
    let worker = Worker::new(&semel).handle(pay).start()?;

    let first = semel.enqueue(Pay { invoice: 17, cents: 4200 }).await?;
    let receipt = first.result().await?;
    let second = semel.enqueue(Pay { invoice: 17, cents: 4200 }).await?;
    let receipts = [receipt, second.result().await?];

    worker.stop().await;
    semel.close().await?;
    Ok(receipts)
}

#[tokio::main]
async fn main() -> Result<(), semel::Error> {
    run("sqlite:start.db").await?;
    Ok(())
}
