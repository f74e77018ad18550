//! Crons on every store: each tick happens once, whatever goes wrong.

use std::time::Duration;

use semel_core::body::Body;
use semel_core::cron::{self, Change, Cron, Decision, Enabled, Looked, Overlap, Registration, Schedule};
use semel_core::draft::Reads;
use semel_core::event::{EventKind, Skip};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::sight::Queues;
use semel_core::state::{State, StateSet};
use semel_store::backend::Seek;
use semel_store::backend::Verdict::{Applied, Stale};

use crate::fixture::Fixture;
use crate::flows::{cron_name, look, register, registration};
use crate::make::{job, keyed};

const MINUTE: Duration = Duration::from_secs(60);
const DAY_MICROS: i64 = 24 * 3_600_000_000;

async fn stored(f: &Fixture, name: &str) -> Option<Cron> {
    let key = cron::key(&cron_name(name));
    let snapshot = f.load(&Reads { documents: vec![key.clone()], ..Reads::default() }).await;
    snapshot.peek_document(&key).map(|document| Cron::decode(&document.text).unwrap())
}

/// Moves the clock by a minute and decides the tick that is due.
async fn next(f: &Fixture, name: &str) -> (Decision, Option<JobId>) {
    f.advance(MINUTE).await;
    match look(f, name).await {
        Looked::Ticked(tick) => (tick.decision, tick.job.map(|id| JobId::parse(&id, "").unwrap())),
        other => panic!("no tick: {other:?}"),
    }
}

async fn state(f: &Fixture, id: JobId) -> State {
    f.head(id).await.unwrap().state
}

async fn run_one(f: &Fixture) -> Head {
    let (head, _) = f.claim_one().await;
    f.complete(&head).await;
    head
}

/// A tick is due at its time and not before; then the next one is.
pub async fn a_tick_offers_its_job_once(f: &Fixture) {
    let registered = register(f, "a", &registration("* * * * *", Overlap::Skip, job().offer())).await;
    assert!(registered.is_new);
    let first = registered.cron.next_tick.unwrap();
    assert_eq!(first % 60_000_000, 0);
    assert_eq!(look(f, "a").await, Looked::NotDue);
    let (decision, id) = next(f, "a").await;
    assert_eq!((decision, state(f, id.unwrap()).await), (Decision::Fired, State::Available));
    assert_eq!(look(f, "a").await, Looked::NotDue);
    let cron = stored(f, "a").await.unwrap();
    assert_eq!((cron.last_tick, cron.next_tick, cron.run_count), (Some(first), Some(first + 60_000_000), 1));
    let found = f.backend().documents(Seek::Due { limit: 9 }).await.unwrap();
    assert_eq!(found.documents, []);
    assert_eq!(found.next.unwrap().as_micros(), first + 60_000_000);
    assert_eq!(f.queue("default").await.unwrap().created, 1);
}

/// Load, load, commit, commit: both servers make the same job of the tick.
pub async fn a_tick_that_two_servers_decide_is_taken_once(f: &Fixture) {
    register(f, "a", &registration("* * * * *", Overlap::Allow, job().offer())).await;
    f.advance(MINUTE).await;
    let (mut groups, mut ids) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let decided = f.decided(&Reads::default(), |draft| cron::tick(draft, &cron_name("a"))).await;
        let (Looked::Ticked(tick), group) = decided else { panic!("{decided:?}") };
        ids.push(tick.job.unwrap());
        groups.push(group);
    }
    assert_eq!(ids[0], ids[1]);
    assert_eq!(f.commit(groups).await, [Applied, Stale]);
    assert_eq!(f.queue("default").await.unwrap().created, 1);
}

