//! A unique policy: which jobs are the same, how long a job holds its key, how a duplicate is handled
//! (SEMANTICS 2 to 4).

use std::fmt;

use super::choice::{Dimension, Dimensions, Disclose, OnConflict, OnMismatch, PeriodFrom, Scope, WhenActive};
use super::key::never_counts;
use super::period::Period;
use super::spec::PolicySpec;
use crate::canon::{nfc, utf16_order};
use crate::error::Invalid;
use crate::limits::{KEY_TEXT_BYTES_MAX, POLICY_NAMES_MAX};
use crate::state::{State, StateSet};

/// Which members of meta are part of the key. Names are in NFC and in canonical order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaPart {
    /// Only the members with these names, as far as the job has them.
    Only(Vec<String>),
    /// All members except these, the system's and the tracing ones.
    Except(Vec<String>),
}

/// A caller's own key. `Debug` does not show it, because keys are not logged.
#[derive(Clone, PartialEq, Eq)]
struct KeyText(Box<str>);

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// A unique policy without contradictions; only [`build`](Self::build) makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniquePolicy {
    dimensions: Dimensions,
    args_keys: Vec<String>,
    meta: MetaPart,
    key: Option<KeyText>,
    scope: Scope,
    period: Option<Period>,
    period_from: PeriodFrom,
    states: StateSet,
    while_active: bool,
    when_active: WhenActive,
    on_conflict: OnConflict,
    on_mismatch: OnMismatch,
    disclose: Disclose,
}

impl UniquePolicy {
    /// Longest name that a newly sent policy may have in `args_keys`, `meta_keys` or `meta_except`, in bytes.
    pub const NAME_BYTES_MAX: usize = 255;

    /// Like [`build`](Self::build), for a policy that is about to be admitted: its names are bounded in
    /// length. Policies that are already stored need not keep to that bound.
    ///
    /// # Errors
    /// Those of [`build`](Self::build), and the pointer of a name longer than
    /// [`NAME_BYTES_MAX`](Self::NAME_BYTES_MAX).
    pub fn build_new(spec: &PolicySpec, pointer: &str) -> Result<Self, Invalid> {
        let policy = Self::build(spec, pointer)?;
        let named = [
            ("args_keys", &spec.args_keys),
            ("meta_keys", &spec.meta_keys),
            ("meta_except", &spec.meta_except),
        ];
        for (member, names) in named {
            let is_long = |name: &String| name.len() > Self::NAME_BYTES_MAX;
            if let Some(index) = names.iter().flatten().position(is_long) {
                return Err(Place(pointer).refuse(
                    &format!("{member}/{index}"),
                    format!("is longer than {} bytes; use a shorter name", Self::NAME_BYTES_MAX),
                ));
            }
        }
        Ok(policy)
    }

    /// Checks a policy as it was sent. `pointer` is its place in the job, e.g. `/options/unique`.
    ///
    /// # Errors
    /// `invalid_request` with the pointer of the first member that is unknown, out of bounds or contradicts
    /// another.
    pub fn build(spec: &PolicySpec, pointer: &str) -> Result<Self, Invalid> {
        let at = Place(pointer);
        let key = read_key(spec, at)?;
        let dimensions = read_dimensions(spec, at)?;
        let policy = Self {
            dimensions,
            args_keys: read_args_keys(spec, dimensions, at)?,
            meta: read_meta(spec, dimensions, at)?,
            key,
            scope: read_choice(&spec.scope, Scope::from_name, Scope::ALL, "scope", at)?,
            period: read_period(spec, at)?,
            period_from: read_choice(
                &spec.period_from,
                PeriodFrom::from_name,
                PeriodFrom::ALL,
                "period_from",
                at,
            )?,
            states: read_states(spec, at)?,
            while_active: spec.while_active.unwrap_or(false),
            when_active: read_choice(
                &spec.when_active,
                WhenActive::from_name,
                WhenActive::ALL,
                "when_active",
                at,
            )?,
            on_conflict: read_choice(
                &spec.on_conflict,
                OnConflict::from_name,
                OnConflict::ALL,
                "on_conflict",
                at,
            )?,
            on_mismatch: read_choice(
                &spec.on_mismatch,
                OnMismatch::from_name,
                OnMismatch::ALL,
                "on_mismatch",
                at,
            )?,
            disclose: read_choice(&spec.disclose, Disclose::from_name, Disclose::ALL, "disclose", at)?,
        };
        match policy.contradiction() {
            None => Ok(policy),
            Some((Member::Of(member), message)) => Err(at.refuse(member, message)),
            Some((Member::State(state), message)) => {
                let sent = spec.states.iter().flatten().position(|name| name == state.name());
                Err(at.refuse(&format!("states/{}", sent.unwrap_or(0)), message))
            }
        }
    }

