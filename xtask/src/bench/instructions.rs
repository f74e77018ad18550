//! `cargo xtask bench instructions`: counts the instructions of a decision, and fails when there are more
//! than before.
//!
//! On shared machines times vary, while instruction counts are the same every time. Callgrind counts them, on
//! any processor. The counts to compare with are in `bench/instructions.json`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::services::valgrind;
use crate::workspace::Workspace;

/// The cases, named as in `crates/semel-bench/examples/counted.rs`.
const CASES: [&str; 8] = [
    "a request is read",
    "a new job alone",
    "a duplicate",
    "new jobs of a batch",
    "a job's whole way",
    "a duplicate, on a file",
    "new jobs of a batch, on a file",
    "a job's whole way, on a file",
];
/// Numbers of jobs of two runs, whose difference counts: what a program does once is in both.
const JOBS: [u64; 2] = [1_000, 4_000];
const KEPT: &str = "bench/instructions.json";
/// The ratio that another compiler or library may cause. A clone in the hot path exceeds it.
const ROOM: f64 = 1.25;

/// Instructions per job, by case.
type Counts = BTreeMap<String, f64>;

/// Counts, and compares with the kept counts or, with `--write`, replaces them.
///
/// # Errors
/// A case that takes more than it should, or a program that cannot be run.
pub fn run(workspace: &Workspace, args: &[&str]) -> Result<(), String> {
    let is_written = match args {
        [] => false,
        ["--write"] => true,
        [other, ..] => return Err(format!("bench instructions has no option `{other}`")),
    };
    let counts = count(workspace)?;
    let path = workspace.root.join(KEPT);
    if is_written {
        let text = serde_json::to_string_pretty(&counts).map_err(|error| error.to_string())?;
        std::fs::write(&path, text + "\n").map_err(|error| format!("{KEPT}: {error}"))?;
        println!("written: {KEPT}");
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{KEPT}: {error}"))?;
    let kept: Counts = serde_json::from_str(&text).map_err(|error| format!("{KEPT}: {error}"))?;
    let (lines, is_well) = judge(&kept, &counts);
    lines.iter().for_each(|line| println!("{line}"));
    if is_well {
        Ok(())
    } else {
        Err(format!(
            "a case takes too many instructions or has no recorded count; if that is intended, run `cargo xtask bench instructions --write` and commit {KEPT}"
        ))
    }
}

fn count(workspace: &Workspace) -> Result<Counts, String> {
    valgrind::find()?;
    let built =
        workspace.cargo().args(["build", "--release", "-p", "semel-bench", "--example", "counted"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the release build failed; cargo says why above".to_owned());
    }
    let program = workspace.target()?.join("release/examples/counted");
    let of =
        |case: &str, jobs: u64| -> Result<f64, String> { Ok(instructions(&program, case, jobs)? as f64) };
    CASES
        .into_iter()
        .map(|case| {
            let each = (of(case, JOBS[1])? - of(case, JOBS[0])?) / (JOBS[1] - JOBS[0]) as f64;
            Ok((case.to_owned(), each.round()))
        })
        .collect()
}

/// All instructions of one run.
fn instructions(program: &Path, case: &str, jobs: u64) -> Result<u64, String> {
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([case, &jobs.to_string()])
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let told = String::from_utf8_lossy(&ran.stderr);
    if !ran.status.success() {
        return Err(format!("{case}: {told}"));
    }
    collected(&told).ok_or_else(|| format!("{case}: callgrind printed no count: {told}"))
}

/// The count in callgrind's output: `==7== Collected : 123456`.
fn collected(told: &str) -> Option<u64> {
    let line = told.lines().find_map(|line| line.split_once("Collected :"))?;
    line.1.trim().parse().ok()
}

/// A line for each case, and whether no case takes too many.
fn judge(kept: &Counts, counts: &Counts) -> (Vec<String>, bool) {
    let mut is_well = true;
    let mut lines = Vec::new();
    for (case, now) in counts {
        let Some(before) = kept.get(case) else {
            is_well = false;
            lines.push(format!("{case}: {now:.0} instructions, and no count is recorded"));
            continue;
        };
        let ratio = now / before;
        let verdict = match ratio {
            ratio if ratio > ROOM => "TOO MANY",
            // Otherwise a later regression up to the old count would go unnoticed.
            ratio if ratio < 1.0 / ROOM => "far fewer: record them with --write",
            _ => "as recorded",
        };
        is_well &= ratio <= ROOM;
        lines.push(format!("{case}: {now:.0} instructions, {ratio:.2} of {before:.0}: {verdict}"));
    }
    (lines, is_well)
}

#[cfg(test)]
mod tests {
    use super::{CASES, Counts, KEPT, collected, judge};
    use crate::workspace::Workspace;

    fn counts(of: &[(&str, f64)]) -> Counts {
        of.iter().map(|(case, count)| ((*case).to_owned(), *count)).collect()
    }

    #[test]
    fn what_callgrind_says_is_read() {
        assert_eq!(collected("==7== Events    : Ir\n==7== Collected : 123456\n"), Some(123_456));
        assert_eq!(collected("==7== killed"), None);
    }

    #[test]
    fn more_is_told_and_a_little_more_is_not() {
        let kept = counts(&[("a", 100.0), ("b", 100.0)]);
        assert!(judge(&kept, &counts(&[("a", 120.0), ("b", 60.0)])).1);
        let (lines, is_well) = judge(&kept, &counts(&[("a", 130.0), ("b", 100.0)]));
        assert!(!is_well && lines[0].contains("TOO MANY") && lines[1].contains("as recorded"), "{lines:?}");
        assert!(!judge(&kept, &counts(&[("c", 1.0)])).1, "what is not kept is not held to anything");
    }

    #[test]
    fn all_cases_are_kept() {
        let text = std::fs::read_to_string(Workspace::here().root.join(KEPT)).unwrap();
        let kept: Counts = serde_json::from_str(&text).unwrap();
        let mut cases = CASES.map(str::to_owned).to_vec();
        cases.sort();
        assert_eq!(kept.into_keys().collect::<Vec<_>>(), cases);
    }
}
