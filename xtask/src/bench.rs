//! `cargo xtask bench peers`: other job queues, as their packages are published, and Semel, measured alike on
//! one machine in one run.
//!
//! Each measurement is a process of its own on an empty store, and each round goes through all queues before
//! the next begins, so that slow phases of the machine affect all of them.
//!
//! # Layout
//! - [`peers`]: the queues, and how each is set up.
//! - [`cases`]: what is measured.
//! - [`stores`]: the servers they run on, emptied before each measurement, with their size and processor time.
//! - [`packages`]: where the programs come from.
//! - [`summary`]: medians, as a table and as data; [`plot`]: as pictures.
//! - [`scaling`]: Semel alone, with growing backlogs and more callers.
//! - [`instructions`]: the processor instructions that decisions take.

mod cases;
pub mod instructions;
mod packages;
mod peers;
mod plot;
pub mod scaling;
mod stores;
mod summary;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Map, Value, json};

use self::cases::{CASES, Case, REPEAT};
use self::packages::Packages;
use self::peers::{PEERS, Peer};
use self::stores::{Store, Stores};
use crate::workspace::Workspace;

/// The time limit of a case, far longer than any takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// The options of a run.
#[derive(Debug, PartialEq)]
struct Options {
    rounds: u32,
    seconds: f64,
    only: Option<String>,
    folder: Option<PathBuf>,
    /// The folder of an earlier run whose figures are kept; only what failed or is missing there is measured
    /// again.
    kept: Option<PathBuf>,
}

impl Options {
    fn read(args: &[&str]) -> Result<Self, String> {
        let mut options = Self { rounds: 3, seconds: 5.0, only: None, folder: None, kept: None };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            let wrong = || format!("`{value}` is not a valid value of {name}");
            match *name {
                "--rounds" => {
                    options.rounds = value.parse().ok().filter(|rounds| *rounds > 0).ok_or_else(wrong)?;
                }
                "--seconds" => {
                    options.seconds =
                        value.parse().ok().filter(|seconds| *seconds > 0.0).ok_or_else(wrong)?;
                }
                "--only" => options.only = Some((*value).to_owned()),
                "--out" => options.folder = Some(PathBuf::from(value)),
                "--keep" => options.kept = Some(PathBuf::from(value)),
                _ => return Err(format!("bench peers has no option `{name}`")),
            }
        }
        Ok(options)
    }

    fn wants(&self, peer: &Peer) -> bool {
        self.only.as_deref().is_none_or(|only| only.split(',').any(|part| peer.label().contains(part)))
    }
}

/// One measurement in one round.
#[derive(Clone, Debug)]
struct Run {
    peer: &'static Peer,
    case: &'static Case,
    round: u32,
    /// The program's output together with what was observed of its store, or why there is none.
    result: Result<Value, String>,
}

impl Run {
    fn is_of(&self, peer: &Peer, case: &Case, round: u32) -> bool {
        std::ptr::eq(self.peer, peer) && self.case.name == case.name && self.round == round
    }
}

/// Runs the benchmark.
///
/// # Errors
/// What is missing, or a file that cannot be written. A queue that fails only gets a line in the table.
pub fn run(workspace: &Workspace, args: &[&str]) -> Result<(), String> {
    let options = Options::read(args)?;
    let peers: Vec<&'static Peer> = PEERS.iter().filter(|peer| options.wants(peer)).collect();
    if peers.is_empty() {
        let known: Vec<String> = PEERS.iter().map(Peer::label).collect();
        return Err(format!("--only matches no queue; the queues are {}", known.join(", ")));
    }
    let packages = Packages::install(workspace, &peers)?;
    let stores = Stores::start(&peers.iter().map(|peer| peer.store).collect::<Vec<_>>())?;
    let mut runs = options.kept.as_deref().map(summary::read).transpose()?.unwrap_or_default();
    for round in 1..=options.rounds {
        for case in CASES {
            for peer in peers.iter().copied().filter(|peer| case.is_asked_of(peer)) {
                if runs.iter().any(|run| run.is_of(peer, case, round)) {
                    continue;
                }
                let asked = case.options(peer, options.seconds, &runs);
                println!("round {round} of {}: {}, {}", options.rounds, case.name, peer.label());
                let result = asked.and_then(|asked| ask(&packages, &stores, peer, case, asked));
                match &result {
                    Ok(result) => println!("    {}", summary::line(result)),
                    Err(problem) => println!("    failed: {problem}"),
                }
                runs.push(Run { peer, case, round, result });
            }
        }
    }
    let folder = options.folder.clone().unwrap_or_else(|| packages.folder().join("report"));
    let mut said = format!("--rounds {} --seconds {}", options.rounds, options.seconds);
    if options.kept.is_some() {
        said.push_str(" --keep FOLDER");
    }
    summary::write(&folder, &said, &stores, &runs)?;
    println!("written: {}", folder.display());
    Ok(())
}

