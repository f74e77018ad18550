//! One commit of many groups (SEMANTICS 5).

use std::time::Duration;

use semel_core::draft::{Draft, Group, KeyRead, Reads};
use semel_core::enqueue::{Batch, Mode, Offer, Outcome, enqueue, enqueue_batch};
use semel_core::life::{self, KeyReleased};
use semel_core::state::{State, StateSet};
use semel_store::backend::Verdict::{Applied, Stale};

use crate::fixture::{Fixture, claim};
use crate::make::{foreign_id, job, key, keyed};

fn reads(offers: &[Offer]) -> Reads {
    let mut reads = Reads::default();
    offers.iter().for_each(|offer| offer.reads(&mut reads));
    reads
}

/// Decides each offer over one draft, and returns one group per offer.
fn groups(draft: &mut Draft, offers: &[Offer]) -> Vec<Group> {
    let one = |offer: &Offer| {
        enqueue(draft, offer).unwrap();
        draft.finish()
    };
    offers.iter().map(one).collect()
}

/// An empty commit returns empty results.
pub async fn an_empty_commit_does_nothing(f: &Fixture) {
    let applied = f.commit_all(Vec::new(), Vec::new()).await;
    assert!(applied.groups.is_empty() && applied.claims.is_empty());
    assert!(f.backend().queues().await.unwrap().is_empty());
    assert!(f.log().await.is_empty());
}

/// Items are decided in order, later ones seeing earlier ones; each has one outcome.
pub async fn later_items_see_earlier_ones(f: &Fixture) {
    let offers = [
        keyed("a").offer(),
        keyed("b").offer(),
        keyed("a").offer(),
        keyed("a").on_conflict("ignore").offer(),
    ];
    let batch = f.decide_on(&reads(&offers), |draft| enqueue_batch(draft, &offers, Mode::Each)).await;
    let Batch::Done(outcomes) = batch else { panic!("{batch:?}") };
    let Outcome::Created(first) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(matches!(&outcomes[1], Outcome::Created(_)));
    assert!(matches!(&outcomes[2], Outcome::Rejected { holder, .. } if holder.absorbed_by() == first.id));
    assert!(matches!(&outcomes[3], Outcome::Existing(head) if head.id == first.id));
    assert_eq!(f.queue("default").await.unwrap().created, 2);
}

/// The error has the index of the refused item.
pub async fn all_or_nothing_stores_nothing_when_one_is_refused(f: &Fixture) {
    f.create(&keyed("b").offer()).await;
    let offers = [keyed("a").offer(), keyed("b").offer(), keyed("c").offer()];
    let batch = f.decide_on(&reads(&offers), |draft| enqueue_batch(draft, &offers, Mode::AllOrNothing)).await;
    assert!(matches!(batch, Batch::Refused { index: 1, .. }), "{batch:?}");
    assert!(f.holders(key("a")).await.is_empty() && f.holders(key("c")).await.is_empty());
    // The blocking job may be of the batch itself, and is undone with it: then none is named.
    let offers = [keyed("a").offer(), keyed("a").offer()];
    let batch = f.decide_on(&reads(&offers), |draft| enqueue_batch(draft, &offers, Mode::AllOrNothing)).await;
    let Batch::Refused { index: 1, outcome: Outcome::Rejected { holder, .. } } = batch else {
        panic!("{batch:?}")
    };
    assert_eq!(holder.named(), None);
    let strict = keyed("d").policy(|spec| spec.on_mismatch = Some("reject".to_owned()));
    let offers = [strict.clone().args("[1]").offer(), strict.args("[2]").offer()];
    let batch = f.decide_on(&reads(&offers), |draft| enqueue_batch(draft, &offers, Mode::AllOrNothing)).await;
    let Batch::Refused { index: 1, outcome: Outcome::Mismatch { holder, pointers } } = batch else {
        panic!("{batch:?}")
    };
    assert_eq!((holder.named(), pointers), (None, Vec::new()));
    assert_eq!(f.queue("default").await.unwrap().created, 1);
    // Nor does an answer show a job as the undone batch would have changed it.
    let cancelled = keyed("b").states(StateSet::EMPTY.with(State::Cancelled));
    let offers = [keyed("b").on_conflict("replace").offer(), cancelled.offer()];
    let batch = f.decide_on(&reads(&offers), |draft| enqueue_batch(draft, &offers, Mode::AllOrNothing)).await;
    let Batch::Refused { index: 1, outcome: Outcome::Rejected { holder, .. } } = batch else {
        panic!("{batch:?}")
    };
    assert_eq!(holder.named().map(|head| head.state), Some(State::Available));
}

