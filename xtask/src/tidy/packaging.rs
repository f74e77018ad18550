//! What is shipped beside the program: units, manifests and commands must name flags, variables and addresses
//! that exist.

use std::collections::BTreeMap;

use saphyr::{LoadableYamlNode, Yaml};

use super::Finding;
use super::tree::{File, Tree};

/// The output of `--help`, word for word; a test of the program keeps it up to date.
const HELP: &str = "crates/semel-cli/testdata/help/";
/// The folder with the endpoints of the server.
const ROUTES: &str = "crates/semel-server/src/routes/";
/// The folder of what is shipped.
const SHIPPED: &str = "packaging/";

/// Looks at what is shipped, and at the commands in the documentation.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let help: BTreeMap<&str, &str> = tree
        .files
        .iter()
        .filter_map(|file| Some((file.path.strip_prefix(HELP)?.strip_suffix(".txt")?, &*file.text)))
        .collect();
    let is_page = |file: &&File| file.path.ends_with(".md") && !file.path.starts_with("docs/adr/");
    let shipped = || tree.files.iter().filter(|file| file.path.starts_with(SHIPPED));
    let pages = tree.files.iter().filter(is_page);
    let flags = shipped().chain(pages).flat_map(|file| flags(file, &help));
    let variables = shipped().flat_map(|file| variables(file, &help));
    let overruled = shipped().flat_map(|file| overruled(file, &help));
    let probes = shipped().flat_map(|file| probes(file, tree));
    let texts = shipped().filter_map(unreadable);
    flags.chain(variables).chain(overruled).chain(probes).chain(texts).collect()
}

/// Each flag after `semel VERB` in a line must be one of the verb's.
fn flags(file: &File, help: &BTreeMap<&str, &str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()) {
        // Lists of words in YAML and in container files are command lines too.
        let is_list =
            |word: &str| line.trim_start().strip_prefix(word).is_some_and(|rest| rest.contains('['));
        let begins_with_verb = is_list("args:") || is_list("CMD");
        let line = line.replace(['"', ',', '[', ']'], " ");
        let mut verb = None;
        let mut before = if begins_with_verb { "semel" } else { "" };
        for word in line.split_whitespace() {
            let ends = word.contains(['`', '|', ';', ')']) || word.starts_with(['#', '>', '&']);
            let bare = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '-' && c != '_');
            if begins_with_verb && matches!(bare, "args" | "CMD") {
                continue;
            }
            if before.trim_start_matches('`').ends_with("semel") && !before.contains("--") {
                verb = help.get_key_value(bare);
            } else if let Some(behind) =
                verb.and_then(|(name, _)| help.get_key_value(&*format!("{name}-{bare}")))
            {
                verb = Some(behind);
            } else if let (Some((name, text)), true) = (verb, bare.starts_with("--")) {
                let flag = bare.split('=').next().unwrap_or(bare);
                if !text.split(|c: char| c.is_whitespace() || c == ',').any(|known| known == flag) {
                    let what = format!("`semel {name}` has no flag `{flag}`");
                    findings.push(Finding::error(format!("{}:{number}", file.path), what));
                }
            }
            if ends {
                verb = None;
            }
            before = word;
        }
    }
    findings
}

/// Each variable must be one that `--help` names.
fn variables<'a>(file: &'a File, help: &'a BTreeMap<&str, &str>) -> impl Iterator<Item = Finding> + 'a {
    let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
    file.text.match_indices("SEMEL_").filter_map(move |(start, _)| {
        let rest = &file.text[start..];
        let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
        let known = help.values().any(|text| text.split(|c| !is_name(c)).any(|word| word == name));
        (!known).then(|| Finding::error(file.at(start), format!("the program has no variable `{name}`")))
    })
}

