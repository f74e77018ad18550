//! The public API of the library, as a file in the repository, so that reviews show changes to it.
//!
//! It is read from the pages that `cargo doc` writes, because rustdoc's JSON needs a nightly compiler. A new
//! compiler may word a declaration differently; `cargo xtask golden` accepts that too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::tidy::graph::packages;
use crate::workspace::Workspace;

/// The library's package, which is also its folder under `crates`.
pub const PACKAGE: &str = "semel";
/// The file with its API, one declaration a line, beside its `Cargo.toml`.
const GOLDEN: &str = "crates/semel/api.txt";
/// Prefixes of the file names of item pages; the folder gives the module.
const KINDS: [&str; 9] =
    ["struct.", "enum.", "trait.", "fn.", "macro.", "derive.", "attr.", "type.", "constant."];

/// The variable with rustdoc's flags, and its value.
pub const FLAGS: (&str, &str) = ("RUSTDOCFLAGS", "-D warnings");

/// The cargo arguments that build the pages: of the whole workspace at once, the library with all its
/// features, so that one build serves the docs check and this one.
pub fn documented(metadata: &Value) -> Vec<String> {
    let features: Vec<String> =
        features_of(metadata, PACKAGE).map(|feature| format!("{PACKAGE}/{feature}")).collect();
    ["doc", "--no-deps", "--workspace", "--features", &features.join(",")].map(str::to_owned).to_vec()
}

/// The features of a package, except its default ones.
pub fn features_of<'a>(metadata: &'a Value, package: &str) -> impl Iterator<Item = &'a str> {
    let package = packages(metadata).iter().find(|known| known["name"] == package);
    let features = package.and_then(|package| package["features"].as_object()).into_iter().flatten();
    features.map(|(name, _)| name.as_str()).filter(|name| *name != "default")
}

/// Compares the API with the file in the repository.
///
/// # Errors
/// What differs, or why it cannot be read.
pub fn check(workspace: &Workspace) -> Result<(), String> {
    let now = read(workspace)?;
    let before = std::fs::read_to_string(workspace.root.join(GOLDEN)).unwrap_or_default();
    let differences = differences(&before, &now);
    if differences.is_empty() {
        return Ok(());
    }
    Err(format!("the public API of {PACKAGE} differs from {GOLDEN}:\n{}", differences.join("\n")))
}

/// Rewrites the file.
///
/// # Errors
/// Why the API cannot be read or the file written.
pub fn write(workspace: &Workspace) -> Result<(), String> {
    let text = read(workspace)?;
    std::fs::write(workspace.root.join(GOLDEN), text).map_err(|error| format!("{GOLDEN}: {error}"))
}

fn read(workspace: &Workspace) -> Result<String, String> {
    let metadata = workspace.metadata()?;
    let output = workspace
        .cargo()
        .args(documented(&metadata))
        .env(FLAGS.0, FLAGS.1)
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("`cargo doc` failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    let target = metadata["target_directory"].as_str().ok_or("cargo names no target directory")?;
    let root = Path::new(target).join("doc").join(PACKAGE);
    // Pages of removed items stay until a clean build: the list of all items is of this run.
    let all = std::fs::read_to_string(root.join("all.html")).map_err(|error| error.to_string())?;
    let mut items = BTreeMap::new();
    for page in pages(&all) {
        let path = root.join(&page);
        let html = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        items.insert(name_of(&page), declarations(&html));
    }
    if items.is_empty() {
        return Err(format!("{} lists no items; has rustdoc changed its pages?", root.display()));
    }
    let mut text = String::new();
    for (name, declarations) in items {
        text.push_str(&format!("{name}\n"));
        for declaration in declarations {
            text.push_str(&format!("    {declaration}\n"));
        }
    }
    Ok(text)
}

/// The pages of items to which the list of all items links.
fn pages(all: &str) -> Vec<String> {
    let links = all.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let is_item = |link: &&str| {
        let file = link.rsplit('/').next().unwrap_or_default();
        !link.contains("..") && !link.contains(':') && KINDS.iter().any(|kind| file.starts_with(kind))
    };
    links.filter(is_item).map(str::to_owned).collect()
}

/// The path of a page's item: `testing/struct.Ran.html` is `semel::testing::Ran`.
fn name_of(page: &str) -> String {
    let path = PathBuf::from(page);
    let folders = path.parent().into_iter().flat_map(Path::components);
    let mut parts = vec![PACKAGE.to_owned()];
    parts.extend(folders.map(|part| part.as_os_str().to_string_lossy().into_owned()));
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let mut words = file.split('.');
    let kind = words.next().unwrap_or_default();
    parts.push(words.next().unwrap_or_default().to_owned());
    format!("{kind} {}", parts.join("::"))
}

/// The declarations on an item's page: the item itself, its own methods, the traits that it implements.
/// Implicit ones (auto traits, blanket implementations) come after these on the page, and so do a trait's
/// implementors.
fn declarations(html: &str) -> Vec<String> {
    let ends = [
        "id=\"synthetic-implementations\"",
        "id=\"blanket-implementations\"",
        "id=\"implementors\"",
        "id=\"foreign-impls\"",
    ];
    let end = ends.iter().filter_map(|end| html.find(end)).min().unwrap_or(html.len());
    let page = html.get(..end).unwrap_or(html);
    let mut found: Vec<String> = between(page, "item-decl\"><code>", "</code></pre>").map(text).collect();
    for section in page.split("<section id=\"").skip(1) {
        let Some((id, rest)) = section.split_once('"') else { continue };
        // Skips methods that come from a trait, and a trait's own, which its declaration has.
        if rest.get(..80).unwrap_or(rest).contains("trait-impl") || id.contains("tymethod.") {
            continue;
        }
        let Some(header) = between(rest, "class=\"code-header\">", "</h").next().map(text) else { continue };
        let is_own_impl = header.starts_with("impl") && !header.contains(" for ");
        if !is_own_impl && !found.contains(&header) {
            found.push(header);
        }
    }
    found
}

fn between<'a>(text: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).filter_map(move |rest| rest.split(end).next())
}

