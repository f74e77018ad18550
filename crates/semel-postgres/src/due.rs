//! What is due.
//!
//! As with the ready jobs (`front.rs`), PostgreSQL keeps the index entries of jobs that have moved on for as
//! long as any transaction can see them there, and every look would go over all of them. So after a look that
//! went over many, the next ones are limited to what falls due about now, and to what this server's commits
//! file before. Now and then one looks at everything nevertheless, for what others file there, or was filed
//! while the first such look, or a commit of more than five seconds, was under way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use semel_core::draft::Group;
use semel_core::slot::{Due, Filing, Slot};
use semel_core::time::Timestamp;
use semel_store::backend::{Batch, DueIds};
use tokio::time::Instant;

use crate::begin::Begin;
use crate::error::PostgresError;
use crate::sql::{WALK_MAX, walked};
use crate::store::Shared;
use crate::values::{Id, Params};

/// How long before the present such a look begins at the latest, in microseconds: longer than commits take.
const RECENT: i64 = 5_000_000;
/// How long after the present it ends, in microseconds: duties look again sooner.
const SOON: i64 = 2_000_000;
/// Where looks begin, of each kind.
#[derive(Default)]
pub(crate) struct Dues {
    begins: Mutex<[Begin; Due::ALL.len()]>,
    /// Whether any begins later than at the start.
    has_any: AtomicBool,
}

impl Dues {
    fn begins(&self) -> MutexGuard<'_, [Begin; Due::ALL.len()]> {
        self.begins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets looks of this kind begin elsewhere, unless that has changed since `before`: a look did not see what
    /// was filed while it was under way.
    fn set(&self, due: Due, before: Begin, begin: Begin) {
        let mut begins = self.begins();
        if begins[due as usize] != before {
            return;
        }
        begins[due as usize] = begin;
        self.has_any.store(begins.iter().any(|begin| *begin != Begin::default()), Ordering::Release);
    }

    /// Lets looks begin no later than where a commit files its jobs. Called when it is done.
    pub(crate) fn note(&self, batch: &Batch) {
        if !self.has_any.load(Ordering::Acquire) {
            return;
        }
        let mut begins = self.begins();
        let mut lower = |due: Due, at: Timestamp| {
            let begin = &mut begins[due as usize];
            if begin.is_after(at.as_micros()) {
                *begin = begin.moved_to(at.as_micros());
            }
        };
        for head in batch.groups.iter().flat_map(Group::heads) {
            let filing = Filing::of(head);
            match filing.slot {
                Slot::Timer => lower(Due::Timer, filing.at),
                Slot::Lease => lower(Due::Lease, filing.at),
                Slot::Done => lower(Due::Purge, filing.at),
                Slot::Ready | Slot::Held => {}
            }
            if let Some(expires) = filing.expires {
                lower(Due::Expiry, expires);
            }
        }
    }
}

impl Shared {
    /// Returns the ids that are due.
    pub(crate) async fn due(&self, due: Due, limit: u32) -> Result<DueIds, PostgresError> {
        let (column, index, filed) = match due {
            Due::Timer => ("slot_at", "head_filed", format!("slot = {}", Slot::Timer as i16)),
            Due::Lease => ("slot_at", "head_filed", format!("slot = {}", Slot::Lease as i16)),
            Due::Purge => ("slot_at", "head_filed", format!("slot = {}", Slot::Done as i16)),
            Due::Expiry => {
                let [ready, timer, held] = [Slot::Ready, Slot::Timer, Slot::Held].map(|slot| slot as i16);
                let filed = format!("expires_at IS NOT NULL AND slot IN ({ready}, {timer}, {held})");
                ("expires_at", "head_expiry", filed)
            }
        };
        let begin = self.dues.begins()[due as usize];
        let from = begin.from();
        let mut params = Params::default();
        self.push_time(&mut params);
        params.number(i64::from(limit) + 1);
        params.number(from.unwrap_or(i64::MIN));
        let to = from.map_or(i64::MAX, |_| self.floor().saturating_add(SOON));
        params.number(to);
        // Parts of one statement, so that they see the same time. They are run in this order.
        let walked = walked(&self.name(index));
        let sql = format!(
            "SELECT NULL::uuid, {}($1, $2, $3), {walked} UNION ALL \
             (SELECT id, {column}, NULL FROM {} WHERE {filed} AND {column} >= $5 AND {column} <= $6 ORDER BY {column}, id LIMIT $4) \
             UNION ALL SELECT NULL, NULL, {walked}",
            self.name("time"),
            self.name("head")
        );
        let began = Instant::now();
        let rows = self.current(&sql, &params).await?;
        let mut found = DueIds::default();
        let (mut walked, mut first) = (0, None);
        for row in &rows {
            let at: Option<i64> = row.try_get(1)?;
            match (row.try_get::<_, Option<Id>>(0)?, at) {
                (None, Some(now)) => {
                    found.now = self.saw(now);
                    walked -= row.try_get::<_, i64>(2)?;
                }
                (None, None) => walked += row.try_get::<_, i64>(2)?,
                (Some(id), at) => {
                    let at = Timestamp::from_micros(at.ok_or(PostgresError::Answer("due"))?);
                    walked -= 1;
                    first = first.or(Some(at));
                    if at <= found.now && found.ids.len() < limit as usize {
                        found.ids.push(id.0);
                    } else if found.next.is_none() {
                        found.next = Some(at);
                    }
                }
            }
        }
        let now = found.now.as_micros();
        if to < now {
            // The time has moved on more than was expected.
            found.next = found.next.or(Some(found.now));
        }
        // Nothing later than `to` was looked at.
        let recent = now.min(to).saturating_sub(RECENT);
        let place = first.map_or(recent, |first| first.as_micros().min(recent));
        self.dues.set(
            due,
            begin,
            match from {
                Some(_) => begin.moved_to(place),
                None if walked > WALK_MAX => Begin::at(place, began.elapsed()),
                None => Begin::default(),
            },
        );
        Ok(found)
    }
}
