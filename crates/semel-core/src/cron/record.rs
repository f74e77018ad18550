//! A cron as it is stored: one document, under its name.

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::body::Corrupt;
use crate::deferred;
use crate::enqueue::Offer;
use crate::error::Invalid;
use crate::ident::JobId;
use crate::limits::{CRON_DEAD_LETTERS_MAX, CRON_HISTORY_MAX, CRON_JOBS_LIVE_MAX};
use crate::time::Timestamp;

use super::{Registration, Schedule};

/// What happens to a tick while the job of an earlier tick is unfinished (OJS cron 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// The tick is skipped.
    #[default]
    Skip,
    /// The tick's job runs beside the earlier one.
    Allow,
    /// The earlier job is cancelled, in the same commit.
    CancelPrevious,
    /// The tick's job waits in `pending` until the earlier one has ended.
    Enqueue,
}

impl Overlap {
    /// Every policy.
    pub const ALL: [Self; 4] = [Self::Skip, Self::Allow, Self::CancelPrevious, Self::Enqueue];

    /// The policy's name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Allow => "allow",
            Self::CancelPrevious => "cancel_previous",
            Self::Enqueue => "enqueue",
        }
    }

    /// The policy with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// The decision on one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// A job was admitted.
    Fired,
    /// Skipped because the job of an earlier tick is unfinished.
    Skipped,
    /// The job's own unique policy answered with an existing job.
    Duplicate,
    /// The job was refused, by its own unique policy or otherwise.
    Rejected,
}

impl Decision {
    /// The decision's name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fired => "fired",
            Self::Skipped => "skipped",
            Self::Duplicate => "duplicate",
            Self::Rejected => "rejected",
        }
    }
}

/// A tick that has been decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tick {
    /// The time the tick stands for, in microseconds since the epoch.
    pub tick: i64,
    /// When it was decided, in microseconds since the epoch.
    pub at: i64,
    /// The decision.
    pub decision: Decision,
    /// Whether an operator triggered it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hand: bool,
    /// The job that was admitted, or the one that stood in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

/// A cron.
#[derive(Clone, Serialize, Deserialize)]
pub struct Cron {
    /// Distinguishes the cron from any other that had its name: the ids of its jobs are derived from it.
    pub incarnation: u64,
    /// The schedule's expression.
    pub expression: String,
    /// The zone of the expression's wall-clock times.
    pub timezone: String,
    /// What happens to a tick while an earlier job is unfinished.
    pub overlap: Overlap,
    /// Whether the cron ticks at all.
    pub enabled: bool,
    /// What the cron is for, in its owner's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The job, in the form that [`deferred`] stores.
    template: Box<RawValue>,
    /// When the cron was first registered, in microseconds since the epoch.
    pub created_at: i64,
    /// When it was last changed.
    pub updated_at: i64,
    /// The next tick; `None` while it is disabled.
    pub next_tick: Option<i64>,
    /// The last tick that the schedule decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_tick: Option<i64>,
    /// When it last admitted a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_at: Option<i64>,
    /// The last job it admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_job: Option<String>,
    /// Jobs it admitted that are not known to have ended, oldest first. The present overlap policy covers all
    /// of them, whatever it was when they were admitted. A job that replaced another comes before those that
    /// wait for it. The jobs in the dead letter list, which may be sent back, come before all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    live: Vec<String>,
    /// Number of jobs it has admitted.
    pub run_count: u64,
    /// Number of ticks that admitted no job.
    pub skip_count: u64,
    /// The most recently decided ticks, oldest first, at most [`CRON_HISTORY_MAX`].
    pub history: Vec<Tick>,
}

impl fmt::Debug for Cron {
    /// Leaves out the job, whose args may be sensitive.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cron")
            .field("expression", &self.expression)
            .field("timezone", &self.timezone)
            .field("overlap", &self.overlap)
            .field("enabled", &self.enabled)
            .field("next_tick", &self.next_tick)
            .finish_non_exhaustive()
    }
}

