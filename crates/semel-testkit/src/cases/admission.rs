//! One decision per job offered: create, existing, reject, replace, mismatch (SEMANTICS 3, 4).

use std::time::Duration;

use semel_core::body::Body;
use semel_core::draft::{KeyRead, Reads};
use semel_core::enqueue::{Outcome, enqueue};
use semel_core::job::{Ending, Head, NoteKind};
use semel_core::life::{self, KeyReleased, Revived};
use semel_core::limits::HOLDERS_PER_KEY_MAX;
use semel_core::lineage::Lineage;
use semel_core::settle::{Refusal, Settled};
use semel_core::state::{State, StateSet};
use semel_core::trail::Marks;
use semel_core::unique::RejectReason;
use semel_store::backend::Verdict;

use crate::fixture::Fixture;
use crate::make::{Want, foreign_id, job, key, keyed};

const SECOND: Duration = Duration::from_secs(1);

/// Offers a job that must be rejected, and returns the holder that the answer names.
pub(super) async fn rejected(f: &Fixture, want: &Want) -> Head {
    match f.enqueue(&want.offer()).await {
        Outcome::Rejected { holder, why: RejectReason::Duplicate } => holder.named().unwrap().clone(),
        other => panic!("not rejected: {other:?}"),
    }
}

/// Offers a job, and returns whether it was admitted as new.
pub(super) async fn admitted(f: &Fixture, want: &Want) -> bool {
    f.enqueue(&want.offer()).await.is_inserted()
}

/// A job without a policy has no key and is invisible to others' checks.
pub async fn a_job_without_a_policy_is_nobodys_duplicate(f: &Fixture) {
    let first = f.create(&job().offer()).await;
    let second = f.create(&job().offer()).await;
    assert_ne!(first.id, second.id);
    assert_eq!(first.key, None);
}

/// "None but the duplicate's record": neither versions nor counters move.
pub async fn a_duplicate_of_a_live_job_is_rejected_and_writes_nothing(f: &Fixture) {
    let first = f.create(&keyed("a").offer()).await;
    f.advance(SECOND).await;
    assert_eq!(rejected(f, &keyed("a")).await, first);
    let existing = f.enqueue(&keyed("a").on_conflict("ignore").offer()).await;
    assert_eq!(existing, Outcome::Existing(Box::new(first.clone())));
    assert_eq!(f.head(first.id).await, Some(first));
    assert_eq!(f.queue("default").await.unwrap().created, 1);
}

/// The default states are the live ones, so the key is free when the holder ends.
pub async fn a_key_is_free_when_its_holder_has_ended(f: &Fixture) {
    let first = f.finished(&keyed("a").offer()).await;
    assert_eq!(first.state, State::Completed);
    let second = f.create(&keyed("a").offer()).await;
    f.cancel(second.id).await;
    f.create(&keyed("a").offer()).await;
    assert_eq!(f.holders(key("a")).await.iter().filter(|holder| holder.state.is_live()).count(), 1);
}

/// Retry, promotion, lease expiry and giving the job back never lose the key.
pub async fn a_key_is_held_through_every_live_state(f: &Fixture) {
    let first = f.create(&keyed("a").later(SECOND).offer()).await;
    assert_eq!(rejected(f, &keyed("a")).await.state, State::Scheduled);
    f.advance(SECOND).await;
    f.run_duties().await;
    assert_eq!(rejected(f, &keyed("a")).await.state, State::Available);
    let (active, _) = f.claim_one().await;
    assert_eq!(rejected(f, &keyed("a")).await.state, State::Active);
    f.fail(&active).await;
    assert_eq!(rejected(f, &keyed("a")).await.state, State::Retryable);
    f.advance(SECOND * 10).await;
    f.run_duties().await;
    let (again, _) = f.claim_one().await;
    assert_eq!((again.id, again.attempt), (first.id, 2));
    f.advance(SECOND * 3600).await;
    f.run_duties().await;
    assert_eq!(rejected(f, &keyed("a")).await.state, State::Available);
    f.create(&keyed("b").pending().offer()).await;
    assert_eq!(rejected(f, &keyed("b")).await.state, State::Pending);
}

