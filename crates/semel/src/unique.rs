//! Unique policies: which jobs are duplicates of each other.

use std::time::Duration;

use semel_core::state::{State, StateSet};
use semel_core::template::Asked;
use semel_core::unique::{
    Disclose, Given, OnConflict, OnMismatch, PeriodFrom, PolicySpec, Preset, WhenActive,
};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::codec::iso;

/// A unique policy: which jobs are the same, for how long one blocks the others, and what happens to a
/// duplicate. Jobs of different types are never the same, unless their key is [global](Self::global).
///
/// ```
/// use std::time::Duration;
/// use semel::{JobState, OnConflict, Unique};
///
/// // One reminder per user and hour, whether it has been sent or not; asking again is answered with the one that is there.
/// let unique = Unique::by_args(["user_id"])
///     .live_and([JobState::Completed])
///     .within(Duration::from_secs(3600))
///     .on_conflict(OnConflict::Ignore);
/// ```
///
/// By default a job blocks others like it while it is live (scheduled, available, pending, active or
/// retryable) and no longer, without a time window, and a duplicate is rejected. A contradictory policy is
/// refused when the job is enqueued, with the place of the contradiction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unique(Asked);

impl Unique {
    fn by_dimensions(names: &[&str]) -> Self {
        Self::of(PolicySpec { keys: Some(texts(names.iter().copied())), ..PolicySpec::default() })
    }

    fn of(spec: PolicySpec) -> Self {
        Self(Asked { preset: None, spec })
    }

    fn spec(&mut self) -> &mut PolicySpec {
        &mut self.0.spec
    }

    /// A policy from a preset, which can be changed further. A preset that is made of a key needs
    /// [`key`](Self::key).
    ///
    /// ```
    /// use semel::{Preset, Unique};
    ///
    /// // Queued or running once per event; a second call is answered with the first one's job.
    /// let unique = Unique::preset(Preset::Skip).key("evt_123");
    /// ```
    #[must_use]
    pub fn preset(preset: Preset) -> Self {
        Self(Asked::preset(preset))
    }

    /// All jobs of the type are the same.
    #[must_use]
    pub fn by_type() -> Self {
        Self::by_dimensions(&["type"])
    }

    /// Jobs that agree in these members of their args are the same. Members are named as on the wire.
    #[must_use]
    pub fn by_args<T: Into<String>>(members: impl IntoIterator<Item = T>) -> Self {
        let mut unique = Self::by_all_args();
        unique.spec().args_keys = Some(texts(members));
        unique
    }

    /// Jobs that agree in all their args are the same.
    #[must_use]
    pub fn by_all_args() -> Self {
        Self::by_dimensions(&["type", "args"])
    }

    /// Jobs with this key are the same: a key of your own of 1 to 512 bytes that names the work, such as an
    /// event's id.
    #[must_use]
    pub fn by_key(key: impl Into<String>) -> Self {
        Self::of(PolicySpec { key: Some(key.into()), ..PolicySpec::default() })
    }

