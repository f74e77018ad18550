//! The configuration of Redis: what the store reports about it, how few rights it needs, and how much room a
//! job takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rcgen::{CertificateParams, Issuer, KeyPair};
use semel_core::enqueue::{Mode, Outcome};
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::settle::Settled;
use semel_engine::Engine;
use semel_redis::scripts::Script;
use semel_redis::{Address, Durability, Redis, RedisError};
use semel_store::StoreError;
use semel_store::backend::Backend;
use semel_testkit::crash::claim;
use semel_testkit::make::{job, keyed};
use semel_testkit::redis::url;
use semel_testkit::{TempDir, warnings};

use crate::nodes::Node;
use crate::own::{Own, patient};
use crate::partitions::{PARTITIONS, astray, cut_after_at, engine};
use crate::place::Place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_says_what_its_redis_promises() {
    // The settings, the durability, the words in which it is reported, and the finding.
    let settings = [
        (&["--appendfsync", "always"][..], Durability::Always, "appendfsync always", None),
        (
            &["--appendfsync", "everysec"],
            Durability::EverySecond,
            "appendfsync everysec",
            Some("appendfsync"),
        ),
        (
            &["--appendfsync", "always", "--no-appendfsync-on-rewrite", "yes"],
            Durability::Rewrites,
            "no-appendfsync-on-rewrite no",
            Some("no-appendfsync-on-rewrite"),
        ),
        (
            &["--appendfsync", "always", "--maxmemory-policy", "allkeys-lru"],
            Durability::Evicts,
            "noeviction",
            Some("maxmemory-policy"),
        ),
        (&["--appendonly", "no"], Durability::Never, "appendonly yes", Some("appendonly")),
    ];
    for (settings, says, words, wrong) in settings {
        let folder = TempDir::new();
        let own = Own::start(folder.path(), settings).await;
        let store = Redis::open(&Address::parse(&own.url()).unwrap()).await.unwrap();
        let facts = store.facts();
        assert_eq!((store.durability(), facts.is_strong), (says, says == Durability::Always));
        assert!(facts.durability.contains(words), "{}", facts.durability);
        let findings = store.survey().await.unwrap().findings();
        let named: Vec<&str> = findings.iter().map(|finding| finding.setting).collect();
        assert_eq!(named, Vec::from_iter(wrong));
    }
}

/// The warning is logged by a server that works with the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_setting_that_loses_something_is_warned_of() {
    warnings::keep();
    let folder = TempDir::new();
    let own =
        Own::start(folder.path(), &["--appendfsync", "always", "--maxmemory-policy", "volatile-ttl"]).await;
    let store = Redis::open(&Address::parse(&own.url()).unwrap()).await.unwrap();
    assert!(warnings::with("volatile-ttl").is_empty(), "who only looks asks for it");
    store.warn_of_settings().await;
    let said = warnings::with("volatile-ttl");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("WARN acknowledged jobs may be lost: maxmemory-policy"), "{said:?}");
}

/// A setting that is changed later is reported once a server has reconnected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_says_what_its_redis_promises_now() {
    let folder = TempDir::new();
    let own = Own::start(folder.path(), &["--appendfsync", "always"]).await;
    let store = Arc::new(Redis::open(&Address::parse(&own.url()).unwrap()).await.unwrap());
    let engine = Engine::without_duties(store).unwrap();
    assert!(engine.facts().is_strong);
    let mut connection = own.connection().await;
    let mut set = redis::cmd("CONFIG");
    let () = set.arg("SET").arg("appendfsync").arg("everysec").query_async(&mut connection).await.unwrap();
    let mut hang_up = redis::cmd("CLIENT");
    hang_up.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
    hang_up.exec_async(&mut connection).await.unwrap();
    assert!(engine.queues().await.unwrap().is_empty());
    assert!(!engine.facts().is_strong && engine.facts().durability.contains("everysec"));
    // Once closed, it reports what it knew last.
    engine.close().await;
    assert_eq!(engine.facts().engine, "redis");
}

/// In several pieces, each of which blocks Redis for a moment only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn much_is_deleted_in_pieces() {
    let folder = TempDir::new();
    let own = Own::start(folder.path(), &[]).await;
    let mut connection = own.connection().await;
    let store = Redis::open(&Address::parse(&own.url()).unwrap()).await.unwrap();
    let fill = "for i = 1, 50000 do redis.call('SET', 'semel{p0}of' .. i, '') end";
    let () = redis::cmd("EVAL").arg(fill).arg(0).query_async(&mut connection).await.unwrap();
    store.clear().await.unwrap();
    let left: u64 = redis::cmd("DBSIZE").query_async(&mut connection).await.unwrap();
    assert!(left < 10, "{left} are left");
}

