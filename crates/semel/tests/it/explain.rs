//! Why a job is, or would be, a duplicate.

use std::time::Duration;

use semel::{
    Blocking, Disclose, Enqueued, Envelope, Error, IntoEnvelope, JobState, OnConflict, OnMismatch, Semel,
    Unique, Would,
};
use semel_core::ident::QueueName;
use semel_core::lease::Grant;
use semel_core::limits::HOLDERS_PER_KEY_MAX;
use semel_core::settings::{Backpressure, QueueSettings};
use semel_store::backend::Claim;

use crate::harness::{Add, Welcome, memory};

fn by_a() -> Unique {
    Unique::by_args(["a"])
}

/// The predicted outcome that matches an actual one.
fn as_imagined(outcome: &Enqueued) -> Would {
    match outcome {
        Enqueued::Created(it) if it.reason == semel::Reason::SameRequest => Would::Repeat,
        Enqueued::Created(_) => Would::Create,
        Enqueued::Existing(it) if it.reason == semel::Reason::Amended => Would::Amend,
        Enqueued::Existing(_) => Would::Existing,
        Enqueued::Replaced(_) => Would::Replace,
        Enqueued::FollowUp(_) => Would::FollowUp,
        Enqueued::Rejected(_) => Would::Reject,
        Enqueued::Mismatch(_) => Would::Mismatch,
    }
}

/// The same, including refusals.
fn as_answered(answer: Result<Enqueued, Error>) -> Would {
    match answer {
        Ok(outcome) => as_imagined(&outcome),
        Err(Error::QueueFull { .. }) => Would::QueueFull,
        Err(Error::TooManyHolders) => Would::TooManyHolders,
        Err(other) => panic!("{other}"),
    }
}

/// What is predicted under this strategy in place of the policy's own.
async fn said_of(semel: &Semel, job: impl IntoEnvelope, policy: Unique, strategy: OnConflict) -> Would {
    let why = semel.enqueue(job).unique(policy).explain().await.unwrap();
    why.strategies.iter().find(|(named, _)| *named == strategy).unwrap().1
}

