//! Finds which partitions a group is about.

use std::collections::{BTreeSet, HashSet};

use semel_core::draft::{DocumentKey, Group, Map, Record, Write};
use semel_core::ident::{JobId, QueueName};
use semel_core::partition;
use semel_core::unique::UniqueKey;

use crate::request::Forward;

/// The partitions that a group's records are in.
#[derive(Debug, Default)]
pub struct Route {
    /// All partitions that the group is about.
    pub partitions: BTreeSet<u16>,
    /// For each write, the partitions it is done in.
    pub writes: Vec<Vec<u16>>,
    /// Where ids lead once the group is applied, each with the partition that keeps this.
    pub forwards: Vec<(u16, Forward)>,
    /// The partitions in which jobs and absorbed ids are looked for.
    pub jobs: Vec<(JobId, u16)>,
    /// The partitions of keys.
    pub keys: Vec<(UniqueKey, u16)>,
    /// The partitions in which rows are looked at.
    pub rows: Vec<(QueueName, u16)>,
    /// The partitions of documents.
    pub documents: Vec<(DocumentKey, u16)>,
    read: HashSet<Record>,
    written: HashSet<Record>,
}

impl Route {
    /// The route of a group in a store of `count` partitions. `places` has the ids that earlier groups of the
    /// batch put somewhere, and gains this group's; `known` answers those that were seen before.
    pub fn of(
        group: &Group,
        count: u16,
        places: &mut Map<JobId, u16>,
        known: impl Fn(JobId) -> Option<u16>,
    ) -> Self {
        let mut route = Self::default();
        let home = |id| partition::of_id(id, count);
        // A job that carries a key is in the key's partition.
        for write in &group.writes {
            if let Write::Update { head } = write
                && let Some(key) = &head.key
            {
                places.insert(head.id, partition::of_key(key, count));
            }
        }
        let mut queues = Vec::new();
        for expect in &group.expect {
            route.read.insert(expect.record.clone());
            match &expect.record {
                Record::Job(id) => {
                    let place = places.get(id).copied().or_else(|| known(*id));
                    if expect.version == 0 {
                        // The id must be free in its home partition, and where it leads.
                        route.job(*id, home(*id));
                        place.into_iter().for_each(|place| route.job(*id, place));
                    } else {
                        route.job(*id, place.unwrap_or_else(|| home(*id)));
                    }
                }
                Record::Key(key) => route.key(*key, count),
                Record::Queue(name) if name.is_queue() => queues.push(name.clone()),
                Record::Queue(name) => {
                    route.row(name.clone(), partition::of_row(name, count));
                }
                Record::Document(key) => _ = route.document(key.clone(), count),
            }
        }
        for (key, _) in &group.began {
            route.read.insert(Record::Key(*key));
            route.key(*key, count);
        }
        let mut absorber = None;
        for write in &group.writes {
            let at = route.write(write, count, places, &known, &mut absorber);
            route.writes.push(at);
        }
        // A queue's row is the same in all partitions, so any will do.
        let anywhere = route.first();
        for name in queues {
            if !route.written.contains(&Record::Queue(name.clone())) {
                route.row(name, anywhere);
            }
        }
        route.partitions.insert(anywhere);
        route
    }

