//! Ended holders: windows, strict keys, and what is remembered after a job's body is gone (SEMANTICS 3).

use std::time::Duration;

use semel_core::draft::{KeyRead, Reads};
use semel_core::enqueue::{Outcome, enqueue};
use semel_core::job::{Head, NoteKind};
use semel_core::life::{self, KeyReleased};
use semel_core::settle::Settled;
use semel_core::state::{State, StateSet};

use semel_store::backend::Verdict;

use super::admission::{admitted, rejected};
use crate::fixture::{Fixture, bytes};
use crate::make::{Want, foreign_id, job, key, keyed};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

pub(super) fn strict(text: &str) -> Want {
    keyed(text).states(StateSet::ALL)
}

/// All eight states and no window.
pub async fn a_strict_key_is_never_free_again(f: &Fixture) {
    f.finished(&strict("completed").offer()).await;
    let cancelled = f.create(&strict("cancelled").offer()).await;
    f.cancel(cancelled.id).await;
    f.create(&strict("discarded").attempts(1).offer()).await;
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    for text in ["completed", "cancelled", "discarded"] {
        f.advance(DAY * 400).await;
        assert_eq!(rejected(f, &strict(text)).await.state.name(), text);
        f.purge().await;
        assert_eq!(rejected(f, &strict(text)).await.state.name(), text);
    }
}

/// The window covers `now < created_at + period`.
pub async fn a_window_ends_on_time(f: &Fixture) {
    let want = strict("a").period(SECOND * 10, "created");
    f.finished(&want.offer()).await;
    f.advance(SECOND * 10 - Duration::from_millis(1)).await;
    rejected(f, &want).await;
    f.advance(Duration::from_millis(1)).await;
    assert!(admitted(f, &want).await);
    rejected(f, &want).await;
}

/// `period_from: finished`: the window of an unfinished holder has not begun, so it does not block by its
/// window.
pub async fn a_window_from_the_end_begins_with_the_end(f: &Fixture) {
    let want = keyed("a").states(StateSet::FINISHED).period(SECOND * 10, "finished");
    f.create(&want.offer()).await;
    f.advance(SECOND * 60).await;
    let (run, _) = f.claim_one().await;
    f.complete(&run).await;
    f.advance(SECOND * 9).await;
    rejected(f, &want).await;
    f.advance(SECOND).await;
    assert!(admitted(f, &want).await);
}

/// `period_from: last_duplicate`, for live and ended holders; the renewal is durable and versioned, and the
/// fence stays.
pub async fn a_sliding_window_is_renewed_by_its_duplicates(f: &Fixture) {
    let want = strict("a").period(SECOND * 10, "last_duplicate");
    let first = f.create(&want.offer()).await;
    f.advance(SECOND * 6).await;
    rejected(f, &want).await;
    let renewed = f.head(first.id).await.unwrap();
    assert!(renewed.version > first.version && renewed.fence == first.fence);
    let (run, _) = f.claim_one().await;
    f.complete(&run).await;
    let mut before = f.now().await;
    for _ in 0..3 {
        f.advance(SECOND * 9).await;
        before = f.now().await;
        rejected(f, &want).await;
    }
    let ended = f.head(first.id).await.unwrap();
    let renewed_at = ended.renewed_at.unwrap();
    assert!(before <= renewed_at && renewed_at <= f.now().await, "{before} {renewed_at}");
    assert_eq!(ended.state, State::Completed);
    f.advance(SECOND * 10).await;
    assert!(admitted(f, &want).await);
}

/// A decision may have loaded no more of an ended job than its key needs; neither it nor the next decision of
/// its batch changes anything else of the job.
pub async fn decisions_of_one_batch_leave_an_ended_holder_as_it_was(f: &Fixture) {
    let offer = strict("a").attempts(7).period(DAY, "last_duplicate").offer();
    let ended = f.finished(&offer).await;
    f.maintain().await;
    f.advance(SECOND).await;
    let mut reads = Reads::default();
    offer.reads(&mut reads);
    let mut draft = f.draft(&reads).await;
    let Outcome::Rejected { holder, .. } = enqueue(&mut draft, &offer).unwrap() else { panic!() };
    let mut seen = holder.named().unwrap().clone();
    let first = draft.finish();
    draft.update(&mut seen);
    assert_eq!(f.commit(vec![first, draft.finish()]).await, [Verdict::Applied; 2]);
    let now = f.head(ended.id).await.unwrap();
    assert!(now.version > ended.version && now.renewed_at > ended.renewed_at);
    assert_eq!(Head { version: ended.version, renewed_at: ended.renewed_at, ..now }, ended);
}

