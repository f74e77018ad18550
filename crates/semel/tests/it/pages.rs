//! The pages' Rust code is repeated here line by line, with whatever it needs around it, so that it is
//! compiled. A placeholder (`…`) on a page ends the compared part of its line.

#![allow(
    clippy::print_stdout,
    dead_code,
    unused_variables,
    clippy::unnecessary_operation,
    reason = "it is compiled, and need not be run"
)]

use std::time::Duration;

use diesel_async::AsyncPgConnection;
use semel::testing::TestQueue;
use semel::{
    CancellationToken, Chain, Envelope, Group, Job, Keep, Lease, OnConflict, Overlap, RateLimit, Run, Semel,
    State, Unique, Worker,
};
use semel_diesel::Diesel;
use semel_sqlx::Sqlx;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio_postgres::Client;

const SOURCE: &str = include_str!("pages.rs");
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

type Anything<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
type MailError = semel::Error;

#[derive(Serialize, Deserialize, Job)]
#[job(type = "email.welcome", queue = "mail", max_attempts = 5, timeout = "30s")]
#[job(unique(args("user_id"), period = "1h", on_conflict = "ignore"))]
struct Welcome {
    user_id: u64,
    #[job(sensitive)]
    address: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(type = "order.check")]
struct Check {
    order: u64,
}

#[derive(Serialize, Deserialize, Job)]
#[job(type = "payment.capture")]
struct Capture {
    order: u64,
}

#[derive(Serialize, Deserialize, Job)]
#[job(type = "order.pack")]
struct Pack {
    order: u64,
}

#[derive(Serialize, Deserialize, Job)]
#[job(type = "order.ship")]
struct Ship {
    order: i64,
}

#[derive(Serialize, Deserialize, Job)]
#[job(type = "report.daily")]
struct Report {
    kind: String,
}

#[derive(Serialize, Deserialize)]
struct Receipt;

#[derive(Clone)]
struct Mailer;

struct Shop {
    semel: Semel,
    database: String,
}

#[derive(Debug)]
struct ShopError;

impl std::fmt::Display for ShopError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it failed")
    }
}

impl<E: std::error::Error> From<E> for ShopError {
    fn from(_: E) -> Self {
        Self
    }
}

#[derive(Debug)]
struct Error;

impl From<diesel::result::Error> for Error {
    fn from(_: diesel::result::Error) -> Self {
        Self
    }
}

impl From<semel::Error> for Error {
    fn from(_: semel::Error) -> Self {
        Self
    }
}

diesel::table! {
    orders (id) {
        id -> BigInt,
    }
}

async fn capture(job: Capture) -> semel::Return<Receipt> {
    semel::Return(Receipt)
}

async fn readme() -> Anything {
    let semel = Semel::open("sqlite:app.db").await?;
    let worker = Worker::new(&semel).handle(capture).start()?;
    let job = semel.enqueue(Capture { order: 7 }).await?;
    let receipt: Receipt = job.result().await?;
    Ok(())
}

async fn kept() -> Anything {
    let semel = Semel::open("sqlite:app.db")
        .keep(Keep::new().completed(36 * HOUR).discarded(365 * 24 * HOUR))
        .keep_queue("billing", Keep::new().completed(30 * 24 * HOUR))
        .keep_type("email.send", Keep::new().completed(HOUR))
        .await?;
    Ok(())
}

async fn by_templates() -> Anything {
    let semel = Semel::open("sqlite:app.db").templates("./templates").await?;
    semel.reload_templates().await?;
    Ok(())
}

#[rustfmt::skip]
async fn enqueue(address: String, event: Capture, job: Welcome, mail: Welcome, jobs: Vec<Capture>, text: &str) -> Anything {
    let semel = Semel::open("sqlite:app.db").await?;
    let kept = job;
    let job = semel.enqueue(Welcome { user_id: 42, address }).after(Duration::from_secs(600)).await?;
    let job = kept;
    semel.enqueue(event).key("evt_1").await?;
    semel.enqueue(job).unique(Unique::by_args(["user_id"]).within(HOUR).on_conflict(OnConflict::Ignore)).await?;
    semel.enqueue(mail).rate_limit(RateLimit::new("smtp").concurrency(5).rate(100, MINUTE)).await?;
    semel.enqueue_many(jobs).await?.counts.inserted;
    semel.enqueue(Envelope::from_json(text)).await?;
    Ok(())
}

