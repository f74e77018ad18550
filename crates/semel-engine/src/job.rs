//! A whole job, put together from its parts.

use bytes::Bytes;
use semel_core::body::{Body, Corrupt};
use semel_core::draft::Full;
use semel_core::job::{Head, NoteKind};
use semel_core::trail::{Duplicates, Failures, Payload};

/// A whole job: head, body and notes, decoded.
#[derive(Clone, Debug)]
pub struct Job {
    /// The hot part.
    pub head: Head,
    /// What was asked for. Its args and meta are the present ones: those of the last request a follow-up absorbed.
    pub body: Body,
    /// Past failures, oldest first.
    pub failures: Failures,
    /// What the job returned: a JSON value.
    pub result: Option<Bytes>,
    /// The duplicates it has absorbed, as recorded so far.
    pub duplicates: Duplicates,
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
        for (kind, text) in &full.notes {
            match kind {
                NoteKind::Failures => failures = Failures::decode(text)?,
                NoteKind::Result => result = Some(text.clone()),
                NoteKind::Payload => {
                    let payload = Payload::decode(text)?;
                    body.args = payload.args.get().into();
                    body.meta = payload.meta.get().into();
                }
                NoteKind::Duplicates => duplicates = Duplicates::decode(text)?,
                NoteKind::Progress | NoteKind::Marks => {}
            }
        }
        Ok(Self { head, body, failures, result, duplicates })
    }
}
