//! Crossings: commits over several partitions, one at a time in the whole store.
//!
//! A crossing takes the single place in the first partition (`enter`), locks the partitions that take part
//! and reads there what it relies on (`lock`), records in the first partition what each one is to be told
//! (`decide`), and tells them, which unlocks each. If its server dies before `decide`, nothing was done; what
//! was decided is told by whichever server meets the lock ([`recovery`](crate::recovery)). Every step may be
//! done twice.

use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};
use semel_core::draft::{Group, Map};
use semel_core::ident::JobId;
use semel_core::partition;
use semel_store::News;
use semel_store::backend::Verdict;
use semel_store::random;
use tokio::time::Instant;

use crate::error::RedisError;
use crate::head;
use crate::partitions::Partitions;
use crate::recovery::is_gone;
use crate::request::{self, count, document_name};
use crate::routes::Route;
use crate::scripts::Script;
use crate::values::{Values, bytes, list, maybe_bytes, number, text};
use crate::weighing::{Known, Scales, Share};

/// Pause between two attempts to take the place.
const REST: Duration = Duration::from_millis(1);

/// A crossing's number, and the random token that identifies its maker.
pub type Turn = (u64, [u8; 16]);

/// The outcome of a crossing that had the place.
enum Became {
    /// It was decided, with these verdicts.
    Decided(Vec<Verdict>),
    /// It did nothing, and must be tried again with a number higher than this one.
    Nothing(u64),
}

/// What a partition says of the ids that it was asked about.
struct Said {
    heads: Vec<Value>,
    spent: Vec<Value>,
    forwards: Vec<Value>,
}

/// The records to look at in one partition.
#[derive(Default)]
struct Looks {
    jobs: Vec<JobId>,
    keys: Vec<semel_core::unique::UniqueKey>,
    rows: Vec<semel_core::ident::QueueName>,
    documents: Vec<semel_core::draft::DocumentKey>,
}

impl Looks {
    fn of(routes: &[&Route]) -> Map<u16, Self> {
        let mut all: Map<u16, Self> = Map::default();
        for route in routes {
            for number in &route.partitions {
                all.entry(*number).or_default();
            }
            for (id, at) in &route.jobs {
                all.entry(*at).or_default().jobs.push(*id);
            }
            for (key, at) in &route.keys {
                all.entry(*at).or_default().keys.push(*key);
            }
            for (name, at) in &route.rows {
                all.entry(*at).or_default().rows.push(name.clone());
            }
            for (key, at) in &route.documents {
                all.entry(*at).or_default().documents.push(key.clone());
            }
        }
        for looks in all.values_mut() {
            looks.jobs.sort_unstable();
            looks.jobs.dedup();
        }
        all
    }

    fn push(&self, command: &mut Cmd) {
        let counts = [self.jobs.len(), self.keys.len(), self.rows.len(), self.documents.len()];
        command.arg(counts.into_iter().flat_map(count).collect::<Vec<u8>>());
        for id in &self.jobs {
            command.arg(&id.to_bytes()[..]);
        }
        for key in &self.keys {
            command.arg(&key.as_bytes()[..]);
        }
        for name in &self.rows {
            command.arg(name.as_str());
        }
        for key in &self.documents {
            command.arg(document_name(key));
        }
    }
}

/// Partition numbers in the scripts' encoding.
fn packed(with: &[u16]) -> Vec<u8> {
    with.iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// The one partition taking part that publishes news of the commit. Every server listens to all partitions.
pub fn told_in(with: &[u16]) -> u16 {
    with.first().copied().unwrap_or(0)
}

pub fn unpacked(bytes: &[u8]) -> Vec<u16> {
    bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_be_bytes(*pair)).collect()
}

/// The call's arguments one behind the other, each preceded by its length.
fn written(base: &str, share: &Share) -> Vec<u8> {
    let mut command = Cmd::new();
    request::push(&mut command, base, &share.groups, Some(&share.forwards));
    let mut bytes = Vec::new();
    for arg in command.args_iter() {
        if let redis::Arg::Simple(arg) = arg {
            bytes.extend_from_slice(&count(arg.len()));
            bytes.extend_from_slice(arg);
        }
    }
    bytes
}

