//! Two requests that meet at one key, step by step: whichever commits first, the result is as if they had
//! come one after the other.

use std::time::Duration;

use semel_core::draft::{Group, Reads};
use semel_core::enqueue::{Offer, Outcome, enqueue};
use semel_core::job::{Ending, Head};
use semel_core::life::{self, KeyReleased};
use semel_core::state::State;
use semel_store::backend::Verdict::{Applied, Stale};

use super::admission::rejected;
use crate::fixture::Fixture;
use crate::make::{key, keyed};

const SECOND: Duration = Duration::from_secs(1);

/// An operator's release of `name`, decided and not yet committed.
async fn release(f: &Fixture, name: &str) -> (KeyReleased, Group) {
    f.decided(&Reads::default(), |draft| life::release_key(draft, key(name))).await
}

/// An admission, decided and not yet committed.
async fn offered(f: &Fixture, offer: &Offer) -> (Outcome, Group) {
    let mut reads = Reads::default();
    offer.reads(&mut reads);
    f.decided(&reads, |draft| enqueue(draft, offer)).await
}

async fn live(f: &Fixture, name: &str) -> Vec<Head> {
    f.holders(key(name)).await.into_iter().filter(|head| head.state.is_live()).collect()
}

/// Both have seen the holder. The second is stale, and finds no holder when it looks again: the key is
/// released once, and a job that took it since keeps it.
pub async fn the_second_of_two_releases_finds_nobody(f: &Fixture) {
    let first = f.create(&keyed("a").offer()).await;
    let (one, group) = release(f, "a").await;
    let (other, late) = release(f, "a").await;
    for released in [one, other] {
        assert!(matches!(released, KeyReleased::Done(heads) if heads.len() == 1 && heads[0].id == first.id));
    }
    assert_eq!(f.commit(vec![group]).await, [Applied]);
    let next = f.create(&keyed("a").offer()).await;
    assert_eq!(f.commit(vec![late]).await, [Stale]);
    assert_eq!(rejected(f, &keyed("a")).await.id, next.id, "the late release was of somebody else's hold");
    assert_eq!(f.head(first.id).await.unwrap().key, None);
    // No holder is left; a later release is told so.
    release_all(f, "a").await;
    assert_eq!(release(f, "a").await.0, KeyReleased::NobodyHolds);
}

async fn release_all(f: &Fixture, name: &str) {
    let (_, group) = release(f, name).await;
    assert_eq!(f.commit(vec![group]).await, [Applied]);
}

/// A job would replace the holder while an operator releases its key.
pub async fn a_release_and_a_replacement_meet(f: &Fixture) {
    for (name, is_released_first) in [("a", true), ("b", false)] {
        let want = keyed(name).on_conflict("replace");
        let first = f.create(&want.offer()).await;
        let (outcome, replacement) = offered(f, &want.offer()).await;
        assert!(matches!(&outcome, Outcome::Replaced { cancelled, .. } if cancelled[..] == [first.id]));
        let (_, released) = release(f, name).await;
        let groups = if is_released_first { [released, replacement] } else { [replacement, released] };
        for (group, verdict) in groups.into_iter().zip([Applied, Stale]) {
            assert_eq!(f.commit(vec![group]).await, [verdict], "{name}");
        }
        let state = f.head(first.id).await.unwrap().state;
        if is_released_first {
            // Nothing is replaced any more, and the first job goes on without its key.
            assert_eq!((state, live(f, name).await.len()), (State::Available, 0));
            assert!(matches!(f.enqueue(&want.offer()).await, Outcome::Created(_)));
        } else {
            assert_eq!((state, live(f, name).await.len()), (State::Cancelled, 1));
            release_all(f, name).await;
        }
    }
}

/// From its expiry time on a waiting job blocks nobody, whether the duty or the new job comes first; and it
/// expires on its own.
pub async fn an_expiry_and_an_admission_meet(f: &Fixture) {
    for (name, is_expired_first) in [("a", true), ("b", false)] {
        let want = keyed(name);
        let first = f.create(&want.clone().expires(SECOND * 10).offer()).await;
        f.advance(SECOND * 10 - Duration::from_millis(1)).await;
        assert_eq!(rejected(f, &want).await.id, first.id, "not yet");
        assert!(!f.decide(|draft| life::expire(draft, first.id)).await, "not yet");
        f.advance(Duration::from_millis(1)).await;
        let (outcome, admission) = offered(f, &want.offer()).await;
        assert!(matches!(outcome, Outcome::Created(_)), "{outcome:?}");
        let reads = Reads { heads: vec![first.id], ..Reads::default() };
        let (expired, expiry) = f.decided(&reads, |draft| life::expire(draft, first.id)).await;
        assert!(expired);
        let [one, other] = if is_expired_first { [expiry, admission] } else { [admission, expiry] };
        assert_eq!(f.commit(vec![one]).await, [Applied], "{name}");
        let verdict = f.commit(vec![other]).await[0];
        assert!([Applied, Stale].contains(&verdict), "{verdict:?}");
        // A decision that was stale is made again.
        if live(f, name).await.iter().all(|head| head.id == first.id) {
            assert!(f.enqueue(&want.offer()).await.is_inserted());
        }
        f.decide(|draft| life::expire(draft, first.id)).await;
        let ended = f.head(first.id).await.unwrap();
        assert_eq!((ended.state, ended.ending), (State::Discarded, Some(Ending::Expired)));
        assert_eq!(live(f, name).await.len(), 1, "{name}");
        let claimed = f.claim("default", 10).await.jobs;
        assert_eq!(claimed.len(), 1);
        f.complete(&claimed[0].0).await;
    }
}
