//! Semel's store in Redis (7 and later): many servers on one Redis, and no leader among them.
//!
//! A load is one script, and so are the groups of a commit and each claim. Redis does one thing after the other, so a script is one
//! atomic step. The scripts (`lua/`) compare versions and move data; they know no rule. States are numbers to them, and where a head
//! is filed is computed by [`semel_core::slot::Filing`].
//!
//! # What it needs
//! Redis is not set to keep what it answers; [`Durability`] says what is lost, and only `appendonly yes`, `appendfsync always` and
//! `maxmemory-policy noeviction` lose nothing. An account of Redis's ACL needs `~PREFIX{p0}*`, `&PREFIX{p0}news` (else servers
//! look for one another's commits) and `+@read +@write +@scripting +@transaction +@connection +@pubsub -@dangerous +info +time`, in this order;
//! with `+config|get` behind them the store can say what is kept. Memory follows all jobs that are kept, ended ones too.
//!
//! # Clusters and sentinels
//! All keys of a store have one hash tag, so one node of a cluster has them at a time. Who that is, or which of several is the primary
//! under Sentinel, is asked of more than half of those who know unless the others are gone, and again every second. A failover loses what the replica does
//! not have that takes over, unless commits wait for it (`?replicas=1`).
//!
//! # Layout
//! - [`store`]: the store; [`address`]: where it is; `seats`: who is named there; `finder`: who of them takes writes now, by
//!   `opinion`s that `asker` hears; `link`: connections; `era`: which run of Redis they are to lead to; `said`: what goes over them;
//!   `scripts`: their texts.
//! - `load`, `commit`, `claim`: the three that decisions need; `shortcut`: loads that need no script, by what `recall` remembers; `request`:
//!   groups as arguments; `turn`: what tells a request that is sent again from a new one.
//! - [`head`]: a head as bytes; `values`: what Redis answers, taken apart.
//! - `people`, `documents`, `upkeep`: pages, queues, the log; documents by kind and by time; housekeeping.
//! - `partitions`: the parts of a store that is divided; `routes`: which of them a group is about; `crossing`, `weighing`, `recovery`: a
//!   commit over several, and what becomes of one that is left in the middle; `gathering`, `dealing`, `whole`, `records`: loads, claims,
//!   pages and the log of all of them.
//! - `times`: what is known of the time.
//! - `heritage`: what copies of the store, and into it, ask of it.
//! - `teller`, `listener`: what servers tell one another, and how they hear it.
//! - [`survey`]: how Redis is set, and what of it loses something; [`durability`]: what an answer survives by that; `writers`:
//!   commits that wait for replicas.

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
