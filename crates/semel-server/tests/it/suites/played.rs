//! The suites themselves, played against every store. They are not part of the workspace: without them, leave
//! this module's tests out, as `cargo xtask test` does.

use std::collections::BTreeSet;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use futures_util::stream::{self, StreamExt as _};
use semel_client::Client;
use semel_testkit::database::store_url;
use semel_testkit::ojs::{self, SuiteTest};
use serde_json::Value;

use super::{ContradictsItself, EXTENSIONS, Hook, KNOWN, LEVEL_0, LEVEL_1, LEVEL_2, LEVELS_3_AND_4, SLOW};
use crate::harness::Server;

/// The suites' folder: beside the workspace, or named by `OJS_SUITES` (`.cargo/config.toml`).
fn suites() -> PathBuf {
    let named = std::env::var_os("OJS_SUITES").map(PathBuf::from);
    named.filter(|folder| folder.is_dir()).unwrap_or_else(|| {
        panic!(
            "set OJS_SUITES to the folder `suites` of https://github.com/openjobspec/ojs-conformance, or leave out `suites::played::`"
        )
    })
}

fn load(dir: &Path, names: &[&str]) -> Vec<SuiteTest> {
    names.iter().flat_map(|name| ojs::load_suite(dir, name).unwrap()).collect()
}

fn is_under(path: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| path.starts_with(prefix))
}

/// Plays tests in the given order; their results must be the expected ones.
async fn play(server: &Server, tests: &[SuiteTest]) {
    play_in_turn(&[server], tests).await;
}

/// The same on several servers of one store: each request goes to the next server.
async fn play_in_turn(servers: &[&Server], tests: &[SuiteTest]) {
    let clients: Vec<Client> = servers.iter().map(|server| server.client.clone()).collect();
    let reset = |client: &Client| Client::new(&format!("{}/ojs/v1/admin/reset", client.base_url())).unwrap();
    let resets: Vec<Client> = clients.iter().map(reset).collect();
    let report = ojs::run_all_in_turn(tests, &clients, &resets).await;
    let known: Vec<String> = tests
        .iter()
        .map(|test| test.path.clone())
        .filter(|path| KNOWN.iter().any(|(known, _)| known == path))
        .collect();
    assert_eq!(report.surprises(&known), Vec::<String>::new(), "{report}");
}

/// Plays the tests in order on the embedded store and, at the same time, in reverse on the in-memory store.
/// With `twice`, the embedded one then plays them in reverse as well, in the same process.
async fn run(names: &[&str], twice: bool) {
    let dir = suites();
    let mut tests = load(&dir, names);
    tests.retain(|test| !is_under(&test.path, SLOW));
    let mut turned = load(&dir, names);
    turned.retain(|test| !is_under(&test.path, SLOW));
    turned.reverse();
    let (embedded, memory) = (Server::start().await, Server::in_memory().await);
    tokio::join!(
        async {
            play(&embedded, &tests).await;
            if twice {
                play(&embedded, &turned).await;
            }
        },
        play(&memory, &turned)
    );
    embedded.stop().await;
    memory.stop().await;
}

/// Plays them on `number` servers that share one PostgreSQL database.
async fn run_on_postgres(names: &[&str], number: usize) {
    run_on_shared(&store_url(), names, number).await;
}

/// Plays them on `number` servers that share one Redis.
async fn run_on_redis(names: &[&str], number: usize) {
    run_on_shared(&semel_testkit::redis::store_url(), names, number).await;
}

async fn run_on_shared(url: &str, names: &[&str], number: usize) {
    let dir = suites();
    let mut tests = load(&dir, names);
    tests.retain(|test| !is_under(&test.path, SLOW));
    let mut servers = Vec::new();
    for _ in 0..number {
        servers.push(Server::on_shared(url).await);
    }
    play_in_turn(&servers.iter().collect::<Vec<_>>(), &tests).await;
    for server in servers {
        server.stop().await;
    }
}

/// The tests in random order, reproducible by seed (`SEMEL_SEED` sets another).
fn shuffled(mut tests: Vec<SuiteTest>) -> Vec<SuiteTest> {
    let seed = std::env::var("SEMEL_SEED")
        .map_or(7_u64, |said| said.parse().unwrap_or_else(|_| panic!("SEMEL_SEED={said} is no seed")));
    let order = |test: &SuiteTest| {
        let mut hasher = std::hash::DefaultHasher::new();
        (seed, &test.path).hash(&mut hasher);
        hasher.finish()
    };
    tests.sort_by_cached_key(order);
    tests
}

