//! What a policy does with the jobs that actually arrive, judged from a bounded sample of one type's jobs.
//! Only digests of members are kept, no values. Nothing is refused because of it.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use super::advice::advice;
use super::choice::Dimension;
use super::key::{UniqueKey, never_counts};
use super::policy::{MetaPart, UniquePolicy};
use crate::canon::{Json, digest, nfc, push_token};
use crate::draft::Map;
use crate::sensitive::is_within;

mod finding;

pub use self::finding::Finding;

/// Most jobs of a type that are kept; the oldest are dropped first.
pub const SAMPLE_JOBS_MAX: usize = 128;
/// Most members of a type's jobs that are looked at: the first ones met.
pub const SAMPLE_MEMBERS_MAX: usize = 32;
/// Longest pointer of a member that is looked at, in bytes.
const POINTER_BYTES_MAX: usize = 256;
/// Fewest sampled jobs for a verdict on whether a policy ever matches.
const JOBS_MIN: usize = 20;
/// Share of distinct values from which a member counts as differing in nearly every job, in percent.
const DIFFERS_PERCENT: usize = 95;
/// Highest share of duplicates at which a policy counts as never matching, in percent.
const MATCHES_PERCENT: usize = 1;
/// Fewest suppressed duplicates that must differ in a member before it is reported.
const DIFFERING_MIN: usize = 5;

/// What became of an offered job, as far as its policy is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// No job blocked it.
    Nobody,
    /// It was turned away because of another job, and no other job does the work it asked for.
    Suppressed,
    /// Another job blocked it, but its args were not lost: it replaced that job, or became part of it.
    Absorbed,
}

/// An offered job as the sample records it.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The policy without the caller's own key, which differs from job to job.
    policy: UniquePolicy,
    key: UniqueKey,
    members: Vec<Seen>,
    /// Digest of what counts towards the key besides members.
    rest: u64,
}

#[derive(Clone, Debug)]
struct Seen {
    pointer: String,
    counts: bool,
    digest: u64,
}

impl Observed {
    /// Observes a job: the members of args if args are a single object, else the elements of args; and the
    /// members of meta. A value that is sensitive, or contains something sensitive, is not looked at.
    pub fn of(
        policy: &UniquePolicy,
        key: UniqueKey,
        queue: &str,
        args: &Json<'_>,
        meta: &Json<'_>,
        sensitive: &[String],
    ) -> Self {
        let mut observed = Self { policy: policy.without_key_text(), key, members: Vec::new(), rest: 0 };
        if policy.dimensions().contains(Dimension::Queue) {
            observed.rest = short(&Json::Text(queue.into()));
        }
        let counts_args = policy.dimensions().contains(Dimension::Args);
        let is_named = |name: &str| policy.args_keys().is_empty() || is_among(policy.args_keys(), name);
        if let Json::Array(items) = args {
            if let [Json::Object(members)] = items.as_slice() {
                for (name, value) in members {
                    observed.see("/args/0", name, counts_args && is_named(name), value, sensitive);
                }
            } else {
                for (at, item) in items.iter().enumerate() {
                    observed.see("/args", &at.to_string(), counts_args, item, sensitive);
                }
            }
        }
        if let Json::Object(members) = meta {
            let counts_meta = policy.dimensions().contains(Dimension::Meta);
            for (name, value) in members.iter().filter(|(name, _)| !never_counts(name)) {
                let counts = counts_meta
                    && match policy.meta_part() {
                        MetaPart::Only(names) => is_among(names, name),
                        MetaPart::Except(names) => !is_among(names, name),
                    };
                observed.see("/meta", name, counts, value, sensitive);
            }
        }
        observed
    }

    fn see(&mut self, base: &str, name: &str, counts: bool, value: &Json<'_>, sensitive: &[String]) {
        if self.members.len() >= SAMPLE_MEMBERS_MAX || base.len() + name.len() > POINTER_BYTES_MAX {
            return;
        }
        let mut pointer = format!("{base}/");
        push_token(&mut pointer, name);
        if sensitive.iter().any(|hidden| is_within(hidden, &pointer) || is_within(&pointer, hidden)) {
            return;
        }
        self.members.push(Seen { pointer, counts, digest: short(value) });
    }
}

fn is_among(names: &[String], name: &str) -> bool {
    let name = nfc(name);
    names.iter().any(|its| *its == name)
}

/// A short digest, enough to tell a value from a few hundred others.
fn short(value: &Json<'_>) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = digest(value);
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// A bounded sample of one type's jobs.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    policy: Option<UniquePolicy>,
    members: Vec<Member>,
    /// Oldest first.
    taken: VecDeque<Taken>,
}

