//! Replays the commits of a store, in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use semel_core::body::Body;
use semel_core::draft::{Group, Write};
use semel_core::ident::{JobId, QueueName};
use semel_core::job::{Ending, Head, NoteKind, Role};
use semel_core::sight::Sight;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::trail::{Duplicates, Payload};
use semel_core::unique::{Admission, OnMismatch, UniqueKey, UniquePolicy, admit};
use semel_core::workflow::Workflow;
use semel_store::backend::QueueStats;

use super::moves::{check_new, check_update};
use super::spec::{Expected, decide};
use super::stored::{Ended, Mark, Stored};
use super::tasks::check_task;
use super::{Checked, Lanes, Requests, Tasks};

/// Everything committed so far.
#[derive(Debug, Default)]
pub struct Witness {
    /// The jobs, including forgotten ones.
    pub jobs: BTreeMap<JobId, Stored>,
    /// Jobs that are gone for good and whose ids later jobs have taken.
    pub bygone: Vec<Stored>,
    /// Heads that are gone for good.
    pub forgotten: BTreeSet<JobId>,
    /// The worker that was granted each run.
    pub grants: BTreeMap<(JobId, u64), Arc<str>>,
    /// How each run ended, by job and fence.
    pub ends: BTreeMap<(JobId, u64), Ended>,
    /// The requests whose payloads a job took over.
    pub taken: BTreeSet<(JobId, u64)>,
    /// How many jobs of its own each request stored.
    pub inserts: BTreeMap<u64, u32>,
    /// The states that each key went through, each with its time.
    pub keys: BTreeMap<UniqueKey, Vec<(u64, Vec<Head>)>>,
    /// Keys that an operator released.
    pub released: BTreeSet<UniqueKey>,
    /// Requests of crons that skip ticks while one of their jobs goes on.
    pub alone: BTreeSet<u64>,
    /// The limits on starting jobs.
    pub lanes: Lanes,
    /// The workflows that are stored.
    pub workflows: BTreeMap<Arc<str>, Workflow>,
    /// Requests under an `Idempotency-Key`.
    pub requests: Requests,
    /// The tasks that were asked for.
    pub tasks: Tasks,
    pub(super) paused: BTreeSet<QueueName>,
    pub(super) seq: u64,
    /// The present and former holders of each key: no other jobs need be looked at for it.
    carriers: BTreeMap<UniqueKey, BTreeSet<JobId>>,
    loads: Vec<(u64, Timestamp)>,
}

/// What one group has done so far.
#[derive(Default)]
struct Progress {
    replaced: Vec<Head>,
    released: Vec<JobId>,
    linked: Vec<(JobId, BTreeSet<JobId>)>,
    keys: BTreeSet<UniqueKey>,
    tasks: Vec<JobId>,
    asked: Vec<(u64, JobId)>,
}

impl Witness {
    /// The number of events so far: the history's clock.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Notes that a load saw this time of the store.
    pub fn loaded(&mut self, now: Timestamp) {
        self.seq += 1;
        self.loads.push((self.seq, now));
    }

    /// The times at which decisions made since `from` may have been taken.
    pub fn loads_since(&self, from: u64) -> &[(u64, Timestamp)] {
        &self.loads[self.loads.partition_point(|(seq, _)| *seq <= from)..]
    }

    /// The holders of a key, and apart from them those whose memory may be over at `now`: whether these still
    /// block depends on when the store did its housekeeping.
    pub fn holders(&self, key: &UniqueKey, now: Timestamp) -> (Vec<Head>, Vec<Head>) {
        let holders = self.keys.get(key).and_then(|states| states.last()).map(|(_, heads)| heads.clone());
        self.part(holders.unwrap_or_default(), now)
    }

    /// Splits holders into those that certainly exist and those that may be forgotten at `now`.
    pub fn part(&self, holders: Vec<Head>, now: Timestamp) -> (Vec<Head>, Vec<Head>) {
        holders.into_iter().partition(|head| {
            let Some(stored) = self.jobs.get(&head.id) else { return true };
            let blocks_its_like = stored.policy.as_ref().is_some_and(|policy| {
                decide(policy, std::slice::from_ref(head), now, true) != Expected::Create
            });
            !stored.is_purged || blocks_its_like
        })
    }

