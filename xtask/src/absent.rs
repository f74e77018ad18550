//! Third-party programs, packages and files that some tests need. When one is missing and cannot be obtained,
//! as without a network, only those tests are left out, and a message says so before the first step and after
//! the last.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Something that is missing here and cannot be obtained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// What it is.
    pub what: &'static str,
    /// A part of the names of the tests that need it, and of no other tests' names.
    pub tests: &'static str,
    /// Why it cannot be obtained.
    pub why: String,
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NOT TESTED HERE: what needs {} ({}): {}", self.what, self.tests, self.why)
    }
}

/// A driver for another language, which a test installs.
struct Driver {
    what: &'static str,
    tests: &'static str,
    /// The folder that the test creates.
    folder: &'static str,
    /// A program that finds out whether the driver can be downloaded from its registry.
    program: &'static str,
    args: &'static [&'static str],
}

const DRIVERS: [Driver; 2] = [
    Driver {
        what: "the PostgreSQL driver for Python",
        tests: "outbox_from_python",
        folder: "psycopg-3",
        program: "python3",
        args: &[
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--timeout=20",
            "--retries=1",
            "--dest=.",
            "psycopg[binary]>=3.2,<4",
        ],
    },
    Driver {
        what: "the PostgreSQL driver for Node",
        tests: "outbox_from_node",
        folder: "pg-8",
        program: "npm",
        args: &["view", "--fetch-retries=1", "--fetch-timeout=20000", "pg@8", "version"],
    },
];

/// The arguments that show whether a program is here.
const VERSION: &[&str] = &["--version"];
/// Whether this machine lets a process mount a file system of its own: containers mostly do not.
const MOUNTS: &[&str] = &["-rm", "mount", "-t", "tmpfs", "tmpfs", "."];
/// Whether a file made here can be given to another account: only root can do that, and not in every
/// container.
const GIVES: &[&str] = &["65534:65534", "."];

/// Programs that tests run: name, arguments to try it with, and a test that needs it.
const PROGRAMS: [(&str, &[&str], &str); 9] = [
    ("python3", VERSION, "keys_in_python"),
    ("node", VERSION, "keys_in_javascript"),
    ("chown", GIVES, "what_root_makes_belongs_to_the_owner_of_the_folder"),
    ("curl", VERSION, "start_over_http"),
    ("curl", VERSION, "every_block_is_tried"),
    ("promtool", VERSION, "metrics_are_what_promtool_reads"),
    ("systemd-analyze", VERSION, "systemd_finds_nothing_wrong_with_the_unit"),
    ("unshare", MOUNTS, "a_full_disk_is_an_error_and_nothing_is_lost_when_there_is_room_again"),
    ("unshare", MOUNTS, "what_the_file_system_refuses_is_said_when_a_store_is_opened"),
];

/// The variable that names the folder of Open Job Spec's suites; if the environment does not set it,
/// `.cargo/config.toml` does.
pub const SUITES: &str = "OJS_SUITES";
/// The place where the suites are published.
const SUITES_SOURCE: &str = "https://github.com/openjobspec/ojs-conformance";

/// The folder of Open Job Spec's suites, if the named folder exists.
///
/// # Errors
/// When it does not exist.
pub fn suites(named: Option<PathBuf>) -> Result<PathBuf, Absent> {
    // Tests run in their package's folder, where a path relative to this one would be wrong.
    let found = named.as_ref().and_then(|named| named.canonicalize().ok());
    found.filter(|folder| folder.is_dir()).ok_or_else(|| {
        let named = named.map(|named| format!("{} is not a folder; ", named.display())).unwrap_or_default();
        let why = format!("{named}set {SUITES} to the folder `suites` of {SUITES_SOURCE}");
        Absent { what: "Open Job Spec's suites", tests: "suites::played::", why }
    })
}

/// The programs that are missing here.
pub fn programs() -> Vec<Absent> {
    let absent = |(program, args, tests)| {
        let why = ask(program, args).err()?;
        Some(Absent { what: program, tests, why })
    };
    PROGRAMS.into_iter().filter_map(absent).collect()
}

/// The drivers that are neither in `target` nor available for download.
pub fn drivers(target: &Path) -> Vec<Absent> {
    let missing = DRIVERS.into_iter().filter(|driver| !target.join("tmp").join(driver.folder).is_dir());
    missing
        .filter_map(|driver| {
            let why = ask(driver.program, driver.args).err()?;
            Some(Absent { what: driver.what, tests: driver.tests, why })
        })
        .collect()
}

