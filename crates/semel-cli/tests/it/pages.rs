//! Every block of the pages: shell commands are executed, in the page's order, beside a server; for any other
//! block, a row says which test covers it.
//!
//! A new block fails until it runs, or is named in [`ELSEWHERE`] with where it is tried. A row there covers
//! every block that begins so: it is as short as a fence if the test it names reads all blocks of that kind,
//! or says which. A row whose block is no longer on the page fails, too.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::run::{Folder, Ran, Server, without_settings};

/// The pages' server.
const ADDRESS: &str = "http://127.0.0.1:8080";
/// The pages' ids.
const IDS: [&str; 2] = ["019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f", "tok_4f1c22ab90"];

/// The blocks not executed here: the page, how the block begins, and where it is tried or why it cannot be.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("README.md", "$ semel ", "start.rs"),
    ("README.md", "cargo run --release -- demo", "demo.rs runs `semel demo`"),
    ("README.md", "cargo xtask test", "it is what runs this"),
    ("README.md", "semel serve --store", "run.rs starts every server so, on a port of its own"),
    ("README.md", "let semel", "semel/tests/it/pages.rs"),
    (
        "docs/guide/benchmarks.md",
        "semel bench",
        "by hand: it measures for minutes; verbs.rs, postgres.rs and redis.rs run short ones",
    ),
    (
        "docs/guide/benchmarks.md",
        "cargo xtask bench peers",
        "by hand: an hour; xtask reads its flags in tests",
    ),
    (
        "docs/guide/benchmarks.md",
        "cargo xtask bench scaling",
        "by hand: a quarter of an hour; xtask reads its flags in tests",
    ),
    ("docs/guide/benchmarks.md", "ONLY=empty", "by hand: it measures a release build"),
    ("docs/guide/benchmarks.md", "perf record", "by hand: it needs perf and inferno"),
    ("docs/guide/benchmarks.md", "perf script", "by hand: it needs perf and inferno"),
    ("docs/guide/events.md", "semel events --follow", "verbs.rs, with an end: it has none"),
    ("docs/guide/events.md", "semel webhooks test", "operators.rs: example.com is not ours to ask"),
    ("docs/guide/http.md", "```sh\n", "start.rs, all of them in one shell"),
    (
        "docs/guide/install.md",
        "cargo xtask package",
        "by hand: a release build; xtask/src/package.rs has its own tests",
    ),
    (
        "docs/guide/install.md",
        "SEMEL_TOKEN=$(cat admin-token) docker exec",
        "by hand: no container is started in tests",
    ),
    ("docs/guide/install.md", "kubectl -n semel port-forward", "by hand: no cluster is there in tests"),
    ("docs/guide/install.md", "SEMEL_TOKEN=$(cat admin-token) semel queues", "token.rs asks so"),
    ("docs/guide/keys.md", "key = SHA-256", "no program; semel-core/tests/it/page.rs has the page's keys"),
    ("docs/guide/keys.md", "```json\n", "semel-core/tests/it/page.rs"),
    ("docs/guide/keys.md", "```text\n", "semel-core/tests/it/page.rs: one for each of those"),
    ("docs/guide/keys.md", "```python\nimport hashlib", "semel-core/tests/it/page.rs"),
    ("docs/guide/keys.md", "```js\nimport { createHash }", "semel-core/tests/it/page.rs"),
    ("docs/guide/library.md", "```rust\n", "semel/tests/it/pages.rs"),
    ("docs/guide/library.md", "```sql\nUPDATE profile", "semel/tests/it/pages.rs, against an example"),
    (
        "docs/guide/library.md",
        "```toml\n[dependencies]\nsemel = ",
        "no program; the features are those of semel/Cargo.toml",
    ),
    (
        "docs/guide/network.md",
        "semel serve --listen 0.0.0.0",
        "tls.rs and token.rs, with certificates of their own",
    ),
    ("docs/guide/network.md", "pkill -HUP", "token.rs"),
    ("docs/guide/operating.md", "```toml\n[retention]", "retention.rs"),
    ("docs/guide/operating.md", "semel copy", "copies.rs, from and to stores of the test's"),
    ("docs/guide/operating.md", "semel serve --sample-policies", "doctor.rs, on a server of the test's"),
    ("docs/guide/postgresql.md", "semel serve", "postgres.rs, on a database of the test's"),
    ("docs/guide/postgresql.md", "SEMEL_STORE=", "postgres.rs"),
    ("docs/guide/postgresql.md", "semel migrate", "postgres.rs"),
    ("docs/guide/postgresql.md", "DATABASE_URL=", "examples/tests"),
    ("docs/guide/postgresql.md", "```rust\n", "semel/tests/it/pages.rs"),
    ("docs/guide/postgresql.md", "```sql\nBEGIN;", "semel/tests/it/pages.rs, against examples/outbox"),
    (
        "docs/guide/postgresql.md",
        "```python\nwith psycopg",
        "semel/tests/it/pages.rs, against examples/outbox",
    ),
    (
        "docs/guide/postgresql.md",
        "```js\nawait db.query(",
        "semel/tests/it/pages.rs, against examples/outbox",
    ),
    ("docs/guide/recipes.md", "```json\n", "semel-server/tests/it/recipes.rs: the first of each recipe"),
    ("docs/guide/redis.md", "semel serve --store redis://", "redis.rs, on a Redis of the test's"),
    ("docs/guide/redis.md", "semel doctor --store redis://", "redis.rs, on a Redis of the test's"),
    (
        "docs/guide/redis.md",
        "semel serve --store redis+cluster://",
        "semel-redis/tests/it/cluster.rs, without the program",
    ),
    (
        "docs/guide/redis.md",
        "semel serve --store \"redis+sentinel://",
        "semel-redis/tests/it/sentinels.rs, without the program",
    ),
    ("docs/guide/redis.md", "SEMEL_STORE=", "demo.rs and postgres.rs name a store so"),
    (
        "docs/guide/reliability.md",
        "cargo xtask",
        "by hand: each is a run of hours, or what runs this; xtask reads their flags in tests",
    ),
    ("docs/guide/reliability.md", "semel demo", "demo.rs"),
    (
        "docs/guide/reliability.md",
        "cargo run --release -p semel-server",
        "by hand: it measures a release build",
    ),
    ("docs/guide/security.md", "cargo run --release -p semel-server", "by hand: it measures a release build"),
    ("docs/guide/security.md", "```sql\nCREATE ROLE semel_owner", "least.rs"),
    ("docs/guide/security.md", "```sql\nGRANT USAGE ON SCHEMA semel TO shop", "least.rs"),
    ("docs/guide/security.md", "semel migrate", "least.rs"),
    ("docs/guide/security.md", "ACL SETUSER", "least.rs"),
    ("docs/guide/start.md", "semel demo", "demo.rs"),
    ("docs/guide/start.md", "```sh\n", "start.rs"),
    ("docs/guide/start.md", "```text\n", "start.rs: one for each of those"),
    (
        "docs/guide/start.md",
        "```toml\n[dependencies]\nsemel = ",
        "no program; semel/tests/it/start.rs has the line of semel",
    ),
    ("docs/guide/start.md", "```rust\n//! The quick start", "semel/tests/it/start.rs"),
    ("docs/guide/templates.md", "```yaml\nnamespace: mail", "templates.rs: it is the only one"),
    ("docs/guide/templates.md", "semel serve --templates", "templates.rs; the server here is started so"),
];