/// A job that is waiting or running has not ended.
pub async fn a_tick_is_skipped_while_an_earlier_job_goes_on(f: &Fixture) {
    register(f, "a", &registration("* * * * *", Overlap::Skip, job().times(600_000, 0).offer())).await;
    let (_, first) = next(f, "a").await;
    assert_eq!(next(f, "a").await, (Decision::Skipped, first));
    let (head, _) = f.claim_one().await;
    assert_eq!(next(f, "a").await, (Decision::Skipped, first));
    f.complete(&head).await;
    assert_eq!(next(f, "a").await.0, Decision::Fired);
    let cron = stored(f, "a").await.unwrap();
    assert_eq!((cron.run_count, cron.skip_count, cron.history.len()), (2, 2, 4));
}

/// `allow`: the jobs may overlap.
pub async fn a_tick_may_run_beside_an_earlier_job(f: &Fixture) {
    register(f, "a", &registration("* * * * *", Overlap::Allow, job().offer())).await;
    let (_, first) = next(f, "a").await;
    let (_, second) = next(f, "a").await;
    assert_ne!(first, second);
    assert_eq!(f.claim("default", 9).await.jobs.len(), 2);
}

/// `cancel_previous`: the earlier job is cancelled in the commit that creates the new one.
pub async fn a_tick_may_cancel_the_earlier_job(f: &Fixture) {
    register(f, "a", &registration("* * * * *", Overlap::CancelPrevious, job().offer())).await;
    let (_, first) = next(f, "a").await;
    let (head, _) = f.claim_one().await;
    let (_, second) = next(f, "a").await;
    assert_eq!(state(f, first.unwrap()).await, State::Cancelled);
    assert_eq!(state(f, second.unwrap()).await, State::Available);
    assert!(matches!(f.complete(&head).await, semel_core::settle::Settled::Refused(_)));
}

/// `enqueue`: every tick's job is created, and no two run at once.
pub async fn a_tick_may_wait_for_the_end_of_the_earlier_job(f: &Fixture) {
    register(f, "a", &registration("* * * * *", Overlap::Enqueue, job().times(600_000, 0).offer())).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(next(f, "a").await.1.unwrap());
    }
    for id in ids {
        let claimed = f.claim("default", 9).await.jobs;
        assert_eq!(claimed.iter().map(|(head, _)| head.id).collect::<Vec<_>>(), [id]);
        f.complete(&claimed[0].0).await;
    }
    assert!(f.claim("default", 9).await.jobs.is_empty());
}

/// Ticks held behind a cancelled tick wait for whatever that one waited for, and so does the next tick.
pub async fn a_cancelled_waiting_tick_lets_nobody_run_beside_the_first(f: &Fixture) {
    register(f, "a", &registration("* * * * *", Overlap::Enqueue, job().times(3_600_000, 0).offer())).await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(next(f, "a").await.1.unwrap());
    }
    let (first, _) = f.claim_one().await;
    assert_eq!(first.id, ids[0]);
    f.cancel(ids[1]).await;
    assert_eq!(state(f, ids[2]).await, State::Pending);
    f.cancel(ids[2]).await;
    assert_eq!(state(f, ids[3]).await, State::Pending);
    f.cancel(ids[3]).await;
    let last = next(f, "a").await.1.unwrap();
    assert_eq!(state(f, last).await, State::Pending);
    f.complete(&first).await;
    assert_eq!(state(f, last).await, State::Available);
}

/// The waiting tick may be replaced by the next tick or by any other job.
pub async fn a_replaced_waiting_tick_lets_nobody_run_beside_the_first(f: &Fixture) {
    let waits = StateSet::EMPTY.with(State::Pending).with(State::Available).with(State::Scheduled);
    let replacing = keyed("a").times(3_600_000, 0).on_conflict("replace").states(waits).offer();
    register(f, "a", &registration("* * * * *", Overlap::Enqueue, replacing)).await;
    next(f, "a").await;
    let (first, _) = f.claim_one().await;
    let second = next(f, "a").await.1.unwrap();
    let third = next(f, "a").await.1.unwrap();
    assert_eq!((state(f, second).await, state(f, third).await), (State::Cancelled, State::Pending));
    f.complete(&first).await;
    assert_eq!(state(f, third).await, State::Available);
}

