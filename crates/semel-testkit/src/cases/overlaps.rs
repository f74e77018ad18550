//! What a cron's overlap policy promises, whatever came before and whatever happens to the jobs.

use std::time::Duration;

use semel_core::cron::{self, Cron, Decision, Looked, Overlap};
use semel_core::draft::{Document, Reads};
use semel_core::enqueue::Offer;
use semel_core::event::EventKind;
use semel_core::ident::JobId;
use semel_core::job::{Head, NoteKind};
use semel_core::life;
use semel_core::settle::Settled;
use semel_core::state::{State, StateSet};
use semel_store::backend::Seek;
use semel_store::log::Recorded;

use crate::fixture::Fixture;
use crate::flows::{cron_name, look, register, registration};
use crate::make::{job, keyed};

const MINUTE: Duration = Duration::from_secs(60);

fn long() -> Offer {
    job().times(36_000_000, 36_000_000).offer()
}

/// An offer that replaces the key's holders in these states.
fn replacing(key: &str, states: StateSet) -> Offer {
    keyed(key).times(36_000_000, 36_000_000).on_conflict("replace").states(states).offer()
}

async fn put(f: &Fixture, overlap: Overlap, offer: Offer) {
    register(f, "a", &registration("* * * * *", overlap, offer)).await;
}

/// Moves the clock by a minute and decides the tick that is due.
async fn next(f: &Fixture) -> (Decision, Option<JobId>) {
    f.advance(MINUTE).await;
    match look(f, "a").await {
        Looked::Ticked(tick) => (tick.decision, tick.job.map(|id| JobId::parse(&id, "").unwrap())),
        other => panic!("no tick: {other:?}"),
    }
}

async fn fired(f: &Fixture) -> JobId {
    match next(f).await {
        (Decision::Fired, Some(id)) => id,
        other => panic!("not fired: {other:?}"),
    }
}

async fn started(f: &Fixture) -> Head {
    f.claim_one().await.0
}

async fn states(f: &Fixture, ids: &[JobId]) -> Vec<State> {
    let mut states = Vec::new();
    for id in ids {
        states.push(f.head(*id).await.unwrap().state);
    }
    states
}

/// Asserts that the jobs run one after the other, with no other beside them.
async fn run_in_line(f: &Fixture, ids: &[JobId]) {
    for id in ids {
        let claimed = f.claim("default", 9).await.jobs;
        assert_eq!(claimed.iter().map(|(head, _)| head.id).collect::<Vec<_>>(), [*id]);
        f.complete(&claimed[0].0).await;
    }
    assert!(f.claim("default", 9).await.jobs.is_empty());
}

async fn document(f: &Fixture) -> Document {
    let key = cron::key(&cron_name("a"));
    let snapshot = f.load(&Reads { documents: vec![key.clone()], ..Reads::default() }).await;
    snapshot.peek_document(&key).unwrap().clone()
}

/// This holds however many cancelled ticks are between the run and the new tick, in whatever order they were
/// cancelled.
pub async fn a_tick_waits_behind_any_number_of_cancelled_ones(f: &Fixture) {
    put(f, Overlap::Enqueue, long()).await;
    let first = fired(f).await;
    assert_eq!(started(f).await.id, first);
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(fired(f).await);
    }
    for id in held.iter().rev() {
        f.cancel(*id).await;
    }
    let last = fired(f).await;
    assert_eq!(states(f, &[first, last]).await, [State::Active, State::Pending]);
    f.complete(&f.head(first).await.unwrap()).await;
    assert_eq!(states(f, &[last]).await, [State::Available]);
}

/// It waits for the jobs before it and for its own start time, whichever is later.
pub async fn a_held_tick_begins_no_sooner_than_its_template_says(f: &Fixture) {
    let delay = Duration::from_secs(90);
    put(f, Overlap::Enqueue, job().later(delay).offer()).await;
    let (first, second) = (fired(f).await, fired(f).await);
    assert_eq!(states(f, &[first, second]).await, [State::Scheduled, State::Pending]);
    f.cancel(first).await;
    let head = f.head(second).await.unwrap();
    assert_eq!((head.state, head.available_at), (State::Scheduled, head.created_at.saturating_add(delay)));
}

