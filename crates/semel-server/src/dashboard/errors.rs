//! The error catalogue as a page for people, which every `docs_url` leads to. Like the other files it has no secret.

use std::fmt::Write as _;
use std::sync::LazyLock;

use semel_ojs::problem::{CATALOGUE, Entry};

const BEFORE: &str = "<!doctype html>\n\
    <html lang=\"en\">\n\
    <head>\n\
    <meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
    <meta name=\"color-scheme\" content=\"light dark\">\n\
    <title>Errors · Semel</title>\n\
    <link rel=\"icon\" href=\"data:,\">\n\
    <link rel=\"stylesheet\" href=\"../dashboard/style.css\">\n\
    </head>\n\
    <body>\n\
    <main id=\"main\">\n\
    <h1>Errors</h1>\n\
    <p class=\"lead\">The errors that this server answers with, by code: the status, and what to do next. \
    The message in an answer says what was wrong with the request itself.</p>\n";
const AFTER: &str = "</main>\n</body>\n</html>\n";

/// The page. Each code has an anchor.
pub(super) static PAGE: LazyLock<String> = LazyLock::new(|| {
    let mut out = BEFORE.to_owned();
    for (at, entry) in CATALOGUE.iter().enumerate() {
        let is_told = CATALOGUE.iter().take(at).any(|other| other.wire == entry.wire);
        if !is_told {
            put_code(entry.wire, &mut out);
        }
    }
    out.push_str(AFTER);
    out
});

/// Writes a section for a code and the situations it is answered in.
fn put_code(wire: &str, out: &mut String) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "<section class=\"part\" id=\"{wire}\">\n<h2><code>{wire}</code></h2>");
    for Entry { status, retryable, hint, .. } in CATALOGUE.iter().filter(|entry| entry.wire == wire) {
        let again = if *retryable {
            "The request may be sent again."
        } else {
            "If the request is sent again unchanged, it fails again."
        };
        let _ = writeln!(out, "<p><strong>{status}</strong> {} {again}</p>", escaped(hint));
    }
    out.push_str("</section>\n");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
