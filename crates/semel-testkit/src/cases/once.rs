//! Requests that callers may send again under a key of the request itself (`Idempotency-Key`), on every
//! store: answered as the first time for a day, whichever server decided them (SEMANTICS 7).

use std::time::Duration;

use semel_core::draft::Reads;
use semel_core::enqueue::once::{self, Once, REMEMBERED};
use semel_core::enqueue::{Batch, Mode, Offer, Outcome, enqueue, enqueue_batch};
use semel_core::ident::JobId;
use semel_core::job::NoteKind;
use semel_core::life;
use semel_core::settle::Settled;
use semel_core::state::State;
use semel_core::task::{self, TaskOutcome, TaskPlan};
use semel_core::tenant::Namespace;
use semel_core::trail::Payload;

use semel_store::backend::Verdict::{Applied, Stale};

use crate::fixture::Fixture;
use crate::flows::chain;
use crate::make::{Want, foreign_id, job, key, keyed};

/// The job as a request with this `Idempotency-Key`, whose digest bytes are all `digest`.
fn sent(want: &Want, request: &str, digest: u8) -> Offer {
    Offer { once: Some(Once { key: key(request), digest: [digest; 32] }), ..want.offer() }
}

fn reads(offer: &Offer) -> Reads {
    let mut reads = Reads::default();
    offer.reads(&mut reads);
    reads
}

async fn repeated(f: &Fixture, offer: &Offer, id: JobId) {
    let outcome = f.enqueue(offer).await;
    assert!(matches!(&outcome, Outcome::Repeated(head) if head.id == id), "{outcome:?}");
}

async fn jobs(f: &Fixture) -> u64 {
    f.queue("default").await.map_or(0, |stats| stats.counts.iter().sum())
}

async fn is_remembered(f: &Fixture, request: &str) -> bool {
    let once = Once { key: key(request), digest: [0; 32] };
    let reads = Reads { documents: vec![once.document()], ..Reads::default() };
    f.load(&reads).await.peek_document(&once.document()).is_some()
}

/// The job may be waiting, running or ended, and may have a unique policy or none.
pub async fn a_request_that_is_sent_again_is_answered_as_the_first_time(f: &Fixture) {
    for (want, request) in [(job(), "a"), (keyed("k"), "b")] {
        let offer = sent(&want, request, 1);
        let id = f.create(&offer).await.id;
        let before = jobs(f).await;
        repeated(f, &offer, id).await;
        let (head, _) = f.claim_one().await;
        repeated(f, &offer, id).await;
        f.complete(&head).await;
        f.maintain().await;
        repeated(f, &offer, id).await;
        assert_eq!(jobs(f).await, before);
    }
    assert!(f.enqueue(&sent(&job(), "c", 1)).await.is_inserted(), "another key is another request");
}

