//! Copying jobs, and what is remembered of jobs that are gone.

use bytes::Bytes;
use semel_core::draft::{Expect, Full, Group, KeyRead, Reads, Record, Snapshot, Write};
use semel_core::ident::JobId;
use semel_core::job::{Head, NoteKind};
use semel_core::state::StateSet;
use semel_core::tenant::Tenant;
use semel_core::time::Timestamp;
use semel_core::trail::Payload;
use semel_core::unique::outlives;
use semel_core::webhook::DOCUMENT;

use super::{Copy, CopyError, PAGE, commit};
use crate::backend::Filter;
use crate::carry::Part;

impl Copy<'_> {
    /// Copies all jobs, in every state, newest first.
    pub(super) async fn jobs(&mut self) -> Result<(), CopyError> {
        let mut filter = Filter { limit: PAGE, ..Filter::default() };
        loop {
            let listing = self.from.list(filter.clone()).await.map_err(CopyError::Source)?;
            if !listing.heads.is_empty() {
                self.page(&listing.heads).await?;
                self.told();
            }
            match listing.next {
                Some(next) => filter.before = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn page(&mut self, heads: &[Head]) -> Result<(), CopyError> {
        let mut reads = keys_of(heads.iter());
        reads.fulls = heads.iter().map(|head| head.id).collect();
        let source = self.from.load(&reads).await.map_err(CopyError::Source)?;
        let there = self.there(heads.iter()).await?;
        let mut jobs = Vec::with_capacity(heads.len());
        let mut absorbed = Reads::default();
        for head in heads {
            let Some((head, Some(full))) = source.peek(head.id) else { return Err(CopyError::SourceMoved) };
            let ids = absorbed_by(full)?;
            absorbed.fulls.extend(&ids);
            jobs.push((head, full, ids));
        }
        let spent = if absorbed.is_empty() {
            Snapshot::default()
        } else {
            self.from.load(&absorbed).await.map_err(CopyError::Source)?
        };
        let mut groups = Vec::with_capacity(jobs.len());
        for (head, full, ids) in jobs {
            self.copied.jobs[usize::from(head.state.code())] += 1;
            if head.lease.is_some() {
                self.running.push((head.id, head.version));
            }
            if head.job_type.as_str() == DOCUMENT && head.queue.tenant() == Tenant::system().as_str() {
                self.papers.push(head.id);
            }
            let mut group = insert(holding(head, &source), full.body.clone());
            for (kind, text) in &full.notes {
                group.writes.push(Write::Note { job: head.id, kind: *kind, text: Some(text.clone()) });
            }
            for id in ids {
                // An id that was freed meanwhile belongs to no job.
                if let Some(spent) = spent.peek_spent(id).filter(|spent| spent.job == head.id) {
                    self.copied.absorbed += 1;
                    group.expect.push(Expect { record: Record::Job(id), version: 0 });
                    group.writes.push(Write::Spend { id, job: head.id, digest: spent.digest });
                }
            }
            match there.peek(head.id) {
                Some((known, _)) if known.version != head.version => return Err(CopyError::SourceMoved),
                Some(_) => self.copied.found += 1,
                None => groups.push(group),
            }
        }
        commit(self.to, groups).await
    }

    /// Copies heads that are kept only for their keys: first all are added as jobs, then all are forgotten as jobs. No
    /// new job may have a version that a job which is gone has had, so nothing is added once the first one is gone.
    pub(super) async fn remembered(&mut self) -> Result<(), CopyError> {
        for is_there in [false, true] {
            let mut after = None;
            loop {
                let piece = self.from.rest(Part::Remembered, after, PAGE).await.map_err(CopyError::Source)?;
                if is_there {
                    self.forget(&piece.heads).await?;
                } else {
                    self.remember(&piece.heads).await?;
                }
                self.told();
                after = piece.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn remember(&mut self, heads: &[(Head, Timestamp)]) -> Result<(), CopyError> {
        let reads = keys_of(heads.iter().map(|(head, _)| head));
        let source = self.from.load(&reads).await.map_err(CopyError::Source)?;
        let there = self.there(heads.iter().map(|(head, _)| head)).await?;
        let mut groups = Vec::with_capacity(heads.len());
        for (head, _) in heads {
            let head = holding(head, &source);
            if head.key.is_none() {
                // After its key was released, the head is no longer needed.
                continue;
            }
            self.copied.remembered += 1;
            if there.peek(head.id).is_some() || there.peek_spent(head.id).is_some() {
                self.copied.found += 1;
            } else {
                groups.push(insert(head, Bytes::new()));
            }
        }
        commit(self.to, groups).await
    }

    async fn forget(&mut self, heads: &[(Head, Timestamp)]) -> Result<(), CopyError> {
        let ids: Vec<JobId> = heads.iter().map(|(head, _)| head.id).collect();
        let reads = Reads { heads: ids, ..Reads::default() };
        let there = self.to.load(&reads).await.map_err(CopyError::Target)?;
        let mut groups = Vec::with_capacity(heads.len());
        for (head, until) in heads {
            // A missing head was forgotten by an earlier copy, or is no longer needed.
            let Some((known, _)) = there.peek(head.id) else { continue };
            groups.push(Group {
                expect: vec![Expect { record: Record::Job(head.id), version: known.version }],
                writes: vec![Write::Forget { job: head.id, remember: Some(*until) }],
                ..Group::default()
            });
        }
        commit(self.to, groups).await
    }

    /// What the target has of these jobs: nothing, unless an earlier copy was interrupted.
    async fn there(&self, heads: impl Iterator<Item = &Head>) -> Result<Snapshot, CopyError> {
        if !self.is_again {
            return Ok(Snapshot::default());
        }
        let reads = Reads { fulls: heads.map(|head| head.id).collect(), ..Reads::default() };
        self.to.load(&reads).await.map_err(CopyError::Target)
    }
}

/// Inserts a record new to the target. Its row number there differs from the source's, so its id counts as not minted.
fn insert(head: Head, body: Bytes) -> Group {
    Group {
        expect: vec![Expect { record: Record::Job(head.id), version: 0 }],
        writes: vec![Write::Insert { head, body, minted: false }],
        ..Group::default()
    }
}

/// The keys of the finished jobs among these, with all holders.
fn keys_of<'a>(heads: impl Iterator<Item = &'a Head>) -> Reads {
    let ended = heads.filter(|head| head.state.is_finished());
    let mut keys: Vec<_> = ended.filter_map(|head| head.key).collect();
    keys.sort_unstable();
    keys.dedup();
    let keys = keys.into_iter().map(|key| KeyRead { key, states: StateSet::ALL, all: true });
    Reads { keys: keys.collect(), ..Reads::default() }
}

/// A head, without its key if it no longer holds it. A finished job may have lost its key without a change to
/// its own record: a head that another outlived is released together with that one.
fn holding(head: &Head, source: &Snapshot) -> Head {
    let head = head.clone();
    let Some(view) = head.key.filter(|_| head.state.is_finished()).and_then(|key| source.peek_key(&key))
    else {
        return head;
    };
    let holds = |holder: &Head| holder.id == head.id || outlives(holder, &head);
    let is_held = view.too_many || view.holders.iter().any(holds);
    Head { key: head.key.filter(|_| is_held), ..head }
}

/// Ids of the requests that a job has absorbed, as its notes list them.
fn absorbed_by(full: &Full) -> Result<Vec<JobId>, CopyError> {
    let Some(text) = full.note(NoteKind::Payload) else { return Ok(Vec::new()) };
    let payload = Payload::decode(text).map_err(|corrupt| CopyError::Source(corrupt.into()))?;
    Ok(payload.absorbed.iter().filter_map(|id| JobId::parse(id, "").ok()).collect())
}
