//! `cargo xtask schemathesis`: sends a running server requests that its OpenAPI document allows, and others;
//! it must answer as the document says.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::things;
use crate::workspace::Workspace;

/// The variable with schemathesis's program, if it is not `st` on the path.
const VARIABLE: &str = "SCHEMATHESIS";
const INSTALL: &str =
    "schemathesis is not installed; run `pip install 'schemathesis>=4'`, or set SCHEMATHESIS to its program";
/// What every answer must pass: it is no server error, and is as documented.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance";
/// A request timeout in seconds, longer than the longest long poll.
const PATIENCE: &str = "40";
/// Endpoints that have no end, that disturb other requests, or that rightly answer 503: a worker's health,
/// once it has been silent for a minute.
const LEFT_OUT: &str = "(/admin/reset|/events/stream|/events|/workers/[^/]+/health)$";

/// A server, stopped on drop.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(program: &Path) -> Result<Self, String> {
        let mut child = Command::new(program)
            .args(["serve", "--store", "memory:", "--listen", "127.0.0.1:0"])
            .env("SEMEL_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            // It prints only the line with its address, or nothing when it ends.
            drop(BufReader::new(out).read_line(&mut line));
        }
        match line.trim_end().strip_prefix("listening on ") {
            Some(url) => Ok(Self { url: url.to_owned(), child }),
            None => Err("the server did not start".to_owned()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Builds and starts the server, and runs schemathesis against it, with `examples` requests per endpoint.
///
/// # Errors
/// The answers that were wrong, or what is missing.
pub fn run(workspace: &Workspace, examples: &str) -> Result<(), String> {
    let program = std::env::var(VARIABLE).unwrap_or_else(|_| "st".to_owned());
    let found = Command::new(&program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return Err(INSTALL.to_owned());
    }
    let built = workspace.cargo().args(["build", "--package", "semel-cli"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the server cannot be built".to_owned());
    }
    let target = workspace.metadata()?["target_directory"].as_str().unwrap_or("target").to_owned();
    let server = Server::start(&Path::new(&target).join("debug/semel"))?;
    let settings = Path::new(&target).join("schemathesis.toml");
    std::fs::write(&settings, things::make(&server.url)?)
        .map_err(|error| format!("cannot write {}: {error}", settings.display()))?;
    let status = Command::new(&program)
        .arg("--config-file")
        .arg(&settings)
        .args(["run", &format!("{}/openapi.json", server.url), "--url", &server.url])
        .args(["--checks", CHECKS, "--max-examples", examples, "--request-timeout", PATIENCE])
        .args(["--phases", "examples,coverage,fuzzing", "--exclude-path-regex", LEFT_OUT])
        .status()
        .map_err(|error| format!("cannot start {program}: {error}"))?;
    if status.success() { Ok(()) } else { Err("a response does not match the OpenAPI document".to_owned()) }
}
