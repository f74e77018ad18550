//! The cases that every queue is measured in.

use serde_json::{Map, Value, json};

use super::Run;
use super::peers::{Peer, Program};

/// The size of each job's args in bytes.
const ARGS: u32 = 200;
/// The number of callers, each offering one job at a time.
const CALLERS: u32 = 64;
/// The share of its own throughput at which a queue's latency is measured, so that it is not overloaded.
const LOAD: f64 = 0.1;
/// The highest rate that a single program's loop can offer evenly, in jobs a second.
const RATE_MAX: f64 = 2_000.0;

/// One case.
#[derive(Debug)]
pub struct Case {
    /// Its name in the tables.
    pub name: &'static str,
    /// Its name in the programs' options.
    pub kind: &'static str,
    /// The unit of its figure.
    pub unit: Unit,
    duplicates: f64,
    unique: bool,
}

/// The unit of a case's figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Jobs a second: more is better.
    PerSecond,
    /// The 99th percentile in milliseconds: less is better.
    P99,
    /// Jobs admitted beyond one per key: zero is right.
    Surplus,
    /// Bytes by which the store grows per million duplicates: less is better.
    Growth,
}

const CASE: Case = Case { name: "", kind: "enqueue", unit: Unit::PerSecond, duplicates: 0.0, unique: true };

/// All cases, in the order in which they are measured.
pub const CASES: &[Case] = &[
    Case { name: LIMIT, kind: "limit", ..CASE },
    Case { name: UNIQUE, ..CASE },
    Case { name: "half duplicates, 64 callers", duplicates: 0.5, ..CASE },
    Case { name: "99 % duplicates, 64 callers", duplicates: 0.99, ..CASE },
    Case { name: "not unique, 64 callers", unique: false, ..CASE },
    Case { name: "bulk of 1,000, 4 callers", kind: "bulk", ..CASE },
    Case { name: PROCESS, kind: "process", ..CASE },
    Case { name: "full cycle, 64 callers", kind: "cycle", ..CASE },
    Case { name: "enqueue to start at 10 % load", kind: "latency", unit: Unit::P99, ..CASE },
    Case { name: "races for one key, 50 callers", kind: "race", unit: Unit::Surplus, ..CASE },
    Case { name: "growth by duplicates of one job", kind: REPEAT, unit: Unit::Growth, ..CASE },
];

/// The name of the case that measures the store alone, without a queue.
pub const LIMIT: &str = "limit of the store, new jobs";
/// The name of the case from which the latency's rate and the share of the limit are computed.
pub const UNIQUE: &str = "unique, 64 callers";
/// One job, and duplicates of it. First run with no duration, so that what fills an empty store is not
/// counted.
pub const REPEAT: &str = "repeat";
/// The name of the other case on which the latency's rate depends.
pub const PROCESS: &str = "work off a backlog";

impl Case {
    /// Whether this queue can be measured in this case.
    pub fn is_asked_of(&self, peer: &Peer) -> bool {
        match peer.program {
            Program::Limit => self.kind == "limit",
            Program::Semel => self.kind != "limit",
            // The cost of uniqueness is measured for Semel only: others have no two ways alike in all else.
            Program::Node(_) | Program::Python(_) | Program::Rust(_) => self.kind != "limit" && self.unique,
        }
    }

    /// The options passed to the program, except the address.
    ///
    /// # Errors
    /// When a figure that they depend on has not been measured.
    pub fn options(&self, peer: &Peer, seconds: f64, runs: &[Run]) -> Result<Map<String, Value>, String> {
        let options = match self.kind {
            "enqueue" | REPEAT => {
                json!({ "callers": CALLERS, "seconds": seconds, "duplicates": self.duplicates, "unique": self.unique })
            }
            "bulk" => json!({ "callers": 4, "size": 1_000, "seconds": seconds }),
            "process" => json!({ "jobs": peer.backlog, "limit": 240 }),
            "cycle" => json!({ "callers": CALLERS, "seconds": seconds, "limit": 240 }),
            "latency" => json!({ "rate": rate(peer, runs)?, "seconds": seconds }),
            "race" => json!({ "callers": 50, "rounds": 100 }),
            _ => json!({ "seconds": seconds }),
        };
        let Value::Object(mut options) = options else { return Err("options are an object".to_owned()) };
        options.insert("args_bytes".to_owned(), json!(ARGS));
        Ok(options)
    }
}

/// A tenth of the lower of the rates at which this queue accepts and completes jobs.
fn rate(peer: &Peer, runs: &[Run]) -> Result<f64, String> {
    let last = |name: &str| {
        let found = runs.iter().rev().find(|run| std::ptr::eq(run.peer, peer) && run.case.name == name);
        let result = found.and_then(|run| run.result.as_ref().ok());
        result
            .and_then(per_second)
            .ok_or_else(|| format!("there is no result for `{name}`, so the load is unknown"))
    };
    let rate = last(UNIQUE)?.min(last(PROCESS)?) * LOAD;
    Ok(rate.clamp(1.0, RATE_MAX).round())
}

/// Jobs a second.
pub fn per_second(result: &Value) -> Option<f64> {
    let (jobs, seconds) = (result.get("jobs")?.as_f64()?, result.get("seconds")?.as_f64()?);
    (seconds > 0.0).then_some(jobs / seconds)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Run;
    use super::super::peers::PEERS;
    use super::{CASES, PROCESS, UNIQUE};

    fn run(name: &str, jobs: u32) -> Run {
        let case = CASES.iter().find(|case| case.name == name).unwrap();
        Run { peer: &PEERS[4], case, round: 1, result: Ok(json!({ "jobs": jobs, "seconds": 2.0 })) }
    }

    #[test]
    fn latency_is_asked_at_a_tenth_of_what_a_queue_does() {
        let case = CASES.iter().find(|case| case.kind == "latency").unwrap();
        let runs = [run(UNIQUE, 4_000), run(PROCESS, 2_000)];
        assert_eq!(case.options(&PEERS[4], 1.0, &runs).unwrap()["rate"], 100.0);
        assert!(case.options(&PEERS[5], 1.0, &runs).unwrap_err().contains("no result"));
    }

    #[test]
    fn every_queue_is_asked_and_limits_are_asked_of_stores_alone() {
        for peer in PEERS {
            let asked: Vec<&str> =
                CASES.iter().filter(|case| case.is_asked_of(peer)).map(|case| case.kind).collect();
            assert_eq!(asked.contains(&"limit"), peer.name == "limit", "{}", peer.label());
            assert!(!asked.is_empty());
        }
    }
}
