//! `replace`: cancels every blocking holder and creates the new job in their place, in one commit (SEMANTICS 4).

use crate::draft::{Draft, Missing, each};
use crate::ident::JobId;
use crate::job::{Ending, Head, NoteKind, Role};
use crate::life::cancel_head;
use crate::lineage::Lineage;
use crate::settings::Depth;
use crate::state::State;
use crate::time::Timestamp;
use crate::trail::Marks;
use crate::unique::{Admission, Disclose, admit};
use crate::waiting::{self, Waiters};

use super::mismatch::refuse_mismatch;
use super::{Holder, Identity, Offer, Outcome, Placing, create, room};

/// Cancels whatever blocks and creates the job. `admission` is the decision about the holders as they are;
/// `fence` is the highest fence among them.
///
/// The end of a run releases its follow-up, which may block in the state it moves to. So the decision is
/// taken again until nothing blocks. That terminates, because each round ends a live holder and none begins
/// to live. It mostly ends in `Create`, because whatever a round changes is either cancelled, which no
/// replacing policy covers, or released. But the end of a task's step may fail another task with the key: a
/// holder that ended this way is not replaced, and then nothing is cancelled.
pub(super) fn replace(
    draft: &mut Draft,
    offer: &Offer,
    identity: &Identity,
    mut admission: Admission,
    mut fence: u64,
) -> Result<Outcome, Missing> {
    let now = draft.now();
    let mut placing = Placing::of(offer, now);
    let mut cancelled: Vec<JobId> = Vec::new();
    let (mut waiters, mut ahead) = (Waiters::default(), Vec::new());
    let (before, room) = (draft.mark(), room(draft, offer)?);
    let mut hidden = identity.policy.disclose();
    // By the policies alone: what is stored must not depend on who asked.
    let mut kept = hidden;
    // Over all rounds: a later one may neither delay the job nor let it run beside a lease an earlier one burned.
    let (mut earliest, mut latest) = (None::<Timestamp>, None::<Timestamp>);
    while let Admission::Replace { holders, scheduled_at, wait_until, disclose } = &admission {
        let taken = draft.key(&identity.read())?.holders.iter().filter(|head| holders.contains(&head.id));
        kept = taken.map(|head| head.hold.disclose).fold(kept, Ord::max);
        let burned = cancel(draft, identity, holders)?;
        fence = fence.max(burned.fence);
        waiters.0.extend(burned.waiters.0);
        ahead.extend(burned.ahead);
        // Kept whether or not this job waits for it: a job that takes its place may have to.
        placing.burned_until = placing.burned_until.max(burned.until.filter(|until| *until > now));
        earliest = [earliest, *scheduled_at].into_iter().flatten().min();
        latest = latest.max(*wait_until);
        if let Some(at) = earliest {
            placing.start_at(at, now);
        }
        if let Some(until) = latest {
            placing.not_before(until, now);
        }
        hidden = hidden.max(*disclose);
        if burned.ended.is_empty() {
            // What was loaded was inconsistent: a holder has ended since the others were read. The commit
            // detects this by their versions, and the decision is taken again.
            break;
        }
        // In the order of the decision, not of the store: the job that an answer names comes first.
        cancelled.extend(holders.iter().filter(|id| burned.ended.contains(id)));
        let holders = &draft.key(&identity.read())?.holders;
        admission = admit(&identity.policy, holders, now, offer.sight());
        let ends = admission.ends();
        let next: Vec<Head> = holders.iter().filter(|head| ends.contains(&head.id)).cloned().collect();
        if let Some(refused) = refuse_mismatch(draft, offer, &identity.policy, &admission, &next)? {
            draft.back_to(before);
            return Ok(refused);
        }
        if let Admission::Reject { holder, why, disclose, .. } = admission {
            draft.back_to(before);
            // As stored: what would have ended it was undone.
            let stored = draft.key(&identity.read())?.holders.iter().find(|head| head.id == holder).cloned();
            return Ok(stored.map_or(Outcome::TooManyHolders, |head| Outcome::Rejected {
                holder: Holder { head: Box::new(draft.newest(head)), disclose },
                why,
            }));
        }
    }
    // All of them are told in the commit that ends the new job.
    if !waiting::fit(draft, &offer.queue, &mut waiters, usize::from(offer.awaited))? {
        draft.back_to(before);
        return Ok(Outcome::TooManyHolders);
    }
    // It takes the place of a job that waited in its queue; one that was running or waited elsewhere leaves none.
    if let Some((bound, waited)) = room {
        let waiting = draft.waiting(&offer.queue);
        if waiting >= waited && !bound.admits(waiting) {
            draft.back_to(before);
            return Ok(Outcome::QueueFull(Depth { waiting: waited, bound: bound.max_depth }));
        }
        draft.meet_at_bound(&offer.queue)?;
    }
    placing.awaited = !waiters.0.is_empty();
    let undisclosed = kept != Disclose::Always;
    let lineage = if undisclosed { Lineage::default() } else { Lineage::replacing(&cancelled) };
    let head = create(draft, offer, &placing, lineage, fence)?;
    // Whatever waits for one of them goes on waiting for the new job.
    let marks = Marks { replaced_by: Some(head.id.to_string()), undisclosed }.encode();
    for id in &cancelled {
        draft.note(*id, NoteKind::Marks, Some(marks.clone()));
    }
    waiting::hand_over(draft, &head, &waiters, &ahead);
    Ok(Outcome::Replaced { head: Box::new(head), cancelled, disclose: hidden })
}

