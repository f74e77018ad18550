//! Judges runs: what a store granted on its own, what a decision started because it is under a limit, and
//! whether workers are given what comes first.

use std::collections::BTreeSet;
use std::sync::Arc;

use semel_core::body::Body;
use semel_core::draft::Full;
use semel_core::ident::JobId;
use semel_core::job::{Head, NoteKind, Role};
use semel_core::lease::Unclaimable;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::trail::Payload;
use semel_store::backend::Claim;

use super::moves::{check_grant, check_run, check_unclaimable};
use super::stored::Stored;
use super::{Checked, Mark, Witness};

impl Witness {
    /// Takes in a claim served at `now`.
    pub fn claimed(
        &mut self,
        claim: &Claim,
        granted: &[(Head, Full)],
        unclaimable: &[(JobId, Unclaimable)],
        now: Timestamp,
    ) -> Checked {
        for (id, why) in unclaimable {
            check_unclaimable(self.jobs.get(id).map(|job| &job.head), *id, *why, now)?;
        }
        self.check_order(claim, granted, unclaimable, now)?;
        for (head, full) in granted {
            self.seq += 1;
            self.granted(claim, head, full, now).map_err(|what| format!("{what}\n  in {head:?}"))?;
        }
        Ok(())
    }

    fn granted(&mut self, claim: &Claim, head: &Head, full: &Full, now: Timestamp) -> Checked {
        let others_run = self.others_run(head);
        let Some(stored) = self.jobs.get(&head.id) else {
            return Err(format!("{} was granted and does not exist", head.id));
        };
        check_grant(&stored.head, head, claim, others_run, now)?;
        let body = Body::decode(&full.body).map_err(|corrupt| corrupt.0)?;
        let payload = full.note(NoteKind::Payload).map(|text| Payload::decode(text));
        let meta = match payload {
            Some(payload) => payload.map_err(|corrupt| corrupt.0)?.meta.get().to_owned(),
            None => body.meta.into_string(),
        };
        if Mark::read(&meta)?.n != stored.asked.0 {
            return Err(format!("{} runs with the payload of an earlier request", head.id));
        }
        self.run(head)
    }

    /// Takes in the start of a job under a limit. No store may start it on its own: it takes a decision, made
    /// when the run began and committed at `now`.
    pub(super) fn started(&mut self, head: &Head, now: Timestamp) -> Checked {
        let (Some(lane), Some(decided)) = (head.lane, head.started_at.filter(|at| *at <= now)) else {
            return Err("a job under no limit was started by a decision".to_owned());
        };
        let others_run = self.others_run(head);
        let Some(stored) = self.jobs.get(&head.id) else { return Ok(()) };
        check_run(&stored.head, head, others_run, decided)?;
        self.check_limit(lane, head, decided)?;
        self.run(head)
    }

    /// Whether another job with the same key is running.
    fn others_run(&self, head: &Head) -> bool {
        let runs = |other: &Stored| other.head.id != head.id && other.head.state == State::Active;
        head.key.is_some_and(|key| self.of_key(key).any(runs))
    }

    /// Notes a run that has begun.
    fn run(&mut self, head: &Head) -> Checked {
        if self.paused.contains(&head.queue) {
            return Err("a paused queue gave a job".to_owned());
        }
        let seq = self.seq;
        let Some(stored) = self.jobs.get_mut(&head.id) else { return Ok(()) };
        stored.head = head.clone();
        stored.versions.insert(head.version);
        stored.first_run_at.get_or_insert(seq);
        (stored.ran_at, stored.moved_at) = (seq, seq);
        let worker = head.lease.as_ref().map(|lease| Arc::clone(&lease.worker)).unwrap_or_default();
        self.grants.insert((head.id, head.fence), worker);
        if let Some(key) = head.key {
            self.remember(key);
        }
        Ok(())
    }

    /// Judges that a claim gives what comes first, and gives something when there is something. A job under a
    /// limit not known to be closed is shown in its place, for the core to decide.
    fn check_order(
        &self,
        claim: &Claim,
        granted: &[(Head, Full)],
        unclaimable: &[(JobId, Unclaimable)],
        now: Timestamp,
    ) -> Checked {
        let Some(queue) = claim.queues.first().filter(|queue| !self.paused.contains(*queue)) else {
            return Ok(());
        };
        let mut ready: Vec<&Head> = self.jobs.values().map(|job| &job.head).collect();
        ready.retain(|head| {
            head.queue == *queue
                && head.state == State::Available
                && match head.lane {
                    None => head.role == Role::Plain && !head.is_expired(now),
                    Some(lane) => !claim.closed.contains(&lane),
                }
        });
        let order = |head: &Head| (std::cmp::Reverse(head.priority), head.available_at, head.id);
        ready.sort_unstable_by_key(|head| order(head));
        let is_shown = |head: &&Head| unclaimable.contains(&(head.id, Unclaimable::Limited));
        // A job that was shown uses up room that a grant would have used.
        let room = (claim.limit as usize).saturating_sub(ready.iter().copied().filter(is_shown).count());
        // The first job of each limit is enough: it stands in for those behind it.
        let mut lanes = BTreeSet::new();
        ready.retain(|head| head.lane.is_none_or(|lane| lanes.insert(lane)) && !is_shown(head));
        let first = ready.first();
        match (first, granted.first()) {
            (Some(first), None) if room > 0 => Err(format!("{} is ready and was not granted", first.id)),
            (Some(first), Some((given, _))) if given.queue != *queue || order(given) > order(first) => {
                Err(format!(
                    "{given:?}\n  was granted before {first:?}\n  by {claim:?}, which showed {unclaimable:?}"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Judges that what a worker was handed is the committed run, with the payload of the last request
    /// absorbed.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check_handed(&self, head: &Head, meta: &str) -> Checked {
        self.check_run(head)?;
        let is_its = |stored: &&Stored| stored.versions.contains(&head.version) && !stored.is_purged;
        let Some(stored) = self.jobs.get(&head.id).filter(is_its) else { return Ok(()) };
        if Mark::read(meta)?.n == stored.asked.0 {
            return Ok(());
        }
        Err(format!("{} was handed out with the payload of an earlier request", head.id))
    }
}
