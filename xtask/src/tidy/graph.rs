//! Which crate may depend on which.

use serde_json::Value;

use super::Finding;
use super::homes::BACKENDS;

/// The crates of this workspace that each crate may depend on; dev-dependencies are not restricted.
const ALLOWED: &[(&str, Allowed)] = &[
    ("semel-core", Allowed::Only(&[])),
    ("semel-store", Allowed::Only(&["semel-core"])),
    ("semel-sqlite", Allowed::Only(&["semel-core", "semel-store"])),
    ("semel-postgres", Allowed::Only(&["semel-core", "semel-store"])),
    ("semel-redis", Allowed::Only(&["semel-core", "semel-store"])),
    ("semel-engine", Allowed::Only(&["semel-core", "semel-store"])),
    ("semel-ojs", Allowed::Only(&["semel-core"])),
    ("semel-templates", Allowed::Only(&["semel-ojs"])),
    ("semel-client", Allowed::Only(&[])),
    ("semel-server", Allowed::Only(&["semel-core", "semel-store", "semel-engine", "semel-ojs"])),
    ("semel-macros", Allowed::Only(&[])),
    (
        "semel-testkit",
        Allowed::Only(&["semel-core", "semel-store", "semel-engine", "semel-ojs", "semel-client"]),
    ),
    // Adapters join a driver's transactions through the library alone, which hides SQL and rules.
    ("semel-sqlx", Allowed::Only(&["semel"])),
    ("semel-diesel", Allowed::Only(&["semel"])),
    ("semel-examples", Allowed::Only(&["semel", "semel-sqlx"])),
    ("semel", Allowed::AllButTestkit),
    ("semel-cli", Allowed::AllButTestkit),
    ("semel-bench", Allowed::AllButTestkit),
    ("xtask", Allowed::Only(&[])),
];
/// The feature that includes planted bugs.
const PLANTED: &str = "planted";
/// The crate that only tests may depend on.
const TESTKIT: &str = "semel-testkit";

enum Allowed {
    Only(&'static [&'static str]),
    AllButTestkit,
}

/// Looks at the dependencies of every crate of the workspace, in cargo's metadata.
pub fn check(metadata: &Value) -> Vec<Finding> {
    let members: Vec<&Value> = members(metadata).collect();
    if members.is_empty() {
        return vec![Finding::error("cargo metadata", "names no crate of this workspace")];
    }
    let names: Vec<&str> = members.iter().filter_map(|member| member["name"].as_str()).collect();
    let mut findings = Vec::new();
    for member in &members {
        let name = member["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = ALLOWED.iter().find(|(listed, _)| *listed == name) else {
            findings.push(Finding::error(name, "is not in the table of crates: add it to graph.rs"));
            continue;
        };
        for needed in dependencies(member).filter(|needed| names.contains(needed)) {
            findings.extend(judge(name, needed, allowed));
        }
    }
    findings
}

/// Rows of the table without a crate: their permissions would silently apply to a later crate of that name.
pub fn left_over(metadata: &Value) -> Vec<Finding> {
    let is_there = |name: &str| members(metadata).any(|member| member["name"] == name);
    let gone = ALLOWED.iter().map(|(name, _)| *name).filter(|name| !is_there(name));
    gone.map(|name| Finding::error(name, "is not a crate of this workspace: remove its row from graph.rs"))
        .collect()
}

