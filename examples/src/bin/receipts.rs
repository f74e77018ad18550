//! Sends the receipts: a worker whose effect and whose completion are one commit.
//!
//! There is never a receipt whose job runs again, nor a finished job without its receipt, whenever this
//! program is killed. Start as many as you like.
//!
//!     DATABASE_URL=postgres://localhost/shop cargo run -p semel-examples --bin example-receipts

use std::time::Duration;

use semel::{Run, Semel, State, Worker};
use semel_examples::{SendReceipt, TABLES, database_url};
use semel_sqlx::{Sqlx, roll_back_on_release};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

#[derive(Clone)]
struct Shop {
    pool: PgPool,
    semel: Semel,
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

async fn send(job: SendReceipt, run: Run, State(shop): State<Shop>) -> Result<(), Failed> {
    let mut tx = shop.pool.begin().await?;
    sqlx::query("INSERT INTO receipt (event, invoice) VALUES ($1, $2)")
        .bind(&job.event)
        .bind(job.invoice)
        .execute(&mut *tx)
        .await?;
    // Refused if the lease was lost, because another worker then has the job: the `?` rolls the receipt back.
    shop.semel.in_transaction(Sqlx(&mut tx)).complete(&run).await?;
    tx.commit().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let url = database_url()?;
    // A handler may be dropped while it begins a transaction.
    let pool = roll_back_on_release(PgPoolOptions::new()).connect(&url).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let semel = Semel::open(&url).await?;
    // A worker that dies delays its jobs no longer than its lease.
    let lease = Duration::from_secs(5);
    let worker = Worker::new(&semel).lease(lease).state(Shop { pool, semel: semel.clone() }).handle(send);
    // Until Ctrl-C or SIGTERM; runs under way are finished first.
    worker.run_until(semel::shutdown_signal()).await?;
    semel.close().await?;
    Ok(())
}