/// The renewal is decided on top of the purge, and extends the time that the holder is kept.
pub async fn a_window_that_is_renewed_in_the_commit_of_its_holders_purge_ends_later(f: &Fixture) {
    let want = strict("a").period(DAY * 3, "last_duplicate");
    let (offer, ended) = (want.offer(), f.finished(&want.offer()).await);
    f.advance(DAY * 2).await;
    f.maintain().await;
    let mut reads = Reads { heads: vec![ended.id], ..Reads::default() };
    offer.reads(&mut reads);
    let mut draft = f.draft(&reads).await;
    assert!(life::purge(&mut draft, ended.id).unwrap());
    let purge = draft.finish();
    assert_eq!(enqueue(&mut draft, &offer).unwrap().absorbed_by(), Some(ended.id));
    let verdicts = f.commit(vec![purge, draft.finish()]).await;
    assert_eq!(verdicts[0], Verdict::Applied);
    // A store may report the decision as stale, so that it is made again.
    if verdicts[1] == Verdict::Stale {
        rejected(f, &want).await;
    }
    f.advance(DAY * 2).await;
    f.purge().await;
    assert_eq!(rejected(f, &want).await.id, ended.id);
    f.advance(DAY * 3).await;
    f.purge().await;
    assert!(admitted(f, &want).await);
}

/// Every holder that blocks by its window, live, ended or purged, is renewed: none may run out behind the one
/// that an answer names.
pub async fn a_duplicate_renews_every_holder_that_blocks_by_the_window(f: &Fixture) {
    let want = strict("a").period(DAY * 3, "last_duplicate");
    let purged = f.finished(&want.offer()).await;
    f.advance(DAY * 2).await;
    assert_eq!(f.purge().await, 1);
    let aside = keyed("a").states(StateSet::EMPTY.with(State::Scheduled));
    let older = f.create(&aside.offer()).await;
    f.advance(SECOND).await;
    let newer = f.create(&aside.offer()).await;
    assert_eq!(rejected(f, &want).await.id, newer.id);
    let holders = f.holders(key("a")).await;
    let renewed: Vec<_> = holders.iter().map(|holder| holder.renewed_at).collect();
    assert!(renewed[0].is_some_and(|at| at >= newer.created_at), "{renewed:?}");
    assert_eq!(renewed, [renewed[0]; 3]);
    f.cancel(newer.id).await;
    f.cancel(older.id).await;
    f.advance(DAY * 3 - SECOND).await;
    let completed = want.clone().states(StateSet::EMPTY.with(State::Completed));
    assert_eq!(rejected(f, &completed).await.id, purged.id);
}

/// The policy setting is `while_active`.
pub async fn an_active_holder_blocks_past_its_window_when_asked_to(f: &Fixture) {
    let want = keyed("a").period(SECOND, "created");
    let while_active = want.clone().policy(|spec| spec.while_active = Some(true));
    f.create(&while_active.offer()).await;
    f.advance(HOUR).await;
    rejected(f, &while_active).await;
    assert!(admitted(f, &want).await);
}

/// Purging history never frees a key early.
pub async fn a_purged_job_keeps_its_key_while_its_policy_says_so(f: &Fixture) {
    let want = strict("a").period(DAY * 30, "created");
    let first = f.finished(&want.offer()).await;
    f.advance(DAY * 2).await;
    assert_eq!(f.purge().await, 1);
    assert_eq!(f.full(first.id).await, None);
    let named = rejected(f, &want).await;
    assert_eq!(
        (named.id, named.key, named.hold, named.state, named.fence, named.created_at, named.finished_at),
        (first.id, first.key, first.hold, first.state, first.fence, first.created_at, first.finished_at)
    );
    f.advance(DAY * 27).await;
    f.purge().await;
    rejected(f, &want).await;
    f.advance(DAY).await;
    assert!(admitted(f, &want).await);
}