/// Has a queue's program measure one case on an empty store.
fn ask(
    packages: &Packages,
    stores: &Stores,
    peer: &Peer,
    case: &Case,
    mut asked: Map<String, Value>,
) -> Result<Value, String> {
    let place = stores.empty(peer.store)?;
    asked.insert("url".to_owned(), json!(place.url));
    if case.kind == REPEAT {
        let mut nothing = asked.clone();
        nothing.insert("seconds".to_owned(), json!(0.0));
        output(told(packages, peer, case, nothing), PATIENCE)?;
    }
    let before = (stores.bytes(&place)?, stores.processor_seconds(peer.store));
    let output = output(told(packages, peer, case, asked), PATIENCE)?;
    let mut result: Map<String, Value> = serde_json::from_str(output.lines().last().unwrap_or_default())
        .map_err(|error| format!("its output is not understood ({error}): {output}"))?;
    result.insert("store_cpu_seconds".to_owned(), json!(stores.processor_seconds(peer.store) - before.1));
    result.insert("store_bytes".to_owned(), json!(stores.bytes(&place)?.saturating_sub(before.0)));
    if peer.store == Store::File {
        // The store is in the program's own process.
        result.insert("store_cpu_seconds".to_owned(), Value::Null);
    }
    Ok(Value::Object(result))
}

fn told(packages: &Packages, peer: &Peer, case: &Case, asked: Map<String, Value>) -> Command {
    let mut command = packages.program(peer, case.kind);
    command.arg(Value::Object(asked).to_string());
    command
}

/// A program's output, if it succeeds in time.
fn output(mut command: Command, patience: Duration) -> Result<String, String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot be started: {error}"))?;
    let errors = child.stderr.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut text = String::new();
            drop(std::io::Read::read_to_string(&mut pipe, &mut text));
            text
        })
    });
    let id = child.id();
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if is_over.recv_timeout(patience).is_err() {
            drop(Command::new("kill").args(["-9", &id.to_string()]).status());
        }
    });
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    // Tells the watching thread to stop; fails harmlessly when that has timed out.
    let _ = over.send(());
    drop(watch.join());
    let errors = errors.and_then(|reader| reader.join().ok()).unwrap_or_default();
    if !output.status.success() {
        let last: Vec<&str> = errors.trim().lines().rev().take(3).collect();
        return Err(format!("{}: {}", output.status, last.into_iter().rev().collect::<Vec<_>>().join(" / ")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Options, PATIENCE, output};
    use std::process::Command;

    #[test]
    fn options_are_read_and_what_is_not_understood_is_refused() {
        let options = Options::read(&["--rounds", "1", "--only", "BullMQ,Semel"]).unwrap();
        assert_eq!((options.rounds, options.only.as_deref()), (1, Some("BullMQ,Semel")));
        assert!(Options::read(&["--rounds", "0"]).unwrap_err().contains("--rounds"));
        assert!(Options::read(&["--rounds"]).unwrap_err().contains("needs a value"));
        assert!(Options::read(&["--fast", "1"]).unwrap_err().contains("--fast"));
    }

    #[test]
    fn a_program_that_fails_is_told_with_its_last_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo early; echo no such queue >&2; exit 3"]);
        let problem = output(command, PATIENCE).unwrap_err();
        assert!(problem.contains("no such queue") && problem.contains('3'), "{problem}");
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two"]);
        assert_eq!(output(command, PATIENCE).unwrap(), "one\ntwo");
    }
}
