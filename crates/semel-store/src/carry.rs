//! What carrying a store over into another asks of both, beside what everybody asks.

use bytes::Bytes;
use semel_core::draft::QueueRow;
use semel_core::job::Head;
use semel_core::time::Timestamp;

/// A part of a store that nothing else shows whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Heads that are kept for their keys alone. They may have no more than their keys need.
    Remembered,
    /// Rows that were written: of queues, and [of what is none](semel_core::ident::QueueName::is_queue), such as limits and
    /// what workers are told.
    Rows,
}

/// A piece of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Heads, and until when each is kept.
    pub heads: Vec<(Head, Timestamp)>,
    /// Rows. The same may be in several pieces.
    pub rows: Vec<QueueRow>,
    /// Where the next piece begins, if there may be one; it says nothing to anybody else.
    pub next: Option<Bytes>,
}

/// What a store takes over of the one whose place it takes, beside what is written by commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heritage {
    /// The other's secret: ids and keys that tenants know go on to mean what they meant.
    pub secret: [u8; 16],
    /// The newest place of the other's log. What happens from now on has later ones, and whoever has read that far or less is
    /// told that what he has not read is gone. Where a store's places are given by others, only the latter is so, for
    /// those that are not later than its own.
    pub log: u64,
    /// The other's time. The store's own is later from now on, and so are all versions that it gives.
    pub time: Timestamp,
}
