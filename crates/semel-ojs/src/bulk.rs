//! Bulk requests: operations on many jobs at once.

use semel_core::error::Invalid;
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::state::{State, StateSet};

use crate::members::{Members, Value};

/// Jobs that one request changes, by default and at most.
const LIMIT_DEFAULT: i64 = 1_000;
const LIMIT_MAX: i64 = 10_000;

/// A bulk request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bulk {
    /// Whether the request is confirmed; nothing is done otherwise.
    pub is_confirmed: bool,
    /// Jobs in these states; empty means all.
    pub states: StateSet,
    /// Jobs in this queue.
    pub queue: Option<QueueName>,
    /// Jobs of this type.
    pub job_type: Option<JobType>,
    /// At most this many jobs, newest first.
    pub limit: usize,
    /// Only jobs before this one, where an earlier answer ended.
    pub before: Option<JobId>,
}

impl Bulk {
    /// Reads `{filter: {state, queue, type}, confirm, limit, cursor}`. The filter's members may also stand
    /// beside the rest, as in OJS's document.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let members = Members::request(text, r#"{"filter": {"queue": "mail"}, "confirm": true}"#)?;
        only(&members, &["filter", "confirm", "limit", "cursor", "state", "states", "queue", "type"])?;
        let is_confirmed = match members.get("", "confirm") {
            Some(value) => value.flag()?,
            None => false,
        };
        let limit = match members.get("", "limit") {
            Some(value) => value.within(1, LIMIT_MAX)?,
            None => LIMIT_DEFAULT,
        };
        let mut bulk = Self {
            is_confirmed,
            states: StateSet::EMPTY,
            queue: None,
            job_type: None,
            limit: usize::try_from(limit).unwrap_or(0),
            before: cursor(&members)?,
        };
        let is_beside = |name: &str| !["filter", "confirm", "limit", "cursor"].contains(&name);
        let mut beside = members.iter("").filter(|(name, value)| is_beside(name) && !value.is_null());
        match (members.get("", "filter"), beside.next()) {
            (Some(_), Some((_, value))) => {
                return Err(
                    value.refuse("cannot be combined with filter; put it into filter, or leave filter out")
                );
            }
            (Some(filter), None) => bulk.narrow(filter.members()?.iter("/filter"))?,
            (None, first) => bulk.narrow(first.into_iter().chain(beside))?,
        }
        Ok(bulk)
    }

    /// Narrows the selection to what a filter's members say.
    fn narrow<'m>(&mut self, said: impl Iterator<Item = (&'m str, Value<'m>)>) -> Result<(), Invalid> {
        let mut has_states = false;
        for (name, value) in said.filter(|(_, value)| !value.is_null()) {
            match name {
                // Two lists, or an empty one, must not select more than either says.
                "state" | "states" if has_states => {
                    return Err(value.refuse("is given twice, as state and as states; send only one of them"));
                }
                "state" | "states" => {
                    (self.states, has_states) = (states(value)?, true);
                    if self.states.is_empty() {
                        return Err(
                            value.refuse("names no state; send at least one, or leave it out for all")
                        );
                    }
                }
                "queue" => self.queue = Some(QueueName::parse(&value.string()?, &value.pointer())?),
                "type" => self.job_type = Some(JobType::parse(&value.string()?, &value.pointer())?),
                // As in `only`: a member that is not understood must not select more.
                _ => return Err(value.refuse("is not a member of a filter; use state, queue and type")),
            }
        }
        Ok(())
    }
}

/// Refuses unknown members: one that was meant as a filter, if ignored, would select more jobs.
fn only(members: &Members<'_>, known: &[&str]) -> Result<(), Invalid> {
    members.besides("", known).map_or(Ok(()), |value| {
        let known = known.join(", ");
        Err(value.refuse(format!(
            "is not a known member, and ignoring it could affect more jobs than intended; use {known}"
        )))
    })
}

fn cursor(members: &Members<'_>) -> Result<Option<JobId>, Invalid> {
    let Some(value) = members.get("", "cursor").filter(|value| !value.is_null()) else { return Ok(None) };
    let id = JobId::parse(&value.string()?, "/cursor");
    id.map(Some).map_err(|_| value.refuse("is not a cursor; send one from an earlier answer"))
}

/// Reads one state, or a list of them.
///
/// # Errors
/// What is wrong, where, and what to send instead.
pub(crate) fn states(value: Value<'_>) -> Result<StateSet, Invalid> {
    let names = if value.is_array() { value.strings()? } else { vec![value.string()?.into_owned()] };
    let mut states = StateSet::EMPTY;
    for name in &names {
        let state = State::from_name(name).ok_or_else(|| {
            let known = State::ALL.map(State::name).join(", ");
            value.refuse(format!("names an unknown state; the states are {known}"))
        })?;
        states = states.with(state);
    }
    Ok(states)
}

/// The jobs of a queue that a purge cancels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purge {
    /// Whether the request is confirmed, which not every endpoint requires.
    pub is_confirmed: bool,
    /// Jobs in these states.
    pub states: StateSet,
    /// Only jobs before this one, where an earlier answer ended.
    pub before: Option<JobId>,
}

/// Reads `{states, cursor, confirm}`. Each state must be one in which jobs wait; the default is the available jobs.
///
/// # Errors
/// What is wrong, where, and what to send instead.
pub fn purge(text: &str) -> Result<Purge, Invalid> {
    let default = StateSet::EMPTY.with(State::Available);
    if text.trim().is_empty() {
        return Ok(Purge { is_confirmed: false, states: default, before: None });
    }
    let members = Members::read(text, "")?;
    only(&members, &["states", "cursor", "confirm"])?;
    let before = cursor(&members)?;
    let is_confirmed = match members.get("", "confirm") {
        Some(value) if !value.flag()? => {
            return Err(value.refuse("is false, so nothing was done; send true to confirm"));
        }
        sent => sent.is_some(),
    };
    let Some(value) = members.get("", "states") else {
        return Ok(Purge { is_confirmed, states: default, before });
    };
    let states = states(value)?;
    if states.is_empty() || states.contains(State::Active) || states.intersects(StateSet::FINISHED) {
        return Err(value
            .refuse("may only name states in which jobs wait: available, scheduled, pending and retryable"));
    }
    Ok(Purge { is_confirmed, states, before })
}
