//! `semel serve` with a certificate, and the verbs that talk to it.

use rcgen::{CertifiedKey, generate_simple_self_signed};

use crate::run::{Folder, Ran, Server};

/// Writes a self-signed certificate.
pub fn certificate(folder: &Folder, name: &str) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(folder.path().join(format!("{name}.pem")), cert.pem()).unwrap();
    std::fs::write(folder.path().join(format!("{name}.key")), signing_key.serialize_pem()).unwrap();
}

#[test]
fn a_server_with_a_certificate_is_talked_to_at_https() {
    let folder = Folder::new();
    certificate(&folder, "one");
    certificate(&folder, "two");
    std::fs::copy(folder.path().join("one.pem"), folder.path().join("now.pem")).unwrap();
    std::fs::copy(folder.path().join("one.key"), folder.path().join("now.key")).unwrap();
    let server = Server::start(&folder, &["--tls-cert", "now.pem", "--tls-key", "now.key"]);
    assert!(server.url.starts_with("https://127.0.0.1:"), "{}", server.url);
    assert_eq!(
        folder.run(&["enqueue", "a.b", "--ca", "one.pem"]).code,
        0,
        "it finds the server by its store"
    );
    let told = Ran::of(folder.semel(&["jobs", "--server", &server.url]).env("SEMEL_CA", "one.pem"));
    assert_eq!(told.code, 0, "{}", told.err);
    let doubted = folder.run(&["jobs", "--ca", "two.pem"]);
    assert!(doubted.code == 5 && doubted.err.contains("certificate"), "{}", doubted.err);
    let unknown = folder.run(&["jobs"]);
    assert_eq!(unknown.code, 5, "the system does not vouch for it");
    assert!(unknown.err.contains("--ca") && !unknown.err.contains("running at"), "{}", unknown.err);
    let plain = folder.run(&["jobs", "--server", &server.url.replacen("https", "http", 1)]);
    assert!(plain.code != 0 && plain.err.contains("begin its URL with https://"), "{}", plain.err);
    // A new certificate takes effect on SIGHUP.
    std::fs::copy(folder.path().join("two.pem"), folder.path().join("now.pem")).unwrap();
    std::fs::copy(folder.path().join("two.key"), folder.path().join("now.key")).unwrap();
    server.signal("-HUP");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while folder.run(&["jobs", "--ca", "two.pem"]).code != 0 {
        assert!(std::time::Instant::now() < deadline);
    }
    assert_eq!(server.stop().0.code(), Some(0));
}

#[test]
fn a_certificate_without_its_key_is_refused() {
    let folder = Folder::new();
    certificate(&folder, "one");
    certificate(&folder, "two");
    for (words, needle) in [
        (&["--tls-cert", "one.pem"][..], "--tls-key"),
        (&["--tls-cert", "no.pem", "--tls-key", "one.key"], "no.pem"),
        (&["--tls-cert", "one.pem", "--tls-key", "two.key"], "together"),
        (&["--tls-cert", "one.key", "--tls-key", "one.key"], "certificate"),
    ] {
        let ran = folder.run(&[&["serve", "--listen", "127.0.0.1:0"], words].concat());
        assert_eq!((ran.code, ran.err.contains(needle)), (2, true), "{words:?}: {}", ran.err);
    }
}
