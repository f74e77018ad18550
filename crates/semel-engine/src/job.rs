//! A whole job, assembled from its parts.

use bytes::Bytes;
use semel_core::body::{Body, Corrupt};
use semel_core::draft::Full;
use semel_core::ident::JobId;
use semel_core::job::{Head, NoteKind};
use semel_core::tenant::{Namespace, Show};
use semel_core::time::Timestamp;
use semel_core::trail::{Duplicates, Failure, Failures, Marks, Payload};
use semel_core::waiting::Waiters;
use semel_core::workflow::shown_results;

/// A whole job: head, body and notes, decoded.
#[derive(Clone, Debug)]
pub struct Job {
    /// The hot part.
    pub head: Head,
    /// What was requested. Args and meta are the current ones: those of the last request that a follow-up absorbed.
    pub body: Body,
    /// Past failures, oldest first.
    pub failures: Failures,
    /// What the job returned: a JSON value.
    pub result: Option<Bytes>,
    /// The duplicates it has absorbed, as recorded so far.
    pub duplicates: Duplicates,
    /// How far the current run has come, as its worker reported: a JSON value.
    pub progress: Option<Bytes>,
    /// The job that replaced it.
    pub replaced_by: Option<JobId>,
    /// Whether callers must not be shown which job that is.
    pub is_replacement_hidden: bool,
    /// Everything that waits, or waited, for its end, such as a workflow.
    pub waiters: Waiters,
    /// What the earlier steps of its workflow returned: a JSON array.
    pub parent_results: Option<Bytes>,
    /// Whether all of it could be read. Otherwise only the head is known: the body is empty, and its one
    /// failure says so.
    pub is_readable: bool,
}

impl Show for Job {
    fn show(&mut self, space: &Namespace) {
        self.head.show(space);
        self.body.lineage.show(space);
        self.replaced_by.show(space);
        self.waiters.show(space);
        self.parent_results = self.parent_results.as_ref().map(|results| shown_results(results, space));
    }
}

impl Job {
    /// Decodes a stored job.
    ///
    /// # Errors
    /// When its parts are not what this program wrote.
    pub fn decode(head: Head, full: &Full) -> Result<Self, Corrupt> {
        let mut body = Body::decode(&full.body)?;
        let mut failures = Failures::default();
        let mut result = None;
        let mut duplicates = Duplicates::default();
        let (mut progress, mut parent_results) = (None, None);
        let mut marks = Marks::default();
        let mut waiters = Waiters::default();
        for (kind, text) in &full.notes {
            match kind {
                NoteKind::Failures => failures = Failures::decode(text)?,
                NoteKind::Result => result = Some(text.clone()),
                NoteKind::Payload => Payload::decode(text)?.over(&mut body),
                NoteKind::Duplicates => duplicates = Duplicates::decode(text)?,
                NoteKind::Progress => progress = Some(text.clone()),
                NoteKind::Waiters => waiters = Waiters::decode(text)?,
                NoteKind::ParentResults => parent_results = Some(text.clone()),
                // Used by the core itself only.
                NoteKind::Ahead => {}
                NoteKind::Marks => marks = Marks::decode(text)?,
            }
        }
        Ok(Self {
            head,
            body,
            failures,
            result,
            duplicates,
            progress,
            replaced_by: marks.replaced_by.and_then(|id| JobId::parse(&id, "").ok()),
            is_replacement_hidden: marks.undisclosed,
            waiters,
            parent_results,
            is_readable: true,
        })
    }

    /// A job of which only the head can be read, for listings.
    pub(crate) fn unreadable(head: Head, now: Timestamp) -> Self {
        let failure = Failure {
            code: "unreadable".to_owned(),
            message: "the stored data of this job cannot be read; the server's log says why".to_owned(),
            error_type: "unreadable".to_owned(),
            attempt: head.attempt,
            at: now.as_micros(),
            retry_delay_ms: None,
            details: None,
        };
        Self {
            head,
            body: Body::default(),
            failures: Failures(vec![failure]),
            result: None,
            duplicates: Duplicates::default(),
            progress: None,
            replaced_by: None,
            is_replacement_hidden: false,
            waiters: Waiters::default(),
            parent_results: None,
            is_readable: false,
        }
    }
}