/// What others make meanwhile is there as a whole in the end, or not at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_are_made_while_everything_is_deleted_are_no_halves() {
    const QUEUES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let folder = TempDir::new();
    let own = Own::start(folder.path(), &[]).await;
    let mut connection = own.connection().await;
    let store = Arc::new(Redis::open(&Address::parse(&own.url()).unwrap()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
    let fill = "for i = 1, 200000 do redis.call('SET', 'semel{p0}of' .. i, '') end";
    let () = redis::cmd("EVAL").arg(fill).arg(0).query_async(&mut connection).await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let making = tokio::spawn({
        let (engine, over) = (engine.clone(), Arc::clone(&over));
        async move {
            let mut made = Vec::new();
            for queue in QUEUES.iter().cycle() {
                // One more job after the deletion.
                let is_last = over.load(Ordering::Relaxed);
                let told = engine.enqueue(job().queue(queue).offer(), "").await;
                made.extend(told.ok().and_then(|outcome| outcome.inserted()));
                if is_last {
                    break;
                }
            }
            made
        }
    });
    store.clear().await.unwrap();
    over.store(true, Ordering::Relaxed);
    let mut left = Vec::new();
    for id in making.await.unwrap() {
        if engine.job(id).await.unwrap().is_some() {
            left.push(id);
        }
    }
    let mut claimed = Vec::new();
    loop {
        let runs = engine.claim(semel_testkit::fixture::claim(&QUEUES, 500)).await.unwrap();
        if runs.is_empty() {
            break;
        }
        claimed.extend(runs.iter().map(|run| run.head.id));
    }
    assert!(!left.is_empty() && left.iter().all(|id| claimed.contains(id)), "{left:?}, {claimed:?}");
}

/// The account that the crate's documentation describes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_of_its_own_needs_its_keys_and_no_more() {
    let folder = TempDir::new();
    let own = Own::start(folder.path(), &[]).await;
    let mut connection = own.connection().await;
    let rules = "on >hush ~semel{p0}* &semel{p0}news +@read +@write +@scripting +@transaction +@connection +@pubsub -@dangerous +info +time";
    let mut account = redis::cmd("ACL");
    account.arg("SETUSER").arg("worker");
    for rule in rules.split(' ') {
        account.arg(rule);
    }
    let () = account.query_async(&mut connection).await.unwrap();
    let url = format!("{}?user=worker&pass=hush", own.url());
    let store = Arc::new(Redis::open(&Address::parse(&url).unwrap()).await.unwrap());
    assert_eq!(store.durability(), Durability::Unknown, "it may not ask");
    let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
    assert!(matches!(engine.enqueue(keyed("a").offer(), "").await.unwrap(), Outcome::Created(_)));
    assert_eq!(engine.claim(claim(1)).await.unwrap().len(), 1);
    assert!(!store.maintain().await.unwrap());
    assert_eq!(engine.store().events(0, 10).await.unwrap().events.len(), 2);
    store.clear().await.unwrap();
    let () = redis::cmd("ACL")
        .arg("SETUSER")
        .arg("worker")
        .arg("+config|get")
        .query_async(&mut connection)
        .await
        .unwrap();
    let store = Redis::open(&Address::parse(&url).unwrap()).await.unwrap();
    assert_ne!(store.durability(), Durability::Unknown);
    // It has no rights on another store's keys.
    let other = Address::parse(&url).unwrap().with_prefix("other").unwrap();
    let refused = Redis::open(&other).await.map(drop).unwrap_err();
    assert!(matches!(StoreError::from(refused), StoreError::Unavailable(_)));
    let wrong = Address::parse(&format!("{}?user=worker&pass=wrong", own.url())).unwrap();
    let refused = Redis::open(&wrong).await.map(drop).unwrap_err().to_string();
    assert!(!refused.contains("wrong"), "{refused}");
}

/// A script that is denied one command in the middle would leave something half done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_may_not_write_all_of_it_writes_nothing() {
    let folder = TempDir::new();
    let own = Own::start(folder.path(), &[]).await;
    let mut connection = own.connection().await;
    for denied in
        ["xadd", "zrem", "mset", "smembers", "get", "exists", "mget", "hgetall", "zrange", "getrange"]
    {
        let mut account = redis::cmd("ACL");
        account.arg("SETUSER").arg("clerk").arg(&["reset", "on", ">hush", "~*", "&*", "+@all"]);
        let () = account.arg(format!("-{denied}")).query_async(&mut connection).await.unwrap();
        let url = format!("{}?user=clerk&pass=hush", own.url());
        let refused = Redis::open(&Address::parse(&url).unwrap()).await.map(drop).unwrap_err().to_string();
        assert!(refused.contains(&denied.to_uppercase()), "{refused}");
        let stored: i64 = redis::cmd("DBSIZE").query_async(&mut connection).await.unwrap();
        assert_eq!(stored, 0);
    }
}