async fn why(semel: Semel, job: Welcome) -> Anything {
    let why = semel.enqueue(job).explain().await?;
    println!("{why}");
    for holding in why.holders.iter().filter(|holding| holding.blocking.is_blocking()) {
        println!("{holding:?}");
    }
    Ok(())
}

async fn what_is_there(semel: Semel) -> Anything {
    let failed = semel.jobs().of::<Welcome>().dead_letters().await?;
    for job in &failed.jobs {
        println!("{} {}: {:?}", job.id(), job.payload::<Welcome>()?.user_id, job.last_failure());
        semel.job(job.id()).retry().await?;
    }
    let mail = semel.queue("mail")?;
    mail.pause().await?;
    Ok(())
}

#[rustfmt::skip]
async fn welcome(job: Welcome, State(mail): State<Mailer>, lease: Lease, token: CancellationToken) -> Result<(), MailError> {
    Ok(())
}

#[rustfmt::skip]
async fn workers(semel: Semel, mailer: Mailer) -> Anything {
    let worker = Worker::new(&semel).state(mailer).handle(welcome).queue("mail", 32).prefetch(64).start()?;
    worker.stop().await;
    Ok(())
}

#[rustfmt::skip]
async fn workflows(semel: Semel, kind: String) -> Anything {
    let order = semel.start(Chain::new().then(Check { order: 7 }).then(Group::new().with(Capture { order: 7 }).with(Pack { order: 7 })))
        .name("order 7").await?;
    order.wait().await?.status();
    semel.schedule("daily-report", "0 9 * * MON-FRI", Report { kind }).timezone("Europe/Berlin").overlap(Overlap::Skip).await?;
    Ok(())
}

async fn sign_up(semel: &Semel) -> Anything {
    semel.enqueue(Welcome { user_id: 42, address: "a@example.com".to_owned() }).await?;
    Ok(())
}

async fn tests() -> Anything {
    let queue = TestQueue::new();
    sign_up(&queue).await?;
    assert_eq!(queue.assert_enqueued::<Welcome>().await[0].user_id, 42);
    let ran = queue.drain(&Worker::new(&queue).handle(welcome)).await;
    queue.advance(Duration::from_secs(3600)).await;
    Ok(())
}

async fn in_transactions(client: &mut Client, pool: PgPool, conn: &mut AsyncPgConnection) -> Anything {
    let semel = Semel::open("postgres://semel@db.example/shop").await?;
    let order = client.transaction().await?;
    order.execute("INSERT INTO orders (id) VALUES ($1)", &[&7_i64]).await?;
    semel.in_transaction(&order).enqueue(Ship { order: 7 }).await?;
    order.commit().await?;

    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(7_i64).execute(&mut *tx).await?;
    semel.in_transaction(Sqlx(&mut tx)).enqueue(Ship { order: 7 }).await?;
    tx.commit().await?;
    Ok(())
}

#[rustfmt::skip]
async fn in_diesel(semel: Semel, conn: &mut AsyncPgConnection) -> Result<(), Error> {
    // Imported here, since other drivers have an `execute` of their own.
    use diesel::ExpressionMethods as _;
    use diesel_async::{AsyncConnection as _, RunQueryDsl as _};

    conn.transaction::<_, Error, _>(async |conn| {
        diesel::insert_into(orders::table).values(orders::id.eq(7)).execute(conn).await?;
        semel.in_transaction(Diesel(conn)).enqueue(Ship { order: 7 }).await?;
        Ok(())
    }).await?;
    Ok(())
}

