//! What is still known about a job once it has ended, and what may still change in it.
//!
//! A store may keep an ended job under its key as a [`KeyMemory`], so a decision may have seen no more of the
//! job than that. Whatever the decision writes is merged into the store's version of the job by
//! [`Head::with_ended_change`]. Only this module says which of the two supplies each field, for the verbs of
//! [`life`](crate::life) and for the windows that duplicates renew.

use super::{Ending, Head, Role};
use crate::ident::{JobId, JobType, QueueName};
use crate::state::State;
use crate::time::Timestamp;
use crate::unique::{Hold, UniqueKey};

/// What a key needs to know about an ended job.
///
/// That is, which offers the job blocks and for how long, what may be shown of it, and which of two holders
/// may stand for the other. The last may also depend on how long the job's body is
/// [kept](Head::lacks_kept_until), which only the job's own row records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyMemory {
    /// The job's id.
    pub id: JobId,
    /// Its key.
    pub key: Option<UniqueKey>,
    /// What the job's own policy requires to be remembered, and whether the job may be shown.
    pub hold: Hold,
    /// Its type.
    pub job_type: JobType,
    /// Its queue.
    pub queue: QueueName,
    /// The state in which it ended.
    pub state: State,
    /// Its version.
    pub version: u64,
    /// The fence: the number of the job's newest grant.
    pub fence: u64,
    /// When it was admitted.
    pub created_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// When the last duplicate renewed the job's window.
    pub renewed_at: Option<Timestamp>,
    /// How it ended.
    pub ending: Option<Ending>,
}

impl From<KeyMemory> for Head {
    /// Makes a head for a holder of the key. The fields that the memory lacks get placeholders: no decision
    /// on a key looks at them, and when such a head is written it goes through [`Head::with_ended_change`],
    /// which ignores them.
    fn from(memory: KeyMemory) -> Self {
        let KeyMemory {
            id,
            key,
            hold,
            job_type,
            queue,
            state,
            version,
            fence,
            created_at,
            finished_at,
            renewed_at,
            ending,
        } = memory;
        Self {
            id,
            key,
            hold,
            job_type,
            queue,
            lane: None,
            priority: 0,
            state,
            role: Role::Plain,
            attempt: 0,
            max_attempts: 0,
            visibility_ms: 0,
            timeout_ms: 0,
            version,
            fence,
            created_at,
            available_at: finished_at,
            expires_at: None,
            started_at: None,
            finished_at: Some(finished_at),
            renewed_at,
            until: None,
            lease: None,
            follow_up: None,
            ending,
            awaited: false,
        }
    }
}

impl Head {
    /// This head of an ended job, after a decision that gave the job the values of `decided`.
    ///
    /// Only what a verb may change in an ended job is taken from `decided`, because the decision may have
    /// seen no more of the job than its [key's memory](KeyMemory). If the decision saw all of this head, the
    /// result equals `decided`.
    ///
    /// A new field must be assigned to one of the three groups below, or this does not compile.
    #[must_use]
    pub fn with_ended_change(&self, decided: &Self) -> Self {
        let lives_again = decided.state.is_live();
        let life = if lives_again { decided } else { self };
        Self {
            // What the job was admitted with stays with it through all its lives.
            id: self.id,
            hold: self.hold,
            job_type: self.job_type.clone(),
            queue: self.queue.clone(),
            lane: self.lane,
            priority: self.priority,
            role: self.role,
            max_attempts: self.max_attempts,
            visibility_ms: self.visibility_ms,
            timeout_ms: self.timeout_ms,
            created_at: self.created_at,
            // What changes in an ended job. Its key can be removed but not given back while it is ended. The
            // memory has the ending, but not how long the body is kept, which changes only together with the
            // ending.
            key: if lives_again { decided.key } else { decided.key.and(self.key) },
            version: decided.version,
            renewed_at: decided.renewed_at,
            ending: decided.ending,
            until: if decided.ending == self.ending { self.until } else { decided.until },
            // What a life leaves behind stays until the job is sent back and starts another.
            state: life.state,
            attempt: life.attempt,
            fence: life.fence,
            available_at: life.available_at,
            expires_at: life.expires_at,
            started_at: life.started_at,
            finished_at: life.finished_at,
            lease: life.lease.clone(),
            follow_up: life.follow_up,
            awaited: life.awaited,
        }
    }

    /// Whether this head of an ended job may lack the time until which the body is [kept](Self::kept_until),
    /// which may decide which of two holders stands for the other: a [key's memory](KeyMemory) does not have
    /// it. A dead letter never stands for another holder.
    pub const fn lacks_kept_until(&self) -> bool {
        self.until.is_none() && !self.is_dead_letter()
    }

