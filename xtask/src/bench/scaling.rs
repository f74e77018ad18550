//! `cargo xtask bench scaling`: measures Semel with growing numbers of waiting or ended jobs, of callers, and
//! of Redis partitions.
//!
//! Every point is a run of `semel bench`. With waiting jobs, each figure comes with that of the empty store
//! in the same run, and their ratio is what counts: figures of two runs differ by the machine's load.

mod curve;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use self::curve::{Curve, Point};
use super::output;
use super::stores::{Store, Stores};
use crate::workspace::Workspace;

/// Numbers of waiting jobs, each under a live key of its own.
const WAITING: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const CALLERS: [u64; 5] = [1, 4, 16, 64, 256];
const PARTITIONS: [u64; 5] = [1, 2, 4, 8, 16];
/// The cases, as `semel bench` names them.
const CASES: [&str; 4] = ["unique enqueue", "99 % duplicates", "claim 50 and complete each", "full cycle"];
/// The time limit of a point: ten million jobs are inserted first.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// The quantity that grows from point to point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// Waiting jobs.
    Waiting,
    /// Ended jobs that are kept, each remembered under a key of its own. They are inserted by SQL, which
    /// works with no other store.
    Ended,
    /// Concurrent callers, on an empty store.
    Callers,
    /// Partitions of an empty store in Redis.
    Partitions,
}

impl Along {
    const ALL: [Self; 4] = [Self::Waiting, Self::Ended, Self::Callers, Self::Partitions];

    fn is_for(self, store: Store) -> bool {
        match self {
            Self::Waiting | Self::Callers => true,
            Self::Ended => store == Store::Postgres,
            Self::Partitions => matches!(store, Store::RedisAlways | Store::RedisEverysec),
        }
    }

    /// The quantity in a heading.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Waiting => "waiting jobs, each with its own key",
            Self::Ended => "ended jobs, each remembered under its own key",
            Self::Callers => "concurrent callers, no jobs waiting",
            Self::Partitions => "partitions, no jobs waiting",
        }
    }

    /// The quantity as one word, for file names.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Ended => "ended",
            Self::Callers => "callers",
            Self::Partitions => "partitions",
        }
    }

    /// The options passed to `semel bench`.
    fn options(self, at: u64) -> Vec<String> {
        let options = match self {
            Self::Waiting => format!("--waiting {at}"),
            Self::Ended => format!("--waiting 0 --finished {at}"),
            Self::Callers => format!("--waiting 0 --callers {at}"),
            Self::Partitions => "--waiting 0".to_owned(),
        };
        options.split(' ').map(str::to_owned).collect()
    }

    /// The prefix of a case's figures in the report, where they stand beside those of the empty store.
    fn label(self, at: u64) -> Option<String> {
        match self {
            Self::Waiting => Some(format!("{at} waiting")),
            Self::Ended => Some(format!("0 waiting and {at} finished")),
            Self::Callers | Self::Partitions => None,
        }
    }

    /// The cases along this quantity. The number of concurrent claims does not depend on the callers.
    fn cases(self) -> impl Iterator<Item = &'static str> {
        CASES.into_iter().filter(move |case| self != Self::Callers || !case.starts_with("claim"))
    }

    fn points(self, to: u64) -> impl Iterator<Item = u64> {
        let (points, most) = match self {
            Self::Waiting | Self::Ended => (WAITING, to),
            Self::Callers => (CALLERS, u64::MAX),
            Self::Partitions => (PARTITIONS, u64::MAX),
        };
        points.into_iter().filter(move |at| *at <= most)
    }
}

#[derive(Debug, PartialEq)]
struct Options {
    to: u64,
    seconds: u64,
    only: Option<String>,
    folder: Option<PathBuf>,
}

impl Options {
    fn read(args: &[&str]) -> Result<Self, String> {
        let mut options = Self { to: 1_000_000, seconds: 2, only: None, folder: None };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            let number = || {
                let number = value.parse().ok().filter(|number| *number > 0);
                number.ok_or_else(|| format!("`{value}` is not a valid value of {name}"))
            };
            match *name {
                "--to" => options.to = number()?,
                "--seconds" => options.seconds = number()?,
                "--only" => options.only = Some((*value).to_owned()),
                "--out" => options.folder = Some(PathBuf::from(value)),
                _ => return Err(format!("bench scaling has no option `{name}`")),
            }
        }
        Ok(options)
    }

    fn stores(&self) -> Result<Vec<Store>, String> {
        let is_wanted = |store: &Store| {
            self.only.as_deref().is_none_or(|only| only.split(',').any(|part| store.name().contains(part)))
        };
        let stores: Vec<Store> = Store::ALL.into_iter().filter(is_wanted).collect();
        if stores.is_empty() {
            let known = Store::ALL.map(Store::name).join(", ");
            return Err(format!("--only matches no store; the stores are {known}"));
        }
        Ok(stores)
    }
}

