//! Skip what is already going to happen, but never lose the last request (SEMANTICS 4).

use std::time::Duration;

use semel_core::body::Body;
use semel_core::draft::each;
use semel_core::enqueue::{Counts, Outcome};
use semel_core::follow_up::hold_again;
use semel_core::ident::JobId;
use semel_core::job::{Head, NoteKind, Role};
use semel_core::lease::Unclaimable;
use semel_core::life;
use semel_core::settle::{self, Refusal, Settled};
use semel_core::state::{State, StateSet};
use semel_core::trail::Payload;

use crate::fixture::{Fixture, bearer};
use crate::make::{Want, foreign_id, keyed};

const SECOND: Duration = Duration::from_secs(1);

fn wish(args: &str) -> Want {
    keyed("a").on_conflict("follow_up").args(args)
}

async fn args(f: &Fixture, head: &Head) -> String {
    let (_, full) = f.full(head.id).await.unwrap();
    full.note(NoteKind::Payload)
        .map(|text| Payload::decode(text).unwrap().args.get().to_owned())
        .unwrap_or_default()
}

async fn followed(f: &Fixture, want: &Want) -> Head {
    match f.enqueue(&want.offer()).await {
        Outcome::FollowUp(head) => *head,
        other => panic!("no follow-up: {other:?}"),
    }
}

/// The job has not been started, so running it with the newer args is enough.
pub async fn a_waiting_job_is_overwritten(f: &Fixture) {
    let first = f.create(&wish("[1]").offer()).await;
    let secret = vec!["/args/0".to_owned()];
    let outcome = f.enqueue(&wish("[2]").body(|body| body.sensitive = secret.clone()).offer()).await;
    assert!(matches!(&outcome, Outcome::Amended(head) if head.id == first.id), "{outcome:?}");
    assert_eq!(Counts::of([&outcome]), Counts { skipped: 1, ..Counts::default() });
    assert_eq!(args(f, &first).await, "[2]");
    let (_, full) = f.claim_one().await;
    let payload = Payload::decode(full.note(NoteKind::Payload).unwrap()).unwrap();
    assert_eq!(payload.sensitive, Some(secret), "of the args that came with it");
    assert_eq!(f.queue("default").await.unwrap().created, 1);
}

/// Workers of the holder's type would get args of another type, and the right workers would never get the
/// request.
pub async fn a_request_takes_over_no_job_of_another_type(f: &Fixture) {
    let other = |args: &str| wish(args).of_type("other");
    let refused = async |want: Want, by: &Head| {
        let outcome = f.enqueue(&want.offer()).await;
        let Outcome::Mismatch { holder, pointers } = &outcome else { panic!("{outcome:?}") };
        assert_eq!((holder.named().unwrap().id, &pointers[..]), (by.id, &["/type".to_owned()][..]));
    };
    let first = f.create(&wish("[1]").offer()).await;
    refused(other("[2]"), &first).await;
    let (run, full) = f.claim_one().await;
    assert!(full.note(NoteKind::Payload).is_none());
    let next = followed(f, &other("[3]")).await;
    refused(wish("[4]"), &next).await;
    let amended = f.enqueue(&other("[5]").offer()).await;
    assert!(matches!(&amended, Outcome::Amended(head) if head.id == next.id), "{amended:?}");
    f.complete(&run).await;
    let (run, _) = f.claim_one().await;
    assert_eq!((run.id, args(f, &run).await), (next.id, "[5]".to_owned()));
}

/// The follow-up is released in the very commit that ends the run.
pub async fn a_started_job_gets_a_follow_up_that_is_released_with_its_end(f: &Fixture) {
    let first = f.create(&wish("[1]").offer()).await;
    let (run, _) = f.claim_one().await;
    let next = followed(f, &wish("[2]")).await;
    assert_eq!((next.state, next.role), (State::Pending, Role::FollowUp));
    assert_eq!(f.head(first.id).await.unwrap().fence, run.fence, "a follow-up burns no lease");
    assert!(f.claim("default", 5).await.jobs.is_empty());
    assert!(matches!(f.complete(&run).await, Settled::Done(_)));
    assert_eq!(f.head(next.id).await.unwrap().state, State::Available);
    assert_eq!(f.claim_one().await.0.id, next.id);
    // Both go on to record which came after which.
    assert_eq!(f.head(first.id).await.unwrap().follow_up, Some(next.id));
    let (_, full) = f.full(next.id).await.unwrap();
    assert_eq!(Body::decode(&full.body).unwrap().lineage.follow_up_of, [first.id]);
}

