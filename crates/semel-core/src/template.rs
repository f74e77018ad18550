//! What a template declares for all jobs of its type, and which identity a job finally gets (SEMANTICS 6). The
//! written form of templates is not known here.

use std::cmp::Ordering;

use crate::unique::{Dimension, Given, MissingKey, PolicySpec, Preset};

/// A policy as a template or a request asks for it: members, on top of a preset if one is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The preset.
    pub preset: Option<Preset>,
    /// Explicit members, which override the preset's.
    pub spec: PolicySpec,
}

impl Asked {
    /// A preset, and nothing else.
    pub fn preset(preset: Preset) -> Self {
        Self { preset: Some(preset), spec: PolicySpec::default() }
    }

    /// The policy that results; `None` where no policy is asked for.
    ///
    /// # Errors
    /// [`MissingKey`] when the preset requires a key and there is none.
    pub fn resolve(&self, given: &Given<'_>) -> Result<Option<PolicySpec>, MissingKey> {
        // The same key means the same work, whether it is given beside the policy or in it.
        let preset = if self.spec.key.is_some() { self.preset_with_key() } else { self.preset };
        let Some(preset) = preset else { return Ok(Some(self.spec.clone())) };
        let given = Given { key: self.spec.key.as_deref().or(given.key), ..*given };
        Ok(match preset.spec(&given)? {
            Some(base) => Some(self.spec.clone().over(base)),
            // The preset means no policy; a key turns the identity on again.
            None => self.spec.key.is_some().then(|| self.spec.clone()),
        })
    }

    /// Whether the preset is an identity strategy, whatever the members say.
    fn is_strategy(&self) -> bool {
        self.preset.is_some_and(|preset| Preset::STRATEGIES.contains(&preset))
    }

    /// The preset to use where there is a key: in place of an identity strategy it is `caller_provided`.
    fn preset_with_key(&self) -> Option<Preset> {
        if self.is_strategy() { Some(Preset::CallerProvided) } else { self.preset }
    }

    /// Whether the version still counts when a key replaces the dimensions: only for an identity strategy whose
    /// author lists the version explicitly.
    fn keeps_version(&self) -> bool {
        let listed = self.spec.keys.iter().flatten();
        self.is_strategy() && listed.into_iter().any(|key| key == Dimension::Version.name())
    }

    /// The key, if the policy says nothing else.
    fn sole_key(&self) -> Option<&str> {
        let key = self.spec.key.as_deref()?;
        let of_key = PolicySpec { key: Some(key.to_owned()), ..PolicySpec::default() };
        (self.preset.is_none() && self.spec == of_key).then_some(key)
    }
}

/// Why a job has its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Basis {
    /// The request has a key of its own.
    RequestKey,
    /// The request has a policy.
    RequestPolicy,
    /// The job's template declares a policy.
    Template,
    /// The job's template declares none, so `strict` applies.
    TemplateDefault,
    /// The request asks for no identity and the job has no template: it has none.
    Nobody,
}

/// The identity a job gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// The policy; `None` when the job has no identity.
    pub spec: Option<PolicySpec>,
    /// What decided it.
    pub basis: Basis,
}

/// What a request and a template say about a job's identity.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said<'a> {
    /// The policy of the request.
    pub request: Option<&'a Asked>,
    /// The request's own key, which is not part of a policy.
    pub key: Option<&'a str>,
    /// `Some` if the job has a template: the policy that the template declares, if any.
    pub template: Option<Option<&'a Asked>>,
}

