//! The link to a server that speaks Open Job Spec.

mod answers;
mod said;

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use semel_client::Client;
use semel_core::ident::JobId;
use semel_core::lease::LeaseToken;
use semel_core::limits::{EXECUTION_DEFAULT_MS, VISIBILITY_DEFAULT_MS};
use semel_core::time::Timestamp;
use semel_store::StoreError;
use semel_store::backend::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::answers::{Heard, beaten, heard, is_discarded, is_refusal};
use self::said::{ACK, Ack, NACK, Nack, Nacked, Said};
use super::link::{Ask, Hears, Held, Link, Reported, Speaker, millis};
use super::run::Delivery;
use super::stop::Stop;
use super::verdict::{Failure, Outcome};
use crate::error::Error;

/// How long a fetch waits at the server. A shutdown waits for it, because a fetch that is broken off may have
/// taken jobs.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long after the stop a fetch is given up: far longer than a healthy server needs. The jobs it was
/// granted go back when the server notices that the client is gone or, if the answer was already on its way,
/// when their leases end.
const OVERDUE_AFTER: Duration = Duration::from_secs(5);

/// The least time between two fetches that found nothing.
const REST_MIN: Duration = Duration::from_millis(250);
/// The most leases in one heartbeat: the server reads no longer request.
const LEASES_MAX: usize = 1_000;
/// How much of a refusal's text is reported, in characters.
const REASON_CHARS_MAX: usize = 500;
/// The most reports under way at once, each on a connection of its own: when hundreds of runs end together,
/// or a server comes back after an outage, they must not all hit it at the same moment.
const REPORTS_AT_ONCE_MAX: usize = 256;

pub(crate) struct Remote {
    client: Client,
    reports: Semaphore,
}

/// A job in the answer to a fetch.
#[derive(Deserialize)]
struct Fetched {
    id: String,
    #[serde(rename = "type")]
    job_type: String,
    #[serde(default)]
    queue: String,
    #[serde(default)]
    attempt: u32,
    #[serde(default)]
    max_attempts: u32,
    args: Box<RawValue>,
    #[serde(default)]
    meta: Option<Box<RawValue>>,
    #[serde(default)]
    sensitive: Vec<String>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    created_at: String,
    #[serde(default)]
    lease: String,
    #[serde(default)]
    visibility_timeout_ms: u32,
    #[serde(default)]
    timeout_ms: u32,
    #[serde(default)]
    parent_results: Option<Box<RawValue>>,
}

impl Fetched {
    /// Converts the job, which was granted and asked for at these times.
    fn delivery(self, ask: &Ask, granted: Instant, asked: Instant) -> Result<Delivery, Error> {
        let wrong = |what: &str| Error::Server(format!("the server sent a job without {what}"));
        let own = Some(self.visibility_timeout_ms).filter(|own| *own > 0);
        let lease = own.or(ask.lease.map(millis)).unwrap_or(VISIBILITY_DEFAULT_MS);
        let timeout = if self.timeout_ms > 0 { self.timeout_ms } else { EXECUTION_DEFAULT_MS };
        Ok(Delivery {
            id: JobId::parse(&self.id, "").map_err(|_| wrong("an id this program understands"))?,
            job_type: self.job_type.into(),
            queue: self.queue.into(),
            attempt: self.attempt,
            max_attempts: self.max_attempts.max(1),
            args: self.args.get().into(),
            meta: self.meta.as_ref().map_or("{}", |meta| meta.get()).into(),
            has_sensitive: !self.sensitive.is_empty(),
            tags: self.tags,
            created_at: Timestamp::parse(&self.created_at, "").unwrap_or_default(),
            fence: LeaseToken::parse(&self.lease, "").map_err(|_| wrong("a lease"))?.0,
            has_own_lease: own.is_some(),
            lease: Duration::from_millis(u64::from(lease)),
            granted,
            asked,
            timeout: Duration::from_millis(u64::from(timeout)),
            parent_results: self.parent_results.map(|results| results.get().into()),
        })
    }
}

