//! The extra operations that copying a store into another one needs of both.

use bytes::Bytes;
use semel_core::draft::QueueRow;
use semel_core::job::Head;
use semel_core::time::Timestamp;

/// A part of a store that no other method shows completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Heads that are kept only for their keys. They may lack everything that their keys do not need.
    Remembered,
    /// Rows that were ever written: of queues, and [of things that are no
    /// queue](semel_core::ident::QueueName::is_queue), such as limits and worker directives.
    Rows,
}

/// A page of such a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Heads, and until when each is kept.
    pub heads: Vec<(Head, Timestamp)>,
    /// Rows. Several pages may repeat the same row.
    pub rows: Vec<QueueRow>,
    /// Where the next page begins, if there may be one: an opaque cursor.
    pub next: Option<Bytes>,
}

/// What a store inherits from the one it replaces, beside what commits write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heritage {
    /// The replaced store's secret: ids and keys known to tenants keep their meaning.
    pub secret: [u8; 16],
    /// The newest position in the replaced store's log. Later events get higher positions, and a reader at or
    /// before it learns that what it has not read is gone. If an external source assigns a store's positions,
    /// only the latter holds, for readers that are not past the store's own newest position.
    pub log: u64,
    /// The replaced store's time. The store's own time, and every version it assigns, is later from now on.
    pub time: Timestamp,
}
