//! Claims: one script serves all claims that differ only in worker and limit, granting by a template.
//!
//! Its answer is what Redis now stores, and the caller gets that answer: the core does not compute the grant
//! again. That it equals what the core would have granted is checked by tests that compare it with the model.

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
    /// Appends claims that [go together](Claim::differs_in_taker_alone) to a call of their script.
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

    /// The jobs that each of `claims` claims took, from the answer of their script.
    pub(crate) fn all_claimed(&self, value: Value, claims: usize) -> Result<Vec<Claimed>, RedisError> {
        let mut answer = Values::of(value)?;
        self.saw(answer.time()?);
        (0..claims).map(|_| claimed(answer.take()?)).collect()
    }
}

/// The jobs that one claim took.
fn claimed(value: Value) -> Result<Claimed, RedisError> {
    let mut answer = Values::of(value)?;
    let mut claimed = Claimed::default();
    for job in list(answer.take()?)? {
        let mut parts = Values::of(job)?;
        let id = id(parts.take()?)?;
        let stored = match stored(id, parts.take()?) {
            Ok(Some(stored)) => stored,
            // The job is taken, like the others. Its own lease ends for want of a worker; theirs need not, so
            // go on.
            Ok(None) | Err(RedisError::Head { .. }) => {
                tracing::error!(job = %id, "a claimed job's head cannot be read; it is given to nobody");
                continue;
            }
            Err(error) => return Err(error),
        };
        let body = Bytes::from(bytes(parts.take()?)?);
        let Ok(notes) = notes(parts.take()?) else {
            tracing::error!(job = %id, "a claimed job's notes cannot be read; it is given to nobody");
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
