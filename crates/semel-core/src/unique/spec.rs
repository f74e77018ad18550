//! A policy as it was sent, and the presets that stand for one.

use crate::error::Invalid;
use crate::state::State;

/// A unique policy as it was sent, its spellings already normalised; nothing in it is checked.
///
/// May carry the caller's own key, so it is not to be logged above DEBUG.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySpec {
    /// Dimensions of the key. Without it and without `key`: the type alone.
    pub keys: Option<Vec<String>>,
    /// Members of args that count.
    pub args_keys: Option<Vec<String>>,
    /// Members of meta that count.
    pub meta_keys: Option<Vec<String>>,
    /// Members of meta that do not count.
    pub meta_except: Option<Vec<String>>,
    /// The caller's own key, 1 to 512 bytes.
    pub key: Option<String>,
    /// `type` or `global`.
    pub scope: Option<String>,
    /// Whether the version of the job's template counts, besides what `keys` lists.
    pub with_version: bool,
    /// An ISO 8601 duration.
    pub period: Option<String>,
    /// The same in milliseconds.
    pub period_ms: Option<u64>,
    /// `created`, `finished` or `last_duplicate`.
    pub period_from: Option<String>,
    /// Names of states.
    pub states: Option<Vec<String>>,
    /// Whether an unfinished holder blocks even past its window.
    pub while_active: Option<bool>,
    /// `now` or `wait`.
    pub when_active: Option<String>,
    /// `reject`, `ignore`, `replace`, `replace_except_schedule` or `follow_up`.
    pub on_conflict: Option<String>,
    /// `accept` or `reject`.
    pub on_mismatch: Option<String>,
    /// `always` or `never`.
    pub disclose: Option<String>,
}

impl PolicySpec {
    /// The policy a preset stands for; none for `always_unique`. `key` is the request's own key, which
    /// `caller_provided` needs and the others ignore. `pointer` is where the preset's name stands in the job.
    ///
    /// # Errors
    /// `invalid_request` at `pointer` for an unknown name, and below it for a missing key.
    pub fn preset(name: &str, key: Option<&str>, pointer: &str) -> Result<Option<Self>, Invalid> {
        match name {
            "strict" => Ok(Some(Self::strict())),
            "content" => Ok(Some(Self::content())),
            "always_unique" => Ok(None),
            "caller_provided" => match key {
                Some(key) => Ok(Some(Self::caller_provided(key))),
                None => Err(Invalid::request(
                    format!("{pointer}/key"),
                    "is missing, but the preset caller_provided is made of it; send the key that names the work",
                )),
            },
            _ => Err(Invalid::request(
                pointer,
                "is not a preset; use strict, caller_provided, content or always_unique, or write the policy out",
            )),
        }
    }

    /// The same work, whatever became of it, is never taken again: type, version and all args, all eight states, no
    /// period, rejected, not disclosed.
    pub fn strict() -> Self {
        Self { keys: Some(names(&["type", "version", "args"])), ..Self::for_ever() }
    }

    /// As [`strict`](Self::strict), of type, version and the caller's own key.
    pub fn caller_provided(key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), with_version: true, ..Self::for_ever() }
    }

    /// One logical job queued or executing: type, queue, args and all user meta, ignored while the job is unfinished.
    /// The period is the caller's to add.
    pub fn content() -> Self {
        Self {
            keys: Some(names(&["type", "queue", "args", "meta"])),
            meta_except: Some(Vec::new()),
            while_active: Some(true),
            on_conflict: Some("ignore".to_owned()),
            ..Self::default()
        }
    }

    fn for_ever() -> Self {
        Self {
            states: Some(State::ALL.iter().map(|state| state.name().to_owned()).collect()),
            on_conflict: Some("reject".to_owned()),
            disclose: Some("never".to_owned()),
            ..Self::default()
        }
    }

    /// This policy on top of a preset: members given here win. Either way of writing the period wins over both of
    /// the preset's, either of `meta_keys` and `meta_except` likewise.
    #[must_use]
    pub fn over(self, preset: Self) -> Self {
        let has_period = self.period.is_some() || self.period_ms.is_some();
        let has_meta = self.meta_keys.is_some() || self.meta_except.is_some();
        Self {
            keys: self.keys.or(preset.keys),
            args_keys: self.args_keys.or(preset.args_keys),
            meta_keys: if has_meta { self.meta_keys } else { preset.meta_keys },
            meta_except: if has_meta { self.meta_except } else { preset.meta_except },
            key: self.key.or(preset.key),
            scope: self.scope.or(preset.scope),
            with_version: self.with_version || preset.with_version,
            period: if has_period { self.period } else { preset.period },
            period_ms: if has_period { self.period_ms } else { preset.period_ms },
            period_from: self.period_from.or(preset.period_from),
            states: self.states.or(preset.states),
            while_active: self.while_active.or(preset.while_active),
            when_active: self.when_active.or(preset.when_active),
            on_conflict: self.on_conflict.or(preset.on_conflict),
            on_mismatch: self.on_mismatch.or(preset.on_mismatch),
            disclose: self.disclose.or(preset.disclose),
        }
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
