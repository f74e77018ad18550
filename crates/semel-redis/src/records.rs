//! The log of all partitions, and the housekeeping that no partition can do alone.
//!
//! A read first appends the partitions' new records to a common log in the first partition, which has one
//! order and one numbering.

use std::sync::PoisonError;

use futures_util::future::join_all;
use semel_core::draft::Map;
use semel_core::ident::JobId;
use semel_store::LogPage;

use crate::error::RedisError;
use crate::head::Reader;
use crate::partitions::Partitions;
use crate::values::{Values, bytes, id, list, maybe_bytes, number, pairs, text};

/// Records of one partition that are appended at a time.
const PIECE: usize = 500;
/// Forwarded ids that are looked over at a time.
const FORWARDS: usize = 200;

/// A record of a partition's log.
struct Told {
    /// When it was written, by the clock of the partition's Redis, in microseconds.
    told: u64,
    partition: u16,
    number: u64,
    at: Vec<u8>,
    events: Vec<u8>,
}

impl Partitions {
    /// The log after `cursor`.
    pub async fn events(&self, cursor: u64, limit: u32) -> Result<LogPage, RedisError> {
        if let Some(shared) = self.only() {
            return shared.events(cursor, limit).await;
        }
        while self.gather().await? {}
        self.first().all_events(cursor, limit).await
    }

    /// Appends to the common log what the partitions have told. Answers whether there may be more.
    async fn gather(&self) -> Result<bool, RedisError> {
        let first = self.first();
        let mut asked = first.question("gathered");
        asked.arg(self.count());
        let (_, known) = first.answer(asked).await?;
        let known: Vec<u64> = list(known)?.into_iter().map(number).collect::<Result<_, _>>()?;
        let asking = self.parts().iter().zip(&known).map(|(shared, known)| async move {
            let mut command = shared.question("events");
            command.arg(format!("({known}-1")).arg(PIECE);
            let (_, answer) = shared.answer(command).await?;
            let mut answer = Values::of(answer)?;
            let mut reach = Values::of(answer.take()?)?;
            let (records, dropped): (u64, u64) = (number(reach.take()?)?, number(reach.take()?)?);
            let told = list(answer.take()?)?.into_iter().map(|record| read(shared.partition, record));
            Ok::<_, RedisError>((records, dropped, told.collect::<Result<Vec<_>, _>>()?))
        });
        let (mut all, mut is_lost, mut is_more, mut until) = (Vec::new(), false, false, u64::MAX);
        let mut reached = known.clone();
        for ((said, known), reached) in join_all(asking).await.into_iter().zip(&known).zip(&mut reached) {
            let (records, dropped, mut told) = said?;
            // Times are made to ascend: a clock that was set back must not reorder a partition's records.
            let mut latest = 0;
            for record in &mut told {
                latest = latest.max(record.told);
                record.told = latest;
            }
            if records < *known {
                // The partition lost its last records, and counts on from there.
                (is_lost, *reached) = (true, records);
            } else if dropped > *known {
                (is_lost, *reached) = (true, dropped);
            }
            if told.len() >= PIECE
                && let Some(last) = told.last()
            {
                // This partition's next records may come before what others have told.
                until = until.min(last.told);
                is_more = true;
            }
            all.extend(told);
        }
        all.retain(|told| told.told <= until);
        all.sort_by_key(|told| (told.told, told.partition, told.number));
        for told in &all {
            if let Some(reached) = reached.get_mut(usize::from(told.partition)) {
                *reached = (*reached).max(told.number);
            }
        }
        if reached == known {
            return Ok(false);
        }
        let moved: Vec<_> = (0_u16..)
            .zip(known.iter().zip(&reached))
            .filter(|(_, (known, reached))| known != reached)
            .collect();
        let add = || {
            let mut add = first.upkeep_call("gather");
            add.arg(moved.len());
            for (partition, (known, reached)) in &moved {
                add.arg(*partition).arg(**known).arg(**reached);
            }
            add.arg(u8::from(is_lost));
            for told in &all {
                add.arg(&told.at).arg(&told.events);
            }
            add
        };
        let said = self.patiently(0, || first.look(add())).await?;
        // Another reader may have appended them meanwhile, or only some. What is told from now on is for the
        // next read.
        Ok(is_more || number::<u64>(said)? == 0)
    }