/// Planted bugs are enabled on the command line of a test, never by a crate or a default feature.
pub fn planted(metadata: &Value) -> Vec<Finding> {
    let names = |list: &Value| -> Vec<String> {
        let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut findings = Vec::new();
    for member in members(metadata) {
        let name = member["name"].as_str().unwrap_or_default();
        for (feature, enables) in member["features"].as_object().into_iter().flatten() {
            if names(enables).iter().any(|enabled| is_planted(enabled)) {
                findings.push(Finding::error(name, format!("its feature `{feature}` enables `{PLANTED}`")));
            }
        }
        for dependency in member["dependencies"].as_array().into_iter().flatten() {
            if names(&dependency["features"]).iter().any(|enabled| is_planted(enabled)) {
                let needed = dependency["name"].as_str().unwrap_or_default();
                findings.push(Finding::error(format!("{name} → {needed}"), format!("enables `{PLANTED}`")));
            }
        }
    }
    findings
}

fn is_planted(feature: &str) -> bool {
    feature.rsplit('/').next() == Some(PLANTED)
}

fn judge(name: &str, needed: &str, allowed: &Allowed) -> Option<Finding> {
    let edge = format!("{name} → {needed}");
    if needed == TESTKIT {
        return Some(Finding::error(edge, "the test kit belongs in [dev-dependencies]"));
    }
    let allowed = match allowed {
        Allowed::AllButTestkit => return None,
        Allowed::Only(names) => names,
    };
    if allowed.contains(&needed) {
        return None;
    }
    if BACKENDS.contains(&needed) {
        return Some(Finding::error(
            edge,
            "only semel, semel-cli and semel-bench may know a store; use the trait `Backend`",
        ));
    }
    let may = if allowed.is_empty() { "no crate of this workspace".to_owned() } else { allowed.join(", ") };
    Some(Finding::error(edge, format!("{name} may depend on {may}")))
}

/// The packages of the workspace.
fn members(metadata: &Value) -> impl Iterator<Item = &Value> {
    let ids = metadata["workspace_members"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages(metadata).iter().filter(move |package| ids.contains(&package["id"]))
}

/// All packages, dependencies included.
pub fn packages(metadata: &Value) -> &[Value] {
    metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The names of a package's build dependencies under their real names, without those of its tests.
fn dependencies(package: &Value) -> impl Iterator<Item = &str> {
    let all = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter()
        .filter(|dependency| dependency["kind"] != "dev")
        .filter_map(|dependency| dependency["name"].as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{ALLOWED, check, left_over, planted};

    /// A crate and its dependencies, each with its kind.
    type Crate<'a> = (&'a str, &'a [(&'a str, Option<&'a str>)]);

    fn metadata(crates: &[Crate<'_>]) -> Value {
        let package = |(name, needs): &Crate<'_>| {
            let needs: Vec<Value> =
                needs.iter().map(|(name, kind)| json!({ "name": name, "kind": kind })).collect();
            json!({ "id": name, "name": name, "dependencies": needs })
        };
        let ids: Vec<&str> = crates.iter().map(|(name, _)| *name).collect();
        json!({ "workspace_members": ids, "packages": crates.iter().map(package).collect::<Vec<_>>() })
    }

    fn edges(crates: &[Crate<'_>]) -> Vec<String> {
        check(&metadata(crates)).into_iter().map(|finding| finding.place).collect()
    }

    const CORE: Crate<'_> = ("semel-core", &[("serde", None)]);
    const STORE: Crate<'_> = ("semel-store", &[("semel-core", None)]);

    #[test]
    fn edges_of_the_table_are_fine() {
        let sqlite: &[_] = &[("semel-core", None), ("semel-store", None), ("semel-testkit", Some("dev"))];
        let cli: &[_] = &[("semel-sqlite", None), ("semel-store", None)];
        let kit: &[_] = &[("semel-store", None)];
        assert_eq!(
            edges(&[CORE, STORE, ("semel-sqlite", sqlite), ("semel-cli", cli), ("semel-testkit", kit)]),
            [""; 0]
        );
    }

    #[test]
    fn an_edge_that_is_not_is_named() {
        assert_eq!(edges(&[("semel-core", &[("semel-store", None)]), STORE]), ["semel-core → semel-store"]);
        assert_eq!(
            edges(&[("semel-core", &[("semel-store", Some("build"))]), STORE]),
            ["semel-core → semel-store"]
        );
        assert_eq!(edges(&[CORE, ("semel-client", &[("semel-core", None)])]), ["semel-client → semel-core"]);
    }

    #[test]
    fn only_binaries_and_the_library_know_a_store() {
        let sqlite: Crate<'_> = ("semel-sqlite", &[]);
        for name in ["semel-server", "semel-engine", "semel-testkit"] {
            let found = check(&metadata(&[sqlite, (name, &[("semel-sqlite", None)])]));
            assert!(found[0].what.contains("may know a store"), "{found:?}");
        }
        assert_eq!(edges(&[sqlite, ("semel-bench", &[("semel-sqlite", None)])]), [""; 0]);
    }

    #[test]
    fn the_test_kit_is_for_tests() {
        let kit: Crate<'_> = ("semel-testkit", &[]);
        for name in ["semel-cli", "semel-server"] {
            assert_eq!(
                edges(&[kit, (name, &[("semel-testkit", None)])]),
                [format!("{name} → semel-testkit")]
            );
            assert_eq!(edges(&[kit, (name, &[("semel-testkit", Some("dev"))])]), [""; 0]);
        }
    }

    #[test]
    fn a_new_crate_needs_a_row() {
        assert_eq!(edges(&[("semel-novel", &[])]), ["semel-novel"]);
    }

    #[test]
    fn a_row_needs_a_crate() {
        let needs: &[_] = &[];
        let all: Vec<Crate<'_>> = ALLOWED.iter().map(|(name, _)| (*name, needs)).collect();
        assert_eq!(left_over(&metadata(&all)), []);
        let found = left_over(&metadata(&all[1..]));
        assert_eq!(found.iter().map(|finding| &*finding.place).collect::<Vec<_>>(), ["semel-core"]);
    }

    #[test]
    fn nobody_asks_for_bugs() {
        let member = |features: Value, asks: Value| {
            let needs = json!([{ "name": "semel-core", "kind": null, "features": asks }]);
            let package = json!({ "id": "a", "name": "a", "features": features, "dependencies": needs });
            planted(&json!({ "workspace_members": ["a"], "packages": [package] })).len()
        };
        assert_eq!(member(json!({ "default": ["std"], "planted": [] }), json!(["std"])), 0);
        assert_eq!(member(json!({ "default": ["planted"] }), json!([])), 1);
        assert_eq!(member(json!({ "tests": ["semel-core/planted"] }), json!([])), 1);
        assert_eq!(member(json!({}), json!(["planted"])), 1);
    }

    #[test]
    fn metadata_without_crates_is_a_finding() {
        assert_eq!(check(&json!({})).len(), 1);
    }
}
