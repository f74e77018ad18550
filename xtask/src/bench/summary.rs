//! The results of a run: medians with their ranges as a page, every figure as data.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::cases::{CASES, Case, LIMIT, UNIQUE, Unit, per_second};
use super::peers::{PEERS, Peer};
use super::stores::{Store, Stores};
use super::{Run, plot};

/// The rounds of one queue in one case.
pub struct Median {
    /// The queue.
    pub peer: &'static Peer,
    /// The median in the case's unit; none where every round failed.
    pub value: Option<f64>,
    /// The smallest and the largest value.
    pub range: (f64, f64),
    /// Why a round failed, where one did.
    pub problem: Option<String>,
}

/// A line about one measurement, while the run goes on.
pub fn line(result: &Value) -> String {
    let mut line = per_second(result).map_or_else(String::new, |rate| format!("{} a second", number(rate)));
    let ms = |name: &str| result.get(name).and_then(Value::as_f64);
    if let (Some(p50), Some(p99)) = (ms("p50_ms"), ms("p99_ms")) {
        let _ = write!(line, ", p50 {p50:.2} ms, p99 {p99:.2} ms");
    }
    if let Some(surplus) = surplus(result).filter(|surplus| *surplus != 0.0) {
        let _ = write!(line, ", {surplus} jobs beyond one per key");
    }
    line
}

/// Writes the page, the data and the pictures.
///
/// # Errors
/// When a file cannot be written.
pub fn write(folder: &Path, said: &str, stores: &Stores, runs: &[Run]) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let put = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).map_err(|error| format!("{name}: {error}"))
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let all: Vec<Value> = runs.iter().map(of_run).collect();
    let data = json!({
        "command": format!("cargo xtask bench peers {said}"),
        "cores": cores,
        "servers": stores.versions(),
        "runs": all,
    });
    put("peers.json", &serde_json::to_string_pretty(&data).map_err(|error| error.to_string())?)?;
    for (name, picture) in plot::pictures(runs) {
        put(&name, &picture)?;
    }
    put("README.md", &page(said, cores, &stores.versions(), runs))
}

