//! Follow-ups: skip what is already going to happen, but never lose the last request (SEMANTICS 4, `follow_up`).
//!
//! Mostly one follow-up waits for one run. But callers' policies differ, and runs are given back, so several
//! follow-ups may wait for several runs. Then they stand in one line: every run names the first follow-up in line,
//! and each follow-up names the next. The end of the last run releases the first in line, and the end of each
//! releases the next.

use crate::draft::{Draft, KeyRead, Missing};
use crate::ident::JobId;
use crate::job::{Head, Role};
use crate::life;
use crate::planted::{Bug, is_planted};
use crate::state::{Event, State, StateSet, next};

/// Releases the follow-up of a run that has ended, in the commit that ends it: the first in line becomes available,
/// or scheduled while its own time lies ahead. If another started holder of the key has not ended, the whole line
/// waits for that one too.
pub(crate) fn release(draft: &mut Draft, follow_up: JobId) -> Result<(), Missing> {
    let Some(waiting) = draft.head(follow_up)?.filter(waits) else {
        return Ok(());
    };
    let parties = Parties::of(draft, waiting)?;
    parties.link(draft);
    if (parties.runs.is_empty() || is_planted(Bug::FollowUpTooEarly))
        && let Some(first) = parties.line.into_iter().next()
    {
        let mut first = draft.newest(first);
        life::let_go(draft, &mut first);
    }
    Ok(())
}

/// Makes a follow-up that was created in this very decision wait for the runs of its key.
pub(crate) fn wait(draft: &mut Draft, follow_up: Head) -> Result<(), Missing> {
    Parties::of(draft, follow_up)?.link(draft);
    Ok(())
}

/// Makes a released follow-up that met another run of its key when it was to be claimed wait for that run as well.
/// Returns whether it waits.
///
/// # Errors
/// [`Missing`] when the snapshot lacks the job or its key.
pub fn hold_again(draft: &mut Draft, id: JobId) -> Result<bool, Missing> {
    let Some(mut waiting) = draft.head(id)? else {
        return Ok(false);
    };
    let (Role::FollowUp, Ok(state)) = (waiting.role, next(waiting.state, Event::Hold)) else {
        return Ok(false);
    };
    waiting.state = state;
    let parties = Parties::of(draft, waiting.clone())?;
    if parties.runs.is_empty() {
        return Ok(false);
    }
    draft.update(&mut waiting);
    parties.link(draft);
    Ok(true)
}

/// Whether the job is a follow-up that still waits for the end of a run.
fn waits(head: &Head) -> bool {
    head.role == Role::FollowUp && head.state == State::Pending
}

/// The live holders of a key: runs that are waited for, and follow-ups that wait.
struct Parties {
    /// Holders that have begun, except those in line.
    runs: Vec<Head>,
    /// The waiting follow-ups, in the order in which they are released.
    line: Vec<Head>,
}

impl Parties {
    /// The parties of the key of a waiting follow-up.
    fn of(draft: &mut Draft, waiting: Head) -> Result<Self, Missing> {
        let Some(key) = waiting.key else {
            return Ok(Self { runs: Vec::new(), line: vec![waiting] });
        };
        let read = KeyRead { key, states: StateSet::LIVE, all: true };
        let holders = draft.key(&read)?.holders.iter();
        let is_other = |holder: &&Head| holder.id != waiting.id && holder.state.is_live();
        let others: Vec<Head> = holders.filter(is_other).cloned().collect();
        let others = others.into_iter().map(|holder| draft.newest(holder));
        let (mut line, mut runs): (Vec<Head>, Vec<Head>) =
            others.filter(|holder| holder.state.is_live()).partition(waits);
        runs.retain(Head::has_begun);
        line.push(waiting);
        let now = draft.now();
        // A follow-up that was started before is a run that has not ended: unstarted ones wait for it too. An
        // unstarted one that has expired will never run, and blocks nobody.
        line.sort_by_key(|head| {
            let was_started = head.was_started();
            (!was_started, !was_started && head.is_expired(now), head.created_at, head.id)
        });
        Ok(Self { runs, line })
    }

    /// Makes every run name the first in line, and each follow-up in line the next.
    fn link(&self, draft: &mut Draft) {
        let Some(first) = self.line.first() else { return };
        for run in &self.runs {
            name(draft, run, first.id);
        }
        for (head, behind) in self.line.iter().zip(self.line.iter().skip(1)) {
            name(draft, head, behind.id);
        }
    }
}

fn name(draft: &mut Draft, head: &Head, follow_up: JobId) {
    let mut head = draft.newest(head.clone());
    if head.follow_up != Some(follow_up) {
        head.follow_up = Some(follow_up);
        draft.update(&mut head);
    }
}
