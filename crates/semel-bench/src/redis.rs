//! What the same Redis does without a queue: the bound that the figures on Redis are compared with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use redis::ConnectionInfo;
use tokio::task::JoinSet;

use crate::report::{BenchError, Figure};

/// Script calls per pipeline.
const GROUP: u64 = 64;
/// Connections that call concurrently.
const CONNECTIONS: u64 = 8;

/// What a queue cannot do without: a key that is taken once, the job, its place in the queue.
const SCRIPT: &str = "\
if redis.call('SET', KEYS[1] .. 'k' .. ARGV[1], ARGV[1], 'NX') then
    redis.call('SET', KEYS[1] .. 'j' .. ARGV[1], ARGV[2])
    redis.call('ZADD', KEYS[1] .. 'r', ARGV[1], ARGV[1])
    return 1
end
return 0";

/// A script that only writes, by the same client, pipelined. Its keys begin with `base`, are the bench's own,
/// and are deleted afterwards.
///
/// # Errors
/// When Redis refuses.
pub async fn raw_scripts(
    info: &ConnectionInfo,
    base: &str,
    args_bytes: usize,
    duration: Duration,
) -> Result<Figure, BenchError> {
    let client = redis::Client::open(info.clone())?;
    let base = format!("{base}raw");
    let next = Arc::new(AtomicU64::new(0));
    let body = Arc::new(vec![b'x'; args_bytes + 60]);
    let started = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (next, body, base) = (Arc::clone(&next), Arc::clone(&body), base.clone());
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        running.spawn(async move {
            let sum: String =
                redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query_async(&mut connection).await?;
            let mut took = Vec::new();
            while started.elapsed() < duration {
                let from = next.fetch_add(GROUP, Ordering::Relaxed);
                let mut pipeline = redis::Pipeline::new();
                for number in from..from + GROUP {
                    pipeline.cmd("EVALSHA").arg(&sum).arg(1).arg(&base).arg(number).arg(&body[..]).ignore();
                }
                let began = Instant::now();
                let () = pipeline.query_async(&mut connection).await?;
                took.push(began.elapsed());
            }
            Ok::<_, BenchError>(took)
        });
    }
    let mut latencies: Histogram<u64> = Histogram::new_with_bounds(1, 60_000_000, 3)
        .map_err(|error| BenchError::Invalid(error.to_string()))?;
    while let Some(took) = running.join_next().await {
        for took in took.map_err(|error| BenchError::Invalid(error.to_string()))?? {
            latencies.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        }
    }
    let jobs = next.load(Ordering::Relaxed);
    Ok(Figure::new(
        "limit: a script that only writes, eight connections, 64 calls sent together",
        jobs,
        started.elapsed(),
        &latencies,
    ))
}
