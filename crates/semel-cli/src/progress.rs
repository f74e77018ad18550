//! Progress reports for work that may take long.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;

use crate::print::remark;

/// How often progress is reported.
pub const SAY_EVERY: Duration = Duration::from_secs(2);

/// Waits for work, and reports its progress every two seconds, also with `--json`: otherwise nothing tells a
/// long silence from an end.
pub async fn telling<T>(work: impl Future<Output = T>, what: impl Fn() -> String) -> T {
    telling_to(work, what, say).await
}

async fn telling_to<T>(
    work: impl Future<Output = T>,
    what: impl Fn() -> String,
    mut say: impl FnMut(&str),
) -> T {
    let (mut work, began) = (pin!(work), Instant::now());
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(SAY_EVERY) => say(&format!("{} ... {} s", what(), began.elapsed().as_secs())),
        }
    }
}

/// Writes to the log if the process has one, otherwise to stderr.
fn say(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::info!("{text}");
    } else {
        remark(format_args!("{text}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_is_told_of_every_two_seconds_and_what_does_not_is_not() {
        let mut said = Vec::new();
        let work = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            7
        };
        let done = telling_to(work, || "copying".to_owned(), |text| said.push(text.to_owned())).await;
        assert_eq!((done, &*said.join(", ")), (7, "copying ... 2 s, copying ... 4 s"));
        telling_to(async {}, || "copying".to_owned(), |text| panic!("{text}")).await;
    }
}
