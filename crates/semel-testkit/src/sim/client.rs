//! Callers that offer jobs, and operators that intervene.

use std::sync::Arc;
use std::time::Duration;

use semel_core::body::Body;
use semel_core::enqueue::{Batch, Identity, Mode, Offer, Outcome, Start, When};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::lease::Bearer;
use semel_core::life::{KeyReleased, Revived};
use semel_core::retry::{Backoff, OnExhaustion, RetryPolicy};
use semel_core::settle::Settled;
use semel_core::sight::Queues;
use semel_core::unique::OnConflict;

use super::dice::Dice;
use super::plan::LEASE;
use super::world::World;
use crate::history::Mark;

/// The queues of a run.
pub const QUEUES: [&str; 2] = ["default", "other"];

/// An offer, and the number that identifies it.
#[derive(Clone, Debug)]
pub struct Request {
    /// What is offered.
    pub offer: Offer,
    /// The mark in its meta.
    pub mark: Mark,
    /// The index of its key among the world's keys, if it has one of those.
    key: Option<usize>,
}

impl Request {
    /// A request whose key is not one of the shared keys.
    pub const fn of(offer: Offer, mark: Mark) -> Self {
        Self { offer, mark, key: None }
    }
}

/// A random job to offer.
pub fn request(world: &World, dice: &mut Dice) -> Request {
    let n = world.number();
    let mark = Mark { n, inspect: !dice.chance(60) };
    let at = dice.below(world.keys.len() as u64 + 1) as usize;
    let class = world.keys.get(at);
    let policy =
        class.map(|class| Arc::clone(&class.policies[dice.below(class.policies.len() as u64) as usize]));
    let follows = policy.as_ref().is_some_and(|policy| policy.on_conflict() == OnConflict::FollowUp);
    let ms = |ms: u64| Duration::from_millis(ms);
    let start = match dice.below(8) {
        0 => Start::Later(When::In(ms(dice.between(1, 1_500)))),
        1 if !follows && dice.chance(300) => Start::OnActivation,
        _ => Start::Now,
    };
    let max_attempts = dice.between(0, 3) as u32;
    let retry = RetryPolicy {
        max_attempts,
        initial_interval: ms(dice.between(1, 200)),
        max_interval: ms(500),
        jitter: dice.chance(512),
        backoff: dice.pick(&Backoff::ALL),
        on_exhaustion: if dice.chance(512) { OnExhaustion::DeadLetter } else { OnExhaustion::Discard },
        ..RetryPolicy::default()
    };
    // The third of the limits left out: a follow-up absorbing a request that has an id of its own.
    let id = (!follows && dice.chance(400)).then(|| crate::make::foreign_id(n as u32));
    let body = Body {
        args: if dice.chance(800) { "[1]".into() } else { "[2]".into() },
        meta: mark.write().into(),
        retry,
        unique: policy.as_ref().map(|policy| (**policy).clone()),
        request_digest: id.map(|_| [n as u8; 32]),
        ..Body::default()
    };
    let offer = Offer {
        id,
        job_type: JobType::from_stored("email.send"),
        queue: QueueName::from_stored(QUEUES[usize::from(dice.chance(200))]),
        priority: dice.between(0, 2) as i8,
        start,
        expires: dice.chance(100).then(|| When::In(ms(dice.between(1, 2_000)))),
        visibility_ms: if dice.chance(512) { 0 } else { LEASE.as_millis() as u32 / 2 },
        timeout_ms: if dice.chance(200) { dice.between(50, 600) as u32 } else { 0 },
        max_attempts,
        unique: policy.zip(class).map(|(policy, class)| Identity { policy, key: class.key }),
        body: body.encode().unwrap_or_default(),
        inspect: mark.inspect,
        queues: Queues::All,
        limit: super::limit::drawn(world, dice, n),
        bounded: false,
        awaited: false,
        once: None,
    };
    Request { offer, mark, key: class.map(|_| at) }
}