/// The queues that a test names, and those it takes jobs from.
fn queues(dir: &Path, test: &SuiteTest) -> (BTreeSet<String>, BTreeSet<String>) {
    fn named(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    match (name.as_str(), value) {
                        ("queue", Value::String(queue)) => drop(found.insert(queue.clone())),
                        ("queues", _) => found.extend(taken_from(value)),
                        _ => named(value, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|value| named(value, found)),
            _ => {}
        }
    }
    fn taken_from(queues: &Value) -> impl Iterator<Item = String> {
        queues.as_array().into_iter().flatten().filter_map(|queue| queue.as_str().map(str::to_owned))
    }
    let text = std::fs::read_to_string(dir.join(&test.path)).unwrap();
    let script: Value = serde_json::from_str(&text).unwrap();
    // Jobs without a queue are in this one.
    let mut all = BTreeSet::from(["default".to_owned()]);
    named(&script["steps"], &mut all);
    let steps = script["steps"].as_array().into_iter().flatten();
    (all, steps.flat_map(|step| taken_from(&step["body"]["queues"])).collect())
}

/// Which tests take jobs from a queue that others name as well, and assume that the jobs are their own: those
/// need a reset first.
fn need_a_reset(dir: &Path, tests: &[SuiteTest]) -> Vec<bool> {
    let queues: Vec<_> = tests.iter().map(|test| queues(dir, test)).collect();
    let is_shared = |at: usize, queue: &String| {
        queues.iter().enumerate().any(|(other, (all, _))| other != at && all.contains(queue))
    };
    queues.iter().enumerate().map(|(at, (_, taken))| taken.iter().any(|queue| is_shared(at, queue))).collect()
}

/// Plays the tests one after another, `rounds` times, with a reset before only those that need one.
async fn play_on(server: &Server, dir: &Path, tests: &[SuiteTest], rounds: u32) {
    let reset = Client::new(&format!("{}/ojs/v1/admin/reset", server.client.base_url())).unwrap();
    let need = need_a_reset(dir, tests);
    for round in 1..=rounds {
        let mut surprises = Vec::new();
        for (test, needs) in tests.iter().zip(&need) {
            let reset = Some(&reset).filter(|_| *needs);
            let report = ojs::run_all(std::slice::from_ref(test), &server.client, reset).await;
            let surprising = report.surprises(&known_of(test));
            if !surprising.is_empty() {
                surprises.push(format!("{surprising:?}: {report}"));
            }
        }
        assert_eq!(surprises, Vec::<String>::new(), "round {round}");
    }
}

fn known_of(test: &SuiteTest) -> Vec<String> {
    KNOWN.iter().map(|(path, _)| (*path).to_owned()).filter(|path| *path == test.path).collect()
}

/// Each on a fresh server without a reset, many side by side.
#[tokio::test(flavor = "multi_thread")]
async fn each_test_alone() {
    const SIDE_BY_SIDE: usize = 16;
    let dir = suites();
    let names = [LEVEL_0, LEVEL_1, LEVEL_2, LEVELS_3_AND_4].concat();
    let mut tests = load(&dir, &names);
    tests.retain(|test| !is_under(&test.path, SLOW));
    assert_eq!(tests.len(), 131);
    let played = stream::iter(tests).map(async |test| {
        let server = Server::in_memory().await;
        let report = ojs::run_all(std::slice::from_ref(&test), &server.client, None).await;
        let surprises = report.surprises(&known_of(&test));
        server.stop().await;
        surprises
    });
    let surprises: Vec<Vec<String>> = played.buffer_unordered(SIDE_BY_SIDE).collect().await;
    assert_eq!(surprises.concat(), Vec::<String>::new());
}

/// In random order, twice, on a server that is reset only where a test requires it: what one test leaves
/// behind must not break another.
#[tokio::test(flavor = "multi_thread")]
async fn in_any_order_without_a_reset() {
    let dir = suites();
    let of = |names: &[&str]| {
        let mut tests = shuffled(load(&dir, names));
        tests.retain(|test| !is_under(&test.path, SLOW));
        tests
    };
    let (quick, first, second) = (of(&[LEVEL_0, LEVELS_3_AND_4].concat()), of(LEVEL_1), of(LEVEL_2));
    let servers = [Server::start().await, Server::start().await, Server::start().await];
    tokio::join!(
        play_on(&servers[0], &dir, &quick, 2),
        play_on(&servers[1], &dir, &first, 1),
        play_on(&servers[2], &dir, &second, 1)
    );
    for server in servers {
        server.stop().await;
    }
}

#[test]
fn every_directory_is_played() {
    let dir = suites();
    let there: BTreeSet<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    let played = [LEVEL_0, LEVEL_1, LEVEL_2, LEVELS_3_AND_4, EXTENSIONS].concat();
    assert_eq!(there, played.into_iter().map(str::to_owned).collect());
}

