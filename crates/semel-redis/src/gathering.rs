//! Loads from several partitions: all are asked at once, and their answers are made consistent with respect
//! to crossings.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use semel_core::draft::{
    Expect, Full, Group, Map, QueueRow, Reads, Record, Snapshot, Spent, Write, next_version,
};
use semel_core::ident::{JobId, QueueName};
use semel_core::job::Head;
use semel_core::partition;
use semel_core::settings::waiting;
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;
use tokio::time::{Instant, timeout_at};

use crate::error::RedisError;
use crate::head::{Reader, Stored};
use crate::load::{Held, Loaded, counters, document, notes, queue_row, spent, stored, view};
use crate::partitions::Partitions;
use crate::routes::Route;
use crate::values::{Values, list, maybe_bytes};

/// Pause between two rounds of a load that a crossing came between.
const AGAIN_AFTER: std::time::Duration = std::time::Duration::from_millis(1);

/// What one partition is asked for.
#[derive(Default)]
struct Asked {
    is_asked: bool,
    reads: Reads,
    keys: Vec<(UniqueKey, bool)>,
    forwards: Vec<JobId>,
}

/// A whole job, and what else is known of its id.
type Whole = (Option<(Head, Full)>, Option<Spent>);

/// What the partitions said, put together.
#[derive(Default)]
struct Found {
    now: Timestamp,
    heads: Map<JobId, Head>,
    fulls: Map<JobId, Whole>,
    keys: Vec<(UniqueKey, Option<Held>)>,
    rows: Map<QueueName, (QueueRow, u64)>,
    /// Queues whose rows differ between partitions.
    uneven: BTreeSet<QueueName>,
    documents: Vec<(semel_core::draft::DocumentKey, Option<semel_core::draft::Document>)>,
    /// Where ids lead whose job is in another partition.
    forwards: Map<JobId, u16>,
    /// Each partition's record of the last crossing it had with each other partition.
    pairs: Vec<(u16, Vec<u8>)>,
}

impl Partitions {
    /// Loads everything that `reads` names. If it names nothing, only the time is wanted, from any partition
    /// that answers.
    pub async fn load(&self, reads: &Reads) -> Result<Snapshot, RedisError> {
        Ok(self.load_within(reads, reads.is_empty()).await?.0)
    }

    /// Loads what `reads` names without waiting for partitions that are away, and answers which part of
    /// `reads` is missing for that reason.
    pub async fn load_soon(&self, reads: &Reads) -> Result<(Snapshot, Reads), RedisError> {
        self.load_within(reads, true).await
    }

