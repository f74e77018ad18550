//! SIGKILL of a server at random points under load: whatever it acknowledged is stored, nothing is stored
//! twice, no key is stuck. `SEMEL_CRASH_ROUNDS` sets the number of rounds.

use std::sync::Arc;
use std::time::Duration;

use semel_redis::{Address, Redis};
use semel_store::Backend;
use semel_store::clock::{Clock, ManualClock, SystemClock};
use semel_testkit::crash::{Account, Seen, called, kill_after, victim};
use semel_testkit::patience::rounds;
use semel_testkit::runtime::wait_for;

use crate::place::{Passing, Place};

/// The most answers a victim gives before it is killed.
const LINES_MAX: usize = 500;
/// Rounds in one store before a new one is begun. Each takes an hour of store time: after a day the first
/// workflows would be forgotten.
const ROUNDS_PER_STORE: u64 = 10;

/// The process that is killed; run as a test of its own, it does a little work and exits normally.
#[test]
fn the_victim() {
    let place = Passing(Place::new());
    let (address, round, turns) = match called() {
        Some((round, address)) => (Address::parse(&address).unwrap(), round, u64::MAX / 8),
        None => (place.0.address().clone(), 0, 20),
    };
    wait_for(async move { victim(Arc::new(Redis::open(&address).await.unwrap()), round, turns).await });
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_doubled_when_a_server_is_killed() {
    killed(Place::new);
}

/// What the victim was about to do in several partitions is finished by others, or was never begun.
#[test]
fn nothing_is_lost_doubled_or_done_by_half_when_a_server_on_partitions_is_killed() {
    killed(|| Place::divided(16));
}

#[allow(clippy::print_stdout, reason = "whoever asks for many rounds wants to know what they were")]
fn killed(new: fn() -> Place) {
    let mut random = 0x5eed_u64;
    let (mut told, mut seen) = ((0, 0), Seen::default());
    let mut place = Passing(new());
    let rounds = rounds("SEMEL_CRASH_ROUNDS", 5_u64);
    for round in 0..rounds {
        if round > 0 && round % ROUNDS_PER_STORE == 0 {
            place = Passing(new());
        }
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let lines = 1 + (random >> 33) as usize % LINES_MAX;
        let account = Account::read(&kill_after(&place.0.address().to_string(), round, lines));
        told = (told.0 + account.created.len(), told.1 + account.acked.len());
        // Hours later, when the victim's leases have run out. The next victim's time goes on from there.
        let hours = Duration::from_secs(3_600 * (1 + round % ROUNDS_PER_STORE));
        let clock = ManualClock::at(SystemClock.now().saturating_add(hours));
        let store = place.0.open_with(&clock);
        seen += wait_for(async move { account.judge(store as Arc<dyn Backend>, round).await });
    }
    println!("{rounds} kills; {} jobs created and {} ends acknowledged; {seen:?}", told.0, told.1);
    assert!(told.0 as u64 >= rounds && told.1 > 0, "{told:?}");
    assert!(seen.decisions > 20 && seen.answers > 10, "{seen:?} is too little to prove anything");
}