/// A job that replaces a scheduled one takes over its time, however often; otherwise each tick would postpone
/// it again, for ever.
pub async fn a_held_tick_that_keeps_a_schedule_is_not_put_off(f: &Fixture) {
    let delay = Duration::from_secs(150);
    let template = keyed("kept").on_conflict("replace_except_schedule").later(delay);
    put(f, Overlap::Enqueue, template.offer()).await;
    let due = f.head(fired(f).await).await.unwrap().available_at;
    for _ in 0..2 {
        let head = f.head(fired(f).await).await.unwrap();
        assert_eq!((head.state, head.available_at), (State::Scheduled, due));
    }
}

/// A job that people are to activate waits for them, whatever ends before it.
pub async fn a_pending_tick_waits_for_people_alone(f: &Fixture) {
    put(f, Overlap::Enqueue, job().pending().offer()).await;
    let (first, second) = (fired(f).await, fired(f).await);
    f.cancel(first).await;
    assert_eq!(states(f, &[first, second]).await, [State::Cancelled, State::Pending]);
    assert!(matches!(f.decide(|draft| life::activate(draft, second)).await, Settled::Done(_)));
    assert_eq!(states(f, &[second]).await, [State::Available]);
}

/// However many it cancels, what they need is loaded for all of them together: the number of loads per
/// decision is bounded.
pub async fn a_tick_cancels_any_number_of_held_ones(f: &Fixture) {
    put(f, Overlap::Enqueue, long()).await;
    let mut before = Vec::new();
    for _ in 0..100 {
        before.push(fired(f).await);
    }
    put(f, Overlap::CancelPrevious, long()).await;
    let only = fired(f).await;
    assert_eq!(states(f, &before).await, vec![State::Cancelled; 100]);
    assert_eq!(states(f, &[only]).await, [State::Available]);
    f.maintain().await;
    let is_let_go = |recorded: &Recorded| recorded.event.kind == EventKind::Available;
    assert!(!f.log().await.iter().any(is_let_go), "none goes for the end of the one before it");
}

/// A job that is replaced again and again, as when debouncing, stops no tick. Each link of the chain is
/// looked at, and what a decision may load is bounded.
pub async fn a_tick_is_decided_however_often_its_job_was_replaced(f: &Fixture) {
    let replacing = keyed("chain").on_conflict("replace");
    for overlap in [Overlap::Skip, Overlap::Enqueue, Overlap::CancelPrevious] {
        put(f, overlap, replacing.offer()).await;
        fired(f).await;
        for _ in 0..40 {
            f.enqueue(&replacing.offer()).await;
        }
        next(f).await;
    }
}

/// Where it cancels nothing, a tick that is a duplicate has the effects of any duplicate.
pub async fn a_duplicate_tick_moves_its_holders_window(f: &Fixture) {
    let sliding =
        keyed("slides").on_conflict("ignore").states(StateSet::ALL).period(MINUTE * 90, "last_duplicate");
    put(f, Overlap::CancelPrevious, sliding.offer()).await;
    let first = fired(f).await;
    f.complete(&started(f).await).await;
    for _ in 0..3 {
        let before = f.now().await;
        assert_eq!(next(f).await, (Decision::Duplicate, Some(first)));
        // Each decision has its own time, and other decisions are made beside this one.
        let renewed_at = f.head(first).await.unwrap().renewed_at.unwrap();
        assert!(before < renewed_at && renewed_at <= f.now().await, "{before} {renewed_at}");
    }
}

/// The present policy applies to every unfinished job of the cron, not only to the last.
pub async fn a_policy_holds_for_the_runs_of_the_one_before(f: &Fixture) {
    put(f, Overlap::Allow, long()).await;
    let runs = [fired(f).await, fired(f).await, fired(f).await];
    let heads = f.claim("default", 9).await.jobs;
    let head = |id: JobId| &heads.iter().find(|(head, _)| head.id == id).unwrap().0;
    f.complete(head(runs[2])).await;
    put(f, Overlap::Skip, long()).await;
    assert_eq!(next(f).await, (Decision::Skipped, Some(runs[1])));
    // The tick waits for both of them, whichever ends first.
    put(f, Overlap::Enqueue, long()).await;
    let held = fired(f).await;
    let behind = fired(f).await;
    assert_eq!(states(f, &[held, behind]).await, [State::Pending; 2]);
    f.complete(head(runs[1])).await;
    assert_eq!(states(f, &[held, behind]).await, [State::Pending; 2], "the first runs");
    put(f, Overlap::Skip, long()).await;
    assert_eq!(next(f).await.0, Decision::Skipped);
    f.complete(head(runs[0])).await;
    assert_eq!(states(f, &[held, behind]).await, [State::Available, State::Pending]);
    put(f, Overlap::CancelPrevious, long()).await;
    let only = fired(f).await;
    assert_eq!(
        states(f, &[held, behind, only]).await,
        [State::Cancelled, State::Cancelled, State::Available]
    );
}

