//! Claims: one statement grants jobs by a template. It returns the rows as they were before, and the core
//! computes the grants from them for the answer, which also checks that each job could be granted at all.
//! Whether the template stored exactly that grant is not checked here, because what was written is not
//! returned; tests compare it with the model's grants. Which jobs a claim looks at, in which order and how
//! far, must also match the model (`Model::claim` of `semel-store`).

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use semel_core::draft::Full;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::{Head, NoteKind};
use semel_core::lease::{Grant, Unclaimable, grant};
use semel_core::time::Timestamp;
use semel_store::backend::{Claim, Claimed};
use semel_store::bounds::{CLAIM_LOOKS_EXTRA, LANE_LOOKS};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::PostgresError;
use crate::front::{self, Fronts};
use crate::rows;
use crate::store::Shared;
use crate::values::Params;

/// The first column of a head in the rows returned by `take`.
const HEAD: usize = 4;
/// Jobs that claims served by one statement may take together.
const TOGETHER_MAX: u32 = 1_000;

/// Jobs that one claim may take.
const LIMIT_MAX: u32 = 1_000_000;

/// Claims served in turn by one statement: from the same single queue, with templates that differ only in the
/// worker.
pub(crate) struct Together<'a> {
    claims: Vec<&'a Claim>,
    /// The place of each among all claims.
    pub(crate) places: Vec<usize>,
}

