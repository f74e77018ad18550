//! Enqueueing jobs: the guide's promises, one test each.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use semel::{
    Disclose, Enqueued, Envelope, Error, Frees, JobId, JobState, OnConflict, OnMismatch, PeriodFrom, Reason,
    Semel, Timestamp, Unique, Worker,
};

use semel_store::decor::{Fault, Faulty};
use semel_store::memory::Memory;

use crate::harness::{Add, Welcome, add, memory, soon, still};

#[tokio::test]
async fn a_job_that_is_offered_twice_is_there_once() {
    let semel = memory().await;
    let first = semel.enqueue(Welcome::of(1)).await.unwrap();
    assert!(matches!(first, Enqueued::Created(_)) && first.is_inserted());
    assert_eq!((first.state(), first.reason()), (Some(JobState::Available), Reason::New));
    let second = semel.enqueue(Welcome { user_id: 1, text: "other".to_owned() }).await.unwrap();
    assert!(matches!(second, Enqueued::Existing(_)) && !second.is_inserted());
    assert_eq!((second.id(), second.reason()), (first.id(), Reason::Duplicate));
    assert_eq!((first.frees(), second.frees()), (Some(Frees::AtEnd), Some(Frees::AtEnd)));
    let other = semel.enqueue(Welcome::of(2)).await.unwrap();
    assert!(other.is_inserted());
    // Once it has ended its key is free.
    first.job().unwrap().cancel().await.unwrap();
    assert!(semel.enqueue(Welcome::of(1)).await.unwrap().is_inserted());
}