/// Cancelled, failed, or lost at the last attempt; a retry is not an end.
pub async fn a_follow_up_is_released_by_whatever_end(f: &Fixture) {
    for way in ["cancel", "fail", "lease", "retry"] {
        let want = |text: &str| {
            keyed(way).on_conflict("follow_up").args(text).attempts(if way == "retry" { 2 } else { 1 })
        };
        f.create(&want("[1]").offer()).await;
        let (run, _) = f.claim_one().await;
        let next = followed(f, &want("[2]")).await;
        match way {
            "cancel" => drop(f.cancel(run.id).await),
            "fail" => drop(f.fail(&run).await),
            "lease" => {
                f.advance(SECOND * 3600).await;
                f.run_duties().await;
            }
            _ => {
                f.fail(&run).await;
                assert_eq!(f.head(next.id).await.unwrap().state, State::Pending, "it will be tried again");
                f.cancel(run.id).await;
            }
        }
        assert_eq!(f.head(next.id).await.unwrap().state, State::Available, "{way}");
        f.cancel(next.id).await;
    }
}

/// The follow-up's own start time still counts if it lies ahead when the run ends, and not if it has passed.
pub async fn a_follow_up_keeps_its_own_time(f: &Fixture) {
    f.create(&wish("[1]").offer()).await;
    let (run, _) = f.claim_one().await;
    let late = followed(f, &wish("[2]").later(SECOND * 60)).await;
    assert_eq!(
        (late.state, late.available_at),
        (State::Pending, late.created_at.saturating_add(SECOND * 60))
    );
    f.complete(&run).await;
    let released = f.head(late.id).await.unwrap();
    assert_eq!((released.state, released.available_at), (State::Scheduled, late.available_at));
    f.advance(SECOND * 60).await;
    f.run_duties().await;
    let (run, _) = f.claim_one().await;
    assert_eq!(run.id, late.id);
    let early = followed(f, &wish("[3]").later(SECOND)).await;
    f.advance(SECOND * 2).await;
    assert_eq!(f.head(early.id).await.unwrap().state, State::Pending, "the run goes on");
    f.complete(&run).await;
    assert_eq!(f.claim_one().await.0.id, early.id);
}

/// The answer is 200 with the follow-up's id.
pub async fn a_second_request_overwrites_the_follow_up(f: &Fixture) {
    f.create(&wish("[1]").offer()).await;
    let (run, _) = f.claim_one().await;
    let next = followed(f, &wish("[2]")).await;
    let outcome = f.enqueue(&wish("[3]").offer()).await;
    assert!(matches!(&outcome, Outcome::Amended(head) if head.id == next.id), "{outcome:?}");
    assert_eq!(args(f, &next).await, "[3]");
    f.complete(&run).await;
    let (second, full) = f.claim_one().await;
    assert_eq!(second.id, next.id);
    assert_eq!(Payload::decode(full.note(NoteKind::Payload).unwrap()).unwrap().args.get(), "[3]");
    let third = followed(f, &wish("[4]")).await;
    assert_ne!(third.id, next.id);
}

/// One request's expiry does not lose the other: the later of the two applies, and no expiry means never.
pub async fn a_request_is_not_lost_by_when_another_expires(f: &Fixture) {
    for is_started in [false, true] {
        for (own, offered, expected) in [
            (Some(10), None, None),
            (None, Some(10), None),
            (Some(10), Some(20), Some(20)),
            (Some(20), Some(10), Some(20)),
        ] {
            let asked = |seconds: Option<u32>, args: &str| {
                let want = wish(args);
                seconds.map_or(want.clone(), |seconds| want.expires(SECOND * seconds)).offer()
            };
            let run = if is_started {
                f.create(&wish("[0]").offer()).await;
                Some(f.claim_one().await.0)
            } else {
                None
            };
            let waiting = f.create(&asked(own, "[1]")).await;
            let Outcome::Amended(amended) = f.enqueue(&asked(offered, "[2]")).await else {
                panic!("not amended")
            };
            assert_eq!(amended.id, waiting.id);
            let left = amended.expires_at.map(|at| at.since(waiting.created_at).as_secs());
            assert_eq!(left, expected);
            f.advance(SECOND * 15).await;
            f.run_duties().await;
            if let Some(run) = &run {
                f.complete(run).await;
            }
            let (head, _) = f.claim_one().await;
            assert_eq!(head.id, waiting.id);
            f.complete(&head).await;
        }
    }
    // A follow-up that will never be started blocks nobody, even before the expiry duty has reached it.
    f.create(&wish("[0]").offer()).await;
    let (run, _) = f.claim_one().await;
    followed(f, &wish("[1]").expires(SECOND * 10)).await;
    f.advance(SECOND * 10).await;
    let next = followed(f, &wish("[2]")).await;
    f.complete(&run).await;
    assert_eq!(f.claim_one().await.0.id, next.id);
}

