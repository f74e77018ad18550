//! Interleavings, step by step: load, load, commit, commit. The second of two decisions that read the same
//! records is stale.

use std::time::Duration;

use semel_core::draft::{Draft, Group, KeyRead, Reads};
use semel_core::enqueue::{Offer, Outcome, enqueue};
use semel_core::ident::QueueName;
use semel_core::job::Head;
use semel_core::lease::Bearer;
use semel_core::state::{State, StateSet};
use semel_core::{life, settle};
use semel_store::backend::Verdict::{self, Applied, Stale};

use crate::fixture::{Fixture, bearer};
use crate::make::{foreign_id, job, key, keyed};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

async fn offered(f: &Fixture, offer: &Offer) -> Group {
    let mut reads = Reads::default();
    offer.reads(&mut reads);
    let mut draft = f.draft(&reads).await;
    let outcome = enqueue(&mut draft, offer).unwrap();
    assert!(outcome.is_inserted(), "{outcome:?}");
    draft.finish()
}

async fn full_draft(f: &Fixture, head: &Head) -> Draft {
    f.draft(&Reads { fulls: vec![head.id], ..Reads::default() }).await
}

async fn acked(f: &Fixture, run: &Head) -> Group {
    let mut draft = full_draft(f, run).await;
    let settled = settle::complete(&mut draft, run.id, &bearer(run), None).unwrap();
    assert!(matches!(settled, settle::Settled::Done(_)), "{settled:?}");
    draft.finish()
}

async fn one(f: &Fixture, group: Group) -> Verdict {
    f.commit(vec![group]).await[0]
}

/// A group has loaded a job before it was claimed, and the holders of its key afterwards: it must wait for
/// the run to end.
pub async fn a_follow_up_waits_for_a_run_whose_row_was_loaded_before_it_began(f: &Fixture) {
    let run = f.create(&keyed("a").offer()).await;
    let mut draft = f.draft(&Reads { heads: vec![run.id], ..Reads::default() }).await;
    let (run, _) = f.claim_one().await;
    let offer = keyed("a").on_conflict("follow_up").offer();
    let mut reads = Reads::default();
    offer.reads(&mut reads);
    draft.extend(f.load(&reads).await);
    let outcome = enqueue(&mut draft, &offer).unwrap();
    // If the group is stale, because it names the row as well, it is decided again.
    let outcome = if one(f, draft.finish()).await == Applied { outcome } else { f.enqueue(&offer).await };
    let Outcome::FollowUp(waiting) = outcome else { panic!("{outcome:?}") };
    assert_eq!(f.head(run.id).await.unwrap().follow_up, Some(waiting.id));
    f.complete(&run).await;
    assert_eq!(f.claim_one().await.0.id, waiting.id);
}

/// Two decisions see a free key.
pub async fn the_second_of_two_admissions_is_stale(f: &Fixture) {
    for states in [StateSet::LIVE, StateSet::ALL] {
        let offer = keyed(if states == StateSet::ALL { "a" } else { "b" }).states(states).offer();
        let (first, second) = (offered(f, &offer).await, offered(f, &offer).await);
        assert_eq!(one(f, first).await, Applied);
        assert_eq!(one(f, second).await, Stale);
        assert_eq!(f.holders(offer.unique.unwrap().key).await.len(), 1);
    }
}

