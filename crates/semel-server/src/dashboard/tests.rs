//! Tests of the dashboard's files: all are served, small, and ask for nothing outside this server.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use http_body_util::BodyExt as _;
use semel_engine::Engine;
use semel_store::memory::Memory;
use tower_service::Service as _;

use super::*;
use crate::Config;
use crate::auth::Tokens;

/// Bound on all files together, in bytes.
const BYTES_MAX: usize = 300_000;

/// The whole server, with tokens that no request here has: the files need none.
fn server() -> Router {
    let engine = Engine::start(Arc::new(Memory::default())).unwrap();
    crate::router(engine, Config { tokens: Tokens::new(["nobody-knows-this-one"]), ..Config::default() })
}

async fn ask(
    router: &mut Router,
    path: &str,
    known: Option<&HeaderValue>,
) -> (StatusCode, HeaderMap, String) {
    let mut request = Request::builder().uri(path);
    if let Some(tag) = known {
        request = request.header(IF_NONE_MATCH, tag);
    }
    let (parts, body) = router.call(request.body(Body::empty()).unwrap()).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status, parts.headers, String::from_utf8(body.to_vec()).unwrap())
}

/// The texts between each `before` and the next `after`.
fn between<'a>(text: &'a str, before: &'a str, after: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).filter_map(move |rest| rest.split_once(after)).map(|(found, _)| found)
}

fn scripts() -> impl Iterator<Item = &'static File> {
    FILES.iter().filter(|file| file.media == SCRIPT)
}

#[tokio::test]
async fn every_file_is_served_with_its_policy() {
    let mut server = server();
    let server = &mut server;
    for (file, _) in SERVED.iter() {
        let (status, headers, body) = ask(server, file.path, None).await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, file.text), "{}", file.path);
        assert_eq!(headers[CONTENT_TYPE], file.media, "{}", file.path);
        assert_eq!(headers[CONTENT_SECURITY_POLICY], POLICY, "{}", file.path);
        assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff", "{}", file.path);
        assert_eq!(headers[CACHE_CONTROL], "no-cache", "{}", file.path);

        let (status, again, body) = ask(server, file.path, Some(&headers[ETAG])).await;
        assert_eq!((status, body.as_str()), (StatusCode::NOT_MODIFIED, ""), "{}", file.path);
        assert_eq!(again[ETAG], headers[ETAG]);
        assert_eq!(again[CONTENT_SECURITY_POLICY], POLICY, "{}", file.path);
    }
    let (status, ..) = ask(server, "/", Some(&HeaderValue::from_static("\"another\""))).await;
    assert_eq!(status, StatusCode::OK);
    let (status, ..) = ask(server, "/dashboard/none.js", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    // The page's own requests do need a token.
    let (status, ..) = ask(server, "/ojs/v1/jobs", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}

#[test]
fn the_policy_allows_nothing_from_elsewhere() {
    let rules: BTreeSet<&str> = POLICY.split("; ").collect();
    for rule in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ] {
        assert!(rules.contains(rule), "{rule}");
    }
    assert_eq!(rules.len(), 8);
}

#[test]
fn all_together_are_small_and_each_has_its_own_tag() {
    let bytes: usize = FILES.iter().map(|file| file.text.len()).sum();
    assert!(bytes < BYTES_MAX, "{bytes} bytes");
    let tags: BTreeSet<&[u8]> = SERVED.iter().map(|(_, tag)| tag.as_bytes()).collect();
    assert_eq!(tags.len(), FILES.len() + 1);
    for file in scripts() {
        let lines = file.text.lines().count();
        assert!(lines <= 400, "{}: {lines} lines; look for its second noun", file.path);
    }
}

#[test]
fn the_table_has_every_file_of_the_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard/files");
    let stored: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| if name == "index.html" { "/".to_owned() } else { format!("/dashboard/{name}") })
        .collect();
    assert_eq!(stored, FILES.iter().map(|file| file.path.to_owned()).collect());
}

