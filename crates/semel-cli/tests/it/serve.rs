//! `semel serve`: ready, owned, drained.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use crate::requests;
use crate::run::{Folder, Ran, Server};

#[test]
fn it_says_one_line_and_drains_on_sigterm() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let job = folder.json(&["enqueue", "a.b", "1"]);
    let (status, out, err) = server.stop();
    assert_eq!((status.code(), out.as_str()), (Some(0), ""), "{err}");
    assert!(err.contains("stopping"), "{err}");
    // Everything is in the file: without a server, the command opens it itself.
    let id = job["job"]["id"].as_str().unwrap();
    assert_eq!(folder.json(&["job", id])["state"], "available");
}

#[test]
fn a_request_under_way_is_answered_when_it_stops() {
    let folder = Folder::new();
    // With more time than the poll waits: a poll that is not cut short would be waited for.
    let server = Server::start(&folder, &["--drain", "60"]);
    let address = server.url.trim_start_matches("http://").to_owned();
    let wish = r#"{"queues":["default"],"wait_ms":30000}"#;
    let began = Instant::now();
    let mut waiting = requests::send(&server.url, "POST /ojs/v1/workers/fetch", "", wish).unwrap();
    // The server's metrics tell when the poll waits.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, metrics) = requests::ask(&server.url, "GET /metrics", "", "").unwrap();
        if metrics.contains("semel_http_polls_waiting 1\n") {
            break;
        }
        assert!(Instant::now() < deadline, "{metrics}");
    }
    let (status, _, err) = server.stop();
    assert_eq!(status.code(), Some(0), "{err}");
    assert!(!err.contains("still under way"), "{err}");
    assert!(began.elapsed() < Duration::from_secs(30), "the long poll held it up");
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut waiting, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("{\"jobs\":[]}"), "{answer}");
    assert!(std::net::TcpStream::connect(&address).is_err(), "new ones are refused");
}

/// Does something that takes less than `limit` in at least one of a few tries, since the machine may be busy.
fn in_less_than(limit: Duration, once: impl Fn() -> Duration) {
    let took: Vec<Duration> =
        std::iter::repeat_with(once).take(4).take_while(|took| *took >= limit).collect();
    assert!(took.len() < 4, "{took:?}");
}

#[test]
fn a_subscriber_who_never_answers_does_not_hold_up_the_end() {
    // A delivery times out by itself after 15 seconds.
    in_less_than(Duration::from_secs(10), it_ends_beside_one_who_never_answers);
}

/// Returns how long it takes.
fn it_ends_beside_one_who_never_answers() -> Duration {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--webhooks-allow-private", "--drain", "1"]);
    let subscriber = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", subscriber.local_addr().unwrap());
    folder.json(&["webhooks", "add", &url, "--events", "job.enqueued"]);
    folder.json(&["enqueue", "a.b"]);
    // The delivery has arrived.
    let (held, _) = subscriber.accept().unwrap();
    let began = Instant::now();
    let (status, _, err) = server.stop();
    let took = began.elapsed();
    assert_eq!(status.code(), Some(0), "{err}");
    assert!(err.contains("webhooks were still being delivered"), "{err}");
    drop(held);
    took
}

#[test]
fn a_second_server_on_the_file_is_told_where_the_first_is() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let second = folder.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!((second.code, second.out.as_str()), (5, ""));
    assert!(second.err.contains(&server.url) && second.err.contains("next:"), "{}", second.err);
}

