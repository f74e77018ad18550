//! What is seen of a commit while it is under way.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]

use semel_core::draft::Draft;
use semel_core::enqueue::{Outcome, enqueue};
use semel_testkit::TempDir;
use semel_testkit::make::keyed;

use super::*;

#[tokio::test]
async fn what_is_on_its_way_to_the_disk_is_not_seen_at_a_glance() {
    semel_testkit::planted::plant_from_environment();
    let dir = TempDir::new();
    let store = Sqlite::open(dir.path().join("semel.db")).unwrap();
    let glance = store.peeks().unwrap();
    let rows = store.rows();
    let offer = |key: &str| {
        let (mut reads, offer) = (Reads::default(), keyed(key).offer());
        offer.reads(&mut reads);
        (reads, offer)
    };
    let decided = async |key: &str| {
        let (reads, offer) = offer(key);
        let mut draft = Draft::new(store.load(&reads).await.unwrap(), 7, Arc::clone(&rows));
        assert!(matches!(enqueue(&mut draft, &offer), Ok(Outcome::Created(_))));
        Batch { groups: vec![draft.finish()], claims: Vec::new() }
    };
    // Two, for one may share its mark with the second.
    for key in ["first", "third"] {
        store.commit(decided(key).await).await.unwrap();
    }
    let second = decided("second").await;
    let mut inner = store.lock();
    let now = inner.time.now();
    let (applied, mut record) = inner.apply(second, &rows, now).unwrap();
    assert_eq!(applied.groups, [semel_store::backend::Verdict::Applied]);
    let seen = |key| {
        glance
            .peek(&offer(key).0)
            .map(|seen| seen.peek_key(&semel_testkit::make::key(key)).unwrap().holders.clone())
    };
    assert_eq!(seen("second"), None, "a power cut may yet take it");
    assert!(seen("first").or(seen("third")).is_some(), "who is on the disk is seen meanwhile");
    inner.journal.append(now, record.bytes()).unwrap();
    assert_eq!(seen("second"), None);
    inner.settle(record, now);
    for key in ["first", "second", "third"] {
        assert_eq!(seen(key).map(|holders| holders.len()), Some(1), "{key}");
    }
    // Nothing is said of a store that is not as it should be.
    inner.give_up(&StoreError::Closed);
    assert_eq!((seen("first"), seen("second")), (None, None));
}
