//! New jobs that nothing else in their commit is about.
//!
//! Their records are prepared here, complete, for the script to write (`lua/fresh.lua`): most commits add
//! jobs and little else, and Redis runs one script at a time.

use std::collections::BTreeMap;

use bytes::Bytes;
use redis::Cmd;
use semel_core::draft::{Expect, Group, Map, Record, Write};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::slot::{Filing, Slot};
use semel_core::unique::UniqueKey;

use crate::head::{self, place};

/// Groups of at most this many parts are searched once for each of their jobs.
const SMALL: usize = 8;

/// How often each job and key is named in a batch.
#[derive(Default)]
pub struct Mentions {
    jobs: Map<JobId, u32>,
    keys: Map<UniqueKey, u32>,
}

impl Mentions {
    /// Counts the names in groups. A new job that is alone in its group counts once there, however often the
    /// group names it.
    pub fn of(groups: &[Group]) -> Self {
        let mut mentions = Self::default();
        for group in groups {
            if let Some((head, _)) = new_job(group) {
                mentions.job(head.id);
                head.key.into_iter().for_each(|key| _ = mentions.key(key));
            } else {
                mentions.all_of(group);
            }
        }
        mentions
    }

    fn all_of(&mut self, group: &Group) {
        group.began.iter().for_each(|(key, _)| _ = self.key(*key));
        for expect in &group.expect {
            match &expect.record {
                Record::Job(id) => _ = self.job(*id),
                Record::Key(key) => _ = self.key(*key),
                Record::Queue(_) | Record::Document(_) => {}
            }
        }
        for write in &group.writes {
            match write {
                Write::Insert { head, .. } | Write::Update { head } => {
                    self.job(head.id);
                    head.key.into_iter().for_each(|key| _ = self.key(key));
                }
                Write::Note { job, .. } | Write::Forget { job, .. } => _ = self.job(*job),
                Write::Spend { id, job, .. } => {
                    self.job(*id);
                    self.job(*job);
                }
                Write::Free { id } => _ = self.job(*id),
                Write::Queue { .. } | Write::Document { .. } => {}
            }
        }
    }

    /// Counts one more mention of a job, and answers the count so far.
    pub fn job(&mut self, id: JobId) -> u32 {
        let count = self.jobs.entry(id).or_default();
        *count = count.saturating_add(1);
        *count
    }

    /// Counts one more mention of a key, and answers the count so far.
    pub fn key(&mut self, key: UniqueKey) -> u32 {
        let count = self.keys.entry(key).or_default();
        *count = count.saturating_add(1);
        *count
    }

    /// Whether exactly one head write of this group is about the job, and no other group of the batch names
    /// it. Always false for large groups, and for those that spend or free ids.
    pub fn is_alone(&self, job: JobId, group: &Group) -> bool {
        if group.expect.len() + group.writes.len() > SMALL {
            return false;
        }
        let expected = group.expect.iter().filter(|expect| expect.record == Record::Job(job)).count();
        let (mut heads, mut others) = (0, 0);
        for write in &group.writes {
            match write {
                Write::Insert { head, .. } | Write::Update { head } => heads += u32::from(head.id == job),
                Write::Forget { job: gone, .. } => heads += u32::from(*gone == job),
                Write::Note { job: about, .. } => others += u32::from(*about == job),
                // What an id is spent for is looked up through more than its own job.
                Write::Spend { .. } | Write::Free { .. } => return false,
                Write::Queue { .. } | Write::Document { .. } => {}
            }
        }
        let own = u32::try_from(expected).unwrap_or(u32::MAX).saturating_add(heads + others);
        heads == 1 && self.jobs.get(&job) == Some(&own)
    }

    /// Separates the new jobs that nothing else is about from the other groups, which come with their places
    /// in the batch.
    pub fn sort<'a>(&self, groups: &'a [Group]) -> (Fresh<'a>, Vec<(usize, &'a Group)>) {
        let (mut fresh, mut others) = (Fresh::default(), Vec::new());
        for (place, group) in groups.iter().enumerate() {
            let alone = new_job(group).filter(|(head, _)| {
                self.jobs.get(&head.id) == Some(&1)
                    && head.key.is_none_or(|key| self.keys.get(&key) == Some(&1))
            });
            match alone {
                Some((head, body)) => fresh.add(place, head, body),
                None => others.push((place, group)),
            }
        }
        (fresh, others)
    }
}