/// Several live jobs may have one key when their policies differ; a replacement cancels all that block it.
pub async fn every_blocking_holder_is_replaced_in_one_commit(f: &Fixture) {
    let only_active = StateSet::EMPTY.with(State::Active);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(f.create(&keyed("a").states(only_active).offer()).await);
    }
    let (active, _) = f.claim_one().await;
    let scheduled =
        f.create(&keyed("a").states(StateSet::EMPTY.with(State::Pending)).later(SECOND).offer()).await;
    let outcome = f.enqueue(&keyed("a").on_conflict("replace").offer()).await;
    let Outcome::Replaced { head, cancelled, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(cancelled.len(), 4, "{cancelled:?}");
    assert_eq!(cancelled[0], active.id, "the active holder is named first");
    for id in held.iter().map(|head| head.id).chain([scheduled.id]) {
        let after = f.head(id).await.unwrap();
        assert_eq!((after.state, after.ending), (State::Cancelled, Some(Ending::Replaced)));
    }
    let live: Vec<_> =
        f.holders(key("a")).await.into_iter().filter(|holder| holder.state.is_live()).collect();
    assert_eq!(live, [*head]);
}

/// The replaced job's fence moved, so its late ACK is refused (invariant 6 of docs/ARCHITECTURE.md).
pub async fn a_replaced_job_can_no_longer_complete(f: &Fixture) {
    f.create(&keyed("a").offer()).await;
    let (run, _) = f.claim_one().await;
    let new = f.create(&keyed("a").on_conflict("replace").offer()).await;
    assert_eq!(f.complete(&run).await, Settled::Refused(Refusal::StaleLease(State::Cancelled)));
    let (next, _) = f.claim_one().await;
    assert_eq!(next.id, new.id);
}

/// The request is answered as `reject`, and nothing is cancelled.
pub async fn replacing_a_finished_holder_is_refused_and_cancels_nothing(f: &Fixture) {
    f.finished(&keyed("a").offer()).await;
    let live = f.create(&keyed("a").offer()).await;
    let states = StateSet::LIVE.with(State::Completed);
    let outcome = f.enqueue(&keyed("a").states(states).on_conflict("replace").offer()).await;
    assert!(matches!(outcome, Outcome::Rejected { why: RejectReason::FinishedHolder, .. }), "{outcome:?}");
    assert_eq!(f.head(live.id).await, Some(live));
}

/// `replace_except_schedule` keeps the earliest scheduled time.
pub async fn a_replacement_takes_over_the_earliest_schedule(f: &Fixture) {
    let pending = StateSet::EMPTY.with(State::Pending);
    let late = f.create(&keyed("a").states(pending).later(SECOND * 20).offer()).await;
    let soon = f.create(&keyed("a").states(pending).later(SECOND * 10).offer()).await;
    let new = f.create(&keyed("a").on_conflict("replace_except_schedule").offer()).await;
    assert_eq!((new.state, new.available_at), (State::Scheduled, soon.available_at));
    assert_eq!(f.head(late.id).await.unwrap().state, State::Cancelled);
}

/// `when_active: wait`: the new job does not start before the replaced run's lease ends.
pub async fn a_replacement_may_wait_for_the_lease_it_replaces(f: &Fixture) {
    f.create(&keyed("a").offer()).await;
    let (run, _) = f.claim_one().await;
    let want = keyed("a").on_conflict("replace").policy(|spec| spec.when_active = Some("wait".to_owned()));
    let new = f.create(&want.offer()).await;
    assert_eq!((new.state, new.available_at), (State::Scheduled, run.lease.unwrap().ends_at()));
}

/// An expired waiting holder does not block, whether or not the expiry duty has reached it.
pub async fn an_expired_waiting_holder_does_not_block(f: &Fixture) {
    let first = f.create(&keyed("a").expires(SECOND).offer()).await;
    f.advance(SECOND - Duration::from_micros(1)).await;
    rejected(f, &keyed("a")).await;
    f.advance(Duration::from_micros(1)).await;
    assert!(admitted(f, &keyed("a")).await);
    f.run_duties().await;
    assert_eq!(f.head(first.id).await.unwrap().ending, Some(Ending::Expired));
}

