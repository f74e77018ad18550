//! Finds what was meant to be temporary, and paths that exist on one machine only.

use super::Finding;
use super::code::{is_word, words};
use super::tree::{File, Tree};

/// Words for reminders, in any text. Split in two, or this file would be a finding itself.
const REMINDERS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
/// Markers of code that is missing or not run.
const UNDONE: &[&str] = &["todo!", "unimplemented!", "#[ignore"];
/// Folders that exist on one machine only.
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/", "work/"), concat!("/", "tmp/"), concat!("/", "root/"), concat!("/", "home/")];

/// Looks at every text file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.files
        .iter()
        .flat_map(|file| reminders(file).chain(undone(file)).chain(machine_paths(file)))
        .collect()
}

fn reminders(file: &File) -> impl Iterator<Item = Finding> + '_ {
    REMINDERS.iter().flat_map(move |word| {
        words(&file.text, word)
            .map(move |start| Finding::error(file.at(start), format!("`{word}`: do it, or open an issue")))
    })
}

fn undone(file: &File) -> impl Iterator<Item = Finding> + '_ {
    let code = if file.is_rust() { file.code_with_tests().tokens } else { String::new() };
    let found = |mark: &'static str| {
        let starts = code.match_indices(mark).map(|(start, _)| start);
        let whole = starts.filter(|start| !code[..*start].ends_with(is_word));
        whole.map(move |start| Finding::error(file.at(start), format!("`{mark}`: finish it, or remove it")))
    };
    UNDONE.iter().copied().flat_map(found).collect::<Vec<_>>().into_iter()
}

fn machine_paths(file: &File) -> impl Iterator<Item = Finding> + '_ {
    MACHINE_FOLDERS.iter().flat_map(move |folder| {
        // Inside a longer path it is an ordinary folder name.
        let is_inside = |before: &str| before.ends_with(|c: char| is_word(c) || ".-~*}>)".contains(c));
        let found =
            file.text.match_indices(folder).filter(move |(start, _)| !is_inside(&file.text[..*start]));
        found.map(move |(start, _)| {
            Finding::error(file.at(start), format!("`{folder}…` is a path on one machine: make it relative"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{MACHINE_FOLDERS, REMINDERS, check};
    use crate::tidy::tree::Tree;

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn reminders_are_found_in_any_text() {
        for word in REMINDERS {
            assert_eq!(count("README.md", &format!("a\n{word}: write this")), 1, "{word}");
            assert_eq!(count("a.rs", &format!("// {word}(somebody)")), 1, "{word}");
            assert_eq!(count("a.rs", &format!("fn a{word}b() {{}}")), 0, "{word}");
        }
    }

    #[test]
    fn code_that_is_not_there_or_not_run_is_found() {
        assert_eq!(count("a.rs", "fn a() { todo!() }"), 1);
        assert_eq!(count("a.rs", "#[cfg(test)]\nmod tests {\n    #[ignore = \"slow\"]\n    fn a() {}\n}"), 1);
        assert_eq!(count("crates/a/tests/it/main.rs", "fn a() { unimplemented!(\"b\") }"), 1);
        assert_eq!(count("a.rs", "// todo! is not allowed\nlet a = \"#[ignore]\"; mytodo!()"), 0);
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        for folder in MACHINE_FOLDERS {
            assert_eq!(count("docs/a.md", &format!("run `{folder}b`")), 1, "{folder}");
            assert_eq!(count("a.rs", &format!("let a = \"sqlite:{folder}b.db\";")), 1, "{folder}");
            assert_eq!(count("a.toml", &format!("path = \"..{folder}b\"")), 0, "{folder}");
            assert_eq!(count("a.md", &format!("src{folder}b")), 0, "{folder}");
        }
    }

    #[test]
    fn a_finding_says_where() {
        let found = check(&Tree::of(&[("a.rs", "\n\ntodo!()")]));
        assert_eq!(found[0].place, "a.rs:3");
    }
}