impl<'a> Together<'a> {
    /// Groups claims that can be served together. No claim overtakes another from the same queue.
    pub(crate) fn of(claims: &'a [Claim]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (place, claim) in claims.iter().enumerate() {
            let last = all.iter_mut().rfind(|together| together.concerns(claim));
            match last.filter(|together| together.takes(claim)) {
                Some(together) => {
                    together.claims.push(claim);
                    together.places.push(place);
                }
                None => all.push(Self { claims: vec![claim], places: vec![place] }),
            }
        }
        all
    }

    fn concerns(&self, claim: &Claim) -> bool {
        self.claims.iter().flat_map(|claim| &claim.queues).any(|queue| claim.queues.contains(queue))
    }

    fn takes(&self, claim: &Claim) -> bool {
        let limits = self.claims.iter().map(|claim| claim.limit).fold(claim.limit, u32::saturating_add);
        let is_alike = |first: &&Claim| first.queues.len() == 1 && first.differs_in_taker_alone(claim);
        self.claims.first().is_some_and(is_alike) && limits <= TOGETHER_MAX
    }

    /// Returns the parameters of `take`.
    pub(crate) fn params(&self, shared: &Shared) -> Params<'a> {
        let mut params = Params::default();
        shared.push_time(&mut params);
        self.push(&shared.fronts, &mut params);
        params
    }

    /// Adds the parameters after those of the time. Each is named as in the function.
    pub(crate) fn push(&self, fronts: &Fronts, params: &mut Params<'a>) {
        let first = self.claims.first();
        let queues = first.iter().flat_map(|claim| &claim.queues).map(QueueName::as_str).collect();
        params.named("p_queues").texts(queues);
        params.named("p_workers").texts(self.claims.iter().map(|claim| &*claim.grant.worker).collect());
        let limit = |claim: &&Claim| i32::try_from(claim.limit.min(LIMIT_MAX)).unwrap_or(0);
        params.named("p_limits").places(self.claims.iter().map(limit).collect());
        params.named("p_looks").push(i32::from(CLAIM_LOOKS_EXTRA), Type::INT4);
        let visibility = first.map_or(0, |claim| i64::from(claim.grant.visibility_ms));
        params.named("p_visibility_ms").number(visibility);
        params.named("p_timeout_ms").number(i64::from(Grant::TIMEOUT_MS));
        params.named("p_state").push(i16::from(Grant::STATE.code()), Type::INT2);
        params.named("p_slot").push(Grant::SLOT as i16, Type::INT2);
        params.named("p_event").push(i16::from(Grant::EVENT.code()), Type::INT2);
        let closed = first.iter().flat_map(|claim| &claim.closed).map(|lane| rows::lane_number(*lane));
        params.named("p_closed").numbers(closed.collect());
        params.named("p_lane_looks").push(i32::from(LANE_LOOKS), Type::INT4);
        // The function takes any list but NULL for a claim that has a front.
        let fronts = first.and_then(|claim| fronts.of(&claim.queues));
        let (priorities, times): (Option<Vec<_>>, Option<Vec<_>>) =
            fronts.map(|fronts| fronts.into_iter().map(front::split).unzip()).unzip();
        params.named("p_front_priority").push(priorities, Type::INT4_ARRAY);
        params.named("p_front_at").push(times, Type::INT8_ARRAY);
    }

    /// Returns what each claim took, from the returned rows. A job that cannot be read is left out, so that
    /// it does not hold up the others; its lease runs out.
    pub(crate) fn claimed(&self, shared: &Shared, rows: &[Row]) -> Result<Vec<Claimed>, PostgresError> {
        let mut now = Timestamp::EPOCH;
        let mut has_walked = false;
        let mut all = vec![Claimed::default(); self.claims.len()];
        let whose = |row: &Row| -> Result<usize, PostgresError> {
            let whose = usize::try_from(row.try_get::<_, i32>(2)?).unwrap_or(0).wrapping_sub(1);
            if whose < self.claims.len() { Ok(whose) } else { Err(PostgresError::Answer("take")) }
        };
        let mut notes: HashMap<JobId, Vec<(NoteKind, Bytes)>> = HashMap::new();
        let mut unreadable: HashSet<JobId> = HashSet::new();
        for row in rows {
            match row.try_get::<_, i16>(0)? {
                0 => now = shared.saw(row.try_get(1)?),
                1 => {
                    let whose = whose(row)?;
                    match granted(row, &self.claims[whose].grant, now) {
                        Ok(granted) => all[whose].jobs.push(granted),
                        Err(error @ PostgresError::Row { .. }) => {
                            tracing::error!(%error, "a claimed job cannot be handed out; its lease will expire");
                        }
                        Err(error) => return Err(error),
                    }
                }
                2 => {
                    let id = rows::id(row, HEAD)?;
                    let kind = u8::try_from(row.try_get::<_, i64>(1)?).ok().and_then(NoteKind::from_code);
                    match kind {
                        Some(kind) => {
                            notes
                                .entry(id)
                                .or_default()
                                .push((kind, Bytes::copy_from_slice(row.try_get(3)?)));
                        }
                        None => drop(unreadable.insert(id)),
                    }
                }
                3 => {
                    let reason =
                        u8::try_from(row.try_get::<_, i64>(1)?).ok().and_then(Unclaimable::from_code);
                    let reason = reason.ok_or(PostgresError::Answer("take"))?;
                    all[whose(row)?].unclaimable.push((rows::id(row, HEAD)?, reason));
                }
                4 => has_walked = true,
                _ => return Err(PostgresError::Answer("take")),
            }
        }
        if has_walked {
            let queues = self.claims.iter().flat_map(|claim| &claim.queues);
            let granted = all.iter().flat_map(|claimed| &claimed.jobs).map(|(head, _)| head);
            shared.fronts.follow(queues, granted);
        }
        for id in &unreadable {
            let error = PostgresError::Row { id: *id, what: "no such note" };
            tracing::error!(%error, "a claimed job cannot be handed out; its lease will expire");
        }
        for claimed in &mut all {
            claimed.jobs.retain(|(head, _)| !unreadable.contains(&head.id));
        }
        for (head, full) in all.iter_mut().flat_map(|claimed| &mut claimed.jobs) {
            full.notes = notes.remove(&head.id).unwrap_or_default();
        }
        Ok(all)
    }
}

/// Returns the granted job from a row, which has the job as it was before. The core grants it again, and
/// refuses a job that could not be granted. The template of `take` and `lease` should have stored the same
/// grant, which is not checked here.
fn granted(row: &Row, by: &Grant, now: Timestamp) -> Result<(Head, Full), PostgresError> {
    let before = rows::short_head(row, HEAD)?;
    let body = Bytes::copy_from_slice(row.try_get(3)?);
    let head = grant(&before, by, now, false)
        .map_err(|_| PostgresError::Row { id: before.id, what: "it was granted against the rule" })?;
    Ok((head, Full { body, notes: Vec::new() }))
}
