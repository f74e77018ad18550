//! The traffic with the database: how many round trips a load and a commit take, and what is sent in them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::draft::{KeyRead, Reads};
use semel_core::enqueue::{Batch as Outcomes, Mode};
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::backend::{Backend, Batch, Filter, Verdict};
use semel_testkit::crash::claim;
use semel_testkit::fixture::groups_of;
use semel_testkit::make::keyed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};

use crate::lost::Between;
use crate::place::{Place, client, url};

/// How long a client must be silent before it gets an answer. By then whatever it sends without waiting for
/// an answer has arrived, even on a busy machine.
const QUIET: Duration = Duration::from_millis(200);
/// The same, for tests that may count one trip as two.
const BRIEFLY: Duration = Duration::from_millis(20);

/// A proxy between a server and the database that forwards everything and records the queries: a new entry
/// starts when a client with no answer outstanding sends something.
pub struct Wire {
    port: u16,
    trips: Arc<Mutex<Vec<String>>>,
}

/// One connection.
struct Talk {
    trips: Arc<Mutex<Vec<String>>>,
    /// The entry of its latest trip.
    trip: usize,
    /// How many answers are outstanding.
    awaited: u64,
    /// When the client last sent something.
    heard: Instant,
}

impl Talk {
    /// Records a message of the client: a simple query, a part of an extended one, or a Sync.
    fn hear(&mut self, kind: u8, text: &[u8]) {
        self.heard = Instant::now();
        if matches!(kind, b'P' | b'Q') {
            let mut trips = self.trips.lock().unwrap();
            if self.awaited == 0 {
                trips.push(String::new());
                self.trip = trips.len() - 1;
            }
            // The test may have taken the entries meanwhile.
            if let Some(trip) = trips.get_mut(self.trip) {
                trip.push_str(&String::from_utf8_lossy(text));
            }
        }
        self.awaited += u64::from(matches!(kind, b'S' | b'Q'));
    }
}

impl Wire {
    /// Starts a proxy that answers a client after it has been silent for `quiet`.
    pub async fn start(quiet: Duration) -> Self {
        let database = url().split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let trips = Arc::<Mutex<Vec<String>>>::default();
        let written = Arc::clone(&trips);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (from_client, to_client) = client.into_split();
                let (from_upstream, to_upstream) = TcpStream::connect(&database).await.unwrap().into_split();
                let trips = Arc::clone(&written);
                // The first answer is to the startup message.
                let talk = Talk { trips, trip: 0, awaited: 1, heard: Instant::now() };
                let talk = Arc::new(Mutex::new(talk));
                tokio::spawn(ask(from_client, to_upstream, Arc::clone(&talk)));
                tokio::spawn(answer(from_upstream, to_client, talk, quiet));
            }
        });
        Self { port, trips }
    }

    /// The address of `place` through this proxy.
    pub fn address(&self, place: &Place) -> Address {
        let text = format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port);
        Address::parse(&text).unwrap().with_schema(place.schema()).unwrap()
    }

    /// The trips since the last call, without notifications of other servers, and without the one query for
    /// each connection that asks which server it has reached.
    pub fn trips(&self) -> Vec<String> {
        let mut trips = std::mem::take(&mut *self.trips.lock().unwrap());
        trips.retain(|trip| !trip.contains("pg_notify") && !asks_for_the_server(trip));
        trips
    }
}

fn asks_for_the_server(trip: &str) -> bool {
    trip.contains("SELECT (extract(epoch FROM pg_catalog.pg_postmaster_start_time()")
}

async fn ask(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, talk: Arc<Mutex<Talk>>) {
    // The startup message has no type byte.
    let mut has_kind = false;
    while let Ok((kind, message)) = message(&mut from, std::mem::replace(&mut has_kind, true)).await {
        talk.lock().unwrap().hear(kind, &message);
        if to.write_all(&message).await.is_err() {
            return;
        }
    }
}

async fn answer(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, talk: Arc<Mutex<Talk>>, quiet: Duration) {
    while let Ok((kind, message)) = message(&mut from, true).await {
        // ReadyForQuery.
        if kind == b'Z' {
            loop {
                let until = talk.lock().unwrap().heard + quiet;
                if until <= Instant::now() {
                    break;
                }
                sleep_until(until).await;
            }
            talk.lock().unwrap().awaited -= 1;
        }
        if to.write_all(&message).await.is_err() {
            return;
        }
    }
}

/// The next message as it is, and its type.
async fn message(from: &mut OwnedReadHalf, has_kind: bool) -> std::io::Result<(u8, Vec<u8>)> {
    let mut message = Vec::new();
    let kind = if has_kind { from.read_u8().await? } else { 0 };
    message.extend(has_kind.then_some(kind));
    let length = from.read_u32().await?;
    message.extend_from_slice(&length.to_be_bytes());
    let begun = message.len();
    message.resize(begun + usize::try_from(length).unwrap() - 4, 0);
    from.read_exact(&mut message[begun..]).await?;
    Ok((kind, message))
}

