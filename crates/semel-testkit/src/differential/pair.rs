//! A store and the memory model, which get the same commands.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_core::draft::{DocumentKind, Reads};
use semel_core::enqueue::{Batch, Mode, Offer, Outcome, enqueue_batch};
use semel_core::event::EventKind;
use semel_core::follow_up::hold_again;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::{Head, NoteKind};
use semel_core::lease::Unclaimable;
use semel_core::life::{self, KeyReleased};
use semel_core::limit::Turn;
use semel_core::settle;
use semel_core::sight::Sight;
use semel_core::slot::Due;
use semel_core::unique::{Admission, UniqueKey, admit};
use semel_store::backend::Filter;
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;

use super::command::{Command, KEYS, LIMITS, POLICIES, Plan, QUEUES, limit};
use super::flow::{act, claim_limited, documents, due, settings, tend};
use super::plain::{batch, decision, dump, note, revived, settled, turn};
use crate::fixture::{Fixture, Step, bearer, bytes, claim};
use crate::make::key;

type Checked = Result<(), String>;

/// Two stores that must agree.
pub struct Pair {
    model: Fixture,
    store: Fixture,
    lasts: bool,
    jobs: Vec<JobId>,
    runs: Vec<Head>,
    fences: BTreeMap<UniqueKey, u64>,
}

/// Does the same to both stores, and returns both results.
macro_rules! both {
    ($pair:expr, |$f:ident| $act:expr) => {{
        $pair
            .model
            .backend()
            .rows()
            .store($pair.store.backend().rows().load(Ordering::Relaxed), Ordering::Relaxed);
        let on_model = {
            let $f = &$pair.model;
            $act.await
        };
        let on_store = {
            let $f = &$pair.store;
            $act.await
        };
        (on_model, on_store)
    }};
}

fn same<T: PartialEq + Debug>(what: &str, (model, store): &(T, T)) -> Checked {
    if model == store {
        Ok(())
    } else {
        Err(format!("{what}: the model says\n  {model:?}\nthe store\n  {store:?}"))
    }
}

impl Pair {
    /// A fresh pair.
    pub fn new(store: Fixture, lasts: bool) -> Self {
        let partitions = store.partitions;
        let memory =
            move |clock: &ManualClock| Arc::new(Memory::new(clock.clone()).minting_for(partitions)) as _;
        let model = Fixture::new(Step::Nothing, memory);
        Self { model, store, lasts, jobs: Vec::new(), runs: Vec::new(), fences: BTreeMap::new() }
    }

    /// Plays a program on both stores.
    ///
    /// # Errors
    /// What differed, or which invariant was broken.
    pub async fn play(mut self, program: &[Command]) -> Checked {
        for (place, command) in program.iter().enumerate() {
            self.tick(Duration::from_millis(1));
            let step = async {
                self.step(command).await?;
                // A head written and forgotten at one moment cannot be written again at it. A look before the
                // clock moves would see time run ahead of it, in a store until it is reopened, in each of
                // several servers for itself.
                self.tick(Duration::from_millis(1));
                self.meet().await?;
                self.compare().await
            };
            step.await.map_err(|error| format!("step {place}, {command:?}\n{error}"))?;
        }
        self.compare_all().await
    }

    fn tick(&self, by: Duration) {
        self.model.clock.advance(by);
        self.store.clock.advance(by);
    }

    fn job(&self, number: usize) -> Option<JobId> {
        (!self.jobs.is_empty()).then(|| self.jobs[self.jobs.len() - 1 - number % self.jobs.len()])
    }

    fn run(&self, number: usize) -> Option<Head> {
        (!self.runs.is_empty()).then(|| self.runs[self.runs.len() - 1 - number % self.runs.len()].clone())
    }

