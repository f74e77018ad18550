//! Counters of offers that no caller waits for: cron ticks and workflow steps.

use std::sync::Arc;
use std::time::Duration;

use semel_core::cron::Overlap;
use semel_core::lease::Bearer;
use semel_core::sight::Queues;
use semel_engine::Engine;
use semel_engine::duty::Tend;
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use semel_testkit::fixture::claim;
use semel_testkit::flows::{chain, cron_name, registration};
use semel_testkit::make::{job, keyed};

fn counted(engine: &Engine, job_type: &str, outcome: &str) -> u64 {
    let all = engine.counters().all();
    let wanted = all.iter().filter(|((its, _, name), _)| its.as_str() == job_type && *name == outcome);
    wanted.map(|(_, count)| count).sum()
}

/// By schedule and by hand. A tick skipped by its overlap policy offers nothing.
#[tokio::test]
async fn a_tick_is_counted_by_what_became_of_its_job() {
    let clock = ManualClock::default();
    let engine = Engine::without_duties(Arc::new(Memory::new(clock.clone()))).unwrap();
    let once = keyed("k").of_type("a.tick").on_conflict("ignore").offer();
    engine.register_cron(cron_name("c"), registration("* * * * *", Overlap::Allow, once)).await.unwrap();
    clock.advance(Duration::from_secs(60));
    assert_eq!(Tend.run_once(engine.store()).await.unwrap().moved, 1);
    assert_eq!((counted(&engine, "a.tick", "created"), counted(&engine, "a.tick", "existing")), (1, 0));
    engine.trigger_cron(cron_name("c"), Queues::All).await.unwrap().unwrap();
    assert_eq!((counted(&engine, "a.tick", "created"), counted(&engine, "a.tick", "existing")), (1, 1));

    let alone = registration("@yearly", Overlap::Skip, job().of_type("a.alone").offer());
    engine.register_cron(cron_name("alone"), alone).await.unwrap();
    for _ in 0..2 {
        engine.trigger_cron(cron_name("alone"), Queues::All).await.unwrap().unwrap();
    }
    assert_eq!(engine.counters().all().iter().filter(|((its, ..), _)| its.as_str() == "a.alone").count(), 1);
    assert_eq!(counted(&engine, "a.alone", "created"), 1);
}

/// First steps are offered with the workflow, the others when what they wait for ends.
#[tokio::test]
async fn a_step_is_counted_when_it_is_offered() {
    let engine = Engine::without_duties(Arc::new(Memory::new(ManualClock::default()))).unwrap();
    let again =
        || keyed("k").of_type("a.step").on_conflict("ignore").states(semel_core::state::StateSet::ALL);
    let plan = chain([job().of_type("a.first").offer(), again().offer(), again().offer()]);
    engine.create_workflow(plan).await.unwrap();
    assert_eq!((counted(&engine, "a.first", "created"), counted(&engine, "a.step", "created")), (1, 0));
    for _ in 0..2 {
        let run = engine.claim(claim(&["default"], 1)).await.unwrap().remove(0).head.id;
        engine.complete(run, Bearer::default(), None).await.unwrap();
    }
    assert_eq!((counted(&engine, "a.step", "created"), counted(&engine, "a.step", "existing")), (1, 1));
}