#[tokio::test]
async fn what_the_type_says_can_be_said_otherwise() {
    let (semel, clock) = still();
    let start = Timestamp::from_millis(1_767_225_600_000);
    let job = semel
        .enqueue(Welcome::of(1))
        .queue("mail")
        .priority(9)
        .max_attempts(1)
        .tags(["a"])
        .meta("tenant", 7)
        .after(Duration::from_millis(1500))
        .no_unique()
        .await
        .unwrap();
    assert_eq!(job.frees(), None);
    let stored = job.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!((stored.queue(), stored.priority(), stored.max_attempts()), ("mail", 9, 1));
    assert_eq!((stored.tags(), stored.meta()), (&["a".to_owned()][..], r#"{"tenant":7}"#));
    assert_eq!(stored.available_at(), start.saturating_add(Duration::from_millis(1500)));
    assert_eq!((stored.state(), stored.job_type()), (JobState::Scheduled, "email.welcome"));
    assert_eq!(stored.payload::<Welcome>().unwrap(), Welcome::of(1));
    assert!(matches!(stored.payload::<Add>(), Err(Error::Read { what: "args", .. })));
    let later = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    let at = semel.enqueue(Add { a: 1, b: 2 }).at(later).await.unwrap();
    let stored = at.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!(stored.available_at(), Timestamp::from_millis(4_000_000_000_000));
    let pending = semel.enqueue(Add { a: 1, b: 2 }).pending().await.unwrap();
    assert_eq!(pending.state(), Some(JobState::Pending));
    pending.job().unwrap().activate().await.unwrap();
    clock.advance(Duration::from_secs(1));
}

#[tokio::test]
async fn a_key_of_ones_own_takes_the_place_of_the_types_identity_and_keeps_its_answer() {
    let semel = memory().await;
    let first = semel.enqueue(Welcome::of(1)).key("evt_1").await.unwrap();
    let again = semel.enqueue(Welcome::of(2)).key("evt_1").await.unwrap();
    assert!(matches!(again, Enqueued::Existing(_)));
    assert_eq!(first.id(), again.id());
    assert!(semel.enqueue(Welcome::of(1)).key("evt_2").await.unwrap().is_inserted());
    assert!(semel.enqueue(Welcome::of(1)).await.unwrap().is_inserted());
    let of_no_policy = semel.enqueue(Add { a: 1, b: 1 }).key("evt_1").await.unwrap();
    assert!(of_no_policy.is_inserted());
    assert!(matches!(semel.enqueue(Add { a: 2, b: 2 }).key("evt_1").await.unwrap(), Enqueued::Rejected(_)));
    let global = || Unique::by_key("all").global();
    assert!(semel.enqueue(Add { a: 1, b: 1 }).unique(global()).await.unwrap().is_inserted());
    assert!(!semel.enqueue(Welcome::of(9)).unique(global()).await.unwrap().is_inserted());
}

/// Otherwise every event of a week would be answered with the first one's job.
#[tokio::test]
async fn a_key_and_a_policy_are_said_in_any_order() {
    let policy = || Unique::by_type().live_and([JobState::Completed]).on_conflict(OnConflict::Ignore);
    let text = |envelope: Envelope| envelope.into_json().unwrap();
    let job = || Envelope::new("event.take");
    let keyed = text(job().unique(policy()).key("evt_1"));
    assert!(keyed.contains("evt_1") && keyed.contains("completed"), "{keyed}");
    assert_eq!(text(job().key("evt_1").unique(policy())), keyed);
    assert_eq!(text(job().key("evt_0").unique(policy()).key("evt_1")), keyed);
    assert_eq!(text(job().key("evt_0").unique(policy().key("evt_1"))), keyed);
    // `no_unique` drops the key for good.
    let bare = text(job().unique(policy()));
    assert_eq!(text(job().key("evt_1").no_unique().unique(policy())), bare);
    let off = text(job().no_unique());
    assert_eq!(text(job().key("evt_1").no_unique()), off);
    let semel = memory().await;
    let take = |key: &'static str| semel.enqueue(job()).key(key).unique(policy());
    assert!(take("evt_1").await.unwrap().is_inserted());
    assert!(take("evt_2").await.unwrap().is_inserted());
    assert!(!take("evt_1").await.unwrap().is_inserted());
}

#[tokio::test]
async fn a_rejected_duplicate_names_the_job_that_blocks_and_says_when_it_frees() {
    let (semel, clock) = still();
    let policy = || Unique::by_all_args().within(Duration::from_secs(60));
    let first = semel.enqueue(Add { a: 1, b: 2 }).unique(policy()).await.unwrap();
    let until = Timestamp::from_millis(1_767_225_660_000);
    assert_eq!(first.frees(), Some(Frees::At(until)));
    let Enqueued::Rejected(refused) = semel.enqueue(Add { a: 1, b: 2 }).unique(policy()).await.unwrap()
    else {
        panic!("not rejected")
    };
    assert_eq!(refused.existing.map(|job| job.id()), first.id());
    assert_eq!((refused.state, refused.reason), (Some(JobState::Available), Reason::Duplicate));
    assert_eq!(refused.frees, Some(Frees::At(until)));
    clock.advance(Duration::from_secs(59));
    assert!(!semel.enqueue(Add { a: 1, b: 2 }).unique(policy()).await.unwrap().is_inserted());
    clock.advance(Duration::from_secs(1));
    assert!(semel.enqueue(Add { a: 1, b: 2 }).unique(policy()).await.unwrap().is_inserted());
}

#[tokio::test]
async fn a_hidden_holder_is_hidden() {
    let semel = memory().await;
    let first = semel.enqueue(Add { a: 1, b: 2 }).unique(Unique::strict()).await.unwrap();
    assert_eq!(first.frees(), Some(Frees::OnRelease));
    let again = semel.enqueue(Add { a: 1, b: 2 }).unique(Unique::strict()).await.unwrap();
    assert!(matches!(again, Enqueued::Rejected(_)));
    assert_eq!((again.id(), again.state(), again.frees()), (None, None, None));
    assert_eq!(again.reason(), Reason::Undisclosed);
    assert!(matches!(again.wait().await, Err(Error::Undisclosed)));
    let open = Unique::by_key("k").disclose(Disclose::Never);
    semel.enqueue(Add { a: 1, b: 2 }).unique(open.clone()).await.unwrap();
    assert_eq!(semel.enqueue(Add { a: 1, b: 2 }).unique(open).await.unwrap().id(), None);
}

#[tokio::test]
async fn a_replacement_names_what_it_replaced() {
    let semel = memory().await;
    let policy = || Unique::by_args(["a"]).on_conflict(OnConflict::Replace);
    let first = semel.enqueue(Add { a: 1, b: 2 }).unique(policy()).await.unwrap();
    let Enqueued::Replaced(second) = semel.enqueue(Add { a: 1, b: 3 }).unique(policy()).await.unwrap() else {
        panic!("not replaced")
    };
    assert_eq!((second.replaced, second.reason), (vec![first.id().unwrap()], Reason::TookPlace));
    let old = first.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!(old.state(), JobState::Cancelled);
}

#[tokio::test]
async fn the_same_key_for_other_work_is_a_mismatch_that_names_places_and_no_values() {
    let semel = memory().await;
    let policy = || Unique::by_key("order-7").on_mismatch(OnMismatch::Reject);
    semel.enqueue(Add { a: 1, b: 2 }).unique(policy()).await.unwrap();
    let Enqueued::Mismatch(refused) = semel.enqueue(Add { a: 1, b: 3 }).unique(policy()).await.unwrap()
    else {
        panic!("no mismatch")
    };
    assert_eq!((refused.differs_at, refused.reason), (vec!["/args/0/b".to_owned()], Reason::OtherContent));
}

/// The other job's result does not answer what was asked for.
#[tokio::test]
async fn whoever_waits_after_a_mismatch_is_told_whose_key_it_is() {
    let semel = memory().await;
    let policy = || Unique::by_key("order-7").on_mismatch(OnMismatch::Reject);
    let first = semel.enqueue(Add { a: 1, b: 2 }).unique(policy()).await.unwrap();
    let other = semel.enqueue(Add { a: 1, b: 3 }).unique(policy()).await.unwrap();
    let errors = [soon(other.wait()).await.unwrap_err(), soon(other.result::<i64>()).await.unwrap_err()];
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("(it differs at /args/0/b)"), "{text}");
        let Error::OtherWork { existing, differs_at } = error else { panic!("{text}") };
        assert_eq!((Some(existing), differs_at), (first.id(), vec!["/args/0/b".to_owned()]));
    }
    // A caller that wants the other job's result can still get it.
    let working = Worker::new(&semel).handle(add).start().unwrap();
    assert_eq!(other.job().unwrap().result::<i64>().await.unwrap(), 3);
    working.stop().await;
}

