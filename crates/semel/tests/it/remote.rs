//! The same handlers over HTTP, and the server inside the program.

use std::io::{BufRead as _, BufReader, Write as _};
use std::time::Duration;

use semel::{Admin, Failure, JobId, JobState, Outcome, Progress, Return, Run, Semel, State, Stop, Worker};
use tokio::sync::mpsc;
use tower_service::Service as _;

use crate::harness::{Add, add, gate, memory, soon, still, until_told};

async fn served() -> (Semel, Admin) {
    let semel = memory().await;
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    (semel, admin)
}

fn remote(admin: &Admin) -> Worker {
    Worker::remote(&admin.url()).unwrap()
}

#[tokio::test]
async fn a_remote_worker_runs_the_same_handlers() {
    let (semel, admin) = served().await;
    let working = remote(&admin)
        .state("state".to_owned())
        .handle(async |job: Add, id: JobId, State(state): State<String>, lease: semel::Lease| {
            assert!(lease.fence() > 0 && state == "state");
            if job.a < 0 {
                return Err("negative".to_owned());
            }
            Ok(Return((job.a + job.b, id.to_string())))
        })
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    let (sum, id): (i64, String) = soon(job.result()).await.unwrap();
    assert_eq!((sum, id), (3, job.id().unwrap().to_string()));
    let failing = semel.enqueue(Add { a: -1, b: 2 }).max_attempts(1).await.unwrap();
    let ended = soon(failing.wait()).await.unwrap();
    assert_eq!((ended.state(), ended.job.last_failure()), (JobState::Discarded, Some("negative")));
    soon(working.stop()).await;
    admin.stop().await.unwrap();
}

/// The next run's result would be refused as well, after its effect had happened a second time.
#[tokio::test]
async fn an_end_that_the_server_refuses_is_told_as_a_failure_at_once() {
    let (semel, admin) = served().await;
    let working = remote(&admin).handle(async |_: Add| Return("x".repeat(2 << 20))).start().unwrap();
    let job = semel.enqueue(Add { a: 1, b: 2 }).max_attempts(3).await.unwrap();
    let ended = soon(job.wait()).await.unwrap();
    assert_eq!((ended.state(), ended.job.attempt()), (JobState::Discarded, 1));
    assert!(ended.job.last_failure().unwrap().contains("413"), "{:?}", ended.job.last_failure());
    soon(working.stop()).await;
    admin.stop().await.unwrap();
}