/// A job that waited for the replaced one waits for its replacement, and for whatever that waits for.
pub async fn who_waits_for_a_tick_that_a_stranger_replaces_runs_beside_nobody(f: &Fixture) {
    let waits = StateSet::EMPTY.with(State::Pending).with(State::Available).with(State::Scheduled);
    let replacing = keyed("a").times(3_600_000, 0).on_conflict("replace").states(waits);
    register(f, "a", &registration("* * * * *", Overlap::Enqueue, replacing.offer())).await;
    next(f, "a").await;
    let (first, _) = f.claim_one().await;
    let second = next(f, "a").await.1.unwrap();
    let unkeyed = job().times(3_600_000, 0);
    register(f, "a", &registration("* * * * *", Overlap::Enqueue, unkeyed.offer())).await;
    let third = next(f, "a").await.1.unwrap();
    let stranger = f.enqueue(&replacing.offer()).await;
    assert!(matches!(stranger, semel_core::enqueue::Outcome::Replaced { .. }), "{stranger:?}");
    assert_eq!((state(f, second).await, state(f, third).await), (State::Cancelled, State::Pending));
    let (taken, _) = f.claim_one().await;
    f.complete(&taken).await;
    assert_eq!(state(f, third).await, State::Pending, "the first runs");
    f.complete(&first).await;
    assert_eq!(state(f, third).await, State::Available);
}

/// A tick held back for the end of one job may also have to wait for the lease of another.
pub async fn a_tick_that_was_held_back_waits_for_the_lease_it_replaced(f: &Fixture) {
    register(f, "a", &registration("* * * * *", Overlap::Enqueue, job().queue("first").offer())).await;
    let first = next(f, "a").await.1.unwrap();
    let replacing =
        keyed("a").on_conflict("replace").policy(|spec| spec.when_active = Some("wait".to_owned()));
    let stranger = f.create(&replacing.clone().times(3_600_000, 0).offer()).await;
    assert_eq!(f.claim_one().await.0.id, stranger.id);
    register(f, "a", &registration("* * * * *", Overlap::Enqueue, replacing.offer())).await;
    let second = next(f, "a").await.1.unwrap();
    assert_eq!((state(f, stranger.id).await, state(f, second).await), (State::Cancelled, State::Pending));
    f.cancel(first).await;
    assert_eq!(state(f, second).await, State::Scheduled);
    f.advance(MINUTE * 60).await;
    f.run_duties().await;
    assert_eq!(state(f, second).await, State::Available);
}

/// The overlap policy concerns the cron's own jobs only.
pub async fn a_tick_that_is_a_duplicate_makes_nobodys_job_the_crons(f: &Fixture) {
    let ignoring = keyed("a").on_conflict("ignore").offer();
    let stranger = f.create(&ignoring).await;
    let cron = registration("* * * * *", Overlap::CancelPrevious, ignoring);
    register(f, "a", &cron).await;
    for _ in 0..2 {
        assert_eq!(next(f, "a").await, (Decision::Duplicate, Some(stranger.id)));
        assert_eq!(state(f, stranger.id).await, State::Available);
    }
    assert_eq!(stored(f, "a").await.unwrap().last_job, None);
}

/// However many ticks were missed, one fires; the next is in the future.
pub async fn a_late_tick_is_one_tick(f: &Fixture) {
    let first =
        register(f, "a", &registration("* * * * *", Overlap::Allow, job().offer())).await.cron.next_tick;
    f.advance(MINUTE * 60 * 24).await;
    let Looked::Ticked(tick) = look(f, "a").await else { panic!("no tick") };
    assert_eq!(Some(tick.tick), first);
    assert!(tick.at - tick.tick > 80_000_000_000, "it says how late it is");
    assert_eq!(look(f, "a").await, Looked::NotDue);
    let now = f.now().await.as_micros();
    assert!((now..=now + 60_000_000).contains(&stored(f, "a").await.unwrap().next_tick.unwrap()));
    assert_eq!(f.queue("default").await.unwrap().created, 1);
}