#[tokio::test]
async fn a_request_is_repeated_by_its_id() {
    let semel = memory().await;
    let id = JobId::mint(Timestamp::from_millis(1_800_000_000_000), 7, 7);
    let first = semel.enqueue(Add { a: 1, b: 2 }).id(id).await.unwrap();
    assert!(first.is_inserted());
    let again = semel.enqueue(Add { a: 1, b: 2 }).id(id).await.unwrap();
    assert!(matches!(again, Enqueued::Created(_)) && !again.is_inserted());
    assert_eq!((again.id(), again.reason()), (Some(id), Reason::SameRequest));
    assert!(
        matches!(semel.enqueue(Add { a: 9, b: 2 }).id(id).await, Err(Error::IdTaken(taken)) if taken == id)
    );
}

#[tokio::test]
async fn many_jobs_have_an_outcome_each_and_are_counted() {
    let semel = memory().await;
    let jobs = [1, 2, 1, 3].map(Welcome::of);
    let many = semel.enqueue_many(jobs).await.unwrap();
    let inserted: Vec<bool> =
        many.outcomes.iter().map(|outcome| outcome.as_ref().unwrap().is_inserted()).collect();
    assert_eq!(inserted, [true, true, false, true]);
    assert_eq!((many.counts.inserted, many.counts.skipped, many.counts.rejected), (3, 1, 0));
    let mixed = vec![
        Envelope::of(&Welcome::of(4)).priority(3),
        Envelope::new("Not A Type"),
        Envelope::of(&Add { a: 1, b: 2 }),
    ];
    let many = semel.enqueue_many(mixed).await.unwrap();
    assert!(matches!(&many.outcomes[1], Err(Error::Invalid { pointer, .. }) if pointer == "/type"));
    assert!(many.outcomes[2].as_ref().unwrap().is_inserted());
    assert_eq!((many.counts.inserted, many.counts.rejected), (2, 1));
    let none = semel.enqueue_many(Vec::<Welcome>::new()).await.unwrap();
    assert!(none.outcomes.is_empty());
}

#[tokio::test]
async fn all_or_nothing_stores_nothing_when_one_is_refused() {
    let semel = memory().await;
    let one = || Envelope::of(&Add { a: 1, b: 2 }).unique(Unique::by_all_args());
    let batch = [Envelope::of(&Add { a: 5, b: 5 }).unique(Unique::by_all_args()), one(), one()];
    let refused = semel.enqueue_many(batch).all_or_nothing().await.unwrap_err();
    assert!(matches!(refused, Error::Batch { index: 2, .. }), "{refused}");
    assert!(semel.enqueue(Add { a: 5, b: 5 }).unique(Unique::by_all_args()).await.unwrap().is_inserted());
    let invalid = [Envelope::of(&Add { a: 6, b: 6 }), Envelope::new("")];
    let refused = semel.enqueue_many(invalid).all_or_nothing().await.unwrap_err();
    assert!(matches!(refused, Error::Batch { index: 1, .. }), "{refused}");
}

#[tokio::test]
async fn what_goes_together_is_what_one_commit_takes() {
    let semel = memory().await;
    let large = |jobs| std::iter::repeat_with(|| Envelope::new("a.b").arg("x".repeat(1_000_000))).take(jobs);
    let refused = semel.enqueue_many(large(70)).all_or_nothing().await.unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }) && refused.to_string().contains("64 MiB"), "{refused}");
    assert_eq!(semel.enqueue_many(large(60)).all_or_nothing().await.unwrap().counts.inserted, 60);
    assert_eq!(semel.enqueue_many(large(70)).await.unwrap().counts.inserted, 70);
    let refused =
        semel.enqueue_many((0..10_001).map(|_| Envelope::new("a.b"))).all_or_nothing().await.unwrap_err();
    assert!(refused.to_string().contains("10000 jobs"), "{refused}");
}

