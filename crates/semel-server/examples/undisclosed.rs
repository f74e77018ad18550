//! Whether the time that an undisclosed answer takes tells what the answer does not: by hand, never as a test.
//!
//!     cargo run --release -p semel-server --example undisclosed -- [STORE] [ROUNDS]
//!
//! `STORE` is `memory:` (else), `sqlite:PATH`, `postgres://…` or `redis://…`, and should be a place of its own. Each round sends
//! one request of each kind, in a random order, over one connection that stays open, each about a key of its own; so whatever
//! else the machine does meets all kinds alike. Two kinds are told apart by a rank test: `auc` is how often a request of this
//! kind takes longer than one of the kind it is compared with, 0.5 where time tells nothing; `z` is how many standard
//! deviations of chance it is away from that. The kind that is compared with itself (`again`) shows what chance does here.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a tool for one's own hands: it prints, and what it cannot do ends it"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use semel_engine::Engine;
use semel_server::{Config, Limits, router, serve};
use semel_store::Backend;
use semel_store::memory::Memory;
use semel_testkit::sim::dice::Dice;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Rounds that nobody counts: until all that is made once is made.
const WARM: usize = 200;
const ROUNDS: usize = 3_000;

/// What stands behind a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nobody: it is created.
    Created,
    /// A job that waits.
    Waiting,
    /// The same once more.
    Again,
    /// A job that runs.
    Running,
    /// A job that has ended.
    Completed,
    /// A job that was cancelled.
    Cancelled,
    /// A job that waits, and is looked at for whether it is the same work: it is.
    SameWork,
    /// It is not.
    OtherWork,
}

const KINDS: [Kind; 8] = [
    Kind::Created,
    Kind::Waiting,
    Kind::Again,
    Kind::Running,
    Kind::Completed,
    Kind::Cancelled,
    Kind::SameWork,
    Kind::OtherWork,
];

impl Kind {
    /// The kind whose answer is the same, byte for byte.
    fn beside(self) -> Option<Self> {
        match self {
            Self::Again | Self::Running | Self::Completed | Self::Cancelled => Some(Self::Waiting),
            Self::Created | Self::Waiting | Self::SameWork | Self::OtherWork => None,
        }
    }

    fn status(self) -> u16 {
        match self {
            Self::Created => 201,
            Self::OtherWork => 422,
            _ => 409,
        }
    }

    fn request(self, round: usize, work: u32) -> Value {
        let minds_work = matches!(self, Self::SameWork | Self::OtherWork);
        let mut unique = json!({
            "key": format!("{self:?}-{round:08}"), "disclose": "never",
            "states": ["scheduled", "available", "pending", "active", "retryable", "completed", "cancelled", "discarded"],
        });
        if minds_work {
            unique["on_mismatch"] = "reject".into();
        }
        // Each kind in a queue of its own, so that what is to run can be taken apart from what is to wait.
        json!({ "type": "a.b", "args": [work], "options": { "queue": self.queue(), "unique": unique, "visibility_timeout_ms": 86_400_000 } })
    }

    fn queue(self) -> String {
        format!("q-{self:?}").to_lowercase()
    }
}

/// One connection.
struct Caller(BufReader<TcpStream>);

