//! Retries while a server is away: for verbs that go on until they are told to stop.

use std::time::Duration;

use crate::failure::Failure;
use crate::print::remark;

/// How long to wait before a retry: at first, and at most.
const WAIT_FIRST: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(15);

/// The state of the retries against one server; by default it has not been asked yet.
#[derive(Default)]
pub struct Patience {
    /// Whether the server has ever answered. One that has not is not retried: its name may be wrong.
    has_answered: bool,
    /// The next wait, while the server is away.
    wait: Option<Duration>,
}

impl Patience {
    /// Asks until there is an answer, with growing waits between the tries. Reports once that the server is
    /// away.
    ///
    /// # Errors
    /// A failure that is not transient, and any failure before the first answer.
    pub async fn ask<T>(&mut self, ask: impl AsyncFn() -> Result<T, Failure>) -> Result<T, Failure> {
        loop {
            match ask().await {
                Ok(answer) => {
                    (self.has_answered, self.wait) = (true, None);
                    return Ok(answer);
                }
                Err(failure) if failure.passes && self.has_answered => {
                    let wait = self.wait.unwrap_or_else(|| {
                        // Also with `--json`: otherwise nothing tells a long silence from an end.
                        remark(format_args!("{}; retrying until it answers\n", failure.what));
                        WAIT_FIRST
                    });
                    self.wait = Some((2 * wait).min(WAIT_MAX));
                    tokio::time::sleep(wait).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;
    use crate::failure::Exit;

    fn away() -> Failure {
        Failure { passes: true, ..Failure::new(Exit::Unreachable, "away") }
    }

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_a_bound_and_begin_anew_after_an_answer() {
        let mut patience = Patience::default();
        assert!(patience.ask(async || Err::<(), _>(away())).await.is_err(), "never there");
        patience.ask(async || Ok(())).await.unwrap();
        let took = async |patience: &mut Patience, failures: usize| {
            let (began, tries) = (Instant::now(), Cell::new(0));
            let ask = async || {
                tries.set(tries.get() + 1);
                if tries.get() > failures { Ok(()) } else { Err(away()) }
            };
            patience.ask(ask).await.unwrap();
            began.elapsed().as_millis()
        };
        assert_eq!(took(&mut patience, 3).await, 500 + 1_000 + 2_000);
        assert_eq!(took(&mut patience, 7).await, 500 + 1_000 + 2_000 + 4_000 + 8_000 + 15_000 + 15_000);
        let refused = patience.ask(async || Err::<(), _>(Failure::failed("no"))).await;
        assert_eq!(refused.unwrap_err().what, "no");
    }
}
