//! Records that cannot be read: each is refused, and nothing else is.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::cron::{self, Overlap};
use semel_core::draft::{Reads, Record, Snapshot};
use semel_engine::Engine;
use semel_engine::duty::Tend;
use semel_store::backend::BoxFuture;
use semel_store::clock::ManualClock;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, StoreError};
use semel_testkit::flows::{cron_name, registration};
use semel_testkit::make::job;

const SECOND: Duration = Duration::from_secs(1);

/// A store in which some documents cannot be read.
struct Spoiled {
    inner: Memory,
    spoiled: Mutex<HashSet<Record>>,
}

impl Layer for Spoiled {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        let mut asked = reads.documents.iter().cloned().map(Record::Document);
        let spoiled = self.spoiled.lock().unwrap();
        if let Some(record) = asked.find(|record| spoiled.contains(record)) {
            let error = StoreError::Corrupt(format!("{record:?}"));
            return Box::pin(std::future::ready(Err(error)));
        }
        self.inner.load(reads)
    }
}

struct Bench {
    engine: Engine,
    store: Arc<Spoiled>,
    clock: ManualClock,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::default();
        let store = Arc::new(Spoiled { inner: Memory::new(clock.clone()), spoiled: Mutex::default() });
        let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
        Self { engine, store, clock }
    }

    fn spoil(&self, record: Record) {
        self.store.spoiled.lock().unwrap().insert(record);
    }
}

/// More of them than one run decides.
#[tokio::test]
async fn crons_that_cannot_be_read_keep_none_behind_them_from_its_tick() {
    let bench = Bench::new();
    let minutely = || registration("* * * * *", Overlap::Allow, job().of_type("a.tick").offer());
    for number in 0..150 {
        let name = cron_name(&format!("a{number:03}"));
        bench.engine.register_cron(name.clone(), minutely()).await.unwrap();
        bench.spoil(Record::Document(cron::key(&name)));
    }
    bench.engine.register_cron(cron_name("z"), minutely()).await.unwrap();
    bench.clock.advance(60 * SECOND);
    let ran = Tend.run_once(bench.engine.store()).await.unwrap();
    assert_eq!((ran.moved, ran.held_up), (1, 0));
    let again = Tend.run_once(bench.engine.store()).await;
    assert!(matches!(again, Err(StoreError::Corrupt(_))), "{again:?}");
}