impl Remote {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client, reports: Semaphore::const_new(REPORTS_AT_ONCE_MAX) }
    }

    /// Sends one heartbeat request.
    async fn speak_of(
        &self,
        held: Vec<Held>,
        lease: Option<Duration>,
        speaker: &Speaker,
        holds: usize,
        hears: Hears<'_>,
    ) -> Result<(), Error> {
        let leases: serde_json::Map<String, Value> = held
            .iter()
            .map(|held| (held.id.to_string(), LeaseToken(held.fence).to_string().into()))
            .collect();
        let worker = &*speaker.worker;
        let mut body = json!({ "worker_id": worker, "leases": leases, "active_job_count": holds });
        if let Some(lease) = lease {
            body["visibility_timeout_ms"] = millis(lease).into();
        }
        let answer = self.client.post_json("/ojs/v1/workers/heartbeat", &body).await?;
        let unheard =
            || StoreError::Unavailable("the answer to a heartbeat did not come from a job server".to_owned());
        hears(beaten(held, &answer).ok_or_else(unheard)?);
        Ok(())
    }

    /// The error for a refused request, or `nothing` if the answer did not come from a job server. It leaves
    /// out what differs from answer to answer, such as a request's id, so that a persisting error is
    /// recognised and not logged each time.
    fn refusal(&self, response: semel_client::Response, nothing: Error) -> Error {
        self.client.read(response).map_or_else(Error::from, |_| nothing)
    }

    /// Reports the end of a run. The answer's body is read only for whether it is an acceptance and, to a
    /// failure, whether the job is discarded.
    async fn tell(
        &self,
        (method, path): (http::Method, &str),
        body: &impl Serialize,
    ) -> Result<Reported, Error> {
        let text = serde_json::to_vec(body).map_err(Error::Write)?;
        let headers = http::HeaderMap::new();
        let response = self.client.request(method, path, Some(text.into()), headers).await?;
        match heard(response.status, &response.body) {
            Heard::Counted if path == NACK.1 && is_discarded(&response.body) => Ok(Reported::Discarded),
            Heard::Counted => Ok(Reported::Counted),
            Heard::Late => Ok(Reported::Late),
            Heard::Unfit => {
                let said = String::from_utf8_lossy(&response.body);
                let said = said.chars().take(REASON_CHARS_MAX).collect::<String>();
                Err(Error::Server(format!(
                    "the outcome of a run was answered with {}: {said}",
                    response.status
                )))
            }
            Heard::Elsewhere => {
                let nothing = "the answer to a run's outcome did not come from a job server".to_owned();
                Err(self.refusal(response, StoreError::Unavailable(nothing).into()))
            }
        }
    }
}

/// Completes when a fetch that was told to stop has had its time.
async fn overdue(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(OVERDUE_AFTER).await;
}