    /// Takes in a group that was applied at `now`.
    pub fn group(&mut self, group: &Group, now: Timestamp) -> Checked {
        let mut progress = Progress::default();
        for write in &group.writes {
            self.seq += 1;
            self.write(write, now, &mut progress).map_err(|what| format!("{what}\n  in {write:?}"))?;
        }
        if let Some(head) = progress.replaced.first() {
            return Err(format!("{} was replaced by nobody", head.id));
        }
        for id in progress.released {
            self.check_release(id)?;
        }
        for id in progress.tasks {
            self.check_task_whole(id)?;
        }
        for (number, job) in progress.asked {
            self.check_is_kept(number, job)?;
        }
        for (follow_up, after) in progress.linked {
            // A later item of the batch may have ended either.
            let waits = self.jobs.get(&follow_up).is_some_and(|job| job.head.state == State::Pending);
            let forgot = |id: &&JobId| {
                self.jobs.get(id).is_some_and(|job| job.head.state.is_live())
                    && !self.leads_to(**id, follow_up)
            };
            if let Some(id) = after.iter().find(forgot).filter(|_| waits) {
                return Err(format!("the follow-up {follow_up} is not linked from {id}"));
            }
        }
        progress.keys.iter().try_for_each(|key| self.check_waiting(key))
    }

    fn write(&mut self, write: &Write, now: Timestamp, progress: &mut Progress) -> Checked {
        match write {
            Write::Insert { head, body, .. } => self.insert(head, body, now, progress),
            Write::Update { head } => self.update(head, now, progress),
            Write::Note { job, kind, text } => {
                let Some(text) = text else { return Ok(()) };
                self.note(*job, *kind, text, progress)
            }
            Write::Forget { job, remember } => self.forget(*job, remember.is_some(), now),
            // Request ids are judged by the answers that used them.
            Write::Spend { .. } | Write::Free { .. } => Ok(()),
            Write::Document { key, document } => self.document(key, document.as_ref(), now),
            Write::Queue { row } => {
                if row.paused {
                    self.paused.insert(row.name.clone());
                } else {
                    self.paused.remove(&row.name);
                }
                Ok(())
            }
        }
    }

    fn insert(&mut self, head: &Head, body: &[u8], now: Timestamp, progress: &mut Progress) -> Checked {
        if let Some(job) = self.jobs.get(&head.id) {
            // The id of a job that is gone for good may be used again.
            if !self.forgotten.remove(&head.id) {
                return Err(format!("{} was stored twice", head.id));
            }
            if job.head.version >= head.version {
                return Err(format!("{} was stored again with a version it has had", head.id));
            }
            let bygone = self.jobs.remove(&head.id);
            self.bygone.extend(bygone);
        }
        let body = Body::decode(body).map_err(|corrupt| corrupt.0)?;
        let mark = Mark::read(&body.meta)?;
        check_new(head, now)?;
        if self.tasks.is_task(mark) {
            self.check_one_task(head)?;
            progress.tasks.push(head.id);
        }
        self.check_alone(mark)?;
        progress.asked.push((mark.n, head.id));
        self.lanes.admitted(head, mark)?;
        let stored = Stored {
            head: head.clone(),
            policy: body.unique,
            mark,
            args: body.args,
            earlier_args: Vec::new(),
            asked: (mark.n, self.seq),
            first_run_at: None,
            ran_at: 0,
            moved_at: self.seq,
            versions: BTreeSet::from([head.version]),
            is_purged: false,
            was_revived: false,
            duplicates: 0,
        };
        *self.inserts.entry(mark.n).or_default() += 1;
        let (Some(key), Some(policy)) = (head.key, stored.policy.clone()) else {
            self.jobs.insert(head.id, stored);
            return if head.key.is_none() { Ok(()) } else { Err("a key without a policy".to_owned()) };
        };
        self.check_admission(&stored, &policy, key, progress)?;
        self.jobs.insert(head.id, stored);
        self.carriers.entry(key).or_default().insert(head.id);
        progress.keys.insert(key);
        self.remember(key);
        if head.role == Role::Plain {
            let (mut others, _) = self.holders(&key, head.created_at);
            others.retain(|other| other.id != head.id);
            let again = admit(&policy, &others, head.created_at, Sight::everything());
            if again != Admission::Create
                || decide(&policy, &others, head.created_at, true) != Expected::Create
            {
                return Err(format!("{} was created beside those that block it: {again:?}", head.id));
            }
        }
        Ok(())
    }

