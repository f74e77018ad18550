//! Checks that every expression of the alerts and of the Grafana dashboard can be parsed: the part of PromQL
//! that they use, so that an expression which Prometheus would refuse is found before it is deployed.

use saphyr::{LoadableYamlNode, Yaml};

use super::Finding;
use super::tree::{File, Tree};

const ALERTS: &str = "packaging/prometheus/alerts.yml";
const PANELS: &str = "packaging/grafana/";
/// Functions and their parameters, a letter for each one's kind: `s` a number, `v` a vector, `r` a range.
const FUNCTIONS: [(&str, &str); 7] = [
    ("abs", "v"),
    ("timestamp", "v"),
    ("delta", "r"),
    ("rate", "r"),
    ("increase", "r"),
    ("histogram_quantile", "sv"),
    ("predict_linear", "rs"),
];
const AGGREGATIONS: [(&str, &str); 5] =
    [("sum", "v"), ("max", "v"), ("min", "v"), ("count", "v"), ("topk", "sv")];
const OPERATORS: [&str; 12] = ["==", "!=", ">=", "<=", ">", "<", "+", "-", "*", "/", "and", "or"];
/// Labels that the server writes, and those that Prometheus adds.
const LABELS: [&str; 11] =
    ["class", "instance", "job", "le", "method", "outcome", "queue", "route", "state", "tenant", "type"];

/// Looks at every expression.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let expressions = if file.path == ALERTS {
            of_alerts(file)
        } else if file.path.starts_with(PANELS) {
            serde_json::from_str(&file.text).map(|panels| of_panels(&panels)).unwrap_or_default()
        } else {
            continue;
        };
        if expressions.is_empty() {
            findings.push(Finding::error(file.path.clone(), "has no expression".to_owned()));
        }
        for text in expressions {
            if let Err(why) = read(&text) {
                findings.push(Finding::error(file.path.clone(), format!("{why} in `{}`", text.trim())));
            }
        }
    }
    findings
}

fn of_panels(value: &serde_json::Value) -> Vec<String> {
    match value {
        serde_json::Value::Object(members) => members
            .iter()
            .flat_map(|(name, value)| match value.as_str() {
                Some(text) if name == "expr" => vec![text.to_owned()],
                _ => of_panels(value),
            })
            .collect(),
        serde_json::Value::Array(items) => items.iter().flat_map(of_panels).collect(),
        _ => Vec::new(),
    }
}

fn of_alerts(file: &File) -> Vec<String> {
    let documents = Yaml::load_from_str(&file.text).unwrap_or_default();
    let groups = documents.iter().filter_map(|document| document.as_mapping_get("groups")?.as_sequence());
    let rules = groups.flatten().filter_map(|group| group.as_mapping_get("rules")?.as_sequence()).flatten();
    rules.filter_map(|rule| rule.as_mapping_get("expr")?.as_str().map(str::to_owned)).collect()
}

/// The kind of an expression's result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Number,
    Vector,
    Range,
}