/// The plain text of a piece of HTML, on one line.
fn text(html: &str) -> String {
    let mut plain = String::with_capacity(html.len());
    let mut is_tag = false;
    for letter in html.chars() {
        match letter {
            '<' => is_tag = true,
            '>' if is_tag => is_tag = false,
            _ if is_tag => {}
            _ => plain.push(letter),
        }
    }
    let plain = plain.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&#39;", "'");
    let plain = plain.replace("&nbsp;", " ").replace("&amp;", "&").replace('\u{a0}', " ");
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The lines that only one of the texts has, each after its item.
fn differences(before: &str, now: &str) -> Vec<String> {
    let lines = |text: &str| -> Vec<String> {
        let mut item = "";
        let mut lines = Vec::new();
        for line in text.lines() {
            if !line.starts_with(' ') {
                item = line;
            }
            lines.push(format!("{item} | {}", line.trim()));
        }
        lines
    };
    let (before, now) = (lines(before), lines(now));
    let gone = before.iter().filter(|line| !now.contains(line)).map(|line| format!("- {line}"));
    let new = now.iter().filter(|line| !before.contains(line)).map(|line| format!("+ {line}"));
    gone.chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::{declarations, differences, name_of, pages};

    const PAGE: &str = r##"<pre class="rust item-decl"><code>pub struct <a href="#">Handle</a>&lt;T&gt; { <span class="comment">/* private fields */</span> }</code></pre>
        <section id="impl-Handle" class="impl"><h3 class="code-header">impl&lt;T&gt; Handle&lt;T&gt;</h3></section>
        <section id="method.id" class="method"><a class="src">Source</a><h4 class="code-header">pub const fn <a>id</a>(&amp;self) -&gt; <a>JobId</a></h4></section>
        <section id="impl-Clone-for-Handle" class="impl"><h3 class="code-header">impl Clone for Handle</h3></section>
        <section id="method.clone" class="method trait-impl"><h4 class="code-header">fn clone(&amp;self) -&gt; Handle</h4></section>
        <h2 id="synthetic-implementations"></h2>
        <section id="impl-Send-for-Handle" class="impl"><h3 class="code-header">impl Send for Handle</h3></section>"##;

    #[test]
    fn a_page_is_what_its_item_says_of_itself() {
        assert_eq!(
            declarations(PAGE),
            [
                "pub struct Handle<T> { /* private fields */ }",
                "pub const fn id(&self) -> JobId",
                "impl Clone for Handle"
            ]
        );
    }

    #[test]
    fn items_are_found_by_the_list_of_all() {
        let all = r#"<a href="struct.Semel.html">Semel</a><a href="testing/struct.Ran.html"></a><a href="../x/struct.No.html">
            <a href="index.html"><a href="https://a/struct.No.html">"#;
        assert_eq!(pages(all), ["struct.Semel.html", "testing/struct.Ran.html"]);
        assert_eq!(name_of("testing/struct.Ran.html"), "struct semel::testing::Ran");
    }

    #[test]
    fn what_differs_is_told_with_its_item() {
        let before = "struct semel::A\n    pub fn a()\nstruct semel::B\n    pub fn a()\n";
        let now = "struct semel::A\n    pub fn a()\nstruct semel::B\n    pub fn b()\n";
        assert_eq!(
            differences(before, now),
            ["- struct semel::B | pub fn a()", "+ struct semel::B | pub fn b()"]
        );
        assert!(differences(now, now).is_empty());
    }
}