/// The version of a key tells a decision that the key's holders have changed: any write of a holder raises
/// it, to at least the holder's new version.
pub async fn every_write_of_a_holder_moves_its_key(f: &Fixture) {
    let key = key("a");
    let keys = vec![KeyRead { key, states: StateSet::ALL, all: true }];
    let reads = Reads { keys, ..Reads::default() };
    let view = async || f.load(&reads).await.peek_key(&key).unwrap().clone();
    let offer = keyed("a").states(StateSet::ALL).period(DAY * 30, "last_duplicate").attempts(3).offer();
    let group = offered(f, &offer).await;
    assert_eq!(one(f, group).await, Applied);
    let mut seen = view().await;
    let mut moved = async |what: &str| {
        let now = view().await;
        let [holder] = &now.holders[..] else { panic!("{what}: {:?}", now.holders) };
        assert!(now.version > seen.version && now.version >= holder.version, "{what}");
        f.clock.advance(SECOND);
        seen = now;
    };
    let (run, _) = f.claim_one().await;
    moved("a claim").await;
    f.decide(|draft| settle::extend(draft, run.id, &bearer(&run), None)).await;
    moved("a heartbeat").await;
    f.decide(|draft| settle::give_back(draft, run.id, &bearer(&run))).await;
    moved("a run that is given back").await;
    assert!(!f.enqueue(&offer).await.is_inserted());
    moved("a duplicate that renews").await;
    let (run, _) = f.claim_one().await;
    moved("a second claim").await;
    f.fail(&run).await;
    moved("a failure").await;
    f.cancel(run.id).await;
    moved("a cancellation").await;
}

/// Decides the end of a run; returns the draft and the group. The key that `offer` asks about is loaded
/// before or after it.
async fn ended(f: &Fixture, run: &Head, offer: &Offer, is_looked_at_first: bool) -> (Draft, Group) {
    let mut reads = Reads { fulls: vec![run.id], ..Reads::default() };
    offer.reads(&mut reads);
    let keys = if is_looked_at_first { Vec::new() } else { std::mem::take(&mut reads.keys) };
    let mut draft = f.draft(&reads).await;
    let settled = settle::complete(&mut draft, run.id, &bearer(run), None).unwrap();
    assert!(matches!(settled, settle::Settled::Done(_)), "{settled:?}");
    let end = draft.finish();
    if !keys.is_empty() {
        draft.extend(f.load(&Reads { keys, ..Reads::default() }).await);
    }
    (draft, end)
}

/// An end does not rely on the job's key, and sets its version to one that says nothing of what was there
/// before.
///
/// An admission on top of that end, in the same batch, still relies on what was there before.
pub async fn an_admission_on_top_of_an_end_is_stale_when_the_key_has_moved(f: &Fixture) {
    for is_looked_at_first in [true, false] {
        let name = if is_looked_at_first { "a" } else { "b" };
        let offer = keyed(name).offer();
        f.create(&offer).await;
        let (run, _) = f.claim_one().await;
        // Another server's job, whose policy ignores running jobs.
        let other = offered(f, &keyed(name).states(StateSet::default().with(State::Available)).offer()).await;
        f.advance(SECOND).await;
        let (mut draft, end) = ended(f, &run, &offer, is_looked_at_first).await;
        assert!(enqueue(&mut draft, &offer).unwrap().is_inserted(), "its holder has ended");
        let admission = draft.finish();
        assert_eq!(one(f, other).await, Applied);
        assert_eq!(f.commit(vec![end, admission]).await, [Applied, Stale]);
        let live = f.holders(offer.unique.unwrap().key).await.into_iter().filter(|head| head.state.is_live());
        assert_eq!(live.count(), 1);
        let (left, _) = f.claim_one().await;
        f.complete(&left).await;
    }
}

/// The same for an answer that writes nothing.
///
/// Two jobs hold the key; one ends in the same batch, and the other blocks. If the other has ended meanwhile,
/// there was no moment at which it alone held the key, so the answer must not be given.
pub async fn an_answer_on_top_of_an_end_is_stale_when_the_key_has_moved(f: &Fixture) {
    for (name, is_looked_at_first, has_moved) in
        [("a", true, true), ("b", true, false), ("c", false, true), ("d", false, false)]
    {
        f.create(&keyed(name).offer()).await;
        let (other, _) = f.claim_one().await;
        f.create(&keyed(name).states(StateSet::default().with(State::Available)).offer()).await;
        let (run, _) = f.claim_one().await;
        f.advance(SECOND).await;
        let offer = keyed(name).on_conflict("ignore").offer();
        let (mut draft, end) = ended(f, &run, &offer, is_looked_at_first).await;
        let outcome = enqueue(&mut draft, &offer).unwrap();
        assert!(matches!(&outcome, Outcome::Existing(head) if head.id == other.id), "{outcome:?}");
        let answer = draft.finish();
        assert!(answer.is_empty() && answer.is_checked());
        if has_moved {
            f.complete(&other).await;
        }
        let verdict = if has_moved { Stale } else { Applied };
        assert_eq!(f.commit(vec![end, answer]).await, [Applied, verdict], "{name}");
        if !has_moved {
            f.complete(&other).await;
        }
        assert!(f.enqueue(&offer).await.is_inserted(), "nobody is left");
        let (left, _) = f.claim_one().await;
        f.complete(&left).await;
    }
}