/// Runs the benchmark.
///
/// # Errors
/// What is missing, a run that fails, or a file that cannot be written.
pub fn run(workspace: &Workspace, args: &[&str]) -> Result<(), String> {
    let options = Options::read(args)?;
    let stores = options.stores()?;
    let mut build = workspace.cargo();
    let built = build.args(["build", "--release", "--package", "semel-cli"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the release build failed; cargo says why above".to_owned());
    }
    let program = workspace.target()?.join("release/semel");
    let started = Stores::start(&stores)?;
    let target = workspace.target()?.join("bench-scaling");
    let folder = options.folder.clone().unwrap_or(target);
    let said = format!("--to {} --seconds {}", options.to, options.seconds);
    let mut curves = Vec::new();
    for store in stores {
        for along in Along::ALL.into_iter().filter(|along| along.is_for(store)) {
            let mut drawn: Vec<Curve> = along.cases().map(|case| Curve::new(store, along, case)).collect();
            for at in along.points(options.to) {
                println!("{}: {at} {}", store.name(), along.title());
                let report = ask(&program, &started, store, along, at, options.seconds)?;
                for curve in &mut drawn {
                    let point = point(&report, along, at, curve.case)?;
                    println!("    {}: {}", curve.case, point.line());
                    curve.points.push(point);
                }
            }
            curves.extend(drawn);
            // Hours may have passed: a later failure must not lose this.
            curve::write(&folder, &said, &started.versions(), &curves)?;
        }
    }
    println!("written: {}", folder.display());
    Ok(())
}

/// Has `semel bench` measure one point.
fn ask(
    program: &std::path::Path,
    stores: &Stores,
    store: Store,
    along: Along,
    at: u64,
    seconds: u64,
) -> Result<Value, String> {
    let place = stores.empty(store)?;
    let mut command = Command::new(program);
    command.args(["bench", "--json", "--connections", "0", "--seconds", &seconds.to_string()]);
    command.args(along.options(at));
    let url = match along {
        Along::Partitions => format!("{}?partitions={at}", place.url),
        _ => place.url,
    };
    if store != Store::File {
        command.args(["--store", &url]);
    }
    let told = output(command, PATIENCE)?;
    serde_json::from_str(&told).map_err(|error| format!("its output is not understood ({error}): {told}"))
}

/// The point of a case in a run's report.
fn point(report: &Value, along: Along, at: u64, case: &str) -> Result<Point, String> {
    let figure = |name: &str| {
        let figures = report["figures"].as_array().into_iter().flatten();
        let found = figures.into_iter().find(|figure| figure["name"] == *name);
        found
            .and_then(|figure| figure["per_second"].as_f64())
            .ok_or_else(|| format!("the report has no figure `{name}`: {report}"))
    };
    let empty = figure(&format!("{case}, empty"))?;
    Ok(match along.label(at) {
        Some(label) => Point { at, per_second: figure(&format!("{case}, {label}"))?, empty: Some(empty) },
        None => Point { at, per_second: empty, empty: None },
    })
}

/// All results as JSON, for programs.
fn data(said: &str, servers: &[String], curves: &[Curve]) -> Value {
    let of = |curve: &Curve| {
        let points = curve.points.iter().map(|point| {
            json!({ "at": point.at, "per_second": point.per_second, "empty_per_second": point.empty })
        });
        json!({
            "store": curve.store.name(),
            "along": curve.along.title(),
            "case": curve.case,
            "points": points.collect::<Vec<_>>(),
        })
    };
    json!({
        "command": format!("cargo xtask bench scaling {said}"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "servers": servers,
        "curves": curves.iter().map(of).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_what_is_not_understood_is_refused() {
        let options = Options::read(&["--to", "10000", "--only", "file,always"]).unwrap();
        assert_eq!(options.stores().unwrap(), [Store::File, Store::RedisAlways]);
        assert_eq!(Along::Waiting.points(options.to).collect::<Vec<_>>(), [1_000, 10_000]);
        assert_eq!(Along::Callers.points(options.to).count(), CALLERS.len());
        assert!(Options::read(&["--to", "0"]).unwrap_err().contains("--to"));
        assert!(Options::read(&["--fast", "1"]).unwrap_err().contains("--fast"));
        let nobody = Options::read(&["--only", "MySQL"]).unwrap().stores().unwrap_err();
        assert!(nobody.contains("PostgreSQL"), "{nobody}");
    }

    #[test]
    fn a_point_stands_beside_the_empty_store_of_its_own_run() {
        let report = json!({ "figures": [
            { "name": "full cycle, empty", "per_second": 200.0 },
            { "name": "full cycle, 1000 waiting", "per_second": 150.0 },
        ] });
        let found = point(&report, Along::Waiting, 1_000, "full cycle").unwrap();
        assert_eq!((found.per_second, found.empty), (150.0, Some(200.0)));
        for along in [Along::Waiting, Along::Ended, Along::Callers, Along::Partitions] {
            assert_eq!(along.options(4).len() % 2, 0, "{along:?}");
        }
        let found = point(&report, Along::Callers, 4, "full cycle").unwrap();
        assert_eq!((found.per_second, found.empty), (200.0, None));
        assert!(point(&report, Along::Waiting, 10, "full cycle").unwrap_err().contains("10 waiting"));
    }
}
