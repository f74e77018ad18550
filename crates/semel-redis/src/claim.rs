//! Claims: one script that grants by a template, to all that differ in nothing but who takes how many. Its answer is what is stored
//! then, and the caller is told that: the core grants nothing anew. That it is what the core would have granted the tests see, which
//! compare it with the model's.

use bytes::Bytes;
use redis::{Cmd, Value};
use semel_core::draft::Full;
use semel_core::lease::{Grant, Unclaimable};
use semel_store::backend::{Claim, Claimed};
use semel_store::bounds::{CLAIM_LOOKS_EXTRA, LANE_LOOKS};

use crate::error::RedisError;
use crate::load::{notes, stored};
use crate::store::Shared;
use crate::values::{Values, bytes, id, list, number};

impl Shared {
    /// Adds claims that [go together](Claim::differs_in_taker_alone) to a call of their script.
    pub(crate) fn push_claims(&self, command: &mut Cmd, claims: &[Claim]) {
        let Some(first) = claims.first() else { return };
        command
            .arg(CLAIM_LOOKS_EXTRA)
            .arg(first.grant.visibility_ms)
            .arg(Grant::TIMEOUT_MS)
            .arg(Grant::STATE.code())
            .arg(Grant::EVENT.code())
            .arg(LANE_LOOKS)
            .arg(claims.len());
        for claim in claims {
            command.arg(&*claim.grant.worker).arg(claim.limit);
        }
        command.arg(first.queues.len());
        for queue in &first.queues {
            command.arg(queue.as_str());
        }
        for lane in &first.closed {
            command.arg(&lane.code().to_be_bytes()[..]);
        }
    }

    /// What so many claims took, from the answer of their script.
    pub(crate) fn all_claimed(&self, value: Value, claims: usize) -> Result<Vec<Claimed>, RedisError> {
        let mut answer = Values::of(value)?;
        self.saw(answer.time()?);
        (0..claims).map(|_| claimed(answer.take()?)).collect()
    }
}

/// What a claim took.
fn claimed(value: Value) -> Result<Claimed, RedisError> {
    let mut answer = Values::of(value)?;
    let mut claimed = Claimed::default();
    for job in list(answer.take()?)? {
        let mut parts = Values::of(job)?;
        let id = id(parts.take()?)?;
        let stored = match stored(id, parts.take()?) {
            Ok(Some(stored)) => stored,
            // It is taken, as the others are: its lease ends for want of a worker, and theirs need not.
            Ok(None) | Err(RedisError::Head { .. }) => {
                tracing::error!(job = %id, "a job was taken whose head is not understood; nobody is given it");
                continue;
            }
            Err(error) => return Err(error),
        };
        let body = Bytes::from(bytes(parts.take()?)?);
        let Ok(notes) = notes(parts.take()?) else {
            tracing::error!(job = %id, "a job was taken whose notes are not understood; nobody is given it");
            continue;
        };
        claimed.jobs.push((stored.head, Full { body, notes }));
    }
    for refused in list(answer.take()?)? {
        let mut parts = Values::of(refused)?;
        let id = id(parts.take()?)?;
        let reason = Unclaimable::from_code(number(parts.take()?)?);
        claimed.unclaimable.push((id, reason.ok_or(RedisError::Answer("claim"))?));
    }
    Ok(claimed)
}