/// Callers' policies may differ, so several runs of a key may be under way.
pub async fn a_follow_up_waits_for_every_started_holder(f: &Fixture) {
    let other = keyed("a").states(StateSet::EMPTY.with(State::Discarded));
    f.create(&other.offer()).await;
    f.create(&other.offer()).await;
    let runs = f.claim("default", 2).await.jobs;
    let next = followed(f, &wish("[1]")).await;
    f.complete(&runs[0].0).await;
    assert_eq!(f.head(next.id).await.unwrap().state, State::Pending);
    f.complete(&runs[1].0).await;
    assert_eq!(f.head(next.id).await.unwrap().state, State::Available);
}

/// After the release, a job of the key under another policy may have been started.
pub async fn a_follow_up_never_overlaps_a_run_of_its_key(f: &Fixture) {
    f.create(&wish("[1]").offer()).await;
    let (run, _) = f.claim_one().await;
    let next = followed(f, &wish("[2]")).await;
    f.complete(&run).await;
    f.create(&keyed("a").states(StateSet::EMPTY.with(State::Discarded)).priority(9).offer()).await;
    // Both are ready; the other job goes first, and that very claim holds the follow-up back.
    let claimed = f.claim("default", 5).await;
    assert_eq!(claimed.jobs.len(), 1);
    assert_eq!(claimed.unclaimable, [(next.id, Unclaimable::Overlaps)]);
    assert_eq!(f.claim("default", 5).await.unclaimable, [(next.id, Unclaimable::Overlaps)]);
    assert!(f.decide(|draft| hold_again(draft, next.id)).await);
    assert_eq!(f.head(next.id).await.unwrap().state, State::Pending);
    f.complete(&claimed.jobs[0].0).await;
    assert_eq!(f.claim_one().await.0.id, next.id);
}

/// The same request id is recognised even after the holder's args were overwritten.
pub async fn a_request_absorbed_before_is_answered_without_writing(f: &Fixture) {
    let first = f.create(&wish("[1]").offer()).await;
    f.enqueue(&wish("[2]").id(foreign_id(2)).offer()).await;
    f.enqueue(&wish("[3]").id(foreign_id(3)).offer()).await;
    let before = f.head(first.id).await;
    let again = f.enqueue(&wish("[2]").id(foreign_id(2)).offer()).await;
    assert!(matches!(again, Outcome::Amended(_)));
    assert_eq!(f.head(first.id).await, before);
    assert_eq!(args(f, &first).await, "[3]");
}

/// The answer is 409.
pub async fn a_follow_up_is_not_activated_by_hand(f: &Fixture) {
    f.create(&wish("[1]").offer()).await;
    let (run, _) = f.claim_one().await;
    let next = followed(f, &wish("[2]")).await;
    let refused = f.decide(|draft| life::activate(draft, next.id)).await;
    assert_eq!(refused, Settled::Refused(Refusal::AwaitsRun));
    let plain = f.create(&keyed("b").pending().offer()).await;
    assert!(matches!(f.decide(|draft| life::activate(draft, plain.id)).await, Settled::Done(_)));
    assert_eq!(f.claim_one().await.0.id, plain.id);
    // A released follow-up waits for nobody.
    f.complete(&run).await;
    let refused = f.decide(|draft| life::activate(draft, next.id)).await;
    assert_eq!(refused, Settled::Refused(Refusal::WrongState(State::Available)));
}