    /// Takes the decision behind a new job again, on what was there before it.
    fn check_admission(
        &self,
        stored: &Stored,
        policy: &UniquePolicy,
        key: UniqueKey,
        progress: &mut Progress,
    ) -> Checked {
        let (head, now) = (&stored.head, stored.head.created_at);
        let (replaced, others): (Vec<Head>, Vec<Head>) =
            std::mem::take(&mut progress.replaced).into_iter().partition(|head| head.key == Some(key));
        progress.replaced = others;
        let (mut holders, fading) = self.holders(&key, now);
        for before in &replaced {
            holders.retain(|holder| holder.id != before.id);
            holders.push(before.clone());
        }
        let done: BTreeSet<JobId> = replaced.iter().map(|head| head.id).collect();
        // Fences of one key ascend: the job starts from the highest fence of those live, or live until now.
        let alive = holders.iter().filter(|holder| holder.state.is_live());
        let fences = alive.filter_map(|holder| self.jobs.get(&holder.id)).map(|job| job.head.fence);
        if fences.max().is_some_and(|fence| fence > head.fence) {
            return Err("it begins below the fences of its key".to_owned());
        }
        let mut judge = |holders: &[Head]| {
            let expected = decide(policy, holders, now, stored.mark.inspect);
            let is_other = |id: JobId| {
                self.jobs
                    .get(&id)
                    .is_some_and(|job| job.args != stored.args || job.head.job_type != head.job_type)
            };
            if policy.on_mismatch() == OnMismatch::Reject && expected.compared().into_iter().any(is_other) {
                return Err(format!("{} took the key of other work", head.id));
            }
            let is_right = match &expected {
                Expected::Create => head.role == Role::Plain && done.is_empty(),
                Expected::Replace { cancelled, scheduled_at, wait_until, .. } => {
                    let waits =
                        wait_until.is_none_or(|at| head.available_at >= at || head.state == State::Pending);
                    let keeps = match scheduled_at {
                        Some(at) if wait_until.is_none() => {
                            // It may inherit the wait for a run that one of these replaced.
                            let at = (*at).max(now);
                            head.available_at == at
                                || Some(head.available_at) == head.burned_until().max(Some(at))
                        }
                        _ => true,
                    };
                    *cancelled == done && waits && keeps && head.role == Role::Plain
                }
                Expected::FollowUp { after, .. } => {
                    progress.linked.push((head.id, after.clone()));
                    head.role == Role::FollowUp && head.state == State::Pending && done.is_empty()
                }
                Expected::Existing(_) | Expected::Reject(..) | Expected::Amend(_) => false,
            };
            if is_right { Ok(()) } else { Err(format!("expected {expected:?}, replaced {done:?}")) }
        };
        let first = judge(&holders);
        if first.is_err() && !fading.is_empty() {
            return judge(&[holders, fading].concat());
        }
        first
    }