/// When the window ends, the head is forgotten too.
pub async fn a_purged_job_whose_window_is_over_frees_its_key(f: &Fixture) {
    f.finished(&strict("a").period(HOUR, "created").offer()).await;
    f.finished(&strict("b").period(DAY * 3, "created").offer()).await;
    f.finished(&keyed("c").offer()).await;
    f.advance(DAY * 2).await;
    assert_eq!(f.purge().await, 3);
    assert!(f.holders(key("a")).await.is_empty());
    assert_eq!(f.holders(key("b")).await.len(), 1);
    assert!(f.holders(key("c")).await.is_empty());
    f.advance(DAY * 2).await;
    f.purge().await;
    assert!(f.holders(key("b")).await.is_empty());
    let stats = f.queue("default").await.unwrap();
    assert_eq!((stats.purged, stats.created, stats.count(State::Completed)), (3, 3, 0));
}

/// This holds whether or not the store has deleted it by then, also for a policy that looks further back than
/// the holder's own did.
pub async fn a_remembered_holder_is_none_from_the_end_of_its_time(f: &Fixture) {
    f.finished(&strict("a").period(DAY * 3, "created").offer()).await;
    f.advance(DAY * 2).await;
    assert_eq!(f.purge().await, 1);
    f.advance(DAY - SECOND).await;
    rejected(f, &strict("a")).await;
    f.advance(SECOND).await;
    assert_eq!(f.holders(key("a")).await, []);
    assert!(admitted(f, &strict("a")).await);
}

/// A duplicate renews a window even when only the head of its job is left.
pub async fn a_sliding_window_outlives_the_purge(f: &Fixture) {
    let want = strict("a").period(DAY * 3, "last_duplicate");
    f.finished(&want.offer()).await;
    f.advance(DAY * 2).await;
    assert_eq!(f.purge().await, 1);
    for _ in 0..4 {
        rejected(f, &want).await;
        f.advance(DAY * 2).await;
        f.purge().await;
    }
    f.advance(DAY).await;
    assert!(admitted(f, &want).await);
}

/// A job without a key leaves no memory.
pub async fn a_purge_without_a_key_leaves_nothing(f: &Fixture) {
    let first = f.finished(&job().offer()).await;
    f.advance(DAY).await;
    assert_eq!(f.purge().await, 1);
    assert_eq!(f.head(first.id).await, None);
    assert!(f.due(semel_core::slot::Due::Purge, 10).await.is_empty());
}

/// A holder that a later one outlives is left out, however often the key is used.
pub async fn many_uses_of_one_key_leave_few_holders(f: &Fixture) {
    let mut last = None;
    for _ in 0..30 {
        f.advance(SECOND).await;
        last = Some(f.finished(&keyed("a").offer()).await.id);
    }
    f.maintain().await;
    assert_eq!(f.holders(key("a")).await.len(), 1);
    assert_eq!(Some(rejected(f, &strict("a")).await.id), last);
}

/// A head may only stand in for another that does not block longer.
pub async fn a_later_holder_never_hides_an_earlier_one_that_blocks_longer(f: &Fixture) {
    let completed = |want: Want| async move { f.finished(&want.offer()).await };
    let long = completed(keyed("a").states(StateSet::FINISHED).period(DAY * 100, "created")).await;
    f.advance(DAY * 2).await;
    // It looks at live holders only, so nothing blocks it; and it asks for nothing to be remembered.
    completed(keyed("a")).await;
    f.purge().await;
    f.advance(DAY * 2).await;
    f.purge().await;
    let named = rejected(f, &keyed("a").states(StateSet::FINISHED).period(DAY * 100, "created")).await;
    assert_eq!(named.id, long.id);
}

