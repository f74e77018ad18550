//! Valkey: found, or downloaded into the build folder, and started for some of the tests of the store in
//! Redis. The system is left unchanged: apt works in a folder of its own, with the configured mirror, and
//! checks signatures as usual.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Folder, Redis, on_path};
use crate::absent::Absent;

/// The program.
const PROGRAM: &str = "valkey-server";
/// The packages needed: the second has the binary, the first only gives it this name.
const PACKAGES: [&str; 2] = ["valkey-server", "valkey-tools"];
/// The place in the build folder where it is kept.
const KEPT: &str = "tmp/valkey";
/// The time limit of a command that downloads something.
const LIMIT: Duration = Duration::from_secs(60);
/// How often to check whether the command is done.
const POLL: Duration = Duration::from_millis(50);

/// Starts a Valkey for tests.
///
/// # Errors
/// Why it is not available. Nothing else depends on it.
pub fn start(target: &Path) -> Result<Redis, Absent> {
    let found = find(&target.join(KEPT), Path::new("apt-get"));
    found.and_then(Redis::start_program).map_err(|why| Absent {
        what: "Valkey",
        tests: "some of semel-redis's tests, repeated on Valkey",
        why,
    })
}

fn find(kept: &Path, apt: &Path) -> Result<PathBuf, String> {
    let here = kept.join("usr/bin").join(PROGRAM);
    let found = [on_path(PROGRAM), Some(here.clone())];
    if let Some(program) = found.into_iter().flatten().find(|program| runs(program)) {
        return Ok(program);
    }
    println!("fetching {PROGRAM} with apt-get, into {}", kept.display());
    fetch(kept, apt, LIMIT).map_err(|why| {
        format!("it is not installed and cannot be fetched ({why}): install it, or put {PROGRAM} on the PATH")
    })?;
    if runs(&here) { Ok(here) } else { Err(format!("{} does not start", here.display())) }
}

fn runs(program: &Path) -> bool {
    let mut asked = Command::new(program);
    asked.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    program.is_file() && asked.status().is_ok_and(|status| status.success())
}

/// Downloads the packages and unpacks them, without installing anything.
fn fetch(kept: &Path, apt: &Path, limit: Duration) -> Result<(), String> {
    let system = System::here()?;
    let folder = Folder::new("apt")?;
    let mirror = system.mirror(&within(&mut system.targets(apt), folder.path(), limit)?)?;
    let mut reasons = Vec::new();
    // Where the release does not have it yet, its backports may.
    for suite in [format!("{}-backports", system.codename), system.codename.clone()] {
        match fetch_from(&system.source(&mirror, &suite), apt, folder.path(), limit) {
            Ok(()) => return unpack(folder.path(), kept, limit),
            Err(why) => reasons.push(format!("{suite}: {why}")),
        }
    }
    Err(reasons.join("; "))
}

fn fetch_from(source: &str, apt: &Path, folder: &Path, limit: Duration) -> Result<(), String> {
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).map_err(|error| format!("{name}: {error}"))
    };
    for needed in ["lists/partial", "cache/archives/partial"] {
        std::fs::create_dir_all(folder.join(needed)).map_err(|error| format!("{needed}: {error}"))?;
    }
    write("sources.list", source)?;
    write("apt.conf", &settings(folder))?;
    let run = |words: &[&str]| {
        let mut command = Command::new(apt);
        command.arg("-c").arg(folder.join("apt.conf")).arg("-q").args(words).current_dir(folder);
        within(&mut command, folder, limit).map(drop)
    };
    run(&["update"])?;
    run(&[&["download"][..], &PACKAGES].concat())
}

/// apt's settings in addition to the system's: where it works, and what it must not do.
fn settings(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n\
         Dir::Etc::SourceList \"{folder}/sources.list\";\nDir::Etc::SourceParts \"/dev/null\";\n\
         Dir::State::Lists \"{folder}/lists\";\nDir::Cache \"{folder}/cache\";\n\
         APT::Update::Error-Mode \"any\";\nAPT::Get::AllowUnauthenticated \"false\";\n\
         Acquire::AllowInsecureRepositories \"false\";\nAcquire::Retries \"1\";\n\
         Acquire::http::Timeout \"20\";\nAcquire::https::Timeout \"20\";\n"
    )
}

/// Unpacks the downloads beside their final place and then renames the folder, so that it is there completely
/// or not at all.
fn unpack(folder: &Path, kept: &Path, limit: Duration) -> Result<(), String> {
    let said = |error: std::io::Error| error.to_string();
    let beside = kept.with_extension(std::process::id().to_string());
    std::fs::create_dir_all(&beside).map_err(said)?;
    let outcome = (|| {
        for file in std::fs::read_dir(folder).map_err(said)? {
            let path = file.map_err(said)?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                let mut unpack = Command::new("dpkg");
                within(unpack.arg("-x").arg(path).arg(&beside), folder, limit)?;
            }
        }
        // What is already there does not run.
        drop(std::fs::remove_dir_all(kept));
        std::fs::rename(&beside, kept).map_err(said)
    })();
    drop(std::fs::remove_dir_all(&beside));
    outcome
}

