//! Encodes groups as arguments of the script that applies them.

use redis::Cmd;
use semel_core::draft::{Document, DocumentKey, Expect, Group, QueueRow, Record, Write};
use semel_core::event::Event;
use semel_core::ident::JobId;
use semel_core::unique::UniqueKey;

use crate::fresh::Mentions;
use crate::head::{self, NO_PLACE, place, push_text};

/// The partition that an id's job is in, if the id names another one; `None` where it leads nowhere any more.
pub type Forward = (JobId, Option<u16>);

/// Appends groups to a call of the commit script. In a crossing, they are followed by where ids of this
/// partition lead.
///
/// A crossing's arguments are stored, and a server with an older program may pass them to its own script:
/// they must contain no letters that are new.
pub fn push(command: &mut Cmd, base: &str, groups: &[Group], crossing: Option<&[Forward]>) {
    let forwards = crossing.unwrap_or_default();
    let more = usize::from(!forwards.is_empty());
    let mentions = Mentions::of(groups);
    let (fresh, others) = mentions.sort(groups);
    let began: Vec<_> = others.iter().flat_map(|(_, group)| &group.began).collect();
    let counts =
        [began.len(), fresh.keyed(), fresh.keyless(), fresh.sets(), fresh.queues(), others.len() + more];
    command.arg(counts.into_iter().flat_map(count).collect::<Vec<u8>>());
    let places = fresh.places().chain(others.iter().map(|(place, _)| *place));
    let places = places.chain((0..more).map(|place| groups.len() + place));
    command.arg(places.flat_map(|place| count(place + 1)).collect::<Vec<u8>>());
    let about = About::of(others.iter().map(|(_, group)| *group));
    command.arg(about.jobs).arg(about.keys);
    for (key, version) in began {
        let mut bytes = key.as_bytes().to_vec();
        bytes.extend_from_slice(&version.to_be_bytes());
        command.arg(bytes);
    }
    fresh.push(command, base);
    for group in groups {
        let mut events = Vec::new();
        for event in &group.events {
            push_event(&mut events, event);
        }
        command.arg(events);
    }
    for _ in 0..more {
        command.arg("");
    }
    for (_, group) in others {
        let mut counts = [0; 8];
        counts[..4].copy_from_slice(&count(group.expect.len()));
        counts[4..].copy_from_slice(&count(group.writes.len()));
        command.arg(&counts[..]);
        for expect in &group.expect {
            command.arg(expectation(group, expect));
        }
        for write in &group.writes {
            push_write(command, write, |job| crossing.is_none() && mentions.is_alone(job, group));
        }
    }
    if more > 0 {
        command.arg([count(0), count(forwards.len())].concat());
    }
    for (id, to) in forwards {
        let mut bytes = vec![if to.is_some() { b'P' } else { b'p' }];
        bytes.extend_from_slice(&id.to_bytes());
        bytes.extend(to.iter().flat_map(|to| to.to_be_bytes()));
        command.arg(bytes);
    }
}

/// The jobs and keys that groups are about, each once and concatenated: the script reads them all at once.
#[derive(Default)]
struct About {
    jobs: Vec<u8>,
    keys: Vec<u8>,
    seen: Mentions,
}

impl About {
    fn of<'a>(groups: impl Iterator<Item = &'a Group>) -> Self {
        let mut about = Self::default();
        for group in groups {
            group.began.iter().for_each(|(key, _)| about.key(*key));
            for expect in &group.expect {
                match &expect.record {
                    Record::Job(id) => about.job(*id),
                    Record::Key(key) => about.key(*key),
                    Record::Queue(_) | Record::Document(_) => {}
                }
            }
            for write in &group.writes {
                match write {
                    Write::Insert { head, .. } | Write::Update { head } => {
                        about.job(head.id);
                        head.key.into_iter().for_each(|key| about.key(key));
                    }
                    Write::Forget { job, .. } => about.job(*job),
                    _ => {}
                }
            }
        }
        about
    }

    fn job(&mut self, id: JobId) {
        if self.seen.job(id) == 1 {
            self.jobs.extend_from_slice(&id.to_bytes());
        }
    }

    fn key(&mut self, key: UniqueKey) {
        if self.seen.key(key) == 1 {
            self.keys.extend_from_slice(key.as_bytes());
        }
    }
}

