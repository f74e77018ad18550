//! Connections lost in the middle of a commit: what was applied is answered as applied, once, and scripts
//! that Redis has forgotten are sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use futures_util::StreamExt;
use semel_core::draft::Reads;
use semel_core::enqueue::{Outcome, enqueue};
use semel_core::partition;
use semel_core::state::State;
use semel_engine::Engine;
use semel_redis::scripts::Script;
use semel_redis::{Address, Redis};
use semel_store::StoreError;
use semel_store::backend::{Applied, Backend, Batch, BoxFuture};
use semel_store::layer::Layer;
use semel_testkit::crash::claim;
use semel_testkit::make::{job, key, keyed};
use semel_testkit::patience::PATIENCE;
use semel_testkit::redis::url;
use semel_testkit::transact::transact;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::partitions::PARTITIONS;
use crate::place::Place;

/// What the proxy does with the next request that it watches for: it is forwarded.
const NOTHING: u8 = 0;
/// The request is forwarded, and the answer swallowed.
const SWALLOW_ANSWER: u8 = 1;
/// The request never arrives.
const SWALLOW_REQUEST: u8 = 2;
/// New connections are refused.
const REFUSE: u8 = 3;
/// The request never arrives, and new connections are refused from then on.
const SWALLOW_REQUEST_AND_REFUSE: u8 = 4;

/// A proxy between a server and Redis that forwards everything until told otherwise. Whenever it swallows
/// something it hangs up; new connections are forwarded again.
struct Between {
    port: u16,
    does: Arc<AtomicU8>,
}

impl Between {
    /// Watches for a store's calls of a script.
    async fn start(script: &str) -> Self {
        Self::before(sum(script).await).await
    }

    /// Watches for requests that contain `sum`.
    async fn before(sum: String) -> Self {
        let upstream = url().strip_prefix("redis://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let does = Arc::new(AtomicU8::new(NOTHING));
        let told = Arc::clone(&does);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if told.load(Ordering::SeqCst) != REFUSE {
                    let upstream = TcpStream::connect(&upstream).await.unwrap();
                    tokio::spawn(hand_on(client, upstream, sum.clone(), Arc::clone(&told)));
                }
            }
        });
        Self { port, does }
    }

    fn address(&self) -> Address {
        let text = format!("redis://127.0.0.1:{}", self.port);
        Address::parse(&text).unwrap().with_prefix(&semel_testkit::redis::prefix()).unwrap()
    }

    fn next(&self, does: u8) {
        self.does.store(does, Ordering::SeqCst);
    }

    fn assert_done(&self) {
        assert_eq!(self.does.load(Ordering::SeqCst), NOTHING, "it was swallowed");
    }
}

async fn connection() -> redis::aio::MultiplexedConnection {
    crate::own::patient(&url()).await
}

/// The SHA-1 by which Redis calls a script.
async fn sum(script: &str) -> String {
    redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(&mut connection().await).await.unwrap()
}