/// A job that is refused for lack of memory is not half stored, and goes through once there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_without_room_refuses_and_stores_nothing_by_halves() {
    let folder = TempDir::new();
    let own = Own::start(folder.path(), &[]).await;
    let engine =
        Engine::without_duties(Arc::new(Redis::open(&Address::parse(&own.url()).unwrap()).await.unwrap()))
            .unwrap();
    engine.enqueue(keyed("before").offer(), "").await.unwrap();
    let mut connection = own.connection().await;
    let mut room = async |bytes: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxmemory").arg(bytes);
        let () = set.query_async(&mut connection).await.unwrap();
    };
    room("1").await;
    let refused = engine.enqueue(keyed("a").offer(), "").await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    assert_eq!(engine.queues().await.unwrap()[0].created, 1);
    let told = engine.takes_writes().await;
    assert!(matches!(&told, Err(StoreError::Unavailable(why)) if why.contains("OOM")), "{told:?}");
    room("0").await;
    engine.takes_writes().await.unwrap();
    assert!(matches!(engine.enqueue(keyed("a").offer(), "").await.unwrap(), Outcome::Created(_)));
    assert_eq!(engine.queues().await.unwrap()[0].created, 2);
}

/// A server dies in the middle of a commit over several partitions, and then Redis runs out of memory: the
/// partitions that it had locked become free all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_over_several_partitions_is_ended_where_there_is_no_room_any_more() {
    // Cut off after its place and two locks, or after the decision as well, which must then be told.
    for (steps, is_decided) in [(2, false), (3, true)] {
        let node = Node::start(&[]).await;
        let url = format!("redis://127.0.0.1:{}", node.port);
        let at = |url: &str| Address::parse(url).unwrap().with_partitions(PARTITIONS).unwrap();
        let direct = engine(&at(&url)).await;
        let (port, _) = cut_after_at(&url, steps, true).await;
        let through = at(&format!("redis://127.0.0.1:{port}")).with_patience(Duration::from_millis(300));
        let victim = engine(&through).await;
        let id = astray("a", 1);
        let told = victim.enqueue(keyed("a").id(id).offer(), "").await;
        assert!(told.is_err(), "{told:?}");
        drop(victim);
        node.tell(&["CONFIG", "SET", "maxmemory", "1"]).await;
        assert_eq!(direct.job(id).await.unwrap().is_some(), is_decided);
        let refused = direct.enqueue(keyed("b").id(astray("b", 9)).offer(), "").await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
        node.tell(&["CONFIG", "SET", "maxmemory", "0"]).await;
        let told = direct.enqueue(keyed("a").on_conflict("ignore").offer(), "").await.unwrap();
        assert_eq!(told.is_inserted(), !is_decided, "{told:?}");
    }
}