    fn update(&mut self, head: &Head, now: Timestamp, progress: &mut Progress) -> Checked {
        let seq = self.seq;
        if head.state == State::Active
            && self.jobs.get(&head.id).is_some_and(|job| job.head.state == State::Available)
        {
            progress.keys.extend(head.key);
            return self.started(head, now);
        }
        let Some(stored) = self.jobs.get_mut(&head.id).filter(|_| !self.forgotten.contains(&head.id)) else {
            return Err(format!("{} was written and does not exist", head.id));
        };
        let before = std::mem::replace(&mut stored.head, head.clone());
        if self.tasks.is_task(stored.mark) {
            check_task(&before, head, now)?;
            progress.tasks.push(head.id);
        } else {
            check_update(&before, head, now)?;
        }
        stored.versions.insert(head.version);
        if before.state != head.state {
            stored.moved_at = seq;
        }
        if let Some(lease) = before.lease.as_ref().filter(|_| head.lease.is_none()) {
            let had_run_out = lease.visible_until <= now && lease.run_until > now;
            let is_burned = head.fence != before.fence;
            let ended = Ended { state: head.state, is_burned, had_run_out };
            self.ends.insert((head.id, before.fence), ended);
        }
        let was_revived = before.state == State::Discarded && head.state == State::Available;
        stored.was_revived |= was_revived;
        let policy = stored.policy.clone().filter(|_| was_revived);
        if head.ending == Some(Ending::Replaced) && before.ending.is_none() {
            progress.replaced.push(before.clone());
        }
        let is_let_go =
            matches!((before.state, head.state), (State::Pending, State::Available | State::Scheduled));
        if head.role == Role::FollowUp && is_let_go {
            progress.released.push(head.id);
        }
        if head.key.is_none()
            && let Some(key) = before.key
        {
            self.released.insert(key);
        }
        if let Some(key) = before.key {
            progress.keys.insert(key);
            self.remember(key);
        }
        if let (Some(policy), Some(key)) = (policy, head.key) {
            let (mut others, _) = self.holders(&key, now);
            others.retain(|other| other.id != head.id);
            // The decision may be older than the commit; a job that blocked by a window then may no longer
            // block, never the other way round.
            if decide(&policy, &others, now, true) != Expected::Create {
                return Err(format!("{} was sent back although others block it", head.id));
            }
        }
        Ok(())
    }

    fn note(&mut self, job: JobId, kind: NoteKind, text: &[u8], progress: &mut Progress) -> Checked {
        let seq = self.seq;
        let Some(stored) = self.jobs.get_mut(&job).filter(|job| !job.is_purged) else {
            return Err(format!("a note on {job}, which does not exist"));
        };
        match kind {
            NoteKind::Payload => {
                let payload = Payload::decode(text).map_err(|corrupt| corrupt.0)?;
                if stored.head.attempt > 0 || stored.head.state.is_finished() {
                    return Err(format!("{job} took over a payload after it was started"));
                }
                let asked = Mark::read(payload.meta.get())?.n;
                stored.asked = (asked, seq);
                stored.earlier_args.push(std::mem::replace(&mut stored.args, payload.args.get().into()));
                self.taken.insert((job, asked));
                progress.asked.push((asked, job));
            }
            NoteKind::Duplicates => {
                let duplicates = Duplicates::decode(text).map_err(|corrupt| corrupt.0)?;
                if duplicates.count <= stored.duplicates {
                    return Err(format!("the duplicates of {job} went back"));
                }
                stored.duplicates = duplicates.count;
            }
            NoteKind::Failures
            | NoteKind::Result
            | NoteKind::Progress
            | NoteKind::Marks
            | NoteKind::Waiters
            | NoteKind::ParentResults
            | NoteKind::Ahead => {}
        }
        Ok(())
    }

    fn forget(&mut self, job: JobId, is_remembered: bool, now: Timestamp) -> Checked {
        let Some(stored) = self.jobs.get_mut(&job).filter(|job| !job.is_purged) else {
            return Err(format!("{job} was purged and does not exist"));
        };
        let head = &stored.head;
        let is_over = head.purge_at().is_some_and(|at| at <= now) || head.ending == Some(Ending::DeadLetter);
        if !head.state.is_finished() || !is_over {
            return Err(format!("{job} was purged before its time"));
        }
        stored.is_purged = true;
        if is_remembered {
            return Ok(());
        }
        if let (Some(_), Some(policy)) = (head.key, &stored.policy)
            && decide(policy, std::slice::from_ref(head), now, true) != Expected::Create
        {
            return Err(format!("{job} was forgotten and still blocks its like"));
        }
        let key = head.key;
        self.forgotten.insert(job);
        if let Some(key) = key {
            self.remember(key);
        }
        Ok(())
    }