/// A follow-up that was started, lost its worker and met another run of its key waits for that run to end. A
/// later request waits for both, and neither is forgotten.
pub async fn a_follow_up_that_waits_again_goes_before_the_next_one(f: &Fixture) {
    let followed = keyed("a").on_conflict("follow_up");
    f.create(&followed.offer()).await;
    let (run, _) = f.claim_one().await;
    let first = f.create(&followed.offer()).await;
    f.complete(&run).await;
    let (started, _) = f.claim_one().await;
    assert_eq!(started.id, first.id);
    // Another policy ignores runs, and has a run of its own.
    let waiting = StateSet::EMPTY.with(State::Scheduled).with(State::Available);
    f.create(&keyed("a").states(waiting).times(3_600_000, 3_600_000).offer()).await;
    let (other, _) = f.claim_one().await;
    f.advance(Duration::from_secs(200)).await;
    f.run_duties().await;
    assert_eq!(f.head(first.id).await.unwrap().state, State::Available);
    let claimed = f.claim("default", 1).await;
    assert_eq!(claimed.unclaimable, [(first.id, Unclaimable::Overlaps)]);
    assert!(f.decide(|draft| hold_again(draft, first.id)).await);
    let second = f.create(&followed.offer()).await;
    assert_eq!(second.role, Role::FollowUp);
    f.complete(&other).await;
    let (again, _) = f.claim_one().await;
    assert_eq!(again.id, first.id, "it is let go by the run it met");
    assert_eq!(f.head(second.id).await.unwrap().state, State::Pending);
    f.complete(&again).await;
    assert_eq!(f.claim_one().await.0.id, second.id, "and the last request is never lost");
}

/// The same when a third run, begun after the follow-up was put back, ends first: it must not hand the later
/// request on to a job that never releases the other.
pub async fn a_run_that_ends_first_does_not_cut_off_one_that_waits_again(f: &Fixture) {
    let followed = keyed("a").on_conflict("follow_up");
    f.create(&followed.offer()).await;
    let (run, _) = f.claim_one().await;
    let first = f.create(&followed.offer()).await;
    f.complete(&run).await;
    f.claim_one().await;
    // Another policy ignores runs, and has several of its own.
    let waiting = StateSet::EMPTY.with(State::Scheduled).with(State::Available);
    let beside = || keyed("a").states(waiting).times(3_600_000, 3_600_000).offer();
    f.create(&beside()).await;
    let (other, _) = f.claim_one().await;
    f.advance(Duration::from_secs(200)).await;
    f.run_duties().await;
    assert_eq!(f.claim("default", 1).await.unclaimable, [(first.id, Unclaimable::Overlaps)]);
    assert!(f.decide(|draft| hold_again(draft, first.id)).await);
    f.create(&beside()).await;
    let (third, _) = f.claim_one().await;
    let second = f.create(&followed.offer()).await;
    f.complete(&third).await;
    f.complete(&other).await;
    let (again, _) = f.claim_one().await;
    assert_eq!(again.id, first.id, "it is let go by the run it met");
    assert_eq!(f.head(second.id).await.unwrap().state, State::Pending);
    f.complete(&again).await;
    assert_eq!(f.claim_one().await.0.id, second.id);
}

/// Starts a job of the key whose policy ignores all holders, with priority over all others.
async fn run_beside(f: &Fixture, key: &str) -> Head {
    let minds_nobody = StateSet::EMPTY.with(State::Discarded);
    let head = f.create(&keyed(key).states(minds_nobody).priority(9).offer()).await;
    let (run, _) = f.claim_one().await;
    assert_eq!(run.id, head.id);
    run
}

/// Two ready follow-ups of one key: the worker of the first gave it back while the second waited for it and
/// for another run.
async fn two_that_are_ready(f: &Fixture, key: &str) -> [JobId; 2] {
    let want = keyed(key).on_conflict("follow_up");
    f.create(&want.offer()).await;
    let (run, _) = f.claim_one().await;
    let first = followed(f, &want).await;
    f.complete(&run).await;
    let (begun, _) = f.claim_one().await;
    assert_eq!(begun.id, first.id);
    let other = run_beside(f, key).await;
    let second = followed(f, &want).await;
    let given_back = f.decide(|draft| settle::give_back(draft, begun.id, &bearer(&begun))).await;
    assert!(matches!(given_back, Settled::Done(_)), "{given_back:?}");
    f.complete(&other).await;
    for id in [first.id, second.id] {
        assert_eq!(f.head(id).await.unwrap().state, State::Available);
    }
    [first.id, second.id]
}

