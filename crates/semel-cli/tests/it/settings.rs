//! The guide's statements about settings, tried on the program itself; the order of the levels is tested
//! beside the code.

use serde_json::Value;

use crate::run::{Folder, Ran, Server};
use crate::tls::certificate;

/// Every variable that the program reads.
const VARIABLES: [&str; 15] = [
    "SEMEL_SERVER",
    "SEMEL_STORE",
    "SEMEL_LISTEN",
    "SEMEL_TOKEN",
    "SEMEL_TOKEN_FILE",
    "SEMEL_TOKENS",
    "SEMEL_CA",
    "SEMEL_TLS_CERT",
    "SEMEL_TLS_KEY",
    "SEMEL_TEMPLATES",
    "SEMEL_SAMPLE_POLICIES",
    "SEMEL_OTLP",
    "SEMEL_LOG",
    "SEMEL_LOG_FORMAT",
    "SEMEL_CONFIG",
];

fn write(folder: &Folder, name: &str, text: &str) {
    std::fs::write(folder.path().join(name), text).unwrap();
}

/// A server with these variables, on a free port.
fn serve(folder: &Folder, variables: &[(&str, &str)]) -> Server {
    let mut command = folder.semel(&["serve", "--listen", "127.0.0.1:0"]);
    command.envs(variables.iter().copied());
    Server::start_command(command)
}

#[test]
fn an_empty_variable_counts_as_none() {
    let folder = Folder::new();
    write(&folder, "semel.toml", "store = \"sqlite:named.db\"\n");
    let server = serve(&folder, &VARIABLES.map(|name| (name, "")));
    assert!(folder.path().join("named.db").exists());
    let mut enqueue = folder.semel(&["enqueue", "a.b"]);
    let ran = Ran::of(enqueue.envs(VARIABLES.map(|name| (name, ""))));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let log = server.stop().2;
    assert!(log.contains(" INFO "), "as much as it says unless it is told otherwise, as text: {log}");
}

#[test]
fn a_configuration_that_is_named_must_be_there() {
    let folder = Folder::new();
    // No default is looked for if none is named.
    assert_eq!(folder.run(&["enqueue", "a.b"]).code, 0);
    assert!(folder.path().join("semel.db").exists());
    std::fs::create_dir(folder.path().join("etc")).unwrap();
    write(&folder, "etc/semel.toml", "store = \"sqlite:named.db\"\n");
    let with = |words: &[&str], variable: &str| {
        let mut command = folder.semel(&[&["enqueue", "a.b"], words].concat());
        Ran::of(command.env("SEMEL_CONFIG", variable))
    };
    for ran in [with(&["--config", "none.toml"], ""), with(&[], "none.toml")] {
        assert_eq!((ran.code, ran.err.contains("cannot read none.toml")), (2, true), "{}", ran.err);
    }
    assert!(!folder.path().join("named.db").exists());
    // The flag beats the variable, and paths in the file are relative to this folder.
    let ran = with(&["--config", "etc/semel.toml"], "none.toml");
    assert_eq!((ran.code, folder.path().join("named.db").exists()), (0, true), "{}", ran.err);
}

/// If it were not read, everybody on the machine would be let in.
#[test]
fn a_server_asks_for_the_tokens_that_a_variable_or_the_file_names() {
    let folder = Folder::new();
    let made = folder.json(&["token", "create", "--tokens", "tokens.toml", "--role", "admin"]);
    let token = made["token"].as_str().unwrap();
    let check = |server: Server| {
        let refused = folder.run(&["jobs"]);
        assert_eq!((refused.code, refused.err.contains("(401)")), (1, true), "{}", refused.err);
        let told = Ran::of(folder.semel(&["jobs"]).env("SEMEL_TOKEN", token));
        assert_eq!(told.code, 0, "{}", told.err);
        server.stop();
    };
    check(serve(&folder, &[("SEMEL_TOKENS", "tokens.toml")]));
    write(&folder, "semel.toml", "tokens = \"tokens.toml\"\n");
    check(serve(&folder, &[]));
}

#[test]
fn a_server_goes_by_its_variables() {
    let folder = Folder::new();
    certificate(&folder, "one");
    std::fs::create_dir(folder.path().join("templates")).unwrap();
    write(&folder, "templates/mail.yaml", "namespace: mail\nname: send\n");
    let variables = [
        ("SEMEL_TLS_CERT", "one.pem"),
        ("SEMEL_TLS_KEY", "one.key"),
        ("SEMEL_TEMPLATES", "templates"),
        ("SEMEL_LOG_FORMAT", "json"),
    ];
    let server = serve(&folder, &variables);
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let explained = folder.json(&["explain", "mail.send", "{}", "--ca", "one.pem"]);
    assert!(explained["key"].is_string(), "{explained}");
    let log = server.stop().2;
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["message"] == "ready"), "{log}");
    // An invalid address is refused when it is read.
    let mut command = folder.semel(&["serve", "--listen", "127.0.0.1:0"]);
    let ran = Ran::of(command.env("SEMEL_OTLP", "nowhere"));
    assert_eq!(
        (ran.code, ran.err.contains("\"nowhere\" is not a URL to connect to")),
        (2, true),
        "{}",
        ran.err
    );
}
