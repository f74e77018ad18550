//! Checks links between the pages of the documentation, and the book's list of pages.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::tree::{File, Tree};

/// The book's list of pages.
const SUMMARY: &str = "docs/SUMMARY.md";
/// The folder of the book's pages.
const BOOK: &str = "docs/";

/// Looks at every page: each link leads to something that exists, each anchor to a heading; the book lists
/// every page.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let pages: BTreeMap<&str, &File> =
        tree.files.iter().filter(|file| file.path.ends_with(".md")).map(|file| (&*file.path, file)).collect();
    let links: Vec<Link<'_>> = pages.values().flat_map(|page| links(page)).collect();
    let broken = links.iter().filter_map(|link| {
        let what = link.problem(tree, &pages)?;
        Some(Finding::error(link.page.at(link.start), what))
    });
    let listed: BTreeSet<String> = links
        .iter()
        .filter(|link| link.page.path == SUMMARY)
        .map(|link| link.path().unwrap_or_default())
        .collect();
    let unlisted = pages.keys().filter(|path| path.starts_with(BOOK) && **path != SUMMARY);
    let unlisted = unlisted
        .filter(|path| !listed.contains(**path))
        .map(|path| Finding::error(*path, format!("is not in {SUMMARY}, so it is missing from the book")));
    broken.chain(unlisted).collect()
}

/// A link of a page.
struct Link<'a> {
    page: &'a File,
    start: usize,
    /// The target as written, without its anchor.
    target: &'a str,
    anchor: Option<&'a str>,
}

impl Link<'_> {
    /// The path of the target from the root; none when it leads out of the workspace.
    fn path(&self) -> Option<String> {
        if self.target.is_empty() {
            return Some(self.page.path.clone());
        }
        let mut folders: Vec<&str> = self.page.path.split('/').collect();
        folders.pop();
        for step in self.target.trim_end_matches('/').split('/') {
            match step {
                "." => {}
                ".." => drop(folders.pop()?),
                name => folders.push(name),
            }
        }
        Some(folders.join("/"))
    }

    fn problem(&self, tree: &Tree, pages: &BTreeMap<&str, &File>) -> Option<String> {
        let Some(path) = self.path() else {
            return Some(format!("`{}` leads outside the repository", self.target));
        };
        let folder = format!("{path}/");
        if !tree.files.iter().any(|file| file.path == path || file.path.starts_with(&folder)) {
            return Some(format!("`{}` leads to {path}, which does not exist", self.target));
        }
        let anchor = self.anchor?;
        let there = anchors(pages.get(&*path)?);
        (!there.contains(anchor)).then(|| format!("{path} has no heading `#{anchor}`"))
    }
}

/// The links of a page to others of the workspace, `[text](target)`, except in code.
fn links(page: &File) -> Vec<Link<'_>> {
    let mut links = Vec::new();
    for (offset, line) in prose(&page.text) {
        for (at, _) in line.match_indices("](") {
            // In code it only shows how a link is written.
            if line[..at].matches('`').count() % 2 == 1 && line[at..].contains('`') {
                continue;
            }
            let start = at + 2;
            let Some(end) = line[start..].find(')') else { continue };
            let whole = &line[start..start + end];
            if whole.contains("://") || whole.starts_with("mailto:") {
                continue;
            }
            let (target, anchor) = match whole.split_once('#') {
                Some((target, anchor)) => (target, Some(anchor)),
                None => (whole, None),
            };
            links.push(Link { page, start: offset + start, target, anchor });
        }
    }
    links
}

/// The lines of a text that are neither fenced nor indented as code, with their offsets.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    let mut offset = 0;
    text.split_inclusive('\n').filter_map(move |line| {
        let start = offset;
        offset += line.len();
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            return None;
        }
        (!is_code && !line.starts_with("    ")).then_some((start, line.trim_end_matches('\n')))
    })
}

/// The anchors of a page's headings, as code hosts generate them.
fn anchors(page: &File) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(&page.text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let anchor = anchor(title.trim());
        let count = counts.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

fn anchor(title: &str) -> String {
    // Only the text of a link is shown.
    let mut text = String::new();
    let mut rest = title;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text.push_str(rest);
    let kept = text.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::{anchor, check};
    use crate::tidy::tree::Tree;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn a_link_leads_to_something_that_is_there() {
        let pages = [
            (
                "README.md",
                "# A\n[b](docs/guide/b.md#the-end) [code](crates) [self](#a) [web](https://x.y/z#q)",
            ),
            ("crates/a/src/lib.rs", ""),
            ("docs/SUMMARY.md", "[b](guide/b.md)"),
            (
                "docs/guide/b.md",
                "## The `end`\n[up](../../README.md#a)\n```\n[no](no.md)\n```\n`[no](no.md)`\n",
            ),
        ];
        assert_eq!(found(&pages), [""; 0]);
    }

    #[test]
    fn what_leads_nowhere_is_found() {
        let pages = [("README.md", "x\n[b](docs/b.md) [c](#c) [d](../d.md)\n# Not c")];
        assert_eq!(
            found(&pages),
            [
                "README.md:2: `docs/b.md` leads to docs/b.md, which does not exist",
                "README.md:2: README.md has no heading `#c`",
                "README.md:2: `../d.md` leads outside the repository",
            ]
        );
    }

    #[test]
    fn a_page_that_the_book_does_not_list_is_found() {
        let pages = [("docs/SUMMARY.md", "[a](guide/a.md)"), ("docs/guide/a.md", ""), ("docs/adr/1.md", "")];
        let found = found(&pages);
        assert!(
            found.len() == 1 && found[0].starts_with("docs/adr/1.md: is not in docs/SUMMARY.md"),
            "{found:?}"
        );
    }

    #[test]
    fn anchors_are_those_of_the_web_pages() {
        assert_eq!(anchor("On `/metrics`, and [others](a.md)"), "on-metrics-and-others");
        assert_eq!(anchor("On PostgreSQL: what it_is"), "on-postgresql-what-it_is");
    }
}