    /// This head of an ended job once its body has been deleted: only the key still needs it, however long it
    /// was kept before.
    #[must_use]
    pub fn without_body(self) -> Self {
        Self { until: self.finished_at, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::body::Body;
    use crate::draft::{Draft, Full, KeyRead, KeyView, Reads, Snapshot, Write};
    use crate::enqueue::renew_windows;
    use crate::life;
    use crate::limit::Lane;
    use crate::state::StateSet;
    use crate::unique::{Disclose, PeriodFrom};

    const DAY: Duration = Duration::from_secs(24 * 3_600);
    const KEY: UniqueKey = UniqueKey::from_bytes([7; 32]);

    fn at(since: Duration) -> Timestamp {
        Timestamp::from_millis(1_767_225_600_000).saturating_add(since)
    }

    fn seconds(number: u64) -> Timestamp {
        at(Duration::from_secs(number))
    }

    /// A dead letter in which no field has the placeholder that a key's memory would give it.
    fn dead_letter() -> Head {
        Head {
            id: JobId::mint(seconds(1), 1, 7),
            key: Some(KEY),
            hold: Hold::new(StateSet::ALL, PeriodFrom::LastDuplicate, None, Disclose::Never),
            job_type: JobType::from_stored("a.b"),
            queue: QueueName::from_stored("mail"),
            lane: Some(Lane::of("limit")),
            priority: 7,
            state: State::Discarded,
            role: Role::FollowUp,
            attempt: 3,
            max_attempts: 3,
            visibility_ms: 5_000,
            timeout_ms: 70_000,
            version: 40,
            fence: 30,
            created_at: seconds(1),
            available_at: seconds(2),
            expires_at: Some(seconds(900)),
            started_at: Some(seconds(3)),
            finished_at: Some(seconds(4)),
            renewed_at: Some(seconds(2)),
            until: Some(at(DAY * 400)),
            lease: None,
            follow_up: Some(JobId::mint(seconds(2), 2, 7)),
            ending: Some(Ending::DeadLetter),
            awaited: false,
        }
    }

    /// What a decision sees of the job if it has seen only its key's memory.
    fn remembered(head: &Head) -> Head {
        KeyMemory {
            id: head.id,
            key: head.key,
            hold: head.hold,
            job_type: head.job_type.clone(),
            queue: head.queue.clone(),
            state: head.state,
            version: head.version,
            fence: head.fence,
            created_at: head.created_at,
            finished_at: head.finished_at.unwrap(),
            renewed_at: head.renewed_at,
            ending: head.ending,
        }
        .into()
    }

    type Verb = fn(&mut Draft, &Head);

    /// Every verb that may write to an ended job.
    const VERBS: [(&str, Verb); 7] = [
        ("a duplicate starts its window again", |draft, head| renew_windows(draft, vec![head.clone()])),
        ("its key is released", |draft, _| drop(life::release_key(draft, KEY).unwrap())),
        ("a dead letter is deleted", |draft, head| drop(life::delete_dead_letter(draft, head.id).unwrap())),
        ("a dead letter is sent back", |draft, head| drop(life::revive(draft, head.id).unwrap())),
        ("it is filed anew", |draft, head| assert!(!life::purge(draft, head.id).unwrap())),
        ("its body is deleted", |draft, head| draft.forget(head, Some(at(DAY * 500)))),
        ("something is noted of it", |draft, head| draft.update(&mut head.clone())),
    ];

    /// What `verb` makes of a job whose head the decision saw as `head`.
    fn decided(verb: Verb, head: &Head) -> Head {
        let read = KeyRead { key: KEY, states: StateSet::ALL, all: true };
        let body = Body { request_digest: Some([9; 32]), ..Body::default() }.encode().unwrap();
        let mut snapshot = Snapshot::with_room_for(seconds(60), &Reads::default());
        snapshot.add_key(KEY, KeyView::new(head.version, vec![head.clone()], &read, false));
        snapshot.add_full(head.id, Some((head.clone(), Full { body, notes: Vec::new() })));
        let mut draft = Draft::new(snapshot, 7, Arc::default());
        verb(&mut draft, head);
        let mut updates = draft.finish().writes.into_iter().filter_map(|write| match write {
            Write::Update { head } => Some(head),
            _ => None,
        });
        let (update, more) = (updates.next(), updates.next());
        assert_eq!(more, None);
        update.unwrap()
    }

    #[test]
    fn a_decision_that_saw_the_keys_memory_alone_comes_to_the_same() {
        let before = dead_letter();
        let partial = remembered(&before);
        assert_ne!(partial, before);
        for (what, verb) in VERBS {
            let expected = decided(verb, &before);
            assert_eq!(before.with_ended_change(&decided(verb, &partial)), expected, "{what}");
            assert_eq!(before.with_ended_change(&expected), expected, "{what}, by who saw all");
            assert!(expected.version > before.version, "{what}");
        }
    }

    /// Decisions of one group share what was loaded for any of them.
    #[test]
    fn a_later_decision_of_the_group_sees_all_of_the_job() {
        let before = dead_letter();
        let read = KeyRead { key: KEY, states: StateSet::ALL, all: true };
        let mut snapshot = Snapshot::with_room_for(seconds(60), &Reads::default());
        let partial = remembered(&before);
        snapshot.add_key(KEY, KeyView::new(before.version, vec![partial.clone()], &read, false));
        let mut draft = Draft::new(snapshot, 7, Arc::default());
        renew_windows(&mut draft, vec![partial]);
        draft.finish();
        let mut more = Snapshot::with_room_for(seconds(60), &Reads::default());
        let full = Full { body: Body::default().encode().unwrap(), notes: Vec::new() };
        more.add_full(before.id, Some((before.clone(), full)));
        draft.extend(more);
        life::revive(&mut draft, before.id).unwrap();
        let head = draft.finish().writes.into_iter().find_map(|write| match write {
            Write::Update { head } => Some(head),
            _ => None,
        });
        let head = head.unwrap();
        assert!(head.state.is_live());
        assert_eq!(before.with_ended_change(&head), head);
    }

    #[test]
    fn a_key_that_was_released_meanwhile_is_not_given_back() {
        let before = Head { key: None, ..dead_letter() };
        assert_eq!(before.with_ended_change(&remembered(&dead_letter())).key, None);
    }

    #[test]
    fn until_when_a_body_is_kept_is_lacking_until_it_is_known_or_gone() {
        let ended = Head { ending: Some(Ending::Failed), ..dead_letter() };
        assert!(!ended.lacks_kept_until() && !remembered(&dead_letter()).lacks_kept_until());
        assert!(remembered(&ended).lacks_kept_until());
        let gone = remembered(&ended).without_body();
        assert!(!gone.lacks_kept_until());
        assert_eq!(gone.purge_at(), ended.finished_at);
    }
}
