//! What is asked to be done to many jobs at once.

use semel_core::error::Invalid;
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::state::{State, StateSet};

use crate::members::{Members, Value};

/// Jobs that one request changes unless it says how many, and at most.
const LIMIT_DEFAULT: i64 = 1_000;
const LIMIT_MAX: i64 = 10_000;

/// A wish about many jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bulk {
    /// Whether it is meant: nothing happens without.
    pub is_confirmed: bool,
    /// In these states; empty means all.
    pub states: StateSet,
    /// In this queue.
    pub queue: Option<QueueName>,
    /// Of this type.
    pub job_type: Option<JobType>,
    /// At most so many, newest first.
    pub limit: usize,
    /// Only those before this one, where an earlier answer ended.
    pub before: Option<JobId>,
}

impl Bulk {
    /// Reads `{filter: {state, queue, type}, confirm, limit, cursor}`. What a filter says may stand beside the rest instead, as
    /// OJS's document has it.
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
                return Err(value.refuse("stands beside filter; say all in filter, or leave filter out"));
            }
            (Some(filter), None) => bulk.narrow(filter.members()?.iter("/filter"))?,
            (None, first) => bulk.narrow(first.into_iter().chain(beside))?,
        }
        Ok(bulk)
    }

    /// Takes over what a filter says.
    fn narrow<'m>(&mut self, said: impl Iterator<Item = (&'m str, Value<'m>)>) -> Result<(), Invalid> {
        let mut has_states = false;
        for (name, value) in said.filter(|(_, value)| !value.is_null()) {
            match name {
                // Two lists, or one of none, must not mean more than either says.
                "state" | "states" if has_states => {
                    return Err(value.refuse("is said twice, as state and as states; send one of them"));
                }
                "state" | "states" => {
                    (self.states, has_states) = (states(value)?, true);
                    if self.states.is_empty() {
                        return Err(
                            value.refuse("names no state; name at least one, or leave it out for all")
                        );
                    }
                }
                "queue" => self.queue = Some(QueueName::parse(&value.string()?, &value.pointer())?),
                "type" => self.job_type = Some(JobType::parse(&value.string()?, &value.pointer())?),
                // As with `only`.
                _ => return Err(value.refuse("is not a member of a filter; use state, queue and type")),
            }
        }
        Ok(())
    }
}

/// What is not understood must not let more through.
fn only(members: &Members<'_>, known: &[&str]) -> Result<(), Invalid> {
    members.besides("", known).map_or(Ok(()), |value| {
        let known = known.join(", ");
        Err(value.refuse(format!("is not understood, and more would go than is asked for; use {known}")))
    })
}

fn cursor(members: &Members<'_>) -> Result<Option<JobId>, Invalid> {
    let Some(value) = members.get("", "cursor").filter(|value| !value.is_null()) else { return Ok(None) };
    let id = JobId::parse(&value.string()?, "/cursor");
    id.map(Some).map_err(|_| value.refuse("is not a cursor that an answer gave"))
}

/// One state, or a list of them.
///
/// # Errors
/// What is wrong, where, and what to send instead.
pub(crate) fn states(value: Value<'_>) -> Result<StateSet, Invalid> {
    let names = if value.is_array() { value.strings()? } else { vec![value.string()?.into_owned()] };
    let mut states = StateSet::EMPTY;
    for name in &names {
        let state = State::from_name(name).ok_or_else(|| {
            let known = State::ALL.map(State::name).join(", ");
            value.refuse(format!("names no state; the states are {known}"))
        })?;
        states = states.with(state);
    }
    Ok(states)
}

/// Which jobs of a queue a purge is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purge {
    /// Whether it is said that it is meant, which not every endpoint asks for.
    pub is_confirmed: bool,
    /// In these states.
    pub states: StateSet,
    /// Only those before this one, where an earlier answer ended.
    pub before: Option<JobId>,
}

/// Reads `{states, cursor, confirm}`: each state is one in which jobs wait; the available ones unless said.
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
            return Err(value.refuse("is false, and nothing is done; send true when it is meant"));
        }
        sent => sent.is_some(),
    };
    let Some(value) = members.get("", "states") else {
        return Ok(Purge { is_confirmed, states: default, before });
    };
    let states = states(value)?;
    if states.is_empty() || states.contains(State::Active) || states.intersects(StateSet::FINISHED) {
        return Err(value.refuse("may name available, scheduled, pending and retryable: jobs that wait"));
    }
    Ok(Purge { is_confirmed, states, before })
}