/// Runs a command, and ends it when it takes too long. Returns its output.
fn within(command: &mut Command, folder: &Path, limit: Duration) -> Result<String, String> {
    let name = command.get_program().display().to_string();
    let log = folder.join("said");
    let file = File::create(&log).map_err(|error| error.to_string())?;
    let errors = file.try_clone().map_err(|error| error.to_string())?;
    command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
    command.stdin(Stdio::null()).stdout(file).stderr(errors);
    let mut process = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    let begun = Instant::now();
    let status = loop {
        match process.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() < limit => std::thread::sleep(POLL),
            other => {
                drop(process.kill());
                drop(process.wait());
                let why = other.err().map(|error| error.to_string());
                return Err(why.unwrap_or_else(|| format!("{name} took longer than {} s", limit.as_secs())));
            }
        }
    };
    let said = std::fs::read(&log).map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&said).into_owned();
    if status.success() {
        return Ok(said);
    }
    let why = said.lines().find(|line| line.starts_with("E:")).or(said.lines().last());
    Err(format!("{name}: {}", why.unwrap_or("no reason given").trim()))
}

/// The system, as far as it matters for its packages.
#[derive(Debug, PartialEq, Eq)]
struct System {
    id: String,
    codename: String,
}

impl System {
    fn here() -> Result<Self, String> {
        let said = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        Self::of(&said).ok_or_else(|| "this system is not one with a known apt-get".to_owned())
    }

    fn of(said: &str) -> Option<Self> {
        let value = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
            Some(line.trim().trim_matches('"').to_owned())
        };
        Some(Self { id: value("ID")?, codename: value("VERSION_CODENAME")? })
    }

    /// The command that asks apt where the system's packages come from.
    fn targets(&self, apt: &Path) -> Command {
        let mut command = Command::new(apt);
        command.args([
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT)",
            "Created-By: Packages",
        ]);
        command
    }

    /// The mirror of the release itself, among the places that apt listed.
    fn mirror(&self, targets: &str) -> Result<String, String> {
        let of_release = |line: &&str| line.split_whitespace().skip(1).eq([self.codename.as_str(), "main"]);
        let line = targets.lines().find(of_release).and_then(|line| line.split_whitespace().next());
        line.map(str::to_owned).ok_or_else(|| format!("apt knows no mirror of {} {}", self.id, self.codename))
    }

    /// The apt source, with the system's own signing keys if present, else with those that apt trusts.
    fn source(&self, mirror: &str, suite: &str) -> String {
        let keys = format!("/usr/share/keyrings/{}-archive-keyring.gpg", self.id);
        let signed = if Path::new(&keys).is_file() { format!("[signed-by={keys}] ") } else { String::new() };
        let component = if self.id == "ubuntu" { "universe" } else { "main" };
        format!("deb {signed}{mirror} {suite} {component}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_and_its_mirror_are_read() {
        let said = "PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\nVERSION_CODENAME=bookworm\nID_LIKE=x\n";
        let system = System::of(said).unwrap();
        assert_eq!(system, System { id: "debian".to_owned(), codename: "bookworm".to_owned() });
        let targets = "http://a/security bookworm-security main\nhttp://a/debian bookworm main\n";
        assert_eq!(system.mirror(targets), Ok("http://a/debian".to_owned()));
        assert!(system.mirror("http://a/other stable main\n").unwrap_err().contains("bookworm"));
        let source = system.source("http://a/debian", "bookworm-backports");
        assert!(source.ends_with("http://a/debian bookworm-backports main\n"), "{source}");
        assert_eq!(System::of("ID=other\n"), None);
    }

    /// Whatever goes wrong is reported. Only a hanging download is cut off early; the others may be slow on a
    /// busy machine.
    #[cfg(unix)]
    #[test]
    fn what_cannot_be_fetched_is_no_failure_but_a_reason() {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new("valkey-test").unwrap();
        let kept = folder.path().join("kept");
        let apt = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let codename = System::here().map(|system| system.codename).unwrap_or_default();
        let mirror =
            format!("case \"$*\" in *indextargets*) echo \"http://a {codename} main\"; exit 0;; esac");
        let (patient, short) = (Duration::from_secs(30), Duration::from_millis(500));
        for (apt, limit, why) in [
            (folder.path().join("none"), patient, "none"),
            (
                apt("refuses", &format!("{mirror}\necho 'E: no such package' >&2; exit 100")),
                patient,
                "no such package",
            ),
            (apt("empty", &format!("{mirror}\nexit 0")), patient, ""),
            (apt("hangs", &format!("{mirror}\nexec sleep 600")), short, "took longer"),
            (apt("silent", "exit 1"), patient, "no reason given"),
        ] {
            let told = fetch(&kept, &apt, limit);
            if System::here().is_err() {
                assert!(told.is_err());
                continue;
            }
            // Nothing was downloaded, so nothing runs.
            assert!(!runs(&kept.join("usr/bin").join(PROGRAM)));
            assert!(told.as_ref().map_or_else(|said| said.contains(why), |()| why.is_empty()), "{told:?}");
        }
    }
}
