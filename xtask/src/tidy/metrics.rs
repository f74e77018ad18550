//! Alerts and dashboards use only metrics that the server has, the guide says what to do about each alert,
//! and legitimate answers of probes do not count as errors.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::{File, Tree};

/// The file in which the server names its metrics.
const METRICS: &str = "crates/semel-server/src/metrics.rs";
/// The places that name outcomes and ends of jobs.
const OUTCOMES: [&str; 2] = ["crates/semel-core/src/enqueue/kind.rs", "crates/semel-engine/src/"];
/// The file with the alerts.
const ALERTS: &str = "packaging/prometheus/alerts.yml";
/// The page that says what to do about each alert.
const GUIDE: &str = "docs/guide/alerts.md";
/// The folder in which the server documents each endpoint's answers.
const ROUTES: &str = "crates/semel-server/src/routes/";
/// The metric that counts answers by endpoint and class.
const ANSWERS: &str = "semel_http_responses_total";
/// The files that use metrics.
const READERS: [&str; 4] = ["packaging/prometheus/", "packaging/grafana/", GUIDE, "docs/guide/network.md"];
/// The suffixes of a histogram's series.
const PARTS: [&str; 3] = ["_bucket", "_sum", "_count"];

/// Looks at every file that uses metrics.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let known = known(tree);
    let readers = tree.files.iter().filter(|file| READERS.iter().any(|reader| file.path.starts_with(reader)));
    let mut findings: Vec<Finding> = Vec::new();
    for reader in readers {
        findings.extend(names(reader, &known));
        findings.extend(outcomes(reader, tree));
    }
    findings.extend(guide(tree));
    findings.extend(listed(tree));
    findings.extend(probes(tree));
    findings
}

/// The server's metrics, taken from the strings that name them.
fn known(tree: &Tree) -> BTreeSet<&str> {
    let file = tree.files.iter().find(|file| file.path == METRICS);
    let texts = file.into_iter().flat_map(|file| file.text.split('"'));
    texts.filter(|text| text.starts_with("semel_") && is_name(text)).collect()
}

fn is_name(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

fn names(file: &File, known: &BTreeSet<&str>) -> Vec<Finding> {
    let found = file.text.match_indices("semel_").filter_map(|(start, _)| {
        let rest = &file.text[start..];
        let end = rest.find(|c: char| !is_name(&c.to_string())).unwrap_or(rest.len());
        let name = &rest[..end];
        let whole = PARTS.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
        let is_known = known.contains(name) || known.contains(whole);
        (!is_known).then(|| Finding::error(file.at(start), format!("the server has no metric `{name}`")))
    });
    found.collect()
}

/// The values of each `outcome="…"` and `outcome=~"…"`; in JSON the quotes are escaped.
fn outcomes(file: &File, tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (start, lead) in file.text.match_indices("outcome=") {
        let rest = file.text[start + lead.len()..].trim_start_matches(['~', '\\', '"']);
        let words = rest.split(['"', '\\']).next().unwrap_or_default();
        for word in words.split('|') {
            let quoted = format!("\"{word}\"");
            let is_place = |file: &&File| OUTCOMES.iter().any(|place| file.path.starts_with(place));
            let names = |file: &&File| is_place(file) && file.text.contains(&quoted);
            if !tree.files.iter().any(|file| names(&file)) {
                findings
                    .push(Finding::error(file.at(start), format!("the server counts no outcome `{word}`")));
            }
        }
    }
    findings
}

/// The guide has a heading for each alert, and for nothing else.
fn guide(tree: &Tree) -> Vec<Finding> {
    let lines = |path: &str, lead: &'static str| -> BTreeSet<&str> {
        let file = tree.files.iter().find(|file| file.path == path);
        let lines = file.into_iter().flat_map(|file| file.text.lines());
        lines
            .filter_map(|line| line.trim().strip_prefix(lead))
            .filter(|name| name.starts_with("Semel"))
            .collect()
    };
    let (alerts, told) = (lines(ALERTS, "- alert: "), lines(GUIDE, "### "));
    let silent = alerts.difference(&told).map(|name| {
        Finding::error(GUIDE, format!("has no heading `{name}` that says what to do about that alert"))
    });
    let gone =
        told.difference(&alerts).map(|name| Finding::error(GUIDE, format!("there is no alert `{name}`")));
    silent.chain(gone).collect()
}

fn text<'t>(tree: &'t Tree, path: &str) -> &'t str {
    tree.files.iter().find(|file| file.path == path).map_or("", |file| &*file.text)
}

/// The parts of a text after each of these marks, each with its first line.
fn parts<'t>(text: &'t str, mark: &'t str) -> impl Iterator<Item = (&'t str, &'t str)> {
    text.split(mark).skip(1).map(|part| (part.lines().next().unwrap_or_default().trim(), part))
}

/// Where an alert counts jobs in a state, the guide must list jobs in that state: other lists do not show all
/// of them.
fn listed(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, alert) in parts(text(tree, ALERTS), "- alert: ") {
        let told = parts(text(tree, GUIDE), "### ").find(|(heading, _)| *heading == name);
        for state in alert.split("semel_jobs{state=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let flag = format!("--state {state}");
            if told.is_none_or(|(_, told)| !told.contains(&flag)) {
                let what = format!("has no command with `{flag}` to list what `{name}` counts");
                findings.push(Finding::error(GUIDE, what));
            }
        }
    }
    findings
}

