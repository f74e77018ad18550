//! Limits on starting jobs: what callers ask for, and the check that no limit starves its waiting jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::job::Head;
use semel_core::limit::{Lane, Limit, Rate};
use tokio::time::Instant;

use super::dice::Dice;
use super::world::World;
use crate::history::Checked;

/// The limits of a run.
const LIMITS: u64 = 2;
/// How long, once the troubles are over, a limit may be open before it lets a waiting job start. A server may
/// believe for up to a second that it is closed, and calls are sometimes slow.
const PATIENCE: Duration = Duration::from_secs(15);

/// The limit that this request asks for, if any. What a limit counts depends on the seed; how much it lets
/// through changes from request to request.
pub fn drawn(world: &World, dice: &mut Dice, request: u64) -> Option<Limit> {
    if world.plan.limits == 0 || !dice.chance(400) {
        return None;
    }
    let which = dice.below(LIMITS);
    let mut shape = Dice::of(world.seed, 300 + which);
    let kind = shape.below(4);
    let count = shape.between(1, 2) as u32;
    let period_us = shape.pick(&[20_000, 300_000, 2_000_000]);
    let count = count + u32::from(dice.chance(300));
    let limit = Limit {
        key: format!("limit {which}").into(),
        concurrency: (kind < 3).then_some(count),
        rate: (kind > 1).then_some(Rate { count, period_us }),
    };
    world.store.witness.lock().unwrap().lanes.ask(request, &limit);
    Some(limit)
}

/// Limits that have been open for a while, with a job that waits for nothing else.
#[derive(Default)]
pub struct Waiting(BTreeMap<Lane, Seen>);

struct Seen {
    first: Head,
    starts: usize,
    since: Instant,
}

impl Waiting {
    /// Checks the limits now. Call it only when the troubles are over.
    pub async fn look(&mut self, world: &World) -> Checked {
        let Ok(now) = world.store.now().await else { return Ok(()) };
        let open = world.store.witness.lock().unwrap().open_lanes(now);
        self.0.retain(|lane, _| open.iter().any(|(known, ..)| known == lane));
        for (lane, first, starts) in open {
            let seen = self.0.entry(lane);
            let seen = seen.or_insert_with(|| Seen { first, starts, since: Instant::now() });
            if seen.starts != starts {
                (seen.starts, seen.since) = (starts, Instant::now());
            } else if seen.since.elapsed() > PATIENCE {
                return Err(format!("a limit is open and starves {:?}", seen.first));
            }
        }
        Ok(())
    }
}