/// The existing job is not named if one of the two policies, or the caller's scope, hides it.
pub async fn another_request_under_the_key_is_refused(f: &Fixture) {
    let hidden = |want: Want| want.policy(|spec| spec.disclose = Some("never".to_owned()));
    let blind = |offer: Offer| Offer { inspect: false, ..offer };
    f.create(&sent(&keyed("a"), "open", 1)).await;
    f.create(&sent(&hidden(keyed("b")), "closed", 1)).await;
    let before = jobs(f).await;
    for (offer, is_named) in [
        (sent(&job(), "open", 2), true),
        (sent(&hidden(keyed("c")), "open", 2), false),
        (blind(sent(&job(), "open", 2)), false),
        (sent(&job(), "closed", 2), false),
    ] {
        match f.enqueue(&offer).await {
            Outcome::KeyReused(holder) => assert_eq!(holder.named().is_some(), is_named, "{offer:?}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(jobs(f).await, before);
}

/// The job and the record of the request are stored together or not at all.
pub async fn the_second_of_two_requests_of_one_key_is_stale(f: &Fixture) {
    let offer = sent(&job(), "a", 1);
    let mut groups = Vec::new();
    for _ in 0..2 {
        let mut draft = f.draft(&reads(&offer)).await;
        let outcome = enqueue(&mut draft, &offer).unwrap();
        assert!(outcome.is_inserted(), "{outcome:?}");
        groups.push(draft.finish());
    }
    let second = groups.pop().unwrap();
    assert_eq!(f.commit(groups).await, [Applied]);
    assert_eq!(f.commit(vec![second]).await, [Stale]);
    assert_eq!(jobs(f).await, 1);
    let outcome = f.enqueue(&offer).await;
    assert!(matches!(outcome, Outcome::Repeated(_)), "{outcome:?}");
    assert_eq!(jobs(f).await, 1);
}

/// A request that stored nothing is decided again.
pub async fn a_request_that_stored_nothing_is_not_remembered(f: &Fixture) {
    let holder = f.create(&keyed("k").offer()).await;
    let outcome = f.enqueue(&sent(&keyed("k"), "alone", 1)).await;
    assert!(matches!(outcome, Outcome::Rejected { .. }), "{outcome:?}");
    let offers = [sent(&job(), "first", 1), sent(&keyed("k"), "second", 1)];
    let mut all = reads(&offers[0]);
    offers[1].reads(&mut all);
    let refused = f.decide_on(&all, |draft| enqueue_batch(draft, &offers, Mode::AllOrNothing)).await;
    assert!(matches!(refused, Batch::Refused { index: 1, .. }), "{refused:?}");
    for request in ["alone", "first", "second"] {
        assert!(!is_remembered(f, request).await, "{request}");
    }
    assert_eq!(jobs(f).await, 1);
    f.cancel(holder.id).await;
    let taken = f.decide_on(&all, |draft| enqueue_batch(draft, &offers, Mode::AllOrNothing)).await;
    assert!(
        matches!(&taken, Batch::Done(outcomes) if outcomes.iter().all(Outcome::is_inserted)),
        "{taken:?}"
    );
    assert!(is_remembered(f, "first").await && is_remembered(f, "second").await);
}

/// This holds whether or not the duty has deleted the record.
pub async fn a_request_is_forgotten_when_its_time_is_over(f: &Fixture) {
    let offer = sent(&job(), "a", 1);
    let once = offer.once.unwrap();
    let document = once.document();
    let read = Reads { documents: vec![document.clone()], ..Reads::default() };
    let first = f.create(&offer).await.id;
    assert!(!f.decide_on(&read, |draft| once::forget(draft, &document)).await, "not yet");
    repeated(f, &offer, first).await;
    // It is remembered for one day.
    let moment = Duration::from_secs(1);
    f.advance(moment * (24 * 3600 - 1)).await;
    repeated(f, &offer, first).await;
    f.advance(moment).await;
    let second = f.create(&offer).await.id;
    repeated(f, &offer, second).await;
    f.advance(REMEMBERED).await;
    assert!(f.decide_on(&read, |draft| once::forget(draft, &document)).await);
    assert!(!is_remembered(f, "a").await);
    assert!(!f.decide_on(&read, |draft| once::forget(draft, &document)).await, "twice");
    f.create(&offer).await;
}

/// A caller that sends the request again does not know that what it created is gone; it must not be carried
/// out twice.
pub async fn a_request_is_remembered_longer_than_what_it_created(f: &Fixture) {
    let want = job().attempts(1).dead_letter();
    f.create(&sent(&want, "a", 1)).await;
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    let deleted = f.decide(|draft| life::delete_dead_letter(draft, run.id)).await;
    assert!(matches!(deleted, Settled::Done(_)), "{deleted:?}");
    assert!(f.full(run.id).await.is_none());
    for digest in [1, 2] {
        assert_eq!(f.enqueue(&sent(&want, "a", digest)).await, Outcome::KeySpent);
    }
    f.advance(REMEMBERED).await;
    f.create(&sent(&want, "a", 1)).await;
    // Nor is the first request taken for the creator of a later job that reuses the deleted job's id.
    let want = want.priority(9).id(foreign_id(1)).body(|body| body.request_digest = None);
    f.create(&sent(&want, "b", 1)).await;
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    f.decide(|draft| life::delete_dead_letter(draft, run.id)).await;
    f.advance(REMEMBERED / 2).await;
    f.create(&want.offer()).await;
    assert_eq!(f.enqueue(&sent(&want, "b", 1)).await, Outcome::KeySpent);
}

/// This holds for every kind of request: a job without a policy cannot be found in any other way.
pub async fn the_second_of_two_requests_of_one_group_is_answered_as_the_first(f: &Fixture) {
    for (at, want) in [job(), keyed("k"), job().id(foreign_id(1))].into_iter().enumerate() {
        let offer = sent(&want, &format!("request {at}"), 1);
        let mut draft = f.draft(&reads(&offer)).await;
        let first = enqueue(&mut draft, &offer).unwrap();
        let id = first.inserted().unwrap();
        let group = draft.finish();
        let second = enqueue(&mut draft, &offer).unwrap();
        assert!(matches!(&second, Outcome::Repeated(head) if head.id == id), "{second:?}");
        assert!(draft.finish().is_empty());
        assert_eq!(f.commit(vec![group]).await, [Applied]);
        repeated(f, &offer, id).await;
    }
}

/// This holds also when the job it created has itself been replaced.
pub async fn a_replacement_is_not_made_twice(f: &Fixture) {
    let want = keyed("k").on_conflict("replace");
    f.create(&want.offer()).await;
    let offer = sent(&want, "a", 1);
    let outcome = f.enqueue(&offer).await;
    let Outcome::Replaced { head: second, .. } = outcome else { panic!("{outcome:?}") };
    repeated(f, &offer, second.id).await;
    let outcome = f.enqueue(&want.offer()).await;
    let Outcome::Replaced { head: third, .. } = outcome else { panic!("{outcome:?}") };
    repeated(f, &offer, second.id).await;
    assert_eq!(f.head(second.id).await.unwrap().state, State::Cancelled);
    assert_eq!(f.head(third.id).await.unwrap().state, State::Available);
}

/// Nor does sending it again undo what another request has overwritten since.
pub async fn an_amendment_is_not_made_twice(f: &Fixture) {
    let want = |args: &str| keyed("k").on_conflict("follow_up").args(args);
    let id = f.create(&want("[0]").offer()).await.id;
    let offer = sent(&want("[1]"), "a", 1);
    let amended = async |offer: &Offer| {
        let outcome = f.enqueue(offer).await;
        assert!(matches!(&outcome, Outcome::Amended(head) if head.id == id), "{outcome:?}");
    };
    amended(&offer).await;
    amended(&sent(&want("[2]"), "b", 1)).await;
    let before = f.head(id).await.unwrap();
    amended(&offer).await;
    assert_eq!(f.head(id).await.unwrap(), before, "answered without writing");
    let (_, full) = f.full(id).await.unwrap();
    assert_eq!(Payload::decode(full.note(NoteKind::Payload).unwrap()).unwrap().args.get(), "[2]");
}

/// The answer has all the task's steps.
pub async fn a_task_that_is_asked_for_again_is_answered_as_the_first_time(f: &Fixture) {
    let plan = TaskPlan { offer: sent(&keyed("k"), "a", 1), steps: chain(vec![job().offer(); 2]) };
    let space = Namespace::default();
    let create = async || f.decide_on(&reads(&plan.offer), |draft| task::create(draft, &plan, &space)).await;
    let first = create().await;
    let TaskOutcome::Created { id, .. } = first else { panic!("{first:?}") };
    let before = jobs(f).await;
    let again = create().await;
    assert!(
        matches!(&again, TaskOutcome::Decided(Outcome::Repeated(head)) if head.id == id.as_job()),
        "{again:?}"
    );
    assert_eq!(jobs(f).await, before);
}