#[test]
fn what_is_known_to_fail_is_there() {
    let dir = suites();
    let tests = ojs::load(&dir).unwrap();
    for (path, _) in KNOWN {
        assert!(tests.iter().any(|test| test.path == *path), "{path} is no test");
    }
    let counts = |why| KNOWN.iter().filter(|(_, known)| *known == why).count();
    assert_eq!((counts(ContradictsItself), counts(Hook)), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn level_0() {
    run(LEVEL_0, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn level_1() {
    run(LEVEL_1, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn level_2() {
    run(LEVEL_2, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_3_and_4() {
    run(LEVELS_3_AND_4, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extensions() {
    run(EXTENSIONS, true).await;
}

/// They wait for a full minute once or twice, so they run side by side and alongside all other tests.
#[tokio::test(flavor = "multi_thread")]
async fn level_2_by_the_minute() {
    run_by_the_minute(Server::start().await, Server::start().await).await;
}

async fn run_by_the_minute(first: Server, second: Server) {
    let dir = suites();
    let mut tests = load(&dir, LEVEL_2);
    tests.retain(|test| is_under(&test.path, SLOW));
    assert_eq!(tests.len(), 2);
    tokio::join!(play(&first, &tests[..1]), play(&second, &tests[1..]));
    first.stop().await;
    second.stop().await;
}

#[cfg(unix)]
async fn run_by_the_minute_on(first: String, second: String) {
    run_by_the_minute(Server::on_shared(&first).await, Server::on_shared(&second).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_0_and_1_on_postgres() {
    run_on_postgres(&[LEVEL_0, LEVEL_1].concat(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_2_to_4_on_postgres() {
    run_on_postgres(&[LEVEL_2, LEVELS_3_AND_4].concat(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extensions_on_postgres() {
    run_on_postgres(EXTENSIONS, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_0_and_1_on_redis() {
    run_on_redis(&[LEVEL_0, LEVEL_1].concat(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_2_to_4_on_redis() {
    run_on_redis(&[LEVEL_2, LEVELS_3_AND_4].concat(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extensions_on_redis() {
    run_on_redis(EXTENSIONS, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_0_and_1_on_two_servers_and_redis() {
    run_on_redis(&[LEVEL_0, LEVEL_1].concat(), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_2_to_4_on_two_servers_and_redis() {
    run_on_redis(&[LEVEL_2, LEVELS_3_AND_4].concat(), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_0_and_1_on_two_servers() {
    run_on_postgres(&[LEVEL_0, LEVEL_1].concat(), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_2_to_4_on_two_servers() {
    run_on_postgres(&[LEVEL_2, LEVELS_3_AND_4].concat(), 2).await;
}

/// Plays them on a Redis store with four partitions.
async fn run_on_divided_redis(names: &[&str], number: usize) {
    let store = format!("{}&partitions=4", semel_testkit::redis::store_url());
    run_on_shared(&store, names, number).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_0_and_1_on_two_servers_and_a_divided_redis() {
    run_on_divided_redis(&[LEVEL_0, LEVEL_1].concat(), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_2_to_4_on_two_servers_and_a_divided_redis() {
    run_on_divided_redis(&[LEVEL_2, LEVELS_3_AND_4].concat(), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extensions_on_a_divided_redis() {
    run_on_divided_redis(EXTENSIONS, 1).await;
}

/// A cluster of six nodes, three of them replicas, and a store with sixteen partitions, where each write
/// reaches a replica before it is answered.
#[cfg(unix)]
async fn cluster() -> (crate::nodes::Cluster, String) {
    let cluster = crate::nodes::Cluster::start(3, 3_600_000, &["--min-replicas-to-write", "1"]).await;
    let url = format!("{}?partitions=16&replicas=1", cluster.url());
    (cluster, url)
}

#[cfg(unix)]
async fn run_on_cluster(names: &[&str]) {
    let (_cluster, url) = cluster().await;
    run_on_shared(&url, names, 2).await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn levels_0_and_1_on_two_servers_and_a_cluster() {
    run_on_cluster(&[LEVEL_0, LEVEL_1].concat()).await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn levels_2_to_4_on_two_servers_and_a_cluster() {
    run_on_cluster(&[LEVEL_2, LEVELS_3_AND_4].concat()).await;
}

/// The tests that wait for a full minute, on PostgreSQL, one Redis and a cluster: all at once, since they
/// wait for the same minutes.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn level_2_by_the_minute_on_stores_that_are_shared() {
    let (_cluster, url) = cluster().await;
    let redis = semel_testkit::redis::store_url;
    tokio::join!(
        run_by_the_minute_on(store_url(), store_url()),
        run_by_the_minute_on(redis(), redis()),
        run_by_the_minute_on(format!("{url}&prefix=first"), format!("{url}&prefix=second"))
    );
}
