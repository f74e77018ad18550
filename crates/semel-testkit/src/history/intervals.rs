//! The check that relies on no store: it uses only the times of calls and returns, as callers saw them. Valid
//! for policies with all live states and no period; under others two jobs may rightly hold one key.

use std::collections::BTreeMap;

use semel_core::ident::JobId;

/// The time spans in which jobs certainly held their keys.
///
/// A span goes from the return of the call that created the job to the start of the first call that could
/// have ended it. Any increasing numbers serve as times, such as the positions of lines in a log.
#[derive(Clone, Debug, Default)]
pub struct Holds {
    created: BTreeMap<u64, Vec<(JobId, u64)>>,
    may_end: BTreeMap<JobId, u64>,
}

impl Holds {
    /// The call that created `job` with the key number `key` returned at `at`.
    pub fn created(&mut self, key: u64, job: JobId, at: u64) {
        self.created.entry(key).or_default().push((job, at));
    }

    /// At `at` a call began that could end `job`.
    pub fn may_end(&mut self, job: JobId, at: u64) {
        let end = self.may_end.entry(job).or_insert(at);
        *end = (*end).min(at);
    }

    /// Two jobs that certainly held one key at one time, if there are any. O(n log n).
    pub fn doubled(&self) -> Option<(JobId, JobId)> {
        for jobs in self.created.values() {
            let mut held: Vec<(u64, u64, JobId)> = jobs
                .iter()
                .map(|(job, at)| (*at, self.may_end.get(job).copied().unwrap_or(u64::MAX), *job))
                .filter(|(from, to, _)| from < to)
                .collect();
            held.sort_unstable();
            let mut longest: Option<(u64, JobId)> = None;
            for (from, to, job) in held {
                if let Some((until, other)) = longest
                    && from < until
                    && job != other
                {
                    return Some((other, job));
                }
                if longest.is_none_or(|(until, _)| until < to) {
                    longest = Some((to, job));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Holds;
    use crate::make::foreign_id;

    #[test]
    fn two_that_surely_held_one_key_at_one_time_are_found() {
        let (a, b, c) = (foreign_id(1), foreign_id(2), foreign_id(3));
        let mut holds = Holds::default();
        holds.created(1, a, 10);
        holds.may_end(a, 20);
        holds.created(1, b, 20);
        holds.created(2, c, 15);
        assert_eq!(holds.doubled(), None);
        // Its end was requested before its creation was answered: nothing is certain about it.
        holds.may_end(a, 5);
        assert_eq!(holds.doubled(), None);
        holds.created(1, c, 30);
        assert_eq!(holds.doubled(), Some((b, c)));
        holds.may_end(b, 29);
        assert_eq!(holds.doubled(), None);
    }
}
