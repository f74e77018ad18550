//! The workers: fetch with leases, work, acknowledge. One of them is killed in the middle.

use std::sync::Arc;
use std::time::Duration;

use semel_client::{Bytes, Client, HeaderMap, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::Shared;
use super::ledger::Orphan;
use super::webhook::Kind;
use crate::failure::{Context, Failure};

/// Workers that live; one more is killed.
pub const WORKERS: usize = 3;
/// How long a lease lasts. Short, so that the killed worker's jobs come back while the log is still being played.
const VISIBILITY_MS: u64 = 1_500;
/// Jobs a worker takes at once, and works on at the same time.
const BATCH_JOBS: usize = 16;
/// How long a fetch waits for something to do.
const WAIT_MS: u64 = 200;
const REST: Duration = Duration::from_millis(25);

#[derive(Deserialize)]
struct Fetched {
    jobs: Vec<Granted>,
}

/// A job and the right to run it.
#[derive(Deserialize)]
struct Granted {
    id: String,
    lease: String,
    args: Vec<Value>,
}

/// Works until told to stop. `dies` is whether this is the worker that is killed.
///
/// # Errors
/// When the server cannot be reached, or refuses what it should not.
pub async fn work(shared: Arc<Shared>, client: Client, name: String, dies: bool) -> Result<(), Failure> {
    while !shared.is_over() {
        // The others pause while the worker dies, so that it is sure to hold some jobs then.
        let is_time = shared.is_time_to_kill() && !shared.ledger.is_killed();
        if is_time && !dies {
            tokio::time::sleep(REST).await;
            continue;
        }
        if is_time {
            // Time for a handful of jobs to come together.
            tokio::time::sleep(2 * REST).await;
        }
        let jobs = fetch(&shared, &client, &name).await?;
        if jobs.is_empty() {
            continue;
        }
        if dies && shared.is_time_to_kill() {
            // Killed: it has begun these jobs, and is never heard from again. No ack, no nack, no heartbeat.
            let held = jobs.into_iter().map(|job| {
                shared.ledger.run();
                Orphan { job: job.id, lease: job.lease }
            });
            shared.ledger.kill(held.collect());
            return Ok(());
        }
        let mut running = JoinSet::new();
        for job in jobs {
            let (shared, client, name) = (Arc::clone(&shared), client.clone(), name.clone());
            running.spawn(async move { run(&shared, &client, &name, job).await });
        }
        while let Some(ended) = running.join_next().await {
            ended.context("a run failed")??;
        }
    }
    Ok(())
}

async fn fetch(shared: &Shared, client: &Client, name: &str) -> Result<Vec<Granted>, Failure> {
    let request = json!({
        "queues": Kind::ALL.map(|kind| shared.queue(kind)),
        "worker_id": name,
        "count": BATCH_JOBS,
        "visibility_timeout_ms": VISIBILITY_MS,
        "wait_ms": WAIT_MS,
    });
    let body = Some(Bytes::from(request.to_string()));
    let response = client.request(Method::POST, "/ojs/v1/workers/fetch", body, HeaderMap::new()).await?;
    if response.status == StatusCode::SERVICE_UNAVAILABLE {
        tokio::time::sleep(REST).await;
        return Ok(Vec::new());
    }
    if !response.status.is_success() {
        return Ok(client.read(response).map(|_| Vec::new())?);
    }
    let fetched: Fetched =
        serde_json::from_slice(&response.body).context("the answer to a fetch is not valid OJS")?;
    Ok(fetched.jobs)
}

async fn run(shared: &Shared, client: &Client, name: &str, job: Granted) -> Result<(), Failure> {
    shared.ledger.run();
    let Some(id) = job.args.first().and_then(|payload| payload["id"].as_str()).map(str::to_owned) else {
        return Err(Failure::failed(format!("job {} does not have the args it was enqueued with", job.id)));
    };
    if ack(client, name, &job.id, &job.lease).await? {
        // The ack guards the effect: a worker that has lost the lease has no effect.
        shared.ledger.effect(id);
    } else {
        shared.ledger.lost_lease();
    }
    Ok(())
}

/// Acknowledges a run. Returns whether the ack was accepted; a refusal for a lost lease is no error.
///
/// # Errors
/// Any other refusal.
pub async fn ack(client: &Client, worker: &str, job: &str, lease: &str) -> Result<bool, Failure> {
    let body = Bytes::from(
        json!({ "job_id": job, "lease": lease, "worker_id": worker, "result": "ok" }).to_string(),
    );
    loop {
        let response =
            client.request(Method::POST, "/ojs/v1/workers/ack", Some(body.clone()), HeaderMap::new()).await?;
        match response.status {
            StatusCode::OK => return Ok(true),
            StatusCode::CONFLICT => return Ok(false),
            StatusCode::SERVICE_UNAVAILABLE => tokio::time::sleep(REST).await,
            _ => return Ok(client.read(response).map(|_| false)?),
        }
    }
}