#[derive(Clone, Debug)]
struct Member {
    pointer: String,
    counts: bool,
}

#[derive(Clone, Debug)]
struct Taken {
    key: UniqueKey,
    /// Digests of the members that the job has, by member number.
    digests: Vec<(u8, u64)>,
    rest: u64,
    met: Met,
}

impl Taken {
    fn digest(&self, member: usize) -> Option<u64> {
        self.digests.iter().find(|(at, _)| usize::from(*at) == member).map(|(_, digest)| *digest)
    }
}

impl Sample {
    /// Adds a job. A policy other than before restarts the sample.
    pub fn take(&mut self, observed: Observed, met: Met) {
        if self.policy.as_ref() != Some(&observed.policy) {
            *self = Self { policy: Some(observed.policy), ..Self::default() };
        }
        let mut digests = Vec::with_capacity(observed.members.len());
        for Seen { pointer, counts, digest } in observed.members {
            let known = self.members.iter().position(|member| member.pointer == pointer);
            let at = match known {
                Some(at) => at,
                None if self.members.len() < SAMPLE_MEMBERS_MAX => {
                    self.members.push(Member { pointer, counts });
                    self.members.len() - 1
                }
                None => continue,
            };
            if let Ok(at) = u8::try_from(at) {
                digests.push((at, digest));
            }
        }
        if self.taken.len() >= SAMPLE_JOBS_MAX {
            self.taken.pop_front();
        }
        self.taken.push_back(Taken { key: observed.key, digests, rest: observed.rest, met });
    }

    /// Number of jobs in the sample.
    pub fn jobs(&self) -> usize {
        self.taken.len()
    }

    /// Number of sampled jobs that were blocked by another.
    pub fn duplicates(&self) -> usize {
        self.taken.iter().filter(|taken| taken.met != Met::Nobody).count()
    }

