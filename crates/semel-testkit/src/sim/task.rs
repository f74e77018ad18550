//! Callers that ask for tasks, the same ones again and again, with and without an `Idempotency-Key`.

use std::sync::Arc;
use std::time::Duration;

use semel_core::enqueue::Offer;
use semel_core::enqueue::once::Once;
use semel_core::state::StateSet;
use semel_core::task::{TaskOutcome, TaskPlan};

use super::client::{Request, request};
use super::dice::Dice;
use super::world::World;
use crate::flows::of_form;
use crate::history::Mark;
use crate::history::requests::digest;
use crate::make::{self, Want, keyed};

/// The number of task identities in a run. No plain job has one of them.
const IDENTITIES: u64 = 3;

/// Asks for tasks, again when there was no answer, and cancels one now and then.
pub async fn asker(world: Arc<World>, mut dice: Dice) {
    for _ in 0..world.plan.requests {
        let (plan, request) = task(&world, &mut dice);
        let mut told = send(&world, &mut dice, &plan, &request).await;
        while told.is_none() && dice.chance(600) {
            told = send(&world, &mut dice, &plan, &request).await;
        }
        if dice.chance(300) {
            send(&world, &mut dice, &plan, &request).await;
        }
        if dice.chance(150)
            && let Some(TaskOutcome::Created { id, .. }) = told
        {
            world.ask(&mut dice, move |engine| async move { engine.cancel_workflow(id).await }).await;
        }
        if dice.chance(400) {
            tokio::time::sleep(Duration::from_millis(dice.between(1, 400))).await;
        }
    }
}

/// The seed decides how an identity is used: held for ever, answered with the existing task, or replaced.
fn identity(world: &World, number: u64) -> (Want, bool) {
    let name = format!("task {number}");
    match Dice::of(world.seed, 400 + number).below(4) {
        0 => (keyed(&name).on_conflict("ignore"), false),
        1 => (keyed(&name).on_conflict("replace"), false),
        2 => {
            (keyed(&name).states(StateSet::ALL).policy(|spec| spec.disclose = Some("never".to_owned())), true)
        }
        _ => (keyed(&name).states(StateSet::ALL), true),
    }
}

/// A random task to ask for.
fn task(world: &World, dice: &mut Dice) -> (TaskPlan, Request) {
    let number = dice.below(IDENTITIES);
    let (want, is_strict) = identity(world, number);
    let mark = Mark { n: world.number(), inspect: !dice.chance(60) };
    let context = if dice.chance(800) { "[{\"a\":1}]" } else { "[{\"a\":2}]" };
    let want = want.of_type("task.run").args(context).body(|body| body.meta = mark.write().into());
    let mut offer = Offer { inspect: mark.inspect, ..want.offer() };
    let steps: Vec<Offer> =
        (0..dice.between(1, 4)).map(|_| Offer { id: None, ..request(world, dice).offer }).collect();
    let steps = of_form(dice.below(4) as usize, steps);
    let mut witness = world.store.witness.lock().unwrap();
    if dice.chance(400) {
        let once = Once { key: make::key(&format!("request {}", mark.n)), digest: digest(mark.n) };
        offer.once = Some(once);
        witness.requests.ask(mark.n, &once);
    }
    let strict = offer.unique.as_ref().map(|identity| identity.key).filter(|_| is_strict);
    witness.tasks.ask(mark.n, steps.steps.len(), strict);
    drop(witness);
    (TaskPlan { offer: offer.clone(), steps }, Request::of(offer, mark))
}

/// Asks for the task, and judges the answer.
async fn send(
    world: &Arc<World>,
    dice: &mut Dice,
    plan: &TaskPlan,
    request: &Request,
) -> Option<TaskOutcome> {
    let from = world.store.seq();
    let sent = plan.clone();
    let heard = world.ask(dice, move |engine| async move { engine.create_task(sent, "sim").await }).await;
    let told = heard.answer()?;
    let checked = match &told {
        TaskOutcome::Created { id, outcome, workflow } => {
            world.take_outcome(request, outcome, from);
            let is_right =
                outcome.inserted() == Some(id.as_job()) && workflow.steps.len() == plan.steps.steps.len();
            world.workflows.lock().unwrap().push(*id);
            workflow.steps.iter().filter_map(|step| step.job()).for_each(|job| world.heard_of(job));
            if is_right { Ok(()) } else { Err(format!("it was answered {told:?}")) }
        }
        TaskOutcome::Decided(outcome) => {
            world.take_outcome(request, outcome, from);
            if outcome.is_inserted() { Err("it was created without its steps".to_owned()) } else { Ok(()) }
        }
        TaskOutcome::Unfit(_) | TaskOutcome::Corrupt(_) => Err(format!("it was answered {told:?}")),
    };
    world.judge(|| format!("task {}", request.mark.n), checked);
    Some(told)
}