/// What is shipped must not start the server with a flag that a variable can set too: the flag would override
/// the variable that a user sets beside the unit or the image.
fn overruled(file: &File, help: &BTreeMap<&str, &str>) -> Vec<Finding> {
    let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
    let is_known =
        |name: &str| help.values().any(|text| text.split(|c| !is_name(c)).any(|word| word == name));
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()).filter(|(_, line)| !line.trim_start().starts_with('#'))
    {
        let words = line.split(|c: char| c.is_whitespace() || matches!(c, '"' | ',' | '[' | ']' | '='));
        for word in words.skip_while(|word| *word != "serve") {
            let Some(flag) = word.strip_prefix("--") else { continue };
            let variable = format!("SEMEL_{}", flag.to_ascii_uppercase().replace('-', "_"));
            if is_known(&variable) {
                let what =
                    format!("`--{flag}` overrides `{variable}`, which users set; set the variable instead");
                findings.push(Finding::error(format!("{}:{number}", file.path), what));
            }
        }
    }
    findings
}

/// Each address that a probe requests must be one that the server answers.
fn probes<'a>(file: &'a File, tree: &'a Tree) -> impl Iterator<Item = Finding> + 'a {
    file.text.match_indices("httpGet: {path: ").filter_map(move |(start, lead)| {
        let path = file.text[start + lead.len()..].split([',', '}']).next()?.trim();
        let quoted = format!("\"{path}\"");
        let is_route = |file: &File| file.path.starts_with(ROUTES) && file.text.contains(&quoted);
        let there = tree.files.iter().any(is_route);
        (!there).then(|| Finding::error(file.at(start), format!("the server has no endpoint `{path}`")))
    })
}

