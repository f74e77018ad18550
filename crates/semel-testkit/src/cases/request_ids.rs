//! Ids chosen by callers: a repeated request is answered as the first time, and never creates a second job
//! (SEMANTICS 4).

use std::time::Duration;

use semel_core::draft::Reads;
use semel_core::enqueue::{Batch, Mode, Offer, Outcome, enqueue_batch};
use semel_core::ident::JobId;
use semel_core::job::{Ending, Head};
use semel_core::life::{self, Revived};
use semel_core::limits::ABSORBED_IDS_MAX;
use semel_core::settle::{Refusal, Settled};
use semel_core::sight::Queues;
use semel_core::state::{State, StateSet};
use semel_core::unique::UniqueKey;
use semel_store::backend::Filter;

use crate::fixture::{Fixture, done};
use crate::make::{Want, foreign_id, job, key, keyed};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn wish() -> Want {
    keyed("a").on_conflict("follow_up")
}

/// Offers a job that must be absorbed into `holder`.
async fn absorbed(f: &Fixture, want: &Want, holder: JobId) {
    let outcome = f.enqueue(&want.offer()).await;
    assert!(matches!(&outcome, Outcome::Amended(head) if head.id == holder), "{outcome:?}");
}

/// A run and its follow-up, which has absorbed the request with id 2.
async fn follow_up_with_absorbed(f: &Fixture) -> (Head, Head) {
    f.create(&wish().offer()).await;
    let (run, _) = f.claim_one().await;
    let next = f.create(&wish().id(foreign_id(1)).offer()).await;
    absorbed(f, &wish().id(foreign_id(2)).digest(2), next.id).await;
    (run, next)
}

async fn created(f: &Fixture) -> u64 {
    f.queue("default").await.unwrap().created
}

/// Whether the follow-up is waiting, running or ended: the answer is the follow-up that absorbed the request,
/// and nothing is written.
pub async fn an_absorbed_request_is_recognised_as_long_as_its_follow_up_is_kept(f: &Fixture) {
    let (run, next) = follow_up_with_absorbed(f).await;
    let again = wish().id(foreign_id(2)).digest(2);
    for state in [State::Pending, State::Available, State::Active, State::Completed] {
        match state {
            State::Available => drop(f.complete(&run).await),
            State::Active => drop(f.claim_one().await),
            State::Completed => {
                let head = f.head(next.id).await.unwrap();
                f.complete(&head).await;
            }
            _ => {}
        }
        let before = f.head(next.id).await.unwrap();
        assert_eq!(before.state, state);
        absorbed(f, &again, next.id).await;
        assert_eq!(f.head(next.id).await.unwrap(), before, "answered without writing");
    }
    f.maintain().await;
    // Other jobs have used the key since, and the follow-up is no longer among its holders.
    f.finished(&wish().offer()).await;
    f.maintain().await;
    absorbed(f, &again, next.id).await;
    assert_eq!(created(f).await, 3);
    f.advance(DAY).await;
    f.purge().await;
    assert!(f.enqueue(&again.offer()).await.is_inserted(), "whatever it was part of is gone");
}

/// This holds with another key as well as with the same.
pub async fn an_absorbed_id_with_other_content_is_refused(f: &Fixture) {
    let (run, _) = follow_up_with_absorbed(f).await;
    for _ in 0..2 {
        for other in [wish(), keyed("b"), crate::make::job()] {
            let outcome = f.enqueue(&other.id(foreign_id(2)).digest(3).offer()).await;
            assert_eq!(outcome, Outcome::IdTaken(foreign_id(2)));
        }
        assert!(f.holders(key("b")).await.is_empty());
        f.complete(&run).await;
        f.maintain().await;
    }
    assert_eq!(created(f).await, 2);
}

/// A waiting job takes newer args over as a follow-up does.
pub async fn a_request_absorbed_by_a_waiting_job_is_recognised_after_its_start(f: &Fixture) {
    let first = f.create(&wish().offer()).await;
    let second = wish().id(foreign_id(2));
    absorbed(f, &second, first.id).await;
    f.claim_one().await;
    absorbed(f, &second, first.id).await;
    assert_eq!(created(f).await, 1);
}

/// The number kept is bounded; the oldest go first.
pub async fn so_many_absorbed_ids_are_kept(f: &Fixture) {
    let first = f.create(&wish().offer()).await;
    let nth = |number: u32| wish().id(foreign_id(number)).digest(1);
    let max = u32::try_from(ABSORBED_IDS_MAX).unwrap();
    for number in 1..=max + 1 {
        absorbed(f, &nth(number), first.id).await;
    }
    let before = f.head(first.id).await;
    for number in 2..=max + 1 {
        absorbed(f, &nth(number), first.id).await;
    }
    assert_eq!(f.head(first.id).await, before);
    // The oldest id is forgotten, so its request is treated like any other.
    absorbed(f, &nth(1).digest(7), first.id).await;
    assert_ne!(f.head(first.id).await, before);
}