/// An alert that counts 5xx must leave out the endpoints whose 503 is a legitimate answer, and must leave
/// them out of the total as well.
fn probes(tree: &Tree) -> Vec<Finding> {
    let rows = tree.files.iter().filter(|file| file.path.starts_with(ROUTES));
    let rows = rows.flat_map(|file| file.text.split("(\"/").skip(1));
    let probes: Vec<String> = rows
        .filter(|row| row.contains(".answers(503"))
        .map(|row| format!("/{}", row.split('"').next().unwrap_or_default()))
        .collect();
    let mut findings = Vec::new();
    for (name, alert) in parts(text(tree, ALERTS), "- alert: ").filter(|(_, it)| it.contains("class=\"5xx\""))
    {
        for counted in alert.split(ANSWERS).skip(1) {
            let labels = counted.split('[').next().unwrap_or_default();
            let routes = labels.split_once("route!~\"").map_or("", |(_, routes)| routes);
            let left_out = routes.split('"').next().unwrap_or_default().replace('\\', "");
            let counts = probes.iter().filter(|probe| !left_out.split('|').any(|route| route == *probe));
            findings.extend(counts.map(|probe| {
                Finding::error(
                    ALERTS,
                    format!("`{name}` counts `{probe}`, for which 503 is a regular answer; exclude it"),
                )
            }));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::tree::Tree;

    const ROUTES: &str = "get(\"/ready\", Public, ready).answers(200, \"S\").answers(503, \"S\"),
        get(\"/w/{id}/health\", Work, health).answers(503, \"W\"), get(\"/jobs\", Read, jobs).answers(200, \"J\")";

    fn found(alerts: &str, guide: &str) -> Vec<String> {
        let files = [
            ("crates/semel-server/src/metrics.rs", "\"semel_jobs\" \"semel_wait_seconds\""),
            ("crates/semel-core/src/enqueue/kind.rs", "A => \"created\""),
            ("crates/semel-engine/src/duty.rs", "\"existing\""),
            ("crates/semel-server/src/routes/a.rs", ROUTES),
            ("packaging/prometheus/alerts.yml", alerts),
            ("docs/guide/alerts.md", guide),
        ];
        check(&Tree::of(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn metrics_are_those_of_the_server() {
        assert_eq!(found("semel_jobs{a=\"b\"} + semel_wait_seconds_bucket", "`semel_jobs`"), [""; 0]);
        let place = "packaging/prometheus/alerts.yml:2";
        assert_eq!(found("a\nsemel_job > 1", ""), [format!("{place}: the server has no metric `semel_job`")]);
    }

    #[test]
    fn outcomes_are_those_that_are_counted() {
        assert_eq!(found("{outcome=~\"created|existing\"}", "{outcome=\\\"created\\\"}"), [""; 0]);
        let place = "packaging/prometheus/alerts.yml:1";
        assert_eq!(
            found("{outcome=~\"created|lost\"}", ""),
            [format!("{place}: the server counts no outcome `lost`")]
        );
    }

    #[test]
    fn each_alert_has_its_heading() {
        assert_eq!(found("  - alert: SemelDown", "### SemelDown"), [""; 0]);
        assert_eq!(found("  - alert: SemelDown", "### SemelUp").len(), 2);
    }

    #[test]
    fn what_an_alert_counts_by_its_state_is_listed_by_it() {
        let alert = "  - alert: SemelLost\n    expr: delta(semel_jobs{state=\"lost\"}[1h]) > 10";
        assert_eq!(found(alert, "### SemelLost\n`semel jobs --state lost` lists them"), [""; 0]);
        let place = "docs/guide/alerts.md";
        assert_eq!(
            found(alert, "### SemelLost\n`semel dead` lists them"),
            [format!("{place}: has no command with `--state lost` to list what `SemelLost` counts")]
        );
    }

    /// Otherwise a worker that ends normally would raise an alert.
    #[test]
    fn what_probes_answer_is_no_error() {
        let alert = |errors: &str, all: &str| {
            format!(
                "  - alert: SemelErrors\n    expr: rate(semel_http_responses_total{{class=\"5xx\"{errors}}}[5m]) / rate(semel_http_responses_total{all}[5m])"
            )
        };
        let known = "crates/semel-server/src/metrics.rs";
        let found = |errors: &str, all: &str| {
            let alerts = alert(errors, all);
            let files = [
                (known, "\"semel_http_responses_total\""),
                ("crates/semel-server/src/routes/a.rs", ROUTES),
                ("packaging/prometheus/alerts.yml", &*alerts),
                ("docs/guide/alerts.md", "### SemelErrors"),
            ];
            check(&Tree::of(&files)).iter().map(|finding| finding.what.clone()).collect::<Vec<_>>()
        };
        let (most, all) = ("route!~\"/ready\"", "route!~\"/ready|/w/\\\\{id\\\\}/health\"");
        assert_eq!(found(&format!(", {all}"), &format!("{{{all}}}")), [""; 0]);
        let what = "`SemelErrors` counts `/w/{id}/health`, for which 503 is a regular answer; exclude it";
        assert_eq!(found(&format!(", {most}"), &format!("{{{all}}}")), [what]);
        assert_eq!(found(&format!(", {all}"), "").len(), 2);
    }
}
