//! Which jobs hold their keys, and until when: by their heads, or by their own policies where heads do not suffice.

use semel_core::draft::Map;
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::time::Timestamp;
use semel_core::trail::Duplicates;
use semel_core::unique::{Holding, held_until, holding, holds, until_asks_policy};
use semel_store::StoreError;

use crate::engine::Engine;
use crate::room::Room;

/// What is asked about jobs with keys, which decides which of them must be read whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Whether they hold their keys.
    Whether,
    /// Whether, and until when.
    Until,
    /// Whether, and which duplicates they have absorbed.
    Duplicates,
}

impl Asked {
    fn is_read(self, head: &Head, now: Timestamp) -> bool {
        match self {
            Self::Whether => holding(head, now) == Holding::AskPolicy,
            Self::Until => until_asks_policy(head),
            Self::Duplicates => true,
        }
    }
}

/// How jobs hold their keys at a given time.
#[derive(Debug)]
pub struct Holdings {
    now: Timestamp,
    read: Map<JobId, Read>,
}

/// What is kept of a job that was read. The rest is dropped: there may be many jobs, and large ones.
#[derive(Debug)]
struct Read {
    holds: bool,
    until: Option<Timestamp>,
    duplicates: Option<Duplicates>,
}

impl Holdings {
    /// Whether the job would block another job with its policy.
    pub fn holds(&self, head: &Head) -> bool {
        self.read.get(&head.id).map_or_else(|| holds(None, head, self.now), |read| read.holds)
    }

    /// Until when it holds its key, if that was [asked](Asked::Until) and is certain.
    pub fn until(&self, head: &Head) -> Option<Timestamp> {
        self.read.get(&head.id).map_or_else(|| held_until(None, head, self.now), |read| read.until)
    }

    /// The duplicates it has absorbed, if they were [asked](Asked::Duplicates) for and are readable.
    pub fn duplicates(&self, head: &Head) -> Option<&Duplicates> {
        self.read.get(&head.id)?.duplicates.as_ref()
    }
}

impl Engine {
    /// How these jobs hold their keys. Jobs that must be read for that are read a few at a time; of an
    /// unreadable one, only what its head tells is known.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn holdings(
        &self,
        heads: &[Head],
        now: Timestamp,
        asked: Asked,
    ) -> Result<Holdings, StoreError> {
        let heads: Vec<&Head> = heads.iter().filter(|head| asked.is_read(head, now)).collect();
        let (mut read, mut room, mut left) = (Map::default(), Room::default(), &heads[..]);
        while !left.is_empty() {
            let (piece, others) = left.split_at(room.next().min(left.len()));
            left = others;
            let jobs = self.listed(piece.iter().map(|head| head.id).collect()).await?;
            room.take(&jobs);
            for job in jobs.into_iter().filter(|job| job.is_readable) {
                let Some(head) = piece.iter().find(|head| head.id == job.head.id) else { continue };
                let policy = job.body.unique.as_ref();
                let (holds, until) = (holds(policy, head, now), held_until(policy, head, now));
                let duplicates = (asked == Asked::Duplicates).then_some(job.duplicates);
                read.insert(head.id, Read { holds, until, duplicates });
            }
        }
        Ok(Holdings { now, read })
    }
}
