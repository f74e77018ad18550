//! What `#[derive(Job)]` generates for a type.

use std::time::Duration;

use semel::{Disclose, Envelope, Job, JobState, OnConflict, PeriodFrom, RateLimit, Retry, Unique};
use semel_core::limit::Rate;
use semel_ojs::{Enqueue, Terms};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Serialize, Deserialize, Job)]
#[serde(rename_all = "camelCase")]
#[job(
    type = "invoice.render",
    queue = "documents",
    priority = -5,
    max_attempts = 7,
    timeout = "1m30s",
    lease = "45s",
    expires = "2d",
    retry(initial = "2s", max = "10m", coefficient = 1.5, backoff = "linear", no_jitter, never("Rejected"), dead_letter),
    tags("billing", "pdf"),
    sensitive_meta("email"),
    rate_limit(key = "pdf", concurrency = 5, rate = 100, period = "1m"),
    unique(
        args("invoiceNumber", "kind"),
        queue,
        meta("tenant"),
        period = "1h",
        period_from = "last_duplicate",
        states("available", "completed"),
        while_active,
        on_conflict = "ignore",
        on_mismatch = "reject",
        disclose = "always"
    )
)]
struct Render {
    invoice_number: u64,
    #[serde(rename = "kind")]
    what: String,
    #[job(sensitive)]
    bank_account: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(type = "tick", unique)]
struct Tick;

#[derive(Serialize, Deserialize, Job)]
#[job(type = "paced", rate_limit(rate = 5))]
struct Paced;

#[derive(Serialize, Deserialize, Job)]
#[job(type = "either", unique(strict))]
#[serde(tag = "kind")]
enum Either {
    Left { n: u8 },
    Right,
}

#[derive(Serialize, Deserialize, Job)]
#[job(type = "wrapped")]
struct Wrapped<T>
where
    T: Serialize + serde::de::DeserializeOwned + Send + 'static,
{
    #[serde(bound(deserialize = "T: serde::de::DeserializeOwned"))]
    inner: T,
}

pub(crate) fn render() -> impl Job {
    Render { invoice_number: 7, what: "pdf".to_owned(), bank_account: "DE1".to_owned() }
}

fn wire<J: Job>(job: &J) -> Value {
    serde_json::from_str(&Envelope::of(job).into_json().unwrap()).unwrap()
}

#[test]
fn everything_that_is_said_of_a_type_is_in_its_envelope() {
    let job = render();
    assert_eq!(
        wire(&job),
        json!({
            "type": "invoice.render",
            "args": [{ "invoiceNumber": 7, "kind": "pdf", "bankAccount": "DE1" }],
            "options": {
                "queue": "documents",
                "priority": -5,
                "max_attempts": 7,
                "timeout_ms": 90_000,
                "visibility_timeout_ms": 45_000,
                "expires_at": "+PT172800S",
                "retry": {
                    "initial_interval_ms": 2_000, "max_interval_ms": 600_000, "backoff_coefficient": 1.5,
                    "backoff_strategy": "linear", "jitter": false, "non_retryable_errors": ["Rejected"],
                    "on_exhaustion": "dead_letter",
                },
                "tags": ["billing", "pdf"],
                "rate_limit": { "key": "pdf", "concurrency": 5, "rate": 100, "period": "PT60S" },
                "unique": {
                    "keys": ["type", "args", "queue", "meta"], "args_keys": ["invoiceNumber", "kind"],
                    "meta_keys": ["tenant"], "period": "PT3600S", "period_from": "last_duplicate",
                    "states": ["available", "completed"], "while_active": true,
                    "on_conflict": "ignore", "on_mismatch": "reject", "disclose": "always",
                },
                "sensitive": ["/args/0/bankAccount", "/meta/email"],
            },
        })
    );
}

#[test]
fn whatever_serde_writes_is_the_one_item_of_the_args() {
    assert_eq!(wire(&Tick)["args"], json!([null]));
    assert_eq!(wire(&Tick)["options"]["unique"], json!({ "keys": ["type"] }));
    assert_eq!(wire(&Either::Left { n: 1 })["args"], json!([{ "kind": "Left", "n": 1 }]));
    assert_eq!(wire(&Either::Right)["options"]["unique"], json!({ "preset": "strict" }));
    assert_eq!(wire(&Wrapped { inner: vec![1, 2] })["args"], json!([{ "inner": [1, 2] }]));
}

/// The server applies the default period, as for any other request.
#[test]
fn a_rate_without_a_period_says_none() {
    assert_eq!(wire(&Paced)["options"]["rate_limit"], json!({ "rate": 5 }));
    let read = Enqueue::parse(&Envelope::of(&Paced).into_json().unwrap(), Terms::trusted()).unwrap();
    let second = Rate { count: 5, period_us: 1_000_000 };
    assert_eq!(read.offer.limit.unwrap().rate, Some(second));
}