/// Offers one job and judges the answer.
pub async fn offer(world: &Arc<World>, dice: &mut Dice, request: &Request) -> Option<Outcome> {
    let from = world.store.seq();
    let sent = request.offer.clone();
    let heard = world.ask(dice, move |engine| async move { engine.enqueue(sent, "sim").await }).await;
    let outcome = heard.answer()?;
    world.take_outcome(request, &outcome, from);
    Some(outcome)
}

impl World {
    pub(super) fn take_outcome(&self, request: &Request, outcome: &Outcome, from: u64) {
        let checked =
            self.store.witness.lock().unwrap().check_outcome(&request.offer, request.mark, outcome, from);
        self.judge(|| format!("request {} ({:?})", request.mark.n, request.offer.unique), checked);
        self.absorbed(outcome.absorbed_by());
        if let Outcome::Created(head) | Outcome::Replaced { head, .. } | Outcome::FollowUp(head) = outcome {
            self.heard_of(head.id);
            if let Some(at) = request.key.filter(|at| self.keys[*at].is_exclusive())
                && head.expires_at.is_none()
            {
                self.holds.lock().unwrap().created(at as u64, head.id, self.store.seq());
            }
        }
    }
}

/// Offers jobs, one after the other, alone and in batches, again when there was no answer, and twice at once.
pub async fn client(world: Arc<World>, mut dice: Dice) {
    let mut last: Option<Request> = None;
    for _ in 0..world.plan.requests {
        match dice.below(16) {
            0..2 if world.plan.batches > 0 => batch(&world, &mut dice).await,
            2 if last.is_some() => again(&world, &mut dice, last.as_ref()).await,
            3 => {
                let twin = request(&world, &mut dice);
                let (other, mut chance, same) = (Arc::clone(&world), Dice::new(dice.draw()), twin.clone());
                world.handle.spawn(super::executor::Owner::World, async move {
                    offer(&other, &mut chance, &same).await;
                });
                offer(&world, &mut dice, &twin).await;
                last = Some(twin);
            }
            4 if world.plan.operators > 0 => meddle(&world, &mut dice).await,
            5 => look(&world, &mut dice).await,
            6..8 if world.plan.flows > 0 => super::flow::ask(&world, &mut dice).await,
            _ => {
                let new = request(&world, &mut dice);
                let mut told = offer(&world, &mut dice, &new).await;
                // A caller that gets no answer asks again.
                while told.is_none() && dice.chance(600) {
                    told = offer(&world, &mut dice, &new).await;
                }
                last = Some(new);
            }
        }
        if dice.chance(300) {
            tokio::time::sleep(Duration::from_millis(dice.between(1, 300))).await;
        }
    }
}

/// Sends the same request once more: with an id of the caller's own it is answered as the first time.
async fn again(world: &Arc<World>, dice: &mut Dice, request: Option<&Request>) {
    let Some(request) = request else { return };
    let known = {
        let witness = world.store.witness.lock().unwrap();
        let own = request.offer.id.and_then(|id| witness.jobs.get(&id).cloned());
        own.filter(|job| job.mark == request.mark && !job.is_purged)
    };
    let told = offer(world, dice, request).await;
    if let (Some(job), Some(outcome)) = (known, told) {
        let now = world.store.witness.lock().unwrap().jobs[&job.head.id].clone();
        let purged = now.is_purged || now.head.created_at != job.head.created_at;
        let same = matches!(&outcome, Outcome::Repeated(head) if head.id == job.head.id);
        let checked =
            if same || purged { Ok(()) } else { Err(format!("sent again, it was answered {outcome:?}")) };
        world.judge(|| format!("request {}", request.mark.n), checked);
    }
}