/// A refused tick, or one answered with an existing job, is decided all the same: it is an admission like any
/// other.
pub async fn a_tick_goes_by_its_jobs_unique_policy(f: &Fixture) {
    let holder = f.create(&keyed("a").offer()).await;
    let duplicates = async |f: &Fixture| f.full(holder.id).await.unwrap().1.notes.len();
    register(f, "a", &registration("* * * * *", Overlap::Allow, keyed("a").offer())).await;
    assert_eq!(next(f, "a").await, (Decision::Rejected, Some(holder.id)));
    assert_eq!(duplicates(f).await, 1);
    let ignoring = keyed("a").on_conflict("ignore").offer();
    register(f, "a", &registration("* * * * *", Overlap::Allow, ignoring)).await;
    assert_eq!(next(f, "a").await, (Decision::Duplicate, Some(holder.id)));
    let known = f.log().await;
    let told = known.iter().filter(|told| told.event.job == holder.id).map(|told| told.event.kind);
    let expected = [EventKind::Enqueued, EventKind::DuplicateRejected, EventKind::Deduplicated];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    run_one(f).await;
    assert_eq!(next(f, "a").await.0, Decision::Fired);
}

/// Every decision on a tick is logged, in the commit that decides it.
pub async fn what_becomes_of_a_tick_is_in_the_log(f: &Fixture) {
    let holder = f.create(&keyed("a").queue("other").offer()).await;
    register(f, "a", &registration("* * * * *", Overlap::Skip, job().queue("q").offer())).await;
    let fired = next(f, "a").await.1.unwrap();
    next(f, "a").await;
    for (name, conflict) in [("b", "reject"), ("c", "ignore")] {
        let offer = keyed("a").queue("q").on_conflict(conflict).offer();
        register(f, name, &registration("0 0 * * *", Overlap::Allow, offer)).await;
        f.decide(|draft| cron::trigger(draft, &cron_name(name), &Queues::All)).await.unwrap().unwrap();
    }
    f.cancel(holder.id).await;
    f.decide(|draft| cron::trigger(draft, &cron_name("c"), &Queues::All)).await.unwrap().unwrap();
    f.maintain().await;
    let log = f.log().await;
    let ticks = log.iter().map(|recorded| &recorded.event).filter(|event| event.cron().is_some());
    let told: Vec<_> = ticks.clone().map(|event| (event.kind, event.cron().unwrap(), event.amount)).collect();
    let expected = [
        (EventKind::CronTriggered, "a", 0),
        (EventKind::CronSkipped, "a", Skip::Overlap as u32),
        (EventKind::CronSkipped, "b", Skip::Rejected as u32),
        (EventKind::CronSkipped, "c", Skip::Duplicate as u32),
        (EventKind::CronTriggered, "c", 1),
    ];
    assert_eq!(told, expected);
    for tick in ticks.clone() {
        assert_eq!((tick.type_name(), tick.queue.as_str()), ("email.send", "q"), "{tick:?}");
    }
    assert_eq!(ticks.clone().next().unwrap().job, fired);
}

/// An enabled cron ticks again from the time it was enabled.
pub async fn a_disabled_cron_does_not_tick_and_makes_up_for_nothing(f: &Fixture) {
    register(f, "a", &registration("* * * * *", Overlap::Allow, job().offer())).await;
    let set = async |enabled| {
        let change = Change { enabled: Some(enabled), ..Change::default() };
        f.decide(|draft| cron::change(draft, &cron_name("a"), &Queues::All, &change)).await.unwrap().unwrap()
    };
    assert_eq!(set(false).await.next_tick, None);
    f.advance(MINUTE * 10).await;
    assert_eq!(look(f, "a").await, Looked::NotDue);
    assert_eq!(f.backend().documents(Seek::Due { limit: 9 }).await.unwrap().next, None);
    let next_tick = set(true).await.next_tick.unwrap();
    assert!(next_tick > f.now().await.as_micros());
    assert_eq!(look(f, "a").await, Looked::NotDue);
    assert_eq!(next(f, "a").await.0, Decision::Fired);
}

