//! `cargo xtask fuzz`: runs the fuzz targets, one after the other.
//!
//! They are a separate workspace (`fuzz/`), built by cargo-fuzz without sanitizers: Semel has no `unsafe`
//! code, and panics and broken properties show without them. Inputs that reach new code are kept in `target/`
//! from run to run; an input that breaks something goes to `fuzz/corpus/TARGET`, and the tests play it from
//! then on.

use std::path::Path;

use crate::workspace::Workspace;

/// The default duration of each target, in seconds.
const SECONDS: &str = "60";

/// The parsed arguments.
#[derive(Debug, PartialEq, Eq)]
struct Wanted<'a> {
    seconds: &'a str,
    targets: Vec<&'a str>,
}

fn wanted<'a>(args: &[&'a str]) -> Result<Wanted<'a>, String> {
    let mut wanted = Wanted { seconds: SECONDS, targets: Vec::new() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match *arg {
            "--seconds" => {
                let seconds = args.next().filter(|text| text.parse::<u32>().is_ok());
                wanted.seconds = seconds.ok_or("--seconds takes a number")?;
            }
            option if option.starts_with('-') => return Err(format!("fuzz has no option `{option}`")),
            target => wanted.targets.push(target),
        }
    }
    Ok(wanted)
}

/// The names of all targets, in order.
fn targets(folder: &Path) -> Result<Vec<String>, String> {
    let error = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// Runs each target for the wanted number of seconds.
///
/// # Errors
/// When a target finds something, cannot be built, or does not exist.
pub fn run(workspace: &Workspace, args: &[&str]) -> Result<(), String> {
    let Wanted { seconds, targets: only } = wanted(args)?;
    let all = targets(&workspace.root.join("fuzz/fuzz_targets"))?;
    if let Some(unknown) = only.iter().find(|name| !all.iter().any(|known| known == *name)) {
        return Err(format!("there is no fuzz target `{unknown}`; there are {}", all.join(", ")));
    }
    if !workspace.has_cargo_command("fuzz") {
        return Err("fuzzing needs cargo-fuzz: cargo install cargo-fuzz".to_owned());
    }
    let mut failed = Vec::new();
    for target in all.iter().filter(|name| only.is_empty() || only.contains(&name.as_str())) {
        let (kept, working) = (format!("fuzz/corpus/{target}"), format!("target/fuzz/{target}"));
        std::fs::create_dir_all(workspace.root.join(&working))
            .map_err(|error| format!("{working}: {error}"))?;
        println!("{target}, {seconds} s");
        let mut command = workspace.cargo();
        // libFuzzer needs unstable compiler flags, which the stable compiler then accepts.
        command.env("RUSTC_BOOTSTRAP", "1");
        command.args(["fuzz", "run", "--fuzz-dir", "fuzz", "-s", "none", target]).args([&working, &kept]);
        command.arg("--").arg(format!("-max_total_time={seconds}"));
        // The full path: otherwise cargo-fuzz puts a folder of its own before it.
        command.arg(format!("-artifact_prefix={}/", workspace.root.join(&kept).display()));
        command.args(["-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1"]);
        if !command.status().map_err(|error| format!("cargo: {error}"))?.success() {
            failed.push(target.as_str());
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} failed; the input that breaks a target is saved in fuzz/corpus, where the tests replay it",
        failed.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::{SECONDS, Wanted, targets, wanted};
    use crate::workspace::Workspace;

    #[test]
    fn what_is_asked_for_is_read() {
        assert_eq!(wanted(&[]).unwrap(), Wanted { seconds: SECONDS, targets: vec![] });
        let read = wanted(&["canon", "--seconds", "9", "times"]).unwrap();
        assert_eq!(read, Wanted { seconds: "9", targets: vec!["canon", "times"] });
        assert!(wanted(&["--seconds"]).is_err() && wanted(&["--seconds", "x"]).is_err());
        assert_eq!(wanted(&["--fast"]).unwrap_err(), "fuzz has no option `--fast`");
    }

    /// Each is a program of the fuzz workspace, with a corpus in the repository.
    #[test]
    fn every_target_is_listed_and_has_a_corpus() {
        let root = Workspace::here().root;
        let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
        let names = targets(&root.join("fuzz/fuzz_targets")).unwrap();
        assert!(!names.is_empty());
        for name in names {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
            assert!(root.join("fuzz/corpus").join(&name).read_dir().unwrap().next().is_some(), "{name}");
        }
    }
}
