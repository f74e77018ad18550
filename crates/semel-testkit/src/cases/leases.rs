//! Runs: heartbeats, ends, and what happens to an expired lease (SEMANTICS 3, OJS retry).

use std::time::Duration;

use semel_core::draft::{Draft, Full, Reads};
use semel_core::enqueue::Outcome;
use semel_core::job::{Ending, Head, NoteKind};
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::life::{self, Revived};
use semel_core::settle::{self, Refusal, Settled};
use semel_core::state::{State, StateSet};
use semel_core::trail::{Failure, Failures};
use semel_store::backend::Claim;
use semel_store::backend::Verdict::{Applied, Stale};

use crate::fixture::{Fixture, bearer, bytes, claim, done};
use crate::make::{job, key, keyed};

const SECOND: Duration = Duration::from_secs(1);

/// Nor does it move the execution timeout.
pub async fn a_heartbeat_moves_the_deadline_and_not_the_fence(f: &Fixture) {
    f.create(&job().times(10_000, 60_000).offer()).await;
    let (run, _) = f.claim_one().await;
    for _ in 0..5 {
        f.advance(SECOND * 9).await;
        let now = f.now().await;
        let beat = done(f.decide(|draft| settle::extend(draft, run.id, &bearer(&run), None)).await);
        assert_eq!(beat.fence, run.fence);
        let (lease, first) = (beat.lease.unwrap(), run.lease.as_ref().unwrap());
        assert_eq!(lease.visible_until, now.saturating_add(SECOND * 10));
        assert_eq!(lease.run_until, first.run_until);
        f.run_duties().await;
    }
    assert!(matches!(f.complete(&run).await, Settled::Done(_)));
}

/// Only the newest grant is valid.
pub async fn an_ack_with_an_old_lease_is_refused(f: &Fixture) {
    f.create(&job().offer()).await;
    let (first, _) = f.claim_one().await;
    f.advance(SECOND * 3600).await;
    f.run_duties().await;
    assert_eq!(f.complete(&first).await, Settled::Refused(Refusal::StaleLease(State::Available)));
    let (second, _) = f.claim_one().await;
    assert!(second.fence > first.fence);
    assert_eq!(f.complete(&first).await, Settled::Refused(Refusal::StaleLease(State::Active)));
    assert_eq!(f.fail(&first).await, Settled::Refused(Refusal::StaleLease(State::Active)));
    let cancelled = f.decide(|draft| life::cancel(draft, first.id, &bearer(&first))).await;
    assert_eq!(cancelled, Settled::Refused(Refusal::StaleLease(State::Active)));
    assert!(matches!(f.complete(&second).await, Settled::Done(_)));
    assert_eq!(f.complete(&first).await, Settled::Refused(Refusal::StaleLease(State::Completed)));
}

/// A request without a lease acts for the current one, unless it names another worker.
pub async fn another_worker_is_refused(f: &Fixture) {
    f.create(&job().offer()).await;
    let (run, _) = f.claim_one().await;
    let ack = |bearer: Bearer| async move {
        f.decide(|draft| settle::complete(draft, run.id, &bearer, None)).await
    };
    let other = Bearer { lease: None, worker: Some("another".into()) };
    assert_eq!(ack(other.clone()).await, Settled::Refused(Refusal::OtherWorker));
    let cancelled = f.decide(|draft| life::cancel(draft, run.id, &other)).await;
    assert_eq!(cancelled, Settled::Refused(Refusal::OtherWorker));
    let forged = Bearer { lease: Some(LeaseToken(1)), worker: None };
    assert_eq!(ack(forged).await, Settled::Refused(Refusal::StaleLease(State::Active)));
    assert!(matches!(ack(Bearer::default()).await, Settled::Done(_)));
    assert_eq!(ack(Bearer::default()).await, Settled::Refused(Refusal::WrongState(State::Completed)));
    // A worker that gave no name when it fetched may give one later: no other lease has that number.
    f.create(&job().offer()).await;
    let nameless = Claim { grant: Grant::new("".into(), None), ..claim(&["default"], 1) };
    let run = f.commit_all(Vec::new(), vec![nameless]).await.claims.remove(0).jobs.remove(0).0;
    let named = Bearer { lease: Some(LeaseToken(run.fence)), worker: Some("another".into()) };
    assert!(matches!(
        f.decide(|draft| settle::complete(draft, run.id, &named, None)).await,
        Settled::Done(_)
    ));
}