    /// Does a bounded piece of housekeeping. Answers whether more is waiting.
    pub async fn maintain(&self) -> Result<bool, RedisError> {
        if let Some(shared) = self.only() {
            return shared.maintain().await;
        }
        let keeping =
            self.parts().iter().map(|shared| self.patiently(shared.partition, || shared.maintain()));
        let mut is_more = false;
        for done in join_all(keeping).await {
            is_more |= done?;
        }
        let first = self.first();
        self.patiently(0, || first.trim("trim all")).await?;
        is_more |= self.sweep_forwards().await?;
        Ok(is_more)
    }

    /// Looks over some of the forwarded ids, and forgets those that lead nowhere any more. Answers whether it
    /// forgot any: then there may be more behind them, and they may come faster than an occasional look
    /// removes them.
    async fn sweep_forwards(&self) -> Result<bool, RedisError> {
        let (place, after) = *self.forwards_after.lock().unwrap_or_else(PoisonError::into_inner);
        let place = place % self.parts().len();
        let shared = &self.parts()[place];
        let mut asked = shared.question("forwards");
        asked.arg(after.map_or_else(Vec::new, |id| id.to_bytes().to_vec())).arg(FORWARDS);
        let (_, said) = shared.answer(asked).await?;
        let mut leads: Map<u16, Vec<(JobId, Vec<u8>)>> = Map::default();
        let mut is_any_forgotten = false;
        let (mut last, mut found) = (None, 0);
        for entry in list(said)? {
            let mut entry = Values::of(entry)?;
            let id = id(entry.take()?)?;
            (last, found) = (Some(id), found + 1);
            let Some(forward) = maybe_bytes(entry.take()?)? else { continue };
            let to = Reader(&forward).take().map(u16::from_be_bytes);
            leads.entry(to.unwrap_or(0)).or_default().push((id, forward));
        }
        for (to, forwards) in leads {
            let there = self.at(to);
            let ask = || {
                let mut asked = there.question("known");
                for (id, _) in &forwards {
                    asked.arg(&id.to_bytes()[..]);
                }
                there.answer(asked)
            };
            // A commit under way may be leading ids there; wait until it is over.
            let (_, said) = self.patiently(to, ask).await?;
            let mut said = list(said)?.into_iter();
            let gone: i64 = said.next().map_or(Ok(0), number)?;
            let mut nowhere = Vec::new();
            for ((id, forward), is_known) in forwards.into_iter().zip(said) {
                if number::<i64>(is_known)? == 0 {
                    nowhere.push((id, forward));
                }
            }
            if !nowhere.is_empty() {
                is_any_forgotten = true;
                let forget = || {
                    let mut forget = shared.upkeep_call("unforward");
                    forget.arg(gone);
                    for (id, forward) in &nowhere {
                        forget.arg(&id.to_bytes()[..]).arg(forward);
                    }
                    forget
                };
                self.patiently(shared.partition, || shared.look(forget())).await?;
            }
        }
        let next = if found < FORWARDS { (place + 1, None) } else { (place, last) };
        *self.forwards_after.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(is_any_forgotten)
    }
}

fn read(partition: u16, record: redis::Value) -> Result<Told, RedisError> {
    let mut record = Values::of(record)?;
    let name = text(record.take()?)?;
    let number = name.split_once('-').and_then(|(number, _)| number.parse().ok());
    let mut told = Told {
        told: 0,
        partition,
        number: number.ok_or(RedisError::Answer("a record of the log has no number"))?,
        at: Vec::new(),
        events: Vec::new(),
    };
    for (field, value) in pairs(record.take()?)? {
        match &bytes(field)?[..] {
            b"a" => told.at = bytes(value)?,
            b"t" => told.told = self::number(value)?,
            _ => told.events = bytes(value)?,
        }
    }
    Ok(told)
}
