//! Identity, hold and conflict: what "once" means, as pure functions (SEMANTICS 2 to 4).
//!
//! A caller's [`PolicySpec`] becomes a [`UniquePolicy`]; the policy computes a job's [`UniqueKey`];
//! [`admit()`] decides what happens to the job, given the heads of the jobs that carry the key; [`explain`]
//! says why.

pub mod explain;

mod admit;
mod advice;
mod choice;
mod deciding;
mod frees;
mod hold;
mod key;
mod outlive;
mod period;
mod policy;
mod preset;
pub mod sample;
mod spec;

pub use admit::{Admission, Blocking, RejectReason, admit, blocks, disclosed, mismatch};
pub use advice::{Advice, advice};
pub use choice::{Dimension, Dimensions, Disclose, OnConflict, OnMismatch, PeriodFrom, Scope, WhenActive};
pub use deciding::deciding;
pub use frees::{Frees, frees};
pub use hold::{
    Hold, Holding, Remember, Unreadable, held_until, holding, holds, is_kept, must_remember,
    until_asks_policy,
};
pub use key::{KeyInput, PROFILE, TRACE_NAMES, UniqueKey, idempotency_key};
pub use outlive::{leave_out_outlived, outlives};
pub use period::Period;
pub use policy::{MetaPart, UniquePolicy};
pub use preset::{Given, MissingKey, Preset};
pub use spec::PolicySpec;