/// The key was loaded while the holder waited, and the holder itself after it was gone.
pub async fn a_holder_that_is_gone_meanwhile_is_looked_for_again(f: &Fixture) {
    let offer = keyed("a").on_conflict("follow_up").offer();
    let mut reads = Reads::default();
    offer.reads(&mut reads);
    let holder = f.create(&offer).await;
    let mut draft = f.draft(&reads).await;
    let (run, _) = f.claim_one().await;
    f.complete(&run).await;
    f.advance(DAY * 2).await;
    assert_eq!(f.purge().await, 1);
    assert!(enqueue(&mut draft, &offer).is_err());
    draft.roll_back();
    let missing = draft.take_missing();
    assert_eq!((&*missing.fulls, &*missing.keys), (&[holder.id][..], &[][..]));
    draft.extend(f.load(&missing).await);
    assert!(enqueue(&mut draft, &offer).is_err());
    draft.roll_back();
    let missing = draft.take_missing();
    assert_eq!((&*missing.fulls, missing.keys.len()), (&[][..], 1));
    draft.extend(f.load(&missing).await);
    assert!(enqueue(&mut draft, &offer).unwrap().is_inserted());
    // The decision relies on what was there at first.
    assert_eq!(one(f, draft.finish()).await, Stale);
    assert!(f.enqueue(&offer).await.is_inserted());
}

/// A key must not look untouched when a holder was created, run and archived meanwhile.
pub async fn the_second_of_two_admissions_is_stale_even_after_the_first_has_ended(f: &Fixture) {
    let offer = keyed("a").states(StateSet::ALL).offer();
    // The store's housekeeping has run before, at this very time.
    f.finished(&keyed("other").offer()).await;
    f.maintain().await;
    let late = offered(f, &offer).await;
    let first = offered(f, &offer).await;
    assert_eq!(one(f, first).await, Applied);
    let run = f
        .commit_all(Vec::new(), vec![crate::fixture::claim(&["default"], 1)])
        .await
        .claims
        .remove(0)
        .jobs
        .remove(0)
        .0;
    let ack = acked(f, &run).await;
    assert_eq!(one(f, ack).await, Applied);
    f.maintain().await;
    assert_eq!(one(f, late).await, Stale);
    assert_eq!(f.holders(key("a")).await.len(), 1);
}

/// Two decisions would cancel the same holder.
pub async fn the_second_of_two_replacements_is_stale(f: &Fixture) {
    f.create(&keyed("a").offer()).await;
    let offer = keyed("a").on_conflict("replace").offer();
    let (first, second) = (offered(f, &offer).await, offered(f, &offer).await);
    assert_eq!((one(f, first).await, one(f, second).await), (Applied, Stale));
    let live = f.holders(key("a")).await.into_iter().filter(|holder| holder.state.is_live());
    assert_eq!(live.count(), 1);
}

/// REPLACE against CLAIM.
pub async fn a_replacement_is_stale_when_its_holder_was_claimed(f: &Fixture) {
    let held = f.create(&keyed("a").offer()).await;
    let replacement = offered(f, &keyed("a").on_conflict("replace").offer()).await;
    let mut applied = f.commit_all(vec![replacement.clone()], Vec::new()).await;
    assert_eq!(applied.groups, [Applied], "untouched, it holds");
    f.create(&keyed("b").queue("q").offer()).await;
    let replacement = offered(f, &keyed("b").on_conflict("replace").queue("q").offer()).await;
    applied = f.commit_all(Vec::new(), vec![crate::fixture::claim(&["q"], 1)]).await;
    let run = &applied.claims[0].jobs[0].0;
    assert_eq!(one(f, replacement).await, Stale);
    assert!(matches!(f.complete(run).await, settle::Settled::Done(_)), "the run was left alone");
    assert_eq!(f.head(held.id).await.unwrap().state, State::Cancelled);
}