/// The figures that an earlier run wrote into a folder, except failures.
///
/// # Errors
/// When there are none, or they cannot be read.
pub fn read(folder: &Path) -> Result<Vec<Run>, String> {
    let path = folder.join("peers.json");
    let wrong = |why: String| format!("{}: {why}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?;
    let data: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let runs = data["runs"].as_array().ok_or_else(|| wrong("it has no member `runs`".to_owned()))?;
    Ok(runs.iter().filter_map(kept).collect())
}

/// A figure of a queue and a case that still exist.
fn kept(value: &Value) -> Option<Run> {
    let is = |name: &str, text: &str| value[name] == text;
    let peer = PEERS.iter().find(|peer| is("queue", peer.name) && is("store", peer.store.name()))?;
    let case = CASES.iter().find(|case| is("case", case.name))?;
    let round = u32::try_from(value["round"].as_u64()?).ok()?;
    Some(Run { peer, case, round, result: Ok(value.get("result")?.clone()) })
}

fn of_run(run: &Run) -> Value {
    let mut value = json!({
        "queue": run.peer.name,
        "store": run.peer.store.name(),
        "case": run.case.name,
        "round": run.round,
    });
    match &run.result {
        Ok(result) => value["result"] = result.clone(),
        Err(problem) => value["failed"] = json!(problem),
    }
    value
}

fn page(said: &str, cores: usize, servers: &[String], runs: &[Run]) -> String {
    let mut page = format!(
        "# Other queues, measured\n\nMade by `cargo xtask bench peers {said}` on a machine with {cores} cores, which the queues share with their \
         servers: {}. Each figure is the median of the rounds, with the lowest and the highest in brackets. A separate program took each \
         measurement on an empty store, the queues taking turns; jobs have 200 bytes of args. All data: [peers.json](peers.json).\n",
        servers.join("; ")
    );
    for store in Store::ALL {
        let peers: Vec<&'static Peer> = PEERS
            .iter()
            .filter(|peer| peer.store == store && runs.iter().any(|run| std::ptr::eq(run.peer, *peer)))
            .collect();
        if peers.is_empty() {
            continue;
        }
        let _ = write!(page, "\n## On {}\n\nDurability: {}.\n\n", store.name(), store.durability());
        table(&mut page, runs, &peers);
        costs(&mut page, runs, &peers);
        for peer in &peers {
            let _ = writeln!(page, "* **{}** {}: {}.", peer.name, version(runs, peer), peer.setup);
        }
    }
    let _ = write!(
        page,
        "\n## Pictures\n\n{}\n",
        plot::names()
            .iter()
            .map(|(name, title)| format!("![{title}]({name})"))
            .collect::<Vec<_>>()
            .join("\n")
    );
    page
}

fn table(page: &mut String, runs: &[Run], peers: &[&'static Peer]) {
    let names: Vec<&str> = peers.iter().filter(|peer| peer.name != "limit").map(|peer| peer.name).collect();
    let _ = writeln!(page, "| case | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    for case in CASES.iter().filter(|case| case.name != LIMIT) {
        let cells: Vec<String> = peers
            .iter()
            .filter(|peer| peer.name != "limit")
            .map(|peer| {
                if case.is_asked_of(peer) {
                    cell(&median(runs, peer, case), case.unit)
                } else {
                    "–".to_owned()
                }
            })
            .collect();
        let unit = match case.unit {
            Unit::PerSecond => "jobs/s",
            Unit::P99 => "p99, ms",
            Unit::Surplus => "jobs admitted beyond one per key, 100 keys",
            Unit::Growth => "bytes per million, extrapolated from one run",
        };
        let _ = writeln!(page, "| {} ({unit}) | {} |", case.name, cells.join(" | "));
    }
    for (name, figure) in [
        ("p50 / p95 / p99 of a unique enqueue (ms)", latencies as fn(&[Run], &Peer) -> String),
        ("processor seconds per 10,000 unique enqueues (queue + server)", processor),
        ("store growth per job (bytes)", growth),
    ] {
        let cells: Vec<String> =
            peers.iter().filter(|peer| peer.name != "limit").map(|peer| figure(runs, peer)).collect();
        let _ = writeln!(page, "| {name} | {} |", cells.join(" | "));
    }
    page.push('\n');
}

/// Writes the share of the store's own limit that each queue reaches, and what uniqueness costs.
fn costs(page: &mut String, runs: &[Run], peers: &[&'static Peer]) {
    let value = |peer: &'static Peer, name: &str| {
        CASES.iter().find(|case| case.name == name).and_then(|case| median(runs, peer, case).value)
    };
    let Some(semel) = peers.iter().copied().find(|peer| peer.is_semel()) else { return };
    let limit = peers.iter().copied().find(|peer| peer.name == "limit").and_then(|peer| value(peer, LIMIT));
    let unique = value(semel, UNIQUE);
    if let (Some(limit), Some(unique)) = (limit, unique) {
        let _ = writeln!(
            page,
            "The bare store took {} new jobs a second; Semel's unique enqueue reached {:.2} of that.",
            number(limit),
            unique / limit
        );
    }
    if let (Some(plain), Some(unique)) = (value(semel, "not unique, 64 callers"), unique) {
        let _ = writeln!(
            page,
            "The cost of uniqueness in Semel: a unique enqueue takes {:.2} times as long as a plain one.",
            plain / unique
        );
    }
    page.push('\n');
}

/// The rounds of one queue in one case.
pub fn median(runs: &[Run], peer: &'static Peer, case: &Case) -> Median {
    let mine = || runs.iter().filter(|run| std::ptr::eq(run.peer, peer) && run.case.name == case.name);
    let mut values: Vec<f64> = mine()
        .filter_map(|run| run.result.as_ref().ok())
        .filter_map(|result| match case.unit {
            Unit::PerSecond => per_second(result),
            Unit::P99 => result.get("p99_ms").and_then(Value::as_f64),
            Unit::Surplus => surplus(result),
            Unit::Growth => grown(result),
        })
        .collect();
    values.sort_by(f64::total_cmp);
    let problem = mine().find_map(|run| run.result.as_ref().err().cloned());
    let range = (values.first().copied().unwrap_or(0.0), values.last().copied().unwrap_or(0.0));
    Median { peer, value: middle(&values), range, problem }
}

/// The median of sorted values.
fn middle(values: &[f64]) -> Option<f64> {
    let half = values.len() / 2;
    match values.len() % 2 {
        _ if values.is_empty() => None,
        0 => Some(f64::midpoint(values[half - 1], values[half])),
        _ => Some(values[half]),
    }
}

/// Bytes by which a million duplicates would have grown the store, extrapolated from this run's duplicates.
fn grown(result: &Value) -> Option<f64> {
    let duplicates = result.get("jobs")?.as_f64().filter(|jobs| *jobs > 0.0)?;
    Some(result.get("store_bytes")?.as_f64()? * 1e6 / duplicates)
}

/// The number of stored jobs beyond one for each key that was offered.
fn surplus(result: &Value) -> Option<f64> {
    Some(result.get("stored")?.as_f64()? - result.get("keys")?.as_f64()?)
}

fn cell(median: &Median, unit: Unit) -> String {
    let write = |value: f64| match unit {
        Unit::PerSecond | Unit::Growth => number(value),
        Unit::P99 => format!("{value:.1}"),
        Unit::Surplus => format!("{value:.0}"),
    };
    match (median.value, &median.problem) {
        (Some(value), None) => {
            let (least, greatest) = median.range;
            format!("**{}** ({}–{})", write(value), write(least), write(greatest))
        }
        (Some(value), Some(_)) => format!("**{}**, failed in some rounds", write(value)),
        (None, Some(problem)) => {
            format!("failed: {}", problem.replace('|', "/").chars().take(80).collect::<String>())
        }
        (None, None) => "–".to_owned(),
    }
}

fn results<'a>(runs: &'a [Run], peer: &'a Peer) -> impl Iterator<Item = &'a Value> {
    let mine = runs.iter().filter(move |run| std::ptr::eq(run.peer, peer) && run.case.name == UNIQUE);
    mine.filter_map(|run| run.result.as_ref().ok())
}

/// The median, over the rounds, of a value from the unique enqueue case.
fn of_unique(runs: &[Run], peer: &Peer, what: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = results(runs, peer).filter_map(what).collect();
    values.sort_by(f64::total_cmp);
    middle(&values)
}

fn latencies(runs: &[Run], peer: &Peer) -> String {
    let ms = |name: &str| {
        let value = of_unique(runs, peer, |result| result.get(name)?.as_f64());
        value.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1}"))
    };
    format!("{} / {} / {}", ms("p50_ms"), ms("p95_ms"), ms("p99_ms"))
}

fn processor(runs: &[Run], peer: &Peer) -> String {
    let seconds = |name: &str| {
        of_unique(runs, peer, |result| {
            let jobs = result.get("jobs")?.as_f64().filter(|jobs| *jobs > 0.0)?;
            Some(result.get(name)?.as_f64()? * 10_000.0 / jobs)
        })
    };
    let write =
        |value: Option<f64>| value.map_or_else(|| "included".to_owned(), |seconds| format!("{seconds:.2}"));
    format!("{} + {}", write(seconds("client_cpu_seconds")), write(seconds("store_cpu_seconds")))
}

fn growth(runs: &[Run], peer: &Peer) -> String {
    let bytes = of_unique(runs, peer, |result| {
        let stored = result.get("stored")?.as_f64().filter(|stored| *stored > 0.0)?;
        Some(result.get("store_bytes")?.as_f64()? / stored)
    });
    bytes.map_or_else(|| "–".to_owned(), number)
}

fn version<'a>(runs: &'a [Run], peer: &'a Peer) -> &'a str {
    let mut mine =
        runs.iter().filter(|run| std::ptr::eq(run.peer, peer)).filter_map(|run| run.result.as_ref().ok());
    mine.find_map(|result| result.get("version")?.as_str())
        .filter(|version| *version != "-")
        .unwrap_or_default()
}

/// A number with its thousands separated.
pub fn number(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Run;
    use super::super::cases::{CASES, Unit};
    use super::super::peers::PEERS;
    use super::{cell, kept, median, number, of_run, page};

    fn run(case: usize, round: u32, jobs: u32, stored: u32) -> Run {
        let result = json!({ "jobs": jobs, "seconds": 1.0, "keys": 100, "stored": stored, "p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0,
            "version": "1.2.3", "client_cpu_seconds": 0.5, "store_cpu_seconds": 0.25, "store_bytes": 5_000 });
        Run { peer: &PEERS[5], case: &CASES[case], round, result: Ok(result) }
    }

    #[test]
    fn a_median_is_told_with_its_range_and_a_failure_as_one() {
        let mut runs = vec![run(1, 1, 3_000, 100), run(1, 2, 1_000, 100), run(1, 3, 2_000, 100)];
        assert_eq!(cell(&median(&runs, &PEERS[5], &CASES[1]), CASES[1].unit), "**2,000** (1,000–3,000)");
        runs.push(Run { result: Err("it | fell over".to_owned()), ..run(1, 4, 0, 0) });
        assert!(cell(&median(&runs, &PEERS[5], &CASES[1]), CASES[1].unit).contains("failed in some rounds"));
        let failed = [Run { result: Err("it | fell over".to_owned()), ..run(1, 4, 0, 0) }];
        assert_eq!(cell(&median(&failed, &PEERS[5], &CASES[1]), CASES[1].unit), "failed: it / fell over");
    }

    #[test]
    fn who_admits_a_key_twice_is_told_so() {
        let race = CASES.iter().position(|case| case.kind == "race").unwrap();
        let runs = [run(race, 1, 5_000, 107)];
        assert_eq!(cell(&median(&runs, &PEERS[5], &CASES[race]), CASES[race].unit), "**7** (7–7)");
    }

    #[test]
    fn what_was_written_is_read_but_for_what_failed() {
        let failed = Run { result: Err("it fell over".to_owned()), ..run(1, 2, 0, 0) };
        let read: Vec<Run> =
            [run(1, 1, 3_000, 100), failed].iter().map(of_run).filter_map(|run| kept(&run)).collect();
        assert!(read[0].is_of(&PEERS[5], &CASES[1], 1) && !read[0].is_of(&PEERS[5], &CASES[1], 2));
        assert_eq!((read.len(), read[0].result.clone()), (1, run(1, 1, 3_000, 100).result));
    }

    #[test]
    fn growth_is_told_for_a_million() {
        let repeat = CASES.iter().position(|case| case.unit == Unit::Growth).unwrap();
        let runs = [run(repeat, 1, 10_000, 100)];
        assert_eq!(
            cell(&median(&runs, &PEERS[5], &CASES[repeat]), CASES[repeat].unit),
            "**500,000** (500,000–500,000)"
        );
    }

    #[test]
    fn a_page_names_the_command_the_versions_and_the_servers() {
        let page = page("--rounds 1", 2, &["PostgreSQL 15".to_owned()], &[run(1, 1, 3_000, 100)]);
        for wanted in [
            "cargo xtask bench peers --rounds 1",
            "PostgreSQL 15",
            "1.2.3",
            "3,000",
            "1.0 / 2.0 / 3.0",
            "fsync",
        ] {
            assert!(page.contains(wanted), "{wanted} is missing in\n{page}");
        }
    }

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([number(7.0), number(1_234.4), number(1_234_567.0)], ["7", "1,234", "1,234,567"]);
    }
}
