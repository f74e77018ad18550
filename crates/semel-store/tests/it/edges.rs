//! Limits of rules: the last value that is accepted, and the first that is not.

use std::time::Duration;

use semel_core::cron::{Looked, Overlap};
use semel_core::draft::DocumentKind;
use semel_core::enqueue::Outcome;
use semel_core::event::EventKind;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::NoteKind;
use semel_core::life::set_queue;
use semel_core::limits::PARENT_RESULTS_BYTES_MAX;
use semel_core::settings::{Backpressure, Depth, QueueSettings};
use semel_core::settle::{self, Report};
use semel_core::state::State;
use semel_core::trail::Failures;
use semel_core::workflow::{self, Created};
use semel_store::backend::Seek;
use semel_testkit::fixture::{bearer, bytes, done};
use semel_testkit::flows::{self, look, register, registration};
use semel_testkit::make::{job, keyed};
use semel_testkit::{Fixture, Step};

fn fixture() -> Fixture {
    Fixture::new(Step::Nothing, crate::memory)
}

/// The bytes of all results that are handed to a step, with a comma after each.
#[tokio::test]
async fn results_are_handed_on_as_long_as_they_fit_together() {
    const MAX: usize = PARENT_RESULTS_BYTES_MAX;
    for (results, fits) in [
        (&[MAX - 1][..], &[true][..]),
        (&[MAX], &[false]),
        (&[10, 10, MAX - 23], &[true, true, true]),
        (&[10, 10, MAX - 22], &[true, true, false]),
        // A result that does not fit uses up no room.
        (&[MAX - 12, 11, 10], &[true, false, true]),
    ] {
        let f = fixture();
        let mut steps = vec![(job().offer(), Vec::new()); results.len()];
        steps.push((job().offer(), (0..).take(results.len()).collect()));
        let (id, _) = flows::create(&f, &flows::graph(steps)).await;
        let (mut expected, runs) = (Vec::new(), f.claim("default", 9).await.jobs);
        for (((run, _), size), fits) in runs.iter().zip(results).zip(fits) {
            let (result, bearer) = (format!("\"{}\"", "a".repeat(size - 2)), bearer(run));
            let given = bytes(&result);
            done(f.decide(|draft| settle::complete(draft, run.id, &bearer, Some(&given))).await);
            let omitted = format!(r#"{{"semel.omitted":true,"job_id":"{}"}}"#, run.id);
            expected.push(if *fits { result } else { omitted });
        }
        let (_, full) = f.full(flows::job_of(&f, id, results.len()).await).await.unwrap();
        let expected = format!("[{}]", expected.join(","));
        assert!(full.note(NoteKind::ParentResults) == Some(&bytes(&expected)), "{results:?}");
        // A result that would fit nowhere is not kept either.
        let seek = Seek::Kind { kind: DocumentKind::StepResult, from: None, descending: false, limit: 9 };
        let kept = f.backend().documents(seek).await.unwrap().documents;
        assert_eq!(kept.len(), results.len());
        assert!(kept.iter().all(|(_, kept)| kept.text.len() < MAX), "{results:?}");
    }
}

/// None of its jobs is stored; the caller repeats the request when there is room.
#[tokio::test]
async fn a_workflow_one_of_whose_first_steps_finds_no_room_is_not_created() {
    let f = fixture();
    let set = QueueSettings { backpressure: Some(Backpressure { max_depth: 1, warning_threshold: 1.0 }) };
    f.decide(|draft| set_queue(draft, &QueueName::default(), &set)).await;
    let plan = |steps: usize| flows::group(vec![job().bounded().offer(); steps]);
    let two = plan(2);
    let created = f.decide(|draft| workflow::create(draft, &two)).await;
    let Created::QueueFull(depth) = created else { panic!("{created:?}") };
    assert_eq!(depth, Depth { waiting: 1, bound: 1 });
    assert_eq!(f.queue("default").await.unwrap().created, 0);
    flows::create(&f, &plan(1)).await;
}

/// The job itself keeps the whole message.
#[tokio::test]
async fn a_step_repeats_two_hundred_characters_of_its_jobs_failure() {
    let f = fixture();
    let (id, _) = flows::create(&f, &flows::group([job().attempts(1).offer()])).await;
    let (run, _) = f.claim_one().await;
    let (bearer, message) = (bearer(&run), "\u{e9}".repeat(201));
    let report = Report { code: "boom".to_owned(), message: message.clone(), ..Report::default() };
    done(f.decide(|draft| settle::fail(draft, run.id, &bearer, &report)).await);
    let error = flows::stored(&f, id).await.unwrap().steps.remove(0).error.unwrap();
    assert_eq!(error.message, "\u{e9}".repeat(200));
    let (_, full) = f.full(run.id).await.unwrap();
    let failures = Failures::decode(full.note(NoteKind::Failures).unwrap()).unwrap();
    assert_eq!(failures.0[0].message, message);
}

/// No event may say that it can run, since it never will.
#[tokio::test]
async fn a_follow_up_that_is_replaced_with_its_run_is_not_let_go_before() {
    let f = fixture();
    let wish = keyed("a").on_conflict("follow_up");
    f.create(&wish.offer()).await;
    let (run, _) = f.claim_one().await;
    let next = f.create(&wish.offer()).await;
    let outcome = f.enqueue(&keyed("a").on_conflict("replace").offer()).await;
    let Outcome::Replaced { cancelled, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(cancelled, [run.id, next.id]);
    let log = f.log().await;
    assert!(!log.iter().any(|recorded| recorded.event.kind == EventKind::Available), "{log:?}");
}

async fn next(f: &Fixture) -> JobId {
    f.advance(Duration::from_secs(60)).await;
    match look(f, "a").await {
        Looked::Ticked(tick) => JobId::parse(&tick.job.unwrap(), "").unwrap(),
        other => panic!("no tick: {other:?}"),
    }
}

/// A debouncing caller replaces a job again and again: the last replacement stands for the cron's own job.
#[tokio::test]
async fn a_tick_waits_for_the_last_of_many_in_its_jobs_place() {
    let f = fixture();
    let replacing = keyed("chain").on_conflict("replace").offer();
    register(&f, "a", &registration("* * * * *", Overlap::Enqueue, replacing.clone())).await;
    next(&f).await;
    let mut last = f.create(&replacing).await;
    for _ in 1..31 {
        last = f.create(&replacing).await;
    }
    register(&f, "a", &registration("* * * * *", Overlap::Enqueue, job().offer())).await;
    let held = next(&f).await;
    assert_eq!(f.head(held).await.unwrap().state, State::Pending);
    f.cancel(last.id).await;
    assert_eq!(f.head(held).await.unwrap().state, State::Available);
}
