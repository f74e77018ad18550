//! A claim: one script that grants by a template. Its answer is what is stored then.

use bytes::Bytes;
use redis::{Cmd, Value};
use semel_core::draft::Full;
use semel_core::event::EventKind;
use semel_core::lease::Unclaimable;
use semel_core::limits::EXECUTION_DEFAULT_MS;
use semel_core::state::State;
use semel_store::backend::{Claim, Claimed};
use semel_store::bounds::{CLAIM_LOOKS_EXTRA, LANE_LOOKS};

use crate::error::RedisError;
use crate::load::{notes, stored};
use crate::store::Shared;
use crate::values::{Values, bytes, id, list, number};

impl Shared {
    /// Adds a claim to a call of its script.
    pub(crate) fn push_claim(&self, command: &mut Cmd, claim: &Claim) {
        command
            .arg(claim.limit)
            .arg(CLAIM_LOOKS_EXTRA)
            .arg(&*claim.grant.worker)
            .arg(claim.grant.visibility_ms)
            .arg(EXECUTION_DEFAULT_MS)
            .arg(State::Active.code())
            .arg(EventKind::Started.code())
            .arg(LANE_LOOKS)
            .arg(claim.queues.len());
        for queue in &claim.queues {
            command.arg(queue.as_str());
        }
        for lane in &claim.closed {
            command.arg(&lane.code().to_be_bytes()[..]);
        }
    }

    /// What a claim took, from its answer.
    pub(crate) fn claimed(&self, value: Value) -> Result<Claimed, RedisError> {
        let mut answer = Values::of(value)?;
        self.saw(answer.time()?);
        let mut claimed = Claimed::default();
        for job in list(answer.take()?)? {
            let mut parts = Values::of(job)?;
            let id = id(parts.take()?)?;
            let stored = stored(id, parts.take()?)?.ok_or(RedisError::Head { id })?;
            let body = Bytes::from(bytes(parts.take()?)?);
            claimed.jobs.push((stored.head, Full { body, notes: notes(parts.take()?)? }));
        }
        for refused in list(answer.take()?)? {
            let mut parts = Values::of(refused)?;
            let id = id(parts.take()?)?;
            let reason = match number::<i64>(parts.take()?)? {
                0 => Unclaimable::Expired,
                1 => Unclaimable::Exhausted,
                2 => Unclaimable::Overlaps,
                3 => Unclaimable::Limited,
                _ => return Err(RedisError::Answer("claim")),
            };
            claimed.unclaimable.push((id, reason));
        }
        Ok(claimed)
    }
}