/// The draft's overlay and the store advance versions alike.
pub async fn a_later_group_may_rely_on_what_an_earlier_one_writes(f: &Fixture) {
    let ended =
        f.finished(&keyed("a").states(StateSet::ALL).period(Duration::from_secs(1), "created").offer()).await;
    f.maintain().await;
    f.advance(Duration::from_secs(5)).await;
    let all = KeyRead { key: key("a"), states: StateSet::ALL, all: true };
    let fulls = vec![ended.id];
    let mut draft = f.draft(&Reads { keys: vec![all], fulls, ..Reads::default() }).await;
    // A filed holder is written, a new one is created, replaced, and replaced again: each relies on the last.
    let (mut head, _) = draft.full(ended.id).unwrap().unwrap();
    draft.update(&mut head);
    let mut groups = vec![draft.finish()];
    for _ in 0..3 {
        enqueue(&mut draft, &keyed("a").on_conflict("replace").offer()).unwrap();
        groups.push(draft.finish());
    }
    assert_eq!(f.commit(groups).await, [Applied; 4]);
    let live: Vec<_> =
        f.holders(key("a")).await.into_iter().filter(|holder| holder.state.is_live()).collect();
    assert_eq!(live.len(), 1);
}

/// "Else that group is stale and no other is touched."
pub async fn a_stale_group_leaves_the_others_applied(f: &Fixture) {
    let offers = [keyed("a").offer(), keyed("hot").offer(), keyed("b").offer(), job().offer()];
    let mut draft = f.draft(&reads(&offers)).await;
    let groups = groups(&mut draft, &offers);
    let hot = f.create(&keyed("hot").offer()).await;
    assert_eq!(f.commit(groups).await, [Applied, Stale, Applied, Applied]);
    assert_eq!(f.holders(key("hot")).await, [hot]);
    assert_eq!(f.holders(key("a")).await.len() + f.holders(key("b")).await.len(), 2);
    assert_eq!(f.queue("default").await.unwrap().created, 4);
}

/// What such a group saw was never committed.
pub async fn a_group_that_relies_on_a_stale_one_is_stale(f: &Fixture) {
    let offers = [
        keyed("hot").offer(),
        keyed("hot").on_conflict("replace").offer(),
        keyed("hot").on_conflict("replace").offer(),
        keyed("cold").offer(),
    ];
    let mut draft = f.draft(&reads(&offers)).await;
    let groups = groups(&mut draft, &offers);
    let hot = f.create(&keyed("hot").offer()).await;
    assert_eq!(f.commit(groups).await, [Stale, Stale, Stale, Applied]);
    assert_eq!(f.holders(key("hot")).await, [hot]);
}

/// A key that a later decision asks for is loaded as it was before the batch.
pub async fn a_job_that_an_earlier_group_purges_holds_nothing_for_a_later_one(f: &Fixture) {
    let ended = f.finished(&keyed("a").offer()).await;
    f.maintain().await;
    f.advance(Duration::from_secs(48 * 3600)).await;
    let mut draft = f.draft(&Reads { heads: vec![ended.id], ..Reads::default() }).await;
    assert!(life::purge(&mut draft, ended.id).unwrap());
    let purge = draft.finish();
    assert!(life::release_key(&mut draft, key("a")).is_err(), "its holders are not loaded");
    draft.roll_back();
    let missing = draft.take_missing();
    draft.extend(f.load(&missing).await);
    assert_eq!(life::release_key(&mut draft, key("a")), Ok(KeyReleased::NobodyHolds));
    let release = draft.finish();
    assert_eq!(f.commit(vec![purge, release]).await, [Applied; 2]);
    assert_eq!(f.head(ended.id).await, None);
    let queue = f.queue("default").await.unwrap();
    assert_eq!((queue.counts.iter().sum::<u64>(), queue.purged), (0, 1));
}

