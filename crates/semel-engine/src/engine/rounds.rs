//! The loop that runs the duties. Each kind of duty gets its turn, however much work another kind has.

use std::sync::Weak;
use std::time::Duration;

use semel_store::repeated::Over;
use semel_store::{Store, StoreError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{Shared, let_others_go_on};
use crate::duty::{Expire, Promote, Purge, Reap, Tend};

/// The longest pause of the duties, in case a hint was lost.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);
/// How often finished jobs are purged and the store does its housekeeping.
const HOUSEKEEPING_EVERY: Duration = Duration::from_millis(500);
/// How often a round of absorbed duplicates is written to their holders: with the time it takes that is within
/// a second, unless there are thousands. A hot holder is written no more often either.
const DUPLICATES_EVERY: Duration = Duration::from_millis(800);
/// The pause of the duties after the store failed them.
const REST_AFTER_FAILURE: Duration = Duration::from_millis(250);
/// After this long, a duty that has more to do lets the others have their turn first.
const TURN_MAX: Duration = Duration::from_millis(100);
/// The longest search per housekeeping for jobs to purge while none is found: it takes turns with callers that
/// wait for an answer, and there may be millions of jobs still to be kept.
const LOOKING_MAX: Duration = Duration::from_millis(10);

/// Runs the duties until told to stop or until the last engine handle is gone.
pub(super) async fn run_duties(store: Store, engine: Weak<Shared>, stop: watch::Receiver<bool>) {
    tokio::select! {
        // Polled in a fixed order, so that replaying a run repeats it exactly.
        biased;
        () = go_round(&store, &engine, stop) => {}
        // Runs beside the duties: it may wait, for instance for a running backup, and nothing waits for it.
        () = keep_store(&store) => {}
    }
}

/// Runs what is due at once, then whatever falls due at the next known time or hint.
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
                store.repeated_failures().warn("the duties could not use the store; trying again", &error);
                REST_AFTER_FAILURE
            }
        };
        let mut has_more = false;
        if flushing.is_some() || Instant::now() >= flush_at {
            let Some(shared) = engine.upgrade() else { return };
            let began = *flushing.get_or_insert_with(Instant::now);
            has_more = or_later(store, once_a_second(&shared).await);
            if !has_more {
                // A round that takes long is followed by as long a pause.
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

/// Logs recurring failures that have stopped, whatever they affected.
fn tell_what_is_over(store: &Store) {
    for Over { what, text, times } in store.repeated_failures().over() {
        tracing::info!(what, error = text, times, "this has not happened for a minute");
    }
}

/// With a zero pause there is no sleep at all, which would take a timer's tick.
async fn rest_for(rest: Duration) {
    if !rest.is_zero() {
        sleep(rest).await;
    }
}

/// Runs one piece after another until nothing is left or the turn is over. Returns whether there may be more.
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

/// The result of a turn; a failed one is logged and repeated in the next round.
fn or_later(store: &Store, turn: Result<bool, StoreError>) -> bool {
    turn.unwrap_or_else(|error| {
        store.repeated_failures().warn("housekeeping failed; trying again", &error);
        false
    })
}

/// Runs the duties that depend on time, until nothing is due or their turn is over. Returns how long nothing
/// will be due. A duty that fails does not keep the others from running.
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
            // More is due, but none of it could be processed.
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

/// The work of about once a second: writes duplicates to their holders, and looks up which queues have a
/// bound. Returns whether more duplicates are to be written.
async fn once_a_second(shared: &Shared) -> Result<bool, StoreError> {
    let has_more = turn(|| shared.duplicates.flush(&shared.store)).await;
    shared.bounded.look(&shared.store).await?;
    has_more
}

/// Purges until nothing is left or the turn is over. Returns whether there may be more. If it has only
/// searched so far, the search goes on at the next housekeeping.
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

/// Runs the store's own housekeeping for as long as it is open.
async fn keep_store(store: &Store) {
    loop {
        sleep(HOUSEKEEPING_EVERY).await;
        loop {
            match store.maintain().await {
                Ok(true) => let_others_go_on().await,
                Ok(false) => break,
                Err(StoreError::Closed) => return,
                Err(error) => {
                    store
                        .repeated_failures()
                        .warn("the store's own housekeeping failed; trying again", &error);
                    break;
                }
            }
        }
    }
}
