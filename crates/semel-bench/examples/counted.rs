//! So many jobs of one case, for whoever counts its instructions: `counted CASE JOBS`.
//!
//! One thread, and a store's own: what is counted is ours, not what threads do to each other. `cargo xtask bench instructions` runs it
//! twice, for some jobs and for more, and goes by the difference.

use std::sync::Arc;

use semel_bench::load::{Work, queue};
use semel_core::enqueue::{Batch, Mode, Offer};
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_engine::Engine;
use semel_ojs::{Enqueue, Terms};
use semel_store::backend::Claim;
use semel_store::memory::Memory;

type Failure = Box<dyn std::error::Error>;

/// Jobs of one batch.
const SOME: u64 = 500;
/// Jobs that duplicates are of. Who was turned away is written once a second and for each of them: with many, a slower machine would
/// take more instructions, for it takes more seconds.
const HOLDERS: u64 = 10;
const REQUEST: &str = r#"{"type":"payment.capture","args":[{"order":7,"amount":1299,"shop":"north"}],"meta":{"tenant":"acme"},
    "options":{"queue":"payments","priority":5,"unique":{"keys":["type","args"],"args_keys":["order"],"on_conflict":"ignore"}}}"#;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let case = args.next().ok_or("which case?")?;
    let jobs: u64 = args.next().ok_or("how many jobs?")?.parse()?;
    let folder = std::env::temp_dir().join(format!("semel-counted-{}", std::process::id()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let engine = if case.ends_with("on a file") {
            std::fs::create_dir_all(&folder)?;
            Engine::start(Arc::new(semel_sqlite::Sqlite::open(folder.join("jobs.db"))?))?
        } else {
            Engine::start(Arc::new(Memory::default()))?
        };
        let done = play(&engine, &case, jobs).await;
        engine.stop().await;
        done
    });
    if folder.is_dir() {
        std::fs::remove_dir_all(folder)?;
    }
    done
}

async fn play(engine: &Engine, case: &str, jobs: u64) -> Result<(), Failure> {
    let work = Work::new(200, true)?;
    match case {
        "a request is read" => {
            for _ in 0..jobs {
                Enqueue::parse(REQUEST, Terms::trusted()).map_err(|refused| format!("{refused:?}"))?;
            }
        }
        "a new job alone" => {
            for number in 0..jobs {
                engine.enqueue(work.offer(number)?, "counted").await?;
            }
        }
        "a duplicate" | "a duplicate, on a file" => {
            put_in(engine, &work, HOLDERS).await?;
            for number in 0..jobs {
                engine.enqueue(work.offer(number % HOLDERS)?, "counted").await?;
            }
        }
        "new jobs of a batch" | "new jobs of a batch, on a file" => put_in(engine, &work, jobs).await?,
        "a job's whole way" | "a job's whole way, on a file" => {
            put_in(engine, &work, jobs).await?;
            let mut ended = 0;
            while ended < jobs {
                let (queues, grant) = (vec![queue("bench")?], Grant::new("w".into(), None));
                let claimed = engine.claim(Claim { queues, limit: 50, grant, closed: Vec::new() }).await?;
                for job in claimed {
                    let bearer = Bearer { lease: Some(LeaseToken(job.head.fence)), worker: None };
                    engine.complete(job.head.id, bearer, None).await?;
                    ended += 1;
                }
            }
        }
        other => return Err(format!("there is no case `{other}`").into()),
    }
    Ok(())
}

async fn put_in(engine: &Engine, work: &Work, jobs: u64) -> Result<(), Failure> {
    for from in (0..jobs).step_by(SOME as usize) {
        let offers = (from..jobs.min(from + SOME))
            .map(|number| work.offer(number))
            .collect::<Result<Vec<Offer>, _>>()?;
        let Batch::Done(_) = engine.enqueue_batch(offers, Mode::Each, "counted").await? else {
            return Err("the batch was refused".into());
        };
    }
    Ok(())
}
