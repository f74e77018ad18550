//! A commit: one script for all its groups and one for each claim, sent together. Each is one atomic step.

use std::time::Duration;

use redis::{Cmd, Value};
use semel_core::ident::JobId;
use semel_core::unique::{UniqueKey, leave_out_outlived};
use semel_store::News;
use semel_store::backend::{Applied, Batch, Claim, Claimed, Verdict};
use tokio::time::Instant;

use crate::error::RedisError;
use crate::link::Link;
use crate::request;
use crate::said::{Request, Said};
use crate::scripts::Script;
use crate::store::Shared;
use crate::turn::Turn;
use crate::values::{Values, bytes};
use crate::writers::{Writers, nudge};

/// Pause between two attempts to send a request.
pub const RESOLVE_PAUSE: Duration = Duration::from_millis(100);
/// Claims that one script serves at most: a script blocks all other requests while it runs.
const TAKERS_MAX: usize = 64;
/// Jobs that the claims of one script may take together, unless a single claim wants more.
const TAKEN_MAX: u64 = 1_000;

/// Tells whether the script that serves a claim may serve the next one too; call it for one adjacent pair
/// after the other.
pub fn together() -> impl FnMut(&Claim, &Claim) -> bool {
    let (mut takers, mut wanted) = (1, None);
    move |before, next| {
        let sum = wanted.unwrap_or(u64::from(before.limit)) + u64::from(next.limit);
        let fits = takers < TAKERS_MAX && sum <= TAKEN_MAX;
        (takers, wanted) = if fits { (takers + 1, Some(sum)) } else { (1, Some(u64::from(next.limit))) };
        fits
    }
}

impl Shared {
    /// Applies a batch. Also answers the keys whose ended holders should be looked over, which no caller's
    /// answer waits for. A caller that retries after a lock refusal must use the same turn: its earlier
    /// request may still arrive.
    pub(crate) async fn commit(
        &self,
        turn: Turn,
        batch: &Batch,
    ) -> Result<(Applied, Vec<Vec<u8>>), RedisError> {
        if batch.groups.is_empty() && batch.claims.is_empty() {
            return Ok((Applied::default(), Vec::new()));
        }
        if self.writers.as_ref().is_some_and(Writers::is_behind) {
            // `Lagging` and `Unknown` speak of earlier writes here; of this batch nothing has been sent yet.
            self.confirm().await.map_err(|error| match error {
                RedisError::Lagging | RedisError::Unknown => RedisError::Behind,
                error => error,
            })?;
        }
        let link = self.commits();
        // A link's first request needs the scripts loaded. Without a connection nothing was sent.
        self.reach(link).await.map_err(RedisError::before_it_began)?;
        let mut commands = Vec::with_capacity(1 + batch.claims.len());
        if !batch.groups.is_empty() {
            let mut command = link.call(Script::Commit);
            command.arg(turn.groups()).arg(turn.number);
            self.push_time(&mut command);
            request::push(&mut command, link.base(), &batch.groups, None);
            commands.push(command);
        }
        let alike = batch.claims.chunk_by(Claim::differs_in_taker_alone);
        let claims: Vec<&[Claim]> = alike.flat_map(|alike| alike.chunk_by(together())).collect();
        for (place, claims) in claims.iter().enumerate() {
            let mut command = link.call(Script::Claim);
            command.arg(turn.claim(place)).arg(turn.number);
            self.push_time(&mut command);
            self.push_claims(&mut command, claims);
            commands.push(command);
        }
        let said = self.send_until_answered(link, commands).await;
        let said = said.inspect_err(|error| self.teller.note_failure(error))?;
        if let Some(locked) =
            said.iter().find_map(|said| said.as_ref().err().filter(|error| error.is_locked()))
        {
            return Err(locked.clone());
        }
        // Answered: no copy of this request that is still on its way can take effect any more.
        self.turns.give_back(turn);
        let (applied, crowded) = self.applied(batch, &claims, said)?;
        let done = batch.groups.iter().zip(&applied.groups);
        let done = done.filter(|(_, verdict)| **verdict == Verdict::Applied).map(|(group, _)| group);
        self.shortcut.note(done.clone());
        self.teller.note(News::of(done, &applied.claims));
        Ok((applied, crowded))
    }

