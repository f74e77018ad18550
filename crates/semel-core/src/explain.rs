//! What would happen to a job if it were offered now, and why: the real admission decision, taken and rolled back.

use std::sync::Arc;

use crate::draft::{Draft, KeyRead, Missing};
use crate::enqueue::{Identity, Offer, Outcome, enqueue};
use crate::job::Head;
use crate::state::StateSet;
use crate::time::Timestamp;
use crate::unique::{Disclose, OnConflict, admit};

/// The decision on a job that is not really offered, and what the decision rests on.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The decision's time.
    pub now: Timestamp,
    /// What would become of the job. A job that it names as created does not exist.
    pub outcome: Outcome,
    /// Every stored job that carries the key and is visible to the caller, newest first; incomplete when there are
    /// too many.
    pub holders: Vec<Head>,
    /// Whether there are more holders than one commit may touch.
    pub too_many: bool,
    /// The outcome under each strategy that the rest of the policy can be combined with; jobs named as created do
    /// not exist.
    pub strategies: Vec<(OnConflict, Outcome)>,
    /// Whether the holders may be shown: the strictest of the policy, every blocking holder's own and the caller's
    /// scope (SEMANTICS 4).
    pub disclose: Disclose,
}

/// Decides as [`enqueue`] would, and leaves no trace.
///
/// # Errors
/// [`Missing`] when the snapshot lacks something.
pub fn explain(draft: &mut Draft, offer: &Offer) -> Result<Explanation, Missing> {
    let now = draft.now();
    let (mut holders, mut too_many, mut strategies) = (Vec::new(), false, Vec::new());
    let mut own = None;
    let sight = offer.sight();
    let mut disclose = if sight.inspect { Disclose::Always } else { Disclose::Never };
    if let Some(identity) = &offer.unique {
        let policy = &*identity.policy;
        let view = draft.key(&KeyRead { key: identity.key, states: StateSet::ALL, all: true })?;
        holders.clone_from(&view.holders);
        too_many = view.too_many;
        disclose = disclose.max(policy.disclose());
        disclose = disclose.max(admit(policy, &holders, now, sight).disclose());
        strategies = under_each_strategy(draft, offer, identity)?;
        // The caller's own strategy is among them: what would happen and what is listed for it are one decision.
        own = strategies.iter().find(|(strategy, _)| *strategy == policy.on_conflict()).cloned();
        holders.retain(|holder| sight.sees(&holder.queue));
        holders.sort_by_key(|holder| std::cmp::Reverse((holder.created_at, holder.id)));
    }
    let outcome = match own {
        Some((_, outcome)) => outcome,
        None => {
            let outcome = enqueue(draft, offer)?;
            draft.roll_back();
            outcome
        }
    };
    Ok(Explanation { now, outcome, holders, too_many, strategies, disclose })
}

/// Decides as `enqueue` would under each strategy, and leaves no trace.
fn under_each_strategy(
    draft: &mut Draft,
    offer: &Offer,
    identity: &Identity,
) -> Result<Vec<(OnConflict, Outcome)>, Missing> {
    let (mut outcomes, mut is_missing) = (Vec::new(), false);
    for &strategy in OnConflict::ALL {
        let Some(policy) = identity.policy.with_on_conflict(strategy) else { continue };
        let identity = Identity { policy: Arc::new(policy), key: identity.key };
        let offer = Offer { unique: Some(identity), ..offer.clone() };
        match enqueue(draft, &offer) {
            Ok(outcome) => outcomes.push((strategy, outcome)),
            // What all of them lack is loaded in one go.
            Err(Missing) => is_missing = true,
        }
        draft.roll_back();
    }
    if is_missing { Err(Missing) } else { Ok(outcomes) }
}