/// Runs a command in a temporary folder, which is then deleted.
fn ask(program: &str, args: &[&str]) -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!("semel-ask-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let ran = Command::new(program).args(args).current_dir(&folder).output();
    drop(std::fs::remove_dir_all(&folder));
    let output = ran.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    Err(told.lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason given").trim().to_owned())
}

/// The arguments that make the test runner leave those tests out.
pub fn arguments(absent: &[Absent], has_nextest: bool) -> Vec<String> {
    if absent.is_empty() {
        return Vec::new();
    }
    if has_nextest {
        let named: Vec<String> = absent.iter().map(|absent| format!("test({})", absent.tests)).collect();
        return vec!["-E".to_owned(), format!("not ({})", named.join(" + "))];
    }
    let skipped = absent.iter().flat_map(|absent| ["--skip".to_owned(), absent.tests.to_owned()]);
    ["--".to_owned()].into_iter().chain(skipped).collect()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{Absent, DRIVERS, PROGRAMS, SUITES, SUITES_SOURCE, arguments, ask, drivers, suites};

    fn absent(tests: &'static str) -> Absent {
        Absent { what: "x", tests, why: "y".to_owned() }
    }

    #[test]
    fn only_what_is_absent_is_left_out() {
        assert!(arguments(&[], true).is_empty() && arguments(&[], false).is_empty());
        let both = [absent("a::"), absent("b")];
        assert_eq!(arguments(&both, true), ["-E", "not (test(a::) + test(b))"]);
        assert_eq!(arguments(&both, false), ["--", "--skip", "a::", "--skip", "b"]);
    }

    #[test]
    fn it_says_why() {
        assert!(ask("no-such-program-anywhere", &[]).unwrap_err().contains("no-such-program-anywhere"));
        assert_eq!(ask("sh", &["-c", "echo no >&2; echo so >&2; exit 1"]), Err("no".to_owned()));
        assert_eq!(ask("sh", &["-c", "true"]), Ok(()));
    }

    #[test]
    fn suites_that_are_not_there_are_absent() {
        assert_eq!(suites(Some("src".into())), Ok(Path::new("src").canonicalize().unwrap()));
        for named in [None, Some(PathBuf::new()), Some("no/such/folder".into()), Some("Cargo.toml".into())] {
            let told = suites(named).unwrap_err().to_string();
            assert!(told.contains(SUITES) && told.contains(SUITES_SOURCE), "{told}");
        }
    }

    #[test]
    fn what_is_there_already_is_asked_of_nobody() {
        let target = std::env::temp_dir().join(format!("semel-absent-{}", std::process::id()));
        for driver in &DRIVERS {
            std::fs::create_dir_all(target.join("tmp").join(driver.folder)).unwrap();
        }
        assert_eq!(drivers(&target), []);
        std::fs::remove_dir_all(&target).unwrap();
    }

    #[test]
    fn the_tests_have_these_names() {
        let disk = include_str!("../../crates/semel-sqlite/tests/it/disk.rs");
        let page = [
            include_str!("../../crates/semel-core/tests/it/page.rs"),
            include_str!("../../crates/semel-cli/tests/it/start.rs"),
            include_str!("../../crates/semel-cli/tests/it/pages.rs"),
            include_str!("../../crates/semel-server/tests/it/listing.rs"),
            disk,
            include_str!("../../crates/semel-sqlite/tests/it/modes.rs"),
            include_str!("tidy/packaging.rs"),
        ]
        .concat();
        for (program, _, test) in PROGRAMS {
            assert!(page.contains(&format!("fn {test}()")), "{program}: {test}");
        }
        // Each test that has a disk of its own, and no other.
        let functions = disk.split("\nfn ").filter_map(|function| function.split_once('('));
        let has_disk = |(name, rest): &(&str, &str)| *name != "small_disk" && rest.contains("small_disk(");
        let on_a_disk: Vec<&str> = functions.filter(has_disk).map(|(name, _)| name).collect();
        let mounts = PROGRAMS.iter().filter(|(program, ..)| *program == "unshare");
        assert_eq!(on_a_disk, mounts.map(|(.., test)| *test).collect::<Vec<_>>());
        let missing = suites(None).unwrap_err();
        let module = missing.tests.trim_end_matches("::").rsplit("::").next().unwrap();
        let outer = include_str!("../../crates/semel-server/tests/it/suites.rs");
        assert!(outer.contains(&format!("mod {module};")) && !outer.contains(SUITES));
        let played = include_str!("../../crates/semel-server/tests/it/suites/played.rs");
        assert!(played.contains(SUITES) && played.contains(SUITES_SOURCE));
        assert!(include_str!("../../.cargo/config.toml").contains(SUITES));
        let outbox = include_str!("../../examples/tests/it/outbox.rs");
        let tools = include_str!("../../examples/tests/it/tools.rs");
        for driver in &DRIVERS {
            assert!(outbox.contains(&format!("fn {}()", driver.tests)), "{}", driver.tests);
            assert!(tools.contains(&format!("installed(\"{}\"", driver.folder)), "{}", driver.folder);
            let is_named = |arg: &&str| tools.contains(&format!("&str = \"{arg}\";"));
            assert!(driver.args.iter().any(is_named), "{}", driver.what);
        }
    }
}
