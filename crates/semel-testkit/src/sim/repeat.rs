//! Callers that send a request again under its `Idempotency-Key`: because they got no answer, because they
//! are not sure, or twice at once; and callers that reuse a key for another request.

use std::sync::Arc;
use std::time::Duration;

use semel_core::enqueue::Outcome;
use semel_core::enqueue::once::Once;
use semel_core::unique::UniqueKey;

use super::client::{Request, offer, request};
use super::dice::Dice;
use super::executor::Owner;
use super::world::World;
use crate::history::requests::{Kept, digest};
use crate::make;

/// Offers jobs under `Idempotency-Key`s, each several times.
pub async fn asker(world: Arc<World>, mut dice: Dice) {
    for _ in 0..world.plan.requests {
        let first = under(&world, &mut dice, None);
        if dice.chance(200) {
            let (other, mut chance, same) = (Arc::clone(&world), Dice::new(dice.draw()), first.clone());
            world.handle.spawn(Owner::World, async move {
                send(&other, &mut chance, &same).await;
            });
        }
        let mut told = send(&world, &mut dice, &first).await;
        while told.is_none() && dice.chance(700) {
            told = send(&world, &mut dice, &first).await;
        }
        if dice.chance(300) {
            tokio::time::sleep(Duration::from_millis(dice.between(1, 400))).await;
        }
        if dice.chance(400) {
            send(&world, &mut dice, &first).await;
        }
        if dice.chance(400) {
            let other = under(&world, &mut dice, first.offer.once);
            send(&world, &mut dice, &other).await;
            // The first request once more: the other must not have affected it.
            send(&world, &mut dice, &first).await;
        }
    }
}

/// A request under a key of its own, or under that of another request.
fn under(world: &World, dice: &mut Dice, key: Option<Once>) -> Request {
    let mut new = request(world, dice);
    let n = new.mark.n;
    let key: UniqueKey = key.map_or_else(|| make::key(&format!("request {n}")), |once| once.key);
    let once = Once { key, digest: digest(n) };
    new.offer.once = Some(once);
    world.store.witness.lock().unwrap().requests.ask(n, &once);
    new
}

/// What is now kept under a request's key.
fn kept(world: &World, once: &Once) -> Option<Kept> {
    let witness = world.store.witness.lock().unwrap();
    let (_, now) = witness.loads_since(0).last()?;
    witness.kept(&once.key, *now)
}

/// Sends the request, and judges the answer against what was kept before.
async fn send(world: &Arc<World>, dice: &mut Dice, request: &Request) -> Option<Outcome> {
    let once = request.offer.once?;
    let before = kept(world, &once);
    let told = offer(world, dice, request).await?;
    let checked = world.store.witness.lock().unwrap().check_kept(before, request.mark, &once, &told);
    world.judge(|| format!("request {} under its key", request.mark.n), checked);
    Some(told)
}
