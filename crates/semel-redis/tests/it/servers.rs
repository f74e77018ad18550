//! Several servers on one Redis.

use std::sync::Arc;
use std::time::Duration;

use semel_core::enqueue::{Mode, Outcome};
use semel_core::ident::QueueName;
use semel_core::lease::{Bearer, Grant};
use semel_core::partition;
use semel_core::state::State;
use semel_engine::Engine;
use semel_redis::Redis;
use semel_store::backend::{Backend, Claim, Filter};
use semel_testkit::TempDir;
use semel_testkit::make::{job, key, keyed};
use semel_testkit::patience::rounds;
use semel_testkit::races::at_once;
use semel_testkit::redis::url;
use tokio::task::JoinSet;

use crate::own::{Own, calls, patient};
use crate::place::Place;

/// `number` stores, each with its own connection, by Redis's clock.
async fn stores(place: &Place, number: usize) -> Vec<Arc<Redis>> {
    let mut opening = JoinSet::new();
    for _ in 0..number {
        // All at once, where nothing exists: one of them makes the store.
        let address = place.address().clone();
        opening.spawn(async move { Arc::new(Redis::open(&address).await.unwrap()) });
    }
    opening.join_all().await
}

async fn servers(place: &Place, number: usize) -> Vec<Engine> {
    let opened = stores(place, number).await;
    opened.into_iter().map(|backend| Engine::without_duties(backend).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_start_at_once_make_one_store() {
    let place = Place::new();
    let opened = stores(&place, 10).await;
    assert!(opened.windows(2).all(|pair| pair[0].secret() == pair[1].secret()), "one store has one secret");
    let (one, other) = (Place::new(), stores(&Place::new(), 1).await);
    let one = stores(&one, 1).await;
    assert_ne!(one[0].secret(), other[0].secret(), "another prefix is another store");
}

/// `SEMEL_ROUNDS` sets the number of rounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_equal_jobs_over_three_servers_one_is_created() {
    one_is_created(&Place::new(), rounds("SEMEL_ROUNDS", 30)).await;
}

pub async fn one_is_created(place: &Place, rounds: u64) {
    let engines = servers(place, 3).await;
    for round in 0..rounds {
        let name = format!("round {round}");
        let outcomes = at_once(50, |task| {
            let (engine, offer) = (engines[task % 3].clone(), keyed(&name).on_conflict("ignore").offer());
            async move { engine.enqueue(offer, "").await.unwrap() }
        })
        .await;
        let created: Vec<_> =
            outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Created(_))).collect();
        assert_eq!(created.len(), 1, "{outcomes:?}");
    }
    assert_eq!(engines[0].queues().await.unwrap()[0].created, rounds);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_jobs_goes_on_where_the_last_one_ended() {
    let engines = servers(&Place::new(), 1).await;
    for _ in 0..5 {
        engines[0].enqueue(job().offer(), "").await.unwrap();
    }
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = engines[0].list(Filter { limit: 2, before, ..Filter::default() }).await.unwrap();
        seen.extend(page.heads.iter().map(|head| head.id));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.is_sorted_by(|a, b| a > b), "newest first");
}

/// Each queue has jobs of its own, and no request waits while all queues are read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_queues_are_looked_at_piece_by_piece() {
    const QUEUES: u64 = 1_000;
    let folder = TempDir::new();
    let own = Own::start(folder.path(), &[]).await;
    let engines = servers(&Place::at(&own.url()), 1).await;
    let named = |number: u64| job().queue(&format!("q{number:04}")).offer();
    for _ in 0..2 {
        engines[0].enqueue_batch((0..QUEUES).map(named).collect(), Mode::Each, "").await.unwrap();
    }
    let mut connection = own.connection().await;
    let before = calls(&mut connection, "sscan").await;
    let queues = engines[0].queues().await.unwrap();
    assert!(calls(&mut connection, "sscan").await >= before + 3);
    let names: Vec<String> = queues.iter().map(|stats| stats.row.name.to_string()).collect();
    assert_eq!(names, (0..QUEUES).map(|number| format!("q{number:04}")).collect::<Vec<_>>());
    assert!(queues.iter().all(|stats| (stats.created, stats.count(State::Available)) == (2, 2)));
}

