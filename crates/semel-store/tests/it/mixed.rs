//! Groups in which some decisions write and others do not, on a store whose loads may show unconfirmed data:
//! decisions without writes are answered with the group's commit, by what was committed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use semel_core::draft::{Draft, Group, Missing, Reads};
use semel_core::enqueue::{Batch as Admitted, Mode, Outcome, enqueue, enqueue_batch};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::retention::Retention;
use semel_core::settle::{Settled, complete};
use semel_core::state::{State, StateSet};
use semel_core::unique::UniqueKey;
use semel_store::backend::{Applied, Batch, BoxFuture, Verdict};
use semel_store::clock::ManualClock;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, Store, StoreError};
use semel_testkit::fixture::{bearer, claim};
use semel_testkit::make::{Want, key, keyed};
use semel_testkit::transact::transact;

/// A store on which another server commits just before the next commit.
struct Shared {
    inner: Memory,
    other: Mutex<Option<Group>>,
    /// The reads that were confirmed.
    confirmed: Mutex<Vec<Reads>>,
    /// Whether it consists of several parts that are durable independently.
    has_parts: AtomicBool,
}

impl Layer for Shared {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(async move {
            let other = self.other.lock().unwrap().take();
            if let Some(group) = other {
                let first = self.inner.commit(Batch { groups: vec![group], claims: Vec::new() }).await?;
                assert_eq!(first.groups, [Verdict::Applied]);
            }
            self.inner.commit(batch).await
        })
    }

    fn confirm<'a>(&'a self, seen: &'a Reads) -> BoxFuture<'a, Result<(), StoreError>> {
        self.confirmed.lock().unwrap().push(seen.clone());
        self.inner.confirm(seen)
    }

    fn shows_what_is_durable(&self) -> bool {
        false
    }

    fn waits_for_all(&self) -> bool {
        !self.has_parts.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn new() -> Arc<Self> {
        let inner = Memory::new(ManualClock::default());
        let (confirmed, has_parts) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { inner, other: Mutex::default(), confirmed, has_parts })
    }

    async fn offered(&self, want: &Want) -> Outcome {
        let offer = want.offer();
        transact(self, &reads(want), |draft| enqueue(draft, &offer)).await.unwrap()
    }

    /// The keys confirmed each time.
    fn waited(&self) -> Vec<Vec<UniqueKey>> {
        let keys = |seen: Reads| seen.keys.into_iter().map(|read| read.key).collect::<Vec<_>>();
        std::mem::take(&mut *self.confirmed.lock().unwrap()).into_iter().map(keys).collect()
    }

    /// Offers a job and starts it.
    async fn started(&self, want: &Want) -> Head {
        assert!(self.offered(want).await.is_inserted());
        let batch = Batch { groups: Vec::new(), claims: vec![claim(&["default"], 1)] };
        self.inner.commit(batch).await.unwrap().claims.remove(0).jobs.remove(0).0
    }

    /// Makes a decision on another server, which is committed just before the next commit here.
    async fn decided_elsewhere<T>(
        &self,
        reads: &Reads,
        decide: impl FnOnce(&mut Draft) -> Result<T, Missing>,
    ) {
        let mut draft = Draft::new(self.inner.load(reads).await.unwrap(), 9, self.inner.rows());
        assert!(decide(&mut draft).is_ok());
        *self.other.lock().unwrap() = Some(draft.finish());
    }
}

fn reads(want: &Want) -> Reads {
    let mut reads = Reads::default();
    want.offer().reads(&mut reads);
    reads
}

fn whole(id: JobId) -> Reads {
    Reads { fulls: vec![id], ..Reads::default() }
}