/// What the cancelled holders leave behind.
#[derive(Default)]
struct Burned {
    /// The highest fence that they had or got when their leases were burned.
    fence: u64,
    /// When the last of their leases would have ended.
    until: Option<Timestamp>,
    /// Those that were live and are now cancelled, directly or together with another one.
    ended: Vec<JobId>,
    /// The waiters for their ends.
    waiters: Waiters,
    /// The jobs whose ends held back those of them that have waiters.
    ahead: Vec<JobId>,
}

/// Cancels these holders.
fn cancel(draft: &mut Draft, identity: &Identity, ids: &[JobId]) -> Result<Burned, Missing> {
    let holders = &draft.key(&identity.read())?.holders;
    let mut heads: Vec<Head> = holders.iter().filter(|head| ids.contains(&head.id)).cloned().collect();
    // A waiting follow-up first: otherwise the end of its run would release it before it is replaced. The
    // others in the order of the decision, not of the store.
    let place = |id: JobId| ids.iter().position(|known| *known == id);
    heads.sort_by_key(|head| (head.role != Role::FollowUp, place(head.id)));
    let live: Vec<Head> =
        heads.iter().map(|head| draft.newest(head.clone())).filter(|head| head.state.is_live()).collect();
    let mut burned = Burned::default();
    each(heads, |head| {
        let mut head = draft.newest(head);
        burned.until = burned.until.max(head.run_may_last_until());
        let (mut own, mut kept) = (Waiters::default(), None);
        if head.awaited {
            let mut waiters = waiting::take(draft, &mut head)?;
            kept = Some(waiters.kept_after_end()).filter(|kept| kept != &waiters);
            own = waiters.split_off_own();
            burned.waiters.0.extend(waiters.0);
            if let Some((_, full)) = draft.full(head.id)? {
                burned.ahead.extend(waiting::ahead_of(&full));
            }
        }
        // Cancelling is refused for a holder that has ended together with another, as a task's steps do.
        let _ = cancel_head(draft, &mut head, Ending::Replaced)?;
        if let Some(kept) = kept {
            // The new job records the waiters. If each replaced job kept them too, a chain of replacements
            // would take quadratic space.
            draft.note(head.id, NoteKind::Waiters, (!kept.0.is_empty()).then(|| kept.encode()));
        }
        waiting::tell(draft, &head, &own)?;
        burned.fence = burned.fence.max(head.fence);
        Ok(())
    })?;
    let cancelled =
        live.into_iter().map(|head| draft.newest(head)).filter(|head| head.state == State::Cancelled);
    burned.ended = cancelled.map(|head| head.id).collect();
    Ok(burned)
}