/// When the held job that a tick waits for ends, the tick still waits for jobs that were let in beside it.
pub async fn a_tick_waits_for_those_that_were_let_beside_a_held_one(f: &Fixture) {
    put(f, Overlap::Enqueue, long()).await;
    let (first, held) = (fired(f).await, fired(f).await);
    let first_run = started(f).await;
    assert_eq!(first_run.id, first);
    put(f, Overlap::Allow, long()).await;
    let beside = fired(f).await;
    let run = started(f).await;
    assert_eq!(run.id, beside);
    put(f, Overlap::Enqueue, long()).await;
    let last = fired(f).await;
    f.complete(&first_run).await;
    let held_run = started(f).await;
    assert_eq!(held_run.id, held);
    f.complete(&held_run).await;
    assert_eq!(states(f, &[last]).await, [State::Pending], "the one beside runs");
    f.complete(&run).await;
    assert_eq!(states(f, &[last]).await, [State::Available]);
}

/// Taking over the schedule of another program's job does not replace the wait for the run.
pub async fn a_tick_that_keeps_a_schedule_waits_for_the_run_all_the_same(f: &Fixture) {
    let window = MINUTE / 2;
    let keeping = || keyed("a").on_conflict("replace_except_schedule").period(window, "created");
    put(f, Overlap::Enqueue, keeping().times(36_000_000, 36_000_000).offer()).await;
    let first = fired(f).await;
    let run = started(f).await;
    assert_eq!(run.id, first);
    // By then the run's window is over; the scheduled job's window is not over when the tick comes.
    f.advance(MINUTE - window / 2).await;
    let scheduled = f.create(&keeping().later(MINUTE * 10).offer()).await;
    f.advance(window / 2).await;
    let Looked::Ticked(tick) = look(f, "a").await else { panic!("no tick") };
    let held = JobId::parse(&tick.job.unwrap(), "").unwrap();
    assert_eq!(
        states(f, &[first, scheduled.id, held]).await,
        [State::Active, State::Cancelled, State::Pending]
    );
    f.advance(MINUTE * 10).await;
    f.run_duties().await;
    assert_eq!(states(f, &[first, held]).await, [State::Active, State::Pending]);
    f.complete(&run).await;
    assert_eq!(states(f, &[held]).await, [State::Available]);
}

/// Both or neither: a run is cancelled only by the job that replaces it.
pub async fn a_tick_that_admits_nothing_cancels_nothing(f: &Fixture) {
    put(f, Overlap::CancelPrevious, long()).await;
    let first = fired(f).await;
    let run = started(f).await;
    let stranger = f.create(&keyed("a").queue("other").offer()).await;
    put(f, Overlap::CancelPrevious, keyed("a").offer()).await;
    assert_eq!(next(f).await, (Decision::Rejected, Some(stranger.id)));
    assert_eq!(f.head(first).await.unwrap(), run, "it is as it was");
    put(f, Overlap::CancelPrevious, keyed("a").on_conflict("ignore").offer()).await;
    assert_eq!(next(f).await, (Decision::Duplicate, Some(stranger.id)));
    assert_eq!(f.head(first).await.unwrap(), run);
    let (_, noted) = f.full(stranger.id).await.unwrap();
    assert!(noted.note(NoteKind::Duplicates).is_some(), "and who was turned away is recorded");
    f.cancel(stranger.id).await;
    fired(f).await;
    assert_eq!(states(f, &[first]).await, [State::Cancelled]);
}

