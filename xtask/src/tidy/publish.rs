//! Checks what a registry requires of each published crate, and dependency cycles that would prevent
//! publishing.

use serde_json::Value;

use super::Finding;

/// The fields that the page of a crate shows; the licence has a check of its own.
const SHOWN: [&str; 5] = ["description", "documentation", "license", "readme", "rust_version"];

/// Looks at cargo's metadata of the workspace's own packages.
pub fn check(metadata: &Value) -> Vec<Finding> {
    let packages: Vec<&Value> =
        list(metadata, "packages").filter(|package| package["source"].is_null()).collect();
    // An empty list of registries means `publish = false`.
    let is_private = |package: &Value| package["publish"].as_array().is_some_and(Vec::is_empty);
    let is_private_name =
        |name: &Value| packages.iter().any(|package| package["name"] == *name && is_private(package));
    let mut findings = Vec::new();
    for package in packages.iter().filter(|package| !is_private(package)) {
        let mut say = |what: String| {
            findings.push(Finding::error(package["name"].as_str().unwrap_or_default(), what));
        };
        for name in SHOWN.into_iter().filter(|name| package[*name].as_str().is_none_or(str::is_empty)) {
            say(format!("is published but has no {name}"));
        }
        for name in ["keywords", "categories"] {
            if !(1..=5).contains(&list(package, name).count()) {
                say(format!("is published but does not have one to five {name}"));
            }
        }
        for dependency in list(package, "dependencies").filter(|dependency| dependency["path"].is_string()) {
            let (name, has_version) = (&dependency["name"], dependency["req"] != "*");
            let is_for_tests = dependency["kind"] == "dev";
            if is_for_tests && has_version {
                say(format!(
                    "names {name} with a version for its tests, so that neither could be published first; give only the path"
                ));
            }
            if !is_for_tests && (!has_version || is_private_name(name)) {
                say(format!("is published but needs {name}, which has no version or is not published"));
            }
        }
    }
    findings
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::check;

    fn package(more: &Value) -> Value {
        let mut package = json!({ "name": "a", "description": "d", "documentation": "p", "license": "MIT", "readme": "README.md",
            "rust_version": "1.95", "keywords": ["k"], "categories": ["c"], "dependencies": [] });
        let members = more.as_object().cloned().unwrap_or_default();
        package.as_object_mut().unwrap().extend(members);
        package
    }

    fn found(more: &Value) -> usize {
        let private = package(&json!({ "name": "b", "publish": [], "description": null }));
        check(&json!({ "packages": [package(more), private] })).len()
    }

    #[test]
    fn what_is_published_says_what_it_is() {
        assert_eq!(found(&json!({})), 0);
        assert_eq!(found(&json!({ "description": "", "keywords": [] })), 2);
        assert_eq!(found(&json!({ "description": "", "publish": [] })), 0);
        assert_eq!(found(&json!({ "description": "", "source": "registry" })), 0);
    }

    #[test]
    fn what_it_needs_is_published_too_and_its_tests_need_nothing() {
        let needs = |name: &str, kind: Value, req: &str| {
            found(&json!({ "dependencies": [{ "name": name, "kind": kind, "req": req, "path": "../x" }] }))
        };
        assert_eq!(needs("c", Value::Null, "^0.1"), 0);
        assert_eq!(needs("c", Value::Null, "*"), 1);
        assert_eq!(needs("b", Value::Null, "^0.1"), 1);
        assert_eq!(needs("b", json!("dev"), "*"), 0);
        assert_eq!(needs("c", json!("dev"), "^0.1"), 1);
    }
}
