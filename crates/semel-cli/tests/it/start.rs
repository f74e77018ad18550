//! The quick start of the guide over HTTP: each command of the page, and what it says is printed then.

use std::process::Command;

use crate::run::{Folder, Ran, Server};

const PAGE: &str = include_str!("../../../../docs/guide/start.md");
/// Where the page's server listens.
const ADDRESS: &str = "http://127.0.0.1:8080";

/// Commands, and what they print.
fn steps() -> Vec<(&'static str, &'static str)> {
    let step = |rest: &'static str| {
        let (commands, rest) = rest.split_once("```\n").unwrap();
        let (printed, _) = rest.strip_prefix("```text\n").unwrap().split_once("```").unwrap();
        (commands, printed)
    };
    PAGE.split("```sh\n").skip(1).map(step).collect()
}

/// Whether a text is as the page has it; `…` there stands for anything. The end of the last line counts for nothing.
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

#[test]
fn start_over_http() {
    let folder = Folder::new();
    let mut steps = steps().into_iter();
    let (serve, ready) = steps.next().unwrap();
    assert_eq!((serve, ready), ("semel serve\n", &*format!("listening on {ADDRESS}\n")));
    let server = Server::start(&folder, &[]);
    assert_eq!(steps.len(), 4);
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&path))).unwrap();
    for (commands, printed) in steps {
        let mut shell = Command::new("sh");
        shell
            .current_dir(folder.path())
            .env("PATH", &path)
            .args(["-ec", &commands.replace(ADDRESS, &server.url)]);
        let ran = Ran::of(&mut shell);
        assert_eq!(ran.code, 0, "{commands}{}", ran.err);
        assert!(is_like(&ran.out, printed), "{commands}printed:\n{}the page says:\n{printed}", ran.out);
    }
}

#[test]
fn the_page_is_compared_word_for_word() {
    assert!(is_like("a 1 b\n", "a … b\n") && is_like("a\nb\n", "a\n…\n") && is_like("a\n", "a\n"));
    assert!(is_like("{a}}", "{…}") && is_like("a 1 b 2 c", "a … b … c"));
    assert!(!is_like("a 1 c\n", "a … b\n") && !is_like("a\nb\n", "a\n") && !is_like("b\n", "a\n"));
    assert!(!is_like("a 1 b", "a … c … b"));
}