/// Of the two, only the later one would hear of duplicates, so it may stand in for the earlier one only if
/// duplicates extend its own window as far.
pub async fn a_later_holder_never_hides_an_earlier_one_whose_window_slides(f: &Fixture) {
    let want = keyed("a").states(StateSet::ALL).period(DAY / 2, "last_duplicate");
    f.finished(&want.offer()).await;
    f.advance(SECOND).await;
    // It looks at live holders only, and asks for nothing to be remembered.
    f.finished(&keyed("a").offer()).await;
    f.maintain().await;
    for _ in 0..8 {
        f.advance(DAY / 4).await;
        f.purge().await;
        rejected(f, &want).await;
    }
    f.advance(DAY / 2).await;
    assert!(admitted(f, &want).await);
}

/// One holder per end state is kept, since a policy may look at that state alone.
pub async fn holders_that_ended_differently_are_all_remembered(f: &Fixture) {
    let mut ended: Vec<Head> = Vec::new();
    ended.push(f.finished(&keyed("a").offer()).await);
    f.advance(SECOND).await;
    let cancelled = f.create(&keyed("a").offer()).await;
    ended.push(crate::fixture::done(f.cancel(cancelled.id).await));
    f.advance(SECOND).await;
    f.create(&keyed("a").attempts(1).offer()).await;
    let (run, _) = f.claim_one().await;
    ended.push(crate::fixture::done(f.fail(&run).await));
    f.maintain().await;
    for head in ended {
        let only = keyed("a").states(StateSet::EMPTY.with(head.state));
        assert_eq!(rejected(f, &only).await.id, head.id);
    }
}

/// This holds also when the job is filed, and when it is written again.
pub async fn a_released_ended_holder_stays_released(f: &Fixture) {
    let ended = f.finished(&strict("a").offer()).await;
    f.maintain().await;
    let released = f.decide(|draft| life::release_key(draft, key("a"))).await;
    assert!(matches!(released, KeyReleased::Done(heads) if heads.len() == 1));
    assert!(f.holders(key("a")).await.is_empty());
    let mut reads = Reads { fulls: vec![ended.id], ..Reads::default() };
    f.decide_on(&reads, |draft| {
        let (mut head, _) = draft.full(ended.id)?.unwrap();
        draft.update(&mut head);
        Ok(())
    })
    .await;
    f.maintain().await;
    assert_eq!(f.head(ended.id).await.unwrap().key, None);
    reads.clear();
    assert!(admitted(f, &strict("a")).await);
}

/// Two decisions of one group on one key: the first looks at live holders, the second at ended ones.
pub async fn a_key_read_for_live_states_alone_does_not_hide_ended_holders_from_the_next(f: &Fixture) {
    let ended = f.finished(&strict("a").offer()).await;
    f.maintain().await;
    let live = KeyRead { key: key("a"), states: StateSet::LIVE, all: false };
    let found = f
        .decide_on(&Reads { keys: vec![live], ..Reads::default() }, |draft| {
            assert!(draft.key(&live)?.holders.iter().all(|holder| holder.id == ended.id));
            Ok(draft.key(&KeyRead { states: StateSet::ALL, ..live })?.holders.clone())
        })
        .await;
    assert_eq!(found.iter().map(|holder| holder.id).collect::<Vec<_>>(), [ended.id]);
    let reads = Reads { keys: vec![live], ..Reads::default() };
    let outcome = f.decide_on(&reads, |draft| enqueue(draft, &strict("a").offer())).await;
    assert!(matches!(outcome, Outcome::Rejected { .. }));
}

/// Uses a key twice; the second end outlives the first.
async fn twice(f: &Fixture) -> (Head, Head) {
    let first = f.finished(&keyed("a").offer()).await;
    f.advance(SECOND).await;
    let second = f.finished(&keyed("a").offer()).await;
    let holders = f.holders(key("a")).await;
    assert_eq!(holders.iter().map(|holder| holder.id).collect::<Vec<_>>(), [second.id]);
    (first, second)
}

async fn touch(f: &Fixture, head: &Head) {
    f.decide_on(&Reads { heads: vec![head.id], ..Reads::default() }, |draft| {
        let mut head = draft.head(head.id)?.unwrap();
        draft.update(&mut head);
        draft.note(head.id, NoteKind::Duplicates, Some(bytes("late")));
        Ok(())
    })
    .await;
}