/// A job with a key and a hundred bytes of args.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_job_takes_about_a_kilobyte_at_most() {
    const JOBS: usize = 2_000;
    let folder = TempDir::new();
    let own = Own::start(folder.path(), &[]).await;
    let engine =
        Engine::without_duties(Arc::new(Redis::open(&Address::parse(&own.url()).unwrap()).await.unwrap()))
            .unwrap();
    let mut connection = own.connection().await;
    let mut used = async || -> usize {
        let () = redis::cmd("MEMORY").arg("PURGE").query_async(&mut connection).await.unwrap();
        let said: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await.unwrap();
        said.lines()
            .find_map(|line| line.strip_prefix("used_memory_dataset:"))
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    let args = format!("[\"{}\"]", "x".repeat(98));
    let offer = |number: usize| keyed(&number.to_string()).args(&args).offer();
    engine.enqueue(offer(JOBS), "").await.unwrap();
    let before = used().await;
    let mut running = tokio::task::JoinSet::new();
    for number in 0..JOBS {
        let (engine, offer) = (engine.clone(), offer(number));
        running.spawn(async move { engine.enqueue(offer, "").await.unwrap() });
    }
    running.join_all().await;
    let each = (used().await - before) / JOBS;
    println!("{each} bytes for a job");
    assert!((300..1_200).contains(&each), "{each} bytes for a job");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_connection_is_to_whom_it_says_it_is() {
    let folder = TempDir::new();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let authority = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        std::fs::write(path(name), params.self_signed(&key).unwrap().pem()).unwrap();
        Issuer::new(params, key)
    };
    let (issuer, _stranger) = (authority("authority.pem"), authority("stranger.pem"));
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(path("server.pem"), params.signed_by(&key, &issuer).unwrap().pem()).unwrap();
    std::fs::write(path("server.key"), key.serialize_pem()).unwrap();
    let (certificate, key, roots) = (path("server.pem"), path("server.key"), path("authority.pem"));
    // If the port is taken by then, another is tried: a port cannot be reserved before it is used.
    for _ in 0..20 {
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let settings = [
            "--bind",
            "127.0.0.1",
            "--tls-port",
            &port,
            "--tls-auth-clients",
            "no",
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &roots,
        ];
        let Some(_own) = Own::try_start(folder.path(), &settings).await else { continue };
        let address = |rest: &str| Address::parse(&format!("rediss://127.0.0.1:{port}{rest}")).unwrap();
        let store = Redis::open(&address(&format!("?cacert={roots}"))).await.unwrap();
        // The whole life of a job.
        let engine = Engine::without_duties(Arc::new(store)).unwrap();
        let Outcome::Created(head) = engine.enqueue(keyed("a").offer(), "").await.unwrap() else {
            panic!("it is new")
        };
        let runs = engine.claim(claim(1)).await.unwrap();
        assert_eq!(runs[0].head.id, head.id);
        let bearer = Bearer { lease: Some(LeaseToken(runs[0].head.fence)), worker: None };
        let settled = engine.complete(head.id, bearer, None).await.unwrap();
        assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
        // Neither an authority that the system knows vouches for it, nor a stranger.
        let refused = Redis::open(&address("")).await.map(drop);
        assert!(matches!(refused, Err(RedisError::Redis(_))), "{refused:?}");
        let refused = Redis::open(&address(&format!("?cacert={}", path("stranger.pem")))).await.map(drop);
        assert!(matches!(refused, Err(RedisError::Redis(_))), "{refused:?}");
        return;
    }
    panic!("no port could be had");
}

/// A commit may have events of a thousand jobs, and Redis keeps the whole log in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_bounded_by_its_records_and_by_what_is_in_them() {
    let place = Place::new();
    let engine = engine(place.address()).await;
    for _ in 0..300 {
        engine.enqueue(job().offer(), "").await.unwrap();
    }
    let mut connection = patient(&url()).await;
    let base = place.address().base();
    let log = format!("{base}e");
    let each = {
        let read = "local all = redis.call('XRANGE', KEYS[1], '-', '+') local n = 0
            for i = 1, #all do n = n + #all[i][2][4] end return n";
        let bytes: u64 =
            redis::cmd("EVAL").arg(read).arg(1).arg(&log).query_async(&mut connection).await.unwrap();
        bytes / 300
    };
    let mut kept = async |records: u64, bytes: u64| {
        let mut trim = redis::cmd("EVAL");
        trim.arg(Script::Upkeep.text()).arg(1).arg(&base).arg("").arg(0).arg(0);
        trim.arg("trim").arg(records).arg(bytes);
        trim.exec_async(&mut connection).await.unwrap();
        let length: usize = redis::cmd("XLEN").arg(&log).query_async(&mut connection).await.unwrap();
        let page = engine.store().events(0, 1_000).await.unwrap();
        assert_eq!(page.kept_after > 0, length < 300, "{}", page.kept_after);
        assert_eq!(page.events.len(), length);
        length
    };
    assert_eq!(kept(1_000, 1 << 30).await, 300);
    assert_eq!(kept(280, 1 << 30).await, 280);
    // An eighth at a time: its size is estimated from a sample.
    assert_eq!(kept(280, 200 * each).await, 245);
    for _ in 0..9 {
        kept(280, 200 * each).await;
    }
    let left = kept(280, 200 * each).await;
    assert!((150..=210).contains(&left), "{left}");
    // Where a run of Redis ended, the numbers of records have a gap. The record after it counts like any
    // other.
    redis::cmd("HINCRBY")
        .arg(format!("{base}!"))
        .arg("records")
        .arg(100_000)
        .exec_async(&mut connection)
        .await
        .unwrap();
    let jobs = (0..900).map(|_| job().offer()).collect();
    engine.enqueue_batch(jobs, Mode::Each, "").await.unwrap();
    let mut trim = redis::cmd("EVAL");
    trim.arg(Script::Upkeep.text()).arg(1).arg(&base).arg("").arg(0).arg(0);
    trim.arg("trim").arg(280).arg(2_000 * each);
    trim.exec_async(&mut connection).await.unwrap();
    let length: usize = redis::cmd("XLEN").arg(&log).query_async(&mut connection).await.unwrap();
    assert_eq!(length, left + 1);
}