/// A program that registers its crons at every start loses no tick; with another schedule, ticks start from
/// now.
pub async fn registering_again_keeps_the_next_tick_and_the_history(f: &Fixture) {
    let wanted = registration("* * * * *", Overlap::Allow, job().offer());
    let first = register(f, "a", &wanted).await.cron;
    f.advance(MINUTE * 2).await;
    let same = register(f, "a", &wanted).await;
    assert_eq!((same.is_same, same.cron.updated_at), (true, first.updated_at));
    let again = register(f, "a", &registration("* * * * *", Overlap::Skip, job().queue("q").offer())).await;
    assert!(!again.is_new && !again.is_same);
    assert_eq!((again.cron.next_tick, again.cron.incarnation), (first.next_tick, first.incarnation));
    let Looked::Ticked(tick) = look(f, "a").await else { panic!("no tick") };
    assert_eq!(Some(tick.tick), first.next_tick);
    assert_eq!(f.queue("q").await.unwrap().created, 1);
    let other = register(f, "a", &registration("0 0 * * *", Overlap::Skip, job().offer())).await.cron;
    assert_eq!((other.run_count, other.history.len(), other.created_at), (1, 1, first.created_at));
    assert_eq!(other.next_tick.unwrap() % DAY_MICROS, 0);
}

/// A change may name the schedule that already applies, at a time when a tick is due.
pub async fn changing_a_cron_to_its_own_schedule_loses_no_tick(f: &Fixture) {
    let first = register(f, "a", &registration("* * * * *", Overlap::Allow, job().offer())).await.cron;
    f.advance(MINUTE * 2).await;
    let change = async |change: Change| {
        f.decide(|draft| cron::change(draft, &cron_name("a"), &Queues::All, &change)).await.unwrap().unwrap()
    };
    let named = |expression: &str, zone: &str| Change {
        expression: Some(expression.to_owned()),
        timezone: Some(zone.to_owned()),
        ..Change::default()
    };
    let same = change(Change { overlap: Some(Overlap::Skip), ..named("* * * * *", "UTC") }).await;
    assert_eq!((same.next_tick, same.overlap), (first.next_tick, Overlap::Skip));
    let Looked::Ticked(tick) = look(f, "a").await else { panic!("no tick") };
    assert_eq!(Some(tick.tick), first.next_tick);
    let daily = change(named("0 0 * * *", "UTC")).await;
    assert_eq!(daily.next_tick.unwrap() % DAY_MICROS, 0);
    // Whatever a change does not name stays.
    let tokyo = change(Change { timezone: Some("Asia/Tokyo".to_owned()), ..Change::default() }).await;
    assert_eq!(
        (&*tokyo.expression, tokyo.next_tick.unwrap() % DAY_MICROS),
        ("0 0 * * *", 15 * 3_600_000_000)
    );
}

/// Registering again enables a disabled cron only when the registration says so itself, whatever else it
/// changes.
pub async fn registering_again_leaves_a_disabled_cron_disabled(f: &Fixture) {
    let mut wanted = registration("* * * * *", Overlap::Allow, job().offer());
    assert!(register(f, "a", &wanted).await.cron.enabled);
    let off = Change { enabled: Some(false), ..Change::default() };
    let off =
        f.decide(|draft| cron::change(draft, &cron_name("a"), &Queues::All, &off)).await.unwrap().unwrap();
    let same = register(f, "a", &wanted).await;
    assert_eq!((same.is_same, same.cron.enabled, same.cron.updated_at), (true, false, off.updated_at));
    wanted.overlap = Overlap::Skip;
    let changed = register(f, "a", &wanted).await;
    assert_eq!((changed.is_same, changed.cron.enabled, changed.cron.next_tick), (false, false, None));
    f.advance(MINUTE * 2).await;
    assert_eq!(look(f, "a").await, Looked::NotDue);
    wanted.enabled = Enabled::FromNow(true);
    let enabled = register(f, "a", &wanted).await.cron;
    assert!(enabled.enabled && enabled.next_tick.is_some());
    // The reverse: it is registered as disabled at first, and an operator has enabled it.
    wanted.enabled = Enabled::AtFirst(false);
    assert!(register(f, "a", &wanted).await.is_same);
    let other = register(f, "b", &wanted).await;
    assert_eq!((other.is_new, other.cron.enabled, other.cron.next_tick), (true, false, None));
}