/// A block: its first line's number, and its text without indent; a fenced one includes its first fence.
struct Block {
    line: usize,
    is_fenced: bool,
    text: String,
}

/// The blocks of a page.
fn blocks(page: &str) -> Vec<Block> {
    let lines: Vec<&str> = page.lines().collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < lines.len() {
        let begin = at;
        let is_blank = |line: &&str| line.trim().is_empty();
        if lines[at].starts_with("```") {
            at += 1;
            while !lines[at].starts_with("```") {
                at += 1;
            }
            found.push(Block { line: begin + 1, is_fenced: true, text: lines[begin..at].join("\n") });
        } else if lines[at].starts_with("    ") && (at == 0 || is_blank(&lines[at - 1])) {
            while at < lines.len() && lines[at].starts_with("    ") {
                at += 1;
            }
            let text = lines[begin..at].iter().map(|line| format!("{}\n", &line[4..])).collect();
            found.push(Block { line: begin + 1, is_fenced: false, text });
        }
        at += 1;
    }
    found
}

/// The commands of a block: a line, with the lines that continue it inside quotes or after a backslash.
fn commands(block: &str) -> Vec<String> {
    let (mut all, mut open) = (Vec::<String>::new(), false);
    for line in block.lines() {
        let before = match all.last_mut() {
            Some(before) if open => before,
            _ => {
                all.push(String::new());
                all.last_mut().unwrap()
            }
        };
        before.push_str(line);
        before.push('\n');
        open = before.matches('\'').count() % 2 == 1 || line.ends_with('\\');
    }
    all
}

/// Whether a block is tried elsewhere; records the row that says so.
fn is_elsewhere(page: &str, text: &str, met: &mut BTreeSet<usize>) -> bool {
    let found = ELSEWHERE.iter().position(|(of, begin, _)| *of == page && text.starts_with(begin));
    found.map(|row| met.insert(row)).is_some()
}

/// The pages and their texts.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut names = vec!["README.md".to_owned()];
    let guide = std::fs::read_dir(root.join("docs/guide")).unwrap();
    let files = guide.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // Pages in subfolders were written by a program.
    names.extend(files.filter(|name| name.ends_with(".md")).map(|name| format!("docs/guide/{name}")));
    names.sort();
    names.into_iter().map(|name| (name.clone(), std::fs::read_to_string(root.join(name)).unwrap())).collect()
}

