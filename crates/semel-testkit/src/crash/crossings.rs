//! Requests about several records at once, which a partitioned store keeps in several places: all-or-nothing
//! batches, follow-ups with ids chosen by their callers, workflows, a queue that is paused and resumed. The
//! judge checks that the store stands by them: no batch is half there, the last request of a key was run, and
//! a paused queue granted nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_core::enqueue::{Batch, Mode, Outcome};
use semel_core::ident::{JobId, JobType, QueueName, WorkflowId};
use semel_core::job::Head;
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::settle::Settled;
use semel_core::state::{State, StateSet};
use semel_core::workflow::Created;
use semel_engine::Engine;
use semel_store::StoreError;
use semel_store::backend::Claim;
use tokio::task::JoinSet;

use super::claim;
use super::flows::STEP;
use crate::flows::of_form;
use crate::make::{Want, foreign_id, job, key, keyed};

/// The types of these jobs, and of no others.
const BATCHED: &str = "crash.batched";
const FOLLOWED: &str = "crash.followed";
/// The queue that is paused.
const PAUSED: &str = "crash-paused";
/// The number of jobs in a batch, and in a workflow.
const TOGETHER: u64 = 3;
/// The number of keys per asker whose last request counts.
const FOLLOWS: u64 = 2;
/// The most requests of a kind in one life: the number of ids reserved for a kind.
const MOST: u64 = 50_000;
/// The kind number of workflows among the kinds with ids of the caller's own: after those of all follow-up
/// keys.
const WORKFLOWS: u64 = 19;
/// How long an asker pauses after an error.
const REST: Duration = Duration::from_millis(2);

/// A caller that makes such requests, and reports the answers.
#[derive(Clone)]
pub(crate) struct Asker {
    /// The server that it asks.
    pub engine: Engine,
    /// Another server on the same store, if there is one: what the first one answered holds there too.
    pub elsewhere: Engine,
    /// This asker's number among several.
    pub number: u64,
    /// Where it reports its answers.
    pub say: Arc<dyn Fn(&str) + Send + Sync>,
    /// The round of the run.
    pub round: u64,
    /// The number of requests per task.
    pub turns: u64,
    /// When set, the asker makes no more requests.
    pub over: Arc<AtomicBool>,
    /// Whether it asks again after a retryable error.
    pub is_patient: bool,
}

impl Asker {
    /// Starts tasks for all kinds of requests.
    pub fn spawn(&self, into: &mut JoinSet<()>) {
        for is_turned in [false, true] {
            into.spawn(self.clone().batches(is_turned));
        }
        // The last request for a key is known only if no other task asks for that key.
        for place in self.number * FOLLOWS..(self.number + 1) * FOLLOWS {
            into.spawn(self.clone().follow_ups(place));
        }
        if self.number == 0 {
            into.spawn(self.clone().pauses());
        }
        into.spawn(self.clone().workflows());
    }

    fn turns(&self) -> impl Iterator<Item = u64> + use<> {
        let over = Arc::clone(&self.over);
        (0..self.turns.min(MOST)).take_while(move |_| !over.load(Ordering::Relaxed))
    }

    fn say(&self, line: &str) {
        (self.say)(line);
    }

    /// The answer; `None` after an error, which is reported.
    async fn answer<T, F: Future<Output = Result<T, StoreError>>>(&self, ask: impl Fn() -> F) -> Option<T> {
        loop {
            match ask().await {
                Ok(answer) => return Some(answer),
                Err(error) if self.is_patient && error.is_retryable() => tokio::time::sleep(REST).await,
                Err(error) => {
                    self.say(&format!("error {error}"));
                    return None;
                }
            }
        }
    }

    /// An id of the caller's own for a kind of request, unique among all requests.
    fn id(&self, kind: u64, turn: u64) -> JobId {
        let number = 3_000_000_000 + self.round % 1_000 * 1_000_000 + kind * MOST + turn;
        foreign_id(u32::try_from(number).unwrap())
    }