    /// The same policy with another conflict strategy; `None` if the two contradict each other.
    pub fn with_on_conflict(&self, on_conflict: OnConflict) -> Option<Self> {
        let other = Self { on_conflict, ..self.clone() };
        other.contradiction().is_none().then_some(other)
    }

    /// Whether the two policies differ at most in the text of the caller's own key.
    pub fn is_like(&self, other: &Self) -> bool {
        let Self {
            dimensions,
            args_keys,
            meta,
            key,
            scope,
            period,
            period_from,
            states,
            while_active,
            when_active,
            on_conflict,
            on_mismatch,
            disclose,
        } = self;
        *dimensions == other.dimensions
            && *states == other.states
            && *on_conflict == other.on_conflict
            && *period == other.period
            && *period_from == other.period_from
            && *scope == other.scope
            && *while_active == other.while_active
            && *when_active == other.when_active
            && *on_mismatch == other.on_mismatch
            && *disclose == other.disclose
            && key.is_some() == other.key.is_some()
            && *args_keys == other.args_keys
            && *meta == other.meta
    }

    /// The same policy with `…` in place of the caller's own key, for showing or remembering.
    #[must_use]
    pub fn without_key_text(&self) -> Self {
        Self { key: self.key.as_ref().map(|_| KeyText("…".into())), ..self.clone() }
    }

    /// The first rule between members that the policy breaks.
    fn contradiction(&self) -> Option<(Member, &'static str)> {
        if self.scope == Scope::Global && self.key.is_none() {
            return Some((
                Member::Of("scope"),
                "is global, which requires a key of your own; send `key`, or leave the scope out",
            ));
        }
        if self.period_from == PeriodFrom::Finished && !self.states.intersects(StateSet::FINISHED) {
            return Some((
                Member::Of("period_from"),
                "counts from the end of a job, but `states` names no end state; add completed, cancelled or discarded",
            ));
        }
        match self.on_conflict {
            OnConflict::Replace | OnConflict::ReplaceExceptSchedule
                if self.states.contains(State::Cancelled) =>
            {
                Some((
                    Member::State(State::Cancelled),
                    "contradicts replacing, because a replaced job is cancelled and would block at once; remove cancelled",
                ))
            }
            OnConflict::FollowUp if self.period.is_some() => Some((
                Member::Of("period"),
                "cannot be combined with follow_up, which holds until the run has ended; leave the period out",
            )),
            OnConflict::FollowUp if !self.states.contains_all(StateSet::LIVE) => Some((
                Member::Of("states"),
                "lacks one of scheduled, available, pending, active and retryable, all of which follow_up needs; leave `states` out",
            )),
            OnConflict::Ignore | OnConflict::FollowUp if self.disclose == Disclose::Never => Some((
                Member::Of("disclose"),
                "is \"never\", but ignore and follow_up answer with the existing job; use on_conflict: reject, or disclose: always",
            )),
            OnConflict::Reject
            | OnConflict::Ignore
            | OnConflict::Replace
            | OnConflict::ReplaceExceptSchedule
            | OnConflict::FollowUp => None,
        }
    }

    /// The policy spelled out in full: [`build`](Self::build) turns it back into the same policy.
    pub fn to_spec(&self) -> PolicySpec {
        let has = |dimension| self.dimensions.contains(dimension);
        let meta = has(Dimension::Meta).then_some(&self.meta);
        PolicySpec {
            keys: self
                .key
                .is_none()
                .then(|| self.dimensions.iter().map(|dimension| dimension.name().to_owned()).collect()),
            args_keys: (!self.args_keys.is_empty()).then(|| self.args_keys.clone()),
            meta_keys: meta
                .and_then(|meta| if let MetaPart::Only(names) = meta { Some(names.clone()) } else { None }),
            meta_except: meta
                .and_then(|meta| if let MetaPart::Except(names) = meta { Some(names.clone()) } else { None }),
            key: self.key_text().map(str::to_owned),
            scope: self.key.is_some().then(|| self.scope.name().to_owned()),
            with_version: self.key.is_some() && has(Dimension::Version),
            period: self.period.map(|period| period.to_string()),
            period_ms: None,
            period_from: Some(self.period_from.name().to_owned()),
            states: Some(self.states.iter().map(|state| state.name().to_owned()).collect()),
            while_active: Some(self.while_active),
            when_active: Some(self.when_active.name().to_owned()),
            on_conflict: Some(self.on_conflict.name().to_owned()),
            on_mismatch: Some(self.on_mismatch.name().to_owned()),
            disclose: Some(self.disclose.name().to_owned()),
        }
    }