/// Decides which identity a job gets.
///
/// The order is: the request's key, the request's policy, the template's policy, `strict` for a template that
/// declares none. A job without a template has no identity unless it asks for one.
///
/// A key in the request replaces what the policy makes its key of, and leaves the rest of the policy as it is. In
/// place of an identity strategy it means `caller_provided`; without policy and template, `skip` with that key. A
/// request's policy that is only a key counts as such a key where there is a template, because it would otherwise
/// take away the template's hold.
///
/// # Errors
/// [`MissingKey`] when what applies requires a key and the request has none.
pub fn effective(said: Said<'_>, given: &Given<'_>) -> Result<Effective, MissingKey> {
    let sole_key =
        said.request.and_then(Asked::sole_key).filter(|_| said.key.is_none() && said.template.is_some());
    let said = match sole_key {
        Some(key) => Said { request: None, key: Some(key), ..said },
        None => said,
    };
    let declared = said.template.flatten();
    let given = Given { key: said.key, ..*given };
    if let Some(key) = said.key {
        let asked = match (said.request.or(declared), said.template) {
            (Some(asked), _) => Asked { preset: asked.preset_with_key(), spec: asked.spec.clone() },
            (None, Some(_)) => Asked::preset(Preset::CallerProvided),
            (None, None) => Asked::preset(Preset::Skip),
        };
        let own = PolicySpec {
            key: Some(key.to_owned()),
            with_version: given.has_version && asked.keeps_version(),
            ..PolicySpec::default()
        };
        let spec = Some(own.over(asked.resolve(&given)?.unwrap_or_default()));
        return Ok(Effective { spec, basis: Basis::RequestKey });
    }
    let (asked, basis) = match (said.request, said.template) {
        (Some(asked), _) => (asked.clone(), Basis::RequestPolicy),
        (None, Some(Some(declared))) => (declared.clone(), Basis::Template),
        (None, Some(None)) => (Asked::preset(Preset::Strict), Basis::TemplateDefault),
        (None, None) => return Ok(Effective { spec: None, basis: Basis::Nobody }),
    };
    Ok(Effective { spec: asked.resolve(&given)?, basis })
}

/// Which of two versions of a template is the newer.
///
/// Parts between dots are compared in order: numbers as numbers, also next to letters (`v9`, `rc10`), all
/// else by its characters. If all parts that both have agree, the version with more parts is newer. Only
/// identical texts are equal, because a version is a part of what makes jobs the same, byte for byte.
pub fn compare_versions(left: &str, right: &str) -> Ordering {
    let (mut parts, mut others) = (left.split('.'), right.split('.'));
    loop {
        let order = match (parts.next(), others.next()) {
            (Some(one), Some(other)) => compare_parts(one, other),
            (None, None) => return left.cmp(right),
            (one, other) => return one.is_some().cmp(&other.is_some()),
        };
        if order.is_ne() {
            return order;
        }
    }
}

/// Compares runs of digits and of other characters. A number is newer than letters, and `0` than `0-rc1`, which
/// leads to it.
fn compare_parts(left: &str, right: &str) -> Ordering {
    let (mut rest, mut others) = (left, right);
    loop {
        let (run, its);
        (run, rest) = first_run(rest);
        (its, others) = first_run(others);
        let order = match (run.is_empty(), its.is_empty()) {
            (true, true) => return Ordering::Equal,
            (true, false) => return if is_number(left) { Ordering::Greater } else { Ordering::Less },
            (false, true) => return if is_number(right) { Ordering::Less } else { Ordering::Greater },
            (false, false) => match (is_number(run), is_number(its)) {
                (true, true) => compare_numbers(run, its),
                (false, false) => run.cmp(its),
                (one, other) => one.cmp(&other),
            },
        };
        if order.is_ne() {
            return order;
        }
    }
}