/// Otherwise the server refuses it, and it is reported as a failure of another type.
#[tokio::test]
async fn a_failure_that_says_too_much_is_cut_as_at_home() {
    let (semel, admin) = served().await;
    let client = semel_client::Client::new(&admin.url()).unwrap();
    let mut told = Vec::new();
    for worker in [Worker::new(&semel), remote(&admin)] {
        let failing = async |_: Add| Outcome::Retry(Failure::new("T".repeat(300), "m".repeat(2 << 20)));
        let working = worker.handle(failing).start().unwrap();
        let job = semel.enqueue(Add { a: 1, b: 2 }).max_attempts(1).await.unwrap();
        let ended = soon(job.wait()).await.unwrap();
        assert_eq!(ended.job.last_failure().unwrap().len(), 64 * 1024);
        let shown = client.get_json(&format!("/ojs/v1/jobs/{}", job.id().unwrap())).await.unwrap();
        let error = &shown["job"]["error"];
        told.push(["code", "type", "message"].map(|name| error[name].as_str().unwrap().to_owned()));
        soon(working.stop()).await;
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(told[1][1], "T".repeat(255));
    admin.stop().await.unwrap();
}

#[tokio::test]
async fn a_worker_may_have_a_client_of_its_own() {
    let (semel, admin) = served().await;
    let client = semel_client::Client::new(&admin.url()).unwrap().with_token("t").unwrap();
    let working = Worker::remote_with(client).handle(add).start().unwrap();
    let job = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    assert_eq!(soon(job.result::<i64>()).await.unwrap(), 3);
    soon(working.stop()).await;
    admin.stop().await.unwrap();
}

#[tokio::test]
async fn each_outcome_does_the_same_as_at_home() {
    let (semel, admin) = served().await;
    let working = remote(&admin)
        .concurrency(1)
        .handle(async |job: Add| match job.a {
            0 => Outcome::Done,
            1 => Outcome::Retry(Failure::new("Busy", "later").after(Duration::from_secs(3600))),
            2 => Outcome::Snooze(Duration::from_secs(3600)),
            3 => Outcome::Cancel,
            _ => Outcome::Discard(Failure::new("Broken", "never")),
        })
        .start()
        .unwrap();
    let mut jobs = Vec::new();
    for a in 0..=4 {
        jobs.push(semel.enqueue(Add { a, b: 0 }).await.unwrap());
    }
    soon(jobs[4].wait()).await.unwrap();
    let mut found = Vec::new();
    for job in &jobs {
        let stored = job.job().unwrap().load().await.unwrap().unwrap();
        if stored.state().is_live() {
            let waits = stored.available_at().since(stored.created_at());
            assert!(waits >= Duration::from_secs(3600), "{waits:?}");
        }
        found.push((stored.state(), stored.attempt()));
    }
    assert_eq!(
        found,
        [
            (JobState::Completed, 1),
            (JobState::Retryable, 1),
            (JobState::Scheduled, 0),
            (JobState::Cancelled, 1),
            (JobState::Discarded, 1)
        ]
    );
    soon(working.stop()).await;
    admin.stop().await.unwrap();
}

/// The server accepts no longer wait, and a refusal would end the job; in the program the cap is the same.
#[tokio::test]
async fn what_is_put_off_for_longer_than_the_server_takes_is_put_off_by_what_it_takes() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let (semel, admin) = served().await;
    for worker in [Worker::new(&semel), remote(&admin)] {
        let working = worker
            .handle(async |job: Add| {
                let wait = DAY * u32::try_from(job.b).unwrap();
                if job.a == 0 {
                    Outcome::Snooze(wait)
                } else {
                    Outcome::Retry(Failure::new("Busy", "later").after(wait))
                }
            })
            .start()
            .unwrap();
        for (a, days) in [(0, 40), (0, 60), (1, 40), (1, 60)] {
            let job = semel.enqueue(Add { a, b: days }).await.unwrap();
            let stored = soon(async {
                loop {
                    let stored = job.job().unwrap().load().await.unwrap().unwrap();
                    if !matches!(stored.state(), JobState::Available | JobState::Active) {
                        return stored;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
            let expected = if a == 0 { (JobState::Scheduled, 0) } else { (JobState::Retryable, 1) };
            assert_eq!((stored.state(), stored.attempt()), expected);
            let waits = stored.available_at().since(stored.created_at());
            assert!(waits >= 30 * DAY && waits < 31 * DAY, "{waits:?}");
        }
        soon(working.stop()).await;
    }
    admin.stop().await.unwrap();
}

/// Neither the worker nor the client parses it in between.
#[tokio::test]
async fn a_result_keeps_its_digits_on_the_way() {
    let (semel, admin) = served().await;
    const TEXT: &str =
        r#"{"b":1.0,"a":[12345678901234567890123,1e400,0.1000000000000000055511151231257827]}"#;
    let working = remote(&admin)
        .handle(async |_: Add| Return(serde_json::value::RawValue::from_string(TEXT.to_owned()).unwrap()))
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 2 }).max_attempts(1).await.unwrap();
    let ended = soon(job.wait()).await.unwrap();
    let result: Box<serde_json::value::RawValue> = ended.result().unwrap();
    assert_eq!(result.get(), TEXT);
    soon(working.stop()).await;
    admin.stop().await.unwrap();
}

type Told = mpsc::UnboundedSender<&'static str>;

#[tokio::test]
async fn a_cancelled_run_is_told_at_the_next_heartbeat() {
    // The store's clock is paused: the job is cancelled, and no lease is lost.
    let (semel, _clock) = still();
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let (told, mut was_told) = mpsc::unbounded_channel::<&'static str>();
    // The worker measures its lease by a real clock.
    let working = remote(&admin)
        .lease(Duration::from_secs(6))
        .state(told)
        .handle(async |_: Add, run: Run, progress: Progress, State(told): State<Told>| {
            progress.set(1).await.unwrap();
            told.send("begun").unwrap();
            run.token().cancelled().await;
            let is_so = run.stopping() == Some(Stop::Cancelled);
            told.send(if is_so { "cancelled" } else { "stopped for something else" }).unwrap();
        })
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    assert_eq!(soon(was_told.recv()).await, Some("begun"));
    job.job().unwrap().cancel().await.unwrap();
    assert_eq!(soon(was_told.recv()).await, Some("cancelled"));
    soon(working.stop()).await;
    admin.stop().await.unwrap();
}

#[tokio::test]
async fn a_shutdown_gives_back_what_does_not_end() {
    let (semel, admin) = served().await;
    let (told, mut was_told) = mpsc::unbounded_channel::<&'static str>();
    let working = remote(&admin)
        .drain(Duration::ZERO)
        .grace(Duration::ZERO)
        .state(told)
        .handle(async |_: Add, State(told): State<Told>| {
            told.send("begun").unwrap();
            std::future::pending::<()>().await;
        })
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    assert_eq!(soon(was_told.recv()).await, Some("begun"));
    soon(working.stop()).await;
    let stored = job.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!((stored.state(), stored.attempt()), (JobState::Available, 0));
    admin.stop().await.unwrap();
}

/// A server that gives the canned answers for these paths in order, and never answers other requests. Reports
/// which paths were requested.
fn canned(answers: &[(&'static str, u16, &'static str)]) -> (String, mpsc::UnboundedReceiver<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, was_asked) = mpsc::unbounded_channel();
    let mut answers = answers.to_vec();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            drop(BufReader::new(&stream).read_line(&mut line));
            let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
            if let Some(at) = answers.iter().position(|(of, ..)| *of == path) {
                let (_, status, body) = answers.remove(at);
                let head = format!(
                    "HTTP/1.1 {status} Canned\r\nconnection: close\r\ncontent-type: application/json"
                );
                write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
            }
            asked.send(path).unwrap_or_default();
            kept.push(stream);
        }
    });
    (url, was_asked)
}

