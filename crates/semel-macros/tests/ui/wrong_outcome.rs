use semel::{Job, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b")]
struct Send {
    to: String,
}

async fn handler(_: Send) -> u32 {
    7
}

fn work(worker: Worker) -> Worker {
    worker.handle(handler)
}

fn main() {}
