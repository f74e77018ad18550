//! The one job that waits for the end of a run: skip what is already going to happen, but never lose the last
//! request (SEMANTICS 4, `follow_up`).

use crate::draft::{Draft, KeyRead, Missing};
use crate::event::EventKind;
use crate::ident::JobId;
use crate::job::{Head, Role};
use crate::planted::{Bug, is_planted};
use crate::state::{Event, State, StateSet, next};

/// A run that `follow_up` waited for has ended, in this very commit: the follow-up becomes available, unless another
/// started holder of its key is still under way; then it waits for that one too.
pub(crate) fn release(draft: &mut Draft, ended: &Head, follow_up: JobId) -> Result<(), Missing> {
    let Some(mut waiting) = draft.head(follow_up)? else {
        return Ok(());
    };
    if waiting.state != State::Pending || waiting.role != Role::FollowUp {
        return Ok(());
    }
    let others = started_holders(draft, &waiting, ended.id)?;
    if others.is_empty() || is_planted(Bug::FollowUpTooEarly) {
        if let Ok(state) = next(waiting.state, Event::Activate) {
            waiting.state = state;
            waiting.available_at = draft.now();
            draft.update(&mut waiting);
            draft.tell(EventKind::Available, &waiting, 0);
        }
        return Ok(());
    }
    wait_for(draft, others, follow_up);
    Ok(())
}

/// Has the end of each of these live holders let `follow_up` go. One of them that was started before, and waits again for a run that
/// overlapped it, goes first: whoever lets that one go is still to do so, and its own end lets this one go.
pub(crate) fn wait_for(draft: &mut Draft, holders: Vec<Head>, follow_up: JobId) {
    let waits_again =
        |head: &&Head| head.role == Role::FollowUp && head.state == State::Pending && head.was_started();
    let waiting: Vec<JobId> = holders.iter().filter(waits_again).map(|head| head.id).collect();
    for holder in holders {
        let mut holder = draft.newest(holder);
        if holder.follow_up.is_some_and(|next| next == follow_up || waiting.contains(&next)) {
            continue;
        }
        holder.follow_up = Some(follow_up);
        draft.update(&mut holder);
    }
}

/// Live holders of the follow-up's key that have begun, but for the follow-up itself and `ended`.
fn started_holders(draft: &mut Draft, waiting: &Head, ended: JobId) -> Result<Vec<Head>, Missing> {
    let Some(key) = waiting.key else {
        return Ok(Vec::new());
    };
    let read = KeyRead { key, states: StateSet::LIVE, all: true };
    let holders = draft.key(&read)?.holders.iter();
    Ok(holders
        .filter(|holder| holder.id != waiting.id && holder.id != ended)
        .filter(|holder| holder.state.is_live() && holder.has_begun())
        .cloned()
        .collect())
}

/// A released follow-up met another run of its key when it was to be claimed: it waits for that run as well. Says
/// whether it does.
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
    let others = started_holders(draft, &waiting, id)?;
    if others.is_empty() {
        return Ok(false);
    }
    waiting.state = state;
    draft.update(&mut waiting);
    for mut other in others {
        other.follow_up = Some(id);
        draft.update(&mut other);
    }
    Ok(true)
}
