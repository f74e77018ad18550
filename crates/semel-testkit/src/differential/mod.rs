//! Random programs, run on a store and on the memory model side by side: equal answers at every step, equal
//! dumps after it, and those invariants of docs/ARCHITECTURE.md that a dump shows. A failing program is
//! shrunk and printed with its seed.

mod command;
mod flow;
mod pair;
mod plain;
mod solo;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use command::{Command, Plan, program};
pub use flow::Flow;
pub use pair::Pair;
pub use solo::Solo;

pub(crate) use command::{KEYS, POLICIES, Random, policy};

use crate::fixture::Fixture;
use crate::patience::rounds;

/// The number of programs in a run: `quick`, or as many as the environment's `SEMEL_CASES` says.
///
/// # Panics
/// When that is not a number, or is zero.
pub fn cases(quick: u64) -> u64 {
    rounds("SEMEL_CASES", quick)
}

/// Runs the programs of seeds from `first_seed` on, on stores that `open` makes; `lasts` says whether these
/// can be reopened.
///
/// # Panics
/// With the seed and the shrunk program, when a store and the model differ or an invariant is broken.
pub fn compare(first_seed: u64, programs: u64, lasts: bool, open: impl Fn() -> Fixture) {
    // With timers: readers of the log wait for events held back for other transactions.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let run = |program: &[Command]| -> Result<(), String> {
        let played =
            catch_unwind(AssertUnwindSafe(|| runtime.block_on(Pair::new(open(), lasts).play(program))));
        match played {
            Ok(outcome) => outcome,
            Err(panic) => Err(panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_else(|| "a panic without words".to_owned())),
        }
    };
    for seed in first_seed..first_seed + programs {
        let program = command::program(seed);
        if let Err(first) = run(&program) {
            let shrunk = shrink(program, |program| run(program).is_err());
            // A failure that is not deterministic may not happen again.
            let why = run(&shrunk).err().unwrap_or(first);
            panic!("seed {seed}: {why}\nafter shrinking to {} commands:\n{shrunk:#?}", shrunk.len());
        }
    }
}

/// The shortest program found that still fails, by leaving out ever smaller pieces.
fn shrink(mut program: Vec<Command>, fails: impl Fn(&[Command]) -> bool) -> Vec<Command> {
    let mut piece = program.len() / 2;
    while piece > 0 {
        let mut from = 0;
        while from < program.len() {
            let mut shorter = program.clone();
            shorter.drain(from..(from + piece).min(program.len()));
            if fails(&shorter) {
                program = shorter;
            } else {
                from += piece;
            }
        }
        piece /= 2;
    }
    program
}