    /// Sets a key of your own, in place of the dimensions that the policy's key is made of.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        self.with_key(key.into())
    }

    /// The same work is never admitted again, whatever became of it: all args, all eight states, no window,
    /// duplicates rejected, and the answer does not show the existing job.
    #[must_use]
    pub fn strict() -> Self {
        Self::preset(Preset::Strict)
    }

    /// At most one job queued or running per type, queue, args and meta; a duplicate is answered with that
    /// job.
    #[must_use]
    pub fn content() -> Self {
        Self::preset(Preset::Content)
    }

    /// The queue counts too.
    ///
    /// On top of [`strict`](Self::strict) this writes out the preset's dimensions, without knowing of
    /// templates: the version of the job's template no longer counts.
    #[must_use]
    pub fn and_queue(mut self) -> Self {
        self.add("queue");
        self
    }

    /// These members of meta count too. On top of [`strict`](Self::strict), see
    /// [`and_queue`](Self::and_queue).
    #[must_use]
    pub fn and_meta<T: Into<String>>(mut self, members: impl IntoIterator<Item = T>) -> Self {
        self.add("meta");
        let spec = self.spec();
        (spec.meta_keys, spec.meta_except) = (Some(texts(members)), None);
        self
    }

    /// All members of meta but these count too; those that tracing writes never do. On top of
    /// [`strict`](Self::strict), see [`and_queue`](Self::and_queue).
    #[must_use]
    pub fn and_meta_except<T: Into<String>>(mut self, members: impl IntoIterator<Item = T>) -> Self {
        self.add("meta");
        let spec = self.spec();
        (spec.meta_keys, spec.meta_except) = (None, Some(texts(members)));
        self
    }

    fn add(&mut self, dimension: &str) {
        // A dimension is added to those that the preset stands for.
        let base = self.0.preset.and_then(|preset| preset.spec(&Given::default()).ok().flatten());
        let spec = self.spec();
        let keys = spec
            .keys
            .get_or_insert_with(|| base.and_then(|base| base.keys).unwrap_or_else(|| texts(["type"])));
        if !keys.iter().any(|key| key == dimension) {
            keys.push(dimension.to_owned());
        }
    }

    /// Shares a key of your own among all types, instead of keeping it to one type.
    #[must_use]
    pub fn global(mut self) -> Self {
        self.spec().scope = Some("global".to_owned());
        self
    }

    /// The longest that a job blocks others, from the moment that [`period_from`](Self::period_from) names.
    /// Rounded up to the microsecond.
    #[must_use]
    pub fn within(mut self, period: Duration) -> Self {
        self.spec().period = Some(iso(period));
        self
    }

    /// The same as [`within`](Self::within), as an ISO 8601 duration: `P1M` is a calendar month, in UTC.
    #[must_use]
    pub fn period(mut self, iso8601: impl Into<String>) -> Self {
        self.spec().period = Some(iso8601.into());
        self
    }

    /// The moment at which the window starts.
    #[must_use]
    pub fn period_from(mut self, from: PeriodFrom) -> Self {
        self.spec().period_from = Some(from.name().to_owned());
        self
    }

    /// A job blocks others like it while it is live, and in these states as well. With
    /// `live_and([JobState::Completed])` a completed job remains the answer to duplicates for as long as the
    /// [window](Self::within) lasts.
    #[must_use]
    pub fn live_and(self, ended: impl IntoIterator<Item = State>) -> Self {
        let states: StateSet = ended.into_iter().fold(StateSet::LIVE, StateSet::with);
        self.states(states.iter())
    }

    /// The states in which a job blocks others. Default: the five live ones.
    #[must_use]
    pub fn states(mut self, states: impl IntoIterator<Item = State>) -> Self {
        self.spec().states = Some(states.into_iter().map(|state| state.name().to_owned()).collect());
        self
    }

    /// A job that has not ended keeps blocking even after its window.
    #[must_use]
    pub fn while_active(mut self) -> Self {
        self.spec().while_active = Some(true);
        self
    }

    /// When a job that replaced a running one may run.
    #[must_use]
    pub fn when_active(mut self, when: WhenActive) -> Self {
        self.spec().when_active = Some(when.name().to_owned());
        self
    }

    /// What happens to a duplicate.
    #[must_use]
    pub fn on_conflict(mut self, on_conflict: OnConflict) -> Self {
        self.spec().on_conflict = Some(on_conflict.name().to_owned());
        self
    }

    /// What happens when a job with the same key has other args.
    #[must_use]
    pub fn on_mismatch(mut self, on_mismatch: OnMismatch) -> Self {
        self.spec().on_mismatch = Some(on_mismatch.name().to_owned());
        self
    }

    /// Whether answers may show the existing job.
    #[must_use]
    pub fn disclose(mut self, disclose: Disclose) -> Self {
        self.spec().disclose = Some(disclose.name().to_owned());
        self
    }

    /// Whether the policy says that no two jobs are the same.
    pub(crate) fn is_off(&self) -> bool {
        *self == Self::preset(Preset::AlwaysUnique)
    }

    /// Whether the policy has a key of the caller's own.
    pub(crate) fn names_a_key(&self) -> bool {
        self.0.spec.key.is_some()
    }

    /// Replaces the dimensions by a key of the caller's own; what holds the key and what a duplicate gets
    /// stay.
    pub(crate) fn with_key(mut self, key: String) -> Self {
        let spec = self.spec();
        (spec.keys, spec.args_keys, spec.meta_keys, spec.meta_except) = (None, None, None, None);
        spec.key = Some(key);
        self
    }
}

fn texts<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Vec<String> {
    names.into_iter().map(Into::into).collect()
}

impl Serialize for Unique {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let spec = &self.0.spec;
        let mut map = serializer.serialize_map(None)?;
        if let Some(preset) = self.0.preset {
            map.serialize_entry("preset", preset.name())?;
        }
        let lists = [
            ("keys", &spec.keys),
            ("args_keys", &spec.args_keys),
            ("meta_keys", &spec.meta_keys),
            ("meta_except", &spec.meta_except),
            ("states", &spec.states),
        ];
        for (name, list) in lists {
            if let Some(list) = list {
                map.serialize_entry(name, list)?;
            }
        }
        let words = [
            ("key", &spec.key),
            ("scope", &spec.scope),
            ("period", &spec.period),
            ("period_from", &spec.period_from),
            ("when_active", &spec.when_active),
            ("on_conflict", &spec.on_conflict),
            ("on_mismatch", &spec.on_mismatch),
            ("disclose", &spec.disclose),
        ];
        for (name, word) in words {
            if let Some(word) = word {
                map.serialize_entry(name, word)?;
            }
        }
        if spec.while_active == Some(true) {
            map.serialize_entry("while_active", &true)?;
        }
        map.end()
    }
}