    /// Notes what a write touches, and answers the partitions it goes to. `absorber` is the partition of the
    /// ids that this group's earlier writes made part of a job.
    fn write(
        &mut self,
        write: &Write,
        count: u16,
        places: &mut Map<JobId, u16>,
        known: impl Fn(JobId) -> Option<u16>,
        absorber: &mut Option<u16>,
    ) -> Vec<u16> {
        let home = |id| partition::of_id(id, count);
        let locate = |places: &Map<JobId, u16>, id| {
            places.get(&id).copied().or_else(|| known(id)).unwrap_or_else(|| home(id))
        };
        match write {
            Write::Insert { head, .. } => {
                let place = head.key.map_or_else(|| home(head.id), |key| partition::of_key(&key, count));
                self.written.insert(Record::Job(head.id));
                head.key.into_iter().for_each(|key| {
                    self.written.insert(Record::Key(key));
                    self.key(key, count);
                });
                let led = places.get(&head.id).copied().or_else(|| known(head.id));
                self.lead(head.id, home(head.id), place, led.is_some());
                places.insert(head.id, place);
                vec![place]
            }
            Write::Update { head } => {
                let place = locate(places, head.id);
                self.written.insert(Record::Job(head.id));
                head.key.into_iter().for_each(|key| {
                    self.written.insert(Record::Key(key));
                    self.key(key, count);
                });
                self.job(head.id, place);
                vec![place]
            }
            Write::Note { job, .. } | Write::Forget { job, .. } => {
                let place = locate(places, *job);
                self.written.insert(Record::Job(*job));
                self.job(*job, place);
                vec![place]
            }
            Write::Spend { id, job, .. } => {
                // The absorbed id goes with the job.
                let place = locate(places, *job);
                self.written.extend([Record::Job(*id), Record::Job(*job)]);
                let led = places.get(id).copied().or_else(|| known(*id));
                self.lead(*id, home(*id), place, led.is_some());
                places.insert(*id, place);
                *absorber = Some(place);
                vec![place]
            }
            Write::Free { id } => {
                let place = absorber.unwrap_or_else(|| locate(places, *id));
                self.written.insert(Record::Job(*id));
                self.job(*id, place);
                vec![place]
            }
            Write::Queue { row } => {
                self.written.insert(Record::Queue(row.name.clone()));
                if row.name.is_queue() {
                    // Claims look at it in every partition. All of them are checked too: one may have lost
                    // its last moments, and the newest row counts.
                    (0..count).for_each(|place| self.row(row.name.clone(), place));
                    (0..count).collect()
                } else {
                    let place = partition::of_row(&row.name, count);
                    self.row(row.name.clone(), place);
                    vec![place]
                }
            }
            Write::Document { key, .. } => {
                self.written.insert(Record::Document(key.clone()));
                vec![self.document(key.clone(), count)]
            }
        }
    }

    /// The first of its partitions.
    pub fn first(&self) -> u16 {
        self.partitions.first().copied().unwrap_or(0)
    }

    fn job(&mut self, id: JobId, place: u16) {
        self.partitions.insert(place);
        self.jobs.push((id, place));
    }

    fn key(&mut self, key: UniqueKey, count: u16) {
        let place = partition::of_key(&key, count);
        self.partitions.insert(place);
        self.keys.push((key, place));
    }

    fn row(&mut self, name: QueueName, place: u16) {
        self.partitions.insert(place);
        self.rows.push((name, place));
    }

    fn document(&mut self, key: DocumentKey, count: u16) -> u16 {
        let place = partition::of_document(&key, count);
        self.partitions.insert(place);
        self.documents.push((key, place));
        place
    }

    /// Routes an id to `place`, which may not be its home partition, and adjusts where the id leads.
    fn lead(&mut self, id: JobId, home: u16, place: u16, is_led: bool) {
        self.job(id, place);
        if home != place {
            self.job(id, home);
            self.forwards.push((home, (id, Some(place))));
        } else if is_led {
            self.forwards.push((home, (id, None)));
        }
    }
}

/// Splits groups into those of single partitions, and those to be weighed together, in their order.
///
/// The latter are the groups over several partitions, and every group that shares with one of these a record
/// that either of them writes.
pub fn sort(routes: &[Route]) -> (Vec<usize>, Vec<usize>) {
    let mut crosses: Vec<bool> = routes.iter().map(|route| route.partitions.len() > 1).collect();
    let (mut read, mut written): (HashSet<&Record>, HashSet<&Record>) = Default::default();
    let mut fresh: Vec<usize> = (0..routes.len()).filter(|place| crosses[*place]).collect();
    while !fresh.is_empty() {
        for place in fresh.drain(..) {
            read.extend(&routes[place].read);
            written.extend(&routes[place].written);
        }
        for (place, route) in routes.iter().enumerate().filter(|(place, _)| !crosses[*place]) {
            let meets = route.written.iter().any(|record| read.contains(record) || written.contains(record))
                || route.read.iter().any(|record| written.contains(record));
            if meets {
                fresh.push(place);
            }
        }
        fresh.iter().for_each(|place| crosses[*place] = true);
    }
    (0..routes.len()).partition(|place| !crosses[*place])
}