/// The worker lost the first answer.
pub async fn a_repeated_ack_is_answered_as_the_first_time(f: &Fixture) {
    f.create(&job().offer()).await;
    let (run, _) = f.claim_one().await;
    let result = bytes(r#"{"ok":1}"#);
    let ack = || f.decide(|draft| settle::complete(draft, run.id, &bearer(&run), Some(&result)));
    let first = done(ack().await);
    f.advance(SECOND).await;
    f.maintain().await;
    assert_eq!(ack().await, Settled::Repeated(Box::new(first.clone())));
    let (head, full) = f.full(run.id).await.unwrap();
    assert_eq!(head, first);
    assert_eq!(full.notes, [(NoteKind::Result, result.clone())]);
}

/// This holds also when the retry has come due since. A run that was given back has not failed.
pub async fn a_repeated_failure_is_answered_as_the_first_time(f: &Fixture) {
    f.create(&job().offer()).await;
    let (run, _) = f.claim_one().await;
    let failed = done(f.fail(&run).await);
    assert_eq!(f.fail(&run).await, Settled::Repeated(Box::new(failed.clone())));
    f.advance(failed.available_at.since(f.now().await)).await;
    f.run_duties().await;
    let due = f.head(run.id).await.unwrap();
    assert_eq!(due.state, State::Available);
    assert_eq!(f.fail(&run).await, Settled::Repeated(Box::new(due)));
    let (_, full) = f.full(run.id).await.unwrap();
    assert_eq!(failures(&full).len(), 1);
    let (second, _) = f.claim_one().await;
    done(f.decide(|draft| settle::give_back(draft, second.id, &bearer(&second))).await);
    assert_eq!(f.fail(&second).await, Settled::Refused(Refusal::WrongState(State::Available)));
}

/// The lost attempt counts: it was started.
pub async fn a_lease_that_ran_out_gives_the_job_to_another(f: &Fixture) {
    f.create(&job().times(5_000, 0).offer()).await;
    let (first, _) = f.claim_one().await;
    f.advance(SECOND * 5 - Duration::from_millis(1)).await;
    f.run_duties().await;
    assert_eq!(f.head(first.id).await.unwrap().state, State::Active);
    f.advance(Duration::from_millis(1)).await;
    f.run_duties().await;
    let waiting = f.head(first.id).await.unwrap();
    assert_eq!((waiting.state, &waiting.lease, waiting.started_at), (State::Available, &None, None));
    let (second, _) = f.claim_one().await;
    assert_eq!((second.id, second.attempt), (first.id, 2));
}

fn failures(full: &Full) -> Vec<Failure> {
    full.note(NoteKind::Failures).map(|text| Failures::decode(text).unwrap().0).unwrap_or_default()
}

/// Each lost attempt is noted beside the failures of other attempts; otherwise nobody could see why the next
/// one runs.
pub async fn a_lease_that_ran_out_is_noted_as_a_failure(f: &Fixture) {
    let created = f.create(&job().attempts(4).times(5_000, 0).offer()).await;
    for attempt in 1..=4_u32 {
        let (run, full) = f.claim_one().await;
        // The next worker gets the failure with the job.
        let last = failures(&full).last().map_or(0, |failure| failure.attempt);
        assert_eq!((run.attempt, last), (attempt, attempt - 1));
        if attempt == 2 {
            let failed = done(f.fail(&run).await);
            f.advance(failed.available_at.since(f.now().await)).await;
        } else {
            f.advance(SECOND * 5).await;
        }
        f.run_duties().await;
    }
    let (head, full) = f.full(created.id).await.unwrap();
    assert_eq!((head.state, head.attempt), (State::Discarded, 4));
    let noted = failures(&full);
    let told: Vec<_> = noted.iter().map(|one| (&*one.code, one.attempt, one.retry_delay_ms)).collect();
    let lost = "lease_expired";
    assert_eq!(told, [(lost, 1, Some(0)), ("boom", 2, Some(2_000)), (lost, 3, Some(0)), (lost, 4, None)]);
    assert!(noted.iter().all(|one| one.code != lost || one.error_type == lost), "{noted:?}");
    assert!(noted.is_sorted_by_key(|one| one.at), "{noted:?}");
}

/// The error is `lease_expired`.
pub async fn a_lease_lost_at_the_last_attempt_ends_the_job(f: &Fixture) {
    f.create(&keyed("a").attempts(1).times(5_000, 0).offer()).await;
    let (run, _) = f.claim_one().await;
    f.advance(SECOND * 5).await;
    f.run_duties().await;
    let (head, full) = f.full(run.id).await.unwrap();
    assert_eq!((head.state, head.ending), (State::Discarded, Some(Ending::Failed)));
    assert_eq!(failures(&full)[0].code, "lease_expired");
    assert_eq!(f.complete(&run).await, Settled::Refused(Refusal::StaleLease(State::Discarded)));
    f.create(&keyed("a").offer()).await;
}

/// A heartbeat does not extend the execution timeout.
pub async fn a_run_that_lasts_too_long_fails_by_timeout(f: &Fixture) {
    f.create(&job().times(60_000, 10_000).offer()).await;
    let (run, _) = f.claim_one().await;
    f.advance(SECOND * 9).await;
    done(f.decide(|draft| settle::extend(draft, run.id, &bearer(&run), Some(60_000))).await);
    f.advance(SECOND).await;
    f.run_duties().await;
    let (head, full) = f.full(run.id).await.unwrap();
    assert_eq!((head.state, head.attempt), (State::Retryable, 1));
    assert_eq!(failures(&full)[0].code, "timeout");
    assert_eq!(f.complete(&run).await, Settled::Refused(Refusal::StaleLease(State::Retryable)));
    // This holds also where the lease would end at that very moment.
    f.create(&job().times(10_000, 10_000).offer()).await;
    let (run, _) = f.claim_one().await;
    f.advance(SECOND * 10).await;
    f.run_duties().await;
    assert_eq!(f.head(run.id).await.unwrap().state, State::Retryable);
}

/// "A worker that gives a job back gives the attempt back."
pub async fn a_job_given_back_has_its_attempt_back(f: &Fixture) {
    f.create(&job().attempts(1).offer()).await;
    for _ in 0..3 {
        let (run, _) = f.claim_one().await;
        let back = done(f.decide(|draft| settle::give_back(draft, run.id, &bearer(&run))).await);
        assert_eq!((back.state, back.attempt, back.started_at), (State::Available, 0, None));
        let again = f.decide(|draft| settle::give_back(draft, run.id, &bearer(&run))).await;
        assert!(matches!(again, Settled::Repeated(_)));
    }
    assert_eq!(f.claim_one().await.0.attempt, 1);
}

/// The waits between attempts follow the job's policy, and all failures are noted.
pub async fn a_failed_job_is_tried_again_until_its_attempts_are_used_up(f: &Fixture) {
    f.create(&job().attempts(3).offer()).await;
    for attempt in 1..=3_u32 {
        let (run, full) = f.claim_one().await;
        assert_eq!((run.attempt, full.notes.len()), (attempt, usize::from(attempt > 1)));
        let failed_at = f.now().await;
        let after = done(f.fail(&run).await);
        if attempt < 3 {
            assert_eq!(after.available_at, failed_at.saturating_add(SECOND * attempt));
            f.advance(SECOND * attempt).await;
            f.run_duties().await;
        } else {
            assert_eq!((after.state, after.ending), (State::Discarded, Some(Ending::Failed)));
        }
    }
    assert!(f.claim("default", 1).await.jobs.is_empty());
}

/// It keeps its id and its history, and has all its attempts again.
pub async fn a_dead_letter_can_be_sent_back(f: &Fixture) {
    let want = keyed("a").attempts(1).dead_letter().states(StateSet::ALL);
    f.create(&want.offer()).await;
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    f.maintain().await;
    let revived = f.decide(|draft| life::revive(draft, run.id)).await;
    assert!(matches!(revived, Revived::Done(_)), "{revived:?}");
    assert_eq!(f.queue("default").await.unwrap().count(State::Discarded), 0);
    let (again, full) = f.claim_one().await;
    assert_eq!((again.id, again.attempt, full.notes.len()), (run.id, 1, 1));
    assert!(again.fence > run.fence);
    let ended = done(f.complete(&again).await);
    f.maintain().await;
    assert_eq!(f.head(run.id).await, Some(ended.clone()));
    assert_eq!(
        f.holders(ended.key.unwrap()).await.iter().map(|head| head.state).collect::<Vec<_>>(),
        [State::Completed]
    );
}

/// A manual retry is a new admission.
pub async fn a_dead_letter_whose_key_is_held_is_not_sent_back(f: &Fixture) {
    let want = keyed("a").attempts(1).dead_letter();
    f.create(&want.offer()).await;
    let (run, _) = f.claim_one().await;
    let dead = done(f.fail(&run).await);
    let live = f.create(&want.offer()).await;
    f.maintain().await;
    let revived = f.decide(|draft| life::revive(draft, run.id)).await;
    let Revived::Blocked { holder } = revived else { panic!("{revived:?}") };
    assert_eq!(holder.named(), Some(&live));
    assert_eq!(f.head(run.id).await, Some(dead));
}

/// The blocking job stays hidden if the letter's own policy or the blocking job's says so, as when the letter
/// was offered.
pub async fn a_dead_letter_that_is_not_sent_back_is_told_as_little_as_when_it_is_offered(f: &Fixture) {
    let disclose = |text: &str, how: &str| {
        keyed(text).attempts(1).dead_letter().policy(|spec| spec.disclose = Some(how.to_owned()))
    };
    for (text, letter, holder) in [("a", "never", "always"), ("b", "always", "never")] {
        f.create(&disclose(text, letter).offer()).await;
        let (run, _) = f.claim_one().await;
        f.fail(&run).await;
        let live = f.create(&disclose(text, holder).offer()).await;
        f.maintain().await;
        let revived = f.decide(|draft| life::revive(draft, run.id)).await;
        let Revived::Blocked { holder } = revived else { panic!("{revived:?}") };
        assert_eq!((holder.absorbed_by(), holder.named()), (live.id, None), "{text}");
        f.cancel(live.id).await;
    }
}

/// Jobs that came since were admitted without regard to it, and both would run. A job without a policy never
/// had a key.
pub async fn a_dead_letter_whose_key_was_released_is_not_sent_back(f: &Fixture) {
    let want = keyed("a").attempts(1).dead_letter().states(StateSet::ALL);
    f.create(&want.offer()).await;
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    f.maintain().await;
    f.decide(|draft| life::release_key(draft, key("a"))).await;
    let revive = |id| f.decide(move |draft| life::revive(draft, id));
    assert_eq!(revive(run.id).await, Revived::Refused(Refusal::KeyReleased));
    f.create(&want.offer()).await;
    assert_eq!(revive(run.id).await, Revived::Refused(Refusal::KeyReleased));
    assert_eq!(f.head(run.id).await.unwrap().ending, Some(Ending::DeadLetter));
    let live = f.claim_one().await.0;
    f.complete(&live).await;
    f.create(&job().attempts(1).dead_letter().offer()).await;
    let (keyless, _) = f.claim_one().await;
    f.fail(&keyless).await;
    assert!(matches!(revive(keyless.id).await, Revived::Done(_)));
}

/// The job keeps its key meanwhile, and only the newest lease may snooze it.
pub async fn a_snoozed_job_waits_for_its_time_and_has_its_attempt_back(f: &Fixture) {
    f.create(&keyed("a").offer()).await;
    let (run, _) = f.claim_one().await;
    let snooze = || f.decide(|draft| settle::snooze(draft, run.id, &bearer(&run), SECOND * 30));
    let began = f.now().await;
    let put_off = done(snooze().await);
    assert_eq!((put_off.state, put_off.attempt, &put_off.lease), (State::Scheduled, 0, &None));
    let waits = put_off.available_at.since(began);
    assert!(waits >= SECOND * 30 && waits < SECOND * 31, "{waits:?}");
    assert_eq!(snooze().await, Settled::Repeated(Box::new(put_off)));
    assert!(matches!(f.enqueue(&keyed("a").offer()).await, Outcome::Rejected { .. }));
    f.advance(SECOND * 29).await;
    f.run_duties().await;
    assert!(f.claim("default", 1).await.jobs.is_empty());
    f.advance(SECOND).await;
    f.run_duties().await;
    let (again, _) = f.claim_one().await;
    assert_eq!((again.id, again.attempt), (run.id, 1));
    assert_eq!(snooze().await, Settled::Refused(Refusal::StaleLease(State::Active)));
    assert!(matches!(f.complete(&again).await, Settled::Done(_)));
}

/// Only the newest lease may report progress.
pub async fn progress_is_kept_and_has_the_lease_last_as_a_heartbeat_does(f: &Fixture) {
    f.create(&job().times(10_000, 0).offer()).await;
    let (run, _) = f.claim_one().await;
    f.advance(SECOND).await;
    let half = bytes("0.5");
    let told = done(f.decide(|draft| settle::progress(draft, run.id, &bearer(&run), &half, None)).await);
    assert_eq!((told.fence, told.state), (run.fence, State::Active));
    let (before, after) = (run.lease.as_ref().unwrap(), told.lease.as_ref().unwrap());
    let longer = after.visible_until.since(before.visible_until);
    assert!(longer >= SECOND && longer < SECOND * 2, "{longer:?}");
    assert_eq!(after.run_until, before.run_until, "its time does not move");
    // A worker that fetched for a shorter time asks for it here too: dying, it delays its job no longer.
    let short = f.decide(|draft| settle::progress(draft, run.id, &bearer(&run), &half, Some(5_000)));
    let left = done(short.await).lease.unwrap().visible_until.since(f.now().await);
    assert!(left <= SECOND * 5, "{left:?}");
    let (_, full) = f.full(run.id).await.unwrap();
    assert_eq!(full.note(NoteKind::Progress), Some(&half));
    f.complete(&run).await;
    let late = f.decide(|draft| settle::progress(draft, run.id, &bearer(&run), &half, None)).await;
    assert_eq!(late, Settled::Refused(Refusal::WrongState(State::Completed)));
}

/// The retry policy says whether to retry; the worker may say when.
pub async fn a_worker_may_say_when_to_try_again(f: &Fixture) {
    f.create(&job().attempts(2).offer()).await;
    let report = settle::Report { retry_in: Some(SECOND * 77), ..settle::Report::default() };
    let (run, _) = f.claim_one().await;
    let began = f.now().await;
    let failed = done(f.decide(|draft| settle::fail(draft, run.id, &bearer(&run), &report)).await);
    let waits = failed.available_at.since(began);
    assert!(waits >= SECOND * 77 && waits < SECOND * 78, "{waits:?}");
    f.advance(SECOND * 77).await;
    f.run_duties().await;
    let (last, _) = f.claim_one().await;
    let failed = done(f.decide(|draft| settle::fail(draft, last.id, &bearer(&last), &report)).await);
    assert_eq!(failed.state, State::Discarded);
}

/// The lease is the newest one, but the request differs from the one that was carried out.
pub async fn an_end_is_repeated_by_the_request_that_made_it_alone(f: &Fixture) {
    let back = |run: &Head| {
        let (id, bearer) = (run.id, bearer(run));
        f.decide(move |draft| settle::give_back(draft, id, &bearer))
    };
    f.create(&job().attempts(1).offer()).await;
    let (run, _) = f.claim_one().await;
    let failed = done(f.fail(&run).await);
    assert_eq!(f.fail(&run).await, Settled::Repeated(Box::new(failed)));
    let refused = || Settled::Refused(Refusal::WrongState(State::Discarded));
    assert_eq!([f.complete(&run).await, back(&run).await], [refused(), refused()]);
    f.create(&job().offer()).await;
    let (run, _) = f.claim_one().await;
    done(f.complete(&run).await);
    let refused = || Settled::Refused(Refusal::WrongState(State::Completed));
    assert_eq!([f.fail(&run).await, back(&run).await], [refused(), refused()]);
}

/// The worker decides that, or the policy for the error's type or code.
pub async fn a_failure_that_is_not_to_be_tried_again_ends_the_job(f: &Fixture) {
    let report = |code: &str, error_type: &str, retryable| {
        let (code, error_type) = (code.to_owned(), error_type.to_owned());
        settle::Report { code, error_type, retryable, ..settle::Report::default() }
    };
    let want = job().body(|body| body.retry.non_retryable_errors = vec!["Auth.*".to_owned()]);
    for (report, state) in [
        (report("boom", "Other", None), State::Retryable),
        (report("boom", "Other", Some(true)), State::Retryable),
        (report("boom", "Other", Some(false)), State::Discarded),
        (report("boom", "Auth.Expired", None), State::Discarded),
        (report("Auth.Expired", "Other", None), State::Discarded),
    ] {
        f.create(&want.offer()).await;
        let (run, _) = f.claim_one().await;
        let failed = done(f.decide(|draft| settle::fail(draft, run.id, &bearer(&run), &report)).await);
        assert_eq!(failed.state, state, "{report:?}");
    }
}

/// Nothing of its former life remains except the record of it.
pub async fn a_dead_letter_that_is_sent_back_begins_anew(f: &Fixture) {
    let want = keyed("a").attempts(1).dead_letter().on_conflict("follow_up");
    f.create(&want.clone().expires(SECOND * 10).offer()).await;
    let (run, _) = f.claim_one().await;
    let next = f.create(&want.offer()).await;
    let dead = done(f.fail(&run).await);
    assert_eq!(dead.follow_up, Some(next.id));
    f.cancel(next.id).await;
    f.advance(SECOND * 20).await;
    let since = f.now().await;
    let revived = f.decide(|draft| life::revive(draft, run.id)).await;
    let Revived::Done(head) = revived else { panic!("{revived:?}") };
    assert_eq!((head.state, head.attempt, head.ending, head.follow_up), (State::Available, 0, None, None));
    assert_eq!([head.started_at, head.finished_at, head.until, head.expires_at], [None; 4]);
    assert!(head.available_at >= since);
    assert_eq!(f.claim_one().await.0.id, run.id);
}

/// They conflict at the job's version, though neither changes its state or fence.
pub async fn of_two_who_tell_progress_at_once_one_tells_it_again(f: &Fixture) {
    f.create(&job().offer()).await;
    let (run, _) = f.claim_one().await;
    let half = bytes("0.5");
    let reads = Reads { heads: vec![run.id], ..Reads::default() };
    let mut groups = Vec::new();
    for _ in 0..2 {
        let told = |draft: &mut Draft| settle::progress(draft, run.id, &bearer(&run), &half, None);
        groups.push(f.decided(&reads, told).await.1);
    }
    assert_eq!(f.commit(groups).await, [Applied, Stale]);
}

/// A request that means a waiting job leaves a run alone; a waiting job is ended by any request, even one
/// with the job's last lease.
pub async fn a_job_is_cancelled_while_it_waits(f: &Fixture) {
    f.create(&job().offer()).await;
    let (run, _) = f.claim_one().await;
    let cancel = || f.decide(|draft| life::cancel_waiting(draft, run.id, &bearer(&run)));
    assert_eq!(cancel().await, Settled::Refused(Refusal::WrongState(State::Active)));
    f.fail(&run).await;
    assert_eq!(done(cancel().await).state, State::Cancelled);
}