    /// The findings about the policy.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings: Vec<Finding> = self.policy.iter().flat_map(advice).map(Finding::Open).collect();
        if self.taken.len() >= JOBS_MIN && self.duplicates() * 100 <= self.taken.len() * MATCHES_PERCENT {
            findings.extend((0..self.members.len()).filter_map(|at| self.never_matches(at)));
        }
        findings.extend(self.over_broad());
        findings
    }

    fn never_matches(&self, at: usize) -> Option<Finding> {
        let member = self.members.get(at).filter(|member| member.counts)?;
        let mut digests: Vec<u64> = self.taken.iter().filter_map(|taken| taken.digest(at)).collect();
        let of = digests.len();
        digests.sort_unstable();
        digests.dedup();
        let differing = digests.len();
        if of < JOBS_MIN || differing * 100 < of * DIFFERS_PERCENT {
            return None;
        }
        let others: Vec<usize> =
            (0..self.members.len()).filter(|other| *other != at && self.members[*other].counts).collect();
        let alike = || {
            let mut seen: Vec<(u64, Vec<Option<u64>>)> = self
                .taken
                .iter()
                .map(|taken| (taken.rest, others.iter().map(|other| taken.digest(*other)).collect()))
                .collect();
            let all = seen.len();
            seen.sort_unstable();
            seen.dedup();
            all - seen.len()
        };
        let alike_without = (!others.is_empty()).then(alike);
        Some(Finding::NeverMatches { pointer: member.pointer.clone(), differing, of, alike_without })
    }

    /// Compares each suppressed duplicate with the job that held its key: the last sampled one that was not
    /// suppressed, else the first one sampled.
    fn over_broad(&self) -> Vec<Finding> {
        let mut first: Map<UniqueKey, &Taken> = Map::default();
        let mut differing = vec![0_usize; self.members.len()];
        let mut of = 0_usize;
        for taken in &self.taken {
            match first.entry(taken.key) {
                Entry::Vacant(place) => {
                    place.insert(taken);
                }
                Entry::Occupied(mut place) => {
                    if taken.met == Met::Suppressed {
                        of += 1;
                        for (at, count) in differing.iter_mut().enumerate() {
                            *count += usize::from(taken.digest(at) != place.get().digest(at));
                        }
                    } else {
                        // The key was free, or this job has taken it over.
                        place.insert(taken);
                    }
                }
            }
        }
        let is_told = |(at, count): &(usize, &usize)| {
            let member = &self.members[*at];
            **count >= DIFFERING_MIN && !member.counts && member.pointer.starts_with("/args/")
        };
        let told = differing.iter().enumerate().filter(is_told);
        told.map(|(at, count)| Finding::OverBroad {
            pointer: self.members[at].pointer.clone(),
            differing: *count,
            of,
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::KeyInput;
    use super::super::advice::Advice;
    use super::super::spec::PolicySpec;
    use super::*;

    /// A policy applied to a type's jobs.
    struct Offered {
        policy: UniquePolicy,
        sample: Sample,
    }

    impl Offered {
        fn by(spec: &PolicySpec) -> Self {
            Self { policy: UniquePolicy::build(spec, "").unwrap(), sample: Sample::default() }
        }

        fn offer(&mut self, args: &str, sensitive: &[&str], met: Met) {
            let (tree, meta) = (Json::parse(args, "").unwrap(), Json::Object(Vec::new()));
            let input =
                KeyInput { job_type: "a.b", queue: "default", version: None, args: &tree, meta: &meta };
            let key = self.policy.key(&input).unwrap();
            let sensitive: Vec<String> = sensitive.iter().map(|text| (*text).to_owned()).collect();
            self.sample.take(Observed::of(&self.policy, key, "default", &tree, &meta, &sensitive), met);
        }
    }

    fn keys(names: &[&str]) -> PolicySpec {
        let texts = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        PolicySpec { keys: texts(&["type", "args"]), args_keys: texts(names), ..PolicySpec::default() }
    }

    fn all_args() -> PolicySpec {
        PolicySpec { args_keys: None, ..keys(&[]) }
    }

    /// With the time of sending in the args, each order comes three times and counts as three jobs.
    #[test]
    fn a_member_that_always_differs_is_named_with_its_rate() {
        let mut offered = Offered::by(&all_args());
        for number in 0..60 {
            let args = format!(r#"[{{"order":{},"sent_at":{number},"shop":"a"}}]"#, number / 3);
            offered.offer(&args, &[], Met::Nobody);
        }
        let expected = Finding::NeverMatches {
            pointer: "/args/0/sent_at".to_owned(),
            differing: 60,
            of: 60,
            alike_without: Some(40),
        };
        assert_eq!(offered.sample.findings(), std::slice::from_ref(&expected));
        assert!(
            expected.text().contains("/args/0/sent_at had 60 distinct values in 60 jobs"),
            "{}",
            expected.text()
        );
        assert_eq!((expected.name(), expected.rate()), ("never_matches", Some((60, 60))));
    }

    #[test]
    fn a_policy_that_matches_or_has_hardly_been_seen_is_left_alone() {
        let mut few = Offered::by(&all_args());
        (0..JOBS_MIN - 1).for_each(|number| few.offer(&format!("[{{\"n\":{number}}}]"), &[], Met::Nobody));
        assert_eq!(few.sample.findings(), []);
        few.offer("[{\"n\":-1}]", &[], Met::Nobody);
        assert_eq!(few.sample.findings().len(), 1, "one more is enough");
        // One duplicate in twenty, with the same args.
        let mut matching = Offered::by(&all_args());
        for number in 0..100 {
            matching.offer(&format!("[{{\"n\":{number}}}]"), &[], Met::Nobody);
            if number % 20 == 0 {
                matching.offer(&format!("[{{\"n\":{number}}}]"), &[], Met::Suppressed);
            }
        }
        assert_eq!(matching.sample.findings(), []);
        // A member that does not count may differ freely.
        let mut counted = Offered::by(&keys(&["user"]));
        for number in 0..100 {
            counted.offer(&format!("[{{\"user\":{},\"at\":{number}}}]", number % 50), &[], Met::Nobody);
        }
        assert_eq!(counted.sample.findings(), []);
    }

    #[test]
    fn what_duplicates_differ_in_is_named() {
        let mut offered = Offered::by(&keys(&["user"]));
        for number in 0..12 {
            let met = if number == 0 { Met::Nobody } else { Met::Suppressed };
            let amount = number % 2;
            offered.offer(&format!(r#"[{{"user":1,"amount":{amount},"shop":"a"}}]"#), &[], met);
        }
        let expected = Finding::OverBroad { pointer: "/args/0/amount".to_owned(), differing: 6, of: 11 };
        assert_eq!(offered.sample.findings(), std::slice::from_ref(&expected));
        assert!(expected.text().contains("6 of 11"), "{}", expected.text());
        // Newer args that replace the older ones are not lost.
        let mut replacing = Offered::by(&keys(&["user"]));
        for number in 0..12 {
            let met = if number == 0 { Met::Nobody } else { Met::Absorbed };
            replacing.offer(&format!(r#"[{{"user":1,"amount":{number}}}]"#), &[], met);
        }
        assert_eq!(replacing.sample.findings(), []);
    }

    #[test]
    fn four_duplicates_that_differ_say_nothing_and_five_do() {
        let mut offered = Offered::by(&keys(&["user"]));
        for number in 0..5 {
            let met = if number == 0 { Met::Nobody } else { Met::Suppressed };
            offered.offer(&format!(r#"[{{"user":1,"amount":{number}}}]"#), &[], met);
        }
        assert_eq!(offered.sample.findings(), []);
        offered.offer(r#"[{"user":1,"amount":5}]"#, &[], Met::Suppressed);
        assert_eq!(offered.sample.findings().len(), 1);
    }

    /// A hundred jobs with two members, both of which count.
    #[test]
    fn a_member_is_named_from_ninety_five_values_on_and_none_from_two_duplicates_on() {
        let named = |values: usize, duplicates: usize| {
            let mut offered = Offered::by(&all_args());
            let args = |number: usize| format!(r#"[{{"n":{number},"m":{}}}]"#, number.min(values - 1));
            (0..100 - duplicates).for_each(|number| offered.offer(&args(number), &[], Met::Nobody));
            (0..duplicates).for_each(|number| offered.offer(&args(number), &[], Met::Suppressed));
            offered.sample.findings().len()
        };
        assert_eq!([named(95, 0), named(94, 0)], [2, 1]);
        assert_eq!([named(100, 1), named(100, 2)], [2, 0]);
    }

    /// A caller's own key is independent of args, so they may differ.
    #[test]
    fn a_callers_key_over_other_args_is_over_broad() {
        let mut sample = Sample::default();
        for number in 0..10 {
            let spec = PolicySpec { key: Some("evt".to_owned()), ..PolicySpec::default() };
            let mut offered = Offered { policy: UniquePolicy::build(&spec, "").unwrap(), sample };
            let met = if number == 0 { Met::Nobody } else { Met::Suppressed };
            offered.offer(&format!("[{number}]"), &[], met);
            sample = offered.sample;
        }
        assert_eq!(
            sample.findings(),
            [Finding::OverBroad { pointer: "/args/0".to_owned(), differing: 9, of: 9 }]
        );
    }

    #[test]
    fn a_policy_that_is_open_under_retry_is_told_as_before() {
        let states = ["available", "active"].map(str::to_owned).to_vec();
        let mut offered = Offered::by(&PolicySpec { states: Some(states), ..all_args() });
        offered.offer("[1]", &[], Met::Nobody);
        assert_eq!(offered.sample.findings(), [Finding::Open(Advice::OpenUnderRetry)]);
    }

    #[test]
    fn what_is_sensitive_is_not_looked_at() {
        let mut offered = Offered::by(&all_args());
        for number in 0..60 {
            let args = format!(r#"[{{"n":1,"card":{{"number":{number}}},"x":{number}}}]"#);
            offered.offer(&args, &["/args/0/card/number", "/args/0/x"], Met::Nobody);
        }
        assert_eq!(offered.sample.findings(), []);
    }

    /// Whatever is sent: no more jobs, members or name length than the bounds, and no values.
    #[test]
    fn a_sample_is_bounded_and_keeps_no_values() {
        let mut offered = Offered::by(&all_args());
        for number in 0..1_000 {
            let members: Vec<String> =
                (0..100).map(|at| format!("\"m{}\":\"secret-{number}\"", at + number)).collect();
            let long = "n".repeat(1_000);
            offered.offer(&format!("[{{\"{long}\":1,{}}}]", members.join(",")), &[], Met::Nobody);
        }
        let sample = &offered.sample;
        assert_eq!((sample.jobs(), sample.members.len()), (SAMPLE_JOBS_MAX, SAMPLE_MEMBERS_MAX));
        assert!(sample.members.iter().all(|member| member.pointer.len() <= 2 * POINTER_BYTES_MAX));
        assert!(sample.taken.iter().all(|taken| taken.digests.len() <= SAMPLE_MEMBERS_MAX));
        assert!(!format!("{sample:?}").contains("secret"));
    }

    #[test]
    fn another_policy_begins_anew() {
        let mut offered = Offered::by(&all_args());
        (0..50).for_each(|number| offered.offer(&format!("[{{\"n\":{number}}}]"), &[], Met::Nobody));
        offered.policy = UniquePolicy::build(&keys(&["n"]), "").unwrap();
        offered.offer("[{\"n\":1}]", &[], Met::Nobody);
        assert_eq!((offered.sample.jobs(), offered.sample.findings()), (1, Vec::new()));
    }
}
