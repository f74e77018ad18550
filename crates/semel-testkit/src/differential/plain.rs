//! What is compared: outcomes and heads, without the differences that stores are allowed.

use semel_core::draft::{KeyRead, Reads};
use semel_core::enqueue::{Batch, Outcome};
use semel_core::ident::JobId;
use semel_core::job::{Head, NoteKind};
use semel_core::life::Revived;
use semel_core::limit::Turn;
use semel_core::settle::Settled;
use semel_core::sight::Sight;
use semel_core::unique::{Admission, admit};

use super::command::policy;
use crate::fixture::Fixture;

/// Writes a note on a job.
pub(super) async fn note(f: &Fixture, id: JobId, kind: NoteKind, text: bytes::Bytes) -> bool {
    f.decide_on(&Reads { heads: vec![id], ..Reads::default() }, |draft| {
        let Some(mut head) = draft.head(id)? else { return Ok(false) };
        draft.update(&mut head);
        draft.note(id, kind, Some(text.clone()));
        Ok(true)
    })
    .await
}

/// The heads of these jobs.
pub(super) async fn dump(f: &Fixture, jobs: &[JobId]) -> Vec<Option<Head>> {
    let snapshot = f.load(&Reads { heads: jobs.to_vec(), ..Reads::default() }).await;
    jobs.iter().map(|id| snapshot.peek(*id).map(|(head, _)| plain(head))).collect()
}

/// A head without what may differ between stores.
///
/// An unstarted job's fence comes from the holders that its admission saw, and which ended ones it saw
/// depends on the store. Likewise an ended job that no longer holds its key may still show it: holders are
/// compared by decisions.
fn plain(head: &Head) -> Head {
    let fence = if head.attempt == 0 { 0 } else { head.fence };
    let key = head.key.filter(|_| head.state.is_live() || head.is_dead_letter());
    Head { fence, key, ..head.clone() }
}

/// The decision on a job with this key and policy.
pub(super) async fn decision(f: &Fixture, number: u64, with: usize) -> Admission {
    let offer = policy(number, with).offer();
    let identity = offer.unique.unwrap();
    let policy = &identity.policy;
    let read = KeyRead { key: identity.key, states: policy.states(), all: policy.needs_all_holders() };
    let snapshot = f.load(&Reads { keys: vec![read], ..Reads::default() }).await;
    admit(policy, &snapshot.peek_key(&identity.key).unwrap().holders, snapshot.now, Sight::everything())
}

/// The answers of both stores to a request about a run, without their differences.
pub(super) fn settled((model, store): (Settled, Settled)) -> (Settled, Settled) {
    let plain = |settled| match settled {
        Settled::Done(head) => Settled::Done(Box::new(plain(&head))),
        Settled::Repeated(head) => Settled::Repeated(Box::new(plain(&head))),
        refused @ Settled::Refused(_) => refused,
    };
    (plain(model), plain(store))
}

/// The answer to sending back; a remembered holder has lost everything that its key does not need.
pub(super) fn revived(revived: &Revived) -> String {
    match revived {
        Revived::Done(head) => format!("done {:?}", plain(head)),
        Revived::Blocked { holder } => format!("blocked by {}", holder.absorbed_by()),
        Revived::Refused(refusal) => format!("{refusal:?}"),
    }
}

/// What happened to a job under a limit.
pub(super) fn turn(turn: &Turn) -> String {
    match turn {
        Turn::Granted(job) => format!("granted {:?}", plain(&job.0)),
        other => format!("{other:?}"),
    }
}

/// The answers to a batch, as text.
pub(super) fn batch(batch: &Batch) -> Vec<String> {
    match batch {
        Batch::Done(outcomes) => outcomes.iter().map(outcome).collect(),
        Batch::Refused { index, outcome: refused } => {
            vec![format!("refused at {index}: {}", outcome(refused))]
        }
    }
}

/// The answer to one offer, as text.
pub(super) fn outcome(outcome: &Outcome) -> String {
    let named = |head: &Head| format!("{} {:?} v{}", head.id, head.state, head.version);
    match outcome {
        Outcome::Created(head) => format!("created {}", named(head)),
        Outcome::Repeated(head) => format!("repeated {}", named(head)),
        Outcome::Replaced { head, cancelled, .. } => format!("replaced {cancelled:?} by {}", named(head)),
        Outcome::FollowUp(head) => format!("follow-up {}", named(head)),
        Outcome::Amended(head) => format!("amended {}", named(head)),
        Outcome::Existing(head) => format!("existing {}", named(head)),
        Outcome::Rejected { holder, why } => {
            format!("rejected {why:?} for {}, shown {}", holder.absorbed_by(), holder.named().is_some())
        }
        Outcome::Mismatch { holder, pointers } => {
            format!("mismatch {pointers:?} with {}", holder.absorbed_by())
        }
        other => format!("{other:?}"),
    }
}