#[tokio::test]
async fn a_gateway_passes_on_what_it_got() {
    let semel = memory().await;
    let text = r#"{"type":"a.b","args":[1e2, {"n": 12345678901234567890}],"options":{"queue":"q"}}"#;
    let job = semel.enqueue(Envelope::from_json(text)).await.unwrap();
    let stored = job.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!(stored.args(), r#"[1e2, {"n": 12345678901234567890}]"#);
    let changed = semel.enqueue(Envelope::from_json(text)).priority(3).await.unwrap_err();
    assert!(changed.to_string().contains("finished JSON text"), "{changed}");
    let broken = semel.enqueue(Envelope::from_json("{")).await.unwrap_err();
    assert!(matches!(broken, Error::Invalid { .. }), "{broken}");
}

#[tokio::test]
async fn what_contradicts_itself_is_refused_with_its_place() {
    let semel = memory().await;
    let contradiction = Unique::by_type().period_from(PeriodFrom::Finished).within(Duration::from_secs(1));
    let refused = semel.enqueue(Add { a: 1, b: 2 }).unique(contradiction).await.unwrap_err();
    let Error::Invalid { pointer, message } = &refused else { panic!("{refused}") };
    assert_eq!(pointer, "/options/unique/period_from");
    assert!(message.contains("add completed"), "{message}");
}

/// On the wire 0 means unset: the default of half an hour would apply, instead of no time.
#[tokio::test]
async fn a_length_of_no_time_is_refused() {
    let semel = memory().await;
    let job = || Envelope::of(&Add { a: 1, b: 2 });
    for (wrong, place) in [
        (job().timeout(Duration::ZERO), "/options/timeout_ms"),
        (job().lease(Duration::ZERO), "/options/visibility_timeout_ms"),
    ] {
        let refused = semel.enqueue(wrong).await.unwrap_err();
        assert!(matches!(&refused, Error::Invalid { pointer, .. } if pointer == place), "{refused}");
    }
    let shortest = job().timeout(Duration::from_nanos(1)).lease(Duration::from_nanos(1));
    assert!(semel.enqueue(shortest).await.unwrap().is_inserted());
}

#[tokio::test]
async fn a_file_keeps_its_jobs_and_has_one_owner() {
    let dir = semel_testkit::fixture::TempDir::new();
    let url = format!("sqlite:{}", dir.path().join("jobs.db").display());
    let semel = Semel::open(&url).await.unwrap();
    let first = semel.enqueue(Welcome::of(1)).await.unwrap();
    let refused = Semel::open(&url).await.unwrap_err();
    assert!(
        matches!(refused, Error::Open { .. }) && refused.to_string().contains("already open in this process"),
        "{refused}"
    );
    semel.close().await.unwrap();
    assert!(matches!(semel.enqueue(Welcome::of(1)).await, Err(Error::Closed)));
    assert!(matches!(semel.close().await, Err(Error::Closed)));
    let semel = Semel::open(&url).await.unwrap();
    let again = semel.enqueue(Welcome::of(1)).await.unwrap();
    assert_eq!((again.is_inserted(), again.id()), (false, first.id()));
    semel.close().await.unwrap();
}

/// What the first commit stored stays stored.
#[tokio::test]
async fn a_store_that_fails_half_way_leaves_the_outcomes_of_what_it_did() {
    let store = Arc::new(Faulty::new(Arc::new(Memory::default())));
    let semel = Semel::on(Arc::clone(&store) as Arc<dyn semel_store::Backend>).unwrap();
    store.script_commits([Fault::None, Fault::Before]);
    let many = semel.enqueue_many((0..10_002).map(|a| Add { a, b: 0 })).await.unwrap();
    let (done, failed) = many.outcomes.split_at(10_000);
    assert!(done.iter().all(|outcome| outcome.as_ref().is_ok_and(Enqueued::is_inserted)));
    assert!(failed.iter().all(|outcome| outcome.as_ref().is_err_and(Error::is_retryable)));
    assert_eq!((failed.len(), many.counts.inserted, many.counts.rejected), (2, 10_000, 2));
    store.script_commits([Fault::Before]);
    assert!(semel.enqueue_many([Add { a: 1, b: 1 }]).await.unwrap_err().is_retryable());
}