/// The queue accepts what the macro accepts, and would refuse what the macro refuses.
#[tokio::test]
async fn the_macro_and_the_queue_know_the_same_names() {
    let semel = crate::harness::memory().await;
    let job = render();
    semel.enqueue(job).meta("tenant", "t1").await.unwrap();
    semel.enqueue(Tick).await.unwrap();
    semel.enqueue(Either::Right).await.unwrap();
    for (job_type, queue) in
        [("Email.send", "default"), ("1a", "default"), ("a..b", "default"), ("a", "Mail")]
    {
        let refused = semel.enqueue(Envelope::new(job_type).queue(queue)).await;
        assert!(matches!(refused, Err(semel::Error::Invalid { .. })), "{job_type} {queue}");
    }
}

#[derive(Serialize, Deserialize, Job)]
#[job(
    type = "edge",
    timeout = "30d",
    lease = "30d",
    expires = "36525d",
    retry(
        max = "366d",
        coefficient = 1.0,
        never(
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\
             aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\
             aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\
             aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        )
    ),
    rate_limit(
        key = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\
               aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\
               aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\
               aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        concurrency = 1000,
        rate = 1000000,
        period = "1d"
    ),
    unique(args, on_conflict = "follow_up", live_and("completed"))
)]
struct Edge;

#[derive(Serialize, Deserialize, Job)]
#[job(
    type = "shown",
    rate_limit(rate = 1, period = "1ms"),
    unique(strict, on_conflict = "ignore", disclose = "always", period_from = "finished", period = "36525d")
)]
struct Shown;

/// The bounds and contradictions of the macros' `tests/ui`, checked on both sides.
#[tokio::test]
async fn the_macro_and_the_queue_refuse_the_same() {
    let semel = crate::harness::memory().await;
    semel.enqueue(Edge).await.unwrap();
    semel.enqueue(Shown).await.unwrap();
    let job = || Envelope::new("a.b");
    let unique = |unique: Unique| job().unique(unique);
    let (day, moment) = (Duration::from_secs(24 * 3600), Duration::from_millis(1));
    let long = "a".repeat(256);
    let follow_up = || Unique::by_all_args().on_conflict(OnConflict::FollowUp);
    let hour = || Unique::by_all_args().within(Duration::from_secs(3600));
    let replace = |policy: Unique| policy.on_conflict(OnConflict::Replace);
    for (wrong, place) in [
        (job().timeout(30 * day + moment), "/options/timeout_ms"),
        (job().lease(30 * day + moment), "/options/visibility_timeout_ms"),
        (job().expires_after(36_525 * day + moment), "/options/expires_at"),
        (job().retry(Retry::new().initial(366 * day + moment)), "/options/retry/initial_interval_ms"),
        (job().retry(Retry::new().max(366 * day + moment)), "/options/retry/max_interval_ms"),
        (job().retry(Retry::new().coefficient(0.5)), "/options/retry/backoff_coefficient"),
        (job().retry(Retry::new().coefficient(1_000.5)), "/options/retry/backoff_coefficient"),
        (job().tags(vec!["a"; 65]), "/options/tags"),
        (job().rate_limit(RateLimit::new("")), "/options/rate_limit"),
        (job().rate_limit(RateLimit::new("a")), "/options/rate_limit"),
        (job().rate_limit(RateLimit::new(&*long).concurrency(1)), "/options/rate_limit/key"),
        (job().rate_limit(RateLimit::of_queue().concurrency(0)), "/options/rate_limit/concurrency"),
        (job().rate_limit(RateLimit::of_queue().concurrency(1_001)), "/options/rate_limit/concurrency"),
        (job().rate_limit(RateLimit::of_queue().rate(1_000_001, day)), "/options/rate_limit/rate"),
        (job().rate_limit(RateLimit::of_queue().rate(1, day + moment)), "/options/rate_limit/period"),
        (job().rate_limit(RateLimit::of_queue().rate(1, Duration::ZERO)), "/options/rate_limit/period"),
        (unique(Unique::by_type().within(36_525 * day + moment)), "/options/unique/period"),
        (unique(Unique::by_args(Vec::<String>::new())), "/options/unique/args_keys"),
        (unique(Unique::by_args(vec!["a"; 65])), "/options/unique/args_keys"),
        (unique(Unique::by_type().and_meta(Vec::<String>::new())), "/options/unique/meta_keys"),
        (unique(Unique::by_type().and_meta_except(vec!["a"; 65])), "/options/unique/meta_except"),
        (job().retry(Retry::new().never(vec!["E"; 65])), "/options/retry/non_retryable_errors"),
        (job().retry(Retry::new().never([&*long])), "/options/retry/non_retryable_errors/0"),
        (unique(Unique::by_args([&*long])), "/options/unique/args_keys/0"),
        (unique(Unique::by_type().and_meta([&*long])), "/options/unique/meta_keys/0"),
        (unique(Unique::by_type().and_meta_except([&*long])), "/options/unique/meta_except/0"),
        (unique(Unique::by_type().and_meta(["baggage"])), "/options/unique/meta_keys/0"),
        (unique(Unique::by_type().and_meta(["tenant", "semel.x"])), "/options/unique/meta_keys/1"),
        (job().retry(Retry::new().coefficient(f64::NAN)), "/options/retry/backoff_coefficient"),
        (job().retry(Retry::new().coefficient(f64::INFINITY)), "/options/retry/backoff_coefficient"),
        (unique(Unique::by_type().states([])), "/options/unique/states"),
        (unique(hour().period_from(PeriodFrom::Finished)), "/options/unique/period_from"),
        (unique(replace(Unique::by_all_args().states([JobState::Cancelled]))), "/options/unique/states/0"),
        (unique(replace(Unique::strict())), "/options/unique/states/"),
        (unique(follow_up().within(day)), "/options/unique/period"),
        (unique(Unique::content().on_conflict(OnConflict::FollowUp)), "/options/unique/period"),
        (unique(follow_up().states([JobState::Active])), "/options/unique/states"),
        (unique(Unique::strict().on_conflict(OnConflict::Ignore)), "/options/unique/disclose"),
        (unique(Unique::content().disclose(Disclose::Never)), "/options/unique/disclose"),
    ] {
        let refused = semel.enqueue(wrong).await.unwrap_err();
        let semel::Error::Invalid { pointer, .. } = &refused else { panic!("{place}: {refused}") };
        assert!(pointer.starts_with(place), "{place}: {pointer}");
    }
}