    /// The jobs that hold a key, including forgotten ones.
    pub(super) fn of_key(&self, key: UniqueKey) -> impl Iterator<Item = &Stored> {
        let carriers = self.carriers.get(&key).into_iter().flatten();
        carriers.filter_map(|id| self.jobs.get(id)).filter(move |job| job.head.key == Some(key))
    }

    /// Records the present holders of a key.
    pub(super) fn remember(&mut self, key: UniqueKey) {
        let holders = self.of_key(key);
        let heads = holders.map(|job| job.head.clone()).filter(|head| !self.forgotten.contains(&head.id));
        let state = (self.seq, heads.collect());
        self.keys.entry(key).or_default().push(state);
    }

    /// Whether the end of a job releases a follow-up, or one that waits before it in line.
    fn leads_to(&self, from: JobId, follow_up: JobId) -> bool {
        let (mut at, mut seen) = (from, BTreeSet::new());
        while seen.insert(at) {
            match self.jobs.get(&at).and_then(|job| job.head.follow_up) {
                Some(next) if next == follow_up => return true,
                Some(next) if self.jobs.get(&next).is_some_and(|job| waits_for_a_run(&job.head)) => at = next,
                _ => return false,
            }
        }
        false
    }

    /// Asserts that a follow-up is released only when no run of its key is under way.
    fn check_release(&self, id: JobId) -> Checked {
        let Some(released) = self.jobs.get(&id).map(|job| &job.head) else { return Ok(()) };
        let Some(key) = released.key else { return Ok(()) };
        // Of several follow-ups that were started and wait again, one goes first.
        let goes_behind = |head: &Head| released.attempt > 0 && waits_for_a_run(head);
        let runs = |job: &&Stored| {
            let head = &job.head;
            let is_started = head.state.is_live() && head.attempt > 0;
            is_started && head.id != id && !goes_behind(head)
        };
        match self.of_key(key).find(runs) {
            Some(other) if matches!(released.state, State::Available | State::Scheduled) => {
                Err(format!("the follow-up {id} was let go while {} runs", other.head.id))
            }
            _ => Ok(()),
        }
    }

    /// Asserts that a waiting follow-up is linked from a live job that waits for no run itself: its end will
    /// release the follow-up.
    fn check_waiting(&self, key: &UniqueKey) -> Checked {
        for waiting in self.of_key(*key).filter(|job| waits_for_a_run(&job.head)) {
            let id = waiting.head.id;
            let goes_on = |head: &Head| head.state.is_live() && !waits_for_a_run(head);
            if !self.jobs.values().any(|job| goes_on(&job.head) && self.leads_to(job.head.id, id)) {
                return Err(format!("the follow-up {id} waits for nobody's end"));
            }
        }
        Ok(())
    }

    /// Conservation: the store's counts match what was committed.
    pub fn check_counts(&self, queues: &[QueueStats]) -> Checked {
        let is_counted = |job: &&Stored| queues.iter().any(|queue| queue.row.name == job.head.queue);
        if let Some(job) = self.jobs.values().chain(&self.bygone).find(|job| !is_counted(job)) {
            return Err(format!("{} was committed to {}, which is no queue", job.head.id, job.head.queue));
        }
        for queue in queues {
            let all = || self.jobs.values().chain(&self.bygone);
            let here = || all().filter(|job| job.head.queue == queue.row.name);
            let purged = here().filter(|job| job.is_purged).count() as u64;
            let mut counts = [0; State::ALL.len()];
            for job in here().filter(|job| !job.is_purged) {
                counts[usize::from(job.head.state.code())] += 1;
            }
            if (queue.created, queue.purged, queue.counts) != (here().count() as u64, purged, counts) {
                return Err(format!("{queue:?} does not count {counts:?} and {purged} purged"));
            }
        }
        Ok(())
    }
}

fn waits_for_a_run(head: &Head) -> bool {
    head.role == Role::FollowUp && head.state == State::Pending
}
