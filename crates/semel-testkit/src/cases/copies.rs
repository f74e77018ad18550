//! Copies of a store: from every engine into memory, and from memory into every engine.

use std::sync::{Arc, Mutex};

use semel_core::draft::{Group, Reads, Write};
use semel_core::enqueue::enqueue;
use semel_store::StoreError;
use semel_store::backend::{Applied, Backend, Batch, BoxFuture};
use semel_store::copy::{CopyError, copy, unfinished};
use semel_store::decor::{Fault, Faulty};
use semel_store::layer::Layer;
use semel_store::memory::Memory;

use crate::copying::{fill, go_on, same};
use crate::fixture::{Fixture, Step};
use crate::make::{job, keyed};

/// An in-memory store with a clock of its own, which is behind that of any other filled store.
fn memory() -> Fixture {
    Fixture::new(Step::Nothing, |clock| Arc::new(Memory::new(clock.clone())))
}

async fn carry(from: &Fixture, to: &Fixture) -> Result<u64, CopyError> {
    let copied = copy(&*from.backend(), &*to.backend(), &mut |_| {}).await;
    step(to).await;
    copied.map(|copied| copied.total())
}

/// Commits an empty decision, so that what a case does after each step is done to the copy as well.
async fn step(f: &Fixture) {
    f.decide(|draft| Ok(draft.now())).await;
}

/// The copy has every record, and gives callers, workers and duties the same answers.
pub async fn a_copy_answers_as_its_original(f: &Fixture) {
    let (filled, other) = (fill(f).await, memory());
    assert!(carry(f, &other).await.unwrap() > 30);
    same(f, &other, &filled).await;
    assert_eq!(f.backend().secret(), other.backend().secret());
    let told = go_on(&other, &filled).await;
    assert_eq!(told, go_on(f, &filled).await);
}

/// Every engine takes over another engine's data, including ended jobs and leases.
pub async fn a_store_goes_on_for_the_one_it_is_a_copy_of(f: &Fixture) {
    let other = memory();
    let filled = fill(&other).await;
    carry(&other, f).await.unwrap();
    same(&other, f, &filled).await;
    let told = go_on(f, &filled).await;
    assert_eq!(told, go_on(&other, &filled).await);
}

/// Wherever the copying was broken off, the target reports that it is incomplete, and the next attempt goes
/// on with what is there.
pub async fn a_copy_that_was_broken_off_goes_on(f: &Fixture) {
    let other = memory();
    let filled = fill(&other).await;
    let mut broken_off = 0;
    for commits in 0.. {
        let faulty = Faulty::new(f.backend());
        let last = if commits % 2 == 0 { Fault::Before } else { Fault::After };
        faulty.script_commits((0..commits).map(|_| Fault::None).chain([last]));
        let copied = copy(&*other.backend(), &faulty, &mut |_| {}).await;
        drop(faulty);
        step(f).await;
        let is_unfinished = unfinished(&*f.backend()).await.unwrap();
        if copied.is_ok() || (commits > 4 && !is_unfinished) {
            assert!(!is_unfinished);
            break;
        }
        assert!(commits == 0 || is_unfinished, "after {commits} commits");
        broken_off += 1;
    }
    assert!(broken_off > 5, "{broken_off}");
    same(&other, f, &filled).await;
    let told = go_on(f, &filled).await;
    assert_eq!(told, go_on(&other, &filled).await);
}

/// Stores are never mixed, and an incomplete copy is never taken for a complete one.
pub async fn a_copy_that_cannot_be_whole_is_refused(f: &Fixture) {
    let other = memory();
    other.create(&keyed("a").offer()).await;
    // A target that is not empty, whatever it holds, is refused.
    f.create(&job().offer()).await;
    assert_eq!(carry(&other, f).await, Err(CopyError::NotEmpty));
    f.backend().clear().await.unwrap();
    step(f).await;
    // An incomplete copy is not a valid source, nor a target for another store.
    let faulty = Faulty::new(f.backend());
    faulty.script_commits([Fault::None, Fault::Before]);
    assert!(matches!(copy(&*other.backend(), &faulty, &mut |_| {}).await, Err(CopyError::Target(_))));
    drop(faulty);
    assert_eq!(carry(f, &memory()).await, Err(CopyError::SourceUnfinished));
    let stranger = memory();
    assert_eq!(carry(&stranger, f).await, Err(CopyError::OfAnother));
    // What was copied is no longer what the source has now.
    other.create(&keyed("b").offer()).await;
    assert_eq!(carry(&other, f).await, Err(CopyError::SourceMoved));
}

/// A target that writes something to the source during its first commit of a job.
struct Meanwhile {
    target: Arc<dyn Backend>,
    source: Arc<dyn Backend>,
    group: Mutex<Option<Group>>,
}

impl Layer for Meanwhile {
    type Inner = dyn Backend;

    fn inner(&self) -> &dyn Backend {
        &*self.target
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        let is_job = |write: &Write| matches!(write, Write::Insert { .. });
        let brings_jobs = batch.groups.iter().any(|group| group.writes.iter().any(is_job));
        let group = self.group.lock().unwrap().take_if(|_| brings_jobs);
        Box::pin(async move {
            if let Some(group) = group {
                self.source.commit(Batch { groups: vec![group], claims: Vec::new() }).await?;
            }
            self.target.commit(batch).await
        })
    }
}

/// Extending a lease adds nothing to the log; every other write does.
pub async fn a_source_that_somebody_writes_to_is_noticed(f: &Fixture) {
    f.create(&keyed("a").offer()).await;
    let (mut run, _) = f.claim_one().await;
    run.version += 1;
    let beat = Group { writes: vec![Write::Update { head: run }], ..Group::default() };
    let (_, offered) = f.decided(&Reads::default(), |draft| enqueue(draft, &job().offer())).await;
    for group in [beat, offered] {
        let other = memory();
        let target =
            Meanwhile { target: other.backend(), source: f.backend(), group: Mutex::new(Some(group)) };
        let copied = copy(&*f.backend(), &target, &mut |_| {}).await;
        assert_eq!(copied, Err(CopyError::SourceMoved));
        assert!(unfinished(&*other.backend()).await.unwrap());
    }
}