#[test]
fn what_cannot_be_served_is_refused_with_a_way_out() {
    let folder = Folder::new();
    let refused = |words: &[&str], code: i32, needle: &str| {
        let ran = folder.run(&[&["serve"], words].concat());
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{}", ran.err);
        assert!(ran.err.contains(needle), "{}", ran.err);
    };
    refused(&["--store", "mysql://ada:s3cret@h/d"], 2, "use sqlite:PATH");
    refused(&["--listen", "0.0.0.0:0"], 2, "semel token create");
    refused(&["--log-format", "xml"], 2, "json");
    refused(&["--listen", "nonsense"], 2, "HOST:PORT");
    refused(&["--store", "sqlite:no/such/folder/a.db", "--listen", "127.0.0.1:0"], 1, "no/such/folder");
    std::fs::write(folder.path().join("other.txt"), "no database, but long enough to look like something")
        .unwrap();
    refused(&["--store", "sqlite:other.txt", "--listen", "127.0.0.1:0"], 1, "other.txt");
    refused(&["--store", "sqlite:other.txt", "--listen", "127.0.0.1:0"], 1, "semel restore");
    let store = "postgres://ada:s3cret@127.0.0.1:1/d";
    let ran = folder.run(&["serve", "--store", store, "--listen", "127.0.0.1:0"]);
    assert_eq!((ran.code, ran.out.as_str()), (5, ""), "{}", ran.err);
    assert!(ran.err.contains("127.0.0.1:1") && !ran.err.contains("s3cret"), "{}", ran.err);
}

/// The disk is corrupted under a running store.
fn fail(folder: &Folder, server: &Server) {
    for name in ["semel.db", "semel.db-wal", "semel.db-shm"] {
        let path = folder.path().join(name);
        let length = usize::try_from(std::fs::metadata(&path).unwrap().len()).unwrap();
        std::io::Write::write_all(
            &mut std::fs::OpenOptions::new().write(true).open(path).unwrap(),
            &vec![0xa5; length],
        )
        .unwrap();
    }
    // A job that is not in memory is looked up in the rows.
    let unknown = "018bcfe5-6800-7000-8000-000000000001";
    assert_eq!(folder.run(&["job", unknown, "--server", &server.url]).code, 1);
}

#[test]
fn a_store_that_has_failed_ends_the_server() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &[]);
    folder.json(&["enqueue", "a.b"]);
    fail(&folder, &server);
    assert_eq!(folder.run(&["enqueue", "a.b", "--server", &server.url]).code, 1, "nothing is acknowledged");
    let (status, _, err) = server.end();
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.contains("error: the store has failed"), "{err}");
}

#[test]
fn a_taken_port_is_said_to_be_taken() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let address = server.url.trim_start_matches("http://");
    let ran = folder.run(&["serve", "--store", "memory:", "--listen", address]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains(address) && ran.err.contains("--listen HOST:PORT"), "{}", ran.err);
}

/// A process that is killed when the test breaks off.
#[cfg(unix)]
struct Killed(std::process::Child);