/// Later items see what earlier ones absorbed, and a batch that is taken back has absorbed nothing.
pub async fn a_batch_absorbs_an_id_once_or_not_at_all(f: &Fixture) {
    let first = f.create(&wish().offer()).await;
    let same = wish().id(foreign_id(2));
    let other = keyed("b").id(foreign_id(2)).digest(2);
    let offers = [same.offer(), same.offer(), other.offer()];
    let mut reads = Reads::default();
    offers.iter().for_each(|offer| offer.reads(&mut reads));
    let whole = f.decide_on(&reads, |draft| enqueue_batch(draft, &offers, Mode::AllOrNothing)).await;
    assert!(matches!(whole, Batch::Refused { index: 2, outcome: Outcome::IdTaken(_) }), "{whole:?}");
    assert_eq!(f.head(first.id).await, Some(first.clone()));
    let each = f.decide_on(&reads, |draft| enqueue_batch(draft, &offers, Mode::Each)).await;
    let Batch::Done(outcomes) = each else { panic!("{each:?}") };
    assert!(matches!(&outcomes[..], [Outcome::Amended(_), Outcome::Amended(_), Outcome::IdTaken(_)]));
    assert_eq!(f.enqueue(&other.offer()).await, Outcome::IdTaken(foreign_id(2)));
}

/// Two at the same time: the second is decided again.
pub async fn an_id_absorbed_meanwhile_makes_a_decision_stale(f: &Fixture) {
    let reads = |want: &Want| {
        let mut reads = Reads::default();
        want.offer().reads(&mut reads);
        reads
    };
    let holder: UniqueKey = key("a");
    f.create(&wish().offer()).await;
    let (absorbing, creating) = (wish().id(foreign_id(2)), keyed("b").id(foreign_id(2)).digest(2));
    let mut late = f.draft(&reads(&creating)).await;
    semel_core::enqueue::enqueue(&mut late, &creating.offer()).unwrap();
    absorbed(f, &absorbing, f.holders(holder).await[0].id).await;
    assert_eq!(f.commit(vec![late.finish()]).await, [semel_store::backend::Verdict::Stale]);
    assert_eq!(f.enqueue(&creating.offer()).await, Outcome::IdTaken(foreign_id(2)));
}

/// The body is gone, and with it the digest of the request; the key is remembered. No second job may take the
/// id.
pub async fn the_id_of_a_purged_job_stays_taken_while_its_key_is_remembered(f: &Fixture) {
    let strict = |text: &str| keyed(text).states(StateSet::ALL).period(DAY * 30, "created").id(foreign_id(2));
    f.finished(&strict("a").offer()).await;
    f.advance(DAY * 2).await;
    assert_eq!(f.purge().await, 1);
    for other in [keyed("b"), keyed("a"), crate::make::job(), strict("a")] {
        let outcome = f.enqueue(&other.id(foreign_id(2)).digest(2).offer()).await;
        assert_eq!(outcome, Outcome::IdTaken(foreign_id(2)));
    }
    // The other items of the batch are not affected.
    let offers = [strict("b").digest(2).offer(), keyed("c").offer()];
    let batch = f.decide(|draft| enqueue_batch(draft, &offers, Mode::Each)).await;
    let Batch::Done(outcomes) = batch else { panic!("{batch:?}") };
    assert!(matches!(&outcomes[..], [Outcome::IdTaken(_), Outcome::Created(_)]), "{outcomes:?}");
    assert_eq!(f.holders(key("a")).await.len(), 1);
    f.advance(DAY * 30).await;
    f.purge().await;
    assert!(f.enqueue(&keyed("b").id(foreign_id(2)).offer()).await.is_inserted(), "nothing of it is left");
}

/// The release ends the memory of the job, and with it the claim to the id.
pub async fn the_id_of_a_purged_job_is_free_when_its_key_is_released(f: &Fixture) {
    let strict = keyed("a").states(StateSet::ALL).id(foreign_id(2));
    f.finished(&strict.offer()).await;
    f.advance(DAY * 2).await;
    f.purge().await;
    assert_eq!(f.enqueue(&strict.offer()).await, Outcome::IdTaken(foreign_id(2)));
    f.decide(|draft| life::release_key(draft, key("a"))).await;
    assert!(f.enqueue(&strict.offer()).await.is_inserted());
    // The same in the other order.
    let other = keyed("b").states(StateSet::ALL).id(foreign_id(3));
    f.finished(&other.offer()).await;
    f.decide(|draft| life::release_key(draft, key("b"))).await;
    f.advance(DAY * 2).await;
    f.purge().await;
    assert!(f.enqueue(&other.offer()).await.is_inserted());
}