/// Takes both decisions in one group, in this order.
async fn together<T: Send + 'static, U: Send + 'static>(
    shared: &Arc<Shared>,
    first: (Reads, impl FnMut(&mut Draft) -> Result<T, Missing> + Send + 'static),
    second: (Reads, impl FnMut(&mut Draft) -> Result<U, Missing> + Send + 'static),
) -> (T, U) {
    let (store, batcher) =
        Store::with_batcher(Arc::clone(shared) as Arc<dyn Backend>, Retention::default(), 7);
    // Both are in the inbox before the batcher looks.
    let both = async { tokio::join!(store.decide(first.0, first.1), store.decide(second.0, second.1)) };
    tokio::select! {
        biased;
        (first, second) = both => (first.unwrap(), second.unwrap()),
        () = batcher => panic!("the batcher has ended"),
    }
}

/// Two jobs with one key are running. One group acknowledges the first and offers a duplicate, which the
/// second still blocks. But another server has acknowledged the second just before, so no holder is left and
/// the duplicate is decided again.
#[tokio::test]
async fn an_answer_on_top_of_an_end_is_given_anew_when_the_other_holder_has_ended_too() {
    let shared = Shared::new();
    let elsewhere = shared.started(&keyed("a")).await;
    let beside = keyed("a").states(StateSet::default().with(State::Available));
    let run = shared.started(&beside).await;
    let end = |draft: &mut Draft| complete(draft, elsewhere.id, &bearer(&elsewhere), None);
    shared.decided_elsewhere(&whole(elsewhere.id), end).await;
    let want = keyed("a").on_conflict("ignore");
    let (asked, offer) = (reads(&want), want.offer());
    let (settled, outcome) = together(
        &shared,
        (whole(run.id), move |draft: &mut Draft| complete(draft, run.id, &bearer(&run), None)),
        (asked, move |draft: &mut Draft| enqueue(draft, &offer)),
    )
    .await;
    assert!(matches!(settled, Settled::Done(_)), "an end does not rely on its key: {settled:?}");
    assert!(matches!(outcome, Outcome::Created(_)), "nobody is left: {outcome:?}");
}

/// What it saw was to be written by a decision that turned out stale.
#[tokio::test]
async fn an_answer_that_names_what_was_not_written_is_given_anew() {
    let shared = Shared::new();
    let want = keyed("a").on_conflict("ignore");
    let offer = want.offer();
    shared.decided_elsewhere(&reads(&want), |draft| enqueue(draft, &offer)).await;
    let (one, two) = (want.offer(), want.offer());
    let (first, second) = together(
        &shared,
        (reads(&want), move |draft: &mut Draft| enqueue(draft, &one)),
        (reads(&want), move |draft: &mut Draft| enqueue(draft, &two)),
    )
    .await;
    let Outcome::Existing(stored) = shared.offered(&want).await else { panic!("the other's job is there") };
    for outcome in [first, second] {
        assert!(matches!(&outcome, Outcome::Existing(head) if head.id == stored.id), "{outcome:?}");
    }
}

/// Takes an offer of `other` and one of `known` in one group. Returns both outcomes, and the keys that were
/// confirmed after the commit, each time.
async fn beside(shared: &Arc<Shared>, other: &Want, known: &Want) -> (Outcome, Outcome, Vec<Vec<UniqueKey>>) {
    shared.confirmed.lock().unwrap().clear();
    let (one, two) = (other.offer(), known.offer());
    let (first, second) = together(
        shared,
        (reads(other), move |draft: &mut Draft| enqueue(draft, &one)),
        (reads(known), move |draft: &mut Draft| enqueue(draft, &two)),
    )
    .await;
    (first, second, shared.waited())
}

/// The group's commit came after everything that it saw.
#[tokio::test]
async fn a_duplicate_beside_a_write_is_answered_with_it_and_waits_for_nothing_more() {
    let shared = Shared::new();
    let want = keyed("a").on_conflict("ignore");
    assert!(shared.offered(&want).await.is_inserted());
    for (other, more) in [(keyed("b"), 0), (keyed("b").on_conflict("ignore"), 1)] {
        let (first, second, waited) = beside(&shared, &other, &want).await;
        assert_eq!(first.is_inserted(), more == 0);
        assert!(matches!(second, Outcome::Existing(_)), "{second:?}");
        assert_eq!(waited.len(), more, "where nobody writes it is asked");
    }
}

/// The commit wrote to another part than the one with the duplicate's key.
#[tokio::test]
async fn a_duplicate_beside_a_write_to_a_store_of_several_parts_waits_for_what_it_names() {
    let shared = Shared::new();
    let want = keyed("a").on_conflict("ignore");
    assert!(shared.offered(&want).await.is_inserted());
    shared.has_parts.store(true, Ordering::SeqCst);
    let (first, second, waited) = beside(&shared, &keyed("b"), &want).await;
    assert!(first.is_inserted() && matches!(second, Outcome::Existing(_)), "{second:?}");
    assert_eq!(waited, [vec![key("a")]], "and for nothing of who wrote");
}

/// The batch has taken back all its writes, and its answer depends on what it read before.
#[tokio::test]
async fn a_batch_that_is_refused_as_a_whole_waits_for_what_it_names() {
    let shared = Shared::new();
    assert!(shared.offered(&keyed("a")).await.is_inserted());
    shared.has_parts.store(true, Ordering::SeqCst);
    shared.confirmed.lock().unwrap().clear();
    let other = keyed("b").offer();
    let offers = [keyed("c").offer(), keyed("a").offer()];
    let mut asked = Reads::default();
    offers.iter().for_each(|offer| offer.reads(&mut asked));
    let (first, second) = together(
        &shared,
        (reads(&keyed("b")), move |draft: &mut Draft| enqueue(draft, &other)),
        (asked, move |draft: &mut Draft| enqueue_batch(draft, &offers, Mode::AllOrNothing)),
    )
    .await;
    assert!(first.is_inserted() && matches!(second, Admitted::Refused { index: 1, .. }), "{second:?}");
    assert_eq!(shared.waited(), [vec![key("c"), key("a")]]);
}
