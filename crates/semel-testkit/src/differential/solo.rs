//! One store alone, which gets the commands of a program.

use semel_core::draft::Reads;
use semel_core::enqueue::{Mode, Offer, Outcome, enqueue_batch};
use semel_core::follow_up::hold_again;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::{Head, NoteKind};
use semel_core::lease::Unclaimable;
use semel_core::limit::Turn;
use semel_core::{enqueue, life, settle};
use semel_store::backend::Filter;
use std::time::Duration;

use super::command::{Command, Plan, QUEUES};
use super::flow::{act, claim_limited, due, stop_crons, tend, unfinished};
use super::plain::note;
use crate::fixture::{Fixture, bearer, bytes, claim};

/// A store that plays programs.
pub struct Solo {
    /// The store.
    pub fixture: Fixture,
    jobs: Vec<JobId>,
    runs: Vec<Head>,
}

impl Solo {
    /// Starts with whatever the store already holds.
    pub async fn new(fixture: Fixture) -> Self {
        let found = fixture.backend().list(Filter { limit: 500, ..Filter::default() }).await.unwrap();
        let runs = found.heads.iter().filter(|head| head.lease.is_some()).cloned().collect();
        Self { jobs: found.heads.iter().map(|head| head.id).collect(), runs, fixture }
    }

    fn job(&self, number: usize) -> Option<JobId> {
        (!self.jobs.is_empty()).then(|| self.jobs[self.jobs.len() - 1 - number % self.jobs.len()])
    }

    fn run(&self, number: usize) -> Option<Head> {
        (!self.runs.is_empty()).then(|| self.runs[self.runs.len() - 1 - number % self.runs.len()].clone())
    }

    /// Plays one command, a millisecond after the last.
    pub async fn step(&mut self, command: &Command) {
        self.fixture.clock.advance(Duration::from_millis(1));
        let f = &self.fixture;
        match command {
            Command::Enqueue(plans, whole) => self.enqueue(plans, *whole).await,
            Command::Claim(first, limit) => self.claim(first % 2, *limit).await,
            Command::Complete(number) => {
                if let Some(run) = self.run(*number) {
                    f.complete(&run).await;
                }
            }
            Command::Fail(number) => {
                if let Some(run) = self.run(*number) {
                    f.fail(&run).await;
                }
            }
            Command::GiveBack(number) => {
                if let Some(run) = self.run(*number) {
                    f.decide(|draft| settle::give_back(draft, run.id, &bearer(&run))).await;
                }
            }
            Command::Extend(number) => {
                if let Some(run) = self.run(*number) {
                    f.decide(|draft| settle::extend(draft, run.id, &bearer(&run), None)).await;
                }
            }
            Command::Pause(number, paused) => {
                let name = QueueName::from_stored(QUEUES[number % 2]);
                f.decide(|draft| life::set_paused(draft, &name, *paused)).await;
            }
            Command::Release(number) => {
                let key = crate::make::key(&format!("key {number}"));
                f.decide(|draft| life::release_key(draft, key)).await;
            }
            Command::Advance(by) => f.clock.advance(*by),
            Command::Duties => {
                for key in due(f).await {
                    tend(f, &key).await;
                }
                f.run_duties().await;
                self.meet().await;
            }
            Command::Flow(flow) => {
                act(f, flow).await;
                self.meet().await;
            }
            Command::Purge => {
                f.purge().await;
            }
            Command::Maintain => f.maintain().await,
            Command::Reopen => f.reopen(),
            Command::Cancel(number)
            | Command::Activate(number)
            | Command::Revive(number)
            | Command::DeleteDead(number)
            | Command::Note(number, _) => self.on_job(command, *number).await,
        }
    }

    /// Makes jobs created by a tick or a workflow selectable as well.
    async fn meet(&mut self) {
        let listed = self.fixture.backend().list(Filter { limit: 500, ..Filter::default() }).await.unwrap();
        let new: Vec<JobId> =
            listed.heads.iter().rev().map(|head| head.id).filter(|id| !self.jobs.contains(id)).collect();
        self.jobs.extend(new);
    }

