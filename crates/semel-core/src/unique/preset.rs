//! Policies named by one word. This is the only place that defines what each word stands for: requests,
//! templates and the library all ask here.

use std::fmt;

use super::spec::PolicySpec;
use crate::lease::own_or;
use crate::limits::VISIBILITY_DEFAULT_MS;
use crate::state::State;

/// A named policy (SEMANTICS 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// The same work is never accepted again, whatever became of it: type, version and all args, all eight
    /// states, no period, `reject`, not disclosed.
    Strict,
    /// Like `strict`, but on type, version and the caller's own key, which is required.
    CallerProvided,
    /// No policy, though a key of the caller's own still makes one.
    AlwaysUnique,
    /// One logical job queued or executing: type, queue, args and all user meta, with `ignore` while the job
    /// is unfinished. The caller may set the period; otherwise it is as long as a lease on the job.
    Content,
    /// The caller's own key, which is required; the answer to a duplicate is the job that is queued or
    /// executing.
    Skip,
}

/// The parts of a job that a preset builds its policy from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given<'a> {
    /// The request's own key.
    pub key: Option<&'a str>,
    /// Whether the job has a template's version, which then counts.
    pub has_version: bool,
    /// How long a lease on the job lasts, in milliseconds; 0 when the job does not say.
    pub visibility_ms: u32,
}

/// The preset requires a key, and the request has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingKey(pub Preset);

impl Preset {
    /// Every preset.
    pub const ALL: [Self; 5] =
        [Self::Strict, Self::CallerProvided, Self::AlwaysUnique, Self::Content, Self::Skip];

    /// The identity strategies of tasks, which a template may name in any case.
    pub const STRATEGIES: [Self; 3] = [Self::Strict, Self::CallerProvided, Self::AlwaysUnique];

    /// The preset's word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::CallerProvided => "caller_provided",
            Self::AlwaysUnique => "always_unique",
            Self::Content => "content",
            Self::Skip => "skip",
        }
    }

    /// The preset with that word, case-sensitive.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// The identity strategy with that word, in any case, with or without its underscores.
    pub fn strategy(text: &str) -> Option<Self> {
        let letters = |text: &str| text.replace('_', "").to_ascii_lowercase();
        Self::STRATEGIES.into_iter().find(|preset| letters(preset.name()) == letters(text))
    }

    /// The policy it stands for; `None` for `always_unique`. Only the presets that require a key look at it.
    ///
    /// # Errors
    /// [`MissingKey`] when the preset requires a key and there is none.
    pub fn spec(self, given: &Given<'_>) -> Result<Option<PolicySpec>, MissingKey> {
        let has_version = given.has_version;
        let own = || given.key.map(str::to_owned).map(Some).ok_or(MissingKey(self));
        Ok(match self {
            Self::Strict => {
                let names = if has_version { &["type", "version", "args"][..] } else { &["type", "args"] };
                Some(PolicySpec { keys: Some(texts(names)), ..for_ever() })
            }
            Self::CallerProvided => Some(PolicySpec { key: own()?, with_version: has_version, ..for_ever() }),
            Self::AlwaysUnique => None,
            Self::Content => Some(PolicySpec {
                keys: Some(texts(&["type", "queue", "args", "meta"])),
                meta_except: Some(Vec::new()),
                period_ms: Some(u64::from(own_or(given.visibility_ms, VISIBILITY_DEFAULT_MS))),
                while_active: Some(true),
                on_conflict: Some("ignore".to_owned()),
                ..PolicySpec::default()
            }),
            Self::Skip => Some(PolicySpec {
                key: own()?,
                on_conflict: Some("ignore".to_owned()),
                ..PolicySpec::default()
            }),
        })
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn for_ever() -> PolicySpec {
    PolicySpec {
        states: Some(State::ALL.iter().map(|state| state.name().to_owned()).collect()),
        on_conflict: Some("reject".to_owned()),
        disclose: Some("never".to_owned()),
        ..PolicySpec::default()
    }
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_is_known_in_any_case() {
        for text in ["CALLER_PROVIDED", "callerProvided", "CallerProvided", "caller_provided"] {
            assert_eq!(Preset::strategy(text), Some(Preset::CallerProvided), "{text}");
        }
        assert_eq!(Preset::strategy("ALWAYSUNIQUE"), Some(Preset::AlwaysUnique));
        assert_eq!(Preset::strategy("Strict"), Some(Preset::Strict));
        for text in ["content", "", "strictest"] {
            assert_eq!(Preset::strategy(text), None, "{text}");
        }
    }

    #[test]
    fn every_word_leads_back_to_its_preset() {
        for preset in Preset::ALL {
            assert_eq!(Preset::from_name(preset.name()), Some(preset));
            let is_of_a_key = matches!(preset, Preset::CallerProvided | Preset::Skip);
            assert_eq!(preset.spec(&Given::default()).is_err(), is_of_a_key);
            let given = Given { key: Some("k"), has_version: true, visibility_ms: 0 };
            assert_eq!(preset.spec(&given).unwrap().is_none(), preset == Preset::AlwaysUnique);
        }
        assert_eq!(Preset::from_name("Strict"), None);
    }
}
