//! The short form of a commit, which fits most: new jobs, and writes of jobs whose versions were seen, no two
//! of the same job or key. It needs few lists. The database applies all of it or, if something has moved,
//! nothing. Any other commit goes as columns (`batch`).

use std::collections::{BTreeMap, HashMap, HashSet};

use semel_core::draft::{Group, Record, Write};
use semel_core::event::Event;
use semel_core::ident::JobId;
use semel_core::job::{Head, NoteKind};
use semel_core::slot::{Filing, Slot};
use semel_core::unique::UniqueKey;
use tokio_postgres::types::Type;

use crate::people::CREATED;
use crate::rows::{push_heads, version};
use crate::values::{Id, Params};

/// Groups that can be committed in short form.
#[derive(Default)]
pub(crate) struct Brief<'a> {
    /// New jobs with their bodies.
    new: Vec<(&'a Head, &'a [u8])>,
    /// Existing jobs to write, with the versions they had when they were read.
    others: Vec<(&'a Head, i64)>,
    notes: Vec<(JobId, NoteKind, &'a [u8])>,
    /// The version of each key that a decision relies on; 0 if the key did not exist.
    keys: HashMap<&'a UniqueKey, i64>,
    events: Vec<&'a Event>,
}

impl<'a> Brief<'a> {
    /// Converts groups to the short form. `None` if one of them has something else, or is decided on top of
    /// another.
    pub(crate) fn of(groups: &'a [Group]) -> Option<Self> {
        let mut brief = Self::default();
        let mut stored: HashMap<JobId, i64> = HashMap::new();
        let mut updated: Vec<&Head> = Vec::new();
        for group in groups {
            if !group.began.is_empty() {
                return None;
            }
            let mut relied_on = HashSet::new();
            for expect in &group.expect {
                let is_another = match &expect.record {
                    // Absent records need guards, which the long form has.
                    Record::Job(id) if expect.version != 0 => {
                        stored.insert(*id, version(expect.version)).is_none()
                    }
                    Record::Key(key) => {
                        relied_on.insert(key);
                        brief.keys.insert(key, version(expect.version)).is_none()
                    }
                    Record::Job(_) | Record::Queue(_) | Record::Document(_) => false,
                };
                if !is_another {
                    return None;
                }
            }
            for write in &group.writes {
                if let Write::Insert { head, .. } | Write::Update { head } = write
                    && let Some(key) = &head.key
                {
                    relied_on.remove(key);
                }
                match write {
                    Write::Insert { head, body, minted: true } if Filing::of(head).slot != Slot::Done => {
                        brief.new.push((head, body));
                    }
                    Write::Update { head } => updated.push(head),
                    Write::Note { job, kind, text: Some(text) } => brief.notes.push((*job, *kind, text)),
                    _ => return None,
                }
            }
            // A key that is only relied on, and not written, is compared in the long form.
            if !relied_on.is_empty() {
                return None;
            }
            brief.events.extend(&group.events);
        }
        for head in updated {
            // Removed, so that a second write of the same job finds nothing.
            brief.others.push((head, stored.remove(&head.id)?));
        }
        (stored.is_empty() && brief.is_each_another()).then_some(brief)
    }

    /// Whether all writes are of different jobs, keys and notes, and each new job relies on its key.
    fn is_each_another(&self) -> bool {
        let mut jobs = HashSet::new();
        let mut keys: HashSet<&UniqueKey> = HashSet::new();
        let mut is_another =
            |head: &'a Head| jobs.insert(head.id) && head.key.as_ref().is_none_or(|key| keys.insert(key));
        let is_new_seen = |head: &Head| head.key.as_ref().is_none_or(|key| self.keys.contains_key(key));
        // An existing job's key must have a row.
        let is_other_seen = |head: &Head| head.key.as_ref().is_none_or(|key| self.keys.get(key) != Some(&0));
        if !self.new.iter().all(|(head, _)| is_another(head) && is_new_seen(head))
            || !self.others.iter().all(|(head, _)| is_another(head) && is_other_seen(head))
        {
            return false;
        }
        let mut notes = HashSet::new();
        !jobs.is_empty()
            && self.notes.iter().all(|(job, kind, _)| jobs.contains(job) && notes.insert((job, kind.code())))
    }

    /// Adds the parameters of `brief` after those of the time. `mark` identifies this commit. Each list is
    /// named as in the function.
    pub(crate) fn push(self, mark: Id, params: &mut Params<'a>) {
        params.named("p_mark").push(mark, Type::UUID);
        params.named("p_new").push(i32::try_from(self.new.len()).unwrap_or(i32::MAX), Type::INT4);
        let heads: Vec<&Head> =
            self.new.iter().map(|(head, _)| *head).chain(self.others.iter().map(|(head, _)| *head)).collect();
        push_heads(params, &heads);
        params.named("b_body").blobs(self.new.iter().map(|(_, body)| *body).collect());
        let keyed = |head: &'a Head| head.key.as_ref().map(|key| (key, head));
        let (mut fresh, mut held): (Vec<_>, Vec<_>) =
            heads.iter().filter_map(|head| keyed(head)).partition(|(key, _)| self.keys.get(key) == Some(&0));
        fresh.sort_unstable_by_key(|(key, _)| key.as_bytes());
        held.sort_unstable_by_key(|(key, _)| key.as_bytes());
        params.named("k_key").blobs(fresh.iter().map(|(key, _)| &key.as_bytes()[..]).collect());
        params.named("k_id").ids(fresh.iter().map(|(_, head)| head.id).collect());
        params.named("k_version").numbers(fresh.iter().map(|(_, head)| version(head.version)).collect());
        params.named("u_version").numbers(self.others.iter().map(|(_, stored)| *stored).collect());
        params.named("o_key").blobs(held.iter().map(|(key, _)| &key.as_bytes()[..]).collect());
        params
            .named("o_stored")
            .maybe_numbers(held.iter().map(|(key, _)| self.keys.get(key).copied()).collect());
        params.named("o_id").ids(held.iter().map(|(_, head)| head.id).collect());
        params.named("o_version").numbers(held.iter().map(|(_, head)| version(head.version)).collect());
        params
            .named("o_live")
            .flags(held.iter().map(|(_, head)| Filing::of(head).slot != Slot::Done).collect());
        params.named("n_id").ids(self.notes.iter().map(|(job, ..)| *job).collect());
        params.named("n_kind").codes(self.notes.iter().map(|(_, kind, _)| i16::from(kind.code())).collect());
        params.named("n_text").blobs(self.notes.iter().map(|(.., text)| *text).collect());
        let mut counts: BTreeMap<(&str, i16), i64> = BTreeMap::new();
        for head in &heads {
            *counts.entry((head.queue.as_str(), i16::from(head.state.code()))).or_default() += 1;
        }
        for (head, _) in &self.new {
            *counts.entry((head.queue.as_str(), CREATED)).or_default() += 1;
        }
        params.named("t_queue").texts(counts.keys().map(|(queue, _)| *queue).collect());
        params.named("t_what").codes(counts.keys().map(|(_, what)| *what).collect());
        params.named("t_n").numbers(counts.values().copied().collect());
        params.named("v_kind").codes(self.events.iter().map(|event| i16::from(event.kind.code())).collect());
        params.named("v_job").ids(self.events.iter().map(|event| event.job).collect());
        params.named("v_type").texts(self.events.iter().map(|event| event.job_type.as_str()).collect());
        params.named("v_queue").texts(self.events.iter().map(|event| event.queue.as_str()).collect());
        params.named("v_attempt").numbers(self.events.iter().map(|event| i64::from(event.attempt)).collect());
        params.named("v_amount").numbers(self.events.iter().map(|event| i64::from(event.amount)).collect());
    }
}

#[cfg(test)]
mod tests {
    use semel_core::draft::Group;
    use semel_store::Backend;
    use semel_store::backend::Batch;
    use semel_store::memory::Memory;
    use semel_testkit::fixture::groups_of;
    use semel_testkit::make::{foreign_id, job, keyed};

    use super::Brief;

    #[tokio::test]
    async fn new_jobs_with_new_keys_are_said_in_short() {
        let store = Memory::default();
        let offers = [keyed("a").offer(), job().offer(), keyed("b").offer()];
        assert!(Brief::of(&groups_of(&store, &offers).await).is_some());
    }

    #[tokio::test]
    async fn what_is_decided_on_top_of_something_is_not() {
        let store = Memory::default();
        let before = groups_of(&store, &[keyed("a").offer()]).await;
        drop(store.commit(Batch { groups: before, claims: Vec::new() }).await.unwrap());
        let replaces = |name: &str| keyed(name).on_conflict("replace").offer();
        for offers in [
            // Nothing at all.
            vec![],
            // The job's key is held by another job of the same commit.
            vec![job().offer(), replaces("a")],
            vec![keyed("b").offer(), replaces("b")],
            // The id was chosen by a caller, so it may have been used.
            vec![keyed("b").offer(), job().id(foreign_id(1)).offer()],
        ] {
            assert!(Brief::of(&groups_of(&store, &offers).await).is_none(), "{}", offers.len());
        }
    }

    /// Two writes of one job, and a write of a job that was not read.
    #[tokio::test]
    async fn a_job_is_written_once_and_as_it_was_seen() {
        use semel_core::draft::{Expect, Record, Write};

        let store = Memory::default();
        let mut groups = groups_of(&store, &[keyed("a").offer()]).await;
        let Write::Insert { head, .. } = &groups[0].writes[0] else { panic!("not an insert") };
        let update = Write::Update { head: head.clone() };
        let seen = Expect { record: Record::Job(head.id), version: 7 };
        let end = |expect: &[Expect], writes: usize| Group {
            expect: expect.to_vec(),
            writes: vec![update.clone(); writes],
            ..Group::default()
        };
        assert!(Brief::of(&[end(std::slice::from_ref(&seen), 1)]).is_some());
        assert!(Brief::of(&[end(&[], 1)]).is_none());
        assert!(Brief::of(&[end(std::slice::from_ref(&seen), 2)]).is_none());
        assert!(Brief::of(&[end(std::slice::from_ref(&seen), 0)]).is_none());
        let twice = [end(std::slice::from_ref(&seen), 1), end(std::slice::from_ref(&seen), 1)];
        assert!(Brief::of(&twice).is_none());
        // The decision found that the key did not exist, though the job it writes holds it.
        groups[0].writes[0] = update.clone();
        groups[0].expect.push(seen);
        assert!(Brief::of(&groups).is_none());
    }
}
