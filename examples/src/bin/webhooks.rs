//! Receives webhooks: an upstream delivers each event at least once, often twice at the same moment.
//!
//! The payment and the job that follows from it are written in one transaction: both, or neither, and the job
//! once.
//!
//! ```sh
//! DATABASE_URL=postgres://localhost/shop cargo run -p semel-examples --bin example-webhooks
//! curl http://127.0.0.1:8000/webhooks -H 'content-type: application/json' \
//!   -d '{"event": "evt_1", "invoice": 17, "cents": 4200}'
//! ```

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program says where it listens, and what went wrong"
)]

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use semel::Semel;
use semel_examples::{SendReceipt, TABLES, database_url};
use semel_sqlx::{Sqlx, roll_back_on_release};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

#[derive(Clone)]
struct Shop {
    pool: PgPool,
    semel: Semel,
}

/// What the upstream sends.
#[derive(Deserialize)]
struct Paid {
    event: String,
    invoice: i64,
    cents: i64,
}

/// Our answer. The upstream ignores it, but it shows up in the upstream's log.
#[derive(Serialize)]
struct Received {
    is_new: bool,
    job: Option<String>,
}

async fn receive(State(shop): State<Shop>, Json(paid): Json<Paid>) -> Result<Json<Received>, Problem> {
    let mut tx = shop.pool.begin().await?;
    sqlx::query("INSERT INTO payment (event, invoice, cents) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")
        .bind(&paid.event)
        .bind(paid.invoice)
        .bind(paid.cents)
        .execute(&mut *tx)
        .await?;
    // Last in the transaction: a concurrent delivery of the same event waits for our commit, and is then a
    // duplicate.
    let job = SendReceipt { event: paid.event, invoice: paid.invoice };
    let outcome = shop.semel.in_transaction(Sqlx(&mut tx)).enqueue(job).await?;
    tx.commit().await?;
    Ok(Json(Received { is_new: outcome.is_inserted(), job: outcome.id().map(|id| id.to_string()) }))
}

/// Nothing was kept: the transaction rolls back when it is dropped. After a 503 the upstream delivers the
/// event again; the reason is for our log, not for the upstream.
struct Problem;

impl<E: std::error::Error> From<E> for Problem {
    fn from(error: E) -> Self {
        eprintln!("an event was not stored, so the upstream must deliver it again: {error}");
        Self
    }
}

impl axum::response::IntoResponse for Problem {
    fn into_response(self) -> axum::response::Response {
        (StatusCode::SERVICE_UNAVAILABLE, "the event was not stored; deliver it again").into_response()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = database_url()?;
    // A handler may be dropped while it begins a transaction.
    let pool = roll_back_on_release(PgPoolOptions::new()).connect(&url).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let shop = Shop { pool, semel: Semel::open(&url).await? };
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8000".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, Router::new().route("/webhooks", post(receive)).with_state(shop)).await?;
    Ok(())
}