impl Caller {
    fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    /// Status, body, and how long it took in nanoseconds.
    fn ask(&mut self, method: &str, path: &str, body: &str) -> (u16, Vec<u8>, u64) {
        let length = body.len();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let began = Instant::now();
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
        let (mut line, mut status, mut length) = (String::new(), 0, 0);
        loop {
            line.clear();
            self.0.read_line(&mut line).unwrap();
            let text = line.trim_end().to_ascii_lowercase();
            if text.is_empty() {
                break;
            }
            if let Some(rest) = text.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            }
            if let Some(rest) = text.strip_prefix("content-length:") {
                length = rest.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (status, body, u64::try_from(began.elapsed().as_nanos()).unwrap())
    }

    fn post(&mut self, path: &str, body: &Value) -> Value {
        let (status, body, _) = self.ask("POST", path, &body.to_string());
        assert!(status < 300, "{path}: {status} {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    /// Has a job stand behind each request of this kind.
    fn prepare(&mut self, kind: Kind, rounds: usize) {
        if kind == Kind::Created {
            return;
        }
        let mut ids = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let made = self.post("/ojs/v1/jobs", &kind.request(round, 1));
            ids.push(made["job"]["id"].as_str().unwrap().to_owned());
        }
        if kind == Kind::Cancelled {
            for id in &ids {
                let (status, ..) = self.ask("DELETE", &format!("/ojs/v1/jobs/{id}"), "");
                assert_eq!(status, 200);
            }
        }
        if !matches!(kind, Kind::Running | Kind::Completed) {
            return;
        }
        for _ in 0..rounds {
            let taken =
                self.post("/ojs/v1/workers/fetch", &json!({ "queues": [kind.queue()], "worker_id": "w" }));
            let job = &taken["jobs"][0];
            if kind == Kind::Completed {
                self.post("/ojs/v1/workers/ack", &json!({ "job_id": job["id"], "lease": job["lease"] }));
            }
        }
    }
}

/// How often one of `a` takes longer than one of `b`, and how many standard deviations of chance that is from half.
fn compared(a: &[u64], b: &[u64]) -> (f64, f64) {
    let mut all: Vec<(u64, bool)> =
        a.iter().map(|time| (*time, true)).chain(b.iter().map(|time| (*time, false))).collect();
    all.sort_unstable();
    let (mut ranks, mut at) = (0.0, 0);
    while at < all.len() {
        let end = all[at..].iter().take_while(|(time, _)| *time == all[at].0).count() + at;
        // Equal times share their ranks.
        let rank = (at + 1 + end) as f64 / 2.0;
        ranks += rank * all[at..end].iter().filter(|(_, is_a)| *is_a).count() as f64;
        at = end;
    }
    let (n, m) = (a.len() as f64, b.len() as f64);
    let wins = ranks - n * (n + 1.0) / 2.0;
    (wins / (n * m), (wins - n * m / 2.0) / (n * m * (n + m + 1.0) / 12.0).sqrt())
}

fn measure(address: SocketAddr, rounds: usize) {
    let mut caller = Caller::new(address);
    let all = WARM + rounds;
    for kind in KINDS {
        caller.prepare(kind, all);
    }
    let mut dice = Dice::new(7);
    let mut times: Vec<Vec<u64>> = vec![Vec::with_capacity(rounds); KINDS.len()];
    let mut shapes: Vec<Option<Value>> = vec![None; KINDS.len()];
    for round in 0..all {
        let mut order: Vec<usize> = (0..KINDS.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, dice.below(at as u64 + 1) as usize);
        }
        for at in order {
            let kind = KINDS[at];
            let work = if kind == Kind::OtherWork { 2 } else { 1 };
            let request = kind.request(round, work).to_string();
            let (status, body, took) = caller.ask("POST", "/ojs/v1/jobs", &request);
            assert_eq!(status, kind.status(), "{kind:?}: {}", String::from_utf8_lossy(&body));
            if round >= WARM {
                times[at].push(took);
            }
            let mut shown: Value = serde_json::from_slice(&body).unwrap();
            shown["error"]["request_id"] = Value::Null;
            shapes[at] = Some(shown);
        }
    }
    println!(
        "{:<11} {:>6} {:>9} {:>9} {:>9} {:>7} {:>8}",
        "kind", "status", "p25 us", "median us", "p75 us", "auc", "z"
    );
    for (at, kind) in KINDS.into_iter().enumerate() {
        let mut sorted = times[at].clone();
        sorted.sort_unstable();
        let part = |of: usize| sorted[sorted.len() * of / 4] as f64 / 1_000.0;
        let beside = kind.beside().map(|beside| KINDS.iter().position(|kind| *kind == beside).unwrap());
        let told = beside.map_or(String::new(), |beside| {
            assert_eq!(shapes[at], shapes[beside], "{kind:?} is answered otherwise");
            let (auc, z) = compared(&times[at], &times[beside]);
            format!("{auc:>7.3} {z:>8.1}")
        });
        println!(
            "{:<11} {:>6} {:>9.1} {:>9.1} {:>9.1} {told}",
            format!("{kind:?}"),
            kind.status(),
            part(1),
            part(2),
            part(3)
        );
    }
}

async fn store(url: &str) -> Arc<dyn Backend> {
    match url.split_once(':').map_or(url, |(scheme, _)| scheme) {
        "sqlite" => Arc::new(semel_sqlite::Sqlite::open(url.trim_start_matches("sqlite:")).unwrap()),
        "postgres" => {
            let address = semel_postgres::Address::parse(url).unwrap();
            Arc::new(semel_postgres::Postgres::open(&address).await.unwrap())
        }
        "redis" => {
            let address = semel_redis::Address::parse(url).unwrap();
            Arc::new(semel_redis::Redis::open(&address).await.unwrap())
        }
        _ => Arc::new(Memory::default()),
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "memory:".to_owned());
    let rounds = args.next().map_or(ROUNDS, |text| text.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let address = runtime.block_on(async {
        let engine = Engine::start(store(&url).await).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = router(engine, Config::default());
        let never = std::future::pending::<()>();
        tokio::spawn(async move { serve(listener, app, Limits::default(), never).await });
        address
    });
    let scheme = url.split(':').next().unwrap_or_default();
    println!("{scheme}: {rounds} rounds of {} requests, one after the other", KINDS.len());
    measure(address, rounds);
}
