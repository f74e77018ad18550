//! The loop that runs the duties. Each kind of them has its turn, however much there is of the others.

use std::sync::Weak;
use std::time::Duration;

use semel_store::repeated::Over;
use semel_store::{Store, StoreError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{Shared, let_others_go_on};
use crate::duty::{Expire, Promote, Purge, Reap, Tend};

/// The longest the duties sleep without looking, for whatever a hint failed to say.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);
/// How often finished jobs are looked over and the store keeps house.
const HOUSEKEEPING_EVERY: Duration = Duration::from_millis(500);
/// How often a round of absorbed duplicates is written to their holders: within a second with the time that it takes, unless they are
/// thousands; and hot holders no more often.
const DUPLICATES_EVERY: Duration = Duration::from_millis(800);
/// How long the duties rest after the store failed them.
const REST_AFTER_FAILURE: Duration = Duration::from_millis(250);
/// After so long a duty that has more to do lets the others have their turn, and goes on behind them.
const TURN_MAX: Duration = Duration::from_millis(100);
/// Of each time that house is kept, the most that goes on looking for what is to be purged where nothing of it is found: it
/// takes turns with those who wait for an answer, and there may be millions that are kept.
const LOOKING_MAX: Duration = Duration::from_millis(10);

/// Runs the duties until told to stop or until nobody holds the engine any more.
pub(super) async fn run_duties(store: Store, engine: Weak<Shared>, stop: watch::Receiver<bool>) {
    tokio::select! {
        // In a fixed order, so that a run that is played again is the same run.
        biased;
        () = go_round(&store, &engine, stop) => {}
        // Beside the others: it may wait for somebody, such as for a copy that is being made, and nobody waits for it.
        () = keep_store(&store) => {}
    }
}

/// Runs what is due at once, then what falls due at the next known time or hint.
async fn go_round(store: &Store, engine: &Weak<Shared>, mut stop: watch::Receiver<bool>) {
    let mut kept = Instant::now();
    // When the next round of duplicates begins, and since when one is being written.
    let (mut flush_at, mut flushing) = (kept + DUPLICATES_EVERY, None);
    loop {
        tell_what_is_over(store);
        let mut rest = match time_duties(store, engine).await {
            Ok(rest) => rest.min(HOUSEKEEPING_EVERY),
            Err(StoreError::Closed) => return,
            Err(error) => {
                store.repeated_failures().warn("the duties could not use the store; they try again", &error);
                REST_AFTER_FAILURE
            }
        };
        let mut has_more = false;
        if flushing.is_some() || Instant::now() >= flush_at {
            let Some(shared) = engine.upgrade() else { return };
            let began = *flushing.get_or_insert_with(Instant::now);
            has_more = or_later(store, once_a_second(&shared).await);
            if !has_more {
                // One that takes long leaves others a while as well.
                let pause = began.elapsed().min(DUPLICATES_EVERY);
                flush_at = (began + DUPLICATES_EVERY).max(Instant::now() + pause);
                flushing = None;
            }
        }
        if kept.elapsed() >= HOUSEKEEPING_EVERY {
            if or_later(store, purge(store).await) {
                has_more = true;
            } else {
                kept = Instant::now();
            }
        }
        rest = if has_more {
            Duration::ZERO
        } else {
            let next = flush_at.min(kept + HOUSEKEEPING_EVERY);
            rest.min(next.saturating_duration_since(Instant::now()))
        };
        tokio::select! {
            biased;
            changed = stop.changed() => if changed.is_err() || *stop.borrow() { return },
            () = store.hints().sooner() => {}
            () = rest_for(rest) => {}
        }
    }
}

/// Says what has failed again and again, whoever met with it, and does no more.
fn tell_what_is_over(store: &Store) {
    for Over { what, text, times } in store.repeated_failures().over() {
        tracing::info!(what, error = text, times, "this has not happened for a minute");
    }
}

/// Not even for the moment that a timer takes, where there is more to do.
async fn rest_for(rest: Duration) {
    if !rest.is_zero() {
        sleep(rest).await;
    }
}

/// Does one piece after the other until nothing is left or the turn is over. Says whether there may be more.
async fn turn<F>(mut piece: impl FnMut() -> F) -> Result<bool, StoreError>
where
    F: Future<Output = Result<bool, StoreError>>,
{
    let began = Instant::now();
    while piece().await? {
        if began.elapsed() >= TURN_MAX {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a turn says. One that failed is taken again when it is time for the next.
fn or_later(store: &Store, turn: Result<bool, StoreError>) -> bool {
    turn.unwrap_or_else(|error| {
        store.repeated_failures().warn("housekeeping failed; it is tried again", &error);
        false
    })
}

/// Runs the duties that hang on a time, until nothing is due or their turn is over. Says how long nothing will be. One that fails
/// keeps no other from its run.
async fn time_duties(store: &Store, engine: &Weak<Shared>) -> Result<Duration, StoreError> {
    let began = Instant::now();
    loop {
        let runs = [
            Promote.run_once(store).await,
            Reap.run_once(store).await,
            Expire.run_once(store).await,
            Tend.run_once(store).await,
        ];
        if let Some(shared) = engine.upgrade() {
            let lost = runs.iter().flatten().flat_map(|ran| &ran.lost);
            lost.for_each(|(job_type, queue)| shared.count_lost(job_type, queue));
        }
        let ran = runs.into_iter().collect::<Result<Vec<_>, _>>()?;
        let now = ran.iter().map(|ran| ran.now).max().unwrap_or_default();
        let next = ran.iter().filter_map(|ran| ran.next).min();
        let is_held_up = ran.iter().all(|ran| ran.moved == 0) && ran.iter().any(|ran| ran.held_up > 0);
        match next {
            // A cron that ticked has a next tick, which this look did not see.
            _ if ran.last().is_some_and(|tended| tended.moved > 0) => {}
            // There is more, and nothing of it could be had.
            Some(at) if at <= now && is_held_up => return Ok(REST_AFTER_FAILURE),
            Some(at) if at <= now => {}
            _ => {
                let rest = next.map_or(LOOK_AT_LEAST_EVERY, |at| at.since(now).min(LOOK_AT_LEAST_EVERY));
                store.hints().looks_at(now.saturating_add(rest));
                return Ok(rest);
            }
        }
        if began.elapsed() >= TURN_MAX {
            return Ok(Duration::ZERO);
        }
    }
}

/// What is done about once a second: duplicates are written to their holders, and it is looked which queues have a bound. Says whether
/// more duplicates are to be written.
async fn once_a_second(shared: &Shared) -> Result<bool, StoreError> {
    let has_more = turn(|| shared.duplicates.flush(&shared.store)).await;
    shared.bounded.look(&shared.store).await?;
    has_more
}

/// Purges until nothing is left or the turn is over. Says whether there may be more; where it has only looked so far, it looks on
/// when house is kept again.
async fn purge(store: &Store) -> Result<bool, StoreError> {
    let began = Instant::now();
    loop {
        let ran = Purge.run_once(store).await?;
        let has_moved = ran.moved > 0;
        let looks_on = ran.held_up == 0 && ran.next.is_some_and(|at| at <= ran.now);
        if !has_moved && !looks_on {
            return Ok(false);
        }
        let most = if has_moved { TURN_MAX } else { LOOKING_MAX };
        if began.elapsed() >= most {
            return Ok(has_moved);
        }
    }
}

/// Has the store keep its own house, for as long as it is open.
async fn keep_store(store: &Store) {
    loop {
        sleep(HOUSEKEEPING_EVERY).await;
        loop {
            match store.maintain().await {
                Ok(true) => let_others_go_on().await,
                Ok(false) => break,
                Err(StoreError::Closed) => return,
                Err(error) => {
                    store.repeated_failures().warn("the store could not keep house; it tries again", &error);
                    break;
                }
            }
        }
    }
}