/// Holders left out in favour of a later one are released with it, whether filed before or after, written
/// again or purged since.
pub async fn a_released_key_is_released_by_holders_that_were_left_out(f: &Fixture) {
    for (filed_between, filed_after) in [(false, false), (false, true), (true, false), (true, true)] {
        let first = f.finished(&keyed("a").offer()).await;
        if filed_between {
            f.maintain().await;
        }
        f.advance(SECOND).await;
        f.finished(&keyed("a").offer()).await;
        if filed_after {
            f.maintain().await;
        }
        let released = f.decide(|draft| life::release_key(draft, key("a"))).await;
        assert!(matches!(&released, KeyReleased::Done(heads) if heads.len() == 1), "{released:?}");
        for _ in 0..2 {
            assert!(f.holders(key("a")).await.is_empty(), "{filed_between} {filed_after}");
            touch(f, &first).await;
            assert!(f.holders(key("a")).await.is_empty(), "{filed_between} {filed_after}");
            f.maintain().await;
        }
        f.advance(DAY * 2).await;
        f.purge().await;
        assert!(f.holders(key("a")).await.is_empty());
    }
}

/// Both are remembered for their key alone by then, and the second stands in for the first.
pub async fn a_key_is_released_by_all_who_are_remembered_under_it(f: &Fixture) {
    f.finished(&strict("a").period(HOUR * 56, "created").offer()).await;
    f.advance(HOUR * 31).await;
    let second = f.finished(&strict("a").period(HOUR * 30, "created").offer()).await;
    f.advance(HOUR * 24 + SECOND * 60).await;
    f.purge().await;
    let released = f.decide(|draft| life::release_key(draft, key("a"))).await;
    assert!(matches!(&released, KeyReleased::Done(heads) if heads.iter().any(|head| head.id == second.id)));
    for _ in 0..2 {
        assert!(f.holders(key("a")).await.is_empty(), "whom another stood in for, holds it again");
        f.maintain().await;
        f.purge().await;
    }
}

/// They are no longer found by their key, whose record may be gone before their time is over.
pub async fn what_was_left_out_of_a_released_key_is_forgotten_in_its_time(f: &Fixture) {
    f.finished(&strict("a").id(foreign_id(1)).period(HOUR * 56, "created").offer()).await;
    f.advance(HOUR * 31).await;
    f.finished(&strict("a").period(HOUR * 30, "created").offer()).await;
    f.advance(HOUR * 19).await;
    f.purge().await;
    let released = f.decide(|draft| life::release_key(draft, key("a"))).await;
    assert!(matches!(&released, KeyReleased::Done(_)));
    for _ in 0..20 {
        f.advance(HOUR * 2).await;
        f.purge().await;
        f.maintain().await;
    }
    // The id of the forgotten holder is free again.
    f.create(&job().id(foreign_id(1)).offer()).await;
}

/// Neither a late record of its duplicates nor its purge makes a left-out holder hold the key again.
pub async fn a_holder_left_out_does_not_come_back(f: &Fixture) {
    let (first, second) = twice(f).await;
    for _ in 0..2 {
        touch(f, &first).await;
        assert_eq!(rejected(f, &strict("a")).await.id, second.id);
        f.maintain().await;
        let holders = f.holders(key("a")).await;
        assert_eq!(holders.iter().map(|holder| holder.id).collect::<Vec<_>>(), [second.id]);
    }
}

/// An operator may delete a dead letter, and the holders it stood in for would be forgotten with it.
pub async fn a_dead_letter_stands_in_for_nobody(f: &Fixture) {
    let failed = |want: Want| async move {
        let head = f.create(&want.attempts(1).offer()).await;
        let (run, _) = f.claim_one().await;
        assert_eq!(run.id, head.id);
        f.fail(&run).await;
        f.advance(SECOND).await;
        head
    };
    let first = failed(keyed("a")).await;
    let letter = failed(keyed("a").dead_letter()).await;
    f.maintain().await;
    assert_eq!(f.holders(key("a")).await.len(), 2);
    assert_eq!(rejected(f, &strict("a")).await.id, letter.id);
    assert!(matches!(f.decide(|draft| life::delete_dead_letter(draft, letter.id)).await, Settled::Done(_)));
    assert_eq!(rejected(f, &strict("a")).await.id, first.id);
}
