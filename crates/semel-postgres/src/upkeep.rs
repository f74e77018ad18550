//! Housekeeping, a bounded piece at a time.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use deadpool_postgres::Object;
use semel_core::draft::Reads;
use semel_core::limits::RETENTION_DEFAULT_S;
use tokio_postgres::types::Type;

use crate::connect::ask;
use crate::error::PostgresError;
use crate::server::given_back;
use crate::store::Shared;
use crate::teller;
use crate::values::Params;

/// Heads forgotten in one go.
const FORGET_MAX: i32 = 500;
/// Counted rows folded in one go.
const FOLD_MAX: i32 = 10_000;
/// Records of the log that are kept of those that tell something, and as many of the others; older ones are dropped. More than those
/// among which a commit is looked for whose answer was lost.
const RECORDS_KEPT: i64 = 200_000;
/// Records that tell something which are kept at most, where they cannot be shown yet: somebody's transaction that began before them
/// is not over.
const UNSHOWN_KEPT: i64 = 10 * RECORDS_KEPT;
/// Records are dropped so long after they could be shown, at least, in microseconds: whoever had to wait for them has that time to
/// read them.
const SHOWN_FOR: i64 = 60_000_000;
/// Records of either sort dropped in one go.
const RECORDS_MAX: i64 = 50_000;
/// One look in so many also trims the log and drops relayed entries of the outbox; one round of the table of keys in so many takes
/// those that were made only to be locked.
const SELDOM: u32 = 64;
/// Keys that nobody holds are kept for so long, so that no decision that is still on its way has seen an older one of
/// the same name and takes the new one for it; in microseconds.
const KEY_KEPT: i64 = 3_600_000_000;
/// How often it is tried to delete everything.
const CLEAR_TRIES: u32 = 32;
/// Entries of the outbox are kept for so long after they were relayed, in seconds: as long as a finished job.
const OUTBOX_KEPT: i64 = RETENTION_DEFAULT_S.cast_signed();
/// Entries of the outbox dropped in one go.
const ENTRIES_MAX: u64 = 10_000;
/// Pages of the table of keys that one look goes through, from where the last one ended. An index of keys that nobody holds would
/// have each commit that writes a key write all indexes of that table.
const KEY_PAGES: i64 = 1_024;
/// A look that found so many keys to drop is followed by the next at once.
const KEYS_MANY: u64 = 1_000;

/// After a round through that table in which little was found, so many times as many looks leave it alone: it may be far larger than what
/// is held of it, and each look takes a piece of the database's cache.
const KEY_REST: u64 = 7;
/// But no more than these: two a second are a quarter of an hour.
const KEY_REST_MAX: u64 = 1_800;

/// Where house-keeping is in the table of keys.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// The page at which it goes on.
    page: i64,
    /// How often it has gone through all of it.
    number: u32,
    /// Keys dropped in this round.
    dropped: u64,
    /// Looks that leave it alone.
    rest: u64,
}

impl Round {
    /// Where to look, and whether at those as well that were made only to be locked; nothing while it rests.
    fn next(&mut self) -> Option<(i64, bool)> {
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        Some((self.page, self.number % SELDOM == SELDOM - 1))
    }

    /// Takes note of a look from `from` on, after which there was more to look at or not. Says for how many looks one server alone
    /// would leave the table alone now.
    fn note(&mut self, from: i64, dropped: u64, is_end: bool) -> u64 {
        self.dropped += dropped;
        self.page = from + KEY_PAGES;
        if !is_end {
            return 0;
        }
        // A table of one stretch costs next to nothing.
        let is_worth_a_rest = from > 0 && self.dropped < KEYS_MANY;
        let looks = self.page.unsigned_abs() / KEY_PAGES.unsigned_abs();
        *self = Self { number: self.number.wrapping_add(1), ..Self::default() };
        if is_worth_a_rest { looks * KEY_REST } else { 0 }
    }

