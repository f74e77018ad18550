//! What a store answers and does while it is copied into another store, or another into it.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use semel_core::ident::QueueName;
use semel_core::job::Head;
use semel_core::time::Timestamp;
use semel_store::bounds::PLACE_BITS;
use semel_store::carry::{Heritage, Piece};

use crate::error::RedisError;
use crate::load::{queue_row, stored};
use crate::partitions::Partitions;
use crate::store::Shared;
use crate::values::{Values, bytes, id_of, list, maybe_bytes, number};
use crate::whole::newest;
use crate::writers::Writers;

/// Keys of the server that one call scans when it looks for rows.
const LOOKS: u32 = 10_000;

/// A head that is kept for its key alone: its place in their sorted set, the head, and until when.
type Kept = (Vec<u8>, Head, Timestamp);

impl Shared {
    /// Heads that are kept for their keys alone and come after `after`, ordered by until when.
    async fn kept(&self, after: &[u8], limit: u32) -> Result<Vec<Kept>, RedisError> {
        let mut asked = self.question("kept");
        asked.arg(after).arg(limit);
        let (_, said) = self.answer(asked).await?;
        let mut found = Vec::new();
        for entry in list(said)? {
            let mut entry = Values::of(entry)?;
            let member = bytes(entry.take()?)?;
            let id = id_of(member.get(8..).unwrap_or_default())?;
            let Some(head) = stored(id, entry.take()?)? else { continue };
            found.extend(head.kept.map(|until| (member, head.head, until)));
        }
        Ok(found)
    }
}

impl Partitions {
    /// A page of the heads that are kept for their keys alone, ordered by until when.
    pub async fn remembered(&self, after: Option<Bytes>, limit: u32) -> Result<Piece, RedisError> {
        let after = after.unwrap_or_default();
        let (mut all, mut is_more) = (Vec::new(), false);
        for kept in join_all(self.parts().iter().map(|shared| shared.kept(&after, limit))).await {
            let kept = kept?;
            is_more |= kept.len() >= limit as usize;
            all.extend(kept);
        }
        all.sort_unstable_by(|(one, ..), (other, ..)| one.cmp(other));
        is_more |= all.len() > limit as usize;
        all.truncate(limit as usize);
        let next = all.last().filter(|_| is_more).map(|(member, ..)| Bytes::copy_from_slice(member));
        Ok(Piece {
            heads: all.into_iter().map(|(_, head, until)| (head, until)).collect(),
            next,
            ..Piece::default()
        })
    }

    /// A page of the rows that were written. Rows that are not queues are in no list, so all keys are
    /// scanned, once for each partition.
    pub async fn rows(&self, after: Option<Bytes>) -> Result<Piece, RedisError> {
        let (place, cursor) = match after.as_deref().and_then(|after| after.split_first_chunk()) {
            Some((place, cursor)) => (u16::from_be_bytes(*place), cursor),
            None => (0, &b"0"[..]),
        };
        let shared = self.at(place);
        let mut asked = shared.question("rows");
        asked.arg(cursor).arg(LOOKS);
        let (_, said) = shared.answer(asked).await?;
        let mut said = Values::of(said)?;
        let next = bytes(said.take()?)?;
        let (mut piece, mut queues) = (Piece::default(), Vec::new());
        for entry in list(said.take()?)? {
            let mut entry = Values::of(entry)?;
            let name = QueueName::from_stored(&String::from_utf8_lossy(&bytes(entry.take()?)?));
            let row = queue_row(name, maybe_bytes(entry.take()?)?)?;
            if row.name.is_queue() && self.only().is_none() {
                queues.push(row.name);
            } else if row.version > 0 {
                piece.rows.push(row);
            }
        }
        // A queue's row is in all partitions. The newest counts, and is reported by the first partition that
        // has one.
        let asked = self.parts().iter().map(|shared| shared.rows_of(&queues));
        let found = join_all(asked).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let first_here = newest(found).into_iter().filter(|(first, _)| *first == usize::from(place));
        piece.rows.extend(first_here.map(|(_, row)| row));
        let next = match (&next[..], place + 1) {
            (b"0", next) if next < self.count() => Some((next, b"0".to_vec())),
            (b"0", _) => None,
            _ => Some((place, next)),
        };
        piece.next = next.map(|(place, cursor)| [&place.to_be_bytes()[..], &cursor].concat().into());
        Ok(piece)
    }

    /// Takes the place of another store. The first partition is told last, once the others have stored it
    /// durably: it says what the whole store is, and until then the others remain parts of the old one.
    pub async fn inherit(&self, heritage: &Heritage) -> Result<(), RedisError> {
        for shared in self.parts() {
            let commits = shared.writers.iter().flat_map(Writers::links);
            commits.chain([&shared.link]).for_each(|link| link.expect_heir(heritage.secret));
        }
        let (first, others) = self.parts().split_first().ok_or(RedisError::Answer("no partition"))?;
        self.inherit_in(others, heritage).await?;
        self.inherit_in(std::slice::from_ref(first), heritage).await
    }

    async fn inherit_in(&self, parts: &[Arc<Shared>], heritage: &Heritage) -> Result<(), RedisError> {
        for shared in parts {
            // The log of the whole store is in the first partition.
            let last = if shared.partition == 0 { heritage.log.div_ceil(1 << PLACE_BITS) } else { 0 };
            let inherit = || {
                let mut inherit = shared.upkeep_call("inherit");
                inherit.arg(&heritage.secret[..]).arg(last).arg(heritage.time.as_micros());
                shared.look(inherit)
            };
            self.patiently(shared.partition, inherit).await?;
        }
        let all: Vec<u16> = (0..self.count()).collect();
        self.confirm_in(&all).await
    }

    /// How many servers subscribe to news of commits. An account that may not ask gets 0, and a
    /// cluster node knows only its own subscribers.
    pub async fn company(&self) -> Result<u64, RedisError> {
        let first = self.first();
        first.link.connection().await?;
        let mut asked = redis::cmd("PUBSUB");
        asked.arg("NUMSUB").arg(first.channel());
        match first.look(asked).await {
            Ok(said) => Ok(list(said)?.into_iter().nth(1).map_or(Ok(0), number::<u64>)?),
            Err(error) if error.is_lost_connection() => Err(error),
            Err(error) => {
                tracing::debug!(%error, "it is not known who else has the store open");
                Ok(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every place in the old log comes before all places in the new one.
    #[test]
    fn a_log_begins_behind_the_record_that_the_other_ends_with() {
        for (log, last) in [(0, 0), (1, 1), ((7 << PLACE_BITS) - 1, 7), (7 << PLACE_BITS, 7)] {
            assert_eq!(u64::div_ceil(log, 1 << PLACE_BITS), last);
            assert!((last << PLACE_BITS) >= log);
        }
    }
}
