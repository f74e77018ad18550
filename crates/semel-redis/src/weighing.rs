//! Decides which groups of a crossing hold, from what the locked partitions said of the groups' records: the
//! same as a commit's script finds for one partition, in the same order.

use semel_core::draft::{DocumentKey, Group, Map, Record, Write};
use semel_core::ident::{JobId, QueueName};
use semel_core::job::Head;
use semel_core::unique::UniqueKey;
use semel_store::backend::{Unwritten, Verdict};

use crate::head::{NO_PLACE, remembered_until};
use crate::request::Forward;
use crate::routes::Route;

/// What the partitions know of an id.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Its version; `None` if no partition that was asked can tell.
    pub version: Option<u64>,
    /// The key that the job carries.
    pub key: Option<UniqueKey>,
    /// Whether there is a head, even one kept only for its key.
    pub is_there: bool,
    /// Whether the head is kept only for its key.
    pub is_kept: bool,
}

/// What all partitions that take part have said, and what the groups that hold make of it.
#[derive(Debug, Default)]
pub struct Scales {
    /// Ids.
    pub jobs: Map<JobId, Known>,
    /// Versions of keys; `None` is a version that is not known yet.
    pub keys: Map<UniqueKey, Option<u64>>,
    /// Versions of rows.
    pub rows: Map<QueueName, u64>,
    /// Versions of documents.
    pub documents: Map<DocumentKey, u64>,
    /// The highest version of a job that is gone.
    pub gone: u64,
}

/// What one partition is to be told.
#[derive(Debug, Default)]
pub struct Share {
    /// The groups, reduced to this partition's part.
    pub groups: Vec<Group>,
    /// Where ids of this partition lead from then on.
    pub forwards: Vec<Forward>,
}

impl Scales {
    /// The verdicts on the groups, and what each partition is told of those that hold.
    pub fn weigh(mut self, groups: &[&Group], routes: &[&Route]) -> (Vec<Verdict>, Map<u16, Share>) {
        let owned: Vec<Group> =
            groups.iter().map(|group| Group { began: group.began.clone(), ..Group::default() }).collect();
        let mut unwritten =
            Unwritten::before(&owned, |key| self.keys.get(key).copied().flatten().unwrap_or(u64::MAX));
        let mut verdicts = Vec::with_capacity(groups.len());
        let mut shares: Map<u16, Share> = Map::default();
        for (group, route) in groups.iter().zip(routes) {
            if unwritten.concerns(group) || !self.is_current(group) {
                unwritten.note(group);
                verdicts.push(Verdict::Stale);
                continue;
            }
            group.writes.iter().for_each(|write| self.apply(write));
            share_out(group, route, &mut shares);
            verdicts.push(Verdict::Applied);
        }
        (verdicts, shares)
    }

    fn is_current(&self, group: &Group) -> bool {
        let expected = group.expect.iter().all(|expect| {
            let version = match &expect.record {
                Record::Job(id) => match self.jobs.get(id) {
                    Some(known) if known.is_kept && expect.version == 0 && group.found_none(*id) => Some(0),
                    Some(known) => known.version,
                    None => None,
                },
                Record::Key(key) => self.keys.get(key).copied().flatten(),
                Record::Queue(name) => self.rows.get(name).copied(),
                Record::Document(key) => self.documents.get(key).copied(),
            };
            version == Some(expect.version)
        });
        expected
            && group.writes.iter().all(|write| match write {
                Write::Insert { head, minted: true, .. } => {
                    self.jobs.get(&head.id).is_some_and(|known| !known.is_there && known.version.is_some())
                }
                // Decided before an earlier job with that id was gone, it would have that job's version.
                Write::Insert { head, .. } => head.version > self.gone,
                _ => true,
            })
    }

    fn touch(&mut self, key: UniqueKey, version: Option<u64>) {
        if let Some(known) = self.keys.get_mut(&key) {
            *known = match (*known, version) {
                (Some(before), Some(version)) => Some((before + 1).max(version)),
                // The partition sets it to its own time when it is told; nothing can have relied on that.
                _ => None,
            };
        }
    }

