//! Relays the event log to subscribers. Each delivery is a job, so a failed one is retried by its retry
//! policy, and one whose courier died when its lease ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_core::ident::{JobId, QueueName};
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::settle::Report;
use semel_core::webhook::{Delivery, Subscription, signature};
use semel_engine::webhooks::{DELIVERIES, Relayed, Webhooks};
use semel_engine::{Engine, Job};
use semel_ojs::webhook::{Target, delivery as body_of};
use semel_store::StoreError;
use semel_store::backend::Claim;
use semel_store::clock::{Clock as _, SystemClock};
use tokio::task::{Id, JoinError, JoinSet};

use crate::drain::Drain;

use super::pace::{Pace, Taking, UNDER_WAY_MAX};
use super::send::{Failed, Letter, Sender};
use super::{Rules, of};

/// The longest wait between looks, in case a hint was missed.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// How long the relay pauses after it was woken, so that a store under load is not read for every commit.
const REST: Duration = Duration::from_millis(20);
/// How long a delivery to a paused subscription is put off before the next look. No attempt is spent.
const PAUSED_REST: Duration = Duration::from_secs(300);
/// How long to pause after the store failed.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The tasks that deliver. They end with [`stop`](Self::stop), or when this is dropped.
pub struct Courier {
    stop: Drain,
    tasks: JoinSet<()>,
}

impl Courier {
    /// Starts delivering the events of the engine's store. Must be called inside a tokio runtime.
    pub fn start(engine: &Engine, rules: Rules) -> Self {
        let stop = Drain::default();
        let mut tasks = JoinSet::new();
        let sender = Sender::of(rules);
        tasks.spawn(relay(of(engine), stop.clone()));
        tasks.spawn(deliver(Arc::new(of(engine)), sender, stop.clone()));
        Self { stop, tasks }
    }

    /// Ends the tasks once the deliveries in progress are done.
    pub async fn stop(mut self) {
        self.end().await;
    }

    /// As [`stop`](Self::stop), but waits no longer than `drain`. A delivery still in progress then is
    /// abandoned, and tried again when its lease has ended.
    pub async fn stop_within(mut self, drain: Duration) {
        if tokio::time::timeout(drain, self.end()).await.is_err() {
            tracing::warn!("webhooks were still being delivered when the time to drain ran out");
            self.tasks.shutdown().await;
        }
    }

