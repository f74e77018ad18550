//! How long a key holds and what happens to a duplicate, as far as these can contradict each other. The rules
//! are the server's; a test in `semel` keeps both the same.

use syn::{Error, LitStr, Result};

/// The job states: first the live ones, then those that end a job.
pub const STATES: [&str; 8] =
    ["scheduled", "available", "pending", "active", "retryable", "completed", "cancelled", "discarded"];
/// How many of the states are live.
pub const LIVE: usize = 5;

/// The policy as written, so that an error can point to its place.
#[derive(Default)]
pub struct Hold {
    /// `args`, `strict`, `content`, or nothing.
    pub identity: String,
    /// Which states block.
    pub states: Option<Vec<LitStr>>,
    /// How long the key holds.
    pub period: Option<LitStr>,
    /// What the period is counted from.
    pub period_from: Option<LitStr>,
    /// What happens to a duplicate.
    pub on_conflict: Option<LitStr>,
    /// Whether a duplicate is shown the existing job.
    pub disclose: Option<LitStr>,
}

impl Hold {
    /// Refuses contradictions that would otherwise be refused at the first enqueue.
    pub fn check(&self) -> Result<()> {
        let (is_strict, is_content) = (self.identity == "strict", self.identity == "content");
        let conflict = match &self.on_conflict {
            Some(said) => said.value(),
            None if is_content => "ignore".to_owned(),
            None => "reject".to_owned(),
        };
        let has_period = self.period.is_some() || is_content;
        let is_hidden = self.disclose.as_ref().map_or(is_strict, |said| said.value() == "never");
        let from_end = self.period_from.as_ref().filter(|said| said.value() == "finished");
        if from_end.is_some() && !STATES.iter().skip(LIVE).any(|state| self.blocks(state)) {
            return refuse(
                from_end,
                "the period counts from the end of a job, but no end state blocks; add one, like live_and(\"completed\")",
            );
        }
        let on_conflict = self.on_conflict.as_ref();
        match conflict.as_str() {
            "replace" | "replace_except_schedule" if self.blocks("cancelled") => {
                let cancelled = self.states.iter().flatten().find(|name| name.value() == "cancelled");
                refuse(
                    cancelled.or(on_conflict),
                    "a replaced job becomes cancelled, and cancelled jobs block here; name states(...) without \"cancelled\"",
                )
            }
            "follow_up" if has_period => refuse(
                self.period.as_ref().or(on_conflict),
                "follow_up holds the key until the run has ended, so it cannot have a period (`content` has one); leave one of them out",
            ),
            "follow_up" if !STATES.iter().take(LIVE).all(|state| self.blocks(state)) => refuse(
                on_conflict,
                "follow_up needs scheduled, available, pending, active and retryable to block; leave states(...) out",
            ),
            "ignore" | "follow_up" if is_hidden => refuse(
                self.disclose.as_ref().or(on_conflict),
                "ignore and follow_up answer with the existing job, which disclose = \"never\" (implied by `strict`) forbids; write on_conflict = \"reject\" or disclose = \"always\"",
            ),
            _ => Ok(()),
        }
    }

    /// Whether jobs in this state block.
    fn blocks(&self, state: &str) -> bool {
        match &self.states {
            Some(names) => names.iter().any(|name| name.value() == state),
            None => self.identity == "strict" || STATES.iter().take(LIVE).any(|live| *live == state),
        }
    }
}

fn refuse(at: Option<&LitStr>, advice: &str) -> Result<()> {
    Err(Error::new_spanned(at, advice))
}