async fn batch(world: &Arc<World>, dice: &mut Dice) {
    let requests: Vec<Request> = (0..dice.between(2, 4)).map(|_| request(world, dice)).collect();
    let mode = if dice.chance(512) { Mode::Each } else { Mode::AllOrNothing };
    let offers: Vec<Offer> = requests.iter().map(|request| request.offer.clone()).collect();
    let from = world.store.seq();
    let sent =
        move |engine: semel_engine::Engine| async move { engine.enqueue_batch(offers, mode, "sim").await };
    match world.ask(dice, sent).await.answer() {
        None => {}
        Some(Batch::Done(outcomes)) => {
            for (request, outcome) in requests.iter().zip(&outcomes) {
                world.take_outcome(request, outcome, from);
            }
        }
        Some(Batch::Refused { outcome, .. }) => {
            world.absorbed(outcome.absorbed_by());
            let witness = world.store.witness.lock().unwrap();
            let stored = requests.iter().find(|request| witness.inserts.contains_key(&request.mark.n));
            let checked = match stored {
                Some(request) => Err(format!("request {} of a refused batch was stored", request.mark.n)),
                None => Ok(()),
            };
            drop(witness);
            world.judge(|| "all or nothing".to_owned(), checked);
        }
    }
}

/// Reads a job; that changes nothing, and the answer must be what is stored.
async fn look(world: &Arc<World>, dice: &mut Dice) {
    let Some(id) = known(world, dice) else { return };
    let heard = world.ask(dice, move |engine| async move { engine.job(id).await }).await;
    if let Some(Some(job)) = heard.answer() {
        let checked = world.store.witness.lock().unwrap().check_run(&job.head);
        world.judge(|| format!("a look at {id}"), checked);
    }
}

fn known(world: &World, dice: &mut Dice) -> Option<JobId> {
    let known = world.known.lock().unwrap();
    known.get(dice.below(known.len() as u64) as usize).copied()
}

/// Cancels, activates, revives, deletes, pauses or releases something.
async fn meddle(world: &Arc<World>, dice: &mut Dice) {
    let Some(id) = known(world, dice) else { return };
    let from = world.store.seq();
    world.holds.lock().unwrap().may_end(id, from);
    let nobody = Bearer::default();
    let settled: Option<Settled> = match dice.below(8) {
        0..3 => {
            let sent = nobody.clone();
            world.ask(dice, move |engine| async move { engine.cancel(id, sent).await }).await.answer()
        }
        3 => world.ask(dice, move |engine| async move { engine.activate(id).await }).await.answer(),
        4 => {
            let name = QueueName::from_stored(dice.pick(&QUEUES));
            let paused = dice.chance(512);
            world.ask(dice, move |engine| async move { engine.set_paused(name, paused).await }).await;
            None
        }
        5 if world.may_release => {
            world.ask(dice, move |engine| async move { engine.delete_dead_letter(id).await }).await;
            None
        }
        6 if world.may_release => {
            let heard = world.ask(dice, move |engine| async move { engine.revive(id, "").await }).await;
            match heard.answer() {
                Some(Revived::Done(head)) => {
                    let checked = world.store.witness.lock().unwrap().check_run(&head);
                    world.judge(|| format!("{id} was sent back"), checked);
                }
                // The revived job counts as a duplicate of the job that blocks it.
                Some(Revived::Blocked { holder }) => world.absorbed(Some(holder.absorbed_by())),
                Some(Revived::Refused(_)) | None => {}
            }
            None
        }
        7 if world.may_release => {
            release(world, dice).await;
            None
        }
        _ => None,
    };
    if let Some(settled) = settled {
        let checked = world.store.witness.lock().unwrap().check_settled(id, &nobody, &settled, from, true);
        world.judge(|| format!("an operator on {id}"), checked);
    }
}

async fn release(world: &Arc<World>, dice: &mut Dice) {
    let key = world.keys[dice.below(world.keys.len() as u64) as usize].key;
    let heard = world.ask(dice, move |engine| async move { engine.release_key(key).await }).await;
    if let Some(KeyReleased::Done(heads)) = heard.answer() {
        let witness = world.store.witness.lock().unwrap();
        let keeps = heads.iter().find(|head| {
            witness.jobs.get(&head.id).is_none_or(|job| job.head.key.is_some()) || head.key.is_some()
        });
        let checked = keeps.map_or(Ok(()), |head| Err(format!("{} still holds the released key", head.id)));
        drop(witness);
        world.judge(|| "a release".to_owned(), checked);
    }
}