async fn one_runs(semel: &Semel) {
    let grant = Grant::new("w".into(), None);
    let queues = vec![QueueName::default()];
    let claim = Claim { queues, limit: 1, grant, closed: Vec::new() };
    assert_eq!(semel.engine().unwrap().claim(claim).await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_imagined_is_what_is_then_done() {
    let semel = memory().await;
    let id = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f".parse().unwrap();
    let add = |a, b, policy: Unique| Envelope::of(&Add { a, b }).unique(policy);
    let conflict = |on_conflict| by_a().on_conflict(on_conflict);
    let key = || Unique::by_key("k").on_mismatch(OnMismatch::Reject);
    let offers: [(&str, &dyn Fn() -> Envelope); 11] = [
        ("create", &|| add(1, 1, by_a())),
        ("reject", &|| add(1, 2, conflict(OnConflict::Reject))),
        ("existing", &|| add(1, 2, conflict(OnConflict::Ignore))),
        ("replace", &|| add(1, 2, conflict(OnConflict::Replace))),
        ("amend", &|| add(1, 3, conflict(OnConflict::FollowUp))),
        ("create", &|| add(2, 1, key())),
        ("mismatch", &|| add(2, 2, key())),
        ("create", &|| Envelope::of(&Add { a: 3, b: 3 }).no_unique()),
        ("create", &|| Envelope::of(&Add { a: 4, b: 4 }).id(id)),
        ("repeat", &|| Envelope::of(&Add { a: 4, b: 4 }).id(id)),
        ("create", &|| add(5, 5, conflict(OnConflict::FollowUp)).priority(100)),
    ];
    for (at, (name, offer)) in offers.into_iter().enumerate() {
        let imagined = semel.enqueue(offer()).explain().await.unwrap();
        assert_eq!(imagined.would.name(), name, "{at}: {imagined}");
        // Asking again gives the same answer: nothing was written.
        assert_eq!(semel.enqueue(offer()).explain().await.unwrap().would, imagined.would, "{at}");
        let done = semel.enqueue(offer()).await.unwrap();
        assert_eq!(as_imagined(&done), imagined.would, "{at}: {done:?}");
        assert_eq!(done.is_inserted(), imagined.would.is_inserted(), "{at}");
        if !done.is_inserted() {
            assert_eq!(imagined.existing.map(|job| job.id()), done.id(), "{at}");
        }
    }
    one_runs(&semel).await;
    let follow_up = || add(5, 6, conflict(OnConflict::FollowUp));
    assert_eq!(semel.enqueue(follow_up()).explain().await.unwrap().would, Would::FollowUp);
    assert!(matches!(semel.enqueue(follow_up()).await.unwrap(), Enqueued::FollowUp(_)));
    let taken = Envelope::of(&Add { a: 0, b: 0 }).id(id);
    assert_eq!(semel.enqueue(taken).explain().await.unwrap().would, Would::IdTaken);
}

/// Also where a mismatch decides.
#[tokio::test]
async fn each_strategy_does_what_it_is_said_to_do() {
    let same = || Unique::by_key("k");
    let strict = || Unique::by_key("k").global().on_mismatch(OnMismatch::Reject);
    let global = || Unique::by_key("k").global();
    let policies: [(&dyn Fn() -> Unique, bool); 3] = [(&same, false), (&strict, true), (&global, false)];
    for (policy, is_mismatch) in policies {
        for &strategy in OnConflict::ALL {
            let semel = memory().await;
            semel.enqueue(Add { a: 1, b: 1 }).unique(policy()).await.unwrap();
            let other = || semel.enqueue(Welcome::of(7)).unique(policy().on_conflict(strategy));
            let said = said_of(&semel, Welcome::of(7), policy(), strategy).await;
            let done = as_imagined(&other().await.unwrap());
            assert_eq!(done, said, "{strategy:?}");
            assert!(!is_mismatch || said == Would::Mismatch, "{strategy:?}: {said:?}");
        }
    }
}

/// A full queue refuses one more waiting job, but not one that takes a waiting job's place.
#[tokio::test]
async fn each_strategy_says_whether_a_full_queue_is_in_its_way() {
    let policy = || Unique::by_key("k");
    let job = |b| Add { a: 1, b };
    let anew = [OnConflict::Replace, OnConflict::ReplaceExceptSchedule, OnConflict::FollowUp];
    let cases: [(Option<JobState>, &[OnConflict]); 3] =
        [(None, OnConflict::ALL), (Some(JobState::Available), &[]), (Some(JobState::Active), &anew)];
    for (holder, refused) in cases {
        for &strategy in OnConflict::ALL {
            let semel = memory().await;
            if holder.is_some() {
                semel.enqueue(job(1)).unique(policy()).await.unwrap();
            }
            if holder == Some(JobState::Active) {
                one_runs(&semel).await;
            }
            if holder != Some(JobState::Available) {
                semel.enqueue(job(2)).await.unwrap();
            }
            let bound = Backpressure { max_depth: 1, warning_threshold: 0.5 };
            let settings = QueueSettings { backpressure: Some(bound) };
            semel.engine().unwrap().set_queue(QueueName::default(), settings).await.unwrap();
            let said = said_of(&semel, job(3), policy(), strategy).await;
            let done = as_answered(semel.enqueue(job(3)).unique(policy().on_conflict(strategy)).await);
            assert_eq!(done, said, "{holder:?} {strategy:?}");
            assert_eq!(
                said == Would::QueueFull,
                refused.contains(&strategy),
                "{holder:?} {strategy:?}: {said:?}"
            );
        }
    }
}

/// Only strategies that must change all holders are refused; the others name one holder.
#[tokio::test]
async fn each_strategy_says_whether_too_many_hold_the_key() {
    let semel = memory().await;
    let policy = || Unique::by_key("k");
    let job = |b| Envelope::of(&Add { a: 1, b });
    // Each considers completed jobs only, so all of them are admitted.
    let among_ended = || policy().states([JobState::Completed]);
    let many = (0..=HOLDERS_PER_KEY_MAX as i64).map(|b| job(b).unique(among_ended()));
    let made = semel.enqueue_many(many).await.unwrap().outcomes;
    assert!(made.iter().all(|outcome| matches!(outcome, Ok(Enqueued::Created(_)))));
    for (strategy, would) in [
        (OnConflict::Reject, Would::Reject),
        (OnConflict::Ignore, Would::Existing),
        (OnConflict::Replace, Would::TooManyHolders),
        (OnConflict::ReplaceExceptSchedule, Would::TooManyHolders),
        (OnConflict::FollowUp, Would::TooManyHolders),
    ] {
        assert_eq!(said_of(&semel, job(-1), policy(), strategy).await, would, "{strategy:?}");
        let done = as_answered(semel.enqueue(job(-1)).unique(policy().on_conflict(strategy)).await);
        assert_eq!(done, would, "{strategy:?}");
    }
    let why = semel.enqueue(job(-1)).unique(policy()).explain().await.unwrap();
    assert!(why.sentences().any(|sentence| sentence.contains("cut short")), "{why}");
}

#[tokio::test]
async fn it_names_who_holds_the_key_and_until_when() {
    let semel = memory().await;
    let policy = || by_a().within(Duration::from_secs(3_600)).on_conflict(OnConflict::Ignore);
    let first = semel.enqueue(Add { a: 1, b: 2 }).unique(policy()).await.unwrap();
    let why = semel.enqueue(Add { a: 1, b: 9 }).unique(policy()).explain().await.unwrap();
    let [holding] = &*why.holders else { panic!("{why:?}") };
    assert_eq!((Some(holding.id), holding.state), (first.id(), JobState::Available));
    let until = holding.created_at.saturating_add(Duration::from_secs(3_600));
    assert_eq!(holding.blocking, Blocking::InWindow { until });
    assert_eq!((holding.blocking.is_blocking(), holding.blocking.reason()), (true, "in_window"));
    assert_eq!(holding.blocking.until(), Some(until));
    assert_eq!(why.hashed.as_deref(), Some(r#"{"args":{"a":1},"type":"sum.add"}"#));
    assert_eq!(why.key.as_ref().map(String::len), Some(64));
    assert!(why.strategies.contains(&(OnConflict::Replace, Would::Replace)), "{:?}", why.strategies);
    assert_eq!(why.to_string(), why.sentences().collect::<Vec<_>>().join("\n"));
    let id = first.id().unwrap().to_string();
    assert!(
        why.sentences().any(|sentence| sentence.contains(&id) && sentence.contains("blocks until")),
        "{why}"
    );
    let without = semel.enqueue(Add { a: 1, b: 9 }).no_unique().explain().await.unwrap();
    assert_eq!((without.would, without.key, without.hashed), (Would::Create, None, None));
}

#[tokio::test]
async fn what_may_not_be_shown_is_not_shown() {
    let semel = memory().await;
    let policy = || by_a().disclose(Disclose::Never);
    let first = semel.enqueue(Add { a: 1, b: 2 }).unique(policy()).await.unwrap();
    let why = semel.enqueue(Add { a: 1, b: 2 }).unique(policy()).explain().await.unwrap();
    assert_eq!(why.would, Would::Reject);
    assert!(why.existing.is_none() && why.holders.is_empty() && why.strategies.is_empty(), "{why:?}");
    assert!(!why.to_string().contains(&first.id().unwrap().to_string()), "{why}");
    let secret = Envelope::of(&Welcome::of(7_654_321)).sensitive("/args/0/user_id");
    let why = semel.enqueue(secret.unique(Unique::by_args(["user_id"]))).explain().await.unwrap();
    assert!(why.hashed.as_ref().is_some_and(|text| text.contains("[sensitive]")), "{:?}", why.hashed);
    let open = semel.enqueue(Welcome::of(7_654_321)).explain().await.unwrap();
    assert!(open.hashed.as_ref().is_some_and(|text| text.contains("7654321")), "{:?}", open.hashed);
    // What it prints in logs.
    assert!(!format!("{open:?} {open}").contains("7654321"));
}

#[tokio::test]
async fn what_cannot_be_offered_cannot_be_explained() {
    let semel = memory().await;
    let refused = semel.enqueue(Envelope::new("Not A Type")).explain().await.unwrap_err();
    assert!(matches!(&refused, Error::Invalid { pointer, .. } if pointer == "/type"), "{refused}");
    semel.close().await.unwrap();
    assert!(matches!(semel.enqueue(Welcome::of(1)).explain().await, Err(Error::Closed)));
}