    async fn end(&mut self) {
        self.stop.begin();
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn relay(mut webhooks: Webhooks, stop: Drain) {
    let engine = webhooks.engine().clone();
    loop {
        // Registered before reading the log, so that no hint given in between is missed.
        let mut logged = std::pin::pin!(engine.store().hints().logged());
        logged.as_mut().enable();
        let rest = match webhooks.relay_once().await {
            Ok(Relayed::Some) => Duration::ZERO,
            Ok(Relayed::Nothing) => LOOK_AT_LEAST_EVERY,
            Err(StoreError::Closed) => return,
            Err(error) => {
                engine
                    .store()
                    .repeated_failures()
                    .warn("events could not be turned into deliveries; trying again", &error);
                REST_AFTER_FAILURE
            }
        };
        tokio::select! {
            biased;
            () = stop.begun() => return,
            () = logged, if rest == LOOK_AT_LEAST_EVERY => tokio::time::sleep(REST).await,
            () = tokio::time::sleep(rest) => {}
        }
    }
}

/// Claims as many deliveries as there are places for, and runs them concurrently. One subscription may have far fewer
/// in progress, by its own concurrency limit; all slow subscribers together may take only a part of the places.
async fn deliver(webhooks: Arc<Webhooks>, sender: Sender, stop: Drain) {
    let (mut under_way, mut pace) = (JoinSet::new(), Pace::default());
    let grant = Grant::new("courier".into(), None);
    let queues = vec![QueueName::from_stored(DELIVERIES)];
    let claim = Claim { queues, limit: 1, grant, closed: Vec::new() };
    while !stop.has_begun() {
        while let Some(one) = under_way.try_join_next_with_id() {
            settled(&mut pace, one);
        }
        let free = UNDER_WAY_MAX.saturating_sub(under_way.len());
        if free == 0 {
            tokio::select! {
                Some(one) = under_way.join_next_with_id() => settled(&mut pace, one),
                () = stop.begun() => {}
            }
            continue;
        }
        let Taking { most, closed } = pace.next(free, Instant::now());
        let (are_closed, mut one) = (!closed.is_empty(), None);
        let claim = Claim { limit: u32::try_from(most).unwrap_or(1), closed, ..claim.clone() };
        let until = async {
            tokio::select! {
                () = stop.begun() => {}
                // A delivery that ends may make room for the subscribers passed over.
                ended = under_way.join_next_with_id(), if are_closed => one = ended,
            }
        };
        let claimed = webhooks.engine().claim_or_wait_until(claim, LOOK_AT_LEAST_EVERY, until).await;
        if let Some(one) = one {
            settled(&mut pace, one);
        }
        match claimed {
            Ok(jobs) => {
                for job in jobs {
                    let (webhooks, sender, lane) = (Arc::clone(&webhooks), sender.clone(), job.head.lane);
                    let begun = under_way.spawn(async move {
                        let began = Instant::now();
                        if let Err(error) = run(&webhooks, &sender, &job).await {
                            let failures = webhooks.engine().store().repeated_failures();
                            failures.warn(
                                "a delivery could not be made, or its result could not be stored; its lease will expire",
                                &error,
                            );
                        }
                        began.elapsed()
                    });
                    if let Some(lane) = lane {
                        pace.begun(begun.id(), lane, Instant::now());
                    }
                }
            }
            Err(StoreError::Closed) => break,
            Err(error) => {
                let failures = webhooks.engine().store().repeated_failures();
                failures.warn("deliveries could not be fetched; trying again", &error);
                tokio::time::sleep(REST_AFTER_FAILURE).await;
            }
        }
    }
    while under_way.join_next().await.is_some() {}
}

fn settled(pace: &mut Pace<Id>, ended: Result<(Id, Duration), JoinError>) {
    let (delivery, took) = ended.map_or_else(|error| (error.id(), None), |(id, took)| (id, Some(took)));
    pace.ended(&delivery, took, Instant::now());
}

async fn run(webhooks: &Webhooks, sender: &Sender, job: &Job) -> Result<(), StoreError> {
    let engine = webhooks.engine();
    let bearer = Bearer { lease: Some(LeaseToken(job.head.fence)), worker: None };
    let delivery = Delivery::of_args(&job.body.args)?;
    let known = webhooks.subscriptions().await?.0;
    // The subscription as it is now: its URL or secret may have been changed since the event.
    let of = known.into_iter().find(|of| of.id == delivery.subscription);
    let sent = match of {
        None => Ok(()),
        Some(of) if !of.wish.active => {
            engine.snooze(job.head.id, bearer, PAUSED_REST).await?;
            return Ok(());
        }
        Some(of) => match letter(&of, &delivery, job.head.id) {
            Ok(letter) => sender.send(&letter).await,
            Err(failed) => Err(failed),
        },
    };
    match sent {
        Ok(()) => engine.complete(job.head.id, bearer, None).await?,
        Err(failed) => {
            tracing::debug!(subscription = delivery.subscription, why = failed.why, "a delivery failed");
            // The subscriber's wait is only a minimum: used as the wait itself, a short one would soon exhaust the attempts.
            let put_off = |least| job.body.retry.wait_at_least(job.head.attempt, chance(), least);
            let report = Report {
                code: "delivery_failed".to_owned(),
                message: failed.why,
                error_type: "delivery_failed".to_owned(),
                retry_in: failed.retry_after.map(put_off),
                ..Report::default()
            };
            engine.fail(job.head.id, bearer, report).await?
        }
    };
    Ok(())
}

/// A random number in `[0, 1)`.
fn chance() -> f64 {
    (semel_store::random::number() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Makes the signed request to a subscriber. It is stamped by this machine's clock, because the subscriber
/// compares it with its own; the store's time runs ahead after a clock was set back.
pub(super) fn letter(of: &Subscription, delivery: &Delivery, id: JobId) -> Result<Letter, Failed> {
    let timestamp = SystemClock.now().as_micros() / 1_000_000;
    let target = Target::parse(&of.wish.url).map_err(|refused| Failed::because(refused.message))?;
    let body = body_of(delivery, id, timestamp);
    let headers = vec![
        ("x-ojs-event-type", delivery.event_type.clone()),
        // The same at every attempt, so that a subscriber can recognise a repetition.
        ("x-ojs-delivery-id", id.to_string()),
        ("x-ojs-subscription-id", of.id.clone()),
        ("x-ojs-signature", signature(&of.wish.secret.0, timestamp, body.as_bytes())),
        ("x-ojs-timestamp", timestamp.to_string()),
    ];
    Ok(Letter { target, headers, body })
}
