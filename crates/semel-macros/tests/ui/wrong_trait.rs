use semel::{Envelope, FromRun, Group, Semel, Worker};

struct Other;

fn job() -> Envelope {
    Envelope::of(&Other)
}

fn middleware(worker: Worker) -> Worker {
    worker.layer(Other)
}

fn step() -> Group {
    Group::new().with(Other)
}

async fn workflow(semel: Semel) {
    let _ = semel.start(Other).await;
}

fn callback(batch: semel::Batch) -> semel::Batch {
    batch.on_success(Other)
}

fn outcome(worker: Worker) -> Worker {
    worker.handle_type("a.b", async |_| Other)
}

fn argument(run: semel::Run) {
    let _ = <Other as FromRun>::from_run(&run);
}

fn main() {}
