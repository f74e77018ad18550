//! Documents: pages of one kind, and those that are due.

use std::sync::Arc;

use semel_core::draft::{DocumentKey, DocumentKind};
use semel_store::backend::{Found, Seek};

use crate::error::RedisError;
use crate::load::document;
use crate::store::Shared;
use crate::values::{Values, bytes, list};

impl Shared {
    /// Documents that are due, or a page of one kind.
    pub(crate) async fn documents(&self, seek: Seek) -> Result<Found, RedisError> {
        let (what, limit, is_due) = match &seek {
            Seek::Due { limit } => ("documents due", *limit, true),
            Seek::Kind { limit, .. } => ("documents", *limit, false),
        };
        let mut command = self.question(what);
        match &seek {
            // The script answers one more, to say when the next falls due.
            Seek::Due { limit } => drop(command.arg(*limit)),
            Seek::Kind { kind, from, descending, limit } => {
                command.arg(&[kind.code()][..]).arg(if *descending { "down" } else { "up" });
                command.arg(from.as_deref().unwrap_or_default()).arg(*limit);
            }
        }
        let (now, answer) = self.answer(command).await?;
        let mut found = Found { now, ..Found::default() };
        for part in list(answer)? {
            let mut parts = Values::of(part)?;
            let name = bytes(parts.take()?)?;
            let document = document(&bytes(parts.take()?)?)?;
            let is_wanted = !is_due || document.due.is_some_and(|at| at <= now);
            if is_wanted && found.documents.len() < limit as usize {
                found.documents.push((key(&name)?, document));
            } else if found.next.is_none() {
                found.next = document.due;
            }
        }
        Ok(found)
    }
}

/// The document key that a record's name encodes.
fn key(name: &[u8]) -> Result<DocumentKey, RedisError> {
    let wrong = RedisError::Answer("a document is of a kind that this program does not know");
    let Some((kind, name)) = name.split_first() else { return Err(wrong) };
    let (Some(kind), Ok(name)) = (DocumentKind::from_code(*kind), std::str::from_utf8(name)) else {
        return Err(wrong);
    };
    Ok(DocumentKey::new(kind, Arc::<str>::from(name)))
}