/// A job may be stored under the id of a job that is gone; the version says which of the two a decision has
/// seen.
pub async fn a_job_whose_id_was_used_before_has_a_version_of_its_own(f: &Fixture) {
    let offer = job().id(foreign_id(1)).offer();
    // The decision is under way for so long that another request with the same id comes and goes meanwhile.
    let mut draft = f.draft(&reads(std::slice::from_ref(&offer))).await;
    enqueue(&mut draft, &offer).unwrap();
    let late = draft.finish();
    let first = f.finished(&offer).await;
    f.maintain().await;
    f.advance(Duration::from_secs(48 * 3600)).await;
    assert!(f.decide(|draft| life::purge(draft, first.id)).await);
    assert_eq!(f.commit(vec![late]).await, [Stale]);
    // Decided again, it creates a new job.
    let second = f.create(&offer).await;
    assert!(second.id == first.id && second.version > first.version, "{second:?}");
}

/// Time need not pass between a job's deletion and the next job with its id.
pub async fn an_id_is_free_at_once_when_its_job_is_gone(f: &Fixture) {
    // A job without a request digest leaves nothing behind when it is deleted.
    let want = job().id(foreign_id(1)).attempts(1).dead_letter();
    let offer = want.body(|body| body.request_digest = None).offer();
    for _ in 0..3 {
        let head = f.create(&offer).await;
        let (run, _) = f.claim_one().await;
        f.fail(&run).await;
        f.decide(|draft| life::delete_dead_letter(draft, head.id)).await;
        assert_eq!(f.head(head.id).await, None);
    }
}

/// Claims are served after the groups.
pub async fn a_claim_in_the_same_commit_sees_its_groups(f: &Fixture) {
    let first = f.create(&job().offer()).await;
    let offers = [job().priority(9).offer()];
    let mut draft = f.draft(&Reads { heads: vec![first.id], ..Reads::default() }).await;
    let mut groups = groups(&mut draft, &offers);
    life::cancel(&mut draft, first.id, &semel_core::lease::Bearer::default()).unwrap();
    groups.push(draft.finish());
    let applied = f.commit_all(groups, vec![claim(&["default"], 5)]).await;
    assert_eq!(applied.groups, [Applied, Applied]);
    let claimed: Vec<_> = applied.claims[0].jobs.iter().map(|(head, _)| head.priority).collect();
    assert_eq!(claimed, [9], "the cancelled one is gone, the new one is there");
}

/// Minted and chosen ids, several queues and types: all are found again.
pub async fn a_large_batch_is_stored_whole(f: &Fixture) {
    let offer = |number: u32| {
        let want = keyed(&format!("key {number}")).queue(["a", "b", "c"][number as usize % 3]);
        let want = want.of_type(["x.one", "x.two"][number as usize % 2]);
        if number.is_multiple_of(5) { want.id(foreign_id(number)).offer() } else { want.offer() }
    };
    let offers: Vec<Offer> = (0..600).map(offer).collect();
    let batch = f.decide_on(&reads(&offers), |draft| enqueue_batch(draft, &offers, Mode::Each)).await;
    let Batch::Done(outcomes) = batch else { panic!("{batch:?}") };
    for (outcome, offer) in outcomes.iter().zip(&offers) {
        let Outcome::Created(head) = outcome else { panic!("{outcome:?}") };
        let (stored, full) = f.full(head.id).await.unwrap();
        assert_eq!((&stored, &full.body), (&**head, &offer.body));
    }
    let again = f.decide_on(&reads(&offers), |draft| enqueue_batch(draft, &offers, Mode::Each)).await;
    let Batch::Done(outcomes) = again else { panic!("{again:?}") };
    assert!(outcomes.iter().all(|outcome| !outcome.is_inserted()));
    assert_eq!(f.queue("c").await.unwrap().created, 200);
}