/// The window is renewed in the same commit in which the id of the purged job is asked for.
pub async fn a_purged_job_whose_window_is_renewed_meanwhile_is_still_no_job(f: &Fixture) {
    let want = keyed("a").states(StateSet::ALL).period(DAY * 3, "last_duplicate");
    f.finished(&want.clone().id(foreign_id(2)).offer()).await;
    f.advance(DAY * 2).await;
    f.purge().await;
    let offers = [want.offer(), keyed("b").id(foreign_id(2)).digest(2).offer()];
    let batch = f.decide(|draft| enqueue_batch(draft, &offers, Mode::Each)).await;
    let Batch::Done(outcomes) = batch else { panic!("{batch:?}") };
    assert!(matches!(&outcomes[..], [Outcome::Rejected { .. }, Outcome::IdTaken(_)]), "{outcomes:?}");
}

/// A caller that lost the reply does not know that an operator deleted the letter. The job is no longer a
/// dead letter, but stays an ordinary ended job until its day is over.
pub async fn the_id_of_a_deleted_dead_letter_is_its_own_for_a_day(f: &Fixture) {
    let want = job().id(foreign_id(1)).attempts(1).dead_letter();
    f.create(&want.offer()).await;
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    f.maintain().await;
    f.advance(HOUR * 23).await;
    let delete = || f.decide(|draft| life::delete_dead_letter(draft, run.id));
    let deleted = done(delete().await);
    assert_eq!((deleted.state, deleted.ending), (State::Discarded, Some(Ending::Failed)));
    assert_eq!(deleted.purge_at().unwrap().since(deleted.finished_at.unwrap()), DAY);
    for _ in 0..2 {
        assert_eq!(f.enqueue(&want.offer()).await, Outcome::Repeated(Box::new(deleted.clone())));
        assert_eq!(f.enqueue(&want.clone().digest(2).offer()).await, Outcome::IdTaken(run.id));
        let is_none = Refusal::NoDeadLetter(State::Discarded);
        assert_eq!(delete().await, Settled::Refused(is_none.clone()));
        assert_eq!(f.decide(|draft| life::revive(draft, run.id)).await, Revived::Refused(is_none));
        let filter = Filter { dead_letters: true, limit: 10, ..Filter::default() };
        assert!(f.backend().list(filter).await.unwrap().heads.is_empty());
        f.maintain().await;
    }
    f.advance(HOUR * 2).await;
    assert_eq!(f.purge().await, 1);
    assert_eq!(f.head(run.id).await, None);
    f.create(&want.offer()).await;
    // A letter older than a day is deleted at once: its request was answered for long enough.
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    f.advance(HOUR * 25).await;
    done(delete().await);
    assert_eq!(f.head(run.id).await, None);
}

/// Its own id was not chosen by a caller, but those of the absorbed requests were.
pub async fn the_ids_that_a_deleted_dead_letter_absorbed_are_its_own_for_a_day(f: &Fixture) {
    let wish = || wish().attempts(1).dead_letter();
    let first = f.create(&wish().offer()).await;
    let again = wish().id(foreign_id(2)).digest(2);
    absorbed(f, &again, first.id).await;
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    for hours in [0, 23] {
        f.advance(HOUR * hours).await;
        f.decide(|draft| life::delete_dead_letter(draft, first.id)).await;
        assert!(!f.head(first.id).await.unwrap().is_dead_letter());
        absorbed(f, &again, first.id).await;
    }
    f.advance(HOUR).await;
    assert_eq!(f.purge().await, 1);
    assert!(f.enqueue(&again.offer()).await.is_inserted());
}

/// The caller that used the id first could see the queue.
pub async fn an_id_used_in_a_queue_that_one_does_not_see_is_taken(f: &Fixture) {
    let blind = |want: &Want| Offer { queues: Queues::Only(vec!["mail".to_owned()].into()), ..want.offer() };
    let own = job().queue("pay").id(foreign_id(9));
    f.create(&own.offer()).await;
    assert_eq!(f.enqueue(&blind(&own)).await, Outcome::IdTaken(foreign_id(9)));
    let (_, next) = follow_up_with_absorbed(f).await;
    let again = wish().id(foreign_id(2)).digest(2);
    assert_eq!(f.enqueue(&blind(&again)).await, Outcome::IdTaken(foreign_id(2)));
    absorbed(f, &again, next.id).await;
}
