//! Open Job Spec's own suites, every directory of them, against every store.
//!
//! What is expected to fail stands in [`KNOWN`] with its reason. A failure that is not there is red, and so is a pass of
//! what is there: the list can only say what is true.

mod played;

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

/// Every directory of the suites, by the test that plays it.
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
    // Of a level that is claimed, and of all below it, nothing is expected to fail but what contradicts itself.
    let claimed = manifest["conformance_level"].as_u64().unwrap();
    let lacks = |level: &u64| {
        let of_level = KNOWN.iter().filter(|(path, _)| path.starts_with(&format!("level-{level}-")));
        of_level.clone().any(|(_, why)| *why != ContradictsItself)
    };
    let levels = (0..=4).take_while(|level| !lacks(level)).count() as u64;
    assert_eq!(claimed + 1, levels, "the level that the suites say");
    // By either name, as clients ask for it.
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
