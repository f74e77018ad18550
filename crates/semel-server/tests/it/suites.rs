//! Open Job Spec's own suites, every directory of them, against every store.
//!
//! What is expected to fail stands in [`KNOWN`] with its reason. A failure that is not there is red, and so is a pass of
//! what is there: the list can only say what is true.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use semel_client::Client;
use semel_testkit::database::store_url;
use semel_testkit::ojs::{self, SuiteTest};

use crate::harness::Server;

/// Why a test is expected to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It asserts what its own requests cannot lead to: no honest server can pass it.
    ContradictsItself,
    /// It needs something of the official runner that this one does not have, on purpose: braces that are sent as they
    /// are, in place of an id.
    NothingToFillIn,
    /// It is about something that this server does not do, and says so in its manifest.
    NotSupported,
    /// It needs an extension besides its own that is not supported.
    NeedsAnother,
    /// It asks a test hook of the server that no user has a use for.
    Hook,
}

use Why::{ContradictsItself, Hook, NeedsAnother, NotSupported, NothingToFillIn};

/// Tests that are expected to fail.
const KNOWN: &[(&str, Why)] = &[
    // L1-RTR-014 wants error types that appear in no request.
    ("level-1-reliable/retry/retry-error-history-tracked.json", ContradictsItself),
    ("ext-admin-api/admin-get-job-detail.json", NothingToFillIn),
    ("ext-dead-letter/dead-letter-delete.json", NothingToFillIn),
    ("ext-dead-letter/dead-letter-retry.json", NothingToFillIn),
    ("ext-rate-limiting/rate-limit-wait-behavior.json", NothingToFillIn),
    // `meta.ojs_validate` with empty args is to be refused.
    ("ext-middleware/middleware-validation-reject.json", Hook),
    ("ext-fair-scheduling/fair-scheduling-stats.json", NotSupported),
    ("ext-fair-scheduling/fair-scheduling-weighted-pool.json", NotSupported),
    ("ext-job-versioning/job-versioning-schema-register.json", NeedsAnother),
    ("ext-schema-registry/schema-complex-schema.json", NotSupported),
    ("ext-schema-registry/schema-delete.json", NotSupported),
    ("ext-schema-registry/schema-duplicate-register.json", NotSupported),
    ("ext-schema-registry/schema-empty-body.json", NotSupported),
    ("ext-schema-registry/schema-get-latest.json", NotSupported),
    ("ext-schema-registry/schema-get-specific-version.json", NotSupported),
    ("ext-schema-registry/schema-latest-after-delete.json", NotSupported),
    ("ext-schema-registry/schema-list-versions.json", NotSupported),
    ("ext-schema-registry/schema-register.json", NotSupported),
];

/// Tests that wait for the minute to be full, for a cron expression has no seconds in OJS's suites.
const SLOW: &[&str] = &[
    "level-2-scheduled/cron/cron-fires-on-schedule.json",
    "level-2-scheduled/cron/cron-overlap-prevention.json",
];

/// Every directory of the suites, by the test below that plays it.
const LEVEL_0: &[&str] = &["level-0-core"];
const LEVEL_1: &[&str] = &["level-1-reliable"];
const LEVEL_2: &[&str] = &["level-2-scheduled"];
const LEVELS_3_AND_4: &[&str] = &["level-3-workflows", "level-4-advanced"];
const EXTENSIONS: &[&str] = &[
    "ext-admin-api",
    "ext-backpressure",
    "ext-dead-letter",
    "ext-durable-execution",
    "ext-fair-scheduling",
    "ext-graceful-shutdown",
    "ext-job-versioning",
    "ext-middleware",
    "ext-multi-tenancy",
    "ext-observability",
    "ext-progress",
    "ext-rate-limiting",
    "ext-schema-registry",
    "ext-webhooks",
];

#[allow(clippy::print_stderr, reason = "whoever runs the tests should know what was not run")]
fn suites() -> Option<PathBuf> {
    let given = std::env::var_os("OJS_SUITES").map(PathBuf::from);
    let beside = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/ojs/suites"));
    let found = given.or_else(|| beside.is_dir().then_some(beside));
    if found.is_none() {
        eprintln!("skipped: set OJS_SUITES to the directory of the OJS conformance suites");
    }
    found
}