    async fn step(&mut self, command: &Command) -> Checked {
        match command {
            Command::Enqueue(plans, whole) => return self.enqueue(plans, *whole).await,
            Command::Claim(first, limit) => return self.claim(first % 2, *limit).await,
            Command::Complete(number) => {
                let Some(run) = self.run(*number) else { return Ok(()) };
                same("complete", &settled(both!(self, |f| f.complete(&run))))
            }
            Command::Fail(number) => {
                let Some(run) = self.run(*number) else { return Ok(()) };
                same("fail", &settled(both!(self, |f| f.fail(&run))))
            }
            Command::GiveBack(number) => {
                let Some(run) = self.run(*number) else { return Ok(()) };
                let by = bearer(&run);
                let gave = both!(self, |f| f.decide(|draft| settle::give_back(draft, run.id, &by)));
                same("give back", &settled(gave))
            }
            Command::Extend(number) => {
                let Some(run) = self.run(*number) else { return Ok(()) };
                let by = bearer(&run);
                same(
                    "extend",
                    &settled(both!(self, |f| f.decide(|draft| settle::extend(draft, run.id, &by, None)))),
                )
            }
            Command::Cancel(number) => {
                let Some(id) = self.job(*number) else { return Ok(()) };
                same("cancel", &settled(both!(self, |f| f.cancel(id))))
            }
            Command::Activate(number) => {
                let Some(id) = self.job(*number) else { return Ok(()) };
                same("activate", &settled(both!(self, |f| f.decide(|draft| life::activate(draft, id)))))
            }
            Command::Revive(number) => {
                let Some(id) = self.job(*number) else { return Ok(()) };
                let (model, store) = both!(self, |f| f.decide(|draft| life::revive(draft, id)));
                same("revive", &(revived(&model), revived(&store)))
            }
            Command::DeleteDead(number) => {
                let Some(id) = self.job(*number) else { return Ok(()) };
                same(
                    "delete",
                    &settled(both!(self, |f| f.decide(|draft| life::delete_dead_letter(draft, id)))),
                )
            }
            Command::Release(number) => {
                let key = key(&format!("key {number}"));
                let (model, store) = both!(self, |f| f.decide(|draft| life::release_key(draft, key)));
                let any = |released: &KeyReleased| !matches!(released, KeyReleased::NobodyHolds);
                // Ended holders that no decision depends on may be there or not.
                if any(&model) == any(&store) { Ok(()) } else { same("release", &(model, store)) }
            }
            Command::Pause(number, paused) => {
                let name = QueueName::from_stored(QUEUES[number % 2]);
                same("pause", &both!(self, |f| f.decide(|draft| life::set_paused(draft, &name, *paused))))
            }
            Command::Note(number, kind) => {
                let Some(id) = self.job(*number) else { return Ok(()) };
                let text = bytes(&format!("note {number}"));
                same("note", &both!(self, |f| note(f, id, NoteKind::ALL[usize::from(*kind)], text.clone())))
            }
            Command::Advance(by) => {
                self.tick(*by);
                Ok(())
            }
            Command::Duties => self.duties().await,
            Command::Purge => self.purge().await,
            Command::Maintain => {
                self.maintain().await;
                Ok(())
            }
            Command::Reopen => {
                if self.lasts {
                    self.store.reopen();
                }
                Ok(())
            }
            Command::Flow(flow) => same("flow", &both!(self, |f| act(f, flow))),
        }
    }

    /// Makes jobs created by a tick or by the end of a step selectable as well.
    async fn meet(&mut self) -> Checked {
        let listed = both!(self, |f| async {
            let filter = Filter { limit: 1_000, ..Filter::default() };
            let listing = f.backend().list(filter).await.unwrap();
            listing.heads.iter().map(|head| head.id).collect::<Vec<_>>()
        });
        let known: BTreeSet<JobId> = self.jobs.iter().copied().collect();
        // Which ended jobs are still listed is compared by their heads.
        let new: BTreeSet<JobId> = listed.1.iter().copied().filter(|id| !known.contains(id)).collect();
        if let Some(unknown) = listed.0.iter().find(|id| !known.contains(id) && !new.contains(id)) {
            return Err(format!("the store does not list {unknown}"));
        }
        self.jobs.extend(new);
        Ok(())
    }