    /// Two tasks ask for each batch, one with the keys in reverse order.
    async fn batches(self, is_turned: bool) {
        for turn in self.turns() {
            let mut offers: Vec<_> = (0..TOGETHER).map(|at| batched(self.round, turn, at).offer()).collect();
            if is_turned {
                offers.reverse();
            }
            let asked = self.answer(|| self.engine.enqueue_batch(offers.clone(), Mode::AllOrNothing, ""));
            let Some(told) = asked.await else { continue };
            let ids = match &told {
                Batch::Done(outcomes) => outcomes.iter().map(id_of).collect::<Option<Vec<_>>>(),
                Batch::Refused { .. } => None,
            };
            let Some(mut ids) = ids else {
                self.say(&format!("error {told:?}"));
                continue;
            };
            if is_turned {
                ids.reverse();
            }
            let ids: Vec<String> = ids.iter().map(JobId::to_string).collect();
            self.say(&format!("batch {turn} {}", ids.join(" ")));
        }
    }

    /// Requests for one key, one after the other: each includes what the earlier ones asked for.
    async fn follow_ups(self, place: u64) {
        for turn in self.turns() {
            let mut want = followed(self.round, place).args(&format!("[{turn}]"));
            if turn % 2 == 1 {
                want = want.id(self.id(place, turn));
            }
            let Some(told) = self.answer(|| self.engine.enqueue(want.offer(), "")).await else { continue };
            match told {
                Outcome::Created(_)
                | Outcome::FollowUp(_)
                | Outcome::Amended(_)
                | Outcome::Existing(_)
                | Outcome::Repeated(_) => self.say(&format!("asked {place} {turn}")),
                other => self.say(&format!("error {other:?}")),
            }
        }
    }

    async fn pauses(self) {
        for turn in self.turns() {
            let want = paused(self.round, turn);
            if let Some(told) = self.answer(|| self.engine.enqueue(want.offer(), "")).await {
                match id_of(&told) {
                    Some(id) => self.say(&format!("held {turn} {id}")),
                    None => self.say(&format!("error {told:?}")),
                }
            }
            let pause = async |is_paused: bool| {
                let row = self.answer(|| self.engine.set_paused(queue(), is_paused)).await;
                row.is_some_and(|row| row.paused == is_paused)
            };
            if pause(true).await {
                match self.answer(|| self.elsewhere.claim(from_paused(7))).await {
                    Some(runs) if runs.is_empty() => {}
                    Some(runs) => self.say(&format!("error {} of a paused queue", runs[0].head.id)),
                    None => {}
                }
            }
            if pause(false).await {
                // Runs whose grant was lost stay leased, so nobody gets them until their leases expire.
                for run in self.answer(|| self.engine.claim(from_paused(7))).await.unwrap_or_default() {
                    self.say(&format!("claimed {}", run.head.id));
                    let bearer = || Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None };
                    let told = self.answer(|| self.engine.complete(run.head.id, bearer(), None)).await;
                    match told {
                        Some(Settled::Done(head) | Settled::Repeated(head)) => {
                            self.say(&format!("acked {}", head.id));
                        }
                        Some(other) => self.say(&format!("error {other:?}")),
                        None => {}
                    }
                }
            }
        }
    }

    async fn workflows(self) {
        for turn in self.turns() {
            let offers = (0..TOGETHER).map(|_| job().of_type(STEP).offer()).collect();
            let mut plan = of_form(usize::try_from(turn).unwrap(), offers);
            plan.id = Some(WorkflowId::new(self.id(WORKFLOWS, turn)));
            plan.digest = Some([9; 32]);
            match self.answer(|| self.engine.create_workflow(plan.clone())).await {
                Some(Created::Done(id, _) | Created::Repeated(id, _)) => self.say(&format!("workflow {id}")),
                Some(other) => self.say(&format!("error {other:?}")),
                None => {}
            }
        }
    }
}

fn batched(round: u64, turn: u64, at: u64) -> Want {
    let want = keyed(&format!("batch {round}-{turn}-{at}")).states(StateSet::ALL).on_conflict("ignore");
    want.of_type(BATCHED).args(&format!("[\"{round}-{turn}\"]"))
}

fn followed_name(round: u64, place: u64) -> String {
    format!("follow {round}-{place}")
}

fn followed(round: u64, place: u64) -> Want {
    keyed(&followed_name(round, place)).on_conflict("follow_up").of_type(FOLLOWED)
}

fn paused(round: u64, turn: u64) -> Want {
    keyed(&format!("pause {round}-{turn}")).states(StateSet::ALL).on_conflict("ignore").queue(PAUSED)
}

fn queue() -> QueueName {
    QueueName::from_stored(PAUSED)
}

