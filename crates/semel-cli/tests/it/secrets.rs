//! What is nobody's business stays out of the log.

use crate::run::{Folder, Ran, Server};

#[test]
fn tokens_args_and_keys_are_not_logged() {
    // As much as it can say, both ways.
    for format in ["text", "json"] {
        a_whole_run_is_searched(format);
    }
}

fn a_whole_run_is_searched(format: &str) {
    let folder = Folder::new();
    let canaries =
        ["canary-token-7f3a", "canary-args-91bc", "canary-key-55d0", "canary-meta-0e2f", "canary-wrong-88aa"];
    let [token, args, key, meta, wrong] = canaries;
    std::fs::write(folder.path().join("tokens"), token).unwrap();
    let words = ["serve", "--listen", "127.0.0.1:0", "--token-file", "tokens", "--log-format", format];
    let mut command = folder.semel(&words);
    command.env("SEMEL_LOG", "trace");
    let server = Server::start_command(command);
    let meta = format!("{{\"note\": \"{meta}\"}}");
    let words = ["enqueue", "a.b", args, "--key", key, "--meta", &meta];
    let mut err = String::new();
    let mut hash = String::new();
    for verb in ["enqueue", "enqueue", "explain"] {
        let words = [&[verb], &words[1..]].concat();
        let ran = Ran::of(folder.semel(&[&words[..], &["--json"]].concat()).env("SEMEL_TOKEN", token));
        if verb == "explain" {
            let explained: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
            hash = explained["key"].as_str().unwrap().to_owned();
        }
        err.push_str(&ran.err);
    }
    let denied = Ran::of(folder.semel(&["jobs"]).env("SEMEL_TOKEN", wrong));
    assert_eq!(denied.code, 1);
    err.push_str(&denied.err);
    let released =
        Ran::of(folder.semel(&["release", &hash, "--reason", "x", "--yes"]).env("SEMEL_TOKEN", token));
    assert_eq!(released.code, 0, "{}", released.err);
    let broken = Ran::of(folder.semel(&["enqueue", "a.b", args, "--key", " "]).env("SEMEL_TOKEN", token));
    assert_ne!(broken.code, 0);
    let (status, out, log) = server.stop();
    assert_eq!(status.code(), Some(0));
    assert!(log.contains("ready") && log.contains("release_key"), "{log}");
    assert!(log.contains("/ojs/v1/unique-jobs/{key}"), "requests are logged by their route: {log}");
    if format == "json" {
        for line in log.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(line["level"].is_string() && line["timestamp"].is_string(), "{line}");
        }
    }
    for canary in canaries {
        for (name, text) in [("stdout", &out), ("log", &log), ("errors", &err)] {
            assert!(!text.contains(canary), "{canary} is in the {name}:\n{text}");
        }
    }
    // The caller gets its key's hash in an answer; the log does not.
    assert!(!out.contains(&hash) && !log.contains(&hash), "{log}");
}
