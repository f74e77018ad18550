//! Copies a store into an empty one, of the same engine or another: every record as it is, with versions,
//! fences and leases, so that the target continues where the source stopped.
//!
//! Neither store may be in use meanwhile. Records are written by ordinary commits, one group per record, each
//! relying on the record's absence. During the copy the target has a document that marks it [`unfinished`],
//! and must not be opened for anything else. An interrupted copy resumes when it is requested again: what is
//! there already is not written again.

mod error;
mod jobs;

use std::sync::Arc;

use bytes::Bytes;
use semel_core::draft::{
    Document, DocumentKey, DocumentKind, Expect, Group, Reads, Record, Write, next_version,
};
use semel_core::event::Place;
use semel_core::hex;
use semel_core::ident::JobId;
use semel_core::state::State;
use semel_core::webhook;

pub use self::error::CopyError;
use crate::backend::{Applied, Backend, Batch, Filter, Seek, Verdict};
use crate::carry::{Heritage, Part};
use crate::error::StoreError;
use crate::outbox::Outbox;

/// Records read at once, and written in one commit if they are not long.
const PAGE: u32 = 200;
/// Bytes of text after which a commit takes no further record; the last one taken may exceed it.
const COMMIT_BYTES_MAX: usize = 8 << 20;
/// How often records that another transaction had locked are written again.
const TRIES: u32 = 50;
/// The pause between two tries.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
/// How often the source's log is checked while entries wait for older transactions; each check itself takes a while.
const LOG_TRIES: u32 = 100;

/// The amounts copied so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Jobs, by state number.
    pub jobs: [u64; State::ALL.len()],
    /// Heads of jobs that are gone, remembered for their keys.
    pub remembered: u64,
    /// Ids of requests that were absorbed into jobs.
    pub absorbed: u64,
    /// Documents, by kind in the order of [`DocumentKind::ALL`].
    pub documents: [u64; DocumentKind::ALL.len()],
    /// Queues that have settings, or are paused.
    pub queues: u64,
    /// Rows of limits, and of worker directives.
    pub rows: u64,
    /// How many of all these an earlier, interrupted copy had left in the target.
    pub found: u64,
}

impl Copied {
    /// The number of records copied.
    pub fn total(&self) -> u64 {
        let jobs = self.jobs.iter().chain(&self.documents).sum::<u64>();
        jobs + self.remembered + self.absorbed + self.queues + self.rows
    }
}

/// The key of the document that marks an unfinished copy.
fn mark() -> DocumentKey {
    DocumentKey::new(DocumentKind::Copy, "copy")
}

/// Whether a copy into this store was begun and not finished: it holds part of another store, and must not be used.
///
/// # Errors
/// When the store cannot be read.
pub async fn unfinished(store: &dyn Backend) -> Result<bool, StoreError> {
    Ok(marked(store).await?.is_some())
}

async fn marked(store: &dyn Backend) -> Result<Option<Document>, StoreError> {
    let reads = Reads { documents: vec![mark()], ..Reads::default() };
    Ok(store.load(&reads).await?.peek_document(&mark()).cloned())
}

/// Copies everything in `from` to `to`, which must be empty or hold what an earlier, interrupted copy of the
/// same store left there. `progress` is called from time to time with what has been copied so far.
///
/// # Errors
/// What prevented the copy. The target is then unfinished, unless the copy was never begun.
pub async fn copy(
    from: &dyn Backend,
    to: &dyn Backend,
    progress: &mut (dyn FnMut(&Copied) + Send),
) -> Result<Copied, CopyError> {
    copy_beside(from, None, to, progress).await
}