fn from_paused(limit: u32) -> Claim {
    Claim { queues: vec![queue()], ..claim(limit) }
}

fn id_of(outcome: &Outcome) -> Option<JobId> {
    match outcome {
        Outcome::Created(head) | Outcome::Repeated(head) | Outcome::Existing(head) => Some(head.id),
        _ => None,
    }
}

/// What was answered to these requests.
#[derive(Debug, Default)]
pub struct Told {
    /// The jobs of batches, by the batch's number.
    batches: BTreeMap<u64, Vec<JobId>>,
    /// The last request that was answered, by its key.
    asked: BTreeMap<u64, u64>,
    /// Jobs of the paused queue.
    held: BTreeSet<JobId>,
}

impl Told {
    /// Reads a line; returns whether it was about one of these requests.
    pub(super) fn read(&mut self, words: &[&str]) -> bool {
        let id = |text: &str| JobId::parse(text, "").unwrap();
        let number = |text: &str| text.parse::<u64>().unwrap();
        match words {
            ["batch", turn, ids @ ..] => {
                let ids: Vec<JobId> = ids.iter().map(|text| id(text)).collect();
                let known = self.batches.entry(number(turn)).or_insert_with(|| ids.clone());
                assert_eq!(*known, ids, "batch {turn} stands for several");
            }
            ["asked", place, turn] => {
                let last = self.asked.entry(number(place)).or_default();
                *last = number(turn).max(*last);
            }
            ["held", _, job] => drop(self.held.insert(id(job))),
            _ => return false,
        }
        true
    }

    /// Whether it includes batches, follow-ups and jobs of the paused queue.
    pub fn is_any_of_each(&self) -> bool {
        !self.batches.is_empty() && self.asked.values().any(|turn| *turn > 0) && !self.held.is_empty()
    }

    /// Judges the store before anything else is done to it. `heads` are all that it holds.
    pub(super) async fn judge_as_found(&self, engine: &Engine, heads: &[Head]) {
        let there: BTreeSet<JobId> = heads.iter().map(|head| head.id).collect();
        for id in self.batches.values().flatten().chain(&self.held) {
            assert!(there.contains(id), "acknowledged {id} is lost");
        }
        let mut batches: BTreeMap<String, u64> = BTreeMap::new();
        let ids: Vec<JobId> = of_type(heads, BATCHED).map(|head| head.id).collect();
        for ids in ids.chunks(500) {
            for job in engine.jobs(ids.to_vec()).await.unwrap() {
                *batches.entry(job.body.args.to_string()).or_default() += 1;
            }
        }
        for (name, jobs) in batches {
            assert_eq!(jobs, TOGETHER, "the batch {name} is there by half");
        }
    }

    /// Judges again when all leases have expired and all queues except the paused one are empty: that one is
    /// resumed, and must grant all it has.
    pub(super) async fn judge_again(&self, engine: &Engine, round: u64) {
        assert!(!engine.set_paused(queue(), false).await.unwrap().paused);
        loop {
            let runs = engine.claim(from_paused(500)).await.unwrap();
            if runs.is_empty() {
                break;
            }
            for run in runs {
                let bearer = Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None };
                let ended = engine.complete(run.head.id, bearer, None).await.unwrap();
                assert!(matches!(ended, Settled::Done(_)), "{ended:?}");
            }
        }
        let heads = super::flows::all(engine).await;
        for head in heads.iter().filter(|head| self.held.contains(&head.id)) {
            assert_eq!(head.state, State::Completed, "{} came from no partition", head.id);
        }
        for (place, asked) in &self.asked {
            let of_key = Some(key(&followed_name(round, *place)));
            let mut last = None;
            for head in of_type(&heads, FOLLOWED).filter(|head| head.key == of_key) {
                assert_eq!(head.state, State::Completed, "{} is stuck", head.id);
                let job = engine.job(head.id).await.unwrap().unwrap();
                let run: u64 = job.body.args.trim_matches(['[', ']']).parse().unwrap();
                last = last.max(Some(run));
            }
            assert!(last >= Some(*asked), "request {asked} of {place} was told and never run: {last:?}");
        }
    }
}

fn of_type<'a>(heads: &'a [Head], name: &str) -> impl Iterator<Item = &'a Head> + use<'a> {
    let job_type = JobType::from_stored(name);
    heads.iter().filter(move |head| head.job_type == job_type)
}
