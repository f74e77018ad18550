//! What a caller may see of other callers' jobs, and so what its own offers may do to them.

use std::sync::Arc;

use crate::ident::QueueName;

/// The queues that a caller may see. To the caller, jobs in other queues do not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Queues {
    /// Every queue there is or will be.
    #[default]
    All,
    /// The queues whose names match one of the patterns: a whole name, or a prefix followed by `*`.
    Only(Arc<[String]>),
}

impl Queues {
    /// Whether a queue of this name is among them.
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
    /// Whether it may see other callers' jobs at all.
    pub inspect: bool,
    /// The queues it may see. A job in another queue is not merely hidden: the caller's offers do not replace or
    /// overwrite it either.
    pub queues: &'q Queues,
}

impl Sight<'_> {
    /// The sight of a caller that sees every job.
    pub const fn everything() -> Self {
        Self { inspect: true, queues: &Queues::All }
    }

    /// Whether the caller may see the queue of a stored job. Tenants are separated elsewhere.
    pub fn sees(&self, queue: &QueueName) -> bool {
        self.queues.include(queue.name())
    }
}
