//! Output that cannot be written: a full disk is an error, a reader that has closed the pipe is not.

use std::fs::{File, OpenOptions};
use std::process::Stdio;

use crate::log::Log;
use crate::run::{Folder, Ran};

/// A file on a disk that is full.
fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

#[test]
fn what_was_asked_for_and_cannot_be_written_is_a_failure() {
    let folder = Folder::new();
    folder.json(&["enqueue", "a.b"]);
    let every: [&[&str]; 7] = [
        &["jobs"],
        &["jobs", "--json"],
        &["completions", "bash"],
        &["queues"],
        &["--help"],
        &["jobs", "--help"],
        &["--version"],
    ];
    for words in every {
        let output = folder.semel(words).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {err}");
        assert!(err.contains("error: cannot write to stdout: "), "{words:?}: {err}");
    }
}

#[test]
fn a_reader_who_has_seen_enough_is_no_failure() {
    let folder = Folder::new();
    folder.json(&["enqueue", "a.b"]);
    for words in [&["jobs"][..], &["completions", "bash"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = folder.semel(words).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{words:?}");
    }
}

/// A failure must not exit with 0 because its message cannot be written.
#[test]
fn a_failure_is_one_though_nobody_reads_of_it() {
    let folder = Folder::new();
    for words in [&["job", "018bcfe5-6800-7000-8000-000000000001"][..], &["--no-such-flag"]] {
        let told = folder.run(words).code;
        assert_ne!(told, 0);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        for err in [Stdio::from(writer), Stdio::from(full())] {
            let mut command = folder.semel(words);
            let output = command.stdout(Stdio::piped()).stderr(err).output().unwrap();
            assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(told), &b""[..]), "{words:?}");
        }
    }
    // A server whose log cannot be written keeps serving.
    let mut command = folder.semel(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("SEMEL_LOG", "debug");
    let mut child = command.stdout(Stdio::piped()).stderr(full()).spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let url = line.trim_end().strip_prefix("listening on ").unwrap().to_owned();
    let ran: Ran = folder.run(&["jobs", "--server", &url]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// As in `semel serve | head -1`.
#[test]
fn a_server_serves_on_though_nobody_reads_where_it_listens() {
    let folder = Folder::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    for out in [Stdio::from(writer), Stdio::from(full())] {
        let mut command = folder.semel(&["serve", "--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(out).stderr(Stdio::piped()).spawn().unwrap();
        let log = Log::of(child.stderr.take().unwrap());
        log.until("cannot print to stdout where the server listens");
        log.until("url=\"");
        let url = log.until("\"");
        let ran = folder.run(&["jobs", "--server", url.trim_end_matches('"')]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
}
