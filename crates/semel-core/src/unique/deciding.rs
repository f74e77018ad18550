//! Reducing a key's holders to those that can change one decision.

use crate::job::{Ending, Head};
use crate::time::Timestamp;

/// Reduces holders to those that can change an admission.
///
/// A holder is dropped only if a kept holder in the same state was created, finished and last renewed no
/// earlier, expires no earlier, and is at least as undisclosed. Two exceptions: a holder that expired
/// unstarted blocks nobody, so it can only replace another such; and one that would expire unstarted cannot
/// replace one that has begun (which still blocks as discarded) or that never expires.
///
/// So every offer that a dropped holder would block is blocked by a kept one, and the holder that an answer
/// names is kept. A policy that acts on every blocking holder needs them all: see
/// [`UniquePolicy::needs_all_holders`](super::UniquePolicy::needs_all_holders). The result serves one
/// decision only: unlike [`outlives`](super::outlives), it says nothing about what becomes of the holders
/// later.
pub fn deciding<'a>(holders: impl Iterator<Item = &'a Head>) -> Vec<&'a Head> {
    let mut holders: Vec<&Head> = holders.collect();
    // Newest first: each holder is compared with those created no earlier. Of two created at the same time,
    // the one that an answer would name comes first.
    holders.sort_unstable_by_key(|holder| std::cmp::Reverse((holder.created_at, holder.id)));
    let mut kept: Vec<&Head> = Vec::new();
    for holder in holders {
        let is_dropped = kept.iter().any(|other| other.state == holder.state && covers(other, holder));
        if !is_dropped {
            kept.push(holder);
        }
    }
    kept
}

/// Whether `newer`, in the same state and created no earlier, blocks every offer that `older` blocks and
/// hides at least as much.
fn covers(newer: &Head, older: &Head) -> bool {
    let expires = |head: &Head| head.expires_at.unwrap_or(Timestamp::MAX);
    let renewed = |head: &Head| head.renewed_at.unwrap_or(head.created_at);
    let blocks = |head: &Head| head.ending != Some(Ending::Expired);
    let stays = |head: &Head| head.expires_at.is_none() || head.has_begun();
    newer.finished_at >= older.finished_at
        && renewed(newer) >= renewed(older)
        && expires(newer) >= expires(older)
        && newer.hold.disclose >= older.hold.disclose
        && blocks(newer) >= blocks(older)
        && stays(newer) >= stays(older)
}