async fn ship(job: Ship, run: Run, State(shop): State<Shop>) -> Result<(), ShopError> {
    let (mut client, _) = tokio_postgres::connect(&shop.database, tokio_postgres::NoTls).await?;
    let effect = client.transaction().await?;
    effect.execute("UPDATE orders SET shipped = true WHERE id = $1", &[&job.order]).await?;
    shop.semel.in_transaction(&effect).complete(&run).await?;
    effect.commit().await?;
    Ok(())
}

async fn told_to_stop(semel: Semel, mailer: Mailer, listener: TcpListener, app: axum::Router) -> Anything {
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        semel::shutdown_signal().await;
        told.cancel();
    });
    let serve = async {
        let until = stop.clone().cancelled_owned();
        axum::serve(listener, app).with_graceful_shutdown(until).await
    };
    let work = async {
        let worker = Worker::new(&semel).state(mailer).handle(welcome);
        let ended = worker.run_until(stop.cancelled()).await;
        stop.cancel();
        ended
    };
    let (served, worked) = tokio::join!(serve, work);
    semel.close().await?;
    served?;
    worked?;
    Ok(())
}

fn of_a_server(token: &str) -> Anything<Worker> {
    let authority = std::fs::read("ca.pem")?;
    let client = semel_client::Client::new("https://jobs.internal")?.with_ca(&authority)?;
    let worker = Worker::remote_with(client.with_token(token)?);
    Ok(worker)
}

/// The lines of a page's Rust blocks, without comments; of the README, the block under its heading.
fn lines(page: &str) -> Vec<String> {
    let blocks: Vec<&str> = match page.split_once("## In a Rust program\n\n") {
        Some((_, rest)) => vec![rest.split_once("\n\n").unwrap().0],
        None => page.split("```rust\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect(),
    };
    let code = |line: &str| {
        let line = line.split_once(" // ").or_else(|| line.split_once("// …")).map_or(line, |(code, _)| code);
        line.split('…').next().unwrap_or_default().trim().trim_end_matches(" {").to_owned()
    };
    blocks.iter().flat_map(|block| block.lines()).map(code).filter(|line| !line.is_empty()).collect()
}

#[test]
fn the_compiler_has_read_what_the_pages_show() {
    let ours: Vec<&str> = SOURCE.lines().map(str::trim).collect();
    for (name, page, least) in [
        ("README.md", include_str!("../../../../README.md"), 4),
        ("library.md", include_str!("../../../../docs/guide/library.md"), 26),
        ("postgresql.md", include_str!("../../../../docs/guide/postgresql.md"), 18),
    ] {
        let lines = lines(page);
        assert!(lines.len() >= least, "{name}: {} lines", lines.len());
        for line in lines {
            let is_here = ours.iter().any(|own| own.starts_with(&line));
            assert!(is_here, "{name} shows what is not compiled here: {line}");
        }
    }
}

#[test]
fn the_outbox_of_the_page_is_that_of_the_examples() {
    let page = include_str!("../../../../docs/guide/postgresql.md");
    for (language, example) in [
        ("sql", include_str!("../../../../examples/outbox/outbox.sql")),
        ("python", include_str!("../../../../examples/outbox/outbox.py")),
        ("js", include_str!("../../../../examples/outbox/outbox.mjs")),
    ] {
        let (_, block) = page.split_once(&format!("```{language}\n")).unwrap();
        let (block, _) = block.split_once("```").unwrap();
        let insert = |text: &str| {
            let (_, rest) = text.split_once("INSERT INTO semel.outbox (envelope) VALUES (").unwrap();
            rest.split(')').next().unwrap().split_whitespace().collect::<String>()
        };
        assert_eq!(insert(block), insert(example), "{language}");
    }
    // The SQL on the library's page is part of an example.
    let library = include_str!("../../../../docs/guide/library.md");
    let (_, update) = library.split_once("```sql\n").unwrap();
    let (update, _) = update.split_once("\n```").unwrap();
    assert!(include_str!("../../examples/fencing.rs").contains(update), "{update}");
}