/// Holds both follow-ups back for a run of their key in one claim, ends that run, and returns the follow-ups
/// in the order in which they then run.
async fn held_and_run(f: &Fixture, key: &str, order: [JobId; 2]) -> Vec<JobId> {
    let run = run_beside(f, key).await;
    let claimed = f.claim("default", 5).await;
    assert!(claimed.jobs.is_empty());
    let mut met = claimed.unclaimable;
    met.sort_by_key(|(id, _)| order.iter().position(|known| known == id));
    assert_eq!(met, order.map(|id| (id, Unclaimable::Overlaps)));
    let held = f.decide(|draft| each(order, |id| hold_again(draft, id))).await;
    assert_eq!(held, [true; 2]);
    f.complete(&run).await;
    let mut ran = Vec::new();
    for _ in order {
        let mut claimed = f.claim("default", 5).await;
        assert_eq!(claimed.jobs.len(), 1, "one of them waits for ever: {ran:?} ran");
        let (head, _) = claimed.jobs.remove(0);
        assert!(matches!(f.complete(&head).await, Settled::Done(_)));
        ran.push(head.id);
    }
    ran
}

/// Whichever is put back first, the older runs first and the other after it.
pub async fn two_follow_ups_that_meet_a_run_are_both_let_go(f: &Fixture) {
    for (key, is_newer_first) in [("older first", false), ("newer first", true)] {
        let [first, second] = two_that_are_ready(f, key).await;
        let order = if is_newer_first { [second, first] } else { [first, second] };
        assert_eq!(held_and_run(f, key, order).await, [first, second], "{key}");
    }
}

/// Both were started before and so count as runs that have not ended; still neither waits for the other.
pub async fn two_started_follow_ups_that_meet_a_run_are_both_let_go(f: &Fixture) {
    for (key, is_newer_first) in [("older first", false), ("newer first", true)] {
        let [first, second] = two_that_are_ready(f, key).await;
        for _ in 0..2 {
            f.claim_one().await;
            f.advance(Duration::from_secs(200)).await;
            f.run_duties().await;
        }
        for id in [first, second] {
            let head = f.head(id).await.unwrap();
            assert_eq!((head.state, head.attempt), (State::Available, 1));
        }
        let order = if is_newer_first { [second, first] } else { [first, second] };
        assert_eq!(held_and_run(f, key, order).await, [first, second], "{key}");
    }
}

/// The follow-up that was given back waits for a run again, behind a started one that had waited for it.
pub async fn a_follow_up_that_was_given_back_waits_behind_one_that_was_started(f: &Fixture) {
    let [first, second] = two_that_are_ready(f, "a").await;
    let mut begun = Vec::new();
    for id in [first, second] {
        let (run, _) = f.claim_one().await;
        assert_eq!(run.id, id);
        f.advance(Duration::from_secs(200)).await;
        if id == first {
            f.run_duties().await;
        }
        begun.push(run);
    }
    // The first meets the run of the second, whose worker is late, and waits for it.
    let late = begun.pop().unwrap();
    assert!(f.decide(|draft| hold_again(draft, first)).await);
    let given_back = f.decide(|draft| settle::give_back(draft, late.id, &bearer(&late))).await;
    assert!(matches!(given_back, Settled::Done(_)), "{given_back:?}");
    let run = run_beside(f, "a").await;
    assert!(f.decide(|draft| hold_again(draft, second)).await);
    f.complete(&run).await;
    let (started, _) = f.claim_one().await;
    assert_eq!(started.id, first, "its run has not ended yet");
    assert_eq!(f.head(second).await.unwrap().state, State::Pending);
    f.complete(&started).await;
    assert_eq!(f.claim_one().await.0.id, second);
}

/// Otherwise no end would release it. It has failed before: its worker may not have received the answer.
pub async fn a_follow_up_is_held_again_where_a_run_is_in_its_way_alone(f: &Fixture) {
    let hold = |id| f.decide(move |draft| hold_again(draft, id));
    f.create(&wish("[1]").offer()).await;
    let (run, _) = f.claim_one().await;
    let next = followed(f, &wish("[2]")).await;
    f.complete(&run).await;
    assert!(!hold(next.id).await);
    let (started, _) = f.claim_one().await;
    assert_eq!(started.id, next.id);
    f.fail(&started).await;
    f.advance(SECOND * 60).await;
    f.run_duties().await;
    f.create(&keyed("a").states(StateSet::EMPTY.with(State::Scheduled)).priority(9).offer()).await;
    f.claim_one().await;
    assert!(hold(next.id).await);
    assert!(matches!(f.fail(&started).await, Settled::Repeated(head) if head.state == State::Pending));
}