impl Cron {
    /// A cron that has not ticked yet.
    ///
    /// # Errors
    /// When the offer cannot be stored.
    pub(super) fn new(incarnation: u64, offer: &Offer, now: Timestamp) -> Result<Self, Corrupt> {
        Ok(Self {
            incarnation,
            expression: String::new(),
            timezone: String::new(),
            overlap: Overlap::default(),
            enabled: true,
            description: None,
            template: keep(offer)?,
            created_at: now.as_micros(),
            updated_at: now.as_micros(),
            next_tick: None,
            last_tick: None,
            last_run_at: None,
            last_job: None,
            live: Vec::new(),
            run_count: 0,
            skip_count: 0,
            history: Vec::new(),
        })
    }

    /// The job that a tick offers.
    ///
    /// # Errors
    /// When the stored text is not what this program wrote.
    pub fn offer(&self) -> Result<Offer, Corrupt> {
        deferred::decode(self.template.get().as_bytes())
    }

    /// Whether the cron already matches the registration.
    pub(super) fn is(&self, wanted: &Registration) -> bool {
        self.expression == wanted.expression
            && self.timezone == wanted.timezone
            && self.overlap == wanted.overlap
            && self.enabled == wanted.enabled.of(Some(self.enabled))
            && self.description == wanted.description
            && deferred::encode(&wanted.offer).is_ok_and(|text| text == self.template.get())
    }

    /// The stored text of the job that a tick offers.
    pub fn template(&self) -> &str {
        self.template.get()
    }

    /// Replaces the job that ticks offer.
    ///
    /// # Errors
    /// When the offer cannot be stored.
    pub(super) fn set_offer(&mut self, offer: &Offer) -> Result<(), Corrupt> {
        self.template = keep(offer)?;
        Ok(())
    }

    /// The schedule, parsed.
    ///
    /// # Errors
    /// When this program does not understand the expression.
    pub fn schedule(&self) -> Result<Schedule, Invalid> {
        Schedule::parse(&self.expression, &self.timezone)
    }

    /// The jobs that may be unfinished. A cron stored by a program that recorded only the last job yields
    /// that one.
    pub(super) fn live(&self) -> Vec<JobId> {
        let last = self.last_job.as_ref().filter(|_| self.live.is_empty());
        self.live.iter().chain(last).filter_map(|id| JobId::parse(id, "").ok()).collect()
    }

    /// Records the unfinished jobs in `ids`, and of the dead letters the newest that there is still room
    /// for. An id that is given several times, because several jobs stand for it, is kept once: otherwise
    /// each tick would multiply it.
    pub(super) fn set_live(&mut self, letters: &[JobId], ids: impl Iterator<Item = JobId>) {
        let mut seen = HashSet::new();
        let ids: Vec<JobId> = ids.filter(|id| seen.insert(*id)).collect();
        let ids = newest(&ids, CRON_JOBS_LIVE_MAX);
        let room = CRON_JOBS_LIVE_MAX - ids.len();
        let letters = newest(letters, room.min(CRON_DEAD_LETTERS_MAX));
        self.live = letters.iter().chain(ids).map(ToString::to_string).collect();
    }

    /// Appends the newest tick to the history.
    pub(super) fn remember(&mut self, tick: Tick) {
        if self.history.len() >= CRON_HISTORY_MAX {
            self.history.drain(..=self.history.len() - CRON_HISTORY_MAX);
        }
        self.history.push(tick);
    }