/// ACK against the reaper, both ways round.
pub async fn an_ack_is_stale_when_the_lease_was_reaped(f: &Fixture) {
    for ack_first in [false, true] {
        f.create(&job().offer()).await;
        let (run, _) = f.claim_one().await;
        f.advance(SECOND * 3600).await;
        let ack = acked(f, &run).await;
        let mut draft = full_draft(f, &run).await;
        settle::reap(&mut draft, run.id).unwrap().unwrap();
        let reap = draft.finish();
        let (first, second) = if ack_first { (ack, reap) } else { (reap, ack) };
        assert_eq!((one(f, first).await, one(f, second).await), (Applied, Stale));
        let after = f.head(run.id).await.unwrap();
        assert_eq!(after.state == State::Completed, ack_first);
        f.cancel(run.id).await;
    }
}

/// CANCEL against ACK, both ways round.
pub async fn an_ack_is_stale_when_the_job_was_cancelled(f: &Fixture) {
    for ack_first in [false, true] {
        f.create(&job().offer()).await;
        let (run, _) = f.claim_one().await;
        let ack = acked(f, &run).await;
        let mut draft = full_draft(f, &run).await;
        life::cancel(&mut draft, run.id, &Bearer::default()).unwrap();
        let cancel = draft.finish();
        let (first, second) = if ack_first { (ack, cancel) } else { (cancel, ack) };
        assert_eq!((one(f, first).await, one(f, second).await), (Applied, Stale));
        let expected = if ack_first { State::Completed } else { State::Cancelled };
        assert_eq!(f.head(run.id).await.unwrap().state, expected);
    }
}

/// Insert against purge: the duplicate would renew a holder that is being purged.
pub async fn an_admission_is_stale_when_its_holder_was_purged(f: &Fixture) {
    let sliding = keyed("a").states(StateSet::ALL).period(DAY, "last_duplicate").offer();
    let ended = f.finished(&sliding).await;
    f.maintain().await;
    f.advance(DAY - SECOND).await;
    let mut reads = Reads::default();
    sliding.reads(&mut reads);
    let mut draft = f.draft(&reads).await;
    assert!(matches!(enqueue(&mut draft, &sliding).unwrap(), Outcome::Rejected { .. }));
    let renewal = draft.finish();
    assert!(!renewal.is_empty());
    f.advance(SECOND).await;
    f.maintain().await;
    let mut draft = full_draft(f, &ended).await;
    assert!(life::purge(&mut draft, ended.id).unwrap());
    assert_eq!(one(f, draft.finish()).await, Applied);
    assert_eq!(one(f, renewal).await, Stale);
    assert!(f.holders(key("a")).await.is_empty());
    assert_eq!(f.head(ended.id).await, None);
}

/// Whatever the filing moves, no decision may miss an ended holder.
pub async fn an_admission_decided_before_the_filing_of_a_holder_is_stale_or_right(f: &Fixture) {
    let strict = keyed("a").states(StateSet::ALL).period(SECOND * 5, "created");
    f.finished(&strict.offer()).await;
    f.advance(SECOND * 10).await;
    let late = offered(f, &strict.offer()).await;
    f.maintain().await;
    let verdict = one(f, late).await;
    assert_eq!(
        f.holders(key("a")).await.iter().filter(|holder| holder.state.is_live()).count(),
        usize::from(verdict == Applied)
    );
    assert_eq!(f.enqueue(&strict.offer()).await.is_inserted(), verdict == Stale);
    // The same for a decision that renews it: it renews the filed row, or is decided again.
    let sliding = keyed("b").states(StateSet::ALL).period(SECOND * 50, "last_duplicate").offer();
    let ended = f.finished(&sliding).await;
    let mut reads = Reads::default();
    sliding.reads(&mut reads);
    f.advance(SECOND).await;
    let mut draft = f.draft(&reads).await;
    enqueue(&mut draft, &sliding).unwrap();
    let renewal = draft.finish();
    f.maintain().await;
    let verdict = one(f, renewal).await;
    let renewed = f.head(ended.id).await.unwrap().renewed_at;
    assert_eq!(renewed.is_some(), verdict == Applied);
    assert_eq!(f.holders(key("b")).await[0].renewed_at, renewed);
}

