//! A claim: one statement that grants by a template; what it granted is checked against the core's own grant.

use std::collections::HashMap;

use bytes::Bytes;
use semel_core::draft::Full;
use semel_core::event::EventKind;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::{Head, NoteKind};
use semel_core::lease::{Unclaimable, grant};
use semel_core::limits::EXECUTION_DEFAULT_MS;
use semel_core::slot::Slot;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_store::backend::{Claim, Claimed};
use semel_store::bounds::{CLAIM_LOOKS_EXTRA, LANE_LOOKS};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::PostgresError;
use crate::rows;
use crate::store::Shared;
use crate::values::Params;

/// The column where a head begins, in what `claim` answers.
const HEAD: usize = 3;

impl Shared {
    /// The parameters of `claim`.
    pub(crate) fn claim_params<'a>(&self, claim: &'a Claim) -> Params<'a> {
        let mut params = Params::default();
        self.push_time(&mut params);
        params.texts(claim.queues.iter().map(QueueName::as_str).collect());
        params.push(i32::try_from(claim.limit).unwrap_or(i32::MAX), Type::INT4);
        params.push(i32::from(CLAIM_LOOKS_EXTRA), Type::INT4);
        params.push(&*claim.grant.worker, Type::TEXT);
        params.number(i64::from(claim.grant.visibility_ms));
        params.number(i64::from(EXECUTION_DEFAULT_MS));
        params.push(i16::from(State::Active.code()), Type::INT2);
        params.push(Slot::Lease as i16, Type::INT2);
        params.push(i16::from(EventKind::Started.code()), Type::INT2);
        params.numbers(claim.closed.iter().map(|lane| rows::lane_number(*lane)).collect());
        params.push(i32::from(LANE_LOOKS), Type::INT4);
        params
    }

    /// What a claim took, from the rows of its answer.
    pub(crate) fn claimed(&self, claim: &Claim, rows: &[Row]) -> Result<Claimed, PostgresError> {
        let mut now = Timestamp::EPOCH;
        let mut claimed = Claimed::default();
        let mut notes: HashMap<JobId, Vec<(NoteKind, Bytes)>> = HashMap::new();
        for row in rows {
            match row.try_get::<_, i16>(0)? {
                0 => now = self.saw(row.try_get(1)?),
                1 => {
                    let before = rows::head(row, HEAD)?;
                    let body = Bytes::copy_from_slice(row.try_get(2)?);
                    // The row was written by the template. The core has the last word on what a grant is.
                    let head: Head = grant(&before, &claim.grant, now, false).map_err(|_| {
                        PostgresError::Row { id: before.id, what: "it was granted against the rule" }
                    })?;
                    claimed.jobs.push((head, Full { body, notes: Vec::new() }));
                }
                2 => {
                    let id = rows::id(row, HEAD)?;
                    let kind = u8::try_from(row.try_get::<_, i64>(1)?).ok().and_then(NoteKind::from_code);
                    let kind = kind.ok_or(PostgresError::Row { id, what: "no such note" })?;
                    notes.entry(id).or_default().push((kind, Bytes::copy_from_slice(row.try_get(2)?)));
                }
                3 => {
                    let reason = match row.try_get::<_, i64>(1)? {
                        0 => Unclaimable::Expired,
                        1 => Unclaimable::Exhausted,
                        2 => Unclaimable::Overlaps,
                        3 => Unclaimable::Limited,
                        _ => return Err(PostgresError::Answer("claim")),
                    };
                    claimed.unclaimable.push((rows::id(row, HEAD)?, reason));
                }
                _ => return Err(PostgresError::Answer("claim")),
            }
        }
        for (head, full) in &mut claimed.jobs {
            full.notes = notes.remove(&head.id).unwrap_or_default();
        }
        Ok(claimed)
    }
}