/// Splits off the digits that a text begins with, or else everything before its first digit.
fn first_run(text: &str) -> (&str, &str) {
    let is_digits = text.starts_with(|first: char| first.is_ascii_digit());
    let end = text.find(|its: char| its.is_ascii_digit() != is_digits);
    text.split_at(end.unwrap_or(text.len()))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Compares numbers of any length: a version may exceed `u64`, as a date and time to the nanosecond does.
fn compare_numbers(left: &str, right: &str) -> Ordering {
    let (left, right) = (left.trim_start_matches('0'), right.trim_start_matches('0'));
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(preset: Option<Preset>, spec: PolicySpec) -> Asked {
        Asked { preset, spec }
    }

    fn named(keys: &str) -> PolicySpec {
        PolicySpec { keys: Some(vec![keys.to_owned()]), ..PolicySpec::default() }
    }

    /// Each row: the request's key, its policy, the template and what it declares; then what decides.
    #[test]
    fn the_request_goes_before_the_template_and_its_key_before_its_policy() {
        let strict = asked(Some(Preset::Strict), PolicySpec::default());
        let unique = asked(Some(Preset::AlwaysUnique), PolicySpec::default());
        let own = asked(None, named("queue"));
        let key = asked(None, PolicySpec { key: Some("k".to_owned()), ..PolicySpec::default() });
        let given = Given { has_version: true, ..Given::default() };
        let decide = |key, request, template| effective(Said { request, key, template }, &given).unwrap();
        let rows = [
            (decide(None, None, None), Basis::Nobody, false, false),
            (decide(None, None, Some(None)), Basis::TemplateDefault, true, false),
            (decide(None, None, Some(Some(&own))), Basis::Template, true, false),
            (decide(None, None, Some(Some(&unique))), Basis::Template, false, false),
            (decide(None, Some(&own), Some(Some(&unique))), Basis::RequestPolicy, true, false),
            (decide(None, Some(&unique), Some(Some(&strict))), Basis::RequestPolicy, false, false),
            (decide(None, Some(&strict), None), Basis::RequestPolicy, true, false),
            (decide(Some("k"), None, None), Basis::RequestKey, true, true),
            (decide(Some("k"), None, Some(None)), Basis::RequestKey, true, true),
            (decide(Some("k"), None, Some(Some(&strict))), Basis::RequestKey, true, true),
            (decide(Some("k"), None, Some(Some(&unique))), Basis::RequestKey, true, true),
            (decide(Some("k"), Some(&own), Some(Some(&unique))), Basis::RequestKey, true, true),
            (decide(None, Some(&key), Some(Some(&strict))), Basis::RequestKey, true, true),
            (decide(None, Some(&key), Some(None)), Basis::RequestKey, true, true),
            (decide(None, Some(&key), None), Basis::RequestPolicy, true, true),
        ];
        for (at, (decided, basis, has_policy, is_by_key)) in rows.into_iter().enumerate() {
            assert_eq!(decided.basis, basis, "row {at}");
            assert_eq!(decided.spec.is_some(), has_policy, "row {at}");
            let has_key = decided.spec.as_ref().is_some_and(|spec| spec.key.as_deref() == Some("k"));
            assert_eq!(has_key, is_by_key, "row {at}");
            assert!(decided.spec.is_none_or(|spec| spec.key.is_none() || spec.keys.is_none()), "row {at}");
        }
    }

    /// A key means the same over each of the strategies.
    #[test]
    fn a_key_over_any_strategy_is_caller_provided() {
        let given = Given { key: Some("k"), has_version: true, visibility_ms: 0 };
        let expected = Preset::CallerProvided.spec(&given).unwrap();
        for strategy in Preset::STRATEGIES {
            let declared = Asked::preset(strategy);
            let said = Said { key: Some("k"), template: Some(Some(&declared)), ..Said::default() };
            assert_eq!(effective(said, &given).unwrap().spec, expected, "{strategy}");
        }
        let declared = Asked::preset(Preset::CallerProvided);
        let said = Said { template: Some(Some(&declared)), ..Said::default() };
        assert_eq!(effective(said, &Given::default()), Err(MissingKey(Preset::CallerProvided)));
    }

    /// A key in the policy means the same as one beside it.
    #[test]
    fn a_strategy_with_a_key_of_its_own_is_caller_provided() {
        let given = Given { has_version: true, ..Given::default() };
        let keyed = PolicySpec { key: Some("k".to_owned()), ..PolicySpec::default() };
        let strict = Asked::preset(Preset::Strict);
        let beside = Said { key: Some("k"), template: Some(Some(&strict)), ..Said::default() };
        let beside = effective(beside, &given).unwrap().spec;
        for strategy in Preset::STRATEGIES {
            let request = asked(Some(strategy), keyed.clone());
            let said = Said { request: Some(&request), template: Some(Some(&strict)), ..Said::default() };
            assert_eq!(effective(said, &given).unwrap().spec, beside, "{strategy}");
        }
    }

    /// Whatever else a strategy's author sets stays: the request's key replaces only what makes the key.
    #[test]
    fn a_key_over_a_strategy_with_members_keeps_the_members() {
        let given = Given { has_version: true, ..Given::default() };
        let own = PolicySpec { disclose: Some("never".to_owned()), ..PolicySpec::default() };
        for strategy in Preset::STRATEGIES {
            let declared = asked(Some(strategy), own.clone());
            let said = Said { key: Some("k"), template: Some(Some(&declared)), ..Said::default() };
            let spec = effective(said, &given).unwrap().spec.unwrap();
            let provided = Given { key: Some("k"), ..given };
            let provided = Preset::CallerProvided.spec(&provided).unwrap().unwrap();
            assert_eq!(spec, own.clone().over(provided), "{strategy}");
        }
    }

    /// A template's own hold stays: the request's key replaces only what the key is made of.
    #[test]
    fn a_key_over_a_policy_of_its_own_keeps_the_hold() {
        let declared = asked(None, PolicySpec { period: Some("P1D".to_owned()), ..named("args") });
        let said = Said { key: Some("k"), template: Some(Some(&declared)), ..Said::default() };
        let spec = effective(said, &Given::default()).unwrap().spec.unwrap();
        assert_eq!((spec.key.as_deref(), spec.period.as_deref()), (Some("k"), Some("P1D")));
    }

    /// As under `caller_provided`, which takes the strategy's place; a strategy whose author leaves the version out
    /// stays so.
    #[test]
    fn a_key_over_a_strategy_that_lists_the_version_counts_it() {
        let members = |keys: &[&str]| PolicySpec {
            keys: Some(keys.iter().map(|key| (*key).to_owned()).collect()),
            ..PolicySpec::default()
        };
        let decide = |preset, keys: &[&str], has_version| {
            let declared = asked(preset, members(keys));
            let said = Said { key: Some("k"), template: Some(Some(&declared)), ..Said::default() };
            let given = Given { has_version, ..Given::default() };
            effective(said, &given).unwrap().spec.unwrap()
        };
        let all = &["type", "version", "args"];
        for strategy in Preset::STRATEGIES {
            let spec = decide(Some(strategy), all, true);
            assert_eq!((spec.with_version, spec.keys), (true, None), "{strategy}");
            assert!(!decide(Some(strategy), &["type", "args"], true).with_version, "{strategy}");
            // Where there is no version, none can count.
            assert!(!decide(Some(strategy), all, false).with_version, "{strategy}");
        }
        assert!(!decide(None, all, true).with_version);
    }

    #[test]
    fn versions_are_compared_number_by_number() {
        for (older, newer) in [
            ("1.9.0", "1.10.0"),
            ("1", "1.0"),
            ("1.0.0", "2"),
            ("1.beta", "1.0"),
            ("a", "b"),
            ("01.0", "1.0"),
        ] {
            assert_eq!(compare_versions(older, newer), Ordering::Less, "{older} {newer}");
            assert_eq!(compare_versions(newer, older), Ordering::Greater, "{older} {newer}");
        }
        assert_eq!(compare_versions("1.0.0", "1.0.0"), Ordering::Equal);
    }

    /// The oldest first. Every pair is compared, so that the order has no cycles.
    #[test]
    fn numbers_in_versions_count_as_numbers_wherever_they_stand() {
        let versions = [
            "",
            "a",
            "rc",
            "rc1",
            "v9",
            "v09.1",
            "v10",
            "v10-a",
            "1.beta",
            "1.0-rc9",
            "1.0-rc9a",
            "1.0-rc10",
            "1.0",
            "1.00",
            "1.0.0",
            "1.9",
            "1.10-rc1",
            "1.10",
            "2",
            "2024-01-02",
            "2024-01-10",
            "18446744073709551615",
            "18446744073709551616",
            "018446744073709551617",
            "99999999999999999999",
            "100000000000000000000",
        ];
        for (at, older) in versions.iter().enumerate() {
            assert_eq!(compare_versions(older, older), Ordering::Equal, "{older}");
            for newer in &versions[at + 1..] {
                assert_eq!(compare_versions(older, newer), Ordering::Less, "{older} {newer}");
                assert_eq!(compare_versions(newer, older), Ordering::Greater, "{older} {newer}");
            }
        }
    }
}