impl Link for Remote {
    fn fetch<'a>(
        &'a self,
        ask: &'a Ask,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Vec<Delivery>, Error>> {
        #[derive(Deserialize)]
        struct Answer {
            jobs: Vec<Box<RawValue>>,
        }
        Box::pin(async move {
            let mut body = json!({
                "queues": [ask.queue.as_str()], "count": ask.limit, "worker_id": &*ask.worker, "wait_ms": millis(WAIT_MAX),
            });
            if let Some(lease) = ask.lease {
                body["visibility_timeout_ms"] = millis(lease).into();
            }
            while !stop.is_cancelled() {
                let asked = Instant::now();
                // Sent and read as text, so that args keep their bytes.
                let text = serde_json::to_vec(&body).map_err(Error::Write)?;
                let answer = self.client.request(
                    http::Method::POST,
                    "/ojs/v1/workers/fetch",
                    Some(text.into()),
                    http::HeaderMap::new(),
                );
                let response = tokio::select! {
                    biased;
                    response = answer => response?,
                    () = overdue(stop) => {
                        tracing::warn!(queue = %ask.queue, "the server does not answer; the fetch is given up");
                        return Ok(Vec::new());
                    }
                };
                if !response.status.is_success() {
                    let nothing = Error::Server("the answer to a fetch has no list of jobs".to_owned());
                    return Err(self.refusal(response, nothing));
                }
                let answer: Answer = serde_json::from_slice(&response.body).map_err(|error| {
                    Error::Server(format!("the answer to a fetch has no list of jobs: {error}"))
                })?;
                if !answer.jobs.is_empty() {
                    // A server with jobs answers by then. A long answer takes time to read, but the leases end no later for it.
                    let granted = Instant::now();
                    let asked = granted.min(asked + WAIT_MAX);
                    // One unusable job must not take the others with it.
                    let read = |job: &RawValue| {
                        serde_json::from_str::<Fetched>(job.get())
                            .map_err(|error| {
                                Error::Server(format!("the answer to a fetch has an unreadable job: {error}"))
                            })
                            .and_then(|job| job.delivery(ask, granted, asked))
                    };
                    let (mut usable, mut last) = (Vec::with_capacity(answer.jobs.len()), None);
                    for job in &answer.jobs {
                        match read(job) {
                            Ok(job) => usable.push(job),
                            Err(error) => {
                                tracing::error!(%error, "a fetched job cannot be run here; it goes to other workers when its lease has expired");
                                last = Some(error);
                            }
                        }
                    }
                    // If no job is usable, this is an error: else the worker would ask again at once and take more jobs from others.
                    return match last.filter(|_| usable.is_empty()) {
                        Some(error) => Err(error),
                        None => Ok(usable),
                    };
                }
                // A server without room for waiting requests answers at once.
                let rest = REST_MIN.saturating_sub(asked.elapsed());
                tokio::select! {
                    () = tokio::time::sleep(rest) => {}
                    () = stop.cancelled() => {}
                }
            }
            Ok(Vec::new())
        })
    }

    fn settle<'a>(
        &'a self,
        run: &'a Delivery,
        outcome: &'a Outcome,
    ) -> BoxFuture<'a, Result<Reported, Error>> {
        Box::pin(async move {
            // The semaphore is never closed.
            let _turn = self.reports.acquire().await;
            let said = Said { job_id: run.id.to_string(), lease: LeaseToken(run.fence).to_string() };
            let nack = |what| Nack { said: &said, what };
            let told = match outcome {
                Outcome::Done => self.tell(ACK, &said).await,
                Outcome::Returned(result) => self.tell(ACK, &Ack { said: &said, result }).await,
                Outcome::Retry(failure) => self.tell(NACK, &nack(Nacked::failed(failure, None))).await,
                Outcome::Discard(failure) => {
                    self.tell(NACK, &nack(Nacked::failed(failure, Some(false)))).await
                }
                Outcome::Snooze(wait) => {
                    let back = Nacked::Back { requeue: true, delay_ms: Some(millis(*wait)) };
                    self.tell(NACK, &nack(back)).await
                }
                Outcome::GiveBack => {
                    let back = Nacked::Back { requeue: true, delay_ms: None };
                    self.tell(NACK, &nack(back)).await
                }
                Outcome::Cancel => {
                    let path = format!("/ojs/v1/jobs/{}", run.id);
                    self.tell((http::Method::DELETE, &path), &said).await
                }
            };
            // What the server will not accept, such as a result that is too long, it will not accept from the
            // next run either.
            let Err(Error::Server(reason)) = &told else { return told };
            let retryable = match outcome {
                Outcome::GiveBack | Outcome::Cancel => return told,
                // The handler wants another run.
                Outcome::Retry(_) | Outcome::Snooze(_) => None,
                _ => Some(false),
            };
            tracing::error!(job = %run.id, reason, "the server refuses the outcome of a run; it is reported as a failure instead");
            let last = Failure::new("result", reason.as_str());
            self.tell(NACK, &nack(Nacked::failed(&last, retryable))).await
        })
    }

    fn beat<'a>(
        &'a self,
        speaker: &'a Speaker,
        jobs: &'a [Held],
        holds: usize,
        hears: Hears<'a>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let mut asking = Vec::new();
            for (own, lease) in [(true, None), (false, speaker.lease)] {
                let held: Vec<Held> = jobs.iter().filter(|held| held.has_own_lease == own).copied().collect();
                // A worker that holds nothing still announces itself, and learns what an operator tells it.
                let idle = (own && jobs.is_empty()).then(Vec::new);
                for held in held.chunks(LEASES_MAX).map(<[Held]>::to_vec).chain(idle) {
                    asking.push(self.speak_of(held, lease, speaker, holds, hears));
                }
            }
            // Concurrently, so that an unanswered request delays no other.
            join_all(asking).await.into_iter().collect()
        })
    }

    /// A server reports a lost lease only in answer to the next heartbeat.
    fn lost<'a>(&'a self, _: &'a Delivery) -> BoxFuture<'a, Stop> {
        Box::pin(std::future::pending())
    }

    fn progress<'a>(&'a self, run: &'a Delivery, value: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            // Sent as text, so that the value keeps its bytes.
            let lease = run.asked_lease().map(|millis| format!(",\"visibility_timeout_ms\":{millis}"));
            let lease = lease.unwrap_or_default();
            let mut text =
                format!("{{\"lease\":\"{}\"{lease},\"value\":", LeaseToken(run.fence)).into_bytes();
            text.extend_from_slice(&value);
            text.push(b'}');
            let path = format!("/ojs/v1/jobs/{}/progress", run.id);
            let headers = http::HeaderMap::new();
            let response = self.client.request(http::Method::PUT, &path, Some(text.into()), headers).await?;
            match response.status.as_u16() {
                200..=299 => Ok(()),
                404 | 409 if is_refusal(&response.body) => Err(Error::LeaseLost(run.id)),
                status => Err(Error::Server(format!("progress was answered with {status}"))),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use semel_core::ident::QueueName;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::error::Again;

    /// Otherwise each refusal would be logged, instead of one a minute.
    #[test]
    fn a_refusal_that_stays_the_same_says_the_same() {
        let remote = Remote::new(Client::new("http://127.0.0.1:1").unwrap());
        let told = ["one", "other"].map(|id| {
            let body = json!({ "error": { "code": "unauthorized", "message": "no", "request_id": id } });
            let (status, headers) = (http::StatusCode::UNAUTHORIZED, http::HeaderMap::new());
            let response = semel_client::Response { status, headers, body: body.to_string().into() };
            remote.refusal(response, Error::Closed).to_string()
        });
        assert!(told[0] == told[1] && told[0].contains("unauthorized"), "{told:?}");
    }

    /// A run of which only the end matters.
    fn run(number: u64) -> Delivery {
        let job = json!({ "id": JobId::mint(Timestamp::EPOCH, number, 1), "type": "a.b", "args": [], "lease": "l1-1" });
        let ask = Ask { queue: QueueName::default(), limit: 1, worker: "w".into(), lease: None };
        let fetched: Fetched = serde_json::from_value(job).unwrap();
        fetched.delivery(&ask, Instant::now(), Instant::now()).unwrap()
    }

    /// The connection of the next report that a client sends.
    async fn told(listener: &TcpListener) -> TcpStream {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
        stream
    }

    async fn listening() -> (TcpListener, Remote) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        (listener, Remote::new(Client::new(&url).unwrap()))
    }

    #[tokio::test]
    async fn who_refuses_an_end_is_heard_with_what_he_asks_for() {
        let (listener, remote) = listening().await;
        let server = tokio::spawn(async move {
            let refusal = "HTTP/1.1 403 No\r\nretry-after: 7\r\ncontent-length: 2\r\n\r\nno";
            told(&listener).await.write_all(refusal.as_bytes()).await.unwrap();
        });
        let refused = remote.settle(&run(1), &Outcome::Done).await.unwrap_err();
        assert_eq!(
            (refused.again(), refused.retry_after()),
            (Again::ForAWhile, Some(Duration::from_secs(7)))
        );
        server.await.unwrap();
    }

    #[tokio::test]
    async fn so_many_ends_are_told_at_once_and_no_more() {
        let (listener, remote) = listening().await;
        let remote = Arc::new(remote);
        let telling: Vec<_> = (0..REPORTS_AT_ONCE_MAX as u64 + 2)
            .map(|number| {
                let remote = Arc::clone(&remote);
                tokio::spawn(async move { remote.settle(&run(number), &Outcome::Done).await })
            })
            .collect();
        let mut asked = Vec::new();
        for _ in 0..REPORTS_AT_ONCE_MAX {
            asked.push(told(&listener).await);
        }
        assert!(listener.accept().now_or_never().is_none(), "one more");
        // Each answered report makes room for a waiting one.
        let answer = b"HTTP/1.1 204 Done\r\nconnection: close\r\n\r\n";
        for mut heard in asked {
            heard.write_all(answer).await.unwrap();
        }
        for _ in 0..2 {
            told(&listener).await.write_all(answer).await.unwrap();
        }
        for told in telling {
            assert_eq!(told.await.unwrap().unwrap(), Reported::Counted);
        }
    }
}
