//! Which finished holders may be left out, because a later holder covers everything they could block.

use std::collections::HashSet;

use super::choice::PeriodFrom;
use super::hold::{Remember, must_remember};
use crate::ident::JobId;
use crate::job::{Ending, Head};
use crate::time::Timestamp;

/// Whether, of two finished holders of one key, `later` makes `earlier` redundant.
///
/// Then `later` blocks every offer that `earlier` blocks, for at least as long, and hides at least as much,
/// so `earlier` may be left out of the key's holders. This keeps a key's finished holders few, however often
/// it was used.
///
/// A holder that is left out is left out for good: it no longer holds the key, whatever becomes of the later
/// one. So neither may be a dead letter, which an operator may delete or send back; and releasing a key also
/// releases it for those left out.
///
/// Both must have ended in the same state; every time that a window can start from must be no earlier in
/// `later`, the fence no lower (a new job starts from the highest it saw), and it must be kept or remembered
/// at least as long. The last must hold even if duplicates, which are then counted for the later one alone,
/// keep renewing the window of the earlier one.
pub fn outlives(later: &Head, earlier: &Head) -> bool {
    let renewed = |head: &Head| head.renewed_at.unwrap_or(head.created_at);
    // Of two created at the same time, the one that an answer would name.
    (later.created_at, later.id) > (earlier.created_at, earlier.id)
        && later.key == earlier.key
        && later.state == earlier.state
        && is_weighed(later)
        && is_weighed(earlier)
        && (later.ending == Some(Ending::Expired)) <= (earlier.ending == Some(Ending::Expired))
        && later.finished_at >= earlier.finished_at
        && renewed(later) >= renewed(earlier)
        && later.fence >= earlier.fence
        && later.hold.disclose >= earlier.hold.disclose
        && remembered_until(later) >= remembered_until(earlier)
        && renews_as_long(later, earlier)
}

/// Whether duplicates keep `later` remembered for as long as they would keep `earlier`.
fn renews_as_long(later: &Head, earlier: &Head) -> bool {
    let own = |head: &Head| must_remember(head, Timestamp::EPOCH);
    let slides =
        |head: &Head| head.hold.from == PeriodFrom::LastDuplicate && matches!(own(head), Remember::Until(_));
    !slides(earlier)
        || own(later) == Remember::Forever
        || slides(later) && later.hold.period() == earlier.hold.period()
}

/// Whether a holder may outlive others or be outlived.
fn is_weighed(head: &Head) -> bool {
    head.state.is_finished() && !head.is_dead_letter()
}

/// Removes the holders that another outlives. Only eligible holders are compared with one another; they stay
/// few because redundant ones are removed. A key may have thousands of the others.
pub fn leave_out_outlived(holders: &mut Vec<Head>) {
    let weighed: Vec<&Head> = holders.iter().filter(|holder| is_weighed(holder)).collect();
    let is_outlived = |holder: &Head| weighed.iter().any(|other| outlives(other, holder));
    let outlived: HashSet<JobId> =
        weighed.iter().filter(|holder| is_outlived(holder)).map(|holder| holder.id).collect();
    if !outlived.is_empty() {
        holders.retain(|holder| !outlived.contains(&holder.id));
    }
}

/// When a finished head may be forgotten: the later of the times its own policy and its retention give.
fn remembered_until(head: &Head) -> Timestamp {
    let kept = head.purge_at().unwrap_or(Timestamp::EPOCH);
    head.remembered_until().map_or(kept, |until| until.max(kept))
}