    async fn enqueue(&mut self, plans: &[Plan], whole: bool) -> Checked {
        // The id of a purged job whose key is remembered belongs to no job and is not free.
        let mut offers: Vec<Offer> = Vec::new();
        for plan in plans {
            let offer = plan.want().offer();
            let gone = match offer.id {
                Some(id) => self.jobs.contains(&id) && self.model.head(id).await.is_none(),
                None => false,
            };
            if !gone {
                offers.push(offer);
            }
        }
        let mode = if whole { Mode::AllOrNothing } else { Mode::Each };
        let mut reads = Reads::default();
        offers.iter().for_each(|offer| offer.reads(&mut reads));
        let answers = both!(self, |f| f.decide_on(&reads, |draft| enqueue_batch(draft, &offers, mode)));
        same("enqueue", &(batch(&answers.0), batch(&answers.1)))?;
        let Batch::Done(outcomes) = answers.1 else { return Ok(()) };
        for (outcome, offer) in outcomes.iter().zip(&offers) {
            let (Outcome::Created(head) | Outcome::Replaced { head, .. } | Outcome::FollowUp(head)) = outcome
            else {
                continue;
            };
            self.jobs.push(head.id);
            // Later items of the batch may have changed which jobs block.
            if offers.len() == 1 && !matches!(outcome, Outcome::FollowUp(_)) {
                self.nobody_else_blocks(offer, head.id).await?;
            }
        }
        Ok(())
    }

    /// Invariant 1: after an admission, no other job blocks.
    async fn nobody_else_blocks(&self, offer: &Offer, created: JobId) -> Checked {
        let Some(identity) = &offer.unique else { return Ok(()) };
        let now = self.store.now().await;
        let others: Vec<Head> =
            self.store.holders(identity.key).await.into_iter().filter(|head| head.id != created).collect();
        match admit(&identity.policy, &others, now, Sight::everything()) {
            Admission::Create => Ok(()),
            other => Err(format!("{created} was created, and yet: {other:?}")),
        }
    }

    async fn claim(&mut self, first: usize, limit: u32) -> Checked {
        let names = [QUEUES[first], QUEUES[1 - first]];
        let answers = both!(self, |f| f.commit_all(Vec::new(), vec![claim(&names, limit)]));
        let taken = |applied: &semel_store::backend::Applied| {
            let claimed = &applied.claims[0];
            let jobs: Vec<_> = claimed
                .jobs
                .iter()
                .map(|(head, full)| {
                    let mut notes = full.notes.clone();
                    notes.sort_by_key(|(kind, _)| *kind);
                    (head.clone(), full.body.clone(), notes)
                })
                .collect();
            (jobs, claimed.unclaimable.clone())
        };
        same("claim", &(taken(&answers.0), taken(&answers.1)))?;
        let claimed = answers.1.claims.into_iter().next().unwrap();
        for (run, _) in claimed.jobs {
            if run.attempt > run.max_attempts.max(1) {
                return Err(format!("attempt {} of {}", run.attempt, run.max_attempts));
            }
            if let Some(key) = run.key
                && let Some(last) = self.fences.insert(key, run.fence)
                && last > run.fence
            {
                return Err(format!("fence {} of a key after {last}", run.fence));
            }
            self.runs.push(run);
        }
        for (id, why) in claimed.unclaimable {
            if why == Unclaimable::Limited {
                self.claim_limited(id).await?;
                continue;
            }
            let moved = match why {
                Unclaimable::Expired => both!(self, |f| f.decide(|draft| life::expire(draft, id))),
                Unclaimable::Exhausted => both!(self, |f| f.decide(|draft| life::exhaust(draft, id))),
                Unclaimable::Overlaps => both!(self, |f| f.decide(|draft| hold_again(draft, id))),
                Unclaimable::NotReady | Unclaimable::Limited => {
                    return Err(format!("{id} is filed as ready and is not"));
                }
            };
            same("unclaimable", &moved)?;
        }
        Ok(())
    }

    async fn claim_limited(&mut self, id: JobId) -> Checked {
        let (model, store) = both!(self, |f| claim_limited(f, id));
        same("limited", &(turn(&model), turn(&store)))?;
        match store {
            Turn::Granted(job) => self.runs.push(job.0),
            Turn::Unclaimable(Unclaimable::Overlaps) => {
                same("held again", &both!(self, |f| f.decide(|draft| hold_again(draft, id))))?;
            }
            Turn::Unclaimable(Unclaimable::Expired) => {
                same("expired", &both!(self, |f| f.decide(|draft| life::expire(draft, id))))?;
            }
            Turn::Unclaimable(_) | Turn::HeldBack(..) | Turn::Gone | Turn::SetAside(_) => {}
        }
        Ok(())
    }