/// Two callers may register the name at the same moment, so that neither finds an existing cron beforehand.
pub async fn a_name_is_not_taken_from_a_queue_that_one_does_not_see(f: &Fixture) {
    let theirs = registration("* * * * *", Overlap::Skip, job().queue("pay").offer());
    let theirs = register(f, "a", &theirs).await.cron;
    let mut offer = job().queue("mail").offer();
    offer.queues = Queues::Only(vec!["mail".to_owned()].into());
    let own = registration("0 0 * * *", Overlap::Allow, offer);
    let told = register(f, "a", &own).await;
    assert_eq!((told.is_anothers, told.is_new, told.is_same), (true, false, false));
    let kept = stored(f, "a").await.unwrap();
    assert_eq!((kept.expression, kept.updated_at), (theirs.expression, theirs.updated_at));
    let told = register(f, "b", &own).await;
    assert_eq!((told.is_anothers, told.is_new), (false, true));
    let again = register(f, "b", &own).await;
    assert_eq!((again.is_anothers, again.is_same), (false, true));
}

/// A check made beforehand may have seen another cron of that name.
pub async fn a_cron_of_a_queue_that_one_does_not_see_is_not_acted_on(f: &Fixture) {
    let theirs = registration("* * * * *", Overlap::Allow, job().queue("pay").offer());
    let theirs = register(f, "a", &theirs).await.cron;
    let (name, off) = (cron_name("a"), Change { enabled: Some(false), ..Change::default() });
    let mail = Queues::Only(vec!["mail".to_owned()].into());
    assert!(f.decide(|draft| cron::change(draft, &name, &mail, &off)).await.is_none());
    assert!(f.decide(|draft| cron::trigger(draft, &name, &mail)).await.is_none());
    assert!(f.decide(|draft| cron::remove(draft, &name, &mail)).await.is_none());
    let kept = stored(f, "a").await.unwrap();
    assert_eq!((kept.updated_at, kept.enabled, kept.run_count), (theirs.updated_at, true, 0));
    let pay = Queues::Only(vec!["pay".to_owned()].into());
    let changed = f.decide(|draft| cron::change(draft, &name, &pay, &off)).await.unwrap().unwrap();
    assert!(!changed.enabled);
    let (_, tick) = f.decide(|draft| cron::trigger(draft, &name, &pay)).await.unwrap().unwrap();
    assert_eq!(tick.decision, Decision::Fired);
    // Nobody knows which queue an unreadable cron belongs to.
    f.decide(|draft| {
        draft.document(&cron::key(&name))?;
        draft.set_document(&cron::key(&name), Some(("{".into(), None)));
        Ok(())
    })
    .await;
    assert!(f.decide(|draft| cron::remove(draft, &name, &pay)).await.is_none());
    assert!(f.decide(|draft| cron::remove(draft, &name, &Queues::All)).await.is_some());
}

/// Triggering works for a disabled cron too, and obeys the overlap policy.
pub async fn a_triggered_cron_fires_now_and_keeps_its_schedule(f: &Fixture) {
    let mut wanted = registration("0 0 * * *", Overlap::Skip, job().offer());
    let next_tick = register(f, "a", &wanted).await.cron.next_tick;
    let trigger = async || {
        let (cron, tick) =
            f.decide(|draft| cron::trigger(draft, &cron_name("a"), &Queues::All)).await.unwrap().unwrap();
        (cron.next_tick, tick.decision, tick.by_hand)
    };
    assert_eq!(trigger().await, (next_tick, Decision::Fired, true));
    assert_eq!(trigger().await, (next_tick, Decision::Skipped, true));
    run_one(f).await;
    wanted.enabled = Enabled::FromNow(false);
    register(f, "a", &wanted).await;
    assert_eq!(trigger().await, (None, Decision::Fired, true));
    assert_eq!(f.decide(|draft| cron::trigger(draft, &cron_name("b"), &Queues::All)).await.map(drop), None);
}