const FETCH: &str = "/ojs/v1/workers/fetch";
/// The answer to a fetch.
const GRANTED: &str = r#"{"jobs":[{"id":"019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f","type":"sum.add","args":[{"a":1,"b":0}],"lease":"l1-1"}]}"#;

async fn until_fetched(was_asked: &mut mpsc::UnboundedReceiver<String>) {
    while soon(was_asked.recv()).await.unwrap() != FETCH {}
}

/// The work is done; reporting a failure instead would have it done again.
#[tokio::test]
async fn an_end_that_is_refused_for_now_is_told_again_as_it_was() {
    const ACK: &str = "/ojs/v1/workers/ack";
    let answers = [
        (FETCH, 200, GRANTED),
        (ACK, 401, "{}"),
        (ACK, 408, ""),
        (ACK, 403, "no"),
        // A proxy that knows no such server.
        (ACK, 404, "<html>404 page not found</html>"),
        (ACK, 409, r#"{"message":"no route"}"#),
        // A proxy's maintenance page.
        (ACK, 200, "<html>back soon</html>"),
        (ACK, 200, r#"{"status":"maintenance"}"#),
        (ACK, 200, ""),
        (
            ACK,
            200,
            r#"{"acknowledged":true,"id":"019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f","state":"completed"}"#,
        ),
    ];
    let (url, mut was_asked) = canned(&answers);
    let working = Worker::remote(&url).unwrap().concurrency(1).handle(add).start().unwrap();
    let mut told = Vec::new();
    // The next fetch comes once this job's end was accepted.
    for _ in 0..2 {
        loop {
            let path = soon(was_asked.recv()).await.unwrap();
            if path == FETCH {
                break;
            }
            told.push(path);
        }
    }
    told.retain(|path| path != "/ojs/v1/workers/heartbeat");
    assert_eq!(told, [ACK; 9]);
    drop(working);
}

/// Otherwise it would be answered at once, again and again.
#[tokio::test]
async fn a_fetch_whose_jobs_cannot_be_run_here_is_followed_by_a_rest() {
    // An answer of another kind of server: it has no lease.
    const FOREIGN: &str =
        r#"{"jobs":[{"id":"019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f","type":"sum.add","args":[]}]}"#;
    let (url, mut was_asked) = canned(&[(FETCH, 200, FOREIGN); 3]);
    let working = Worker::remote(&url).unwrap().handle(add).start().unwrap();
    until_fetched(&mut was_asked).await;
    let began = std::time::Instant::now();
    for _ in 0..3 {
        until_fetched(&mut was_asked).await;
    }
    assert!(began.elapsed() >= Duration::from_millis(500), "{:?}", began.elapsed());
    drop(working);
}

#[tokio::test]
async fn a_shutdown_does_not_wait_long_for_a_server_that_does_not_answer() {
    let (url, mut was_asked) = canned(&[]);
    let working =
        Worker::remote(&url).unwrap().drain(Duration::from_millis(300)).handle(add).start().unwrap();
    until_fetched(&mut was_asked).await;
    // From here on the worker waits for time alone.
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    working.stop().await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test]
async fn runs_have_no_more_time_for_a_fetch_that_is_slow_to_end() {
    let (url, mut was_asked) = canned(&[(FETCH, 200, GRANTED)]);
    let (gate, mut begun, mut told) = gate();
    let drain = Duration::from_millis(300);
    let working = Worker::remote(&url).unwrap().drain(drain).state(gate).handle(until_told).start().unwrap();
    soon(begun.recv()).await.unwrap();
    for _ in 0..2 {
        until_fetched(&mut was_asked).await;
    }
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    let stopping = tokio::spawn(working.stop());
    told.recv().await.unwrap();
    let drained = began.elapsed();
    assert!((drain..2 * drain).contains(&drained), "{drained:?}");
    stopping.abort();
}

/// The lease of two minutes frees the job in any case.
#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_report_that_nobody_hears() {
    let (url, _was_asked) = canned(&[(FETCH, 200, GRANTED)]);
    let (gate, mut begun, mut told) = gate();
    let (drain, grace) = (Duration::from_millis(300), Duration::from_secs(1));
    let worker = Worker::remote(&url).unwrap().concurrency(1).drain(drain).grace(grace);
    let working = worker.state(gate).handle(until_told).start().unwrap();
    soon(begun.recv()).await.unwrap();
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    working.stop().await;
    assert!(began.elapsed() < drain + grace + Duration::from_secs(10), "{:?}", began.elapsed());
    told.recv().await.unwrap();
}

#[tokio::test]
async fn the_server_inside_shows_the_same_queue_and_hides_what_is_sensitive() {
    let (semel, admin) = served().await;
    let job =
        semel.enqueue(crate::derive::render()).meta("tenant", "t").meta("email", "a@b.c").await.unwrap();
    let client = semel_client::Client::new(&admin.url()).unwrap();
    let path = format!("/ojs/v1/jobs/{}", job.id().unwrap());
    let shown = client.get_json(&path).await.unwrap();
    assert_eq!(shown["job"]["args"][0]["invoiceNumber"], 7);
    assert_eq!(shown["job"]["args"][0]["bankAccount"], "[sensitive]");
    let listed = client.get_json("/ojs/v1/jobs").await.unwrap().to_string();
    assert!(!["DE1", "a@b.c"].iter().any(|value| listed.contains(value)));
    admin.stop().await.unwrap();
    assert!(client.get_json(&path).await.is_err());
}

#[tokio::test]
async fn the_server_inside_is_for_this_machine_only() {
    let semel = memory().await;
    let refused = semel.serve_admin("0.0.0.0:0").await.unwrap_err().to_string();
    assert!(refused.contains("127.0.0.1"), "{refused}");
    assert!(Worker::remote("ftp://nowhere").is_err());
}

#[tokio::test]
async fn a_file_is_let_go_after_its_server_has_stopped() {
    let dir = semel_testkit::fixture::TempDir::new();
    let url = format!("sqlite:{}", dir.path().join("jobs.db").display());
    let semel = Semel::open(&url).await.unwrap();
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let met = Semel::open(&url).await.unwrap_err().to_string();
    assert!(met.contains(&admin.url()), "{met}");
    admin.stop().await.unwrap();
    semel.close().await.unwrap();
    Semel::open(&url).await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn the_routes_can_be_mounted_in_a_router_of_ones_own() {
    let semel = memory().await;
    let mut app = axum::Router::<()>::new().nest("/jobs", semel.router().unwrap());
    let request = |method: &str, path: &str, body: &str| {
        http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/openjobspec+json")
            .body(axum::body::Body::from(body.to_owned()))
            .unwrap()
    };
    let body = r#"{"type":"a.b","args":[],"unique":{}}"#;
    let mut statuses = Vec::new();
    for (method, path, body) in [
        ("GET", "/jobs/ojs/v1/health", ""),
        ("POST", "/jobs/ojs/v1/jobs", body),
        ("POST", "/jobs/ojs/v1/jobs", body),
        ("GET", "/jobs/ojs/v1/nothing", ""),
    ] {
        statuses.push(app.call(request(method, path, body)).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 201, 409, 404]);
}
