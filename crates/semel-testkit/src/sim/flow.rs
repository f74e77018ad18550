//! Callers that use workflows and crons.

use std::sync::Arc;

use semel_core::cron::Overlap;
use semel_core::enqueue::Offer;
use semel_core::ident::{CronName, WorkflowId};
use semel_core::sight::Queues;
use semel_core::workflow::{Cancelled, Created, Plan};

use super::client::request;
use super::dice::Dice;
use super::world::{Heard, World};
use crate::flows::{of_form, registration};

/// The crons of a run.
const CRONS: [&str; 2] = ["cron-0", "cron-1"];

/// Creates or cancels a workflow, registers, triggers or deletes a cron.
pub async fn ask(world: &Arc<World>, dice: &mut Dice) {
    match dice.below(16) {
        0..9 => create(world, dice).await,
        9..11 => cancel(world, dice).await,
        11..14 => register(world, dice).await,
        14 => {
            let name = dice_name(dice);
            world.ask(dice, move |engine| async move { engine.trigger_cron(name, Queues::All).await }).await;
        }
        _ => {
            let name = dice_name(dice);
            remove(world, dice, name).await;
        }
    }
}

fn dice_name(dice: &mut Dice) -> CronName {
    CronName::from_stored(dice.pick(&CRONS))
}

/// Deletes a cron.
async fn remove(world: &Arc<World>, dice: &mut Dice, name: CronName) {
    world.ask(dice, move |engine| async move { engine.remove_cron(name, Queues::All).await }).await;
}

/// Deletes all crons, so that only explicit requests create jobs.
pub async fn stop(world: &Arc<World>, dice: &mut Dice) {
    for name in CRONS {
        remove(world, dice, CronName::from_stored(name)).await;
    }
}

/// A random job without an id of its own, and the number that identifies it.
fn offer(world: &World, dice: &mut Dice) -> (Offer, u64) {
    let request = request(world, dice);
    (Offer { id: None, ..request.offer }, request.mark.n)
}

async fn send(world: &Arc<World>, dice: &mut Dice, plan: &Plan) -> Heard<Created> {
    let sent = plan.clone();
    world.ask(dice, move |engine| async move { engine.create_workflow(sent).await }).await
}

/// Creates a workflow; sent again under its own id, it must be answered with the first one.
async fn create(world: &Arc<World>, dice: &mut Dice) {
    let (form, size) = (dice.below(4) as usize, dice.between(1, 5));
    let offers: Vec<Offer> = (0..size).map(|_| offer(world, dice).0).collect();
    let mut plan = of_form(form, offers);
    let n = world.number();
    if dice.chance(512) {
        plan.id = Some(WorkflowId::new(crate::make::foreign_id(n as u32)));
        plan.digest = Some([n as u8; 32]);
    }
    let mut told = None;
    for _ in 0..3 {
        let heard = send(world, dice, &plan).await.answer();
        let checked = match (&told, &heard) {
            (_, None) | (None, Some(Created::Done(..))) => Ok(()),
            (_, Some(Created::Repeated(id, _))) if plan.id == Some(*id) => Ok(()),
            // The workflow may have been purged meanwhile.
            (Some(_), Some(Created::Done(..))) if world.plan.jumps > 0 => Ok(()),
            (_, Some(other)) => Err(format!("it was answered {other:?}")),
        };
        world.judge(|| format!("workflow {n}"), checked);
        if let Some(Created::Done(id, workflow) | Created::Repeated(id, workflow)) = heard {
            world.workflows.lock().unwrap().push(id);
            workflow.steps.iter().filter_map(|step| step.job()).for_each(|job| world.heard_of(job));
            told = Some(id);
        }
        if plan.id.is_none() || (told.is_some() && dice.chance(700)) {
            return;
        }
    }
}

async fn cancel(world: &Arc<World>, dice: &mut Dice) {
    let id = {
        let known = world.workflows.lock().unwrap();
        known.get(dice.below(known.len() as u64) as usize).copied()
    };
    let Some(id) = id else { return };
    let heard: Heard<Cancelled> =
        world.ask(dice, move |engine| async move { engine.cancel_workflow(id).await }).await;
    if let Some(Cancelled::Corrupt(corrupt)) = heard.answer() {
        world.judge(|| format!("workflow {id}"), Err(corrupt.to_string()));
    }
}

/// Uses a new request each time: none is sent twice, so that the first one is known.
async fn register(world: &Arc<World>, dice: &mut Dice) {
    let (offer, n) = offer(world, dice);
    let overlap = dice.pick(&Overlap::ALL);
    let wanted = registration("@every 1s", overlap, offer);
    if overlap == Overlap::Skip {
        world.store.witness.lock().unwrap().alone.insert(n);
    }
    let name = dice_name(dice);
    let heard = world.ask(dice, move |engine| async move { engine.register_cron(name, wanted).await }).await;
    if let Some(registered) = heard.answer() {
        let is_due = registered.cron.next_tick.is_some();
        let checked = if is_due { Ok(()) } else { Err("it never ticks".to_owned()) };
        world.judge(|| format!("cron {n}"), checked);
    }
}
