//! Behind a real pgbouncer that reassigns connections between transactions: what belongs together is in one
//! transaction, and nothing is left behind in a session.

use std::sync::Arc;
use std::time::Duration;

use semel_core::enqueue::Outcome;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::Backend;
use semel_store::outbox::Read;
use semel_testkit::cluster::Pooler;
use semel_testkit::crash::claim;
use semel_testkit::make::{job, keyed};
use semel_testkit::traffic::Traffic;
use semel_testkit::{Fixture, Step, TempDir};
use tokio::task::JoinSet;

use crate::contention::inside;
use crate::place::{Passing, Place, client, judge, url};

/// Shorter than the 15 seconds that a server waits for a connection.
const SHORT: Duration = Duration::from_secs(14);

/// A pooler with fewer connections than its clients want.
struct Behind {
    place: Place,
    pooler: Pooler,
    _folder: TempDir,
}

impl Behind {
    fn start(connections: u32) -> Self {
        let folder = TempDir::new();
        let pooler = Pooler::start(folder.path(), &url(), connections);
        Self { place: Place::at(&pooler.url()), pooler, _folder: folder }
    }

    fn address(&self) -> &Address {
        self.place.address()
    }

    async fn store(&self) -> Arc<Postgres> {
        Arc::new(Postgres::open(self.address()).await.unwrap())
    }

    async fn server(&self) -> Engine {
        Engine::without_duties(self.store().await).unwrap()
    }
}

fn fixture() -> Fixture {
    let behind = Behind::start(3);
    let Behind { place, pooler, _folder } = behind;
    // The place is dropped first, and needs the pooler for it.
    let (place, kept) = (Passing(place), (pooler, _folder));
    Fixture::new(Step::Nothing, move |clock| {
        let _still_there = &kept;
        place.0.open_with(clock)
    })
}

// One or two cases for each kind of request.
semel_testkit::conformance!(@topic fixture(); admission:
    every_blocking_holder_is_replaced_in_one_commit,
    the_same_id_is_answered_as_the_first_time,
);
semel_testkit::conformance!(@topic fixture(); claims:
    two_claims_in_one_commit_never_share_a_job,
    a_claim_brings_body_and_notes,
);
semel_testkit::conformance!(@topic fixture(); leases: a_lease_that_ran_out_gives_the_job_to_another);
semel_testkit::conformance!(@topic fixture(); history: conservation_created_is_live_and_finished_and_purged);
semel_testkit::conformance!(@topic fixture(); documents: a_group_that_relies_on_a_stale_document_is_stale);
semel_testkit::conformance!(@topic fixture(); workflows: two_parents_that_end_at_once_release_their_child_once);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_servers_start_at_once_and_go_on_under_load() {
    let behind = Behind::start(3);
    let mut opening = JoinSet::new();
    for _ in 0..10 {
        let address = behind.address().clone();
        opening.spawn(async move { Arc::new(Postgres::open(&address).await.unwrap()) as Arc<dyn Backend> });
    }
    let servers = opening.join_all().await;
    let traffic = Traffic::start(&servers, 1);
    traffic.more(600).await;
    while traffic.account().acked.len() <= 50 {
        traffic.more(20).await;
    }
    let account = traffic.end().await;
    assert!(account.created.len() > 50 && account.acked.len() > 50, "{account:?}");
    judge(&account, behind.address(), 1).await;
}

/// No notification passes a pooler, so jobs are found by polling, even if listening is not turned off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_waits_finds_another_servers_job() {
    let behind = Behind::start(4);
    let (here, there) = (behind.server().await, behind.server().await);
    for _ in 0..5 {
        let waiting = tokio::spawn({
            let there = there.clone();
            async move { there.claim_or_wait(claim(1), Duration::from_secs(60)).await.unwrap() }
        });
        while !there.store().hints().is_awaited() {
            tokio::task::yield_now().await;
        }
        here.enqueue(job().offer(), "").await.unwrap();
        assert_eq!(waiting.await.unwrap().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callers_own_transaction_is_one() {
    let behind = Behind::start(4);
    let store = behind.store().await;
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let mut caller = client(&behind.pooler.url()).await;
    let offers = || vec![keyed("a").on_conflict("ignore").offer(), keyed("b").on_conflict("ignore").offer()];
    for is_kept in [false, true] {
        let transaction = caller.transaction().await.unwrap();
        let outcomes = inside(&engine, &store, &transaction, offers()).await.unwrap();
        assert!(matches!(&outcomes[..], [Outcome::Created(_), Outcome::Created(_)]), "{outcomes:?}");
        // Meanwhile, over other connections of the same pooler.
        engine.enqueue(job().offer(), "").await.unwrap();
        if is_kept { transaction.commit().await.unwrap() } else { transaction.rollback().await.unwrap() }
    }
    let transaction = caller.transaction().await.unwrap();
    let outcomes = inside(&engine, &store, &transaction, offers()).await.unwrap();
    assert!(matches!(&outcomes[..], [Outcome::Existing(_), Outcome::Existing(_)]), "{outcomes:?}");
    transaction.commit().await.unwrap();
    assert_eq!(engine.queues().await.unwrap()[0].created, 4);
}

/// The pooler hands out no other connection meanwhile: a caller that had to make rows on one would wait for
/// the other caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_who_have_all_of_a_poolers_connections_go_on() {
    let behind = Behind::start(2);
    let store = behind.store().await;
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let (mut one, mut other) = (client(&behind.pooler.url()).await, client(&behind.pooler.url()).await);
    // With new keys first, and then with existing ones.
    for names in [["a", "b"]; 2] {
        let (first, second) = (one.transaction().await.unwrap(), other.transaction().await.unwrap());
        // The pooler assigns a connection with the first statement.
        first.batch_execute("SELECT 1").await.unwrap();
        second.batch_execute("SELECT 1").await.unwrap();
        let [mine, yours] = names.map(|name| vec![keyed(name).on_conflict("ignore").offer(), job().offer()]);
        let both = async {
            let mine = inside(&engine, &store, &first, mine).await.unwrap();
            (mine, inside(&engine, &store, &second, yours).await.unwrap())
        };
        let (mine, yours) = tokio::time::timeout(SHORT, both).await.unwrap();
        assert_eq!((mine.len(), yours.len()), (2, 2));
        first.commit().await.unwrap();
        second.commit().await.unwrap();
    }
    assert_eq!(engine.queues().await.unwrap()[0].created, 6);
}

/// The relay itself has the only connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outbox_is_relayed_through_one_connection() {
    let behind = Behind::start(1);
    let store = behind.store().await;
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let writer = client(&behind.pooler.url()).await;
    let table = format!("{}.outbox", behind.place.schema());
    let insert = format!("INSERT INTO {table} (envelope) VALUES ('{{}}'), ('{{}}')");
    writer.batch_execute(&insert).await.unwrap();
    let read: Read = Arc::new(|id, _| Ok(keyed(&id.to_string()).id(id).offer()));
    let relayed = tokio::time::timeout(SHORT, engine.relay_once(&*store, &read));
    assert_eq!(relayed.await.unwrap().unwrap(), 2);
}
