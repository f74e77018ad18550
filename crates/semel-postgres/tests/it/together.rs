//! Concurrent claims of one queue are served by one statement, each as if it had come alone.

use std::sync::Arc;
use std::time::Duration;

use semel_core::enqueue::{Batch as Enqueued, Mode, Offer, Outcome};
use semel_core::ident::JobId;
use semel_core::lease::{Grant, Unclaimable};
use semel_core::limit::Limit;
use semel_engine::Engine;
use semel_store::Backend;
use semel_store::backend::{Batch, Claim, Claimed};
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use semel_testkit::fixture::claim;
use semel_testkit::make::{job, keyed};

use crate::place::Place;

/// A store and the jobs in it.
struct Stored {
    backend: Arc<dyn Backend>,
    engine: Engine,
    jobs: Vec<JobId>,
}

impl Stored {
    async fn new(backend: Arc<dyn Backend>, offers: Vec<Offer>) -> Self {
        let engine = Engine::without_duties(Arc::clone(&backend)).unwrap();
        let mut jobs = Vec::new();
        for offer in offers {
            let stored = engine.enqueue_batch(vec![offer], Mode::Each, "").await.unwrap();
            let Enqueued::Done(outcomes) = stored else { panic!("not stored") };
            let Outcome::Created(head) = &outcomes[0] else { panic!("not created") };
            jobs.push(head.id);
        }
        Self { backend, engine, jobs }
    }

    async fn claim(&self, claims: Vec<Claim>) -> Vec<Claimed> {
        self.backend.commit(Batch { groups: Vec::new(), claims }).await.unwrap().claims
    }

    /// The jobs that a claim took, in order.
    fn taken(&self, claimed: &Claimed) -> Vec<usize> {
        claimed.jobs.iter().map(|(head, _)| self.number(head.id)).collect()
    }

    /// The jobs that a claim met and did not take, and why.
    fn met(&self, claimed: &Claimed) -> Vec<(usize, Unclaimable)> {
        claimed.unclaimable.iter().map(|(id, why)| (self.number(*id), *why)).collect()
    }

    fn number(&self, id: JobId) -> usize {
        self.jobs.iter().position(|job| *job == id).unwrap()
    }
}

fn by(worker: &str, limit: u32) -> Claim {
    Claim { grant: Grant::new(worker.into(), None), ..claim(&["default"], limit) }
}

async fn postgres(place: &Place, clock: &ManualClock) -> Arc<dyn Backend> {
    Arc::new(semel_postgres::Postgres::open_with_clock(place.address(), clock.clone()).await.unwrap())
}

/// The result is that of the model, which serves claims one after the other, and what is stored is what was
/// granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_gets_what_it_would_get_alone() {
    let offers = || {
        let mut offers: Vec<Offer> = (0..4).map(|_| job().offer()).collect();
        offers.push(job().priority(5).offer());
        offers.push(keyed("a").times(1_000, 2_000).offer());
        offers.push(job().queue("other").offer());
        offers.push(keyed("b").priority(1).offer());
        offers
    };
    let claims = || {
        let other = Claim { queues: claim(&["other"], 1).queues, ..by("d", 3) };
        let hurried = Claim { grant: Grant::new("e".into(), Some(500)), ..by("e", 1) };
        vec![by("a", 2), by("b", 1), other, by("c", 0), hurried, by("f", 2), by("g", 9)]
    };
    let (place, clock) = (Place::new(), ManualClock::default());
    let model = Stored::new(Arc::new(Memory::new(clock.clone())), offers()).await;
    let store = Stored::new(postgres(&place, &clock).await, offers()).await;
    let (expected, found) = (model.claim(claims()).await, store.claim(claims()).await);
    let taken =
        |stored: &Stored, all: &[Claimed]| all.iter().map(|one| stored.taken(one)).collect::<Vec<_>>();
    assert_eq!(taken(&store, &found), taken(&model, &expected));
    // By priority, then age. The last claims get fewer jobs than they wanted.
    assert_eq!(taken(&store, &found), [vec![4, 7], vec![0], vec![6], vec![], vec![1], vec![2, 3], vec![5]]);
    for (claim, claimed) in claims().iter().zip(&found) {
        for (head, _) in &claimed.jobs {
            assert_eq!(head.lease.as_ref().unwrap().worker, claim.grant.worker);
            assert_eq!(store.engine.job(head.id).await.unwrap().unwrap().head, *head);
        }
    }
}

/// A job that may not be granted is shown once, to the claim whose turn it is. A job under a limit takes up a
/// place of that claim, because the core may grant it; an expired one takes up none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_granted_is_shown_to_one_of_them() {
    let limit = Limit { key: "k".into(), concurrency: Some(1), rate: None };
    let offers = vec![
        job().offer(),
        job().expires(Duration::from_secs(1)).offer(),
        job().limit(limit).offer(),
        job().offer(),
        job().offer(),
    ];
    let (place, clock) = (Place::new(), ManualClock::default());
    let store = Stored::new(postgres(&place, &clock).await, offers).await;
    clock.advance(Duration::from_secs(2));
    let found = store.claim(vec![by("a", 2), by("b", 1), by("c", 2)]).await;
    let taken: Vec<_> = found.iter().map(|one| store.taken(one)).collect();
    let met: Vec<_> = found.iter().map(|one| store.met(one)).collect();
    assert_eq!(taken, [vec![0], vec![3], vec![4]]);
    let shown = vec![(1, Unclaimable::Expired), (2, Unclaimable::Limited)];
    assert_eq!(met, [shown, vec![], vec![]]);
}