/// Housekeeping makes no decision on other jobs stale.
pub async fn an_ack_decided_before_other_jobs_were_filed_holds(f: &Fixture) {
    f.create(&keyed("mine").offer()).await;
    let (run, _) = f.claim_one().await;
    f.finished(&keyed("other").offer()).await;
    let ack = acked(f, &run).await;
    f.maintain().await;
    assert_eq!(one(f, ack).await, Applied);
}

/// A queue's settings have a version of their own.
pub async fn a_queue_setting_decided_on_an_old_one_is_stale(f: &Fixture) {
    let name = QueueName::from_stored("q");
    let reads = Reads { queues: vec![name.clone()], ..Reads::default() };
    let mut groups = Vec::new();
    for _ in 0..2 {
        let mut draft = f.draft(&reads).await;
        life::set_paused(&mut draft, &name, true).unwrap();
        groups.push(draft.finish());
    }
    let second = groups.pop().unwrap();
    assert_eq!((f.commit(groups).await[0], one(f, second).await), (Applied, Stale));
    // Jobs that come and go do not change the settings.
    let mut draft = f.draft(&reads).await;
    life::set_paused(&mut draft, &name, false).unwrap();
    let resume = draft.finish();
    f.create(&job().queue("q").offer()).await;
    assert_eq!(one(f, resume).await, Applied);
}

/// A purged job that is created again under its old id is another record.
pub async fn a_version_does_not_repeat_after_deletion(f: &Fixture) {
    let offer = job().id(foreign_id(1)).offer();
    let first = f.finished(&offer).await;
    let mut stale = full_draft(f, &first).await;
    let (mut head, _) = stale.full(first.id).unwrap().unwrap();
    stale.update(&mut head);
    f.advance(DAY).await;
    assert_eq!(f.purge().await, 1);
    let again = f.create(&offer).await;
    assert!(again.version > first.version);
    assert_eq!(one(f, stale.finish()).await, Stale);
    assert_eq!(f.head(again.id).await, Some(again));
}

/// Neither renewal is lost.
pub async fn a_window_renewed_by_two_duplicates_moves_once_for_each(f: &Fixture) {
    let sliding = keyed("a").period(SECOND * 50, "last_duplicate").offer();
    let held = f.create(&sliding).await;
    f.advance(SECOND).await;
    let mut reads = Reads::default();
    sliding.reads(&mut reads);
    let mut groups = Vec::new();
    for _ in 0..2 {
        let mut draft = f.draft(&reads).await;
        enqueue(&mut draft, &sliding).unwrap();
        groups.push(draft.finish());
    }
    assert_eq!(f.commit(groups).await, [Applied, Stale]);
    assert!(f.head(held.id).await.unwrap().renewed_at.is_some());
}

/// Amend against claim: no worker runs with the old args while the caller hears that the new ones will run.
pub async fn an_amendment_is_stale_when_the_job_was_claimed(f: &Fixture) {
    let held = f.create(&keyed("a").on_conflict("follow_up").offer()).await;
    let offer = keyed("a").on_conflict("follow_up").args("[2]").offer();
    let mut reads = Reads { fulls: vec![held.id], ..Reads::default() };
    offer.reads(&mut reads);
    let mut draft = f.draft(&reads).await;
    assert!(matches!(enqueue(&mut draft, &offer).unwrap(), Outcome::Amended(_)));
    f.claim_one().await;
    assert_eq!(one(f, draft.finish()).await, Stale);
    assert!(f.full(held.id).await.unwrap().1.notes.is_empty());
}