    /// Dimensions of the key, apart from a caller's own [key](Self::key_text).
    pub const fn dimensions(&self) -> Dimensions {
        self.dimensions
    }

    /// Members of args that count, in NFC and in canonical order; empty when all of args count.
    pub fn args_keys(&self) -> &[String] {
        &self.args_keys
    }

    /// Members of meta that count, if meta is a dimension at all.
    pub const fn meta_part(&self) -> &MetaPart {
        &self.meta
    }

    /// The caller's own key. Must not be logged.
    pub fn key_text(&self) -> Option<&str> {
        self.key.as_ref().map(|key| &*key.0)
    }

    /// Which jobs share the caller's own key.
    pub const fn scope(&self) -> Scope {
        self.scope
    }

    /// How long a holder blocks; `None` when it blocks for as long as it is in one of
    /// [`states`](Self::states).
    pub const fn period(&self) -> Option<Period> {
        self.period
    }

    /// When the period starts.
    pub const fn period_from(&self) -> PeriodFrom {
        self.period_from
    }

    /// Holders block while they are in one of these states.
    pub const fn states(&self) -> StateSet {
        self.states
    }

    /// Whether an unfinished holder blocks even past its window.
    pub const fn while_active(&self) -> bool {
        self.while_active
    }

    /// When a job that replaced an active one may run.
    pub const fn when_active(&self) -> WhenActive {
        self.when_active
    }

    /// How a duplicate is handled.
    pub const fn on_conflict(&self) -> OnConflict {
        self.on_conflict
    }

    /// How an offer with the same key but other content is handled.
    pub const fn on_mismatch(&self) -> OnMismatch {
        self.on_mismatch
    }

    /// Whether an answer may show the existing job.
    pub const fn disclose(&self) -> Disclose {
        self.disclose
    }
}

/// JSON pointer of the policy within the job.
#[derive(Clone, Copy)]
struct Place<'a>(&'a str);

impl Place<'_> {
    fn refuse(self, member: &str, message: impl Into<String>) -> Invalid {
        Invalid::request(format!("{}/{member}", self.0), message)
    }
}