#[test]
fn the_page_names_own_files_only() {
    let page = FILES[0].text;
    let names: Vec<&str> = ["src=\"", "href=\""].iter().flat_map(|name| between(page, name, "\"")).collect();
    assert!(names.contains(&"./dashboard/main.js") && names.contains(&"./dashboard/style.css"), "{names:?}");
    for name in names {
        // Names are relative to the page, because a program may have mounted it anywhere.
        let is_own = FILES.iter().any(|file| name.strip_prefix('.') == Some(file.path));
        assert!(is_own || name.starts_with("data:image/") || name.starts_with('#'), "{name}");
    }
    // The policy blocks both, so the page must not rely on them.
    assert!(!page.contains(" style=") && !page.contains(" on"), "style or script in the page");
    assert!(between(page, "<script", "</script>").all(|tag| tag.ends_with('>')), "a script in the page");
}

/// The page must be readable without JavaScript and without a token.
#[test]
fn the_page_of_errors_is_text_alone() {
    let page: &str = &errors::PAGE;
    assert!(!page.contains("<script") && !page.contains(" style="), "{page}");
    let names: Vec<&str> = ["src=\"", "href=\""].iter().flat_map(|name| between(page, name, "\"")).collect();
    assert_eq!(names, ["data:,", "../dashboard/style.css"]);
}

/// A relative name, resolved against this path.
fn below(at: &str, name: &str) -> String {
    let folder = at.rsplit_once('/').map_or("", |(folder, _)| folder);
    let name = name.strip_prefix("./").unwrap_or_else(|| panic!("{at} names {name}"));
    format!("{folder}/{name}")
}

#[tokio::test]
async fn every_file_is_found_from_the_page_wherever_it_is_mounted() {
    let mounted = [
        ("/", server()),
        ("/jobs", Router::new().nest("/jobs", server())),
        ("/jobs/", Router::new().nest("/jobs/", server())),
        ("/jobs", Router::new().nest_service("/jobs", server())),
        ("/jobs/", Router::new().nest_service("/jobs", server())),
        ("/own/jobs", Router::new().nest("/own", Router::new().nest("/jobs", server()))),
    ];
    for (at, mut app) in mounted {
        let (status, _, page) = ask(&mut app, at, None).await;
        assert_eq!(status, StatusCode::OK, "{at}");
        let names = ["src=\"", "href=\""].iter().flat_map(|name| between(&page, name, "\""));
        let names = names.filter(|name| !name.starts_with(['#', 'd']));
        let mut next: Vec<String> = names.map(|name| below(at, name)).collect();
        let mut found = BTreeSet::new();
        while let Some(path) = next.pop() {
            if found.insert(path.clone()) {
                let (status, _, text) = ask(&mut app, &path, None).await;
                assert_eq!(status, StatusCode::OK, "{at}: {path}");
                let names = ["from \"", "import(\""].iter().flat_map(|way| between(&text, way, "\""));
                next.extend(names.map(|name| below(&path, name)));
            }
        }
        assert_eq!(found.len(), FILES.len() - 1, "{at}: {found:?}");
    }
}

/// Such a part could break out of the attribute that it is put into.
#[test]
fn a_part_of_a_path_that_is_not_plain_is_not_written_into_the_page() {
    for at in ["/a\"onload=x", "/<script>", "/a&quot;", "/"] {
        assert_eq!(page(FILES[0].text, at), FILES[0].text, "{at}");
    }
    assert!(page(FILES[0].text, "/own/a%20b").contains("\"./a%20b/dashboard/main.js\""));
}

/// The server is found relative to its modules, not at the root of the host that mounted it.
#[test]
fn requests_are_sent_below_where_the_modules_are() {
    let api = scripts().find(|file| file.path == "/dashboard/api.js").unwrap();
    assert!(api.text.contains("new URL(\"..\", import.meta.url)"));
    for file in scripts() {
        assert!(!file.text.contains("\"/ojs/v1") && !file.text.contains("`/ojs/v1"), "{}", file.path);
        assert_eq!(file.text.matches("fetch(").count(), usize::from(file.path == api.path), "{}", file.path);
    }
}

#[test]
fn modules_load_own_modules_and_every_module_is_loaded() {
    let mut loaded = BTreeSet::from(["/dashboard/main.js".to_owned()]);
    for file in scripts() {
        loaded.extend(loads(file, "from \"").chain(loads(file, "import(\"")));
    }
    let all: BTreeSet<String> = scripts().map(|file| file.path.to_owned()).collect();
    assert_eq!(loaded, all);
}