async fn hand_on(client: TcpStream, upstream: TcpStream, sum: String, does: Arc<AtomicU8>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_upstream, mut to_upstream) = upstream.into_split();
    let is_silent = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let silenced = Arc::clone(&is_silent);
    let asks = async move {
        let mut buffer = vec![0; 256 * 1024];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            let asked = &buffer[..read];
            if asked.windows(sum.len()).any(|part| part == sum.as_bytes()) {
                let becomes =
                    |from, to| does.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok();
                if becomes(SWALLOW_REQUEST, NOTHING) || becomes(SWALLOW_REQUEST_AND_REFUSE, REFUSE) {
                    return;
                }
                silenced.fetch_or(becomes(SWALLOW_ANSWER, NOTHING), Ordering::SeqCst);
            }
            if to_upstream.write_all(asked).await.is_err() {
                return;
            }
        }
    };
    let answers = async move {
        let mut buffer = vec![0; 256 * 1024];
        while let Ok(read @ 1..) = from_upstream.read(&mut buffer).await {
            if is_silent.load(Ordering::SeqCst) || to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    // Whichever direction ends first hangs up for both.
    tokio::select! { () = asks => {}, () = answers => {} }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_is_answered_as_what_became_of_it() {
    let between = Between::start(Script::Commit.text()).await;
    let backend = Arc::new(Redis::open(&between.address()).await.unwrap());
    let engine = Engine::without_duties(backend).unwrap();
    engine.enqueue(keyed("before").offer(), "").await.unwrap();
    for (number, does) in (2..).zip([SWALLOW_ANSWER, SWALLOW_REQUEST]) {
        between.next(does);
        let Outcome::Created(head) = engine.enqueue(keyed(&format!("a {does}")).offer(), "").await.unwrap()
        else {
            panic!("not created")
        };
        between.assert_done();
        assert!(engine.job(head.id).await.unwrap().is_some());
        assert_eq!(engine.queues().await.unwrap()[0].created, number, "and it was done once");
    }
    // And the store goes on working.
    assert!(matches!(engine.enqueue(keyed("b").offer(), "").await.unwrap(), Outcome::Created(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_is_lost_is_answered_with_the_jobs_it_took() {
    let between = Between::start(Script::Claim.text()).await;
    let backend = Arc::new(Redis::open(&between.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&backend) as _).unwrap();
    for name in ["a", "b", "c"] {
        engine.enqueue(keyed(name).offer(), "").await.unwrap();
    }
    between.next(SWALLOW_ANSWER);
    // Two claims that one script serves.
    let batch = Batch { groups: Vec::new(), claims: vec![claim(2), claim(2)] };
    let applied = backend.commit(batch).await.unwrap();
    between.assert_done();
    let taken: Vec<usize> = applied.claims.iter().map(|claimed| claimed.jobs.len()).collect();
    assert_eq!(taken, [2, 1], "dealt out in their order");
    for (head, full) in applied.claims.iter().flat_map(|claimed| &claimed.jobs) {
        assert_eq!((head.state, head.attempt), (State::Active, 1));
        assert!(!full.body.is_empty());
    }
    assert_eq!(engine.queues().await.unwrap()[0].count(State::Active), 3, "and each was taken once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_sent_again_until_redis_is_back() {
    let between = Between::start(Script::Commit.text()).await;
    let backend = Arc::new(Redis::open(&between.address()).await.unwrap());
    let engine = Engine::without_duties(backend).unwrap();
    engine.enqueue(keyed("a").offer(), "").await.unwrap();
    between.next(SWALLOW_REQUEST_AND_REFUSE);
    let asked = tokio::spawn({
        let engine = engine.clone();
        async move { engine.enqueue(keyed("b").offer(), "").await }
    });
    while between.does.load(Ordering::SeqCst) != REFUSE {
        tokio::task::yield_now().await;
    }
    // Other requests are told at once that Redis cannot be reached.
    assert!(matches!(engine.queues().await, Err(StoreError::Unavailable(_))));
    assert!(!asked.is_finished());
    between.next(NOTHING);
    assert!(matches!(asked.await.unwrap().unwrap(), Outcome::Created(_)));
    assert_eq!(engine.queues().await.unwrap()[0].created, 2);
    let nowhere = Address::parse("redis://127.0.0.1:1").unwrap();
    assert!(matches!(Redis::open(&nowhere).await.map_err(StoreError::from), Err(StoreError::Unavailable(_))));
}

/// The job may be stored: a caller that takes it for undone makes a second one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_have_been_done_is_not_told_as_undone() {
    let between = Between::start(Script::Commit.text()).await;
    let address = between.address().with_patience(std::time::Duration::from_millis(200));
    let engine = Engine::without_duties(Arc::new(Redis::open(&address).await.unwrap())).unwrap();
    let mut ear = ear(&address).await;
    engine.enqueue(keyed("a").offer(), "").await.unwrap();
    // The message about this job must get through now: repeated later, it would be taken for the one awaited
    // below.
    drop(tokio::time::timeout(PATIENCE, ear.on_message().next()).await.unwrap().unwrap());
    between.next(SWALLOW_REQUEST_AND_REFUSE);
    let told = engine.enqueue(keyed("b").offer(), "").await;
    assert!(matches!(&told, Err(StoreError::Unknown(why)) if why.contains("same id")), "{told:?}");
    assert!(told.unwrap_err().is_retryable());
    // No connection is accepted now: what is not sent is not done.
    let told = engine.enqueue(keyed("c").offer(), "").await;
    assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
    // A worker that waits elsewhere for the second job is told to look.
    between.next(NOTHING);
    hears_of_everything(&mut ear).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_redis_has_forgotten_are_told_again() {
    let place = Place::new();
    let backend = Arc::new(Redis::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(backend).unwrap();
    let mut connection = connection().await;
    for round in 0..3_u64 {
        let _: () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut connection).await.unwrap();
        let created = engine.enqueue(keyed(&format!("{round}")).offer(), "").await.unwrap();
        assert!(matches!(created, Outcome::Created(_)));
        let _: () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut connection).await.unwrap();
        assert_eq!(engine.queues().await.unwrap()[0].created, round + 1);
    }
}

/// A subscription to what a store's servers tell each other.
async fn ear(address: &Address) -> redis::aio::PubSub {
    let mut ear = redis::Client::open(url()).unwrap().get_async_pubsub().await.unwrap();
    ear.subscribe(format!("{}news", address.base())).await.unwrap();
    ear
}

/// Waits for the message that there may be anything, rather than one about a single commit.
async fn hears_of_everything(ear: &mut redis::aio::PubSub) {
    let hears = async {
        loop {
            let message = ear.on_message().next().await.unwrap();
            if message.get_payload_bytes().get(8..) == Some(&[0b1111]) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, hears).await.unwrap();
}

/// A listener cannot notice that a message was lost with the sender's connection, since its own is intact:
/// the sender repeats it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_lost_is_told_again() {
    let between = Between::before("PUBLISH".to_owned()).await;
    let address = between.address();
    let engine = Engine::without_duties(Arc::new(Redis::open(&address).await.unwrap())).unwrap();
    let mut ear = ear(&address).await;
    between.next(SWALLOW_REQUEST);
    engine.enqueue(job().offer(), "").await.unwrap();
    hears_of_everything(&mut ear).await;
    between.assert_done();
}

/// A request that arrives after a later one of the same sender changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_comes_late_is_refused() {
    let place = Place::new();
    let _store = Redis::open(place.address()).await.unwrap();
    let mut connection = connection().await;
    let base = place.address().to_string();
    let base = format!("{}{{p0}}", base.split("prefix=").nth(1).unwrap());
    let mut turn = async |number: u64, settings: &str| -> redis::RedisResult<Vec<String>> {
        let mut command = redis::cmd("EVAL");
        command.arg(Script::Commit.text()).arg(1).arg(&base).arg("sender").arg(number).arg("").arg(0).arg(0);
        // No new jobs; one other group, the first of the batch, about no job and no key; its events.
        let counts = [0_u32, 0, 0, 0, 0, 1].map(u32::to_be_bytes).concat();
        command.arg(counts).arg(&1_u32.to_be_bytes()[..]).arg("").arg("").arg("");
        // Without expectations, it writes a queue's settings.
        command.arg(&[0_u8, 0, 0, 0, 0, 0, 0, 1][..]).arg("Qmail").arg(settings);
        let said: redis::RedisResult<Vec<redis::Value>> = command.query_async(&mut connection).await;
        said.map(|values| {
            values.into_iter().skip(1).map(|value| redis::from_redis_value(value).unwrap()).collect()
        })
    };
    assert_eq!(turn(1, "first").await.unwrap(), ["a"]);
    assert_eq!(turn(2, "second").await.unwrap(), ["a"]);
    assert_eq!(turn(2, "again").await.unwrap(), ["a"], "answered as the first time");
    assert_eq!(turn(1, "late").await.unwrap_err().code(), Some("SEMELOLD"));
    let settings: String = redis::cmd("GET")
        .arg(format!("{base}qmail"))
        .query_async(&mut crate::lost::connection().await)
        .await
        .unwrap();
    assert_eq!(settings, "second");
}

/// A store whose partitions are locked, whenever a commit comes, by a server that is gone.
struct Locked {
    inner: Redis,
    address: Address,
}

impl Layer for Locked {
    type Inner = Redis;

    fn inner(&self) -> &Redis {
        &self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(async move {
            let mut connection = connection().await;
            for partition in 0..PARTITIONS {
                let fact = format!("{}!", self.address.base_of(partition));
                let () = redis::cmd("HSET")
                    .arg(fact)
                    .arg(&["lock", "1"])
                    .query_async(&mut connection)
                    .await
                    .unwrap();
            }
            self.inner.commit(batch).await
        })
    }
}

/// A copy of the request that is still on its way is the same request as the one that is answered in the end,
/// and changes nothing when it arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_locked_out_comes_again_as_the_same() {
    let place = Place::divided(PARTITIONS);
    let address = place.address().clone();
    let store = Locked { inner: Redis::open(&address).await.unwrap(), address: address.clone() };
    let offer = keyed("a").offer();
    let mut reads = Reads::default();
    offer.reads(&mut reads);
    let outcome = transact(&store, &reads, |draft| enqueue(draft, &offer)).await.unwrap();
    assert!(matches!(outcome, Outcome::Created(_)), "{outcome:?}");
    let mut connection = connection().await;
    let mark = format!("{}m*", address.base_of(partition::of_key(&key("a"), PARTITIONS)));
    let marks: Vec<Vec<u8>> = redis::cmd("KEYS").arg(mark).query_async(&mut connection).await.unwrap();
    assert_eq!(marks.len(), 1);
    let turn: Vec<u8> =
        redis::cmd("GETRANGE").arg(&marks[0]).arg(&["0", "7"]).query_async(&mut connection).await.unwrap();
    assert_eq!(
        turn,
        1_u64.to_be_bytes(),
        "it was the first request of its sender, however often it was sent"
    );
}
