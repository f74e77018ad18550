//! How long ended jobs are kept, by the rules in force when they end (SEMANTICS 3).

use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::{Draft, Missing};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::job::{Ending, Head};
use semel_core::lease::Bearer;
use semel_core::life::{self, Revived};
use semel_core::retention::{Keep, Retention, keep_for};
use semel_core::settle::{self, Report, Settled};
use semel_core::slot::Due;
use semel_core::state::{State, StateSet};
use semel_core::time::Timestamp;

use super::admission::{admitted, rejected};
use crate::fixture::{Fixture, bearer, done};
use crate::make::{Want, job, key, keyed};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// The same time for every way to end.
fn all(time: Duration) -> Keep {
    let period = Some(keep_for(time, "").unwrap());
    Keep { completed: period, cancelled: period, discarded: period }
}

pub(crate) fn rules(time: Duration) -> Arc<Retention> {
    Arc::new(Retention::new(all(time)))
}

/// Takes a decision under these rules.
async fn by<T>(
    f: &Fixture,
    rules: &Arc<Retention>,
    mut decide: impl FnMut(&mut Draft) -> Result<T, Missing>,
) -> T {
    let decide = |draft: &mut Draft| {
        draft.keep_by(Arc::clone(rules));
        decide(draft)
    };
    f.decide(decide).await
}

/// Creates a job, runs it and completes it, under these rules.
pub(crate) async fn finished(f: &Fixture, rules: &Arc<Retention>, want: &Want) -> Head {
    let head = f.create(&want.offer()).await;
    let mut claimed = f.claim(head.queue.as_str(), 100).await.jobs;
    claimed.retain(|(claimed, _)| claimed.id == head.id);
    let bearer = bearer(&claimed[0].0);
    done(by(f, rules, |draft| settle::complete(draft, head.id, &bearer, None)).await)
}

/// Claims the next job and fails it, under these rules.
async fn failed(f: &Fixture, rules: &Arc<Retention>) -> Head {
    let (run, _) = f.claim_one().await;
    let bearer = bearer(&run);
    done(by(f, rules, |draft| settle::fail(draft, run.id, &bearer, &Report::default())).await)
}

/// Purges what is due at `after` past `at`, and returns which of these jobs are still there.
async fn kept(f: &Fixture, at: Timestamp, after: Duration, jobs: &[&Head]) -> Vec<JobId> {
    f.advance(at.saturating_add(after).since(f.now().await)).await;
    f.purge().await;
    assert!(f.due(Due::Purge, 10).await.is_empty(), "nothing is due that is not purged");
    let mut there = Vec::new();
    for job in jobs {
        there.extend(f.head(job.id).await.map(|head| head.id));
    }
    there
}

/// The time may be shorter or longer than the default, whatever rules apply later.
pub async fn a_job_is_kept_as_long_as_was_decided_when_it_ended(f: &Fixture) {
    let short = finished(f, &rules(HOUR), &job()).await;
    let by_default = f.finished(&job().offer()).await;
    let long = finished(f, &rules(DAY * 3), &keyed("a")).await;
    let until = |head: &Head| head.finished_at.unwrap();
    assert_eq!(short.kept_until(), Some(until(&short).saturating_add(HOUR)));
    assert_eq!(by_default.kept_until(), None);
    assert_eq!(long.kept_until(), Some(until(&long).saturating_add(DAY * 3)));
    let (jobs, at) = ([&short, &by_default, &long], until(&long));
    f.maintain().await;
    for head in jobs {
        assert_eq!(f.head(head.id).await.as_ref(), Some(head));
    }
    assert_eq!(kept(f, until(&short), HOUR - SECOND, &jobs).await.len(), 3);
    assert_eq!(kept(f, at, HOUR, &jobs).await, [by_default.id, long.id]);
    assert_eq!(kept(f, until(&by_default), DAY - SECOND, &jobs).await, [by_default.id, long.id]);
    assert_eq!(kept(f, at, DAY, &jobs).await, [long.id]);
    assert_eq!(kept(f, at, DAY * 3 - SECOND, &jobs).await, [long.id]);
    assert!(kept(f, at, DAY * 3, &jobs).await.is_empty());
}

