//! Licences of the dependencies, against the list in `deny.toml`.

use serde_json::Value;

use super::graph::packages;
use super::spdx::is_satisfied;
use super::tree::Tree;
use super::{Finding, code};

/// The file with the list.
const LIST: &str = "deny.toml";

/// Looks at every package that is not of this workspace, for all platforms.
pub fn check(metadata: &Value, tree: &Tree) -> Vec<Finding> {
    let text = tree.files.iter().find(|file| file.path == LIST).map(|file| file.text.as_str());
    let allowed = allowed(text.unwrap_or_default());
    if allowed.is_empty() {
        return vec![Finding::error(LIST, "has no list `allow` under [licenses]")];
    }
    let foreign = packages(metadata).iter().filter(|package| !package["source"].is_null());
    foreign.filter_map(|package| judge(package, &allowed)).collect()
}

fn judge(package: &Value, allowed: &[String]) -> Option<Finding> {
    let place = format!(
        "{} {}",
        package["name"].as_str().unwrap_or_default(),
        package["version"].as_str().unwrap_or_default()
    );
    let Some(licence) = package["license"].as_str() else {
        return Some(Finding::error(place, "names no licence"));
    };
    match is_satisfied(licence, allowed) {
        Ok(true) => None,
        Ok(false) => Some(Finding::error(place, format!("its licence `{licence}` is not allowed by {LIST}"))),
        Err(reason) => Some(Finding::error(place, format!("its licence expression is invalid: {reason}"))),
    }
}

/// The quoted names of `allow = […]` in the section `[licenses]`.
fn allowed(text: &str) -> Vec<String> {
    let section = text.split("\n[").find_map(|section| section.strip_prefix("licenses]")).unwrap_or_default();
    let start = code::words(section, "allow").find(|start| section[..*start].ends_with('\n'));
    let list = start.and_then(|start| section[start..].split_once('[')).map_or("", |(_, list)| list);
    let list = list.split(']').next().unwrap_or_default();
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{allowed, check};
    use crate::tidy::tree::Tree;
    use crate::workspace::Workspace;

    const LIST: &str = "# head\n[graph]\n\n[licenses]\n# why\nallow = [\n  \"MIT\",\n  \"Apache-2.0\",\n]\n\n[bans]\nallow = [\"x\"]\n";

    #[test]
    fn the_list_is_read_from_its_section() {
        assert_eq!(allowed(LIST), ["MIT", "Apache-2.0"]);
        assert_eq!(allowed("[bans]\nallow = [\"MIT\"]"), [""; 0]);
    }

    #[test]
    fn the_workspace_has_a_list() {
        let tree = Tree::read(&Workspace::here()).unwrap();
        let list = tree.files.iter().find(|file| file.path == super::LIST).unwrap();
        assert!(allowed(&list.text).contains(&"MIT".to_owned()));
    }

    #[test]
    fn a_licence_outside_the_list_is_found() {
        let metadata = json!({ "packages": [
            { "name": "fine", "version": "1.0.0", "source": "elsewhere", "license": "MIT OR GPL-3.0" },
            { "name": "viral", "version": "2.1.0", "source": "elsewhere", "license": "GPL-3.0" },
            { "name": "silent", "version": "3.0.0", "source": "elsewhere", "license": null },
            { "name": "odd", "version": "4.0.0", "source": "elsewhere", "license": "MIT OR" },
            { "name": "ours", "version": "0.1.0", "source": null, "license": "GPL-3.0" },
        ] });
        let found = check(&metadata, &Tree::of(&[("deny.toml", LIST)]));
        let places: Vec<&str> = found.iter().map(|finding| finding.place.as_str()).collect();
        assert_eq!(places, ["viral 2.1.0", "silent 3.0.0", "odd 4.0.0"]);
    }

    #[test]
    fn without_a_list_the_check_fails() {
        assert_eq!(check(&json!({ "packages": [] }), &Tree::of(&[])).len(), 1);
    }
}
