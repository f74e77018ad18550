//! A unique policy as it was sent.

use super::choice::Dimension;

/// A unique policy as it was sent: spellings are normalised, but nothing is checked.
///
/// It may hold the caller's own key, so it must not be logged above DEBUG.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySpec {
    /// Dimensions of the key. With neither this nor `key`, only the type counts.
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
    /// Whether the version of the job's template counts, in addition to what `keys` lists.
    pub with_version: bool,
    /// An ISO 8601 duration.
    pub period: Option<String>,
    /// The period in milliseconds, instead of `period`.
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
    /// This policy laid over another, such as a preset: members given here win. Either spelling of the period
    /// replaces both of the preset's, and so does either of `meta_keys` and `meta_except`. A caller's own key
    /// and the members that choose dimensions are each the whole identity, so that giving either here
    /// replaces both.
    #[must_use]
    pub fn over(self, preset: Self) -> Self {
        let has_period = self.period.is_some() || self.period_ms.is_some();
        let has_meta = self.meta_keys.is_some() || self.meta_except.is_some();
        let preset = if self.key.is_some() {
            Self { keys: None, args_keys: None, meta_keys: None, meta_except: None, ..preset }
        } else if let Some(keys) = &self.keys {
            // The preset's members for args and meta may belong to dimensions that `keys` no longer lists.
            let has = |dimension: Dimension| keys.iter().any(|key| key == dimension.name());
            Self {
                key: None,
                scope: None,
                with_version: false,
                args_keys: preset.args_keys.filter(|_| has(Dimension::Args)),
                meta_keys: preset.meta_keys.filter(|_| has(Dimension::Meta)),
                meta_except: preset.meta_except.filter(|_| has(Dimension::Meta)),
                ..preset
            }
        } else {
            preset
        };
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