/// The rule for the job's type decides, else that for its queue, else that for all.
pub async fn every_way_to_end_has_a_time_of_its_own(f: &Fixture) {
    let hours = |hours: u32| Some(keep_for(HOUR * hours, "").unwrap());
    let mut rules = Retention::new(Keep { completed: hours(1), cancelled: hours(2), discarded: hours(3) });
    let queue = QueueName::from_stored("billing");
    rules.keep_queue(&queue, Keep { cancelled: hours(4), ..Keep::default() });
    rules.keep_type(&JobType::from_stored("a.b"), Keep { cancelled: hours(5), ..Keep::default() });
    let rules = Arc::new(rules);
    let ended_after = |head: &Head| head.kept_until().map(|until| until.since(head.finished_at.unwrap()));
    let cancelled = |id| {
        let rules = &rules;
        async move { done(by(f, rules, |draft| life::cancel(draft, id, &Bearer::default())).await) }
    };
    assert_eq!(ended_after(&finished(f, &rules, &job()).await), Some(HOUR));
    for (want, hours) in [
        (job(), 2),
        (job().queue("billing"), 4),
        (job().of_type("a.b"), 5),
        (job().of_type("a.b").queue("billing"), 5),
    ] {
        let head = f.create(&want.offer()).await;
        assert_eq!(ended_after(&cancelled(head.id).await), Some(HOUR * hours));
    }
    f.create(&job().attempts(1).offer()).await;
    assert_eq!(ended_after(&failed(f, &rules).await), Some(HOUR * 3));
    // Expired unstarted, lost by its worker, or replaced.
    let expired = f.create(&job().expires(SECOND).offer()).await;
    f.advance(SECOND).await;
    assert!(by(f, &rules, |draft| life::expire(draft, expired.id)).await);
    let lost = f.create(&job().attempts(1).times(1_000, 0).offer()).await;
    f.claim_one().await;
    f.advance(SECOND * 2).await;
    assert!(matches!(by(f, &rules, |draft| settle::reap(draft, lost.id)).await, Some(Settled::Done(_))));
    for id in [expired.id, lost.id] {
        assert_eq!(ended_after(&f.head(id).await.unwrap()), Some(HOUR * 3));
    }
    let replaced = f.create(&keyed("a").offer()).await;
    let offer = keyed("a").on_conflict("replace").offer();
    by(f, &rules, |draft| semel_core::enqueue::enqueue(draft, &offer)).await;
    let replaced = f.head(replaced.id).await.unwrap();
    assert_eq!((replaced.ending, ended_after(&replaced)), (Some(Ending::Replaced), Some(HOUR * 2)));
}

/// However short its job is kept, a key is held for as long as its policy says.
pub async fn a_key_is_never_free_early_however_short_its_job_is_kept(f: &Fixture) {
    let moment = rules(SECOND);
    let forever = keyed("forever").states(StateSet::ALL);
    let week = keyed("week").states(StateSet::ALL).period(DAY * 7, "created");
    let sliding = keyed("sliding").states(StateSet::ALL).period(DAY * 7, "last_duplicate");
    let mut ended = Vec::new();
    for want in [&forever, &week, &sliding] {
        ended.push(finished(f, &moment, want).await);
    }
    let at = ended[0].finished_at.unwrap();
    let jobs = [&ended[0], &ended[1], &ended[2]];
    assert!(kept(f, at, SECOND * 2, &jobs).await.is_empty(), "all bodies are gone");
    for after in [SECOND * 3, DAY * 7 - SECOND] {
        f.advance(at.saturating_add(after).since(f.now().await)).await;
        f.purge().await;
        for (want, head) in [&forever, &week, &sliding].into_iter().zip(&ended) {
            assert_eq!(rejected(f, want).await.id, head.id);
        }
    }
    f.advance(SECOND * 10).await;
    f.purge().await;
    assert!(admitted(f, &week).await, "its own window is over");
    assert_eq!(rejected(f, &sliding).await.id, ended[2].id, "a duplicate has renewed it");
    f.advance(DAY * 1_000).await;
    assert_eq!(rejected(f, &forever).await.id, ended[0].id);
}