/// The new job of a group that does nothing else, and relies on nothing except that its key is free.
fn new_job(group: &Group) -> Option<(&Head, &Bytes)> {
    let [Write::Insert { head, body, minted: true }] = &group.writes[..] else { return None };
    let relies_on_no_more = match (&head.key, &group.expect[..]) {
        (None, []) => true,
        (Some(held), [Expect { record: Record::Key(key), version: 0 }]) => held == key,
        _ => false,
    };
    // Under a limit, more places than the job's own may move.
    let is_filed_alone = head.lane.is_none() && matches!(Filing::of(head).slot, Slot::Ready | Slot::Timer);
    (relies_on_no_more && is_filed_alone && group.began.is_empty()).then_some((head, body))
}

/// A new job: its group's place in the batch, its head, its body.
type Job<'a> = (usize, &'a Head, &'a Bytes);

/// The new jobs of a batch that nothing else is about.
#[derive(Default)]
pub struct Fresh<'a> {
    keyed: Vec<Job<'a>>,
    keyless: Vec<Job<'a>>,
    /// The members to add to each sorted set, by the set's name within the store.
    sets: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    /// How many jobs each queue gains in each state.
    queues: BTreeMap<(&'a str, u8), usize>,
}

impl<'a> Fresh<'a> {
    fn add(&mut self, place: usize, head: &'a Head, body: &'a Bytes) {
        let list = if head.key.is_some() { &mut self.keyed } else { &mut self.keyless };
        list.push((place, head, body));
        *self.queues.entry((head.queue.as_str(), head.state.code())).or_default() += 1;
        self.file(head);
    }

    /// Files a head as `file` in the scripts does.
    fn file(&mut self, head: &Head) {
        let (filing, id) = (Filing::of(head), head.id.to_bytes());
        let at = place(filing.at);
        match filing.slot {
            Slot::Ready => {
                let set = [b"r", head.queue.as_str().as_bytes()].concat();
                self.put(set, [&[head::rank(head.priority)][..], &at, &id].concat());
            }
            _ => self.put(b"t".to_vec(), [&at[..], &id].concat()),
        }
        if let Some(expires) = filing.expires {
            self.put(b"x".to_vec(), [&place(expires)[..], &id].concat());
        }
        self.put(b"j".to_vec(), id.to_vec());
    }

    fn put(&mut self, set: Vec<u8>, member: Vec<u8>) {
        self.sets.entry(set).or_default().push(member);
    }

    /// How many of the jobs have a key.
    pub fn keyed(&self) -> usize {
        self.keyed.len()
    }

    /// How many of the jobs have no key.
    pub fn keyless(&self) -> usize {
        self.keyless.len()
    }

    /// How many sorted sets the jobs are filed in.
    pub fn sets(&self) -> usize {
        self.sets.len()
    }

    /// How many counters of queues change: one for each queue and state.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// The place in the batch of each job's group, in the order in which the jobs are sent.
    pub fn places(&self) -> impl Iterator<Item = usize> {
        self.keyed.iter().chain(&self.keyless).map(|(place, ..)| *place)
    }

    /// Appends the jobs to a call of the commit script.
    pub fn push(self, command: &mut Cmd, base: &str) {
        let name = |letter: u8, rest: &[u8]| [base.as_bytes(), &[letter], rest].concat();
        for (_, head, body) in self.keyed.iter().chain(&self.keyless) {
            let id = head.id.to_bytes();
            command.arg(name(b'h', &id)).arg(head::write(head)).arg(name(b'b', &id)).arg(&body[..]);
            if let Some(key) = &head.key {
                command.arg(name(b'k', key.as_bytes())).arg(head::key_of_one(head));
            }
        }
        for (set, members) in self.sets {
            command.arg([base.as_bytes(), &set].concat()).arg(members.len());
            for member in members {
                command.arg(0).arg(member);
            }
        }
        for ((queue, state), count) in self.queues {
            command.arg(queue).arg(state).arg(count);
        }
    }
}