    async fn on_job(&self, command: &Command, number: usize) {
        let (f, Some(id)) = (&self.fixture, self.job(number)) else { return };
        match command {
            Command::Cancel(_) => drop(f.cancel(id).await),
            Command::Activate(_) => drop(f.decide(|draft| life::activate(draft, id)).await),
            Command::Revive(_) => drop(f.decide(|draft| life::revive(draft, id)).await),
            Command::DeleteDead(_) => drop(f.decide(|draft| life::delete_dead_letter(draft, id)).await),
            Command::Note(_, kind) => {
                // Of kinds that decisions do not read: text that they cannot parse would be damage.
                let kind = [NoteKind::Result, NoteKind::Progress][usize::from(*kind) % 2];
                note(f, id, kind, bytes(&format!("\"note {number}\""))).await;
            }
            _ => {}
        }
    }

    async fn enqueue(&mut self, plans: &[Plan], whole: bool) {
        let offers: Vec<Offer> = plans.iter().map(|plan| plan.want().offer()).collect();
        let mode = if whole { Mode::AllOrNothing } else { Mode::Each };
        let mut reads = Reads::default();
        offers.iter().for_each(|offer| offer.reads(&mut reads));
        let answer = self.fixture.decide_on(&reads, |draft| enqueue_batch(draft, &offers, mode)).await;
        let enqueue::Batch::Done(outcomes) = answer else { return };
        for outcome in outcomes {
            if let Outcome::Created(head) | Outcome::Replaced { head, .. } | Outcome::FollowUp(head) = outcome
            {
                self.jobs.push(head.id);
            }
        }
    }

    async fn claim(&mut self, first: usize, limit: u32) {
        let f = &self.fixture;
        let names = [QUEUES[first], QUEUES[1 - first]];
        let claimed = f.commit_all(Vec::new(), vec![claim(&names, limit)]).await.claims.remove(0);
        self.runs.extend(claimed.jobs.into_iter().map(|(run, _)| run));
        let started = self.settle(claimed.unclaimable).await;
        self.runs.extend(started);
    }

    /// Handles jobs that came back unclaimed; returns the runs of those whose limits let them start.
    async fn settle(&self, unclaimable: Vec<(JobId, Unclaimable)>) -> Vec<Head> {
        let f = &self.fixture;
        let mut started = Vec::new();
        for (id, why) in unclaimable {
            let why = match why {
                Unclaimable::Limited => match claim_limited(f, id).await {
                    Turn::Granted(job) => {
                        started.push(job.0);
                        continue;
                    }
                    // Handling an earlier job may have moved it.
                    Turn::Unclaimable(Unclaimable::NotReady) | Turn::HeldBack(..) | Turn::Gone => continue,
                    Turn::SetAside(_) => panic!("{id} is as it was written, and cannot be read"),
                    Turn::Unclaimable(why) => why,
                },
                why => why,
            };
            match why {
                Unclaimable::Expired => drop(f.decide(|draft| life::expire(draft, id)).await),
                Unclaimable::Exhausted => drop(f.decide(|draft| life::exhaust(draft, id)).await),
                Unclaimable::Overlaps => drop(f.decide(|draft| hold_again(draft, id)).await),
                Unclaimable::NotReady | Unclaimable::Limited => {
                    panic!("{id} may be started, and was passed over: {why:?}")
                }
            }
        }
        started
    }

    /// Runs the store until everything that waits has ended. Returns what is still live then, and so is
    /// stuck.
    pub async fn drain(&self) -> Vec<Head> {
        let f = &self.fixture;
        let mut live = Vec::new();
        stop_crons(f).await;
        for _ in 0..40 {
            for name in QUEUES {
                let name = QueueName::from_stored(name);
                f.decide(|draft| life::set_paused(draft, &name, false)).await;
            }
            f.advance(Duration::from_secs(3_600)).await;
            f.run_duties().await;
            let claimed = f.commit_all(Vec::new(), vec![claim(&QUEUES, 500)]).await.claims.remove(0);
            let limited = self.settle(claimed.unclaimable).await;
            for run in claimed.jobs.iter().map(|(run, _)| run).chain(&limited) {
                f.complete(run).await;
            }
            for key in due(f).await {
                tend(f, &key).await;
            }
            let listed = f.backend().list(Filter { limit: 500, ..Filter::default() }).await.unwrap();
            live = listed.heads.into_iter().filter(|head| head.state.is_live()).collect();
            if live.is_empty() {
                break;
            }
            for head in &live {
                // Only a request ends a wait for activation.
                f.decide(|draft| life::activate(draft, head.id)).await;
            }
        }
        let waiting = unfinished(f).await;
        assert!(!live.is_empty() || waiting.is_empty(), "nothing lives, and these wait: {waiting:?}");
        live
    }
}