/// An id counts as a record that was read.
pub async fn an_insert_with_a_taken_id_is_stale(f: &Fixture) {
    let offer = job().id(foreign_id(3)).offer();
    let (first, second) = (offered(f, &offer).await, offered(f, &offer).await);
    assert_eq!((one(f, first).await, one(f, second.clone()).await), (Applied, Stale));
    let (run, _) = f.claim_one().await;
    f.complete(&run).await;
    f.maintain().await;
    assert_eq!(one(f, second).await, Stale, "also when the job that has it is filed");
}

/// Versions change with writes, not with time.
pub async fn a_read_that_nothing_touched_holds(f: &Fixture) {
    let held = f.create(&keyed("a").offer()).await;
    let read = KeyRead { key: key("a"), states: StateSet::LIVE, all: true };
    let mut draft = f.draft(&Reads { heads: vec![held.id], keys: vec![read], ..Reads::default() }).await;
    assert_eq!(draft.key(&read).unwrap().holders.len(), 1);
    life::cancel(&mut draft, held.id, &Bearer::default()).unwrap();
    f.advance(DAY).await;
    f.create(&keyed("b").offer()).await;
    assert_eq!(one(f, draft.finish()).await, Applied);
}

/// The body is gone while the head stays for its key: a decision that has seen the whole job has seen one
/// that no longer exists.
pub async fn a_decision_on_a_job_that_was_purged_meanwhile_is_stale(f: &Fixture) {
    let strict = keyed("a").states(StateSet::ALL).attempts(1).dead_letter();
    f.create(&strict.offer()).await;
    let (run, _) = f.claim_one().await;
    f.fail(&run).await;
    let holders = KeyRead { key: key("a"), states: StateSet::ALL, all: true };
    let mut draft = f.draft(&Reads { fulls: vec![run.id], keys: vec![holders], ..Reads::default() }).await;
    assert!(matches!(life::revive(&mut draft, run.id).unwrap(), life::Revived::Done(_)));
    let late = draft.finish();
    f.decide(|draft| life::delete_dead_letter(draft, run.id)).await;
    assert_eq!(one(f, late).await, Stale);
    assert_eq!(f.head(run.id).await, None);
    let outcome = f.enqueue(&strict.offer()).await;
    assert!(matches!(outcome, Outcome::Rejected { .. }), "its key is remembered: {outcome:?}");
}

/// Two writers that read the same version at the same time produce the same next number.
pub async fn a_group_that_relies_on_a_stale_one_is_stale_even_if_the_numbers_meet(f: &Fixture) {
    f.create(&job().offer()).await;
    let (run, _) = f.claim_one().await;
    f.advance(SECOND).await;
    // One extends the lease and then, in the same batch, acknowledges the run; the other cancels it.
    let mut draft = full_draft(f, &run).await;
    settle::extend(&mut draft, run.id, &bearer(&run), None).unwrap();
    let prolonged = draft.finish();
    settle::complete(&mut draft, run.id, &bearer(&run), None).unwrap();
    let acked = draft.finish();
    let mut other = full_draft(f, &run).await;
    life::cancel(&mut other, run.id, &Bearer::default()).unwrap();
    assert_eq!(one(f, other.finish()).await, Applied);
    assert_eq!(f.commit(vec![prolonged, acked]).await, [Stale, Stale]);
    assert_eq!(f.head(run.id).await.unwrap().state, State::Cancelled);
}

/// A job without a body does not count as existing, though its head is kept for its key. A decision that
/// found no job still holds.
pub async fn a_decision_that_found_a_purged_job_gone_holds(f: &Fixture) {
    let ended = f.finished(&keyed("a").states(StateSet::ALL).offer()).await;
    f.advance(DAY + SECOND).await;
    assert_eq!(f.purge().await, 1);
    assert_eq!(f.holders(key("a")).await.len(), 1);
    let mut draft = full_draft(f, &ended).await;
    assert_eq!(draft.full(ended.id), Ok(None));
    life::set_paused(&mut draft, &QueueName::default(), true).unwrap_err();
    let missing = draft.take_missing();
    draft.roll_back();
    draft.extend(f.load(&missing).await);
    assert_eq!(draft.full(ended.id), Ok(None));
    life::set_paused(&mut draft, &QueueName::default(), true).unwrap();
    assert_eq!(one(f, draft.finish()).await, Applied);
}
