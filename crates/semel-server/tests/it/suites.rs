//! Open Job Spec's own suites, every directory of them, against every store.
//!
//!
//! Expected failures are listed in [`KNOWN`] with their reasons. A failure that is not listed makes the test
//! fail, and so does a listed test that passes, so the list stays true.

mod played;

use crate::harness::Server;

/// Why a test is expected to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It asserts something that its own requests cannot lead to: no honest server can pass it.
    ContradictsItself,
    /// It needs a feature that this runner leaves out on purpose: placeholders sent with their braces, in
    /// place of an id.
    NothingToFillIn,
    /// It tests something that this server does not do, as its manifest says.
    NotSupported,
    /// It needs another extension, which is not supported.
    NeedsAnother,
    /// It needs a test hook in the server that is of no use to users.
    Hook,
}

use Why::{ContradictsItself, Hook, NeedsAnother, NotSupported, NothingToFillIn};

/// Tests that are expected to fail.
const KNOWN: &[(&str, Why)] = &[
    // L1-RTR-014 expects error types that no request contains.
    ("level-1-reliable/retry/retry-error-history-tracked.json", ContradictsItself),
    ("ext-admin-api/admin-get-job-detail.json", NothingToFillIn),
    ("ext-dead-letter/dead-letter-delete.json", NothingToFillIn),
    ("ext-dead-letter/dead-letter-retry.json", NothingToFillIn),
    ("ext-rate-limiting/rate-limit-wait-behavior.json", NothingToFillIn),
    // Expects `meta.ojs_validate` with empty args to be refused.
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

/// Tests that wait for a full minute, since OJS's cron expressions have no seconds.
const SLOW: &[&str] = &[
    "level-2-scheduled/cron/cron-fires-on-schedule.json",
    "level-2-scheduled/cron/cron-overlap-prevention.json",
];

/// Every directory of the suites, grouped by the test that plays it.
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

/// Either an extension is supported, and its suite has no `NotSupported` failures, or the manifest says that
/// it is not.
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
    // At the claimed level and below, only tests that contradict themselves may fail.
    let claimed = manifest["conformance_level"].as_u64().unwrap();
    let lacks = |level: &u64| {
        let of_level = KNOWN.iter().filter(|(path, _)| path.starts_with(&format!("level-{level}-")));
        of_level.clone().any(|(_, why)| *why != ContradictsItself)
    };
    let levels = (0..=4).take_while(|level| !lacks(level)).count() as u64;
    assert_eq!(claimed + 1, levels, "the level that the suites say");
    // Clients ask for it by either name.
    for name in ["queue_pause", "pause_resume", "schema_validation"] {
        assert_eq!(manifest["capabilities"][name], true, "{name}");
    }
    assert_eq!(manifest["unique_job_strength"], "strong");
    for member in ["unique_job_mechanism", "durability"] {
        assert!(manifest[member].as_str().is_some_and(|text| !text.is_empty()), "{member}");
    }
    assert!(manifest["limits"]["args_bytes"].as_u64().is_some_and(|bytes| bytes >= 1024 * 1024));
    server.stop().await;
}