#[cfg(unix)]
impl Drop for Killed {
    fn drop(&mut self) {
        // It has ended already when the test went well.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The log's reader may stall for as long as it likes.
#[cfg(unix)]
#[test]
fn a_log_that_nobody_reads_holds_up_nobody() {
    use std::io::BufRead as _;
    use std::process::Stdio;
    let folder = Folder::new();
    let mut command = folder.semel(&["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]);
    command.env("SEMEL_LOG", "debug").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Killed(command.spawn().unwrap());
    // The pipe is full after some hundred lines of these.
    let unread = server.0.stderr.take().unwrap();
    let (mut out, mut line) = (std::io::BufReader::new(server.0.stdout.take().unwrap()), String::new());
    out.read_line(&mut line).unwrap();
    let url = line.trim_end().strip_prefix("listening on ").unwrap();
    for _ in 0..1_500 {
        let mut stream = requests::send(url, "GET /live", "", "").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut answer = [0; 12];
        std::io::Read::read_exact(&mut stream, &mut answer).unwrap();
        assert_eq!(answer, *b"HTTP/1.1 200");
    }
    assert!(semel_testkit::signal::kill("-TERM", server.0.id()).status().unwrap().success());
    let began = Instant::now();
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    drop(unread);
}

#[test]
fn a_server_with_tokens_lets_only_those_in() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("tokens"), "# ours\nfirst-token\nsecond-token\n").unwrap();
    let server = Server::start(&folder, &["--token-file", "tokens"]);
    let without = folder.run(&["jobs"]);
    assert_eq!(without.code, 1, "{}", without.err);
    assert!(without.err.contains("unauthorized (401)"), "{}", without.err);
    assert_eq!(folder.run(&["jobs", "--token-file", "tokens"]).code, 0);
    let with = Ran::of(folder.semel(&["jobs", "--server", &server.url]).env("SEMEL_TOKEN", "second-token"));
    assert_eq!(with.code, 0, "{}", with.err);
}

/// A token set for calling must not let in, as an admin, everybody who knows it.
#[test]
fn the_token_to_call_with_lets_nobody_in() {
    let folder = Folder::new();
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    let refused = |ran: Ran| {
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{}", ran.err);
        assert!(ran.err.contains("SEMEL_TOKEN") && ran.err.contains("--tokens FILE"), "{}", ran.err);
        assert!(!ran.err.contains("own-token"), "{}", ran.err);
    };
    refused(Ran::of(folder.semel(&serve).env("SEMEL_TOKEN", "own-token")));
    std::fs::write(folder.path().join("semel.toml"), "token = \"own-token\"\n").unwrap();
    refused(folder.run(&serve));
    std::fs::remove_file(folder.path().join("semel.toml")).unwrap();
    std::fs::write(folder.path().join("tokens"), "of-file\n").unwrap();
    let mut command = folder.semel(&[&serve[..], &["--token-file", "tokens"]].concat());
    command.env("SEMEL_TOKEN", "own-token");
    let server = Server::start_command(command);
    let jobs = |token| Ran::of(folder.semel(&["jobs", "--server", &server.url]).env("SEMEL_TOKEN", token));
    assert_eq!((jobs("of-file").code, jobs("own-token").code), (0, 1));
}

/// Otherwise a volume that was not mounted is noticed only when jobs are missed.
#[test]
fn a_store_with_nothing_in_it_is_warned_of() {
    let folder = Folder::new();
    let warned = |server: Server| server.stop().2.contains("WARN semel::host: the store is empty");
    let server = Server::start(&folder, &[]);
    folder.json(&["enqueue", "a.b"]);
    assert!(warned(server));
    assert!(!warned(Server::start(&folder, &[])), "it has a job");
    assert!(!warned(Server::start(&folder, &["--store", "memory:"])), "that is always new");
}

#[test]
fn settings_come_from_the_environment_and_the_file() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("semel.toml"), "store = \"sqlite:from-file.db\"\nlog = \"error\"\n")
        .unwrap();
    let server = Server::start(&folder, &[]);
    assert!(folder.path().join("from-file.db").exists());
    let (_, _, err) = server.stop();
    assert_eq!(err, "", "the file asks for errors only");
    let mut command = folder.semel(&["serve"]);
    command.env("SEMEL_STORE", "sqlite:from-env.db").env("SEMEL_LISTEN", "127.0.0.1:0");
    drop(Server::start_command(command));
    assert!(folder.path().join("from-env.db").exists());
}

#[test]
fn what_is_under_way_has_the_time_to_drain_and_no_more() {
    // Without --drain, it would be ten seconds.
    in_less_than(Duration::from_secs(8), it_ends_beside_a_body_that_does_not_come);
}

/// Sends the head of a request whose body does not come; the server has read it when it asks for the body.
/// Returns how long the shutdown takes then.
fn it_ends_beside_a_body_that_does_not_come() -> Duration {
    use std::io::{Read, Write};
    let folder = Folder::new();
    let server = Server::start(&folder, &["--drain", "1"]);
    let mut slow = std::net::TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
    let head = "POST /ojs/v1/jobs HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
    slow.write_all(head.as_bytes()).unwrap();
    let mut asked = [0; 12];
    slow.read_exact(&mut asked).unwrap();
    assert_eq!(asked, *b"HTTP/1.1 100");
    let began = Instant::now();
    let (status, _, err) = server.stop();
    let took = began.elapsed();
    assert_eq!(status.code(), Some(0), "{err}");
    assert!(took >= Duration::from_secs(1), "{took:?}: {err}");
    assert!(err.contains("requests were still under way"), "{err}");
    took
}