/// The member of a policy that breaks a rule.
enum Member {
    Of(&'static str),
    State(State),
}

fn read_key(spec: &PolicySpec, at: Place<'_>) -> Result<Option<KeyText>, Invalid> {
    let Some(key) = &spec.key else { return Ok(None) };
    let besides = [
        ("keys", &spec.keys),
        ("args_keys", &spec.args_keys),
        ("meta_keys", &spec.meta_keys),
        ("meta_except", &spec.meta_except),
    ];
    if let Some((member, _)) = besides.into_iter().find(|(_, names)| names.is_some()) {
        return Err(at.refuse(
            member,
            "cannot be combined with `key`, which is the whole identity; send one or the other",
        ));
    }
    if key.trim().is_empty() {
        return Err(at.refuse("key", "is blank; send a text that names the work, or leave it out"));
    }
    if key.len() > KEY_TEXT_BYTES_MAX {
        return Err(
            at.refuse("key", format!("is longer than {KEY_TEXT_BYTES_MAX} bytes; send a digest of it"))
        );
    }
    Ok(Some(KeyText(key.as_str().into())))
}

fn read_choice<T: Copy + Default + fmt::Display>(
    sent: &Option<String>,
    from_name: impl Fn(&str) -> Option<T>,
    known: &[T],
    member: &str,
    at: Place<'_>,
) -> Result<T, Invalid> {
    let Some(name) = sent else { return Ok(T::default()) };
    from_name(name).ok_or_else(|| at.refuse(member, format!("is not one of {}", listed(known))))
}

fn read_dimensions(spec: &PolicySpec, at: Place<'_>) -> Result<Dimensions, Invalid> {
    let is_global = spec.key.is_some() && spec.scope.as_deref() == Some(Scope::Global.name());
    let mut dimensions = Dimensions::default();
    if !is_global {
        dimensions = dimensions.with(Dimension::Type);
    }
    if spec.with_version {
        dimensions = dimensions.with(Dimension::Version);
    }
    let Some(keys) = &spec.keys else { return Ok(dimensions) };
    check_number(keys, "keys", at)?;
    if keys.is_empty() {
        return Err(at.refuse("keys", "is empty; name a dimension, or leave it out to count the type alone"));
    }
    for (index, name) in keys.iter().enumerate() {
        let Some(dimension) = Dimension::from_name(name) else {
            let known = listed(Dimension::ALL);
            return Err(at.refuse(&format!("keys/{index}"), format!("is not one of {known} (lower case)")));
        };
        dimensions = dimensions.with(dimension);
    }
    Ok(dimensions)
}

fn read_args_keys(spec: &PolicySpec, dimensions: Dimensions, at: Place<'_>) -> Result<Vec<String>, Invalid> {
    let Some(names) = &spec.args_keys else { return Ok(Vec::new()) };
    if !dimensions.contains(Dimension::Args) {
        return Err(
            at.refuse("args_keys", "has no effect because `keys` does not name args; add args to `keys`")
        );
    }
    read_names(names, "args_keys", at)
}

fn read_meta(spec: &PolicySpec, dimensions: Dimensions, at: Place<'_>) -> Result<MetaPart, Invalid> {
    let (member, names) = match (&spec.meta_keys, &spec.meta_except) {
        (Some(_), Some(_)) => {
            return Err(
                at.refuse("meta_except", "cannot be combined with `meta_keys`; send one or the other")
            );
        }
        (Some(names), None) => ("meta_keys", names),
        (None, Some(names)) => ("meta_except", names),
        (None, None) if dimensions.contains(Dimension::Meta) => {
            return Err(at.refuse(
                "meta_keys",
                "is missing, but `keys` names meta; list the members that count, or those that do not in `meta_except`",
            ));
        }
        (None, None) => return Ok(MetaPart::Only(Vec::new())),
    };
    if !dimensions.contains(Dimension::Meta) {
        return Err(at.refuse(member, "has no effect because `keys` does not name meta; add meta to `keys`"));
    }
    if member == "meta_keys" {
        if let Some(index) = names.iter().position(|name| never_counts(name)) {
            return Err(at.refuse(
                &format!("meta_keys/{index}"),
                "cannot be part of a key: trace headers and `semel.*` differ from call to call; leave it out",
            ));
        }
        return Ok(MetaPart::Only(read_names(names, member, at)?));
    }
    check_number(names, member, at)?;
    Ok(MetaPart::Except(normalised(names)))
}

fn read_names(names: &[String], member: &str, at: Place<'_>) -> Result<Vec<String>, Invalid> {
    if names.is_empty() {
        return Err(at.refuse(member, "is empty; name at least one member, or leave it out"));
    }
    check_number(names, member, at)?;
    Ok(normalised(names))
}

fn normalised(names: &[String]) -> Vec<String> {
    let mut names: Vec<_> = names.iter().map(|name| nfc(name).into_owned()).collect();
    names.sort_by(|left, right| utf16_order(left, right));
    names.dedup();
    names
}

fn check_number(names: &[String], member: &str, at: Place<'_>) -> Result<(), Invalid> {
    if names.len() > POLICY_NAMES_MAX {
        return Err(at.refuse(member, format!("has more than {POLICY_NAMES_MAX} items; send fewer")));
    }
    Ok(())
}

fn read_period(spec: &PolicySpec, at: Place<'_>) -> Result<Option<Period>, Invalid> {
    match (&spec.period, spec.period_ms) {
        (Some(_), Some(_)) => {
            Err(at.refuse("period_ms", "cannot be combined with `period`; send one or the other"))
        }
        (Some(text), None) => Period::parse(text, &format!("{}/period", at.0)).map(Some),
        (None, Some(millis)) => Period::from_millis(millis, &format!("{}/period_ms", at.0)).map(Some),
        (None, None) => Ok(None),
    }
}

fn read_states(spec: &PolicySpec, at: Place<'_>) -> Result<StateSet, Invalid> {
    let Some(names) = &spec.states else { return Ok(StateSet::LIVE) };
    check_number(names, "states", at)?;
    if names.is_empty() {
        return Err(at.refuse(
            "states",
            "is empty, so nothing would ever block; leave it out for the five live states",
        ));
    }
    let read = |(index, name): (usize, &String)| {
        State::from_name(name).ok_or_else(|| {
            at.refuse(&format!("states/{index}"), format!("is not one of {}", listed(&State::ALL)))
        })
    };
    names.iter().enumerate().map(read).collect()
}

/// Joins choices with commas, for a sentence.
pub(super) fn listed<T: fmt::Display>(choices: &[T]) -> String {
    choices.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}
