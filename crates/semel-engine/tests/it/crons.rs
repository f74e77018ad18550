//! How many crons a tenant has, and which requests wait while they are counted.

use std::sync::Arc;

use semel_core::cron::Overlap;
use semel_core::sight::Queues;
use semel_core::tenant::Tenant;
use semel_engine::Engine;
use semel_store::backend::{BoxFuture, Found, Seek};
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, StoreError};
use semel_testkit::flows::{cron_name, registration};
use semel_testkit::make::job;
use semel_testkit::patience::PATIENCE;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// The tenant whose crons are read only with a permit of the gate.
const SLOW: &str = "acme";

/// A store that is slow for one tenant's crons, and for nothing else.
struct Slow {
    inner: Memory,
    /// One permit per read of these crons that has begun.
    asked: Semaphore,
    /// Lets one such read continue per permit.
    gate: Semaphore,
}

impl Layer for Slow {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn documents(&self, seek: Seek) -> BoxFuture<'_, Result<Found, StoreError>> {
        let is_slow = matches!(&seek, Seek::Kind { from: Some(from), .. } if Tenant::of_own(from).0 == SLOW);
        Box::pin(async move {
            if is_slow {
                self.asked.add_permits(1);
                self.gate.acquire().await.unwrap().forget();
            }
            self.inner.documents(seek).await
        })
    }
}

fn of(engine: &Engine, tenant: &str) -> Engine {
    engine.within(&Tenant::parse(tenant, "").unwrap())
}

/// Asks whether the tenant has room for one more cron.
fn ask(engine: &Engine, tenant: &str) -> JoinHandle<bool> {
    let engine = of(engine, tenant);
    tokio::spawn(async move {
        let wanted = registration("0 3 1 1 *", Overlap::Allow, job().offer());
        engine.has_room_for_cron(&cron_name("a"), &wanted).await.unwrap()
    })
}

/// A tenant with much to read, or slow reads of its crons, must not delay others.
#[tokio::test]
async fn while_a_tenants_crons_are_counted_no_other_tenant_waits() {
    let store = Slow { inner: Memory::default(), asked: Semaphore::new(0), gate: Semaphore::new(0) };
    let store = Arc::new(store);
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let first = ask(&engine, SLOW);
    store.asked.acquire().await.unwrap().forget();
    let second = ask(&engine, SLOW);
    let others = async {
        assert!(ask(&engine, "globex").await.unwrap());
        let removed = of(&engine, "globex").remove_cron(cron_name("a"), Queues::All).await.unwrap();
        assert!(removed.is_none());
    };
    tokio::time::timeout(PATIENCE, others).await.unwrap();
    assert!(!first.is_finished() && !second.is_finished());
    // One read is enough: the second request uses what the first has found.
    store.gate.add_permits(1);
    let both = async { first.await.unwrap() && second.await.unwrap() };
    assert!(tokio::time::timeout(PATIENCE, both).await.unwrap());
    assert_eq!(store.asked.available_permits(), 0);
}