    /// Rests for so many looks, as one of so many servers: all of them look, and together they are to look no more than one would.
    fn rest(&mut self, looks: u64, servers: u64) {
        self.rest = (looks * servers.max(1)).min(KEY_REST_MAX);
    }
}

/// How far the log could be shown: the lowest transaction that was under way, at looks that are some time apart.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// When the later look was.
    at: i64,
    earlier: i64,
    later: i64,
}

impl Shown {
    /// Takes note of a look; says how far the log could be shown a while ago.
    fn look(&mut self, now: i64, running: i64) -> i64 {
        if now.saturating_sub(self.at) >= SHOWN_FOR {
            *self = Self { at: now, earlier: self.later, later: running };
        }
        self.earlier
    }
}

impl Shared {
    /// A piece of housekeeping. Says whether more is waiting.
    pub(crate) async fn maintain(&self) -> Result<bool, PostgresError> {
        let now = self.load(&Reads::default()).await?.now.as_micros();
        let connection = self.connection().await?;
        let kept = self.heard(&connection, self.keep_house(&connection, now)).await;
        given_back(connection, kept)
    }

    /// The piece, by a connection.
    async fn keep_house(&self, connection: &Object, now: i64) -> Result<bool, PostgresError> {
        let mut params = Params::default();
        params.number(now);
        params.push(FORGET_MAX, Type::INT4);
        let forgotten =
            ask(connection, &format!("SELECT {}($1, $2)", self.name("forget_due")), &params).await?;
        let mut params = Params::default();
        params.push(FOLD_MAX, Type::INT4);
        let folded = ask(connection, &format!("SELECT {}($1)", self.name("fold")), &params).await?;
        let number = |rows: &[tokio_postgres::Row]| -> Result<i32, PostgresError> {
            rows.first().ok_or(PostgresError::Answer("upkeep"))?.try_get(0).map_err(PostgresError::from)
        };
        let mut more = number(&forgotten)? >= FORGET_MAX || number(&folded)? >= FOLD_MAX;
        more |= self.drop_keys(connection, now - KEY_KEPT).await?;
        if self.upkeep.fetch_add(1, Ordering::Relaxed) % SELDOM == SELDOM - 1 {
            if self.drop_records(connection, now).await? {
                // The next look is as thorough; others have their turn before.
                self.upkeep.store(SELDOM - 1, Ordering::Relaxed);
            }
            if self.drop_relayed(connection).await? {
                // The next look is as thorough.
                self.upkeep.store(SELDOM - 1, Ordering::Relaxed);
                more = true;
            }
        }
        Ok(more)
    }

    /// Drops keys of a stretch of their table that nobody has held since `before`. Says whether there were many.
    async fn drop_keys(&self, connection: &Object, before: i64) -> Result<bool, PostgresError> {
        let next = self.round.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((from, with_unheld)) = next else { return Ok(false) };
        let mut params = Params::default();
        params.number(before);
        params.push(format!("({from},0)"), Type::TEXT);
        params.push(format!("({},0)", from + KEY_PAGES), Type::TEXT);
        params.number(from + KEY_PAGES);
        // Those that were made only to be locked have no time in them, and a transaction that begins again is to find its own.
        params.push(with_unheld, Type::BOOL);
        let key = self.name("key");
        let sql = format!(
            "WITH gone AS (DELETE FROM {key} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {key} \
             WHERE ctid >= $2::text::tid AND ctid < $3::text::tid AND live = '{{}}' AND done = '{{}}' AND version < $1 \
             AND (version > 0 OR $5) FOR UPDATE SKIP LOCKED)) RETURNING 1) \
             SELECT (SELECT count(*) FROM gone), \
             pg_catalog.pg_relation_size('{key}') <= $4 * current_setting('block_size')::int8"
        );
        let rows = ask(connection, &sql, &params).await?;
        let row = rows.first().ok_or(PostgresError::Answer("upkeep"))?;
        let is_end: bool = row.try_get(1)?;
        let gone = u64::try_from(row.try_get::<_, i64>(0)?).unwrap_or(0);
        let rest = self.round.lock().unwrap_or_else(PoisonError::into_inner).note(from, gone, is_end);
        if rest > 0 {
            // What was dropped is dropped, whoever else may be there.
            let servers = teller::listeners_by(connection, &self.schema).await.unwrap_or(1);
            self.round.lock().unwrap_or_else(PoisonError::into_inner).rest(rest, servers);
        }
        Ok(!is_end && gone >= KEYS_MANY)
    }