/// As [`copy`], for a store that may have an outbox.
///
/// The outbox is not copied, so its entries must have been relayed. Programs that insert there know nothing of
/// the store, and are easily forgotten when everything is stopped: so it is checked once more at the end.
///
/// # Errors
/// As [`copy`].
pub async fn copy_beside(
    from: &dyn Backend,
    outbox: Option<&dyn Outbox>,
    to: &dyn Backend,
    progress: &mut (dyn FnMut(&Copied) + Send),
) -> Result<Copied, CopyError> {
    look_beside(outbox).await?;
    for (company, is_source) in [(from.company().await, true), (to.company().await, false)] {
        let others = company.map_err(|error| CopyError::of(error, is_source))?;
        if others > 0 {
            return Err(CopyError::InUse { is_source, others });
        }
    }
    if unfinished(from).await.map_err(CopyError::Source)? {
        return Err(CopyError::SourceUnfinished);
    }
    // Read before anything else: whatever happens from now on comes after it.
    let read_to = end_of_log(from).await?;
    let (mark, is_again) = begin(from, to, read_to).await?;
    let mut copy = Copy {
        from,
        to,
        is_again,
        copied: Copied::default(),
        progress,
        running: Vec::new(),
        papers: Vec::new(),
    };
    copy.rows().await?;
    copy.documents().await?;
    copy.jobs().await?;
    copy.remembered().await?;
    copy.look_back(read_to).await?;
    copy.look_over().await?;
    look_beside(outbox).await?;
    copy.finish(&mark).await?;
    Ok(copy.copied)
}