#[derive(Serialize, Deserialize, Job)]
#[job(type = "card.charge")]
struct Charge {
    #[job(sensitive)]
    card: u64,
}

/// Not in a log, a failure's message, or the output of a test's assertion.
#[tokio::test]
async fn a_sensitive_value_is_in_no_message() {
    let queue = semel::testing::TestQueue::new();
    let job = queue.enqueue(Charge { card: 4242 }).await.unwrap();
    let stored = job.job().unwrap().load().await.unwrap().unwrap();
    let envelope = Envelope::of(&Charge { card: 4242 });
    assert!(!format!("{stored:?} {envelope:?}").contains("4242"));
    assert!(!format!("{:?}", queue.enqueue(envelope)).contains("4242"));
    queue.schedule("charge", "@yearly", Charge { card: 4242 }).await.unwrap();
    let crons = queue.crons().await.unwrap();
    assert!(crons.len() == 1 && !format!("{crons:?}").contains("4242"));
    let wrong = Envelope::new("card.charge").arg(json!({ "card": "4242 wrong" }));
    let wrong = queue.enqueue(wrong).max_attempts(1).await.unwrap();
    let worker = semel::Worker::new(&queue).handle(async |charge: Charge, run: semel::Run| {
        assert!(charge.card == 4242 && !format!("{run:?}").contains("4242"));
    });
    assert_eq!(queue.drain(&worker).await.len(), 2);
    let ended = wrong.wait().await.unwrap();
    assert!(!ended.job.last_failure().unwrap().contains("4242"), "{:?}", ended.job.last_failure());
}

/// Nor a value that a single job marks although its type marks nothing.
#[tokio::test]
async fn a_value_that_one_job_marks_is_in_no_message() {
    #[derive(Serialize, Deserialize, Job)]
    #[job(type = "card.show")]
    struct Show {
        card: u64,
    }
    let queue = semel::testing::TestQueue::new();
    let marked = Envelope::new("card.show").arg(json!({ "card": "4242 wrong" })).sensitive("/args/0/card");
    let job = queue.enqueue(marked).max_attempts(1).await.unwrap();
    let worker = semel::Worker::new(&queue).handle(async |show: Show| assert_eq!(show.card, 0));
    assert_eq!(queue.drain(&worker).await.len(), 1);
    let ended = job.wait().await.unwrap();
    let told = ended.job.last_failure().unwrap().to_owned();
    assert!(told.contains("sensitive") && !told.contains("4242"), "{told}");
    let read = ended.job.payload::<Show>().map(|show| show.card).unwrap_err();
    assert!(!format!("{read} {read:?}").contains("4242"), "{read}");
}

/// Also in meta: a number that no double can hold keeps its digits.
#[test]
fn numbers_of_the_meta_keep_their_digits() {
    let text = Envelope::new("a.b").meta("n", u128::MAX).into_json().unwrap();
    assert!(text.contains(&u128::MAX.to_string()), "{text}");
}

#[derive(Serialize, Deserialize, Job)]
#[job(type = "seen", unique(args("to")))]
struct Seen {
    to: String,
    #[serde(skip)]
    seen: bool,
}

#[derive(Clone, Serialize, Deserialize, Job)]
#[serde(from = "(u8,)")]
#[job(type = "from", unique(args("number")))]
struct From1 {
    #[job(sensitive)]
    number: u8,
}

impl From<(u8,)> for From1 {
    fn from((number,): (u8,)) -> Self {
        Self { number }
    }
}

#[test]
fn a_member_is_what_serde_writes() {
    let seen = Seen { to: "a".to_owned(), seen: true };
    assert_eq!((wire(&seen)["args"].clone(), seen.seen), (json!([{ "to": "a" }]), true));
    let written = wire(&From1 { number: 7 });
    assert_eq!((&written["args"], From1::SENSITIVE), (&json!([{ "number": 7 }]), &["number"][..]));
}
