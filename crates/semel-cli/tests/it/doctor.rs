//! `semel doctor` ends as its help says.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use semel::{Envelope, Semel};
use semel_sqlite::Sqlite;
use semel_store::clock::{Clock as _, ManualClock, SystemClock};
use semel_testkit::database::{store_url, url};

use crate::run::{Folder, Server};

/// Answers like a server whose store is failing: it has a promise, but is not well.
fn ill() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
            let path = head.next().unwrap().unwrap();
            while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let (status, body) = match path.split_whitespace().nth(1) {
                Some("/ojs/manifest") => ("200 OK", r#"{"unique_job_strength":"strong"}"#),
                Some("/ojs/v1/health") => (
                    "503 Service Unavailable",
                    r#"{"status":"unhealthy","backend":{"reason":"the disk is full"}}"#,
                ),
                _ => ("404 Not Found", "{}"),
            };
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    url
}

#[test]
fn the_doctor_ends_with_1_when_it_is_not_well_and_with_5_when_nobody_answers() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let well = folder.run(&["doctor", "--server", &server.url]);
    assert!(well.code == 0 && well.out.contains("uniqueness"), "{well:?}");
    let ill = folder.run(&["doctor", "--server", &ill()]);
    assert_eq!(ill.code, 1, "{ill:?}");
    assert!(
        ill.out.contains("strong")
            && ill.err.contains("is unhealthy")
            && ill.err.contains("the disk is full"),
        "what it promises is shown: {ill:?}"
    );
    let nobody = folder.run(&["doctor", "--server", "http://127.0.0.1:9"]);
    assert_eq!((nobody.code, &*nobody.out), (5, ""), "{nobody:?}");
    for store in ["redis://127.0.0.1:9", "postgres://semel@127.0.0.1:9/jobs"] {
        let nobody = folder.run(&["doctor", "--store", store]);
        assert_eq!((nobody.code, &*nobody.out), (5, ""), "{nobody:?}");
    }
}

/// Nothing else would report it: a program that does not relay does not look.
#[test]
fn the_doctor_says_when_nobody_relays_the_outbox() {
    let (folder, store) = (Folder::new(), store_url());
    // No server keeps running: the command creates the store, and relays nothing.
    folder.json(&["enqueue", "a.b", "1", "--store", &store]);
    let insert = |ago: &str| {
        let schema = store.split("schema=").nth(1).unwrap();
        let sql = format!(
            "INSERT INTO {schema}.outbox (envelope, created_at) \
             VALUES ('{{\"type\": \"a.b\", \"args\": [1]}}', now() - interval '{ago}')"
        );
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&url(), tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute(&sql).await.unwrap();
        });
    };
    let doctor = || folder.run(&["doctor", "--store", &store]);
    let empty = doctor();
    assert!(empty.code == 0 && !empty.out.contains("outbox"), "{empty:?}");
    insert("1 hour");
    let waits = doctor();
    assert!(waits.code == 0 && waits.out.contains("advice: the first entry in the outbox"), "{waits:?}");
    assert!(folder.json(&["doctor", "--store", &store])["outbox_waits_s"].as_u64().unwrap() >= 3_600);
}

/// A clock that was an hour ahead when the store was last written, and is right again.
#[test]
fn a_store_whose_clock_was_ahead_is_told_of() {
    let (folder, store) = (Folder::new(), "sqlite:semel.db");
    folder.json(&["enqueue", "a.b", "1", "--store", store]);
    let doctor = || folder.run(&["doctor", "--store", store]);
    let right = doctor();
    assert!(right.code == 0 && !right.out.contains("advice"), "{right:?}");
    let ahead = ManualClock::at(SystemClock.now().saturating_add(Duration::from_secs(3_660)));
    let opened = Sqlite::open_with_clock(folder.path().join("semel.db"), ahead).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let semel = Semel::on(Arc::new(opened)).unwrap();
        semel.enqueue(Envelope::new("a.b").arg(2)).await.unwrap();
        semel.close().await.unwrap();
    });
    let off = doctor();
    assert!(off.code == 0 && off.out.contains("advice: the store's time is 36"), "{off:?}");
    let millis = folder.json(&["doctor", "--store", store])["time_ahead_ms"].as_i64().unwrap();
    assert!((3_600_000..=3_660_000).contains(&millis), "{millis}");
    let server = Server::start(&folder, &["--store", store]);
    let said = server.log_until("s ahead of its server's clock");
    assert!(said.contains("WARN") && said.contains("a clock is or was wrong"), "{said}");
    // Also for a server that is asked.
    let told = folder.run(&["doctor", "--server", &server.url]);
    assert!(told.code == 0 && told.out.contains("s ahead of"), "{told:?}");
}

/// What only the jobs show, on a server that was started to sample them; other servers say nothing.
#[test]
fn the_doctor_names_the_member_for_which_a_policy_never_matches() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--store", "memory:", "--sample-policies"]);
    let jobs: String =
        (0..30).map(|number| format!("{{\"order\": {}, \"sent_at\": {number}}}\n", number / 2)).collect();
    for line in jobs.lines() {
        let ran = folder.run(&["enqueue", "order.pay", line, "--unique", "strict", "--server", &server.url]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let ran = folder.run(&["doctor", "--server", &server.url]);
    assert_eq!(ran.code, 0, "it is advice: {ran:?}");
    let named = "advice: order.pay: hardly any job was a duplicate, and /args/0/sent_at had 30 distinct values in 30 jobs; without it, 15";
    assert!(ran.out.contains(named), "{ran:?}");
    let told = folder.json(&["doctor", "--server", &server.url]);
    assert_eq!(told["policies"]["types"][0]["advice"][0]["kind"], "never_matches", "{told}");
    let silent = Server::start(&folder, &["--store", "memory:"]);
    let ran = folder.run(&["doctor", "--server", &silent.url]);
    assert!(ran.code == 0 && !ran.out.contains("advice") && !ran.err.contains("sampled"), "{ran:?}");
    let mut command = folder.semel(&["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]);
    command.env("SEMEL_SAMPLE_POLICIES", "true");
    let by_variable = Server::start_command(command);
    let told = folder.json(&["doctor", "--server", &by_variable.url]);
    assert_eq!(told["policies"]["sampling"], true, "{told}");
}
