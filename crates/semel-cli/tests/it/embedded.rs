//! The command beside a program that embeds the queue, in a file.

use semel::{Job, JobId, Return, Semel, Worker};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;

use crate::requests;
use crate::run::{Folder, Server};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "invoice.pay", unique(args("invoice"), on_conflict = "ignore"))]
struct Pay {
    invoice: u64,
}

const EXPLAIN: [&str; 5] = [
    "explain",
    "invoice.pay",
    r#"{"invoice":17}"#,
    "--unique",
    r#"{"keys":["type","args"],"args_keys":["invoice"],"on_conflict":"ignore"}"#,
];

/// The command finds the program's server through the file, and asks it about the program's work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_works_beside_a_program_with_a_server() {
    let folder = Folder::new();
    let semel = Semel::open(&format!("sqlite:{}", folder.path().join("semel.db").display())).await.unwrap();
    let owned = folder.run(&["jobs"]);
    assert_eq!(owned.code, 5, "nobody listens: {owned:?}");
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let job = semel.enqueue(Pay { invoice: 17 }).await.unwrap();
    let id = job.id().unwrap().to_string();

    let listed = folder.json(&["jobs"]);
    assert_eq!((&listed["jobs"][0]["id"], listed["jobs"].as_array().unwrap().len()), (&json!(id), 1));
    let explained = folder.json(&EXPLAIN);
    assert_eq!(explained["decision"], "existing", "{explained}");
    assert!(explained.to_string().contains(&id), "{explained}");
    let page = requests::ask(&admin.url(), "GET /", "accept: text/html\r\n", "").unwrap();
    assert!(page.0 == 200 && page.1.contains("<html"), "{page:?}");

    // The program runs what the command enqueues, and the command sees what the program did.
    let put = folder.json(&["enqueue", "invoice.pay", r#"{"invoice":18}"#]);
    let worker = Worker::new(&semel).handle(async |job: Pay| Return(job.invoice)).start().unwrap();
    assert_eq!(job.result::<u64>().await.unwrap(), 17);
    let put = semel.job(JobId::parse(put["job"]["id"].as_str().unwrap(), "").unwrap());
    assert_eq!(put.result::<u64>().await.unwrap(), 18);
    assert_eq!(folder.json(&["job", &id])["state"], "completed");
    worker.stop().await;
    admin.stop().await.unwrap();
    semel.close().await.unwrap();
    assert_eq!(folder.json(&["job", &id])["result"], 17, "the file is there for the command");
}

/// Within a router of the program's own, below a path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_works_with_routes_that_a_program_mounts() {
    let folder = Folder::new();
    let semel = Semel::open(&format!("sqlite:{}", folder.path().join("semel.db").display())).await.unwrap();
    let app = axum::Router::new().nest("/queue", semel.router().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/queue", listener.local_addr().unwrap());
    tokio::spawn(semel_server::serve(listener, app, semel_server::Limits::default(), std::future::pending()));
    let id = semel.enqueue(Pay { invoice: 17 }).await.unwrap().id().unwrap().to_string();
    let listed = folder.json(&["jobs", "--server", &url]);
    assert_eq!(listed["jobs"][0]["id"], json!(id));
    let explained = folder.json(&[&EXPLAIN[..], &["--server", &url]].concat());
    assert_eq!(explained["decision"], "existing", "{explained}");
    semel.close().await.unwrap();
}

/// As the address of a server in a container does outside of it. Nothing is enqueued there, and no token is
/// sent.
#[test]
fn an_address_that_leads_to_another_server_is_not_taken_for_that_of_the_stores_owner() {
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    let server = Server::start(&folder, &[]);
    let stranger = Server::start(&elsewhere, &[]);
    let lock = folder.path().join("semel.db.lock");
    let said = std::fs::read_to_string(&lock).unwrap();
    assert!(said.contains(&server.url), "{said}");
    let enqueue = ["enqueue", "invoice.pay", r#"{"invoice":18}"#];
    std::fs::write(&lock, said.replace(&server.url, &stranger.url)).unwrap();
    let ran = folder.run(&enqueue);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.err.contains("is not the one that has it") && ran.err.contains("--server"), "{}", ran.err);
    assert_eq!(elsewhere.json(&["jobs"])["jobs"], json!([]));
    std::fs::write(&lock, said).unwrap();
    assert_eq!(folder.json(&enqueue)["outcome"], "created");
    server.stop();
    stranger.stop();
}