    /// What was applied, and the keys whose ended holders should be looked over.
    fn applied(
        &self,
        batch: &Batch,
        claims: &[&[Claim]],
        said: Said,
    ) -> Result<(Applied, Vec<Vec<u8>>), RedisError> {
        let mut said = said.into_iter();
        let mut next = || said.next().ok_or(RedisError::Answer("commit"));
        let mut applied = Applied::default();
        let mut crowded = Vec::new();
        if !batch.groups.is_empty() {
            let mut answer = Values::of(next()??)?;
            self.saw(answer.time()?);
            for letter in bytes(answer.take()?)? {
                applied.groups.push(match letter {
                    b'a' => Verdict::Applied,
                    b's' => Verdict::Stale,
                    _ => return Err(RedisError::Answer("commit")),
                });
            }
            if applied.groups.len() != batch.groups.len() {
                return Err(RedisError::Answer("commit"));
            }
            for key in answer.rest() {
                crowded.push(bytes(key)?);
            }
        }
        let mut shares = Vec::with_capacity(claims.len());
        for claims in claims {
            shares.push((claims, next()?.and_then(|value| self.all_claimed(value, claims.len()))));
        }
        let is_any_done = !batch.groups.is_empty() || shares.iter().any(|(_, claimed)| claimed.is_ok());
        for (claims, claimed) in shares {
            applied.claims.extend(match claimed {
                Ok(claimed) => claimed,
                // The groups are applied and other claims have their jobs, whatever became of this claim.
                Err(error) if is_any_done => {
                    tracing::debug!(%error, "a claim of a commit found nothing");
                    vec![Claimed::default(); claims.len()]
                }
                Err(error) => return Err(error),
            });
        }
        Ok((applied, crowded))
    }

