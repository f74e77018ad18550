//! Documents: pages of one kind, and those that are due.

use bytes::Bytes;
use semel_core::draft::{Document, DocumentKey, DocumentKind};
use semel_core::time::Timestamp;
use semel_store::backend::{Found, Seek};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::PostgresError;
use crate::store::Shared;
use crate::values::Params;

impl Shared {
    /// Finds documents that are due, or of one kind.
    pub(crate) async fn documents(&self, seek: Seek) -> Result<Found, PostgresError> {
        let mut params = Params::default();
        self.push_time(&mut params);
        let (limit, wanted) = match &seek {
            // One more than wanted, to learn when it falls due.
            Seek::Due { limit } => {
                params.number(i64::from(*limit) + 1);
                (*limit, "due IS NOT NULL ORDER BY due, kind, name LIMIT $4".to_owned())
            }
            Seek::Kind { kind, from, descending, limit } => {
                let (after, order) = if *descending { ("<", "DESC") } else { (">", "ASC") };
                params.number(i64::from(*limit));
                params.push(i16::from(kind.code()), Type::INT2);
                let mut wanted = "kind = $5".to_owned();
                if let Some(from) = from {
                    params.push(&**from, Type::TEXT);
                    wanted.push_str(&format!(" AND name {after} $6"));
                }
                (*limit, format!("{wanted} ORDER BY name {order} LIMIT $4"))
            }
        };
        // Parts of one statement, so that they see the same time.
        let sql = format!(
            "SELECT NULL::int2, NULL::text, {}($1, $2, $3), NULL::int8, NULL::bytea UNION ALL \
             (SELECT kind, name, version, due, text FROM {} WHERE {wanted})",
            self.name("time"),
            self.name("document")
        );
        let mut found = Found::default();
        let rows = match &seek {
            Seek::Due { .. } => self.current(&sql, &params).await?,
            Seek::Kind { .. } => self.show(&sql, &params).await?,
        };
        for row in rows {
            let Some(kind) = row.try_get::<_, Option<i16>>(0)? else {
                found.now = self.saw(row.try_get(2)?);
                continue;
            };
            let (key, document) = document(&row, kind)?;
            let is_wanted = match &seek {
                Seek::Due { .. } => document.due.is_some_and(|at| at <= found.now),
                Seek::Kind { .. } => true,
            };
            if is_wanted && found.documents.len() < limit as usize {
                found.documents.push((key, document));
            } else if found.next.is_none() {
                found.next = document.due;
            }
        }
        Ok(found)
    }
}

/// Reads a document from its row: kind, name, version, due, text.
fn document(row: &Row, kind: i16) -> Result<(DocumentKey, Document), PostgresError> {
    let key = DocumentKey::new(self::kind(kind)?, row.try_get::<_, &str>(1)?);
    let document = Document {
        version: u64::try_from(row.try_get::<_, i64>(2)?).unwrap_or(0),
        due: row.try_get::<_, Option<i64>>(3)?.map(Timestamp::from_micros),
        text: Bytes::copy_from_slice(row.try_get(4)?),
    };
    Ok((key, document))
}

/// Returns the document kind with this number.
pub fn kind(code: i16) -> Result<DocumentKind, PostgresError> {
    let kind = u8::try_from(code).ok().and_then(DocumentKind::from_code);
    kind.ok_or(PostgresError::Answer("a document is of a kind that this program does not know"))
}
