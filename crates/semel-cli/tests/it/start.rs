//! The guide's quick start over HTTP, each command with the output that the page shows; and the page about
//! workers over HTTP.

use std::process::Command;

use crate::run::{Folder, Ran, Server, without_settings};

const PAGE: &str = include_str!("../../../../docs/guide/start.md");
/// The address of the page's server.
const ADDRESS: &str = "http://127.0.0.1:8080";

/// Commands, and their output.
fn steps() -> Vec<(&'static str, &'static str)> {
    let step = |rest: &'static str| {
        let (commands, rest) = rest.split_once("```\n").unwrap();
        let (printed, _) = rest.strip_prefix("```text\n").unwrap().split_once("```").unwrap();
        (commands, printed)
    };
    PAGE.split("```sh\n").skip(1).map(step).collect()
}

/// Whether a text matches the page's, where `…` stands for anything. The end of the last line does not
/// matter.
fn is_like(text: &str, page: &str) -> bool {
    let parts: Vec<&str> = page.trim_end().split('…').collect();
    let [first, middle @ .., last] = &parts[..] else { return text.trim_end() == page.trim_end() };
    let Some(mut rest) = text.trim_end().strip_prefix(first) else { return false };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Runs commands as a reader would, in the folder of the server.
fn shell(folder: &Folder, commands: &str) -> Ran {
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&path))).unwrap();
    let mut shell = Command::new("sh");
    shell
        .current_dir(folder.path())
        .env("PATH", &path)
        // Printed by curl if a proxy is set.
        .env("no_proxy", "127.0.0.1")
        .args(["-ec", commands]);
    without_settings(&mut shell);
    Ran::of(&mut shell)
}

#[test]
fn start_over_http() {
    let folder = Folder::new();
    let mut steps = steps().into_iter();
    let (serve, ready) = steps.next().unwrap();
    assert_eq!((serve, ready), ("semel serve\n", &*format!("listening on {ADDRESS}\n")));
    let server = Server::start(&folder, &[]);
    assert_eq!(steps.len(), 4);
    for (commands, printed) in steps {
        let ran = shell(&folder, &commands.replace(ADDRESS, &server.url));
        assert_eq!(ran.code, 0, "{commands}{}", ran.err);
        assert!(is_like(&ran.out, printed), "{commands}printed:\n{}the page says:\n{printed}", ran.out);
    }
}

/// Each request succeeds, and the job ends up as the page says.
#[test]
fn workers_over_http() {
    const PAGE: &str = include_str!("../../../../docs/guide/http.md");
    let blocks: Vec<&str> =
        PAGE.split("```sh\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect();
    assert_eq!(blocks.len(), 8);
    let folder = Folder::new();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let curl = "curl() { command curl --fail-with-body \"$@\"; }\n";
    let ran = shell(&folder, &format!("{curl}{}", blocks.concat().replace(ADDRESS, &server.url)));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let mut rest = ran.out.as_str();
    for told in [
        "\"outcome\":\"created\"",
        "\"jobs_extended\":[\"",
        "\"progress\":0.4",
        "\"state\":\"retryable\"",
        "\"state\":\"available\"",
        "\"state\":\"scheduled\"",
        "\"acknowledged\":true",
        "\"state\":\"available\"",
    ] {
        let at = rest.find(told).unwrap_or_else(|| panic!("{told} does not come next in {rest}"));
        rest = &rest[at + told.len()..];
    }
}

#[test]
fn the_page_is_compared_word_for_word() {
    assert!(is_like("a 1 b\n", "a … b\n") && is_like("a\nb\n", "a\n…\n") && is_like("a\n", "a\n"));
    assert!(is_like("{a}}", "{…}") && is_like("a 1 b 2 c", "a … b … c"));
    assert!(!is_like("a 1 c\n", "a … b\n") && !is_like("a\nb\n", "a\n") && !is_like("b\n", "a\n"));
    assert!(!is_like("a 1 b", "a … c … b"));
}

/// The three commands at the top of the README: admitted, refused as its duplicate, explained.
#[test]
fn what_the_readme_shows_first() {
    let readme = include_str!("../../../../README.md");
    let commands: Vec<&str> = readme.lines().filter_map(|line| line.strip_prefix("    $ ")).collect();
    let folder = Folder::new();
    let run = |command: &str| {
        let words = command.strip_prefix("semel ").unwrap().split('\'');
        // Every other piece is a quoted word; the rest is split at spaces.
        let words: Vec<&str> = words
            .enumerate()
            .flat_map(
                |(at, piece)| if at % 2 == 1 { vec![piece] } else { piece.split_whitespace().collect() },
            )
            .collect();
        folder.run(&words)
    };
    let [first, second, third] = commands[..] else { panic!("{commands:?}") };
    assert_eq!(run(first).code, 0);
    let refused = run(second);
    assert!(refused.code == 3 && refused.err.contains("duplicate (409)"), "{}", refused.err);
    let explained = run(third).out;
    let told = [
        "hashed text      {\"args\":{\"order\":7},\"type\":\"payment.capture\"}",
        "HOLDER",
        "blocks until it ends",
    ];
    assert!(told.iter().all(|told| explained.contains(told)), "{explained}");
}
