//! What a caller may be told of other people's jobs, and so what it may do to them by offering its own.

use std::sync::Arc;

use crate::ident::QueueName;

/// The queues that a caller sees. Jobs of others are not there for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Queues {
    /// Every queue there is or will be.
    #[default]
    All,
    /// Those whose names match one of the patterns: a name, or the beginning of names followed by `*`.
    Only(Arc<[String]>),
}

impl Queues {
    /// Whether the queue is among them.
    pub fn include(&self, queue: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(patterns) => patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(beginning) => queue.starts_with(beginning),
                None => pattern == queue,
            }),
        }
    }
}

/// What the caller of a decision may see.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'q> {
    /// Whether it may see other people's jobs at all.
    pub inspect: bool,
    /// In which queues there are jobs for it. Unlike a job that it may merely not be shown, one of another queue is not
    /// replaced or overwritten on its word either.
    pub queues: &'q Queues,
}

impl Sight<'_> {
    /// Of a caller who sees every job there is.
    pub const fn everything() -> Self {
        Self { inspect: true, queues: &Queues::All }
    }

    /// Whether the queue of a stored job is one that the caller sees. Tenants are apart already.
    pub fn sees(&self, queue: &QueueName) -> bool {
        self.queues.include(queue.name())
    }
}
