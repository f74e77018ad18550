//! The verbs, one file each.

pub mod backup;
pub mod bench;
pub mod completions;
pub mod crons;
pub mod dead;
pub mod doctor;
pub mod enqueue;
pub mod events;
pub mod explain;
pub mod job;
pub mod jobs;
pub mod keys;
pub mod limit;
pub mod man;
pub mod migrate;
pub mod queues;
pub mod release;
pub mod restore;
pub mod serve;
pub mod tasks;
pub mod templates;
pub mod token;
pub mod top;
pub mod webhooks;
pub mod workers;
pub mod workflows;
