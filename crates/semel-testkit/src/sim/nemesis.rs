//! Actors that break things: kills, pauses, clock jumps.

use std::sync::Arc;
use std::time::Duration;

use super::dice::Dice;
use super::executor::Owner;
use super::plan::LEASE;
use super::world::World;

/// Kills servers at any step and starts them again. Counting in steps gives every await its turn.
pub async fn crashes(world: Arc<World>, mut dice: Dice) {
    while !world.is_quiet() {
        world.handle.steps(dice.between(1, 600)).await;
        if world.is_quiet() {
            return;
        }
        let at = dice.below(world.plan.servers) as usize;
        world.crash(at);
        if dice.chance(512) {
            tokio::time::sleep(Duration::from_millis(dice.between(1, 800))).await;
        }
        if world.engine(at).is_none() {
            world.start(at);
        }
    }
}

/// Pauses servers and workers, often for longer than a lease.
pub async fn pauses(world: Arc<World>, mut dice: Dice) {
    let lease_ms = LEASE.as_millis() as u64;
    while !world.is_quiet() {
        tokio::time::sleep(Duration::from_millis(dice.between(20, 1_000))).await;
        let owner = if dice.chance(400) {
            Owner::Server(dice.below(world.plan.servers) as usize)
        } else {
            Owner::Worker(dice.below(world.plan.workers) as usize)
        };
        world.handle.freeze(owner);
        tokio::time::sleep(Duration::from_millis(dice.between(1, 3 * lease_ms))).await;
        world.handle.thaw(owner);
    }
}

/// Moves the store's clock: a little, by days, and backwards.
pub async fn jumps(world: Arc<World>, mut dice: Dice) {
    while !world.is_quiet() {
        tokio::time::sleep(Duration::from_millis(dice.between(50, 1_500))).await;
        let (second, day) = (1_000, 86_400_000);
        let by = match dice.below(8) {
            0..3 => dice.between(1, 500) as i64,
            3 => 30 * second,
            4 => day + second,
            5 => 181 * day,
            6 => -(dice.between(1, 2_000) as i64),
            _ => -day,
        };
        world.clock.jump(by);
    }
}