/// A worker that waits at one server hears of a job that comes through another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_hears_what_another_one_commits() {
    one_hears_another(&Place::new()).await;
}

pub async fn one_hears_another(place: &Place) {
    let engines = servers(place, 2).await;
    let other = engines[1].clone();
    let heard = tokio::spawn(async move {
        // Once when it begins to listen; further times only by messages, since nothing is polled here.
        for _ in 0..3 {
            let hints = other.store().hints();
            hints.ready_since(&hints.mark(&[])).await;
        }
    });
    // Messages do not reach it before it listens.
    let told = async {
        loop {
            engines[0].enqueue(job().offer(), "").await.unwrap();
            if heard.is_finished() {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.unwrap();
}

/// After a restart of Redis time stands for up to two seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runs_of_a_key_are_in_order_while_time_stands() {
    runs_are_in_order(Place::new, 0).await;
}

/// After a restart of another partition's node, this partition's time stands still at the time servers have
/// seen there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runs_of_a_key_are_in_order_while_another_partitions_time_stands() {
    let home = partition::of_key(&key("k"), 4);
    runs_are_in_order(|| Place::divided(4), (home + 1) % 4).await;
}

/// That partition's time stands still for a moment, which may pass unseen on a busy machine: then another is
/// tried.
async fn runs_are_in_order(place: impl Fn() -> Place, partition: u16) {
    for _ in 0..15 {
        if are_in_order_while_time_stands(&place(), partition).await {
            return;
        }
    }
    panic!("time went on each time before all was seen");
}

/// Whether time stood still until the end; the runs must be in order in any case.
async fn are_in_order_while_time_stands(place: &Place, partition: u16) -> bool {
    let engines = servers(place, 3).await;
    let want = |mode: &str| keyed("k").on_conflict(mode).offer();
    engines[0].enqueue(want("ignore"), "").await.unwrap();
    let claim = || Claim {
        queues: vec![QueueName::default()],
        limit: 1,
        grant: Grant::new("w".into(), None),
        closed: Vec::new(),
    };
    let mut fences = Vec::new();
    let mut run = async |server: usize| {
        let run = engines[server].claim(claim()).await.unwrap().remove(0).head;
        fences.push(run.fence);
        run.id
    };
    let mut connection = patient(&url()).await;
    let fact = format!("{}!", place.address().base_of(partition));
    let clock: (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await.unwrap();
    let later = clock.0 * 1_000_000 + clock.1 + 1_500_000;
    let mut stand = redis::cmd("HSET");
    stand.arg(fact).arg("at").arg(later).arg("lead").arg(later);
    stand.query_async::<()>(&mut connection).await.unwrap();
    // All servers see that time.
    for engine in &engines {
        for other in 0..8 {
            engine
                .enqueue(keyed(&format!("other {other}")).on_conflict("ignore").queue("others").offer(), "")
                .await
                .unwrap();
        }
    }
    let first = run(0).await;
    assert!(matches!(engines[1].enqueue(want("follow_up"), "").await.unwrap(), Outcome::FollowUp { .. }));
    engines[2].give_back(first, Bearer::default()).await.unwrap();
    assert_eq!(run(1).await, first);
    engines[0].complete(first, Bearer::default(), None).await.unwrap();
    let second = run(2).await;
    assert_ne!(second, first, "the follow-up");
    engines[1].complete(second, Bearer::default(), None).await.unwrap();
    for server in 0..6 {
        engines[server % 3].enqueue(want("ignore"), "").await.unwrap();
        let next = run((server + 1) % 3).await;
        engines[(server + 2) % 3].complete(next, Bearer::default(), None).await.unwrap();
    }
    let clock: (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await.unwrap();
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
    clock.0 * 1_000_000 + clock.1 < later
}
