//! More holders of one key than one decision may look at.

use std::time::Duration;

use semel_core::draft::{KeyRead, Reads};
use semel_core::enqueue::{Outcome, enqueue};
use semel_core::job::Ending;
use semel_core::life::{self, KeyReleased, Revived};
use semel_core::limits::HOLDERS_PER_KEY_MAX;
use semel_core::settle::{Refusal, Report, fail};
use semel_core::state::{State, StateSet};

use super::admission::{admitted, rejected};
use super::remembering::strict;
use crate::fixture::{Fixture, bearer};
use crate::make::{Want, key, keyed};

const SECOND: Duration = Duration::from_secs(1);

fn discarded() -> StateSet {
    StateSet::EMPTY.with(State::Discarded)
}

/// Creates one more dead letter of one key than a decision may touch.
async fn too_many_dead_letters(f: &Fixture, want: Want) {
    let want = want.states(discarded()).attempts(1).dead_letter().offer();
    let many = HOLDERS_PER_KEY_MAX + 1;
    f.decide(|draft| (0..many).try_for_each(|_| enqueue(draft, &want).map(drop))).await;
    let runs = f.claim("default", u32::try_from(many).unwrap()).await.jobs;
    let reads = Reads { fulls: runs.iter().map(|(run, _)| run.id).collect(), ..Reads::default() };
    let report = Report { code: "boom".to_owned(), ..Report::default() };
    f.decide_on(&reads, |draft| {
        runs.iter().try_for_each(|(run, _)| fail(draft, run.id, &bearer(run), &report).map(drop))
    })
    .await;
    assert_eq!(f.queue("default").await.unwrap().count(State::Discarded), many as u64);
}

/// However many dead letters a key has, a policy that looks at live holders alone is not affected.
pub async fn many_dead_letters_are_in_nobodys_way(f: &Fixture) {
    too_many_dead_letters(f, keyed("a")).await;
    assert!(admitted(f, &keyed("a").on_conflict("replace")).await);
    assert!(matches!(
        f.enqueue(&keyed("a").on_conflict("replace").offer()).await,
        Outcome::Replaced { cancelled, .. } if cancelled.len() == 1
    ));
}

/// Wherever they are kept, a request that would have to touch all of them is refused and the others are
/// answered.
pub async fn too_many_dead_letters_are_too_many_wherever_they_are_kept(f: &Fixture) {
    too_many_dead_letters(f, keyed("a")).await;
    for _ in 0..2 {
        assert_eq!(f.decide(|draft| life::release_key(draft, key("a"))).await, KeyReleased::TooMany);
        let named = rejected(f, &keyed("a").states(discarded())).await.id;
        // The named letter stands in for all others, which block it as well.
        let revived = f.decide(|draft| life::revive(draft, named)).await;
        assert_eq!(revived, Revived::Refused(Refusal::TooManyHolders));
        f.maintain().await;
    }
    let read = KeyRead { key: key("a"), states: StateSet::ALL, all: true };
    let snapshot = f.load(&Reads { keys: vec![read], ..Reads::default() }).await;
    let view = snapshot.peek_key(&key("a")).unwrap();
    assert!(view.too_many && view.holders.len() <= HOLDERS_PER_KEY_MAX, "{}", view.holders.len());
    assert!(admitted(f, &keyed("a").states(StateSet::EMPTY.with(State::Completed))).await);
}

/// An expired job blocks nobody, so it cannot stand in for other holders.
pub async fn of_too_many_holders_an_expired_one_hides_no_other(f: &Fixture) {
    too_many_dead_letters(f, keyed("a").expires(SECOND * 60)).await;
    f.advance(SECOND).await;
    let expired = f.create(&keyed("a").expires(SECOND * 60).offer()).await;
    f.advance(SECOND * 61).await;
    f.run_duties().await;
    assert_eq!(f.head(expired.id).await.unwrap().ending, Some(Ending::Expired));
    for _ in 0..2 {
        assert_ne!(rejected(f, &keyed("a").states(discarded())).await.id, expired.id);
        f.maintain().await;
    }
}

/// A job that expires before its start cannot stand in for one that goes on blocking.
pub async fn of_too_many_holders_one_that_expires_unstarted_hides_none_that_has_begun(f: &Fixture) {
    let begun = f.create(&strict("a").expires(SECOND * 60).offer()).await;
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    f.advance(SECOND * 50).await;
    f.run_duties().await;
    assert_eq!(f.head(begun.id).await.unwrap().state, State::Available);
    let others = keyed("a").states(discarded()).expires(SECOND * 10).offer();
    f.decide(|draft| (0..HOLDERS_PER_KEY_MAX).try_for_each(|_| enqueue(draft, &others).map(drop))).await;
    f.advance(SECOND * 10).await;
    assert_eq!(rejected(f, &strict("a")).await.id, begun.id);
}