/// The last position of the source's log, once nothing can still appear before it.
async fn end_of_log(from: &dyn Backend) -> Result<u64, CopyError> {
    for _ in 0..LOG_TRIES {
        let newest = from.events(0, 1).await.map_err(CopyError::Source)?.newest;
        let behind = from.events(newest, 1).await.map_err(CopyError::Source)?;
        if !behind.waits && behind.events.is_empty() {
            return Ok(newest);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(CopyError::SourceWaits)
}

/// Fails if an entry waits in the outbox.
async fn look_beside(outbox: Option<&dyn Outbox>) -> Result<(), CopyError> {
    match outbox {
        Some(outbox) if !outbox.is_empty().await.map_err(CopyError::Source)? => Err(CopyError::OutboxWaits),
        _ => Ok(()),
    }
}

/// Marks the target, or finds its mark. Returns the mark, and whether it was there already.
async fn begin(from: &dyn Backend, to: &dyn Backend, read_to: u64) -> Result<(Document, bool), CopyError> {
    let secret = hex::text(&from.secret());
    if let Some(mark) = marked(to).await.map_err(CopyError::Target)? {
        let text = String::from_utf8_lossy(&mark.text).into_owned();
        let (of, place) = text.split_once(' ').unwrap_or_default();
        let Some(place) = place.parse().ok().filter(|_| of == secret) else {
            return Err(CopyError::OfAnother);
        };
        // The mark records how far the source's log went then.
        has_moved(from, place).await?;
        return Ok((mark, true));
    }
    if !is_empty(to).await.map_err(CopyError::Target)? {
        return Err(CopyError::NotEmpty);
    }
    let now = to.load(&Reads::default()).await.map_err(CopyError::Target)?.now;
    let text = Bytes::from(format!("{secret} {read_to}"));
    let document = Document { version: next_version(0, now), due: None, text };
    let group = Group {
        expect: vec![Expect { record: Record::Document(mark()), version: 0 }],
        writes: vec![Write::Document { key: mark(), document: Some(document.clone()) }],
        ..Group::default()
    };
    commit(to, vec![group]).await?;
    Ok((document, false))
}

/// Whether a store has no record of any kind, like a new one. If it has jobs, only the newest is read.
///
/// # Errors
/// When it cannot be read.
pub async fn is_empty(store: &dyn Backend) -> Result<bool, StoreError> {
    let listing = store.list(Filter { limit: 1, ..Filter::default() }).await?;
    let mut is_empty = listing.heads.is_empty() && listing.next.is_none();
    if !is_empty {
        return Ok(false);
    }
    for part in [Part::Remembered, Part::Rows] {
        let mut after = None;
        loop {
            let piece = store.rest(part, after, PAGE).await?;
            is_empty &= piece.heads.is_empty() && piece.rows.is_empty();
            after = piece.next;
            if after.is_none() || !is_empty {
                break;
            }
        }
    }
    for kind in DocumentKind::ALL {
        let seek = Seek::Kind { kind, from: None, descending: false, limit: 1 };
        is_empty &= store.documents(seek).await?.documents.is_empty();
    }
    Ok(is_empty)
}

/// Fails if the source's log has anything after that position.
async fn has_moved(from: &dyn Backend, place: u64) -> Result<(), CopyError> {
    let page = from.events(place, 1).await.map_err(CopyError::Source)?;
    if page.place(place) != Place::Kept || !page.events.is_empty() || page.waits {
        return Err(CopyError::SourceMoved);
    }
    Ok(())
}

/// Writes groups, in commits of bounded size.
async fn commit(to: &dyn Backend, groups: Vec<Group>) -> Result<(), CopyError> {
    let mut groups = groups.into_iter().peekable();
    while groups.peek().is_some() {
        let (mut piece, mut bytes) = (Vec::new(), 0);
        while bytes < COMMIT_BYTES_MAX
            && let Some(group) = groups.next()
        {
            bytes += group.text_bytes();
            piece.push(group);
        }
        commit_piece(to, piece).await?;
    }
    Ok(())
}

async fn commit_piece(to: &dyn Backend, mut groups: Vec<Group>) -> Result<(), CopyError> {
    for _ in 0..TRIES {
        let batch = Batch { groups: groups.clone(), claims: Vec::new() };
        let Applied { groups: verdicts, .. } = to.commit(batch).await.map_err(CopyError::Target)?;
        if verdicts.contains(&Verdict::Stale) {
            return Err(CopyError::TargetMoved);
        }
        let busy = groups.into_iter().zip(verdicts).filter(|(_, verdict)| *verdict == Verdict::Busy);
        groups = busy.map(|(group, _)| group).collect();
        if groups.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(CopyError::TargetMoved)
}

/// A copy under way.
struct Copy<'a> {
    from: &'a dyn Backend,
    to: &'a dyn Backend,
    /// Whether an earlier copy has left something in the target.
    is_again: bool,
    copied: Copied,
    progress: &'a mut (dyn FnMut(&Copied) + Send),
    /// Running jobs and their versions: a heartbeat moves a job without an event in the log.
    running: Vec<(JobId, u64)>,
    /// Jobs that hold the documents of webhooks, which name positions in the log.
    papers: Vec<JobId>,
}

impl Copy<'_> {
    fn told(&mut self) {
        (self.progress)(&self.copied);
    }

    /// Copies queues, limits and worker directives.
    async fn rows(&mut self) -> Result<(), CopyError> {
        let mut after = None;
        loop {
            let piece = self.from.rest(Part::Rows, after, PAGE).await.map_err(CopyError::Source)?;
            let mut groups = Vec::with_capacity(piece.rows.len());
            for row in piece.rows {
                let count = if row.name.is_queue() { &mut self.copied.queues } else { &mut self.copied.rows };
                *count += 1;
                groups.push(Group { writes: vec![Write::Queue { row }], ..Group::default() });
            }
            commit(self.to, groups).await?;
            self.told();
            after = piece.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn documents(&mut self) -> Result<(), CopyError> {
        for (place, kind) in kinds() {
            let mut last = None;
            loop {
                let found = page(self.from, kind, last).await.map_err(CopyError::Source)?;
                last = found.last().map(|(key, _)| key.name.clone());
                if found.is_empty() {
                    break;
                }
                self.copied.documents[place] += found.len() as u64;
                let group = |(key, document): (DocumentKey, Document)| {
                    let expect = Expect { record: Record::Document(key.clone()), version: 0 };
                    Group {
                        expect: if self.is_again { Vec::new() } else { vec![expect] },
                        writes: vec![Write::Document { key, document: Some(document) }],
                        ..Group::default()
                    }
                };
                let groups = found.into_iter().map(group).collect();
                commit(self.to, groups).await?;
                self.told();
            }
        }
        Ok(())
    }

    /// Checks that the source has not changed since the copy began.
    async fn look_back(&mut self, read_to: u64) -> Result<(), CopyError> {
        has_moved(self.from, read_to).await?;
        for running in self.running.chunks(PAGE as usize) {
            let reads = Reads { heads: running.iter().map(|(id, _)| *id).collect(), ..Reads::default() };
            let snapshot = self.from.load(&reads).await.map_err(CopyError::Source)?;
            let is_same = |(id, version): &(JobId, u64)| {
                snapshot.peek(*id).is_some_and(|(head, _)| head.version == *version)
            };
            if !running.iter().all(is_same) {
                return Err(CopyError::SourceMoved);
            }
        }
        let others = self.from.company().await.map_err(CopyError::Source)?;
        if others > 0 {
            return Err(CopyError::InUse { is_source: true, others });
        }
        Ok(())
    }

    /// Checks that everything the source counts was read, and that the target has exactly that.
    async fn look_over(&mut self) -> Result<(), CopyError> {
        let counted = counted(self.from).await.map_err(CopyError::Source)?;
        if counted != self.copied.jobs {
            let (counted, read) = (counted.iter().sum(), self.copied.jobs.iter().sum());
            return Err(CopyError::Unreadable { counted, read });
        }
        if counted != self::counted(self.to).await.map_err(CopyError::Target)? {
            return Err(CopyError::TargetMoved);
        }
        if !self.is_again {
            return Ok(());
        }
        // What the source has deleted since an earlier copy would still be there.
        for (place, kind) in kinds() {
            let (mut last, mut count) = (None, 0);
            loop {
                let found = page(self.to, kind, last).await.map_err(CopyError::Target)?;
                last = found.last().map(|(key, _)| key.name.clone());
                count += found.len() as u64;
                if found.is_empty() {
                    break;
                }
            }
            if count != self.copied.documents[place] {
                return Err(CopyError::SourceMoved);
            }
        }
        Ok(())
    }

    /// Makes the target the source's successor. Subscribers get what happens from now on.
    async fn finish(&mut self, mark: &Document) -> Result<(), CopyError> {
        let source = self.from.load(&Reads::default()).await.map_err(CopyError::Source)?;
        let log = self.from.events(0, 1).await.map_err(CopyError::Source)?.newest;
        let heritage = Heritage { secret: self.from.secret(), log, time: source.now };
        self.to.inherit(heritage).await.map_err(CopyError::Target)?;
        let begin = self.to.events(0, 1).await.map_err(CopyError::Target)?.newest;
        let mut group = Group {
            expect: vec![Expect { record: Record::Document(self::mark()), version: mark.version }],
            ..Group::default()
        };
        let reads = Reads { fulls: self.papers.clone(), ..Reads::default() };
        let snapshot = self.to.load(&reads).await.map_err(CopyError::Target)?;
        for job in &self.papers {
            let Some((_, Some(full))) = snapshot.peek(*job) else { return Err(CopyError::TargetMoved) };
            let notes =
                webhook::begun_at(full, begin).map_err(|corrupt| CopyError::Source(corrupt.into()))?;
            let note = |(kind, text)| Write::Note { job: *job, kind, text: Some(text) };
            group.writes.extend(notes.into_iter().map(note));
        }
        group.writes.push(Write::Document { key: self::mark(), document: None });
        commit(self.to, vec![group]).await?;
        self.to.confirm(&reads).await.map_err(CopyError::Target)
    }
}

/// The kinds of documents that are copied, with their index among all kinds. A complete source has no mark,
/// and the target has its own.
fn kinds() -> impl Iterator<Item = (usize, DocumentKind)> {
    DocumentKind::ALL.into_iter().enumerate().filter(|(_, kind)| *kind != DocumentKind::Copy)
}

/// A page of documents of a kind, after that name.
async fn page(
    store: &dyn Backend,
    kind: DocumentKind,
    from: Option<Arc<str>>,
) -> Result<Vec<(DocumentKey, Document)>, StoreError> {
    let seek = Seek::Kind { kind, from, descending: false, limit: PAGE };
    Ok(store.documents(seek).await?.documents)
}

/// Jobs by state number, as the store counts them.
async fn counted(store: &dyn Backend) -> Result<[u64; State::ALL.len()], StoreError> {
    let mut counted = [0; State::ALL.len()];
    for queue in store.queues().await? {
        counted.iter_mut().zip(queue.counts).for_each(|(sum, count)| *sum += count);
    }
    Ok(counted)
}