/// A policy that looks further back than the holders' own sees what retention kept. Of two holders, one that
/// is deleted sooner never stands in for the other, wherever they are.
pub async fn a_job_that_is_kept_longer_is_hidden_by_no_later_one(f: &Fixture) {
    let strict = keyed("a").states(StateSet::ALL);
    let long = finished(f, &rules(DAY * 3), &keyed("a")).await;
    f.maintain().await;
    f.advance(SECOND).await;
    // It looks at live holders only, so nothing blocks it.
    let by_default = f.finished(&keyed("a").offer()).await;
    f.maintain().await;
    f.advance(SECOND).await;
    let short = finished(f, &rules(HOUR), &keyed("a")).await;
    f.maintain().await;
    let at = short.finished_at.unwrap();
    let jobs = [&long, &by_default, &short];
    assert_eq!(rejected(f, &strict).await.id, short.id);
    assert_eq!(kept(f, at, HOUR, &jobs).await, [long.id, by_default.id]);
    assert_eq!(rejected(f, &strict).await.id, by_default.id);
    assert_eq!(kept(f, at, DAY, &jobs).await, [long.id]);
    assert_eq!(rejected(f, &strict).await.id, long.id);
    assert!(kept(f, at, DAY * 3, &jobs).await.is_empty());
    assert!(admitted(f, &strict).await);
}

/// A later holder that is kept as long stands in for those before it, also where that is not the default
/// time.
pub async fn many_uses_of_one_key_leave_few_holders_however_long_they_are_kept(f: &Fixture) {
    for (text, rules) in [("short", rules(HOUR)), ("long", rules(DAY * 3))] {
        let mut last = None;
        for _ in 0..20 {
            // The earlier holders are filed, this one is not.
            f.maintain().await;
            f.advance(SECOND).await;
            last = Some(finished(f, &rules, &keyed(text)).await.id);
        }
        assert_eq!(f.holders(key(text)).await.len(), 1, "{text}");
        assert_eq!(Some(rejected(f, &keyed(text).states(StateSet::ALL)).await.id), last);
    }
}

/// The stored retention of its first end is not mistaken for a burned lease.
pub async fn a_job_that_lives_again_has_forgotten_how_long_it_was_to_be_kept(f: &Fixture) {
    let rules = rules(DAY * 1_000);
    let first = f.create(&keyed("a").attempts(1).dead_letter().offer()).await;
    let ended = failed(f, &rules).await;
    assert_eq!((ended.run_may_last_until(), ended.burned_until()), (None, None));
    assert!(ended.kept_until().is_some());
    f.maintain().await;
    assert!(matches!(f.decide(|draft| life::revive(draft, first.id)).await, Revived::Done(_)));
    let again = f.head(first.id).await.unwrap();
    assert_eq!((again.until, again.purge_at(), again.run_may_last_until()), (None, None, None));
    // A replacement has no lease to wait for.
    let offer =
        keyed("a").on_conflict("replace").policy(|spec| spec.when_active = Some("wait".to_owned())).offer();
    let new = f.create(&offer).await;
    assert_eq!((new.state, new.until), (State::Available, None));
    // It has ended again, under the default rules.
    let replaced = f.head(first.id).await.unwrap();
    assert_eq!((replaced.state, replaced.kept_until()), (State::Cancelled, None));
    assert!(kept(f, replaced.finished_at.unwrap(), DAY, &[&replaced]).await.is_empty());
}

/// A replaced run passes its lease's end on to its replacement; the replacement's own end says nothing of it.
pub async fn a_burned_lease_is_not_taken_for_how_long_a_job_is_kept(f: &Fixture) {
    for (text, rules, kept) in [("a", Arc::default(), DAY), ("b", rules(DAY * 2), DAY * 2)] {
        f.create(&keyed(text).offer()).await;
        let (run, _) = f.claim_one().await;
        let ends_at = run.lease.as_ref().unwrap().ends_at();
        let new = f.create(&keyed(text).on_conflict("replace").offer()).await;
        assert_eq!((new.burned_until(), new.kept_until()), (Some(ends_at), None));
        // It ends while that lease would still be running.
        let (next, _) = f.claim_one().await;
        assert_eq!((next.id, next.burned_until()), (new.id, Some(ends_at)));
        let bearer = bearer(&next);
        let ended = done(by(f, &rules, |draft| settle::complete(draft, next.id, &bearer, None)).await);
        assert_eq!(ended.purge_at().unwrap().since(ended.finished_at.unwrap()), kept);
        assert_eq!(ended.burned_until(), None);
    }
}
