//! `semel-peers QUEUE CASE '{"url": …}'`: measures one case on one queue. The last line printed is the result.

mod apalis;
mod graphile_worker;
mod measure;

use crate::measure::{Failure, Options, measure};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().unwrap_or_default();
    let (queue, case, text) = (next(), next(), next());
    let options: Options = serde_json::from_str(&text)?;
    let url = options.url.clone();
    let result = match queue.as_str() {
        "apalis-postgres" => {
            measure(apalis::Postgres::open(&url).await?, apalis::VERSION, &case, options).await?
        }
        "apalis-redis" => measure(apalis::Redis::open(&url).await?, apalis::VERSION, &case, options).await?,
        "graphile-worker" => {
            let queue = graphile_worker::Postgres::open(&url).await?;
            measure(queue, graphile_worker::VERSION, &case, options).await?
        }
        other => return Err(format!("there is no queue `{other}`").into()),
    };
    println!("{result}");
    // A worker runs until the process ends, and would report a runtime shutdown as a failure.
    std::process::exit(0)
}