fn load(dir: &Path, names: &[&str]) -> Vec<SuiteTest> {
    names.iter().flat_map(|name| ojs::load_suite(dir, name).unwrap()).collect()
}

fn is_under(path: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| path.starts_with(prefix))
}

/// Plays tests in the order given; what came of them must be what is expected.
async fn play(server: &Server, tests: &[SuiteTest]) {
    play_in_turn(&[server], tests).await;
}

/// The same on servers that share a store: each request goes to the next of them.
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

/// The embedded store plays them in their order, the store in memory the other way round at the same time; and the
/// embedded one the other way round after that, in the same process, if `twice`.
async fn run(names: &[&str], twice: bool) {
    let Some(dir) = suites() else { return };
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

/// As many servers on one database in PostgreSQL play them.
async fn run_on_postgres(names: &[&str], number: usize) {
    let Some(dir) = suites() else { return };
    let mut tests = load(&dir, names);
    tests.retain(|test| !is_under(&test.path, SLOW));
    let url = store_url();
    let mut servers = Vec::new();
    for _ in 0..number {
        servers.push(Server::on_postgres(&url).await);
    }
    play_in_turn(&servers.iter().collect::<Vec<_>>(), &tests).await;
    for server in servers {
        server.stop().await;
    }
}

#[test]
fn every_directory_is_played() {
    let Some(dir) = suites() else { return };
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
    let Some(dir) = suites() else { return };
    let tests = ojs::load(&dir).unwrap();
    for (path, _) in KNOWN {
        assert!(tests.iter().any(|test| test.path == *path), "{path} is no test");
    }
    let counts = |why| KNOWN.iter().filter(|(_, known)| *known == why).count();
    assert_eq!((counts(ContradictsItself), counts(Hook)), (1, 1));
}

/// An extension is either there, and then its suite finds nothing that is not supported, or it is not, and then the
/// manifest says so.
#[tokio::test]
async fn the_manifest_says_what_the_suites_say() {
    let server = Server::in_memory().await;
    let manifest = server.get("/ojs/manifest").await.body;
    let named = |member: &str, name: &str| {
        manifest[member].as_array().unwrap().iter().any(|known| known.as_str() == Some(name))
    };
    for suite in EXTENSIONS {
        let name = suite.strip_prefix("ext-").unwrap();
        let is_there = named("extensions", name);
        assert_ne!(is_there, named("extensions_not_supported", name), "{name}");
        let lacks = KNOWN.iter().any(|(path, why)| path.starts_with(suite) && *why == NotSupported);
        assert!(!(is_there && lacks), "{name}");
    }
    assert_eq!(manifest["unique_job_strength"], "strong");
    for member in ["unique_job_mechanism", "durability"] {
        assert!(manifest[member].as_str().is_some_and(|text| !text.is_empty()), "{member}");
    }
    assert!(manifest["limits"]["args_bytes"].as_u64().is_some_and(|bytes| bytes >= 1024 * 1024));
    server.stop().await;
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

/// They wait for the minute to be full, once or twice: side by side, and beside everything else.
#[tokio::test(flavor = "multi_thread")]
async fn level_2_by_the_minute() {
    let Some(dir) = suites() else { return };
    let (first, second) = (Server::start().await, Server::start().await);
    let mut tests = load(&dir, LEVEL_2);
    tests.retain(|test| is_under(&test.path, SLOW));
    assert_eq!(tests.len(), 2);
    tokio::join!(play(&first, &tests[..1]), play(&second, &tests[1..]));
    first.stop().await;
    second.stop().await;
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
async fn levels_0_and_1_on_two_servers() {
    run_on_postgres(&[LEVEL_0, LEVEL_1].concat(), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_2_to_4_on_two_servers() {
    run_on_postgres(&[LEVEL_2, LEVELS_3_AND_4].concat(), 2).await;
}