/// A job that has begun may have done its work. It is not run again, and from its expiry time on it counts as
/// discarded, swept or not.
pub async fn an_expired_holder_that_had_begun_blocks_as_a_discarded_one(f: &Fixture) {
    let begun = async |want: Want| {
        let head = f.create(&want.expires(SECOND * 60).offer()).await;
        let (run, _) = f.claim_one().await;
        assert!(matches!(f.fail(&run).await, Settled::Done(head) if head.state == State::Retryable));
        head
    };
    let also = StateSet::LIVE.with(State::Completed).with(State::Discarded);
    let first = begun(keyed("a").states(StateSet::ALL)).await;
    let other = begun(keyed("b")).await;
    f.advance(SECOND * 60).await;
    assert!(admitted(f, &keyed("b").queue("else")).await, "who asks for live ones alone is not concerned");
    for is_swept in [false, true] {
        assert_eq!(rejected(f, &keyed("a").states(StateSet::ALL)).await.id, first.id, "{is_swept}");
        let replaces = f.enqueue(&keyed("a").states(also).on_conflict("replace").offer()).await;
        let why = RejectReason::FinishedHolder;
        assert!(matches!(&replaces, Outcome::Rejected { why: found, .. } if *found == why), "{replaces:?}");
        let follows = f.enqueue(&keyed("a").states(also).on_conflict("follow_up").offer()).await;
        assert!(matches!(&follows, Outcome::Existing(head) if head.id == first.id), "{follows:?}");
        assert!(f.claim("default", 5).await.jobs.is_empty());
        f.run_duties().await;
        for id in [first.id, other.id] {
            let ended = f.head(id).await.unwrap();
            assert_eq!((ended.state, ended.ending), (State::Discarded, Some(Ending::Failed)));
        }
    }
    assert!(admitted(f, &keyed("a")).await);
}

/// A caller that lost the reply sends the same request again.
pub async fn the_same_id_is_answered_as_the_first_time(f: &Fixture) {
    let want = keyed("a").id(foreign_id(1));
    let first = f.create(&want.offer()).await;
    assert_eq!(first.id, foreign_id(1));
    assert_eq!(f.enqueue(&want.offer()).await, Outcome::Repeated(Box::new(first)));
    let (run, _) = f.claim_one().await;
    f.complete(&run).await;
    let again = f.enqueue(&want.offer()).await;
    assert!(matches!(&again, Outcome::Repeated(head) if head.state == State::Completed), "{again:?}");
    assert_eq!(f.queue("default").await.unwrap().created, 1);
}

/// A request with a known id but other content is a duplicate.
pub async fn the_same_id_for_something_else_is_refused(f: &Fixture) {
    f.create(&keyed("a").id(foreign_id(1)).offer()).await;
    let other = f.enqueue(&keyed("b").id(foreign_id(1)).digest(2).offer()).await;
    assert_eq!(other, Outcome::IdTaken(foreign_id(1)));
    assert!(f.holders(key("b")).await.is_empty());
    // The row number in an id must not lead to the row of a job with another id.
    let minted = f.create(&job().offer()).await;
    let twin = semel_core::ident::JobId::mint(minted.created_at, minted.id.row(), 0x3f_ffff);
    assert_eq!(f.head(twin).await, None);
    f.create(&job().id(twin).offer()).await;
    assert_eq!(f.head(minted.id).await, Some(minted));
    assert!(f.head(twin).await.is_some());
    // For a request that left no digest, nobody knows whether the new one is the same.
    let unknown = job().id(foreign_id(2)).body(|body| body.request_digest = None).offer();
    f.create(&unknown).await;
    assert_eq!(f.enqueue(&unknown).await, Outcome::IdTaken(foreign_id(2)));
}