    async fn load_within(&self, reads: &Reads, is_soon: bool) -> Result<(Snapshot, Reads), RedisError> {
        if let Some(shared) = self.only() {
            return Ok((shared.load(reads).await?, Reads::default()));
        }
        let begun = Instant::now();
        let (mut before, mut is_evened) = (None, false);
        // Partitions found away are not asked again in this load. A load in a hurry skips those known to be
        // away until they are back: only callers that need them wait, and no load finds them away once more.
        let mut late: Vec<u16> = Vec::new();
        if is_soon {
            late.extend((0..self.count()).filter(|number| self.at(*number).is_missed()));
        }
        if late.len() == self.parts().len() {
            late.clear();
        }
        loop {
            let mut asked = self.asked(reads);
            late.iter().for_each(|number| asked[usize::from(*number)] = Asked::default());
            if asked.iter().all(|asked| !asked.is_asked)
                && let Some(place) = (0..self.count())
                    .filter(|number| !late.contains(number))
                    .min_by_key(|number| self.at(*number).is_missed())
            {
                // The time is wanted even if no record is.
                asked[usize::from(place)].is_asked = true;
            }
            let mut found = Found::default();
            let (mut answered, mut locked, mut failure) = (Vec::new(), None, None);
            let mut heard = self.hear(&asked, is_soon).await;
            // In partition order, not of arrival: the answers are compared with the previous round's.
            heard.sort_unstable_by_key(|(number, _)| *number);
            for (number, said) in heard {
                match said {
                    Ok(loaded) => {
                        answered.push(number);
                        found.take(number, &asked[usize::from(number)], loaded)?;
                    }
                    Err(error) if error.is_locked() => {
                        answered.push(number);
                        locked = Some((number, error));
                    }
                    Err(error) if is_soon && error.passes() => failure = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if answered.is_empty() {
                return Err(failure.unwrap_or(RedisError::Silent));
            }
            for (number, asked) in (0..).zip(&mut asked) {
                if asked.is_asked && !answered.contains(&number) {
                    self.at(number).tell_when_back();
                    late.push(number);
                    *asked = Asked::default();
                }
            }
            if let Some((number, error)) = locked {
                self.rest(number, &error, begun).await?;
                continue;
            }
            let is_known = !self.learn(&found, &asked, &late);
            // A node that forgot its last moments never agrees with the others again; but two rounds with
            // equal answers had no crossing between them.
            if is_known && (found.is_of_one_moment() || before.as_ref() == Some(&found.pairs)) {
                // While a partition is away, its row cannot be evened out.
                if is_evened || found.uneven.is_empty() || !late.is_empty() {
                    let (there, away) = found.apart(reads, &late, self.count());
                    let mut snapshot = found.snapshot(&there, self.count());
                    snapshot.away = (0..self.count()).filter(|number| self.at(*number).is_missed()).collect();
                    return Ok((snapshot, away));
                }
                // Try once: if it fails now, the next load that finds them different does it.
                is_evened = true;
                Box::pin(self.even(&found)).await;
                continue;
            }
            before = Some(found.pairs);
            tokio::time::sleep(AGAIN_AFTER).await;
            if begun.elapsed() >= self.first().patience {
                return Err(RedisError::Locked);
            }
        }
    }

    /// Hears the partitions that are asked; a load in a hurry leaves out those that are away. After the first
    /// answer the others have a moment. If none answers within that time, any other partition supplies the
    /// time, and those that were asked are reported as away.
    async fn hear(&self, asked: &[Asked], is_soon: bool) -> Vec<(u16, Result<Loaded, RedisError>)> {
        let ask = |number: u16| {
            let (asked, shared) = (&asked[usize::from(number)], self.at(number));
            async move { (number, shared.ask_for(&asked.reads, &asked.keys, &asked.forwards).await) }
        };
        let (named, others): (Vec<u16>, Vec<u16>) =
            (0..self.count()).partition(|number| asked[usize::from(*number)].is_asked);
        let mut asking: FuturesUnordered<_> = named.into_iter().map(ask).collect();
        let mut all = Vec::with_capacity(asking.len());
        let (mut others, mut is_answered) = (Some(others), false);
        let mut until = is_soon.then(|| Instant::now() + self.away_after());
        loop {
            let next = match until {
                Some(until) => timeout_at(until, asking.next()).await,
                None => Ok(asking.next().await),
            };
            match next {
                Ok(Some((number, said))) => {
                    let is_there = said.as_ref().map_or_else(RedisError::is_locked, |_| true);
                    all.push((number, said));
                    if is_soon && is_there && !is_answered {
                        is_answered = true;
                        if others.is_none() {
                            return all;
                        }
                        until = Some(Instant::now() + self.away_after());
                    }
                }
                Ok(None) => return all,
                Err(_) if is_answered => return all,
                Err(_) => {
                    asking.extend(others.take().unwrap_or_default().into_iter().map(ask));
                    until = None;
                }
            }
        }
    }

    /// Evens out a queue's row that one partition has lost in its last moments: gives all partitions the
    /// newest. Otherwise the setting would hold in some partitions and not in others, and a caller that sets
    /// it again would find nothing to change.
    async fn even(&self, found: &Found) {
        for (row, _) in found.uneven.iter().filter_map(|name| found.rows.get(name)) {
            tracing::warn!(
                "a partition has lost a queue's latest settings, and gets them from the other partitions"
            );
            let expect = vec![Expect { record: Record::Queue(row.name.clone()), version: row.version }];
            let row = QueueRow { version: next_version(row.version, found.now), ..row.clone() };
            let group = Group { expect, writes: vec![Write::Queue { row }], ..Group::default() };
            let route = Route::of(&group, self.count(), &mut Map::default(), |_| None);
            if let Err(error) = self.cross(&[group], &[route], &[0]).await {
                tracing::debug!(%error, "partitions still disagree about a queue");
            }
        }
    }

    fn asked(&self, reads: &Reads) -> Vec<Asked> {
        let count = self.count();
        let mut asked: Vec<Asked> = Vec::new();
        asked.resize_with(usize::from(count), Asked::default);
        let places = |id: JobId| {
            let home = partition::of_id(id, count);
            (home, self.known(id).filter(|place| *place != home))
        };
        for (id, is_full) in
            reads.heads.iter().map(|id| (*id, false)).chain(reads.fulls.iter().map(|id| (*id, true)))
        {
            let (home, place) = places(id);
            asked[usize::from(home)].forwards.push(id);
            for number in [Some(home), place].into_iter().flatten() {
                let reads = &mut asked[usize::from(number)].reads;
                if is_full { reads.fulls.push(id) } else { reads.heads.push(id) }
            }
        }
        for (key, ended) in reads.keys_once() {
            asked[usize::from(partition::of_key(key, count))].keys.push((*key, ended));
        }
        // Ask once for each name, however often it is read: the partitions' shares are summed.
        let names: BTreeSet<&QueueName> = reads.queues.iter().collect();
        for name in names {
            if name.is_queue() {
                // Each partition has a share of the waiting jobs.
                asked.iter_mut().for_each(|asked| asked.reads.queues.push(name.clone()));
            } else {
                asked[usize::from(partition::of_row(name, count))].reads.queues.push(name.clone());
            }
        }
        for key in &reads.documents {
            asked[usize::from(partition::of_document(key, count))].reads.documents.push(key.clone());
        }
        for asked in &mut asked {
            asked.is_asked = !asked.reads.is_empty() || !asked.keys.is_empty();
        }
        asked
    }

    /// The partitions that a load of `reads` asks; in an undivided store the only one, whatever it names.
    pub(crate) fn places(&self, reads: &Reads) -> Vec<u16> {
        if let Some(only) = self.only() {
            return vec![only.partition];
        }
        let asked = (0..self.count()).zip(self.asked(reads));
        asked.filter(|(_, asked)| asked.is_asked).map(|(place, _)| place).collect()
    }

    /// Notes the ids whose job is in another partition. Answers whether something must still be looked up
    /// there, in a partition that is not away.
    fn learn(&self, found: &Found, asked: &[Asked], late: &[u16]) -> bool {
        let mut is_new = false;
        for (id, place) in &found.forwards {
            self.note(*id, *place);
            let there = asked.get(usize::from(*place)).map(|asked| &asked.reads);
            let was_asked = there.is_some_and(|reads| reads.heads.contains(id) || reads.fulls.contains(id));
            is_new |= !was_asked && !late.contains(place);
        }
        for asked in asked {
            for id in &asked.forwards {
                if !found.forwards.contains_key(id) && self.known(*id).is_some() {
                    self.forget(*id);
                }
            }
        }
        for (key, held) in &found.keys {
            let place = partition::of_key(key, self.count());
            for stored in held.iter().flat_map(|held| &held.holders) {
                if partition::of_id(stored.head.id, self.count()) != place {
                    self.note(stored.head.id, place);
                }
            }
        }
        is_new
    }
}

impl Found {
    fn take(&mut self, number: u16, asked: &Asked, loaded: Loaded) -> Result<(), RedisError> {
        let Loaded { now, heads, found, mut answer } = loaded;
        self.now = self.now.max(now);
        for (id, value) in asked.reads.heads.iter().zip(heads) {
            if let Some(stored) = stored(*id, value)?.filter(|stored| stored.kept.is_none()) {
                self.heads.insert(*id, stored.head);
            }
        }
        self.keys.extend(asked.keys.iter().map(|(key, _)| *key).zip(found));
        for id in &asked.reads.fulls {
            if let Some(whole) = whole(*id, &mut Values::of(answer.take()?)?)? {
                self.fulls.insert(*id, whole);
            }
        }
        for name in &asked.reads.queues {
            let mut parts = Values::of(answer.take()?)?;
            let row = queue_row(name.clone(), maybe_bytes(parts.take()?)?)?;
            let waiting = waiting(&counters(parts.take()?)?.by_state);
            match self.rows.get_mut(name) {
                Some((known, sum)) => {
                    if row.version != known.version {
                        self.uneven.insert(name.clone());
                    }
                    if row.version > known.version {
                        *known = row;
                    }
                    *sum += waiting;
                }
                None => drop(self.rows.insert(name.clone(), (row, waiting))),
            }
        }
        for key in &asked.reads.documents {
            let text = maybe_bytes(answer.take()?)?;
            self.documents.push((key.clone(), text.map(|text| document(&text)).transpose()?));
        }
        for (id, value) in asked.forwards.iter().zip(list(answer.take()?)?) {
            if let Some(place) = maybe_bytes(value)?.and_then(|bytes| Reader(&bytes).take()) {
                self.forwards.insert(*id, u16::from_be_bytes(place));
            }
        }
        self.pairs.push((number, maybe_bytes(answer.take()?)?.unwrap_or_default()));
        Ok(())
    }

    /// Whether no crossing came between the partitions' answers: any two that took part in one together
    /// report the same last one.
    fn is_of_one_moment(&self) -> bool {
        let last = |pairs: &[u8], other: u16| -> [u8; 8] {
            let at = 8 * usize::from(other);
            pairs.get(at..at + 8).and_then(|part| part.try_into().ok()).unwrap_or_default()
        };
        let both = |(place, (one, of_one)): (usize, &(u16, Vec<u8>))| {
            self.pairs[..place].iter().all(|(other, of_other)| last(of_one, *other) == last(of_other, *one))
        };
        self.pairs.iter().enumerate().all(both)
    }

    /// Splits `reads` into what was available and what is in the partitions that are away. Where an id leads
    /// is taken from this load alone: other knowledge may be older, and a job taken for missing while its
    /// partition is away would be reported as nonexistent.
    fn apart(&self, reads: &Reads, late: &[u16], count: u16) -> (Reads, Reads) {
        if late.is_empty() {
            return (reads.clone(), Reads::default());
        }
        let is_late = |place: u16| late.contains(&place);
        let leads_away = |id: &JobId| self.forwards.get(id).is_some_and(|place| is_late(*place));
        let is_away = |id: &JobId| is_late(partition::of_id(*id, count)) || leads_away(id);
        // Every partition has a share of a queue.
        let is_row_away = |name: &QueueName| name.is_queue() || is_late(partition::of_row(name, count));
        let (heads_away, heads) = reads.heads.iter().copied().partition(is_away);
        let (fulls_away, fulls) = reads.fulls.iter().copied().partition(is_away);
        let (keys_away, keys) =
            reads.keys.iter().copied().partition(|read| is_late(partition::of_key(&read.key, count)));
        let (queues_away, queues) = reads.queues.iter().cloned().partition(is_row_away);
        let documents = reads.documents.iter().cloned();
        let (documents_away, documents) =
            documents.partition(|key| is_late(partition::of_document(key, count)));
        (
            Reads { heads, fulls, keys, queues, documents },
            Reads {
                heads: heads_away,
                fulls: fulls_away,
                keys: keys_away,
                queues: queues_away,
                documents: documents_away,
            },
        )
    }

    fn snapshot(mut self, reads: &Reads, partitions: u16) -> Snapshot {
        let mut snapshot = Snapshot::with_room_for(self.now, reads);
        snapshot.partitions = partitions;
        for id in &reads.heads {
            snapshot.add_head(*id, self.heads.remove(id));
        }
        for (key, held) in self.keys {
            snapshot.add_key(key, view(key, held, self.now));
        }
        for id in &reads.fulls {
            let (row, spent) = self.fulls.remove(id).unwrap_or_default();
            snapshot.add_full(*id, row);
            if let Some(spent) = spent {
                snapshot.add_spent(*id, spent);
            }
        }
        for (row, waiting) in self.rows.into_values().filter(|(row, _)| reads.queues.contains(&row.name)) {
            snapshot.add_queue(row, waiting);
        }
        for (key, document) in self.documents {
            snapshot.add_document(key, document);
        }
        snapshot
    }
}

/// A whole job, or what else is known of its id; `None` if nothing is stored.
fn whole(id: JobId, parts: &mut Values) -> Result<Option<Whole>, RedisError> {
    let stored = stored(id, parts.take()?)?;
    let (body, notes) = (maybe_bytes(parts.take()?)?, notes(parts.take()?)?);
    let absorbed = maybe_bytes(parts.take()?)?.map(|bytes| spent(&bytes)).transpose()?;
    if stored.is_none() && absorbed.is_none() {
        return Ok(None);
    }
    let row = match (&stored, body) {
        (Some(Stored { head, kept: None }), Some(body)) => {
            Some((head.clone(), Full { body: Bytes::from(body), notes }))
        }
        _ => None,
    };
    let remembered = stored.filter(|_| row.is_none());
    let remembered = remembered.map(|stored| Spent::remembered(id, stored.head.version));
    Ok(Some((row, absorbed.or(remembered))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_to_one_that_is_away_is_away_as_well() {
        // By their ids, both are in the first of two partitions.
        let [here, leads] =
            [1, 2].map(|first| JobId::from_bytes([first, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        let mut found = Found::default();
        found.forwards.insert(leads, 1);
        let reads = Reads { heads: vec![here, leads], fulls: vec![leads], ..Reads::default() };
        let (there, away) = found.apart(&reads, &[1], 2);
        assert_eq!((there.heads, there.fulls), (vec![here], vec![]));
        assert_eq!((away.heads, away.fulls), (vec![leads], vec![leads]));
        // No partition is away.
        assert_eq!(found.apart(&reads, &[], 2), (reads, Reads::default()));
    }
}