/// Two jobs that wait for each other never run, nor does any job after them.
pub async fn a_tick_that_takes_a_place_does_not_wait_for_who_waits_for_it(f: &Fixture) {
    let ready = StateSet::EMPTY.with(State::Available).with(State::Active);
    put(f, Overlap::Enqueue, replacing("a", ready)).await;
    let first = fired(f).await;
    f.fail(&started(f).await).await;
    // It waits to be retried, and blocks nobody until then.
    let second = fired(f).await;
    assert_eq!(states(f, &[first, second]).await, [State::Retryable, State::Pending]);
    f.run_duties().await;
    assert_eq!(states(f, &[first, second]).await, [State::Available, State::Pending]);
    let third = fired(f).await;
    assert_eq!(
        states(f, &[first, second, third]).await,
        [State::Cancelled, State::Pending, State::Available]
    );
    put(f, Overlap::Enqueue, long()).await;
    let last = fired(f).await;
    run_in_line(f, &[third, second, last]).await;
}

/// However long the line is, and however many jobs have had the place before.
pub async fn a_tick_takes_the_place_of_strangers_before_a_long_line(f: &Fixture) {
    let keyed = replacing("a", StateSet::LIVE);
    put(f, Overlap::Enqueue, keyed.clone()).await;
    let first = fired(f).await;
    assert_eq!(started(f).await.id, first);
    put(f, Overlap::Enqueue, long()).await;
    let mut line = Vec::new();
    for _ in 0..40 {
        line.push(fired(f).await);
    }
    for _ in 0..40 {
        f.create(&keyed).await;
    }
    let stranger = f.create(&keyed).await;
    assert_eq!(states(f, &[first, stranger.id]).await, [State::Cancelled, State::Available]);
    put(f, Overlap::Enqueue, keyed).await;
    let taker = fired(f).await;
    assert_eq!(
        states(f, &[stranger.id, taker, line[0]]).await,
        [State::Cancelled, State::Available, State::Pending]
    );
    put(f, Overlap::Enqueue, long()).await;
    line.insert(0, taker);
    line.push(fired(f).await);
    run_in_line(f, &line).await;
}

/// It waits for whatever the replaced job waited for.
pub async fn a_tick_takes_a_place_within_a_line(f: &Fixture) {
    put(f, Overlap::Enqueue, long()).await;
    let first = fired(f).await;
    let keyed = replacing("a", StateSet::LIVE);
    put(f, Overlap::Enqueue, keyed.clone()).await;
    let second = fired(f).await;
    put(f, Overlap::Enqueue, long()).await;
    let third = fired(f).await;
    put(f, Overlap::Enqueue, keyed).await;
    let taker = fired(f).await;
    assert_eq!(
        states(f, &[first, second, third, taker]).await,
        [State::Available, State::Cancelled, State::Pending, State::Pending]
    );
    put(f, Overlap::Enqueue, long()).await;
    let last = fired(f).await;
    run_in_line(f, &[first, taker, third, last]).await;
}

/// This holds also where that run was to release the job that waits; and the next tick waits for all of them.
pub async fn a_tick_that_takes_a_place_waits_for_the_run_beside_it(f: &Fixture) {
    let keyed = replacing("a", StateSet::LIVE);
    put(f, Overlap::Allow, long()).await;
    let beside = fired(f).await;
    let run = started(f).await;
    put(f, Overlap::Allow, keyed.clone()).await;
    let first = fired(f).await;
    assert_eq!((run.id, started(f).await.id), (beside, first));
    put(f, Overlap::Enqueue, long()).await;
    let second = fired(f).await;
    put(f, Overlap::Enqueue, keyed).await;
    let taker = fired(f).await;
    assert_eq!(
        states(f, &[beside, first, second, taker]).await,
        [State::Active, State::Cancelled, State::Pending, State::Pending]
    );
    put(f, Overlap::Enqueue, long()).await;
    let last = fired(f).await;
    f.complete(&run).await;
    run_in_line(f, &[taker, second, last]).await;
}

/// Each tick is recorded once. If it were recorded once per stranger, the record would double at every tick
/// until it no longer fitted.
pub async fn a_tick_that_two_strangers_stand_for_is_known_once(f: &Fixture) {
    let both = ["a", "b"].map(|key| replacing(key, StateSet::LIVE));
    for offer in &both {
        put(f, Overlap::Allow, offer.clone()).await;
        fired(f).await;
    }
    for offer in &both {
        f.create(offer).await;
    }
    put(f, Overlap::Enqueue, long()).await;
    let held = fired(f).await;
    f.cancel(held).await;
    for _ in 0..12 {
        fired(f).await;
    }
}