    /// Performs one step of a crossing (a commit over several partitions), as durably as anything that is
    /// acknowledged. A step that gets no answer is sent again: doing it twice has the effect of doing it
    /// once.
    pub(crate) async fn step(
        &self,
        script: Script,
        push: impl FnOnce(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let link = self.commits();
        self.reach(link).await?;
        let mut command = link.call(script);
        push(&mut command);
        // An earlier step may be done already, and whoever recovers this crossing may still do this one.
        let said = self.send_until_answered(link, vec![command]).await.map_err(RedisError::after_it_began)?;
        said.into_iter().next().ok_or(RedisError::Answer("a step"))?
    }

    /// The connection for the next commit.
    fn commits(&self) -> &Link {
        self.writers.as_ref().and_then(Writers::next).unwrap_or(&self.link)
    }

    /// Waits until the replicas have everything read so far. This confirms nothing that was read from an
    /// earlier primary: the caller checks whether the primary has moved since its read.
    pub(crate) async fn confirm(&self) -> Result<(), RedisError> {
        let Some(writers) = &self.writers else { return Ok(()) };
        let Some(link) = writers.next() else { return Ok(()) };
        let begun = Instant::now();
        loop {
            let said = link.send(&writers.again(Vec::new())).await;
            match said.and_then(|said| writers.unwrap(said, true)) {
                Ok(_) => return Ok(()),
                // Redis itself refuses writes: the next caller tries again anyway.
                Err(RedisError::Behind) => return Err(RedisError::Behind),
                Err(error) if !self.may_pass(link, &error) => return Err(error),
                Err(error) => self.check(Some(begun), &error)?,
            }
            tokio::time::sleep(RESOLVE_PAUSE).await;
        }
    }

    /// Whether a commit would be accepted now, as far as is known: by Redis itself, and by the replicas that
    /// commits wait for if the last write did not reach enough of them.
    pub(crate) async fn takes_writes(&self) -> Result<(), RedisError> {
        self.look(nudge(&self.link)).await?;
        if self.writers.as_ref().is_some_and(Writers::is_behind) {
            return self.confirm().await;
        }
        Ok(())
    }

    /// Makes sure that there is a connection; where a failover is possible, waits for the new primary.
    async fn reach(&self, link: &Link) -> Result<(), RedisError> {
        let begun = Instant::now();
        while let Err(error) = link.connection().await {
            if !link.finder().follows() || !error.passes() || begun.elapsed() >= self.patience {
                return Err(error);
            }
            tokio::time::sleep(RESOLVE_PAUSE).await;
        }
        Ok(())
    }

    /// Whether a request that failed with `error` may succeed when it is sent again.
    fn may_pass(&self, link: &Link, error: &RedisError) -> bool {
        let lacks_replicas = matches!(error, RedisError::Behind);
        error.is_lost_connection() || lacks_replicas || (link.finder().follows() && error.passes())
    }

    /// Whether the patience of a request first lost at `lost_at` is not used up yet; if it is, the error to
    /// report after `error`.
    fn check(&self, lost_at: Option<Instant>, error: &RedisError) -> Result<(), RedisError> {
        match lost_at {
            Some(at) if at.elapsed() >= self.patience => Err(match error {
                RedisError::Lagging => RedisError::Lagging,
                RedisError::Behind => RedisError::Behind,
                _ => RedisError::Unknown,
            }),
            _ => Ok(()),
        }
    }

    /// Sends requests that carry turns, and sends them again unchanged when the answer was lost or too few
    /// replicas have the write: the scripts recognize a repeated turn.
    async fn send_until_answered(&self, link: &Link, commands: Vec<Cmd>) -> Result<Said, RedisError> {
        let (first, again) = match &self.writers {
            None => (Request::of(commands), None),
            Some(writers) => (writers.first(commands.clone()), Some(writers.again(commands))),
        };
        let mut lost_at: Option<Instant> = None;
        // Whether an earlier attempt may have been applied without an answer, or without enough replicas
        // confirming it.
        let mut may_be_done = false;
        loop {
            let request = if lost_at.is_some() { again.as_ref().unwrap_or(&first) } else { &first };
            let mut said = link.send(request).await;
            if let Some(writers) = &self.writers {
                said = said.and_then(|said| writers.unwrap(said, lost_at.is_some()));
            }
            let error = match said {
                Ok(said) => {
                    let is_unknown = |said: &Result<Value, RedisError>| {
                        said.as_ref().is_err_and(RedisError::is_unknown_script)
                    };
                    let follows = link.finder().follows();
                    let waits = |said: &Result<Value, RedisError>| {
                        let waits = |error: &RedisError| match lost_at {
                            Some(_) => error.is_not_yet() || (follows && error.is_on_its_way()),
                            None => follows && error.passes(),
                        };
                        said.as_ref().is_err_and(waits)
                    };
                    if said.iter().any(is_unknown) {
                        tracing::info!("Redis no longer knew the scripts, and is sent them again");
                        may_be_done |= !said.iter().all(is_unknown);
                        match link.teach().await {
                            Ok(()) => {
                                lost_at = lost_at.or(Some(Instant::now()));
                                self.check(lost_at, &RedisError::Silent)?;
                                continue;
                            }
                            Err(error) => error,
                        }
                    } else if said.iter().any(|said| said.as_ref().is_err_and(RedisError::is_emptied)) {
                        // The store is made anew before this is sent again. Whatever else was sent with it is
                        // gone too.
                        lost_at = lost_at.or(Some(Instant::now()));
                        self.check(lost_at, &RedisError::Silent)?;
                        continue;
                    } else if said.iter().any(waits) {
                        RedisError::Silent
                    } else {
                        return Ok(said);
                    }
                }
                // Nothing was done.
                Err(error) if lost_at.is_none() && !self.may_pass(link, &error) => return Err(error),
                // Nothing here either: the store's own record (`!`) is gone, and the store is not made anew.
                Err(RedisError::Beheaded) if !may_be_done => return Err(RedisError::Beheaded),
                Err(RedisError::Behind) if may_be_done => RedisError::Unknown,
                Err(error) => error,
            };
            may_be_done |= !matches!(error, RedisError::Behind);
            if lost_at.is_none() {
                tracing::info!(%error, "a commit has no answer yet; it is sent again");
            }
            lost_at = lost_at.or(Some(Instant::now()));
            self.check(lost_at, &error)?;
            tokio::time::sleep(RESOLVE_PAUSE).await;
        }
    }

    /// Looks over the ended holders of keys: mere housekeeping, which no answer waits for.
    pub(crate) async fn look_over_all(&self, keys: Vec<Vec<u8>>) {
        for key in keys {
            if let Err(error) = self.look_over(&key).await {
                tracing::debug!(%error, "ended holders of a key could not be thinned out");
            }
        }
    }

    /// Removes from a key's ended holders those that another one outlives. No decision ever looks at them;
    /// this keeps the list short.
    async fn look_over(&self, key: &[u8]) -> Result<(), RedisError> {
        let bytes: [u8; 32] = key.try_into().map_err(|_| RedisError::Answer("a key has 32 bytes"))?;
        let key = UniqueKey::from_bytes(bytes);
        let outlived = self.outlived(key).await?;
        if outlived.is_empty() {
            return Ok(());
        }
        let mut command = self.link.call(Script::Upkeep);
        self.push_time(&mut command);
        command.arg("outlived").arg(&bytes[..]);
        for (id, version) in outlived {
            command.arg(&id.to_bytes()[..]).arg(&version.to_be_bytes()[..]);
        }
        self.look(command).await.map(drop)
    }

    /// The ended holders that another outlives, each with the version it was seen in: it may live again, and
    /// end anew.
    async fn outlived(&self, key: UniqueKey) -> Result<Vec<(JobId, u64)>, RedisError> {
        let all = self.ended_holders(key).await?;
        let mut kept = all.clone();
        leave_out_outlived(&mut kept);
        let outlived = all.iter().filter(|head| kept.iter().all(|kept| kept.id != head.id));
        Ok(outlived.map(|head| (head.id, head.version)).collect())
    }
}

#[cfg(test)]
mod tests {
    use semel_core::lease::Grant;
    use semel_store::backend::Claim;

    use super::{TAKERS_MAX, together};

    fn cut(limits: &[u32]) -> Vec<usize> {
        let claim = |limit: &u32| Claim {
            queues: Vec::new(),
            limit: *limit,
            grant: Grant::new("w".into(), None),
            closed: Vec::new(),
        };
        let claims: Vec<Claim> = limits.iter().map(claim).collect();
        claims.chunk_by(together()).map(<[Claim]>::len).collect()
    }

    #[test]
    fn one_script_serves_so_many_takers_and_takes_so_many_jobs() {
        assert_eq!(cut(&[1; 10]), [10]);
        assert_eq!(cut(&[1; TAKERS_MAX + 1]), [TAKERS_MAX, 1]);
        assert_eq!(cut(&[1_000, 1_000, 400, 600, 1]), [1, 1, 2, 1]);
        assert_eq!(cut(&[5_000, 1]), [1, 1]);
        assert!(cut(&[]).is_empty());
    }
}
