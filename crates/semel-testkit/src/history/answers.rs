//! Judges what callers were told against what was committed while they asked.

use semel_core::body::Body;
use semel_core::enqueue::{Offer, Outcome, Start};
use semel_core::ident::JobId;
use semel_core::job::{Head, Role};
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::settle::{Refusal, Settled};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{Disclose, OnMismatch, PeriodFrom, UniquePolicy};

use super::Checked;
use super::spec::{Expected, blocks, decide};
use super::stored::{Mark, Stored};
use super::witness::Witness;

impl Witness {
    /// Judges the answer to an offer made at `from`, at the moment it arrives.
    pub fn check_outcome(&self, offer: &Offer, mark: Mark, outcome: &Outcome, from: u64) -> Checked {
        match outcome {
            Outcome::Created(head) | Outcome::FollowUp(head) | Outcome::Replaced { head, .. } => {
                let stored = self.stored(head)?;
                if stored.mark != mark || offer.id.is_some_and(|id| id != head.id) {
                    return Err(format!("request {} was answered with another's job {}", mark.n, head.id));
                }
                if head.key != offer.unique.as_ref().map(|identity| identity.key) {
                    return Err(format!("{} was created without the key of its request", head.id));
                }
                match (outcome, offer.start) {
                    (Outcome::FollowUp(_), Start::Later(when))
                        if head.available_at < when.resolve(head.created_at) =>
                    {
                        Err(format!("the follow-up {} is to start before the time of its request", head.id))
                    }
                    _ => Ok(()),
                }
            }
            Outcome::Repeated(head) => {
                let stored = self.stored(head)?;
                if let Some(once) = offer.once.as_ref().filter(|_| offer.id != Some(head.id)) {
                    return self.check_repeated(once, mark, head.id);
                }
                if stored.mark == mark && offer.id == Some(head.id) {
                    return Ok(());
                }
                Err(format!("request {} was answered as a repetition of another", mark.n))
            }
            Outcome::IdTaken(id) => match self.jobs.get(id) {
                // The digest of the request went with the body: nobody can say that the request is the same.
                Some(stored) if stored.mark != mark || stored.is_purged => Ok(()),
                _ => Err(format!("request {} was told that its own id is taken", mark.n)),
            },
            Outcome::TooManyHolders | Outcome::QueueFull(_) | Outcome::Corrupt(_) => {
                Err(format!("{outcome:?}"))
            }
            // A repeated answer, whatever has happened to the job since.
            Outcome::Amended(head)
                if offer
                    .once
                    .as_ref()
                    .is_some_and(|once| self.check_repeated(once, mark, head.id).is_ok()) =>
            {
                self.stored(head).map(drop)
            }
            Outcome::Existing(_)
            | Outcome::Amended(_)
            | Outcome::Rejected { .. }
            | Outcome::Mismatch { .. } => self.check_duplicate(offer, outcome, from),
            Outcome::KeyReused(holder) => self.check_reused(offer, mark, holder),
            Outcome::KeySpent => self.check_spent(offer, mark),
        }
    }

    /// The job that an answer shows, if it was stored exactly as shown. A late answer may be about a job that
    /// is gone and whose id another job has by now.
    fn stored(&self, head: &Head) -> Result<&Stored, String> {
        let shown = self.of_id(head.id).find(|stored| stored.versions.contains(&head.version));
        shown.ok_or_else(|| match self.jobs.get(&head.id) {
            Some(_) => format!("an answer shows {} as it never was stored", head.id),
            None => format!("an answer shows {}, which is not stored", head.id),
        })
    }

    /// Every job that has or had the id, the current one first.
    pub(super) fn of_id(&self, id: JobId) -> impl Iterator<Item = &Stored> {
        self.jobs.get(&id).into_iter().chain(self.bygone.iter().filter(move |job| job.head.id == id))
    }

    /// Asserts that the offer was a duplicate at some moment between the call and the answer.
    fn check_duplicate(&self, offer: &Offer, outcome: &Outcome, from: u64) -> Checked {
        let Some(identity) = &offer.unique else {
            return Err(format!("a job without a policy is a duplicate: {outcome:?}"));
        };
        if let Outcome::Existing(head) | Outcome::Amended(head) = outcome {
            let stored = self.stored(head)?;
            let asked = Body::decode(&offer.body).map_err(|corrupt| corrupt.0)?;
            let asked = Mark::read(&asked.meta)?.n;
            if matches!(outcome, Outcome::Amended(_)) && !self.taken.contains(&(head.id, asked)) {
                return Err(format!("{} did not take over what it was said to", head.id));
            }
            if matches!(outcome, Outcome::Amended(_)) && offer.expires.is_none() && head.expires_at.is_some()
            {
                return Err(format!("{} expires with what it took over, which does not", head.id));
            }
            let slides = identity.policy.period_from() == PeriodFrom::LastDuplicate
                && identity.policy.period().is_some()
                && matches!(outcome, Outcome::Existing(_));
            let began = self.loads_since(from).first().map_or(Timestamp::MAX, |(_, now)| *now);
            if slides && stored.head.renewed_at.is_none_or(|at| at < began) {
                return Err(format!("a duplicate of {} did not renew its window", head.id));
            }
        }
        let policy = &identity.policy;
        let states = self.keys.get(&identity.key).map(Vec::as_slice).unwrap_or_default();
        let mut last = None;
        for (seq, now) in self.loads_since(from) {
            // The state at the load, and those that followed until now.
            let first = states.partition_point(|(at, _)| at <= seq).saturating_sub(1);
            for (at, heads) in &states[first..] {
                if last.as_ref().is_some_and(|(_, seen, then)| (seen, then) == (at, now)) {
                    continue;
                }
                let (mut holders, mut fading) = self.part(heads.clone(), *now);
                loop {
                    let expected = decide(policy, &holders, *now, offer.inspect);
                    if self.is_right(offer, policy, outcome, &expected, &holders, *now) {
                        return Ok(());
                    }
                    last = Some((expected, *at, *now));
                    if fading.is_empty() {
                        break;
                    }
                    holders.append(&mut fading);
                }
            }
        }
        Err(format!("{outcome:?}\n  was never right; at last {last:?} was"))
    }

