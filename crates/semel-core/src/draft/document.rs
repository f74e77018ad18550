//! Documents: small named records, with a version like every other record and a time at which they are due to
//! be looked at. Crons and workflows are stored as documents. The content is up to the kind.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::undo::Undo;
use super::{Draft, Expect, Missing, Record, Write};
use crate::limits::{CRON_NAME_BYTES_MAX, DOCUMENT_NAME_BYTES_MAX, TENANT_BYTES_MAX};
use crate::time::Timestamp;

/// The kind of a document. Stored by number; frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DocumentKind {
    /// A job that a schedule offers, under the cron's name.
    Cron = 1,
    /// Steps that depend on each other, under the workflow's id.
    Workflow = 2,
    /// The job that a step will offer.
    Step = 3,
    /// The result of a step's job, kept while a later step may ask for it.
    StepResult = 4,
    /// What was created under an `Idempotency-Key`, under the key's digest.
    Request = 5,
    /// A mark that the store holds only part of what is being copied into it.
    Copy = 6,
}

impl DocumentKind {
    /// Every kind.
    pub const ALL: [Self; 6] =
        [Self::Cron, Self::Workflow, Self::Step, Self::StepResult, Self::Request, Self::Copy];

    /// The kind with that number, as stored.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The kind's number, as stored.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

// After a tenant's name comes a cron's name, or an id and a step's number.
const _: () = {
    let owner = 1 + TENANT_BYTES_MAX + 1;
    assert!(owner + CRON_NAME_BYTES_MAX <= DOCUMENT_NAME_BYTES_MAX);
    assert!(owner + 36 + 1 + 20 <= DOCUMENT_NAME_BYTES_MAX);
};

/// Identifies a document.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentKey {
    /// The document's kind.
    pub kind: DocumentKind,
    /// The document's name, unique within the kind; at most [`DOCUMENT_NAME_BYTES_MAX`] bytes, which the
    /// bounds on the names of crons, on ids and on numbers ensure.
    pub name: Arc<str>,
}

impl DocumentKey {
    /// The key of the document with that kind and name.
    pub fn new(kind: DocumentKind, name: impl Into<Arc<str>>) -> Self {
        Self { kind, name: name.into() }
    }
}

impl fmt::Debug for DocumentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.name)
    }
}

/// A document as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Moves on every write; never 0.
    pub version: u64,
    /// When the document is due to be looked at.
    pub due: Option<Timestamp>,
    /// The content.
    pub text: Bytes,
}

/// A document of a snapshot, as loaded or as overwritten since.
#[derive(Clone, Debug, Default)]
pub(super) struct Sheet {
    pub(super) document: Option<Document>,
    /// The last version there was, so that no version repeats within a group.
    pub(super) last: u64,
    pub(super) command: u32,
}

impl Sheet {
    pub(super) fn of(document: Option<Document>) -> Self {
        let last = document.as_ref().map_or(0, |document| document.version);
        Self { document, last, command: 0 }
    }

    /// The version that a decision which reads the document relies on.
    pub(super) fn version(&self) -> u64 {
        self.document.as_ref().map_or(0, |document| document.version)
    }
}

impl Draft {
    /// Reads a document; `None` when there is none with that key.
    ///
    /// # Errors
    /// [`Missing`] when it was not loaded.
    pub fn document(&mut self, key: &DocumentKey) -> Result<Option<Document>, Missing> {
        let Some(sheet) = self.snapshot.documents.get_mut(key) else {
            self.missing.documents.push(key.clone());
            return Err(Missing);
        };
        if sheet.command != self.command {
            sheet.command = self.command;
            let version = sheet.version();
            self.group.expect.push(Expect { record: Record::Document(key.clone()), version });
        }
        Ok(sheet.document.clone())
    }

    /// Writes or deletes a document. If the decision has [read](Self::document) it, its version fences the
    /// write; otherwise no other writer may be able to use its name.
    pub fn set_document(&mut self, key: &DocumentKey, content: Option<(Bytes, Option<Timestamp>)>) {
        let before = self.snapshot.documents.get(key).cloned();
        let mut sheet = before.clone().unwrap_or(Sheet { command: self.command, ..Sheet::default() });
        let version = self.next_version(sheet.last);
        sheet.document = content.map(|(text, due)| Document { version, due, text });
        sheet.last = version;
        self.undo.push(Undo::Document(key.clone(), before.map(Box::new)));
        let document = sheet.document.clone();
        self.snapshot.documents.insert(key.clone(), sheet);
        self.write(Write::Document { key: key.clone(), document });
    }
}