/// Encodes a number as a script argument.
pub fn count(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

/// Encodes an expectation: a letter for the kind, the version, whether a head kept only for its key counts as
/// none, the name.
fn expectation(group: &Group, expect: &Expect) -> Vec<u8> {
    let mut is_none = false;
    let (letter, name) = match &expect.record {
        Record::Job(id) => {
            is_none = expect.version == 0 && group.found_none(*id);
            (b'J', id.to_bytes().to_vec())
        }
        Record::Key(key) => (b'K', key.as_bytes().to_vec()),
        Record::Queue(name) => (b'Q', name.as_str().as_bytes().to_vec()),
        Record::Document(key) => (b'O', document_name(key)),
    };
    let mut bytes = Vec::with_capacity(10 + name.len());
    bytes.push(letter);
    bytes.extend_from_slice(&expect.version.to_be_bytes());
    bytes.push(u8::from(is_none));
    bytes.extend_from_slice(&name);
    bytes
}

/// Appends a write. `is_alone`: whether it is a job's only head write, and no other group names the job.
fn push_write(command: &mut Cmd, write: &Write, is_alone: impl Fn(JobId) -> bool) {
    let op = |letter: u8, parts: &[&[u8]]| {
        let mut bytes = vec![letter];
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        bytes
    };
    match write {
        Write::Insert { head, body, minted } => {
            command.arg(op(if *minted { b'I' } else { b'i' }, &[&head.id.to_bytes()]));
            command.arg(head::write(head)).arg(&body[..]);
        }
        Write::Update { head } => {
            let letter = if is_alone(head.id) { b'u' } else { b'U' };
            command.arg(op(letter, &[&head.id.to_bytes(), &head::remembered_until(head)]));
            command.arg(head::write(head));
        }
        Write::Note { job, kind, text: Some(text) } => {
            command.arg(op(b'N', &[&job.to_bytes(), &[kind.code()]])).arg(&text[..]);
        }
        Write::Note { job, kind, text: None } => {
            command.arg(op(b'M', &[&job.to_bytes(), &[kind.code()]]));
        }
        Write::Spend { id, job, digest } => {
            let digest = digest.as_ref().map_or(&[][..], |digest| &digest[..]);
            command.arg(op(b'S', &[&id.to_bytes(), &job.to_bytes(), digest]));
        }
        Write::Free { id } => {
            command.arg(op(b'R', &[&id.to_bytes()]));
        }
        Write::Forget { job, remember } => {
            let until = remember.map_or(NO_PLACE, place);
            command.arg(op(b'F', &[&job.to_bytes(), &until]));
        }
        Write::Queue { row } => {
            // Rows of workers and limits are not listed as queues: there are as many as there were workers
            // and limits.
            let letter = if row.name.is_queue() { b'Q' } else { b'q' };
            command.arg(op(letter, &[row.name.as_str().as_bytes()])).arg(queue(row));
        }
        Write::Document { key, document } => {
            command.arg(op(b'O', &[&document_name(key)]));
            command.arg(document.as_ref().map(self::document).unwrap_or_default());
        }
    }
}

/// The name of a document's record: its kind and its name.
pub fn document_name(key: &DocumentKey) -> Vec<u8> {
    let mut bytes = vec![key.kind.code()];
    bytes.extend_from_slice(key.name.as_bytes());
    bytes
}

/// Encodes a document: its version, when it is due, its text.
fn document(document: &Document) -> Vec<u8> {
    let mut bytes = document.version.to_be_bytes().to_vec();
    bytes.extend_from_slice(&document.due.map_or(NO_PLACE, place));
    bytes.extend_from_slice(&document.text);
    bytes
}

/// Encodes a queue's row: its version, whether it is paused, whether it has settings, the settings.
fn queue(row: &QueueRow) -> Vec<u8> {
    let mut bytes = row.version.to_be_bytes().to_vec();
    bytes.extend_from_slice(&[u8::from(row.paused), u8::from(row.settings.is_some())]);
    bytes.extend_from_slice(row.settings.as_deref().unwrap_or_default().as_bytes());
    bytes
}

/// Encodes an event for a record of the log. The claim script writes the same form.
fn push_event(bytes: &mut Vec<u8>, event: &Event) {
    bytes.push(event.kind.code());
    bytes.extend_from_slice(&event.job.to_bytes());
    bytes.extend_from_slice(&event.attempt.to_be_bytes());
    bytes.extend_from_slice(&event.amount.to_be_bytes());
    push_text(bytes, event.job_type.as_str());
    push_text(bytes, event.queue.as_str());
}

#[cfg(test)]
mod tests {
    use redis::{Arg, Cmd};
    use semel_core::draft::{Group, Write};

    use super::push;

    #[test]
    fn what_is_stored_of_a_commit_is_said_in_letters_that_older_programs_know() {
        let head = crate::head::tests::least();
        let group = Group { writes: vec![Write::Update { head }], ..Group::default() };
        let letter = |crossing: Option<&[_]>| {
            let mut command = Cmd::new();
            push(&mut command, "", std::slice::from_ref(&group), crossing);
            let is_update = |arg: &[u8]| arg.len() == 25 && arg[0].eq_ignore_ascii_case(&b'u');
            let args = command.args_iter().filter_map(|arg| match arg {
                Arg::Simple(arg) if is_update(arg) => Some(arg[0]),
                _ => None,
            });
            args.collect::<Vec<_>>()
        };
        assert_eq!((letter(None), letter(Some(&[]))), (vec![b'u'], vec![b'U']));
    }
}