/// The same for one job and for a thousand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_and_a_commit_are_one_round_trip_each_however_much_is_in_them() {
    let (place, wire) = (Place::new(), Wire::start(QUIET).await);
    Postgres::migrate(place.address()).await.unwrap();
    let store = Arc::new(Postgres::open(&wire.address(&place)).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    // Which queues are bounded is asked only once.
    engine.enqueue(keyed("first").offer(), "").await.unwrap();
    for number in [1, 1_000] {
        let offers = |name: &str| -> Vec<_> {
            (0..number).map(|at| keyed(&format!("{name} {number}-{at}")).offer()).collect()
        };
        // One trip looks the keys up, and one stores the jobs.
        wire.trips();
        let stored = engine.enqueue_batch(offers("a"), Mode::Each, "").await.unwrap();
        let trips = wire.trips();
        let Outcomes::Done(outcomes) = stored else { panic!("{stored:?}") };
        assert!(outcomes.len() == number && outcomes.iter().all(|outcome| outcome.is_inserted()));
        assert_eq!(trips.len(), 2, "{number}: {trips:#?}");
        // Load and commit separately, with and without claims in the commit.
        let keys = offers("a").into_iter().map(|offer| {
            let identity = offer.unique.unwrap();
            KeyRead { key: identity.key, states: identity.policy.states(), all: false }
        });
        let reads = Reads { keys: keys.collect(), ..Reads::default() };
        let snapshot = store.load(&reads).await.unwrap();
        assert!(reads.keys.iter().all(|read| snapshot.peek_key(&read.key).unwrap().holders.len() == 1));
        assert_eq!(wire.trips().len(), 1, "{number}");
        for claims in [Vec::new(), vec![claim(u32::try_from(number).unwrap())]] {
            let groups = groups_of(&*store, &offers(&format!("b {}", claims.len()))).await;
            let (wanted, takes) = (groups.len(), claims.len() * number);
            wire.trips();
            let applied = store.commit(Batch { groups, claims }).await.unwrap();
            let trips = wire.trips();
            assert_eq!(applied.groups, vec![Verdict::Applied; wanted]);
            assert_eq!(applied.claims.iter().map(|claimed| claimed.jobs.len()).sum::<usize>(), takes);
            assert_eq!(trips.len(), 1, "{number}: {trips:#?}");
        }
    }
}

/// The question is asked once for each connection, however often it is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_asked_once_which_server_it_has_reached() {
    let (place, wire) = (Place::new(), Wire::start(QUIET).await);
    Postgres::migrate(place.address()).await.unwrap();
    let store = Arc::new(Postgres::open(&wire.address(&place)).await.unwrap());
    let load = async || store.load(&Reads::default()).await;
    let list = async || store.list(Filter { limit: 1, ..Filter::default() }).await;
    wire.trips();
    for _ in 0..10 {
        let (one, other, listed) = tokio::join!(load(), load(), list());
        assert!(one.is_ok() && other.is_ok() && listed.is_ok());
    }
    let asked = wire.trips.lock().unwrap().iter().filter(|trip| asks_for_the_server(trip)).count();
    // The first connection was made when the store was opened.
    assert!((1..=3).contains(&asked), "{asked}");
    // A listing for people runs two queries at once.
    let trips = wire.trips();
    assert_eq!(trips.len(), 30, "{trips:#?}");
}

/// The number of servers is asked for only where it decides something, and housekeeping goes on if the
/// question fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn housekeeping_asks_for_other_servers_only_where_they_matter() {
    let (place, wire) = (Place::new(), Wire::start(BRIEFLY).await);
    let store = Postgres::open(&wire.address(&place)).await.unwrap();
    let (client, schema) = (client(&url()).await, place.schema());
    let asks = |trips: &[String]| trips.iter().filter(|trip| trip.contains("pg_locks")).count();
    wire.trips();
    for _ in 0..10 {
        store.maintain().await.unwrap();
    }
    let trips = wire.trips();
    assert!(!trips.is_empty());
    assert_eq!(asks(&trips), 0, "a table of one stretch is gone through at every look: {trips:#?}");
    // Few rows a page, for two stretches of the table in which there is nothing to drop.
    let fill = format!(
        "ALTER TABLE {schema}.key SET (fillfactor = 10);
         INSERT INTO {schema}.key SELECT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()),
             (extract(epoch FROM now()) * 1000000)::int8, '{{}}', '{{}}' FROM generate_series(1, 12000)"
    );
    client.batch_execute(&fill).await.unwrap();
    let pages = format!("SELECT pg_relation_size('{schema}.key') / current_setting('block_size')::int8");
    let pages: i64 = client.query_one(&pages, &[]).await.unwrap().get(0);
    assert!((1_025..=2_048).contains(&pages), "{pages}");
    let mut asked = 0;
    for _ in 0..10 {
        store.maintain().await.unwrap();
        asked += asks(&wire.trips());
    }
    assert_eq!(asked, 1, "once in a round, and then it rests");
    let between = Between::start().await;
    let other = Postgres::open(&between.address(&place)).await.unwrap();
    between.spoil_the_next(b"pg_locks");
    for _ in 0..10 {
        other.maintain().await.unwrap();
    }
    assert!(between.has_spoiled());
}