/// Runs one command of a page as its reader would, in the folder of the server.
fn run(folder: &Folder, server: &Server, command: &str) -> Ran {
    let programs = Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&path))).unwrap();
    // The pager is left out, and curl fails on an HTTP error.
    let command = command.replace(ADDRESS, &server.url).replace(" | man -l -", "");
    let script = format!("curl() {{ command curl -sS --fail-with-body \"$@\"; }}\n{command}");
    let mut shell = Command::new("sh");
    let home = folder.path().join("home");
    std::fs::create_dir_all(home.join(".local/share/bash-completion/completions")).unwrap();
    shell.current_dir(folder.path()).env("PATH", &path).env("HOME", home).env("no_proxy", "127.0.0.1");
    shell.args(["-ec", &script]);
    without_settings(&mut shell);
    Ran::of(&mut shell)
}

/// The id for a command of the page, created by the commands before it.
fn id_for(folder: &Folder, command: &str) -> Option<String> {
    let first = |words: &[&str], pointers: [&str; 2]| {
        let told = folder.json(words);
        let found = pointers.iter().find_map(|pointer| told.pointer(pointer).and_then(Value::as_str));
        found.unwrap_or_else(|| panic!("{words:?} names none: {told}")).to_owned()
    };
    let noun = command.split_whitespace().nth(1)?;
    Some(match noun {
        "workflows" => first(&["workflows"], ["/workflows/0/id", "/0/id"]),
        "tasks" => first(&["tasks"], ["/tasks/0/task_uuid", "/0/task_uuid"]),
        "token" => first(&["token", "list", "--tokens", "tokens.toml"], ["/tokens/0/id", "/0/id"]),
        _ => return None,
    })
}

#[test]
fn every_block_is_tried() {
    let mut met = BTreeSet::new();
    let (mut ran, mut wrong) = (0, Vec::new());
    for (page, text) in pages() {
        let folder = Folder::new();
        std::fs::create_dir_all(folder.path().join("templates")).unwrap();
        let mut server = None;
        for block in blocks(&text) {
            let at = format!("{page}:{}", block.line);
            // Rust without a fence.
            if block.is_fenced || block.text.starts_with("let ") {
                if !is_elsewhere(&page, &block.text, &mut met) {
                    wrong.push(format!("{at}: no test has this block"));
                }
                continue;
            }
            // A file, named by the comment that it begins with.
            if let Some(name) = block.text.lines().next().and_then(|line| line.strip_prefix("# "))
                && name.starts_with("templates/")
            {
                let path = folder.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, &block.text).unwrap();
                continue;
            }
            for command in commands(&block.text) {
                // An answer, not a command.
                if command.starts_with("{\"task_uuid\"") || is_elsewhere(&page, &command, &mut met) {
                    continue;
                }
                let server =
                    server.get_or_insert_with(|| Server::start(&folder, &["--templates", "templates"]));
                let command = as_command(&command);
                let command = match IDS.iter().find(|id| command.contains(**id)) {
                    Some(id) => match id_for(&folder, &command) {
                        Some(own) => command.replace(id, &own),
                        None => command,
                    },
                    None => command,
                };
                let told = run(&folder, server, &command);
                ran += 1;
                if told.code != 0 {
                    wrong.push(format!("{at}: {command}ends with {}\n{}{}", told.code, told.out, told.err));
                }
            }
        }
        if let Some(server) = server {
            server.stop();
        }
    }
    for (row, (page, begin, _)) in ELSEWHERE.iter().enumerate() {
        if !met.contains(&row) {
            wrong.push(format!("{page} has no block any more that begins with {begin:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(ran > 25, "{ran} commands were executed");
}

/// The command for a request that a page abbreviates.
fn as_command(text: &str) -> String {
    let body = text.trim_end().replace("[...]", "[]");
    let curl = |method: &str, path: &str, body: &str| {
        let beat = format!(
            "curl {ADDRESS}/ojs/v1/workers/fetch -H 'content-type: application/json' -d '{{\"queues\":[\"none\"],\"worker_id\":\"ID\"}}' > taken.json\n"
        );
        let before = if path.contains("/workers/") { beat } else { String::new() };
        format!("{before}curl -X {method} {ADDRESS}{path} -H 'content-type: application/json' -d '{body}'\n")
    };
    if let Some((path, body)) = body.strip_prefix("PUT ").and_then(|rest| rest.split_once(' ')) {
        curl("PUT", path, body.trim())
    } else if body.starts_with('{') {
        curl("POST", "/ojs/v1/jobs", &body)
    } else {
        text.to_owned()
    }
}

#[test]
fn commands_are_read_as_a_shell_does() {
    assert_eq!(commands("a 'b\nc' d\ne \\\n f\ng\n"), ["a 'b\nc' d\n", "e \\\n f\n", "g\n"]);
    let page = "a\n\n    b\n    c\nd\n    not one\n\n```sh\ne\n```\n";
    let found: Vec<_> =
        blocks(page).into_iter().map(|block| (block.line, block.is_fenced, block.text)).collect();
    assert_eq!(found, [(3, false, "b\nc\n".to_owned()), (8, true, "```sh\ne".to_owned())]);
}
