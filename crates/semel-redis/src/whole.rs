//! What people and background duties see of several partitions, put together.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use semel_core::draft::QueueRow;
use semel_core::ident::QueueName;
use semel_core::slot::Due;
use semel_core::time::Timestamp;
use semel_store::backend::{DueIds, Filter, Found, Listing, QueueStats, Seek};

use crate::error::RedisError;
use crate::partitions::Partitions;

/// The earlier of two times: while a partition is away, duties must look again soon.
fn sooner(known: Option<Timestamp>, at: Timestamp) -> Option<Timestamp> {
    Some(known.map_or(at, |known| known.min(at)))
}

/// The newest row of each queue among several answers, with the index of the first answer that has a row of
/// it.
pub fn newest(said: Vec<Vec<QueueRow>>) -> Vec<(usize, QueueRow)> {
    let mut all: BTreeMap<QueueName, (usize, QueueRow)> = BTreeMap::new();
    for (number, rows) in said.into_iter().enumerate() {
        for row in rows.into_iter().filter(|row| row.version > 0) {
            let (_, known) = all.entry(row.name.clone()).or_insert_with(|| (number, row.clone()));
            if row.version > known.version {
                *known = row;
            }
        }
    }
    all.into_values().collect()
}

impl Partitions {
    /// The ids that are due, oldest first.
    pub async fn due(&self, due: Due, limit: u32) -> Result<DueIds, RedisError> {
        if let Some(shared) = self.only() {
            return shared.due(due, limit).await;
        }
        let (mut all, mut ids) = (DueIds::default(), Vec::new());
        let said = self.ask_all(|number| self.at(number).due_with_times(due, limit)).await?;
        let is_missed = said.len() < self.parts().len();
        for (now, next, found) in said {
            all.now = all.now.max(now);
            all.next = [all.next, next].into_iter().flatten().min();
            ids.extend(found);
        }
        ids.sort_unstable();
        let left = ids.get(limit as usize).map(|(at, _)| *at);
        all.next = [all.next, left].into_iter().flatten().min();
        if is_missed {
            all.next = sooner(all.next, all.now.saturating_add(self.away_after()));
        }
        all.ids = ids.into_iter().take(limit as usize).map(|(_, id)| id).collect();
        Ok(all)
    }

    /// A page of jobs for people, newest id first.
    pub async fn list(&self, filter: Filter) -> Result<Listing, RedisError> {
        if let Some(shared) = self.only() {
            return shared.list(filter).await;
        }
        let mut all = Listing::default();
        for page in join_all(self.parts().iter().map(|shared| shared.list(filter.clone()))).await {
            let page = page?;
            // Below this id some partition has not looked yet.
            all.next = all.next.max(page.next);
            all.heads.extend(page.heads);
        }
        all.heads.sort_unstable_by_key(|head| Reverse(head.id));
        all.heads.retain(|head| all.next.is_none_or(|next| head.id >= next));
        let limit = filter.limit as usize;
        if all.heads.len() > limit {
            all.heads.truncate(limit);
            all.next = all.heads.last().map(|head| head.id);
        }
        Ok(all)
    }

    /// All queues, by name, each summed over all partitions.
    pub async fn queues(&self) -> Result<Vec<QueueStats>, RedisError> {
        if let Some(shared) = self.only() {
            return shared.queues().await;
        }
        let mut all: BTreeMap<QueueName, QueueStats> = BTreeMap::new();
        for said in join_all(self.parts().iter().map(|shared| shared.queues())).await {
            for stats in said? {
                let Some(known) = all.get_mut(&stats.row.name) else {
                    all.insert(stats.row.name.clone(), stats);
                    continue;
                };
                known.counts.iter_mut().zip(stats.counts).for_each(|(sum, count)| *sum += count);
                known.created += stats.created;
                known.purged += stats.purged;
                known.oldest_ready = [known.oldest_ready, stats.oldest_ready].into_iter().flatten().min();
                if stats.row.version > known.row.version {
                    known.row = stats.row;
                }
            }
        }
        Ok(all.into_values().collect())
    }

    /// The rows of queues that have settings. All partitions have the same, unless one has forgotten its last
    /// moments; then the newest row counts.
    pub async fn settings(&self) -> Result<Vec<QueueRow>, RedisError> {
        if let Some(shared) = self.only() {
            return shared.settings().await;
        }
        let said = self.ask_all(|number| self.at(number).settings()).await?;
        let Some((one, others)) = said.split_first() else { return Ok(Vec::new()) };
        let sorted = |rows: &[QueueRow]| -> BTreeMap<QueueName, u64> {
            rows.iter().map(|row| (row.name.clone(), row.version)).collect()
        };
        let known = sorted(one);
        if others.iter().all(|other| sorted(other) == known) {
            return Ok(said.into_iter().next().unwrap_or_default());
        }
        // The newest row may say that the queue has no settings any more.
        let names: BTreeSet<QueueName> = said.into_iter().flatten().map(|row| row.name).collect();
        let names: Vec<QueueName> = names.into_iter().collect();
        let said = self.ask_all(|number| self.at(number).rows_of(&names)).await?;
        let rows = newest(said).into_iter().map(|(_, row)| row);
        Ok(rows.filter(|row| row.settings.is_some()).collect())
    }

    /// Documents that are due, or a page of one kind.
    pub async fn documents(&self, seek: Seek) -> Result<Found, RedisError> {
        if let Some(shared) = self.only() {
            return shared.documents(seek).await;
        }
        let mut all = Found::default();
        let said = match seek {
            Seek::Due { .. } => self.ask_all(|number| self.at(number).documents(seek.clone())).await?,
            Seek::Kind { .. } => {
                let asking = self.parts().iter().map(|shared| shared.documents(seek.clone()));
                join_all(asking).await.into_iter().collect::<Result<Vec<_>, _>>()?
            }
        };
        let is_missed = said.len() < self.parts().len();
        for said in said {
            all.now = all.now.max(said.now);
            all.next = [all.next, said.next].into_iter().flatten().min();
            all.documents.extend(said.documents);
        }
        let limit = match seek {
            Seek::Due { limit } => {
                all.documents.sort_by(|(one, a), (other, b)| (a.due, one).cmp(&(b.due, other)));
                let left = all.documents.get(limit as usize).and_then(|(_, document)| document.due);
                all.next = [all.next, left].into_iter().flatten().min();
                if is_missed {
                    all.next = sooner(all.next, all.now.saturating_add(self.away_after()));
                }
                limit
            }
            Seek::Kind { descending, limit, .. } => {
                all.documents.sort_by(|(one, _), (other, _)| one.name.as_bytes().cmp(other.name.as_bytes()));
                if descending {
                    all.documents.reverse();
                }
                limit
            }
        };
        all.documents.truncate(limit as usize);
        Ok(all)
    }
}
