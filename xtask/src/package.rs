//! `cargo xtask package`: everything that is installed, in one folder and one archive: a binary that depends
//! on nothing but the kernel, manual pages, completions, the unit.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::Workspace;

/// The supported shells, and the path where each looks for completions.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/semel"),
    ("zsh", "share/zsh/site-functions/_semel"),
    ("fish", "share/fish/vendor_completions.d/semel.fish"),
];
/// The files that are copied unchanged.
const COPIED: [(&str, &str); 8] = [
    ("packaging/systemd/semel.service", "lib/systemd/system/semel.service"),
    ("packaging/prometheus/alerts.yml", "share/semel/prometheus/alerts.yml"),
    ("packaging/prometheus/scrape.yml", "share/semel/prometheus/scrape.yml"),
    ("packaging/grafana/semel.json", "share/semel/grafana/semel.json"),
    ("README.md", "share/doc/semel/README.md"),
    ("CHANGELOG.md", "share/doc/semel/CHANGELOG.md"),
    ("LICENSE-APACHE", "share/doc/semel/LICENSE-APACHE"),
    ("LICENSE-MIT", "share/doc/semel/LICENSE-MIT"),
];

/// Builds the binary, checks it, and gathers everything.
///
/// # Errors
/// What failed, or that the binary is not static.
pub fn run(workspace: &Workspace) -> Result<(), String> {
    let host = host(workspace)?;
    let target = workspace.target()?;
    build(workspace, &host)?;
    let built = target.join(&host).join("release").join(format!("semel{}", std::env::consts::EXE_SUFFIX));
    if host.contains("-linux-") {
        let program = std::fs::read(&built).map_err(|error| format!("{}: {error}", built.display()))?;
        if let Some(interpreter) = interpreter(&program) {
            return Err(format!(
                "{} is not static: it is loaded by {interpreter}; unset RUSTFLAGS and cargo settings that override \
                 `-C target-feature=+crt-static`",
                built.display()
            ));
        }
    }
    let folder = target.join("package").join("semel");
    drop(std::fs::remove_dir_all(&folder));
    gather(workspace, &built, &folder)?;
    let version = say(&built, &["--version"])?;
    let name = format!("{}-{host}.tar.gz", version.trim().replace(' ', "-"));
    let mut tar = Command::new("tar");
    tar.current_dir(target.join("package"));
    tar.args(["--create", "--gzip", "--owner=0", "--group=0", "--file", &name, "semel"]);
    match tar.status() {
        Ok(status) if status.success() => println!("{}", target.join("package").join(name).display()),
        Ok(status) => return Err(format!("tar: {status}")),
        Err(error) => return Err(format!("tar cannot be started: {error}")),
    }
    println!("{}", folder.display());
    Ok(())
}

/// Builds the binary with the C library linked statically, where that is available. The target is named
/// explicitly, so that build scripts and macros are built as usual.
fn build(workspace: &Workspace, host: &str) -> Result<(), String> {
    let variable = format!("CARGO_TARGET_{}_RUSTFLAGS", host.to_uppercase().replace('-', "_"));
    let mut cargo = workspace.cargo();
    cargo.args([
        "build",
        "--release",
        "--locked",
        "--package",
        "semel-cli",
        "--bin",
        "semel",
        "--target",
        host,
    ]);
    if host.contains("-linux-") {
        cargo.env(&variable, "-C target-feature=+crt-static -C strip=debuginfo");
    }
    let status = cargo.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo build: {status}")) }
}

/// The target of this machine.
fn host(workspace: &Workspace) -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = workspace.command(rustc).arg("-vV").output().map_err(|error| format!("rustc: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not name its host target".to_owned())
}

/// A program's stdout.
fn say(program: &Path, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(words)
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        return Err(format!("semel {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

fn gather(workspace: &Workspace, built: &Path, folder: &Path) -> Result<(), String> {
    copy(built, &folder.join("bin").join("semel"))?;
    for (from, to) in COPIED {
        copy(&workspace.root.join(from), &folder.join(to))?;
    }
    for (shell, place) in SHELLS {
        write(&folder.join(place), &say(built, &["completions", shell])?)?;
    }
    let mut sought: Vec<Vec<String>> = vec![Vec::new()];
    while let Some(verbs) = sought.pop() {
        let asked = |first: &'static str, last: Option<&'static str>| -> Result<String, String> {
            let lead = if first.is_empty() { None } else { Some(first) };
            let words: Vec<&str> =
                lead.into_iter().chain(verbs.iter().map(String::as_str)).chain(last).collect();
            say(built, &words)
        };
        let name: String = verbs.iter().fold("semel".to_owned(), |name, verb| format!("{name}-{verb}"));
        write(&folder.join(format!("share/man/man1/{name}.1")), &asked("man", None)?)?;
        let behind = verbs_behind(&asked("", Some("--help"))?);
        sought.extend(behind.into_iter().map(|verb| [verbs.clone(), vec![verb]].concat()));
    }
    Ok(())
}

/// The verbs that a help text lists.
fn verbs_behind(help: &str) -> Vec<String> {
    let lines =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

fn parent(path: &Path) -> Result<(), String> {
    let folder: PathBuf = path.parent().map(Path::to_owned).unwrap_or_default();
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    parent(to)?;
    std::fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    parent(path)?;
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The dynamic loader that a 64-bit ELF program names; a static program has none.
fn interpreter(program: &[u8]) -> Option<String> {
    /// The type of the program header with the loader's path.
    const INTERPRETER: u32 = 3;
    let number = |at: usize, size: usize| -> Option<u64> {
        let bytes = program.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let index = |at: usize, size: usize| usize::try_from(number(at, size)?).ok();
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (first, size, count) = (index(32, 8)?, index(54, 2)?, index(56, 2)?);
    let headers = (0..count).map(|nth| first + nth * size);
    let header = headers.into_iter().find(|header| number(*header, 4) == Some(u64::from(INTERPRETER)))?;
    let (start, length) = (index(header + 8, 8)?, index(header + 32, 8)?);
    let name = program.get(start..start.checked_add(length)?)?;
    Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::{COPIED, interpreter, verbs_behind};
    use crate::workspace::Workspace;

    /// A 64-bit ELF program with one header of this type, which names `text`.
    fn program(kind: u8, text: &str) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (bytes[32], bytes[54], bytes[56]) = (64, 56, 1);
        bytes[64] = kind;
        (bytes[64 + 8], bytes[64 + 32]) = (120, u8::try_from(text.len()).unwrap());
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    #[test]
    fn a_program_that_is_loaded_by_another_is_not_static() {
        assert_eq!(interpreter(&program(3, "/lib/ld.so\0")).as_deref(), Some("/lib/ld.so"));
        assert_eq!(interpreter(&program(1, "")), None);
        assert_eq!(interpreter(b"\x7fELF\x02\x01 and no more"), None);
        assert_eq!(interpreter(b"#!/bin/sh"), None);
    }

    #[cfg(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static")))]
    #[test]
    fn this_program_is_not_static() {
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(interpreter(&this).unwrap().contains("ld-linux"));
    }

    #[test]
    fn what_is_copied_is_there() {
        let root = Workspace::here().root;
        assert!(COPIED.iter().all(|(from, _)| root.join(from).is_file()));
    }

    #[test]
    fn verbs_are_read_from_the_help() {
        let help = "Text\n\nCommands:\n  serve  Run\n  help   Print\n\nOptions:\n  --x\n";
        assert_eq!(verbs_behind(help), ["serve"]);
        assert!(verbs_behind("Options:\n  --x").is_empty());
    }
}
