struct NotAJob;

async fn enqueue(semel: semel::Semel) {
    let _ = semel.enqueue(NotAJob).await;
}

fn main() {}