/// The new cron's jobs do not get the ids of the old one's.
pub async fn a_removed_cron_is_gone_and_its_name_begins_anew(f: &Fixture) {
    let wanted = registration("* * * * *", Overlap::Allow, job().offer());
    let first = register(f, "a", &wanted).await.cron;
    f.advance(MINUTE).await;
    let removed = f.decide(|draft| cron::remove(draft, &cron_name("a"), &Queues::All)).await;
    assert_eq!(removed.unwrap().unwrap().incarnation, first.incarnation);
    assert_eq!(look(f, "a").await, Looked::NotDue);
    assert_eq!(stored(f, "a").await.map(|cron| cron.run_count), None);
    assert!(f.decide(|draft| cron::remove(draft, &cron_name("a"), &Queues::All)).await.is_none());
    let second = register(f, "a", &wanted).await;
    assert!(second.is_new && second.cron.incarnation != first.incarnation);
    assert_eq!(f.queue("default").await, None);
}

/// The job's meta gets the cron's name and the tick, beside what the caller put there; neither is part of the
/// key.
pub async fn a_tick_signs_its_job(f: &Fixture) {
    let offer = keyed("a").body(|body| body.meta = r#"{"n":1.0,"cron_name":"mine"}"#.into()).offer();
    let cron = register(f, "a.b", &registration("* * * * *", Overlap::Skip, offer.clone())).await.cron;
    let (_, id) = next(f, "a.b").await;
    let (head, full) = f.full(id.unwrap()).await.unwrap();
    let tick = semel_core::time::Timestamp::from_micros(cron.next_tick.unwrap());
    let body = Body::decode(&full.body).unwrap();
    assert!(body.request_digest.is_some(), "the same tick again is known by it");
    let meta = body.meta;
    assert_eq!(*meta, format!(r#"{{"cron_name":"a.b","cron_triggered_at":"{tick}","n":1.0}}"#));
    assert_eq!(head.key, offer.unique.map(|identity| identity.key));
}

/// The next tick does not depend on how late a tick is decided.
pub async fn an_interval_counts_from_the_tick_and_not_from_its_decision(f: &Fixture) {
    let wanted = registration("@every 10m", Overlap::Allow, job().offer());
    let first = register(f, "a", &wanted).await.cron.next_tick.unwrap();
    f.advance(MINUTE * 13).await;
    assert!(matches!(look(f, "a").await, Looked::Ticked(tick) if tick.tick == first));
    assert_eq!(stored(f, "a").await.unwrap().next_tick, Some(first + 600_000_000));
}

/// The description, the time zone or the expression may change alone.
pub async fn registering_again_changes_whatever_it_says_anew(f: &Fixture) {
    let wanted = registration("0 0 * * *", Overlap::Allow, job().offer());
    register(f, "a", &wanted).await;
    let described = Registration { description: Some("nightly".to_owned()), ..wanted };
    assert!(!register(f, "a", &described).await.is_same);
    let schedule = Schedule::parse("0 0 * * *", "Asia/Tokyo").unwrap();
    let elsewhere = Registration { timezone: "Asia/Tokyo".to_owned(), schedule, ..described };
    let told = register(f, "a", &elsewhere).await;
    assert_eq!((told.is_same, told.cron.next_tick.unwrap() % DAY_MICROS), (false, 15 * 3_600_000_000));
    let schedule = Schedule::parse("0 9 * * *", "Asia/Tokyo").unwrap();
    let later = Registration { expression: "0 9 * * *".to_owned(), schedule, ..elsewhere };
    let told = register(f, "a", &later).await;
    assert_eq!((told.is_same, told.cron.next_tick.unwrap() % DAY_MICROS), (false, 0));
}