/// Finds invalid YAML and invalid JSON.
fn unreadable(file: &File) -> Option<Finding> {
    let why = if file.path.ends_with(".json") {
        serde_json::from_str::<serde_json::Value>(&file.text).err()?.to_string()
    } else if file.path.ends_with(".yaml") || file.path.ends_with(".yml") {
        Yaml::load_from_str(&file.text).err()?.to_string()
    } else {
        return None;
    };
    Some(Finding::error(file.path.clone(), why))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::tree::Tree;
    use crate::workspace::Workspace;

    const SERVE: (&str, &str) = (
        "crates/semel-cli/testdata/help/serve.txt",
        "  --drain <SECONDS>  How long (SEMEL_DRAIN)\n      --listen <HOST:PORT>  Where\n",
    );

    const BOUND: (&str, &str) = ("crates/semel-cli/testdata/help/queues-bound.txt", "  --max-depth <N>");
    const QUEUES: (&str, &str) = ("crates/semel-cli/testdata/help/queues.txt", "Commands:\n  bound  Show");

    fn found(path: &str, text: &str) -> Vec<String> {
        let route = ("crates/semel-server/src/routes/system.rs", "get(\"/live\", Public, live)");
        check(&Tree::of(&[SERVE, QUEUES, BOUND, route, (path, text)]))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn flags_are_those_of_the_verb() {
        let no_flag = |text: &str| found("packaging/a", text).len();
        assert_eq!(no_flag("ExecStart=/usr/bin/semel serve --listen=x"), 0);
        assert_eq!(no_flag("ExecStart=/usr/bin/semel serve --drian 20"), 1);
        assert_eq!(no_flag("          args: [serve, --listen, \"20\"]"), 0);
        assert_eq!(no_flag("          args: [serve, --drian, \"20\"]"), 1);
        assert_eq!(no_flag("CMD [\"serve\", \"--drian\", \"20\"]"), 1);
        assert_eq!(no_flag("semel queues bound mail --max-depth 5"), 0);
        assert_eq!(no_flag("semel queues --max-depth 5"), 1);
        assert_eq!(no_flag("docker run --read-only semel\nsemel serve | other --flag"), 0);
        assert_eq!(found("docs/a.md", "say `semel serve --no-such`, or `other --flag`").len(), 1);
        assert_eq!(found("docs/a.md", "say `semel serve`, and what `--flag` does elsewhere").len(), 0);
    }

    #[test]
    fn variables_are_those_of_the_program() {
        assert_eq!(found("packaging/a", "SEMEL_DRAIN=20"), [""; 0]);
        assert_eq!(
            found("packaging/a", "x\nSEMEL_DRAINS=20"),
            ["packaging/a:2: the program has no variable `SEMEL_DRAINS`"]
        );
    }

    /// If the unit set the store by a flag, a host whose SEMEL_STORE names a database would serve a file of
    /// its own.
    #[test]
    fn no_flag_beats_a_variable() {
        let said = found("packaging/a", "ExecStart=/usr/bin/semel serve --drain 20 --listen 127.0.0.1:8080");
        let what = "`--drain` overrides `SEMEL_DRAIN`, which users set; set the variable instead";
        assert_eq!(said, [format!("packaging/a:1: {what}")]);
        assert_eq!(found("packaging/a", "CMD [\"serve\", \"--drain\", \"20\"]").len(), 1);
        assert_eq!(found("packaging/a", "          args: [serve, --drain=20]").len(), 1);
        assert_eq!(found("packaging/a", "ExecStart=/usr/bin/semel serve --listen x"), [""; 0]);
        assert_eq!(found("packaging/a", "#   semel serve --drain 20"), [""; 0]);
    }

    #[test]
    fn probes_ask_what_is_answered() {
        assert_eq!(found("packaging/a.yaml", "httpGet: {path: /live, port: http}"), [""; 0]);
        assert_eq!(found("packaging/a.yaml", "httpGet: {path: /alive, port: http}").len(), 1);
    }

    #[test]
    fn what_cannot_be_read_is_found() {
        assert_eq!(found("packaging/a.yaml", "a: [1, 2").len(), 1);
        assert_eq!(found("packaging/a.json", "{\"a\": 1,}").len(), 1);
        assert_eq!(found("packaging/a.json", "{\"a\": 1}"), [""; 0]);
    }

    fn shipped(path: &str) -> String {
        std::fs::read_to_string(Workspace::here().root.join("packaging").join(path)).unwrap()
    }

    fn unit() -> String {
        shipped("systemd/semel.service")
    }

    /// The first number after a word, in the lines that are not comments or, where the word is in none of
    /// them, in the comments.
    fn seconds(text: &str, word: &str) -> Option<u32> {
        let (comments, lines): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.trim_start().starts_with('#'));
        let behind = |lines: &[&str]| -> Option<u32> {
            let (_, rest) = lines.iter().find_map(|line| line.split_once(word))?;
            let digits = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
            digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        behind(&lines).or_else(|| behind(&comments))
    }

    /// As the guide says, a supervisor must wait longer before it kills than the drain time plus a
    /// collector's time.
    #[test]
    fn nobody_is_killed_before_the_end() {
        const COLLECTOR: u32 = 10;
        let otlp = Workspace::here().root.join("crates/semel-cli/src/otlp.rs");
        let otlp = std::fs::read_to_string(otlp).unwrap();
        assert_eq!(seconds(&otlp, "const PATIENCE: Duration = Duration::from_secs("), Some(COLLECTOR));
        for (path, word, is_put_off) in [
            ("systemd/semel.service", "TimeoutStopSec=", false),
            ("container/Dockerfile", "--stop-timeout", false),
            ("kubernetes/embedded.yaml", "terminationGracePeriodSeconds:", false),
            ("kubernetes/shared.yaml", "terminationGracePeriodSeconds:", true),
        ] {
            let text = shipped(path);
            let pause = seconds(&text, "sleep: {seconds:");
            assert_eq!(pause.is_some(), is_put_off, "{path}");
            let (drain, killed) = (seconds(&text, "--drain").unwrap(), seconds(&text, word).unwrap());
            let needed = drain + COLLECTOR + pause.unwrap_or(0);
            assert!(killed > needed, "{path}: killed after {killed} s, and may take {needed} s");
        }
    }

    /// A database that starts with the machine may take longer to come up.
    #[test]
    fn the_unit_waits_for_a_database_and_not_for_ever() {
        let unit = unit();
        let seconds = |name: &str| -> u32 {
            unit.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
        };
        let tries = seconds("StartLimitBurst=") * seconds("RestartSec=");
        // More than the interval would mean for ever.
        assert!(tries >= 120 && tries < seconds("StartLimitIntervalSec="), "{tries} s");
    }

    /// systemd checks the unit as it would at a start.
    #[test]
    fn systemd_finds_nothing_wrong_with_the_unit() {
        use std::process::Command;
        let folder = std::env::temp_dir().join(format!("semel-unit-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("semel.service");
        // Neither the program nor its manual pages need be installed here.
        let unit = unit().replace("/usr/bin/semel ", "/bin/sh ").replace("Documentation=", "#");
        std::fs::write(&path, unit).unwrap();
        let output = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("semel.service"), "{said}");
    }
}
