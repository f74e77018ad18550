//! A store of several partitions: what is reported of their number, and a commit over several of them that is
//! broken off after each of its steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use semel_core::draft::Reads;
use semel_core::enqueue::Outcome;
use semel_core::ident::{JobId, QueueName};
use semel_core::life;
use semel_core::partition;
use semel_engine::Engine;
use semel_redis::scripts::Script;
use semel_redis::{Address, Redis};
use semel_store::Backend;
use semel_testkit::make::{Want, foreign_id, job, key, keyed};
use semel_testkit::patience::PATIENCE;
use semel_testkit::redis::{prefix, url};
use semel_testkit::{Fixture, Step};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::own::patient;
use crate::place::{Passing, Place};

pub const PARTITIONS: u16 = 4;

pub async fn engine(address: &Address) -> Engine {
    Engine::without_duties(Arc::new(Redis::open(address).await.unwrap())).unwrap()
}

/// A caller's id that names another partition than the key is in.
pub fn astray(name: &str, from: u32) -> JobId {
    let place = partition::of_key(&key(name), PARTITIONS);
    (from..).map(foreign_id).find(|id| partition::of_id(*id, PARTITIONS) != place).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_keeps_the_partitions_that_it_was_made_with() {
    let place = Place::divided(PARTITIONS);
    let made = engine(place.address()).await;
    made.enqueue(keyed("a").offer(), "").await.unwrap();
    for other in [1, 3, 16] {
        let refused =
            Redis::open(&place.address().with_partitions(other).unwrap()).await.map(drop).unwrap_err();
        let said = refused.to_string();
        assert!(said.contains("4 partitions") && said.contains("?partitions="), "{said}");
    }
    // An address without the number takes the store as it is.
    let silent = Address::parse(&place.address().to_string().replace("&partitions=4", "")).unwrap();
    let store = Redis::open(&silent).await.unwrap();
    assert_eq!((silent.partitions(), store.partitions()), (None, PARTITIONS));
    let found = Engine::without_duties(Arc::new(store)).unwrap();
    let outcome = found.enqueue(keyed("a").on_conflict("ignore").offer(), "").await.unwrap();
    assert!(matches!(outcome, Outcome::Existing(_)), "{outcome:?}");
    // A store that is not divided is refused to an address that wants it divided, and stays as it was.
    let single = Place::new();
    drop(engine(single.address()).await);
    let refused = Redis::open(&single.address().with_partitions(2).unwrap()).await.map(drop).unwrap_err();
    assert!(refused.to_string().contains("1 partitions"), "{refused}");
    let mut connection = patient(&url()).await;
    let fact = format!("{}!", single.address().base());
    let layout: (String, Option<String>) = redis::cmd("HMGET")
        .arg(fact)
        .arg("layout")
        .arg("partitions")
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(layout, ("2".to_owned(), None), "as it always was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_in_the_partitions_of_their_keys_and_ids() {
    let place = Place::divided(PARTITIONS);
    let store = Arc::new(Redis::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
    for number in 0..80 {
        let want = if number % 2 == 0 { keyed(&number.to_string()) } else { job() };
        engine.enqueue(want.offer(), "").await.unwrap();
    }
    let mut connection = patient(&url()).await;
    let mut counts = Vec::new();
    for partition in 0..PARTITIONS {
        let jobs = format!("{}j", place.address().base_of(partition));
        let ids: Vec<Vec<u8>> =
            redis::cmd("ZRANGE").arg(jobs).arg(0).arg(-1).query_async(&mut connection).await.unwrap();
        for id in &ids {
            let id = JobId::from_bytes(id[..].try_into().unwrap());
            assert_eq!(partition::of_id(id, PARTITIONS), partition, "a minted id names its partition");
        }
        let leads: u64 = redis::cmd("ZCARD")
            .arg(format!("{}P", place.address().base_of(partition)))
            .query_async(&mut connection)
            .await
            .unwrap();
        assert_eq!(leads, 0, "and so no other one has to");
        counts.push(ids.len());
    }
    assert!(counts.iter().sum::<usize>() == 80 && counts.iter().all(|count| *count > 5), "{counts:?}");
}

/// For an id that names another partition, that one remembers where the job is. This is forgotten after the
/// job, and then the id is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_leads_nowhere_is_forgotten() {
    let fixture = crate::divided(semel_testkit::Step::Nothing);
    let id = astray("a", 1);
    let head = fixture.finished(&keyed("a").id(id).offer()).await;
    assert_eq!(fixture.head(id).await.map(|head| head.id), Some(head.id));
    fixture.advance(Duration::from_secs(48 * 3_600)).await;
    assert_eq!(fixture.purge().await, 1);
    assert_eq!(fixture.head(id).await, None);
    // Once before that is noticed, and once after.
    for name in ["b", "c"] {
        let again = fixture.finished(&keyed(name).id(id).offer()).await;
        assert_eq!(fixture.head(id).await.unwrap().key, again.key);
        fixture.advance(Duration::from_secs(48 * 3_600)).await;
        assert_eq!(fixture.purge().await, 1);
        for _ in 0..2 * PARTITIONS {
            fixture.maintain().await;
        }
    }
}

/// Housekeeping goes on as long as there is something to forget, however many there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_ids_that_lead_nowhere_are_forgotten_in_one_go() {
    let place = Place::divided(PARTITIONS);
    let keys: Vec<String> =
        (0..PARTITIONS).map(|number| format!("{}P", place.address().base_of(number))).collect();
    let place = Passing(place);
    let fixture = Fixture::new(Step::Nothing, move |clock| place.0.open_with(clock)).divided(PARTITIONS);
    let mut connection = patient(&url()).await;
    let mut leading = async || {
        let mut sum = 0;
        for key in &keys {
            sum += redis::cmd("ZCARD").arg(key).query_async::<u64>(&mut connection).await.unwrap();
        }
        sum
    };
    let mut ids = Vec::new();
    for number in 0..60_u32 {
        let name = number.to_string();
        let id = astray(&name, 100 * number + 1);
        fixture.finished(&keyed(&name).id(id).offer()).await;
        ids.push(id);
    }
    assert_eq!(leading().await, 60);
    fixture.advance(Duration::from_secs(48 * 3_600)).await;
    for id in ids {
        assert!(fixture.decide(|draft| life::purge(draft, id)).await);
    }
    // The partition where a round begins may have none.
    for _ in 0..PARTITIONS {
        if leading().await == 60 {
            fixture.maintain().await;
        }
    }
    assert_eq!(leading().await, 0);
}

/// A proxy that forwards `steps` steps and nothing after them: of the next step the request is lost, or only
/// its answer. Returns its port and a count of steps.
pub async fn cut_after(steps: usize, loses_answer: bool) -> (u16, Arc<AtomicUsize>) {
    cut_after_at(&url(), steps, loses_answer).await
}

/// The same in front of another Redis.
pub async fn cut_after_at(upstream: &str, steps: usize, loses_answer: bool) -> (u16, Arc<AtomicUsize>) {
    let mut sums = Vec::new();
    for script in [Script::Cross, Script::Commit] {
        let mut connection = patient(upstream).await;
        let sum: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(script.text()).query_async(&mut connection).await.unwrap();
        sums.push(sum);
    }
    // Signs of life, sent now and then, are no steps.
    let is_step = move |asked: &[u8]| {
        sums.iter().any(|sum| has(asked, sum.as_bytes())) && !has(asked, b"\r\nalive\r\n")
    };
    cut_at(upstream, steps, loses_answer, is_step).await
}

/// Whether a request contains these bytes.
pub fn has(asked: &[u8], what: &[u8]) -> bool {
    asked.windows(what.len()).any(|part| part == what)
}

/// The same, with another notion of a step.
pub async fn cut(
    steps: usize,
    loses_answer: bool,
    is_step: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
) -> (u16, Arc<AtomicUsize>) {
    cut_at(&url(), steps, loses_answer, is_step).await
}

async fn cut_at(
    upstream: &str,
    steps: usize,
    loses_answer: bool,
    is_step: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
) -> (u16, Arc<AtomicUsize>) {
    let place = upstream.strip_prefix("redis://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(AtomicUsize::new(0));
    let (is_step, counted) = (Arc::new(is_step), Arc::clone(&seen));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            if counted.load(Ordering::SeqCst) > steps {
                continue;
            }
            let upstream = TcpStream::connect(&place).await.unwrap();
            let (is_step, counted) = (Arc::clone(&is_step), Arc::clone(&counted));
            tokio::spawn(async move {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_upstream, mut to_upstream) = upstream.into_split();
                let answered = Arc::clone(&counted);
                let asks = async move {
                    let mut buffer = vec![0; 1 << 18];
                    while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
                        let is_step = is_step(&buffer[..read]);
                        let before = if is_step {
                            counted.fetch_add(1, Ordering::SeqCst)
                        } else {
                            counted.load(Ordering::SeqCst).saturating_sub(1)
                        };
                        if before > steps || (before == steps && is_step && !loses_answer) {
                            return;
                        }
                        to_upstream.write_all(&buffer[..read]).await.unwrap();
                    }
                };
                let answers = async move {
                    let mut buffer = vec![0; 1 << 18];
                    while let Ok(read @ 1..) = from_upstream.read(&mut buffer).await {
                        if answered.load(Ordering::SeqCst) > steps
                            || to_client.write_all(&buffer[..read]).await.is_err()
                        {
                            return;
                        }
                    }
                };
                tokio::select! { () = asks => {}, () = answers => {} }
            });
        }
    });
    (port, seen)
}