/// Parses an expression as Prometheus would.
fn read(text: &str) -> Result<(), String> {
    let mut reader = Reader { rest: text };
    let kind = reader.expression()?;
    if !reader.rest.trim().is_empty() {
        return Err(format!("unexpected text `{}`", reader.rest.trim()));
    }
    if kind == Kind::Range { Err("the result may not be a range vector".to_owned()) } else { Ok(()) }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn take(&mut self, mark: &str) -> bool {
        let rest = self.rest.trim_start();
        let found = rest.strip_prefix(mark);
        self.rest = found.unwrap_or(rest);
        found.is_some()
    }

    fn want(&mut self, mark: &str) -> Result<(), String> {
        if self.take(mark) { Ok(()) } else { Err(format!("`{mark}` is missing before `{}`", self.rest)) }
    }

    fn word(&mut self) -> &'a str {
        let rest = self.rest.trim_start();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        self.rest = &rest[end..];
        &rest[..end]
    }

    /// Operands and the operators between them. Precedence does not change the kind.
    fn expression(&mut self) -> Result<Kind, String> {
        let mut kind = self.operand()?;
        while self.operator() {
            let other = self.operand()?;
            if kind == Kind::Range || other == Kind::Range {
                return Err("a range vector cannot be an operand".to_owned());
            }
            kind = if kind == Kind::Number { other } else { kind };
        }
        Ok(kind)
    }

    fn operator(&mut self) -> bool {
        let before = self.rest;
        if OPERATORS.iter().any(|mark| !mark.starts_with(char::is_alphabetic) && self.take(mark)) {
            return true;
        }
        let word = self.word();
        let is_one = word == "unless" || OPERATORS.contains(&word);
        if !is_one {
            self.rest = before;
        }
        is_one
    }

    fn operand(&mut self) -> Result<Kind, String> {
        if self.take("(") {
            let kind = self.expression()?;
            self.want(")")?;
            return Ok(kind);
        }
        let word = self.word();
        if word.is_empty() {
            return Err(format!("an operand is missing before `{}`", self.rest));
        }
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            if self.take(".") {
                self.word();
            }
            return Ok(Kind::Number);
        }
        if let Some((_, takes)) = AGGREGATIONS.iter().find(|(name, _)| *name == word) {
            self.by()?;
            self.arguments(word, takes)?;
            self.by()?;
            return Ok(Kind::Vector);
        }
        if let Some((_, takes)) = FUNCTIONS.iter().find(|(name, _)| *name == word) {
            self.arguments(word, takes)?;
            return Ok(Kind::Vector);
        }
        if self.rest.trim_start().starts_with('(') {
            return Err(format!("there is no function `{word}`"));
        }
        self.selector()
    }

    fn by(&mut self) -> Result<(), String> {
        let before = self.rest;
        if !["by", "without"].contains(&self.word()) {
            self.rest = before;
            return Ok(());
        }
        self.want("(")?;
        loop {
            label(self.word())?;
            if !self.take(",") {
                return self.want(")");
            }
        }
    }

    fn arguments(&mut self, name: &str, takes: &str) -> Result<(), String> {
        self.want("(")?;
        for (at, wanted) in takes.chars().enumerate() {
            if at > 0 {
                self.want(",")?;
            }
            let kind = match self.expression()? {
                Kind::Number => 's',
                Kind::Vector => 'v',
                Kind::Range => 'r',
            };
            if kind != wanted {
                return Err(format!("`{name}` has an argument of the wrong type at position {}", at + 1));
            }
        }
        self.want(")")
    }

    /// What follows a metric's name: labels, a range, an offset.
    fn selector(&mut self) -> Result<Kind, String> {
        if self.take("{") {
            loop {
                label(self.word())?;
                if !["=~", "!~", "!=", "="].iter().any(|mark| self.take(mark)) {
                    return Err(format!(
                        "a label matcher needs `=`, `!=`, `=~` or `!~`, not `{}`",
                        self.rest
                    ));
                }
                self.want("\"")?;
                let (_, rest) = self.rest.split_once('"').ok_or("a quote is not closed")?;
                self.rest = rest;
                if !self.take(",") {
                    break;
                }
            }
            self.want("}")?;
        }
        let is_range = self.take("[");
        if is_range {
            self.duration()?;
            self.want("]")?;
        }
        if self.take("offset ") {
            self.duration()?;
        }
        Ok(if is_range { Kind::Range } else { Kind::Vector })
    }

    fn duration(&mut self) -> Result<(), String> {
        if self.take("$__rate_interval") {
            return Ok(());
        }
        let word = self.word();
        let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let is_one = digits.parse::<u32>().is_ok() && ["s", "m", "h", "d"].contains(&&word[digits.len()..]);
        if is_one { Ok(()) } else { Err(format!("`{word}` is not a duration")) }
    }
}

fn label(name: &str) -> Result<(), String> {
    if LABELS.contains(&name) { Ok(()) } else { Err(format!("no metric has a label `{name}`")) }
}

#[cfg(test)]
mod tests {
    use super::{check, read};
    use crate::tidy::tree::Tree;

    #[test]
    fn what_prometheus_reads_is_read() {
        for text in [
            "up{job=\"semel\"} == 0",
            "sum by (queue) (rate(a_total{outcome=~\"x|y\", queue!=\"q\"}[5m])) / sum(b) > 0.01",
            "histogram_quantile(0.99, sum by (le) (rate(a_bucket[$__rate_interval])))",
            "a unless max by (queue, tenant) (b) == 1",
            "(increase(a[15m]) > 0) or (a unless a offset 15m)",
            "predict_linear(a[30m], 4 * 3600) > 100000 and topk(10, b)",
        ] {
            assert_eq!(read(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_it_would_refuse_is_found() {
        for text in [
            "",
            "sum(a",
            "sum(a))",
            "rate(a)",
            "rate(a[5x])",
            "sum(a[5m])",
            "a[5m]",
            "a{queue=\"q}",
            "a{color=\"q\"}",
            "sum by (colour) (a)",
            "a +",
            "a b",
            "rates(a[5m])",
            "histogram_quantile(sum(a), 0.5)",
            "topk(a)",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_expression_is_looked_at() {
        let found = |path: &str, text: &str| check(&Tree::of(&[(path, text)])).len();
        let alerts = |expr: &str| format!("groups:\n  - rules:\n      - expr: {expr}\n      - expr: up\n");
        assert_eq!(found("packaging/prometheus/alerts.yml", &alerts("sum(a)")), 0);
        assert_eq!(found("packaging/prometheus/alerts.yml", &alerts("sum(a")), 1);
        assert_eq!(found("packaging/prometheus/alerts.yml", "groups: []"), 1);
        let panels = |expr: &str| format!("{{\"panels\": [{{\"targets\": [{{\"expr\": \"{expr}\"}}]}}]}}");
        assert_eq!(found("packaging/grafana/semel.json", &panels("sum(a)")), 0);
        assert_eq!(found("packaging/grafana/semel.json", &panels("sum(a")), 1);
    }
}