    async fn duties(&mut self) -> Checked {
        let (model, store) = both!(self, |f| due(f));
        same("documents due", &(model, store.clone()))?;
        for key in store {
            same("tended", &both!(self, |f| tend(f, &key)))?;
        }
        for due in [Due::Timer, Due::Lease, Due::Expiry] {
            let (model, store) = both!(self, |f| f.due(due, 1_000));
            same("due", &(model, store.clone()))?;
            for id in store {
                match due {
                    Due::Timer => {
                        same("promote", &both!(self, |f| f.decide(|draft| life::promote(draft, id))))?;
                    }
                    Due::Lease => same("reap", &both!(self, |f| f.decide(|draft| settle::reap(draft, id))))?,
                    _ => same("expire", &both!(self, |f| f.decide(|draft| life::expire(draft, id))))?,
                }
            }
        }
        Ok(())
    }

    async fn maintain(&self) {
        for f in [&self.model, &self.store] {
            // Filing first, then a pass over everything that is remembered.
            for _ in 0..3 {
                f.maintain().await;
            }
        }
    }

    async fn purge(&mut self) -> Checked {
        self.maintain().await;
        let mut ids = both!(self, |f| f.due(Due::Purge, 1_000));
        ids.0.sort();
        ids.1.sort();
        same("due for purging", &ids)?;
        for id in ids.1 {
            same("purge", &both!(self, |f| f.decide(|draft| life::purge(draft, id))))?;
            self.tick(Duration::from_millis(1));
        }
        self.maintain().await;
        Ok(())
    }

    /// Compares what people and decisions see.
    async fn compare(&self) -> Checked {
        let heads = both!(self, |f| dump(f, &self.jobs));
        for (model, store) in heads.0.iter().zip(&heads.1) {
            same("head", &(model, store))?;
        }
        for number in 0..LIMITS {
            let limit = limit(number);
            let runs = |head: &&Head| head.lane == Some(limit.lane()) && head.lease.is_some();
            let running = heads.1.iter().flatten().filter(runs).count();
            if limit.concurrency.is_some_and(|most| running > most as usize) {
                return Err(format!("{running} run under {limit:?}"));
            }
        }
        for kind in DocumentKind::ALL {
            same("documents", &both!(self, |f| documents(f, kind)))?;
        }
        same("documents due", &both!(self, |f| due(f)))?;
        // Other things with a row like a queue's may be listed among the queues or not.
        let queues = both!(self, |f| async {
            let mut queues = f.backend().queues().await.unwrap();
            queues.retain(|queue| queue.row.name.is_queue());
            queues
        });
        same("queues", &queues)?;
        for queue in &queues.1 {
            if queue.created != queue.counts.iter().sum::<u64>() + queue.purged {
                return Err(format!("conservation: {queue:?}"));
            }
        }
        same("settings", &both!(self, |f| settings(f)))?;
        for due in [Due::Timer, Due::Lease, Due::Expiry] {
            same("due", &both!(self, |f| async { f.backend().due(due, 3).await.unwrap() }))?;
        }
        for number in 0..KEYS {
            for policy in 0..POLICIES {
                same(
                    &format!("key {number}, policy {policy}"),
                    &both!(self, |f| decision(f, number, policy)),
                )?;
            }
        }
        Ok(())
    }

    /// Compares everything, and again after housekeeping and, where the store is durable, after reopening it.
    async fn compare_all(&self) -> Checked {
        let is_divided = self.store.partitions > 1;
        let told = both!(self, |f| async {
            let log = f.log().await;
            // Of ended holders a store may keep fewer, so it may log fewer releases.
            let told = log.into_iter().filter(|told| told.event.kind != EventKind::KeyReleased);
            let mut told: Vec<_> = told.map(|recorded| (recorded.at, recorded.event)).collect();
            if is_divided {
                // Events of several partitions at one time have no order among them.
                told.sort_by_key(|(at, event)| (*at, format!("{event:?}")));
            }
            told
        });
        same("log", &told)?;
        for _ in 0..2 {
            self.compare().await?;
            for id in &self.jobs {
                let whole = both!(self, |f| async { f.full(*id).await.map(|(_, full)| full) });
                same("whole job", &whole)?;
            }
            self.maintain().await;
            if self.lasts {
                self.tick(Duration::from_millis(1));
                self.store.reopen();
            }
        }
        Ok(())
    }
}