/// `on_mismatch: reject`: the answer has JSON pointers, never values.
pub async fn a_key_that_stands_for_other_work_is_a_mismatch(f: &Fixture) {
    let strict =
        |args: &str| keyed("a").args(args).policy(|spec| spec.on_mismatch = Some("reject".to_owned()));
    f.create(&strict(r#"[{"n":1,"same":0}]"#).offer()).await;
    let outcome = f.enqueue(&strict(r#"[{"n":2,"same":0}]"#).offer()).await;
    let Outcome::Mismatch { pointers, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(pointers, ["/args/0/n"]);
    rejected(f, &strict(r#"[{"n":1,"same":0}]"#)).await;
    // At most 20 differing places are named, however many there are.
    let outcome = f.enqueue(&strict(&format!("[{}]", vec!["1"; 30].join(","))).offer()).await;
    let Outcome::Mismatch { pointers, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(pointers.len(), 20, "{pointers:?}");
}

/// Every job that would be replaced must be the same work, not only the one that the answer names.
pub async fn nobody_who_does_other_work_is_replaced(f: &Fixture) {
    let first = f.create(&keyed("a").args("[1]").offer()).await;
    // Its policy looks at scheduled jobs alone, so it is admitted beside the first.
    let later = keyed("a").args("[2]").states(StateSet::EMPTY.with(State::Scheduled)).later(SECOND * 60);
    let second = f.create(&later.offer()).await;
    let newest = |args: &str| {
        let want = keyed("a").args(args).on_conflict("replace");
        want.policy(|spec| spec.on_mismatch = Some("reject".to_owned()))
    };
    for (args, other) in [("[2]", first.id), ("[1]", second.id)] {
        let outcome = f.enqueue(&newest(args).offer()).await;
        let Outcome::Mismatch { pointers, holder } = outcome else { panic!("{outcome:?}") };
        assert_eq!((pointers, holder.absorbed_by()), (vec!["/args/0".to_owned()], other));
    }
    assert_eq!(f.head(first.id).await, Some(first));
    assert_eq!(f.head(second.id).await, Some(second));
}

/// The same for a follow-up that the end of the replaced run would release, and that would then block.
pub async fn a_follow_up_with_other_args_is_not_replaced_with_its_run(f: &Fixture) {
    let wish = |args: &str| keyed("a").args(args).on_conflict("follow_up");
    f.create(&wish("[1]").offer()).await;
    let (run, _) = f.claim_one().await;
    let waits = f.enqueue(&wish("[2]").offer()).await.inserted().unwrap();
    let before = (f.head(run.id).await, f.head(waits).await);
    let states = StateSet::EMPTY.with(State::Scheduled).with(State::Available).with(State::Active);
    let newest = |args: &str| {
        let want = keyed("a").args(args).states(states).on_conflict("replace");
        want.policy(|spec| spec.on_mismatch = Some("reject".to_owned()))
    };
    for (args, other) in [("[1]", waits), ("[2]", run.id)] {
        let outcome = f.enqueue(&newest(args).offer()).await;
        let Outcome::Mismatch { holder, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(holder.absorbed_by(), other);
    }
    assert_eq!((f.head(run.id).await, f.head(waits).await), before);
}

/// The renewed letter keeps all that it was admitted with, although the duplicate before it in the batch
/// loaded only what the key needs.
pub async fn a_dead_letter_is_renewed_and_sent_back_in_one_commit(f: &Fixture) {
    let want = keyed("a").states(StateSet::ALL).period(SECOND * 3_600, "last_duplicate");
    let letter = want.clone().attempts(1).dead_letter().priority(7).times(5_000, 70_000);
    let before = f.create(&letter.offer()).await;
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    f.maintain().await;
    f.advance(SECOND).await;
    let keys = vec![KeyRead { key: key("a"), states: StateSet::ALL, all: true }];
    let mut draft = f.draft(&Reads { keys, ..Reads::default() }).await;
    let outcome = enqueue(&mut draft, &want.offer()).unwrap();
    assert!(matches!(outcome, Outcome::Rejected { .. }), "{outcome:?}");
    let group = draft.finish();
    draft.extend(f.load(&Reads { fulls: vec![run.id], ..Reads::default() }).await);
    let revived = life::revive(&mut draft, run.id).unwrap();
    assert!(matches!(revived, Revived::Done(_)), "{revived:?}");
    assert_eq!(f.commit(vec![group, draft.finish()]).await, [Verdict::Applied, Verdict::Applied]);
    for _ in 0..2 {
        let head = f.head(run.id).await.unwrap();
        assert_eq!(head.state, State::Available);
        let admitted = |head: &Head| {
            let times = (head.visibility_ms, head.timeout_ms);
            (head.priority, head.max_attempts, times, head.created_at, head.hold)
        };
        assert_eq!(admitted(&head), admitted(&before));
        f.maintain().await;
    }
}

/// After an overwrite, the holder's new args are what its key stands for.
pub async fn a_mismatch_is_found_with_the_present_args(f: &Fixture) {
    let strict =
        |args: &str| keyed("a").args(args).policy(|spec| spec.on_mismatch = Some("reject".to_owned()));
    let wish = |args: &str| keyed("a").args(args).on_conflict("follow_up");
    f.create(&wish("[1]").offer()).await;
    assert!(matches!(f.enqueue(&wish("[2]").offer()).await, Outcome::Amended(_)));
    rejected(f, &strict("[2]")).await;
    let outcome = f.enqueue(&strict("[1]").offer()).await;
    assert!(
        matches!(&outcome, Outcome::Mismatch { pointers, .. } if pointers == &["/args/0"]),
        "{outcome:?}"
    );
}

/// The type is kept as long as the key is, the args only as long as the body.
pub async fn a_type_is_compared_when_the_body_is_gone(f: &Fixture) {
    let strict = |name: &str, args: &str| {
        let want = keyed("a").of_type(name).args(args).states(StateSet::ALL);
        want.policy(|spec| spec.on_mismatch = Some("reject".to_owned()))
    };
    let first = f.finished(&strict("a.one", "[1]").offer()).await;
    f.advance(SECOND * 86_400 * 2).await;
    assert_eq!(f.purge().await, 1);
    assert_eq!(f.full(first.id).await, None);
    let outcome = f.enqueue(&strict("a.other", "[1]").offer()).await;
    let Outcome::Mismatch { pointers, holder } = outcome else { panic!("{outcome:?}") };
    assert_eq!((pointers, holder.absorbed_by()), (vec!["/type".to_owned()], first.id));
    assert_eq!(rejected(f, &strict("a.one", "[2]")).await.id, first.id);
}

/// The strictest setting decides: that of the caller, the holder or the scope.
pub async fn a_hidden_holder_is_not_named(f: &Fixture) {
    f.create(&keyed("a").policy(|spec| spec.disclose = Some("never".to_owned())).offer()).await;
    let outcome = f.enqueue(&keyed("a").on_conflict("ignore").offer()).await;
    let Outcome::Rejected { holder, why: RejectReason::Undisclosed } = outcome else { panic!("{outcome:?}") };
    assert!(holder.named().is_none());
    f.finished(
        &keyed("b").states(StateSet::ALL).policy(|spec| spec.disclose = Some("never".to_owned())).offer(),
    )
    .await;
    let outcome = f.enqueue(&keyed("b").states(StateSet::ALL).offer()).await;
    let Outcome::Rejected { holder, .. } = outcome else { panic!("{outcome:?}") };
    assert!(holder.named().is_none());
}

/// The answer names the active holder, else the newest by (created_at, id).
pub async fn the_job_named_is_the_active_holder_else_the_newest(f: &Fixture) {
    let none = StateSet::EMPTY.with(State::Discarded);
    let first = f.create(&keyed("a").states(none).offer()).await;
    f.advance(SECOND).await;
    let second = f.create(&keyed("a").states(none).offer()).await;
    assert_eq!(rejected(f, &keyed("a")).await.id, second.id);
    let (active, _) = f.claim_one().await;
    assert_eq!(active.id, first.id);
    assert_eq!(rejected(f, &keyed("a")).await.id, first.id);
}

/// A release is an audited event; it changes no job's state.
pub async fn a_released_key_is_free_and_its_job_goes_on(f: &Fixture) {
    let first = f.create(&keyed("a").offer()).await;
    let (run, _) = f.claim_one().await;
    let released = f.decide(|draft| life::release_key(draft, key("a"))).await;
    assert!(matches!(&released, KeyReleased::Done(heads) if heads.len() == 1 && heads[0].id == first.id));
    assert_eq!(f.decide(|draft| life::release_key(draft, key("a"))).await, KeyReleased::NobodyHolds);
    let after = f.head(first.id).await.unwrap();
    assert_eq!((after.key, after.state, after.fence), (None, State::Active, run.fence));
    assert!(admitted(f, &keyed("a")).await);
    assert!(matches!(f.complete(&run).await, Settled::Done(_)));
    assert_eq!(f.head(first.id).await.unwrap().key, None);
}

/// A new job's fence starts from the highest fence of the holders that its decision saw.
pub async fn fences_of_one_key_ascend_across_jobs(f: &Fixture) {
    let mut last = 0;
    for _ in 0..4 {
        // The clock stands still, so only the numbers order the runs.
        f.create(&keyed("a").on_conflict("replace").offer()).await;
        let (run, _) = f.claim_one().await;
        assert!(run.fence > last, "{} after {last}", run.fence);
        last = run.fence;
    }
    // The same for a dead letter that is sent back: its fence is no lower than those it saw.
    let want = keyed("b").attempts(1).dead_letter();
    f.create(&want.offer()).await;
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    // Its policy does not look at ended jobs, so its fence starts from the clock alone.
    f.advance(SECOND).await;
    let between = f.create(&want.offer()).await;
    let (later, _) = f.claim_one().await;
    assert!(later.id == between.id && later.fence > run.fence);
    f.complete(&later).await;
    f.maintain().await;
    let Revived::Done(back) = f.decide(|draft| life::revive(draft, run.id)).await else {
        panic!("not sent back")
    };
    assert_eq!(back.fence, later.fence);
    assert!(f.claim_one().await.0.fence > later.fence);
}

/// `too_many_holders` for `replace` and `follow_up`; an ordinary duplicate is still found.
pub async fn more_holders_than_one_commit_may_touch_are_refused(f: &Fixture) {
    let only = StateSet::EMPTY.with(State::Discarded);
    let want = keyed("a").states(only).offer();
    f.decide(|draft| {
        for _ in 0..=HOLDERS_PER_KEY_MAX {
            semel_core::enqueue::enqueue(draft, &want)?;
        }
        Ok(())
    })
    .await;
    assert_eq!(f.enqueue(&keyed("a").on_conflict("replace").offer()).await, Outcome::TooManyHolders);
    assert_eq!(f.enqueue(&keyed("a").on_conflict("follow_up").offer()).await, Outcome::TooManyHolders);
    assert_eq!(f.decide(|draft| life::release_key(draft, key("a"))).await, KeyReleased::TooMany);
    rejected(f, &keyed("a")).await;
    let (active, _) = f.claim_one().await;
    assert_eq!(rejected(f, &keyed("a")).await.id, active.id);
}

/// A caller that waits for the replaced job goes on with the new one.
pub async fn a_replaced_job_names_the_job_that_took_its_place(f: &Fixture) {
    let first = f.create(&keyed("a").offer()).await;
    let Outcome::Replaced { head: second, .. } = f.enqueue(&keyed("a").on_conflict("replace").offer()).await
    else {
        panic!("not replaced")
    };
    f.maintain().await;
    let (_, full) = f.full(first.id).await.unwrap();
    let marks = Marks::decode(full.note(NoteKind::Marks).unwrap()).unwrap();
    assert_eq!(marks.replaced_by, Some(second.id.to_string()));
    let (_, full) = f.full(second.id).await.unwrap();
    assert_eq!(full.note(NoteKind::Marks), None);
    let lineage = Body::decode(&full.body).unwrap().lineage;
    assert_eq!(lineage, Lineage { replaces: vec![first.id], ..Lineage::default() });
}

/// What differs is the holder's type, or its args, which another request has overwritten since.
pub async fn what_is_sent_again_is_other_work_where_its_holder_is(f: &Fixture) {
    let strict = |want: Want| want.policy(|spec| spec.on_mismatch = Some("reject".to_owned()));
    let wish = |args: &str| keyed("a").args(args).on_conflict("follow_up");
    f.create(&strict(keyed("b")).offer()).await;
    let typed = f.enqueue(&strict(keyed("b")).of_type("other").offer()).await;
    assert!(matches!(&typed, Outcome::Mismatch { pointers, .. } if pointers == &["/type"]), "{typed:?}");
    f.create(&strict(wish("[1]")).offer()).await;
    assert!(matches!(f.enqueue(&wish("[2]").offer()).await, Outcome::Amended(_)));
    let again = f.enqueue(&strict(wish("[1]")).offer()).await;
    assert!(matches!(&again, Outcome::Mismatch { pointers, .. } if pointers == &["/args/0"]), "{again:?}");
}

/// The place is named once, whichever of the two requests marks it as sensitive, and no meta is named.
pub async fn a_mismatch_tells_of_a_sensitive_value_its_place(f: &Fixture) {
    let want = |text: &str, args: &str, sensitive: &[&str]| {
        let sensitive: Vec<String> = sensitive.iter().map(|&place| place.to_owned()).collect();
        let want = keyed(text).args(args).body(|body| body.sensitive = sensitive);
        want.policy(|spec| spec.on_mismatch = Some("reject".to_owned())).offer()
    };
    for (text, stored, offered) in
        [("a", &["/args/0", "/meta/n"][..], &[][..]), ("b", &[][..], &["/args/0"][..])]
    {
        f.create(&want(text, r#"[{"a":1,"b":1}]"#, stored)).await;
        let outcome = f.enqueue(&want(text, r#"[{"a":2,"b":2}]"#, offered)).await;
        let Outcome::Mismatch { pointers, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(pointers, ["/args/0"], "{text}");
    }
}