    fn is_right(
        &self,
        offer: &Offer,
        policy: &UniquePolicy,
        outcome: &Outcome,
        expected: &Expected,
        holders: &[Head],
        now: Timestamp,
    ) -> bool {
        let args = Body::decode(&offer.body).map(|body| body.args).ok();
        // A follow-up takes over newer args; the history does not say which of them an answer looked at.
        let compares = |id: JobId, differs: bool| {
            self.jobs.get(&id).is_some_and(|job| {
                let mut all = std::iter::once(&job.args).chain(&job.earlier_args);
                job.head.job_type != offer.job_type && differs
                    || job.head.job_type == offer.job_type
                        && all.any(|known| (Some(known) != args.as_ref()) == differs)
            })
        };
        let is_checked = policy.on_mismatch() == OnMismatch::Reject;
        let is_other_work = |id: JobId| is_checked && compares(id, true);
        // Nobody can say what work a job without a body was.
        let is_its_like = |id: JobId| {
            !is_checked || compares(id, false) || self.jobs.get(&id).is_none_or(|job| job.is_purged)
        };
        let is_hidden = !offer.inspect
            || policy.disclose() == Disclose::Never
            || holders
                .iter()
                .any(|holder| blocks(policy, holder, now) && holder.hold.disclose == Disclose::Never);
        match (outcome, expected) {
            (Outcome::Existing(head), Expected::Existing(id)) => head.id == *id && is_its_like(*id),
            (Outcome::Amended(head), Expected::Amend(id)) => {
                head.id == *id && head.job_type == offer.job_type && is_its_like(*id)
            }
            (Outcome::Rejected { holder, why }, Expected::Reject(id, expected)) => {
                holder.absorbed_by() == *id
                    && why == expected
                    && holder.named().is_none() == is_hidden
                    && is_its_like(*id)
            }
            (Outcome::Mismatch { holder, pointers }, expected) => {
                let id = holder.absorbed_by();
                let is_other_type = holder.labels().0 != &offer.job_type;
                let role = self.jobs.get(&id).map(|job| job.head.role);
                // The end of the replaced run would release its follow-up, which would be replaced next.
                let is_next = matches!(expected, Expected::Replace { .. }) && role == Some(Role::FollowUp);
                (is_next || expected.compared().contains(&id))
                    && (is_other_work(id) || is_other_type && matches!(expected, Expected::Amend(_)))
                    && (holder.named().is_some() || pointers.is_empty())
            }
            _ => false,
        }
    }

    /// Judges the answer to a request about a run, made at `from` by `bearer`. `burns` says that the request
    /// makes the lease worthless.
    pub fn check_settled(
        &self,
        id: JobId,
        bearer: &Bearer,
        settled: &Settled,
        from: u64,
        burns: bool,
    ) -> Checked {
        match settled {
            Settled::Done(head) => {
                self.stored(head)?;
                if burns {
                    return Ok(());
                }
                if bearer.lease.is_some_and(|LeaseToken(fence)| fence != head.fence) {
                    return Err(format!("a lease on {id} that is not the newest was accepted"));
                }
                match (&bearer.worker, self.grants.get(&(id, head.fence))) {
                    (Some(worker), Some(holder)) if !holder.is_empty() && worker != holder => {
                        Err(format!("the lease of {holder} on {id} was used by {worker}"))
                    }
                    _ => Ok(()),
                }
            }
            Settled::Repeated(head) => {
                self.stored(head)?;
                if bearer.lease == Some(LeaseToken(head.fence)) {
                    return Ok(());
                }
                Err(format!("another lease on {id} than the one that settled it was answered like that"))
            }
            Settled::Refused(Refusal::Corrupt(corrupt)) => Err(format!("{id}: {corrupt}")),
            Settled::Refused(refusal) => {
                let Some(stored) = self.jobs.get(&id) else { return Ok(()) };
                let is_current = stored.head.state == State::Active
                    && bearer.lease == Some(LeaseToken(stored.head.fence))
                    && bearer.worker == self.grants.get(&(id, stored.head.fence)).cloned();
                if is_current && stored.moved_at < from {
                    return Err(format!("the newest lease on {id} was refused: {refusal:?}"));
                }
                Ok(())
            }
        }
    }

    /// Judges whether what a worker was granted is what was committed.
    pub fn check_run(&self, head: &Head) -> Checked {
        self.stored(head).map(drop)
    }
}
