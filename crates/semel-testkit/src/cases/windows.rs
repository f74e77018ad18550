//! Sliding windows: a duplicate of any kind restarts them (SEMANTICS 3).

use std::time::Duration;

use semel_core::draft::Reads;
use semel_core::enqueue::{Batch, Mode, Offer, Outcome, enqueue_batch};
use semel_core::ident::JobId;
use semel_core::life::{self, Revived};
use semel_core::state::StateSet;
use semel_core::time::Timestamp;

use crate::fixture::Fixture;
use crate::make::{Want, job, key, keyed};

const SECOND: Duration = Duration::from_secs(1);

fn sliding(text: &str) -> Want {
    keyed(text).states(StateSet::ALL).period(SECOND * 10, "last_duplicate")
}

async fn renewed_at(f: &Fixture, id: JobId) -> Option<Timestamp> {
    f.maintain().await;
    f.head(id).await.unwrap().renewed_at
}

async fn all_or_nothing(f: &Fixture, offers: &[Offer]) -> Batch {
    let mut reads = Reads::default();
    offers.iter().for_each(|offer| offer.reads(&mut reads));
    f.decide_on(&reads, |draft| enqueue_batch(draft, offers, Mode::AllOrNothing)).await
}

/// This includes the windows of holders that the request would have replaced.
pub async fn a_mismatch_starts_a_sliding_window_again(f: &Fixture) {
    for conflict in ["reject", "ignore", "replace"] {
        let want = |args: &str| {
            let want = sliding(conflict).args(args).on_conflict(conflict);
            let live = StateSet::LIVE;
            want.states(live).policy(|spec| spec.on_mismatch = Some("reject".to_owned()))
        };
        let first = f.create(&want("[1]").offer()).await;
        assert_eq!(first.renewed_at, None);
        f.advance(SECOND * 6).await;
        let before = f.now().await;
        assert!(matches!(f.enqueue(&want("[2]").offer()).await, Outcome::Mismatch { .. }), "{conflict}");
        assert!(renewed_at(f, first.id).await >= Some(before), "{conflict}");
    }
}

/// Nothing of the batch is stored. An item that only another item of the batch turned away was not a
/// duplicate of any stored job.
pub async fn a_refused_batch_starts_the_window_again_that_refused_it(f: &Fixture) {
    let first = f.create(&sliding("a").offer()).await;
    let beside = f.create(&sliding("b").on_conflict("ignore").offer()).await;
    f.advance(SECOND * 6).await;
    let before = f.now().await;
    let offers = [job().offer(), sliding("b").on_conflict("ignore").offer(), sliding("a").offer()];
    let Batch::Refused { index: 2, outcome } = all_or_nothing(f, &offers).await else {
        panic!("not refused")
    };
    assert_eq!(outcome.absorbed_by(), Some(first.id));
    assert!(renewed_at(f, first.id).await >= Some(before));
    // The items before it had no effect, neither an answer nor a job.
    assert_eq!(renewed_at(f, beside.id).await, None);
    let offers = [sliding("c").offer(), sliding("c").offer()];
    let Batch::Refused { index: 1, outcome: Outcome::Rejected { holder, .. } } =
        all_or_nothing(f, &offers).await
    else {
        panic!("not refused")
    };
    assert_eq!(holder.named(), None);
    assert!(f.holders(key("c")).await.is_empty());
    assert_eq!(f.queue("default").await.unwrap().created, 2);
}

/// Sending it back is a new admission, and its conflict an ordinary one.
pub async fn a_dead_letter_that_is_not_sent_back_starts_the_window_again(f: &Fixture) {
    for conflict in ["reject", "ignore", "replace"] {
        let want = sliding(conflict).states(StateSet::LIVE).on_conflict(conflict).attempts(1).dead_letter();
        f.create(&want.offer()).await;
        let (run, _) = f.claim_one().await;
        f.fail(&run).await;
        let live = f.create(&want.offer()).await;
        f.advance(SECOND * 6).await;
        f.maintain().await;
        let before = f.now().await;
        let revived = f.decide(|draft| life::revive(draft, run.id)).await;
        assert!(matches!(revived, Revived::Blocked { .. }), "{revived:?}");
        assert!(renewed_at(f, live.id).await >= Some(before), "{conflict}");
        f.cancel(live.id).await;
    }
    // A holder whose own window does not slide has nothing to restart, whatever windows others have.
    let want = keyed("none").on_conflict("replace").attempts(1).dead_letter();
    f.create(&want.offer()).await;
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    let live = f.create(&want.offer()).await;
    let revived = f.decide(|draft| life::revive(draft, run.id)).await;
    assert!(matches!(revived, Revived::Blocked { .. }), "{revived:?}");
    assert_eq!(renewed_at(f, live.id).await, None);
}