fn read(mut bytes: &[u8], command: &mut Cmd) -> Option<()> {
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (arg, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        command.arg(arg);
        bytes = rest;
    }
    Some(())
}

impl Partitions {
    /// Performs a step in one partition.
    pub(crate) async fn cross_step(
        &self,
        at: u16,
        what: &str,
        turn: u64,
        push: impl FnOnce(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let shared = self.at(at);
        let fill = |command: &mut Cmd| {
            shared.push_time(command);
            command.arg(what).arg(turn);
            push(command);
        };
        if matches!(what, "look" | "alive" | "withdraw" | "unlock" | "leave") {
            // These steps acknowledge nothing, their answers decide nothing, and a forgotten one is asked
            // again: they wait for no replica.
            let mut command = shared.link.call(Script::Cross);
            fill(&mut command);
            return shared.look(command).await;
        }
        shared.step(Script::Cross, fill).await
    }

    /// Weighs groups together and applies those that hold; answers their places in the batch with their
    /// verdicts.
    pub async fn cross(
        &self,
        groups: &[Group],
        routes: &[Route],
        places: &[usize],
    ) -> Result<Vec<(usize, Verdict)>, RedisError> {
        let groups: Vec<&Group> = places.iter().map(|place| &groups[*place]).collect();
        let routes: Vec<&Route> = places.iter().map(|place| &routes[*place]).collect();
        let looks = Looks::of(&routes);
        let mut with: Vec<u16> = looks.keys().copied().collect();
        with.sort_unstable();
        // Crossings of one process queue here instead of competing in Redis.
        let _one_at_a_time = self.crossing.lock().await;
        let begun = Instant::now();
        let mut least = 0;
        while begun.elapsed() < self.first().patience {
            // Nothing is done until it is decided, however the steps before that fail.
            let turn = self.enter(&with, least, begun).await.map_err(RedisError::before_it_began)?;
            let became = self.cross_in(turn, &with, &looks, &groups, &routes).await;
            match became.inspect_err(|error| self.at(told_in(&with)).teller.note_failure(error))? {
                Became::Decided(verdicts) => return Ok(places.iter().copied().zip(verdicts).collect()),
                Became::Nothing(seen) => least = seen,
            }
        }
        Err(RedisError::Locked)
    }

    /// Runs the crossing once it has its place.
    async fn cross_in(
        &self,
        turn: Turn,
        with: &[u16],
        looks: &Map<u16, Looks>,
        groups: &[&Group],
        routes: &[&Route],
    ) -> Result<Became, RedisError> {
        let scales = match self.alive(&turn.1, self.lock_all(turn, with, looks)).await {
            Ok(Some(scales)) => scales,
            Ok(None) => {
                // It was taken for dead, or partitions have seen later crossings.
                self.withdraw(turn.0, with).await;
                return Ok(Became::Nothing(turn.0.max(self.seen(with).await)));
            }
            Err(error) => {
                self.withdraw(turn.0, with).await;
                return Err(error.before_it_began());
            }
        };
        let (verdicts, shares) = scales.weigh(groups, routes);
        if !verdicts.contains(&Verdict::Applied) {
            self.withdraw(turn.0, with).await;
            return Ok(Became::Decided(verdicts));
        }
        if !self.alive(&turn.1, self.decide(turn, with, &shares)).await? {
            return match self.give_up(turn.0, with).await {
                true => Ok(Became::Nothing(turn.0)),
                false => Err(RedisError::Unknown),
            };
        }
        self.alive(&turn.1, self.tell(turn.0, with, Some(&shares))).await.map_err(|error| {
            tracing::info!(%error, "a commit across several partitions is decided, but not all of them know yet");
            RedisError::Unknown
        })?;
        let applied = groups.iter().zip(routes).zip(&verdicts);
        let applied = applied.filter(|(_, verdict)| **verdict == Verdict::Applied).map(|(group, _)| group);
        for (_, (id, to)) in applied.clone().flat_map(|(_, route)| &route.forwards) {
            match to {
                Some(place) => self.note(*id, *place),
                None => self.forget(*id),
            }
        }
        self.at(told_in(with)).teller.note(News::of(applied.map(|(group, _)| *group), &[]));
        Ok(Became::Decided(verdicts))
    }

    /// Takes the place as soon as it is free; answers the crossing's number and its token.
    async fn enter(&self, with: &[u16], least: u64, begun: Instant) -> Result<Turn, RedisError> {
        let token = random::secret();
        loop {
            let entering = self.cross_step(0, "enter", least, |command| {
                command.arg(&token[..]).arg(packed(with));
            });
            let mut said = Values::of(self.alive(&token, entering).await?)?;
            let (what, turn) = (text(said.take()?)?, number::<u64>(said.take()?)?);
            if what == "entered" {
                return Ok((turn, token));
            }
            if begun.elapsed() >= self.first().patience {
                return Err(RedisError::Locked);
            }
            let (_phase, age) = (text(said.take()?)?, number::<i64>(said.take()?)?);
            if is_gone(age) {
                self.end_of(turn).await?;
            } else {
                tokio::time::sleep(REST).await;
            }
        }
    }

    /// Locks all partitions that take part. `None` when one of them has seen a later crossing, or has given
    /// this one up.
    async fn lock_all(
        &self,
        turn: Turn,
        with: &[u16],
        looks: &Map<u16, Looks>,
    ) -> Result<Option<Scales>, RedisError> {
        let locking = with.iter().map(|number| async move {
            let looks = looks.get(number);
            let said = self
                .cross_step(*number, "lock", turn.0, |command| {
                    command.arg(packed(with));
                    match looks {
                        Some(looks) => looks.push(command),
                        None => Looks::default().push(command),
                    }
                })
                .await;
            (*number, looks, said)
        });
        let mut scales = Scales::default();
        let mut ids: Map<JobId, Vec<(u16, Value, Value, Value)>> = Map::default();
        for (place, looks, said) in join_all(locking).await {
            let mut said = Values::of(said?)?;
            if text(said.take()?)? != "locked" {
                return Ok(None);
            }
            self.at(place).saw(said.time()?);
            scales.gone = scales.gone.max(number(said.take()?)?);
            let said_of = Said {
                heads: list(said.take()?)?,
                spent: list(said.take()?)?,
                forwards: list(said.take()?)?,
            };
            let versions = bytes(said.take()?)?;
            let Some(looks) = looks else { continue };
            let Said { heads, spent, forwards } = said_of;
            for (((id, head), spent), forward) in looks.jobs.iter().zip(heads).zip(spent).zip(forwards) {
                ids.entry(*id).or_default().push((place, head, spent, forward));
            }
            let mut versions = versions.as_chunks::<8>().0.iter().map(|version| u64::from_be_bytes(*version));
            let mut next = || versions.next().ok_or(RedisError::Answer("a version is missing"));
            for key in &looks.keys {
                scales.keys.insert(*key, Some(next()?));
            }
            for name in &looks.rows {
                let known = scales.rows.entry(name.clone()).or_default();
                *known = next()?.max(*known);
            }
            for key in &looks.documents {
                scales.documents.insert(key.clone(), next()?);
            }
        }
        for (id, said) in ids {
            scales.jobs.insert(id, self.known_of(id, said)?);
        }
        Ok(Some(scales))
    }

    /// Combines what several partitions say of one id.
    fn known_of(&self, id: JobId, said: Vec<(u16, Value, Value, Value)>) -> Result<Known, RedisError> {
        let home = partition::of_id(id, self.count());
        let (mut leads, mut asked) = (None, Vec::with_capacity(said.len()));
        let mut known = None;
        for (place, head, spent, forward) in said {
            asked.push(place);
            if place == home {
                let to = maybe_bytes(forward)?;
                leads = to.and_then(|to| head::Reader(&to).take()).map(u16::from_be_bytes);
            }
            if let Some(head) = maybe_bytes(head)? {
                let stored = head::read(id, &head).ok_or(RedisError::Head { id })?;
                known = Some(Known {
                    version: Some(stored.head.version),
                    key: stored.head.key,
                    is_there: true,
                    is_kept: stored.kept.is_some(),
                });
            } else if maybe_bytes(spent)?.is_some() && known.is_none() {
                known = Some(Known { version: Some(1), ..Known::default() });
            }
        }
        // Unknown if its home partition, or the partition that its id leads to, was not asked.
        let is_all = asked.contains(&home) && leads.is_none_or(|place| asked.contains(&place));
        if let Some(place) = leads {
            self.note(id, place);
        }
        Ok(known.unwrap_or(Known { version: is_all.then_some(0), ..Known::default() }))
    }

    /// The number of the latest crossing that these partitions have seen.
    async fn seen(&self, with: &[u16]) -> u64 {
        let asking = with.iter().map(|place| async move {
            let mut command = redis::cmd("HGET");
            let shared = self.at(*place);
            command.arg(format!("{}!", shared.link.base())).arg("seen");
            number::<u64>(shared.look(command).await.ok()?).ok()
        });
        join_all(asking).await.into_iter().flatten().max().unwrap_or(0)
    }

    /// Records what each partition is to be told. Answers whether the crossing is decided.
    async fn decide(&self, turn: Turn, with: &[u16], shares: &Map<u16, Share>) -> Result<bool, RedisError> {
        let said = self
            .cross_step(0, "decide", turn.0, |command| {
                command.arg(&turn.1[..]);
                for place in with {
                    let base = self.at(*place).link.base();
                    let nothing = Share::default();
                    command.arg(*place).arg(written(base, shares.get(place).unwrap_or(&nothing)));
                }
            })
            .await;
        match said {
            Ok(said) => Ok(text(said)? == "yes"),
            Err(error) if error.may_be_done() => Err(RedisError::Unknown),
            Err(error) => {
                // An earlier copy of the request may have been applied all the same.
                if self.give_up(turn.0, with).await { Err(error) } else { Err(RedisError::Unknown) }
            }
        }
    }

    /// Tells every partition that takes part what was decided, and leaves the place.
    pub(crate) async fn tell(
        &self,
        turn: u64,
        with: &[u16],
        shares: Option<&Map<u16, Share>>,
    ) -> Result<(), RedisError> {
        let telling = with.iter().map(|place| async move {
            let shared = self.at(*place);
            let told = match shares {
                Some(shares) => written(shared.link.base(), shares.get(place).unwrap_or(&Share::default())),
                None => bytes(
                    self.cross_step(0, "told", turn, |command| {
                        command.arg(*place);
                    })
                    .await?,
                )?,
            };
            if told.is_empty() {
                // Another server has told all of them meanwhile.
                return Ok(true);
            }
            let mut is_whole = true;
            let said = shared
                .step(Script::Commit, |command| {
                    command.arg("x").arg(turn);
                    shared.push_time(command);
                    is_whole = read(&told, command).is_some();
                })
                .await;
            let mut said = match said {
                // This partition has forgotten what it was told, or its lock; telling it again would not
                // change that.
                Err(error) if error.is_given_up() => return Ok(false),
                said => Values::of(said?)?,
            };
            shared.saw(said.time()?);
            if !is_whole {
                return Err(RedisError::Answer("what a decided commit tells its partitions cannot be read"));
            }
            Ok(!bytes(said.take()?)?.contains(&b's'))
        });
        let (mut is_whole, mut failure) = (true, None);
        for told in join_all(telling).await {
            match told {
                Ok(applied) => is_whole &= applied,
                Err(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        // The place must be left in any case, or nobody could ever take it again.
        self.cross_step(0, "leave", turn, |_| {}).await?;
        if is_whole {
            return Ok(());
        }
        tracing::error!(
            turn,
            "a partition has lost its part of a commit across several: a crash or failover took its latest writes"
        );
        Err(RedisError::Unknown)
    }
}