    /// Drops the oldest records of the log, where there are too many. Says whether more are left.
    async fn drop_records(&self, connection: &Object, now: i64) -> Result<bool, PostgresError> {
        let event = self.name("event");
        let mut params = Params::default();
        params.number(RECORDS_KEPT);
        let sql = format!(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8, \
             EXISTS (SELECT 1 FROM {event} ORDER BY tx DESC, first DESC OFFSET $1 LIMIT 1)"
        );
        let rows = ask(connection, &sql, &params).await?;
        let row = rows.first().ok_or(PostgresError::Answer("upkeep"))?;
        let (running, are_many): (i64, bool) = (row.try_get(0)?, row.try_get(1)?);
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner).look(now, running);
        if !are_many {
            return Ok(false);
        }
        params.push(shown.to_string(), Type::TEXT);
        params.number(UNSHOWN_KEPT);
        params.number(RECORDS_MAX);
        // A reader is told of nothing that is dropped of records that tell nothing.
        let sql = format!(
            "WITH bound AS (SELECT greatest(\
                 (SELECT tx FROM {event} WHERE pg_catalog.cardinality(kinds) > 0 AND tx < $2::text::xid8 \
                     ORDER BY tx DESC, first DESC OFFSET $1 LIMIT 1), \
                 CASE WHEN EXISTS (SELECT 1 FROM {event} ORDER BY tx DESC, first DESC OFFSET $3 LIMIT 1) THEN \
                     (SELECT tx FROM {event} WHERE pg_catalog.cardinality(kinds) > 0 ORDER BY tx DESC, first DESC OFFSET $3 LIMIT 1) END) AS tx), \
             piece AS (SELECT least(tx, (SELECT tx FROM {event} ORDER BY tx, first OFFSET $4 LIMIT 1)) AS tx \
                 FROM bound WHERE tx IS NOT NULL), \
             gone AS (DELETE FROM {event} WHERE tx <= (SELECT tx FROM piece) RETURNING 1), \
             silent AS (DELETE FROM {event} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {event} WHERE pg_catalog.cardinality(kinds) = 0 \
                 AND tx > coalesce((SELECT tx FROM piece), '0'::text::xid8) \
                 AND tx <= (SELECT tx FROM {event} WHERE pg_catalog.cardinality(kinds) = 0 ORDER BY tx DESC, first DESC OFFSET $1 LIMIT 1) \
                 ORDER BY tx, first LIMIT $4)) RETURNING 1), \
             told AS (UPDATE {} SET dropped = piece.tx::text::int8 FROM piece WHERE dropped < piece.tx::text::int8) \
             SELECT greatest((SELECT count(*) FROM gone), (SELECT count(*) FROM silent))",
            self.name("fact")
        );
        let rows = ask(connection, &sql, &params).await?;
        let dropped: i64 = rows.first().ok_or(PostgresError::Answer("upkeep"))?.try_get(0)?;
        Ok(dropped >= RECORDS_MAX)
    }

    /// Drops entries of the outbox that were relayed long ago. Says whether more are left.
    async fn drop_relayed(&self, connection: &Object) -> Result<bool, PostgresError> {
        let mut params = Params::default();
        params.number(OUTBOX_KEPT);
        params.number(ENTRIES_MAX.cast_signed());
        let outbox = self.name("outbox");
        let sql = format!(
            "DELETE FROM {outbox} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {outbox} WHERE outcome IS NOT NULL \
             AND relayed_at < now() - $1 * interval '1 second' LIMIT $2 FOR UPDATE SKIP LOCKED))"
        );
        Ok(connection.execute_typed(&sql, &params.typed()).await? >= ENTRIES_MAX)
    }

    /// Deletes everything.
    pub(crate) async fn clear(&self) -> Result<(), PostgresError> {
        let tables = [
            "head", "body", "note", "key", "absorbed", "queue", "document", "total", "tally", "event",
            "outbox",
        ];
        let tables: Vec<String> = tables.iter().map(|table| self.name(table)).collect();
        let sql = format!(
            "TRUNCATE {}; UPDATE {} SET dropped = pg_current_xact_id()::text::int8",
            tables.join(", "),
            self.name("fact")
        );
        // Tables are locked one after the other, and commits of other servers may be under way.
        for _ in 0..CLEAR_TRIES {
            // Several statements sent as one are one transaction.
            match self.connection().await?.batch_execute(&sql).await.map_err(PostgresError::from) {
                Err(error) if error.was_in_the_way() => tracing::debug!(%error, "it is cleared again"),
                done => return done,
            }
        }
        Err(PostgresError::Contended)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        KEY_PAGES, KEY_REST, KEY_REST_MAX, KEYS_MANY, RECORDS_KEPT, Round, SELDOM, SHOWN_FOR, UNSHOWN_KEPT,
    };

    #[test]
    fn the_page_says_how_much_of_the_log_is_kept() {
        let page = include_str!("../../../docs/guide/events.md");
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        for said in [
            "In PostgreSQL it is the newest 200,000 commits that told something",
            "a commit is counted a minute after it could be read at the earliest",
            "while one transaction stands open up to two million are kept",
        ] {
            assert!(page.contains(said), "{said}");
        }
        assert_eq!((RECORDS_KEPT, SHOWN_FOR, UNSHOWN_KEPT), (200_000, 60_000_000, 2_000_000));
    }

    /// Looks at a table of so many stretches; says how many looks a round takes, with the rest after it.
    fn round(round: &mut Round, stretches: i64, dropped: u64, servers: u64) -> u64 {
        let mut looks = 0;
        for stretch in 1..=stretches {
            let (from, _) = round.next().unwrap();
            assert_eq!(from, (stretch - 1) * KEY_PAGES);
            let rest = round.note(from, if stretch == 1 { dropped } else { 0 }, stretch == stretches);
            if rest > 0 {
                round.rest(rest, servers);
            }
            looks += 1;
        }
        while round.rest > 0 {
            assert_eq!(round.next(), None);
            looks += 1;
        }
        looks
    }

    #[test]
    fn a_round_that_found_little_is_followed_by_a_rest() {
        let mut keys = Round::default();
        let most = KEYS_MANY - 1;
        for (stretches, dropped, servers, looks) in [
            (4, KEYS_MANY, 1, 4),
            (4, most, 0, 4 + 4 * KEY_REST),
            (4, 0, 3, 4 + 12 * KEY_REST),
            (500, 0, 1, 500 + KEY_REST_MAX),
            (1, 0, 1, 1),
        ] {
            assert_eq!(
                round(&mut keys, stretches, dropped, servers),
                looks,
                "{stretches} {dropped} {servers}"
            );
        }
    }

    #[test]
    fn keys_that_were_made_only_to_be_locked_are_looked_at_seldom() {
        let mut keys = Round::default();
        let with_unheld = (0..2 * SELDOM).filter(|_| {
            let (from, with_unheld) = keys.next().unwrap();
            assert_eq!(keys.note(from, 0, true), 0, "nobody has to say how many servers there are");
            with_unheld
        });
        assert_eq!(with_unheld.count(), 2);
    }
}