/// The modules that one module loads in this way.
fn loads(file: &'static File, way: &'static str) -> impl Iterator<Item = String> {
    between(file.text, way, "\"").map(|name| {
        let path = name.strip_prefix("./").map(|name| format!("/dashboard/{name}"));
        let path = path.unwrap_or_else(|| panic!("{} loads {name}", file.path));
        assert!(FILES.iter().any(|other| other.path == path), "{} loads {name}", file.path);
        path
    })
}

/// Otherwise the browser would discover each module only through the one that loads it, and fetch them one
/// after the other. No further modules are named, because the first screen would have to wait for them.
#[test]
fn the_page_names_what_the_first_screen_needs_so_that_it_comes_together() {
    let page = FILES[0].text;
    let named: BTreeSet<String> =
        between(page, "<link rel=\"modulepreload\" href=\".", "\"").map(str::to_owned).collect();
    let mut needed = BTreeSet::new();
    let mut next = vec!["/dashboard/main.js".to_owned()];
    while let Some(path) = next.pop() {
        let file = scripts().find(|file| file.path == path).unwrap();
        next.extend(loads(file, "from \"").filter(|path| needed.insert(path.clone())));
    }
    assert_eq!(named, needed);
}

#[test]
fn text_goes_in_as_text_and_nothing_comes_from_outside() {
    for file in FILES.iter().filter(|file| file.media != HTML) {
        for mark in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
        {
            assert!(!file.text.contains(mark), "{}: {mark}", file.path);
        }
        // A module is named by a string literal where it is loaded.
        assert_eq!(
            file.text.matches("import(").count(),
            file.text.matches("import(\"./").count(),
            "{}",
            file.path
        );
        for mark in ["//cdn", "https://", "url(", "@import", "localStorage", "document.cookie"] {
            assert!(!file.text.contains(mark), "{}: {mark}", file.path);
        }
    }
}

/// Each function of `api.js` with the method that it uses; `send` gets the method as an argument.
const ASKED_WITH: [(&str, &str); 6] = [
    ("get", "GET"),
    ("post", "POST"),
    ("put", "PUT"),
    ("patch", "PATCH"),
    ("remove", "DELETE"),
    ("send", ""),
];

/// Every request of a module: its method, and its path as written. The path must be a literal at the call.
fn asked(file: &File) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, method) in ASKED_WITH {
        let call = format!("{name}(");
        for (at, _) in file.text.match_indices(&call) {
            let is_part = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '$' | '#');
            if file.text[..at].ends_with(is_part) {
                continue;
            }
            let given = &file.text[at + call.len()..];
            let (method, given) = match literal(given) {
                Some((method, rest)) if name == "send" => (method, rest.trim_start_matches([',', ' '])),
                _ => (method, given),
            };
            match literal(given) {
                Some((path, _)) => found.push((method.to_owned(), path.to_owned())),
                // This is the `put` of `dom.js`, whose argument is a node.
                None if name == "put" => {}
                None => panic!("{}: no path after {name}(", file.path),
            }
        }
    }
    found
}

/// The literal at the beginning of a text, and what follows it.
fn literal(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '"' | '`'))?;
    text[1..].split_once(quote)
}

/// Whether a path as written matches a route: an inserted name stands for a parameter, any other insertion
/// for a word. This also finds a name that did not go through `at`, and may contain a slash.
fn is_of(written: &str, route: &str) -> bool {
    let written = if written.starts_with('/') { written.to_owned() } else { format!("/ojs/v1/{written}") };
    let (written, route): (Vec<&str>, Vec<&str>) = (written.split('/').collect(), route.split('/').collect());
    written.len() == route.len()
        && written.iter().zip(route).all(|(written, route)| {
            if written.starts_with("${at(") {
                route.starts_with('{')
            } else if written.starts_with("${") {
                !route.starts_with('{')
            } else {
                *written == route
            }
        })
}

#[test]
fn what_is_asked_for_is_an_endpoint() {
    let table = crate::routes::table();
    let mut known = 0;
    for file in scripts().filter(|file| file.path != "/dashboard/api.js") {
        for (method, path) in asked(file) {
            let is_there = |row: &crate::routes::Endpoint| row.method == *method && is_of(&path, row.path);
            assert!(table.iter().any(is_there), "{}: {method} {path}", file.path);
            known += 1;
        }
    }
    assert!(known >= 30, "{known} requests were found");
}