#[test]
fn so_many_connections_are_served_at_one_time() {
    use std::io::{Read, Write};
    let folder = Folder::new();
    let server = Server::start(&folder, &["--max-connections", "1"]);
    let asked = || {
        let mut stream = std::net::TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
        stream.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        stream
    };
    let is_answered = |stream: &mut std::net::TcpStream| {
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).map(|()| assert_eq!(answer, *b"HTTP/1.1 200"))
    };
    let mut first = asked();
    is_answered(&mut first).unwrap();
    let mut second = asked();
    // In the time that another request is answered this often, this one would have been answered, too.
    let (mut heard, mut buffer) = (Vec::<u8>::new(), [0_u8; 4_096]);
    for number in 1..=20 {
        first.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        while String::from_utf8_lossy(&heard).matches("HTTP/1.1 200").count() < number {
            let read = first.read(&mut buffer).unwrap();
            assert_ne!(read, 0, "the first is served no more");
            heard.extend_from_slice(&buffer[..read]);
        }
    }
    second.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let unanswered = is_answered(&mut second).expect_err("both are served");
    assert!(matches!(unanswered.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{unanswered}");
    drop(first);
    second.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    is_answered(&mut second).unwrap();
}

/// A database that accepts connections and answers nothing.
#[cfg(unix)]
#[test]
fn it_ends_at_once_while_its_store_is_still_being_opened() {
    let (folder, silent) = (Folder::new(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let store = format!("postgres://ada@{}/d?sslmode=disable", silent.local_addr().unwrap());
    let mut command = folder.semel(&["serve", "--listen", "127.0.0.1:0", "--store", &store]);
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let log = crate::log::Log::of(child.stderr.take().unwrap());
    let (held, _) = silent.accept().unwrap();
    // The wait is logged meanwhile, too.
    log.until("opening postgres://");
    assert!(semel_testkit::signal::kill("-TERM", child.id()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", log.rest());
    drop(held);
}

/// A request whose body does not come; the server waits for it.
#[cfg(unix)]
fn half_a_request(server: &Server) -> std::net::TcpStream {
    use std::io::{Read as _, Write as _};
    let mut half = std::net::TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
    let head = "POST /ojs/v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
                content-length: 100\r\nexpect: 100-continue\r\n\r\n";
    half.write_all(head.as_bytes()).unwrap();
    // Sent once the server waits for the body.
    let mut told = [0; 25];
    half.read_exact(&mut told).unwrap();
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    half
}

/// A command that finds the file taken waits for it, and does not ask a server that no longer listens.
#[cfg(unix)]
#[test]
fn a_server_that_stops_takes_its_address_back() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &["--drain", "60"]);
    let half = half_a_request(&server);
    let said = || std::fs::read_to_string(folder.path().join("semel.db.lock")).unwrap();
    assert!(said().contains(&server.url));
    server.signal("-TERM");
    let began = Instant::now();
    while !said().starts_with("process ") {
        // The body alone has 30 seconds.
        assert!(began.elapsed() < Duration::from_secs(20), "{}", said());
        std::thread::yield_now();
    }
    server.signal("-INT");
    server.end();
    drop(half);
}

#[cfg(unix)]
#[test]
fn a_second_signal_breaks_off_what_is_under_way() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &["--drain", "60"]);
    let half = half_a_request(&server);
    server.signal("-TERM");
    server.log_until("stopping");
    let began = Instant::now();
    server.signal("-INT");
    let (status, _, err) = server.end();
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.contains("told to stop twice"), "{err}");
    // The body alone has 30 seconds.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    drop(half);
}

/// No signal stopped the server before: the store did.
#[cfg(unix)]
#[test]
fn the_first_signal_after_the_store_has_failed_lets_requests_end() {
    use std::io::{Read as _, Write as _};
    let folder = Folder::new();
    let mut server = Server::start(&folder, &["--drain", "60"]);
    let mut half = half_a_request(&server);
    fail(&folder, &server);
    server.log_until("stopping");
    server.signal("-TERM");
    server.log_until("already stopping");
    half.write_all(&[b' '; 100]).unwrap();
    let mut answer = [0; 12];
    half.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"HTTP/1.1 400");
    let (status, _, err) = server.end();
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.contains("error: the store has failed") && !err.contains("twice"), "{err}");
}
