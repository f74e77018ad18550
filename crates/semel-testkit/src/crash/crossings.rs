//! Requests that are about several records at once, which a divided store has in several places: batches of which all or none is
//! stored, follow-ups whose ids their callers chose, workflows, a queue that is paused and resumed. And whether the store stands by them: no
//! batch is there by half, the last request of a key was run, nothing came from a queue while it was paused.

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

/// The types of these jobs, and of nothing else.
const BATCHED: &str = "crash.batched";
const FOLLOWED: &str = "crash.followed";
/// The queue that is paused.
const PAUSED: &str = "crash-paused";
/// Jobs of a batch, and of a workflow.
const TOGETHER: u64 = 3;
/// Keys of each whose last request counts.
const FOLLOWS: u64 = 2;
/// Requests of a kind in one life, at most: enough for the ids that are kept for them.
const MOST: u64 = 50_000;
/// The number of workflows among the kinds of what has an id of the caller's: behind the keys of all.
const WORKFLOWS: u64 = 19;
/// How long who got an error rests.
const REST: Duration = Duration::from_millis(2);

/// Somebody who asks for such things, and says what he was told.
#[derive(Clone)]
pub(crate) struct Asker {
    /// Whom he asks.
    pub engine: Engine,
    /// Another server on the store, if there is one: what the first was told holds there.
    pub elsewhere: Engine,
    /// Which of several he is.
    pub number: u64,
    /// To whom he says it.
    pub say: Arc<dyn Fn(&str) + Send + Sync>,
    /// The round.
    pub round: u64,
    /// How often.
    pub turns: u64,
    /// When it is set he asks for nothing more.
    pub over: Arc<AtomicBool>,
    /// Whether he asks again when an error says that he may.
    pub is_patient: bool,
}

impl Asker {
    /// Begins to ask for all of them.
    pub fn spawn(&self, into: &mut JoinSet<()>) {
        for is_turned in [false, true] {
            into.spawn(self.clone().batches(is_turned));
        }
        // What one asks for last is the last only if nobody else asks for it.
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

    /// The answer; none where there is an error that is said.
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

    /// An id of the caller's own, of a kind: no other request of any has it.
    fn id(&self, kind: u64, turn: u64) -> JobId {
        let number = 3_000_000_000 + self.round % 1_000 * 1_000_000 + kind * MOST + turn;
        foreign_id(u32::try_from(number).unwrap())
    }

    /// Two ask for each, one with the keys the other way round.
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

    /// One after the other for one key: each asks for what the ones before it did.
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
                // Runs whose answer was lost are somebody's until their leases run out.
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

/// What was told of them.
#[derive(Debug, Default)]
pub struct Told {
    /// The jobs of batches, by their numbers.
    batches: BTreeMap<u64, Vec<JobId>>,
    /// The last request that was answered, by its key.
    asked: BTreeMap<u64, u64>,
    /// Jobs of the queue that is paused.
    held: BTreeSet<JobId>,
}

impl Told {
    /// Takes in a line; says whether it was one of these.
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

    /// Whether it was told of batches, of requests behind others, and of jobs of the queue that is paused.
    pub fn is_any_of_each(&self) -> bool {
        !self.batches.is_empty() && self.asked.values().any(|turn| *turn > 0) && !self.held.is_empty()
    }

    /// At once, before anything else is done to the store. `heads` are all that are in it.
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

    /// Once all leases have run out and all queues but the one that was paused are empty: that one is resumed, and gives all it has.
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