/// Whatever could not be read, another program may be able to read it, or this one later.
pub async fn a_cron_that_could_not_tick_ticks_again(f: &Fixture) {
    put(f, Overlap::Allow, long()).await;
    let key = cron::key(&cron_name("a"));
    let whole = document(f).await;
    let broken = String::from_utf8(whole.text.to_vec()).unwrap().replace("UTC", "Nowhere/Land");
    f.decide(|draft| {
        draft.document(&key)?;
        draft.set_document(&key, Some((broken.clone().into(), whole.due)));
        Ok(())
    })
    .await;
    f.advance(MINUTE).await;
    let before = f.now().await;
    assert!(matches!(look(f, "a").await, Looked::Stopped(_)));
    let rest = document(f).await.due.unwrap().since(before);
    assert!(rest >= MINUTE && rest < MINUTE * 2, "{rest:?}");
    f.decide(|draft| {
        let due = draft.document(&key)?.unwrap().due;
        draft.set_document(&key, Some((whole.text.clone(), due)));
        Ok(())
    })
    .await;
    // Registering the cron again unchanged makes it tick at once.
    f.advance(MINUTE * 10).await;
    let due = f.backend().documents(Seek::Due { limit: 9 }).await.unwrap().documents;
    assert_eq!(due.len(), 1);
    let Looked::Ticked(tick) = look(f, "a").await else { panic!("no tick") };
    assert_eq!(tick.decision, Decision::Fired);
    let cron = Cron::decode(&document(f).await.text).unwrap();
    f.decide(|draft| {
        let text = draft.document(&key)?.unwrap().text;
        draft.set_document(&key, Some((text, None)));
        Ok(())
    })
    .await;
    put(f, Overlap::Allow, long()).await;
    assert_eq!(document(f).await.due.map(|due| due.as_micros()), cron.next_tick);
}

/// It counts again, however many ticks have come and ended since.
pub async fn a_dead_letter_that_is_sent_back_counts_again(f: &Fixture) {
    put(f, Overlap::Skip, job().times(36_000_000, 36_000_000).attempts(1).dead_letter().offer()).await;
    let first = fired(f).await;
    f.fail(&started(f).await).await;
    for _ in 0..3 {
        fired(f).await;
        f.complete(&started(f).await).await;
    }
    let revived = f.decide(|draft| life::revive(draft, first)).await;
    assert!(matches!(revived, life::Revived::Done(_)), "{revived:?}");
    assert_eq!(next(f).await, (Decision::Skipped, Some(first)));
    let run = started(f).await;
    assert_eq!((run.id, next(f).await), (first, (Decision::Skipped, Some(first))));
    f.complete(&run).await;
    let last = fired(f).await;
    assert_eq!(states(f, &[first, last]).await, [State::Completed, State::Available]);
}

/// The stranger is not one of the cron's jobs, which the next tick would wait for.
pub async fn a_stranger_in_the_place_of_its_job_skips_no_tick(f: &Fixture) {
    let template = replacing("a", StateSet::LIVE);
    put(f, Overlap::Skip, template.clone()).await;
    fired(f).await;
    let stranger = f.create(&template).await;
    let next = fired(f).await;
    assert_eq!(states(f, &[stranger.id, next]).await, [State::Cancelled, State::Available]);
}

/// A job that waits for people waits for no job, so it cannot stand in for the jobs before it.
pub async fn a_tick_waits_for_the_run_before_one_that_people_activate(f: &Fixture) {
    put(f, Overlap::Enqueue, long()).await;
    let run = fired(f).await;
    started(f).await;
    put(f, Overlap::Enqueue, job().pending().offer()).await;
    let by_hand = fired(f).await;
    put(f, Overlap::Enqueue, long()).await;
    let last = fired(f).await;
    f.cancel(by_hand).await;
    assert_eq!(states(f, &[run, last]).await, [State::Active, State::Pending]);
    f.complete(&f.head(run).await.unwrap()).await;
    assert_eq!(states(f, &[last]).await, [State::Available]);
}
