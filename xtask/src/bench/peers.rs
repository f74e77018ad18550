//! The queues that are measured, and how each is set up: as its own docs recommend for speed.

use super::stores::Store;

/// The language of a program, and its name there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// A module of `bench/peers/node`.
    Node(&'static str),
    /// A module of `bench/peers/python`.
    Python(&'static str),
    /// A module of `bench/peers/rust`.
    Rust(&'static str),
    /// This workspace's own program.
    Semel,
    /// The store alone, without a queue.
    Limit,
}

/// One queue on one kind of store.
#[derive(Debug)]
pub struct Peer {
    /// Its name.
    pub name: &'static str,
    /// The store that it runs on.
    pub store: Store,
    /// The program that is run.
    pub program: Program,
    /// How it is set up.
    pub setup: &'static str,
    /// The number of jobs in the backlog that it works off: as many as it does in a few seconds.
    pub backlog: u32,
}

impl Peer {
    /// Its name and its store's name.
    pub fn label(&self) -> String {
        format!("{} on {}", self.name, self.store.name())
    }

    /// Whether it is Semel.
    pub fn is_semel(&self) -> bool {
        self.program == Program::Semel
    }
}

const SEMEL: Peer = Peer {
    name: "Semel",
    store: Store::File,
    program: Program::Semel,
    setup: "embedded library; unique by one member of args, on_conflict ignore; concurrency 500, 1,000 prefetched; events and \
            finished jobs kept",
    backlog: 50_000,
};

const LIMIT: Peer = Peer {
    name: "limit",
    store: Store::File,
    program: Program::Limit,
    setup: "the bare store without a queue: one writer of a job's rows in groups of 512 (file); INSERT … ON CONFLICT of 512 rows on \
            four connections, and claims of 100 by UPDATE (PostgreSQL); a script that only writes, on 8 connections of 64 calls \
            (Redis)",
    backlog: 0,
};

/// All queues. They have one place in memory, so that a reference identifies a queue.
pub static PEERS: &[Peer] = &[
    LIMIT,
    Peer { store: Store::Postgres, ..LIMIT },
    Peer { store: Store::RedisAlways, ..LIMIT },
    Peer { store: Store::RedisEverysec, ..LIMIT },
    SEMEL,
    Peer { store: Store::Postgres, ..SEMEL },
    Peer { store: Store::RedisAlways, ..SEMEL },
    Peer { store: Store::RedisEverysec, ..SEMEL },
    Peer {
        name: "graphile-worker",
        store: Store::Postgres,
        program: Program::Node("graphile-worker"),
        setup: "jobKey in mode unsafe_dedupe (bulk: replace), pool of 8; concurrency 24, local queue of 500, batched completions; \
                finished jobs deleted",
        backlog: 50_000,
    },
    Peer {
        name: "pg-boss",
        store: Store::Postgres,
        program: Program::Node("pg-boss"),
        setup: "singletonKey in a queue with policy exclusive and its own partition, pool of 16; batches of 1,000, two workers, \
                LISTEN/NOTIFY; finished jobs kept",
        backlog: 50_000,
    },
    Peer {
        name: "Procrastinate",
        store: Store::Postgres,
        program: Program::Python("procrastinate"),
        setup: "queueing_lock (bulk: none, as a batch has only one lock), pool of 32; concurrency 32; finished jobs kept",
        backlog: 3_000,
    },
    APALIS_POSTGRES,
    Peer {
        name: "graphile_worker (Rust)",
        store: Store::Postgres,
        program: Program::Rust("graphile-worker"),
        setup: "job_key in mode unsafe_dedupe (bulk: replace), pool of 16; concurrency 24, local queue of 500, batched completions; \
                finished jobs deleted",
        backlog: 50_000,
    },
    BULLMQ,
    Peer { store: Store::RedisEverysec, ..BULLMQ },
    APALIS_REDIS,
    Peer { store: Store::RedisEverysec, ..APALIS_REDIS },
];

const BULLMQ: Peer = Peer {
    name: "BullMQ",
    store: Store::RedisAlways,
    program: Program::Node("bullmq"),
    setup: "deduplication id in simple mode; one connection; concurrency 500; finished jobs removed",
    backlog: 50_000,
};

const APALIS_POSTGRES: Peer = Peer {
    name: "apalis",
    store: Store::Postgres,
    program: Program::Rust("apalis-postgres"),
    setup: "idempotency_key (the caller gets an SQL error for a duplicate), pool of 16; fetches of 1,000, woken by LISTEN/NOTIFY \
            and every 10 ms; finished jobs kept",
    backlog: 50_000,
};

const APALIS_REDIS: Peer = Peer {
    name: "apalis",
    store: Store::RedisAlways,
    program: Program::Rust("apalis-redis"),
    setup: "idempotency_key with an idempotency_ttl of one hour (the default lets duplicates in); fetches of 1,000, woken by \
            publish/subscribe and every 10 ms",
    backlog: 50_000,
};

#[cfg(test)]
mod tests {
    use super::PEERS;

    #[test]
    fn no_two_have_one_label() {
        let mut labels: Vec<String> = PEERS.iter().map(super::Peer::label).collect();
        labels.sort();
        labels.dedup();
        assert_eq!(labels.len(), PEERS.len());
    }
}