    fn forget(&mut self, id: JobId) {
        let known = self.jobs.entry(id).or_default();
        self.gone = self.gone.max(known.version.unwrap_or(0));
        let key = std::mem::replace(known, Known { version: Some(0), ..Known::default() }).key;
        if let Some(key) = key {
            self.touch(key, None);
        }
    }

    fn update(&mut self, head: &Head) {
        let known = self.jobs.entry(head.id).or_default();
        if !known.is_there {
            return;
        }
        let held = known.key;
        if known.is_kept && (head.key.is_none() || remembered_until(head) == NO_PLACE) {
            return self.forget(head.id);
        }
        if known.is_kept {
            self.gone = self.gone.max(head.version);
        }
        (known.version, known.key) = (Some(head.version), head.key);
        match (head.key, held) {
            (Some(key), _) => self.touch(key, Some(head.version)),
            (None, Some(held)) => self.touch(held, Some(0)),
            (None, None) => {}
        }
    }

    fn apply(&mut self, write: &Write) {
        match write {
            Write::Insert { head, .. } => {
                let known =
                    Known { version: Some(head.version), key: head.key, is_there: true, is_kept: false };
                self.jobs.insert(head.id, known);
                if let Some(key) = head.key {
                    self.touch(key, Some(head.version));
                }
            }
            Write::Update { head } => self.update(head),
            Write::Forget { job, remember: Some(_) } => {
                let known = self.jobs.entry(*job).or_default();
                known.is_kept = known.is_there;
                self.gone = self.gone.max(known.version.unwrap_or(0));
            }
            Write::Forget { job, remember: None } => self.forget(*job),
            Write::Spend { id, .. } => {
                self.jobs.insert(*id, Known { version: Some(1), ..Known::default() });
            }
            Write::Free { id } => {
                self.jobs.insert(*id, Known { version: Some(0), ..Known::default() });
            }
            Write::Queue { row } => drop(self.rows.insert(row.name.clone(), row.version)),
            Write::Document { key, document } => {
                let version = document.as_ref().map_or(0, |document| document.version);
                self.documents.insert(key.clone(), version);
            }
            Write::Note { .. } => {}
        }
    }
}

/// The job that a write is about, if the log may tell of it.
const fn job_of(write: &Write) -> Option<JobId> {
    match write {
        Write::Insert { head, .. } | Write::Update { head } => Some(head.id),
        Write::Note { job, .. } | Write::Forget { job, .. } => Some(*job),
        _ => None,
    }
}

/// Divides a group among the partitions: each gets its writes and the events of its jobs, so that all the log
/// tells of a job is in one partition, in order. Other events go to the partition of the group's document, or
/// else of its first write.
fn share_out(group: &Group, route: &Route, shares: &mut Map<u16, Share>) {
    let mut parts: Vec<(u16, Group)> = Vec::new();
    for (write, places) in group.writes.iter().zip(&route.writes) {
        for place in places {
            match parts.iter_mut().find(|(known, _)| known == place) {
                Some((_, part)) => part.writes.push(write.clone()),
                None => parts.push((*place, Group { writes: vec![write.clone()], ..Group::default() })),
            }
        }
    }
    for event in &group.events {
        let place_of = |is_so: &dyn Fn(&Write) -> bool| {
            let found = group.writes.iter().zip(&route.writes).find(|(write, _)| is_so(write));
            found.and_then(|(_, places)| places.first().copied())
        };
        let place = place_of(&|write| job_of(write) == Some(event.job))
            .or_else(|| place_of(&|write| matches!(write, Write::Document { .. })))
            .or_else(|| place_of(&|_| true));
        if let Some((_, part)) = parts.iter_mut().find(|(known, _)| Some(*known) == place) {
            part.events.push(event.clone());
        }
    }
    for (place, part) in parts {
        shares.entry(place).or_default().groups.push(part);
    }
    for (place, forward) in &route.forwards {
        shares.entry(*place).or_default().forwards.push(*forward);
    }
}
