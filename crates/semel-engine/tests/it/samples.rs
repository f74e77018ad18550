//! Samples of offers: off unless enabled, bounded, and separate for each tenant.

use std::sync::Arc;

use semel_core::enqueue::{Identity, Mode, Offer};
use semel_core::tenant::Tenant;
use semel_core::unique::sample::Finding;
use semel_core::unique::{PolicySpec, UniquePolicy};
use semel_engine::Engine;
use semel_engine::samples::SAMPLE_TYPES_MAX;
use semel_store::memory::Memory;
use semel_testkit::make::{job, key};

fn offer(job_type: &str, number: usize) -> Offer {
    let spec = PolicySpec { keys: Some(vec!["args".to_owned()]), ..PolicySpec::default() };
    let policy = Arc::new(UniquePolicy::build(&spec, "").unwrap());
    let body = semel_core::body::Body {
        args: format!("[{number}]").into(),
        meta: "{}".into(),
        ..semel_core::body::Body::default()
    };
    let identity = Identity { policy, key: key(&format!("{job_type} {number}")) };
    Offer { unique: Some(identity), body: body.encode().unwrap(), ..job().of_type(job_type).offer() }
}

fn engine() -> Engine {
    Engine::without_duties(Arc::new(Memory::default())).unwrap()
}

#[tokio::test]
async fn nothing_is_sampled_unless_it_is_asked_for() {
    let engine = engine();
    engine.enqueue(offer("a.b", 1), "test").await.unwrap();
    assert!(engine.advice().0.is_empty() && !engine.samples_policies());
    engine.sample_policies();
    engine.enqueue(offer("a.b", 1), "test").await.unwrap();
    let batch = (2..40).map(|number| offer("a.b", number)).collect();
    engine.enqueue_batch(batch, Mode::Each, "test").await.unwrap();
    let (advised, left_out) = engine.advice();
    assert_eq!((advised.len(), advised[0].jobs, advised[0].duplicates, left_out), (1, 39, 1, 0));
    // After the store was emptied there is no advice left.
    engine.forget_what_was_seen();
    assert!(engine.advice().0.is_empty() && engine.samples_policies());
    let batch = (100..140).map(|number| offer("a.b", number)).collect();
    engine.enqueue_batch(batch, Mode::Each, "test").await.unwrap();
    let findings = &engine.advice().0[0].findings;
    assert!(
        matches!(&findings[..], [Finding::NeverMatches { pointer, .. }] if pointer == "/args/0"),
        "{findings:?}"
    );
    engine.close().await;
}

#[tokio::test]
async fn types_are_bounded_and_each_tenant_has_its_own() {
    let engine = engine();
    engine.sample_policies();
    for number in 0..SAMPLE_TYPES_MAX + 3 {
        engine.enqueue(offer(&format!("a.t{number}"), 1), "test").await.unwrap();
    }
    let (advised, left_out) = engine.advice();
    assert_eq!((advised.len(), left_out), (SAMPLE_TYPES_MAX, 3));
    let other = engine.within(&Tenant::parse("other", "").unwrap());
    assert!(other.advice().0.is_empty());
    engine.close().await;
}
