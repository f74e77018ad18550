//! Workers that run jobs: well, badly, too slowly, twice, or under a false name.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::ident::{JobId, QueueName};
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::settle::{Report, Settled};
use semel_core::sight::Queues;
use semel_engine::Job;
use semel_store::backend::Claim;

use super::client::QUEUES;
use super::dice::Dice;
use super::plan::LEASE;
use super::world::World;
use crate::history::Stored;

/// Claims jobs and settles them until the run is over. Some workers share a name: a name is not a lease.
pub async fn worker(world: Arc<World>, name: Arc<str>, mut dice: Dice) {
    let mut past: Vec<(JobId, Bearer)> = Vec::new();
    loop {
        let runs = claim(&world, &name, &mut dice).await;
        if runs.is_empty() {
            tokio::time::sleep(Duration::from_millis(dice.between(5, 60))).await;
        }
        for run in runs {
            let lease = LeaseToken(run.head.fence);
            work(&world, &run, &name, &mut dice).await;
            past.push((run.head.id, Bearer { lease: Some(lease), worker: Some(Arc::clone(&name)) }));
        }
        // A late request about a run of long ago.
        if !past.is_empty() && dice.chance(120) && !world.is_quiet() {
            let (id, bearer) = past[dice.below(past.len() as u64) as usize].clone();
            settle(&world, &mut dice, id, bearer).await;
        }
    }
}

async fn claim(world: &Arc<World>, name: &Arc<str>, dice: &mut Dice) -> Vec<Job> {
    let mut queues: Vec<QueueName> = QUEUES.iter().map(|name| QueueName::from_stored(name)).collect();
    if dice.chance(300) {
        queues.reverse();
    }
    let lease_ms = LEASE.as_millis() as u32;
    let grant = Grant::new(Arc::clone(name), Some(lease_ms));
    let claim = Claim { queues, limit: dice.between(1, 3) as u32, grant, closed: Vec::new() };
    let waits = dice.chance(512);
    let heard = world
        .ask(dice, move |engine| async move {
            if waits {
                engine.claim_or_wait(claim, Duration::from_millis(200)).await
            } else {
                engine.claim(claim).await
            }
        })
        .await;
    let runs = heard.answer().unwrap_or_default();
    for run in &runs {
        let checked = world.store.witness.lock().unwrap().check_handed(&run.head, &run.body.meta);
        world.judge(|| format!("a run of {}", run.head.id), checked);
        world.heard_of(run.head.id);
    }
    runs
}

async fn work(world: &Arc<World>, run: &Job, name: &Arc<str>, dice: &mut Dice) {
    let id = run.head.id;
    let bearer = Bearer { lease: Some(LeaseToken(run.head.fence)), worker: Some(Arc::clone(name)) };
    if world.is_quiet() {
        end(world, dice, id, bearer).await;
        return;
    }
    let lease_ms = LEASE.as_millis() as u64;
    let takes = match dice.below(8) {
        0..5 => dice.between(0, lease_ms / 8),
        5..7 => dice.between(0, lease_ms),
        _ => dice.between(lease_ms, 3 * lease_ms),
    };
    if dice.chance(300) {
        tokio::time::sleep(Duration::from_millis(takes / 2)).await;
        beat(world, dice, id, &bearer).await;
        tokio::time::sleep(Duration::from_millis(takes / 2)).await;
    } else if takes > 0 {
        tokio::time::sleep(Duration::from_millis(takes)).await;
    }
    // What a request states must match; what it omits need not.
    let shown = match dice.below(16) {
        0 => Bearer { worker: None, ..bearer },
        1 => Bearer { lease: None, ..bearer },
        2 => Bearer::default(),
        3 => Bearer { worker: Some("somebody".into()), ..bearer },
        _ => bearer,
    };
    match dice.below(16) {
        // The worker died with the job.
        0 => {}
        1 => {
            settle(world, dice, id, shown.clone()).await;
            settle(world, dice, id, shown).await;
        }
        2..6 => settle(world, dice, id, shown).await,
        _ => end(world, dice, id, shown).await,
    }
}

/// ACK; a repeated one is answered as the first time.
async fn end(world: &Arc<World>, dice: &mut Dice, id: JobId, bearer: Bearer) {
    let first = complete(world, dice, id, &bearer).await;
    if !dice.chance(200) && first.is_some() {
        return;
    }
    let second = complete(world, dice, id, &bearer).await;
    if let (Some(Settled::Done(head)), Some(again)) = (first, second) {
        let is_known = bearer.lease == Some(LeaseToken(head.fence));
        let gone = {
            let witness = world.store.witness.lock().unwrap();
            // Another job may have the id once this one is gone for good.
            let is_other = |job: &Stored| job.head.created_at != head.created_at;
            witness.jobs.get(&id).is_none_or(|job| job.is_purged || job.was_revived || is_other(job))
        };
        let checked = match again {
            Settled::Repeated(_) => Ok(()),
            _ if !is_known || gone => Ok(()),
            other => Err(format!("repeated, it was answered {other:?}")),
        };
        world.judge(|| format!("an ack of {id}"), checked);
    }
}

async fn complete(world: &Arc<World>, dice: &mut Dice, id: JobId, bearer: &Bearer) -> Option<Settled> {
    let (from, sent) = (world.store.seq(), bearer.clone());
    let result = Some(Bytes::from_static(b"1"));
    let heard = world.ask(dice, move |engine| async move { engine.complete(id, sent, result).await }).await;
    let settled = heard.answer()?;
    judge(world, id, bearer, &settled, from, false);
    Some(settled)
}

async fn beat(world: &Arc<World>, dice: &mut Dice, id: JobId, bearer: &Bearer) {
    let (from, sent) = (world.store.seq(), vec![(id, bearer.clone())]);
    let length = dice.chance(512).then_some(LEASE.as_millis() as u32);
    let heard =
        world.ask(dice, move |engine| async move { engine.extend(sent, length, &Queues::All).await }).await;
    for settled in heard.answer().unwrap_or_default().into_iter().flatten() {
        judge(world, id, bearer, &settled, from, false);
    }
}

/// Fails, gives back, cancels or acknowledges the run.
async fn settle(world: &Arc<World>, dice: &mut Dice, id: JobId, bearer: Bearer) {
    let (from, sent) = (world.store.seq(), bearer.clone());
    let (settled, burns) = match dice.below(4) {
        0 => {
            let retryable = dice.chance(150).then_some(false);
            let report = Report { code: "boom".to_owned(), retryable, ..Report::default() };
            (world.ask(dice, move |engine| async move { engine.fail(id, sent, report).await }).await, false)
        }
        1 => (world.ask(dice, move |engine| async move { engine.give_back(id, sent).await }).await, false),
        2 => (world.ask(dice, move |engine| async move { engine.cancel(id, sent).await }).await, true),
        _ => {
            (world.ask(dice, move |engine| async move { engine.complete(id, sent, None).await }).await, false)
        }
    };
    if let Some(settled) = settled.answer() {
        judge(world, id, &bearer, &settled, from, burns);
    }
}

fn judge(world: &World, id: JobId, bearer: &Bearer, settled: &Settled, from: u64, burns: bool) {
    let checked = world.store.witness.lock().unwrap().check_settled(id, bearer, settled, from, burns);
    world.judge(|| format!("{bearer:?} on {id}"), checked);
}