    /// The stored form, and when the cron is due.
    pub(super) fn encode(&self) -> (Bytes, Option<Timestamp>) {
        // Only strings, numbers and raw values: serialising them cannot fail.
        let text = serde_json::to_vec(self).unwrap_or_default();
        (text.into(), self.next_tick.map(Timestamp::from_micros))
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// When the bytes are not what this program writes.
    pub fn decode(text: &[u8]) -> Result<Self, Corrupt> {
        serde_json::from_slice(text).map_err(|error| Corrupt(error.to_string()))
    }
}

/// The last of these ids, at most `max`.
fn newest(ids: &[JobId], max: usize) -> &[JobId] {
    ids.get(ids.len().saturating_sub(max)..).unwrap_or_default()
}

/// Bytes that a cron stores for the job that its ticks offer: the length of its [template](Cron::template).
///
/// # Errors
/// When the offer cannot be stored.
pub fn template_bytes(offer: &Offer) -> Result<usize, Corrupt> {
    Ok(deferred::encode(offer)?.len())
}

fn keep(offer: &Offer) -> Result<Box<RawValue>, Corrupt> {
    RawValue::from_string(deferred::encode(offer)?).map_err(|error| Corrupt(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::{CRON_DEAD_LETTERS_MAX, CRON_HISTORY_MAX, CRON_JOBS_LIVE_MAX, Cron, Decision, JobId, Tick};

    fn ids(from: usize, count: usize) -> Vec<JobId> {
        let id = |number: usize| JobId::parse(&format!("00000000-0000-7000-8000-{number:012}"), "").unwrap();
        (from..from + count).map(id).collect()
    }

    fn cron() -> Cron {
        let text = r#"{"incarnation":1,"expression":"* * * * *","timezone":"UTC","overlap":"skip","enabled":true,"template":{},
            "created_at":0,"updated_at":0,"next_tick":null,"run_count":0,"skip_count":0,"history":[]}"#;
        Cron::decode(text.as_bytes()).unwrap()
    }

    /// In the order in which they first came.
    #[test]
    fn a_job_that_several_stand_for_is_known_once() {
        let (mut cron, live) = (cron(), ids(0, 3));
        cron.set_live(&[], [0, 2, 2, 1, 0, 2].map(|place: usize| live[place]).into_iter());
        assert_eq!(cron.live(), [live[0], live[2], live[1]]);
    }

    /// As stored by a program that recorded no other job.
    #[test]
    fn the_last_job_alone_may_go_on_where_no_others_are_named() {
        let (mut cron, ids) = (cron(), ids(0, 2));
        cron.last_job = Some(ids[0].to_string());
        assert_eq!(cron.live(), ids[..1]);
        cron.set_live(&[], ids[1..].iter().copied());
        assert_eq!(cron.live(), ids[1..]);
    }

    #[test]
    fn so_many_ticks_are_remembered() {
        let mut cron = cron();
        for at in 0..60 {
            cron.remember(Tick { tick: at, at, decision: Decision::Fired, by_hand: false, job: None });
            assert!(cron.history.len() <= CRON_HISTORY_MAX);
        }
        assert_eq!((cron.history.len(), cron.history[0].at), (CRON_HISTORY_MAX, 10));
    }

    /// No unfinished job is forgotten to make room for dead letters, however many there are.
    #[test]
    fn dead_letters_have_the_room_that_the_others_leave() {
        let mut cron = cron();
        let (letters, live) = (ids(0, CRON_JOBS_LIVE_MAX), ids(CRON_JOBS_LIVE_MAX, CRON_JOBS_LIVE_MAX + 1));
        let kept = [(2, CRON_DEAD_LETTERS_MAX), (CRON_JOBS_LIVE_MAX - 2, 2), (CRON_JOBS_LIVE_MAX + 1, 0)];
        for (given, letters_kept) in kept {
            cron.set_live(&letters, live.iter().copied().take(given));
            let mut newest = letters[letters.len() - letters_kept..].to_vec();
            newest.extend(&live[given.saturating_sub(CRON_JOBS_LIVE_MAX)..given]);
            assert!(cron.live() == newest, "{given}: {} of {}", cron.live().len(), newest.len());
        }
    }
}
