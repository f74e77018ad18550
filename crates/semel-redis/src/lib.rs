//! Semel's store in Redis (7 and later): many servers on one Redis, and no leader among them.
//!
//! A load is one script, and so are the groups of a commit and each claim. Redis runs one script at a time,
//! so each is one atomic step. The scripts (`lua/`) compare versions and move data; they contain no rules. To
//! them states are numbers, and where a head is filed is computed by [`semel_core::slot::Filing`].
//!
//! # What it needs
//! By default Redis may lose acknowledged writes. [`Durability`] says what may be lost; only
//! `appendonly yes`, `appendfsync always` and `maxmemory-policy noeviction` lose nothing. An ACL account needs
//! `~PREFIX{p0}*`, `&PREFIX{p0}news` (without it servers poll for one another's commits) and
//! `+@read +@write +@scripting +@transaction +@connection +@pubsub -@dangerous +info +time`, in this order;
//! with `+config|get` after them the store can report its durability. Memory grows with all jobs that are
//! kept, ended ones included.
//!
//! # Clusters and sentinels
//! All keys of a store have one hash tag, so one node of a cluster has them at a time. That node, or the
//! primary under Sentinel, is found by asking: more than half of the nodes or sentinels must answer unless
//! the others are gone, and they are asked again every second. A failover loses what the promoted replica
//! does not have, unless commits wait for it (`?replicas=1`).
//!
//! # Layout
//! - [`store`]: the store; [`address`]: where it is; `seats`: the servers that the address names; `finder`:
//!   which of them takes writes now, according to the `opinion`s that `asker` collects; `link`: connections;
//!   `era`: which run of Redis they must lead to; `said`: requests and answers; `scripts`: the scripts'
//!   texts.
//! - `load`, `commit`, `claim`: the three operations that decisions need; `shortcut`: loads that need no
//!   script, guessed from what `recall` remembers; `request`: groups as script arguments; `turn`: tells a
//!   repeated request from a new one.
//! - [`head`]: the binary form of a head; `values`: parses Redis's answers.
//! - `people`, `documents`, `upkeep`: pages, queues, the log; documents by kind and by time; housekeeping.
//! - `partitions`: the parts of a divided store; `routes`: which of them a group is about; `crossing`,
//!   `weighing`, `recovery`: a commit over several, and what becomes of one that is left unfinished;
//!   `gathering`, `dealing`, `whole`, `records`: loads, claims, pages and the log over all of them.
//! - `times`: what is known of the time.
//! - `heritage`: copying the store, and copying another into it.
//! - `teller`, `listener`: publish and receive news between servers.
//! - [`survey`]: Redis's settings, and which of them may lose something; [`durability`]: what an acknowledged
//!   write survives under them; `writers`: commits that wait for replicas.

pub mod address;
mod asker;
mod claim;
mod commit;
mod crossing;
mod dealing;
mod documents;
pub mod durability;
mod era;
pub mod error;
mod finder;
mod fresh;
mod gathering;
pub mod head;
mod heritage;
mod link;
mod listener;
mod load;
mod loading;
mod opinion;
mod partitions;
mod people;
mod recall;
mod records;
mod recovery;
mod request;
mod routes;
mod said;
#[doc(hidden)]
pub mod scripts;
mod seats;
mod shortcut;
pub mod store;
pub mod survey;
mod teller;
mod times;
mod turn;
mod upkeep;
mod values;
mod weighing;
mod whole;
mod writers;

pub use address::Address;
pub use durability::Durability;
pub use error::RedisError;
pub use store::Redis;
pub use survey::{Finding, Survey};