/// Whether the offer of a server that is cut off there was done as a whole, as others find. `None` if it was
/// not cut off.
async fn broken_off(steps: usize, loses_answer: bool) -> Option<bool> {
    let prefix = prefix();
    let at = |url: &str| {
        let address = Address::parse(url).unwrap().with_prefix(&prefix).unwrap();
        address.with_partitions(PARTITIONS).unwrap()
    };
    let direct = engine(&at(&url()).with_away_after(PATIENCE)).await;
    let (port, _) = cut_after(steps, loses_answer).await;
    let through = at(&format!("redis://127.0.0.1:{port}")).with_patience(Duration::from_millis(300));
    let victim = engine(&through).await;
    let id = astray("a", 1);
    let offer = || -> Want { keyed("a").on_conflict("ignore") };
    let told = victim.enqueue(offer().id(id).offer(), "").await;
    drop(victim);
    // Another caller wants the same key, and a third the same id.
    let other = astray("a", 50);
    let outcome = direct.enqueue(offer().id(other).offer(), "").await.unwrap();
    let found = direct.job(id).await.unwrap();
    let holder = match &outcome {
        Outcome::Existing(head) => head.id,
        Outcome::Created(head) => head.id,
        other => panic!("{other:?}"),
    };
    let is_done = found.is_some();
    assert_eq!(holder, if is_done { id } else { other }, "step {steps}: half done");
    assert_eq!(direct.job(other).await.unwrap().is_some(), !is_done, "step {steps}");
    let queues = direct.queues().await.unwrap();
    assert_eq!(queues.iter().map(|queue| queue.created).sum::<u64>(), 1, "step {steps}");
    // Sent again, the request is answered by what became of it.
    let again = direct.enqueue(offer().id(id).offer(), "").await.unwrap();
    match told {
        Ok(outcome) => {
            assert!(
                is_done && matches!(outcome, Outcome::Created(_)),
                "step {steps}: {outcome:?}, {again:?}"
            );
            None
        }
        Err(error) => {
            assert!(error.to_string().len() > 10, "{error}");
            Some(is_done)
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_over_several_partitions_is_done_as_a_whole_or_not_at_all_wherever_it_is_broken_off() {
    // Its place, two locks, the decision, telling two partitions, and leaving its place.
    const STEPS: usize = 7;
    let rounds = (0..=STEPS).flat_map(|steps| [(steps, false), (steps, true)]);
    let told = join_all(
        rounds.map(|(steps, loses)| async move { ((steps, loses), broken_off(steps, loses).await) }),
    );
    let told = told.await;
    for ((steps, loses_answer), became) in &told {
        // The fourth step decides, once it has arrived.
        let decides = *steps > 3 || (*steps == 3 && *loses_answer);
        let expected = if *steps == STEPS { None } else { Some(decides) };
        assert_eq!(*became, expected, "{told:?}");
    }
}

/// A server that repeats a decision to a partition relies on the answer, which is only as safe as what
/// replicas have of it; and only a write lets the server wait for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_told_again_writes_something_to_wait_for() {
    let place = Place::divided(PARTITIONS);
    let engine = engine(place.address()).await;
    let id = astray("a", 1);
    engine.enqueue(keyed("a").id(id).offer(), "").await.unwrap();
    let base = place.address().base_of(partition::of_id(id, PARTITIONS));
    let mut connection = patient(&url()).await;
    let crossed: u64 =
        redis::cmd("HGET").arg(format!("{base}!")).arg("crossed").query_async(&mut connection).await.unwrap();
    // The second turn was never told to the partition, and is refused.
    for turn in [crossed, crossed + 1] {
        redis::cmd("DEL").arg(format!("{base}@")).exec_async(&mut connection).await.unwrap();
        let mut again = redis::cmd("EVAL");
        again.arg(Script::Commit.text()).arg(1).arg(&base).arg("x").arg(turn).arg("").arg(0).arg(0);
        let told = again.query_async::<(String, String)>(&mut connection).await;
        assert_eq!(told.map(|(_, said)| said).ok(), (turn == crossed).then(String::new));
        let is_written: bool =
            redis::cmd("EXISTS").arg(format!("{base}@")).query_async(&mut connection).await.unwrap();
        assert!(is_written, "turn {turn}");
    }
}

/// Servers offer the same ids and keys at the same time, each id in another partition than its key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_commit_over_the_same_partitions_one_is_first() {
    let place = Place::divided(PARTITIONS);
    let engines = join_all((0..3).map(|_| engine(place.address()))).await;
    for round in 0..20_u32 {
        let name = format!("key {round}");
        let offers = engines.iter().enumerate().flat_map(|(number, engine)| {
            // No id is offered twice: that would be answered as a repeated request.
            let from = 1_000 * (round + 1) + 200 * u32::try_from(number).unwrap();
            [astray(&name, from), astray(&name, from + 100)].map(|id| (engine, id))
        });
        let told = join_all(offers.map(|(engine, id)| {
            let offer = keyed(&name).on_conflict("ignore").id(id).offer();
            async move { engine.enqueue(offer, "").await.unwrap() }
        }))
        .await;
        let created: Vec<JobId> = told.iter().filter(|told| told.is_inserted()).map(head_of).collect();
        assert_eq!(created.len(), 1, "round {round}: {told:?}");
        assert!(told.iter().all(|told| head_of(told) == created[0]));
    }
    assert_eq!(engines[0].queues().await.unwrap()[0].created, 20);
}

pub fn head_of(outcome: &Outcome) -> JobId {
    match outcome {
        Outcome::Created(head) | Outcome::Existing(head) => head.id,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_take_the_first_of_all_and_see_at_once_what_others_were_told() {
    let folder = semel_testkit::TempDir::new();
    let own = crate::own::Own::start(folder.path(), &[]).await;
    let address = Address::parse(&own.url()).unwrap().with_partitions(16).unwrap();
    let address = address.with_away_after(PATIENCE);
    let store = Arc::new(Redis::open(&address).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
    let mut made = Vec::new();
    for _ in 0..40 {
        made.push(head_of(&engine.enqueue(job().offer(), "").await.unwrap()));
    }
    let claim = async |limit| {
        let claims = vec![semel_testkit::crash::claim(limit)];
        let batch = semel_store::backend::Batch { groups: Vec::new(), claims };
        let applied = store.commit(batch).await.unwrap();
        applied.claims[0].jobs.iter().map(|(head, _)| head.id).collect::<Vec<_>>()
    };
    let mut taken = Vec::new();
    for _ in 0..8 {
        taken.extend(claim(5).await);
    }
    assert_eq!(taken, made, "whichever partitions they are in");
    let another = self::engine(&address).await;
    for _ in 0..20 {
        assert!(claim(5).await.is_empty());
        let id = head_of(&another.enqueue(job().offer(), "").await.unwrap());
        assert_eq!(claim(5).await, [id], "it was acknowledged by another server");
    }
}

/// A new job costs requests to its own partition and to no other: one to look, and one to store it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_the_business_of_its_partition_alone() {
    const JOBS: u64 = 10;
    let folder = semel_testkit::TempDir::new();
    let own = crate::own::Own::start(folder.path(), &[]).await;
    let address = Address::parse(&own.url()).unwrap().with_partitions(16).unwrap();
    let engine = engine(&address).await;
    let mut connection = own.connection().await;
    let made = async |of: fn(u64) -> Want, from: u64| {
        for number in from..from + JOBS {
            engine.enqueue(of(number).offer(), "").await.unwrap();
        }
    };
    // Which queues are bounded is asked only once.
    let keyed: fn(u64) -> Want = |number| job().keyed_by_number(number);
    made(keyed, 0).await;
    let mut calls = async || {
        (
            crate::own::calls(&mut connection, "evalsha").await,
            crate::own::calls(&mut connection, "exec").await,
        )
    };
    let before = calls().await;
    made(keyed, JOBS).await;
    let after = calls().await;
    assert_eq!((after.0 - before.0, after.1 - before.1), (JOBS, JOBS), "a commit and a load each");
}

/// A node that has forgotten its last moment never agrees with the others about a commit. All are then asked
/// once more, and no more than that, in whatever order they answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_looks_where_something_is_forgotten_looks_twice_and_no_more() {
    const PARTS: u16 = 16;
    const LOOKS: u64 = 20;
    let folder = semel_testkit::TempDir::new();
    let own = crate::own::Own::start(folder.path(), &[]).await;
    let address = Address::parse(&own.url()).unwrap().with_partitions(PARTS).unwrap();
    let store = Redis::open(&address).await.unwrap();
    let mut connection = own.connection().await;
    let mut differ = redis::cmd("HSET");
    differ.arg(format!("{}!", address.base_of(3))).arg("pairs").arg(&[1_u8; 8 * PARTS as usize][..]);
    differ.exec_async(&mut connection).await.unwrap();
    // Every partition has a share of the answer.
    let reads = Reads { queues: vec![QueueName::default()], ..Reads::default() };
    let before = crate::own::calls(&mut connection, "evalsha").await;
    for _ in 0..LOOKS {
        drop(store.load(&reads).await.unwrap());
    }
    let asked = crate::own::calls(&mut connection, "evalsha").await - before;
    assert_eq!(asked, 2 * LOOKS * u64::from(PARTS));
}

/// Durability follows from the configuration of Redis, however the store is divided.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_divided_store_is_worth_what_its_redis_is_worth() {
    for (setting, is_strong) in [("always", true), ("everysec", false)] {
        let folder = semel_testkit::TempDir::new();
        let own = crate::own::Own::start(folder.path(), &["--appendfsync", setting]).await;
        let address = Address::parse(&own.url()).unwrap().with_partitions(PARTITIONS).unwrap();
        let facts = Redis::open(&address).await.unwrap().facts();
        assert_eq!((facts.is_strong, facts.mechanism.contains("partition")), (is_strong, true), "{setting}");
    }
}
