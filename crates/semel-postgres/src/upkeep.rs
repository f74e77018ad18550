//! Housekeeping, a bounded piece at a time.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use deadpool_postgres::Object;
use semel_core::draft::Reads;
use semel_core::limits::RETENTION_DEFAULT_S;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use crate::begin::Begin;
use crate::connect::ask;
use crate::error::PostgresError;
use crate::server::given_back;
use crate::store::Shared;
use crate::teller;
use crate::values::Params;

/// Expired heads deleted at a time.
const FORGET_MAX: i32 = 500;
/// Counter rows folded at a time.
const FOLD_MAX: i32 = 10_000;
/// How long folding takes if the table is full of rows that are gone, but that some transaction can still see.
/// For some time nothing is looked for where they are: until they are removed, new rows come behind them.
const FOLD_LONG: Duration = Duration::from_millis(20);
/// How many log records with events are kept, and as many without events; older ones are dropped. More than
/// those among which a commit is looked for whose answer was lost.
const RECORDS_KEPT: i64 = 200_000;
/// How many records with events are kept, at most, while they cannot be shown because an older transaction is
/// still open.
const UNSHOWN_KEPT: i64 = 10 * RECORDS_KEPT;
/// How long after it could be shown a record is kept at least, in microseconds: readers that had to wait for
/// it have that time to read it.
const SHOWN_FOR: i64 = 60_000_000;
/// Records with events, and records without, dropped at a time.
const RECORDS_MAX: i64 = 50_000;
/// One run in this many also trims the log and drops relayed outbox entries. One round through the table of
/// keys in this many also drops keys that were made only to be locked.
const SELDOM: u32 = 64;
/// How long keys that nobody holds are kept, in microseconds: so long that no decision still under way has
/// seen an older key of the same name, and takes the new one for it.
const KEY_KEPT: i64 = 3_600_000_000;
/// How often deleting everything is tried.
const CLEAR_TRIES: u32 = 32;
/// How long outbox entries are kept after they were relayed, in seconds: as long as a finished job.
const OUTBOX_KEPT: i64 = RETENTION_DEFAULT_S.cast_signed();
/// Outbox entries dropped at a time.
const ENTRIES_MAX: u64 = 10_000;
/// Pages of the table of keys that one run goes through, from where the last one ended. An index of unheld
/// keys is no alternative: each commit that writes a key would have to write all indexes of the table.
const KEY_PAGES: i64 = 1_024;
/// A run that found this many keys to drop is followed by the next at once.
const KEYS_MANY: u64 = 1_000;

/// How many runs per run of the last round leave the table of keys alone, if little was found in it: the
/// table may be far larger than the part in use, and each run takes up a piece of the database's cache.
const KEY_REST: u64 = 7;
/// The most runs that leave it alone: at two a second, a quarter of an hour.
const KEY_REST_MAX: u64 = 1_800;

/// Where housekeeping is in the table of keys.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// The page at which it continues.
    page: i64,
    /// How many rounds it has completed.
    number: u32,
    /// Keys dropped in this round.
    dropped: u64,
    /// The number of runs that still leave the table alone.
    rest: u64,
}

impl Round {
    /// Returns the first page to look at, and whether keys made only to be locked are included; `None` while
    /// it rests.
    fn next(&mut self) -> Option<(i64, bool)> {
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        Some((self.page, self.number % SELDOM == SELDOM - 1))
    }

    /// Records a run from page `from` on. `is_end` says that there are no more pages. Returns for how many
    /// runs a single server would now leave the table alone.
    fn note(&mut self, from: i64, dropped: u64, is_end: bool) -> u64 {
        self.dropped += dropped;
        self.page = from + KEY_PAGES;
        if !is_end {
            return 0;
        }
        // A table that one run goes through costs next to nothing.
        let is_worth_a_rest = from > 0 && self.dropped < KEYS_MANY;
        let looks = self.page.unsigned_abs() / KEY_PAGES.unsigned_abs();
        *self = Self { number: self.number.wrapping_add(1), ..Self::default() };
        if is_worth_a_rest { looks * KEY_REST } else { 0 }
    }

    /// Rests for so many runs times the number of servers, so that together they look no more often than one
    /// alone.
    fn rest(&mut self, looks: u64, servers: u64) {
        self.rest = (looks * servers.max(1)).min(KEY_REST_MAX);
    }
}

/// How far the log could be shown, at two moments some time apart: the lowest transaction number then open.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// The time of the later moment.
    at: i64,
    earlier: i64,
    later: i64,
}

impl Shown {
    /// Records how far it can be shown now. Returns how far it could be some time ago.
    fn look(&mut self, now: i64, running: i64) -> i64 {
        if now.saturating_sub(self.at) >= SHOWN_FOR {
            *self = Self { at: now, earlier: self.later, later: running };
        }
        self.earlier
    }
}

impl Shared {
    /// Runs a piece of housekeeping. Returns whether more is waiting.
    pub(crate) async fn maintain(&self) -> Result<bool, PostgresError> {
        let now = self.load(&Reads::default()).await?.now.as_micros();
        let connection = self.connection().await?;
        let kept = self.heard(&connection, self.keep_house(&connection, now)).await;
        given_back(connection, kept)
    }

    /// The same, on a given connection.
    async fn keep_house(&self, connection: &Object, now: i64) -> Result<bool, PostgresError> {
        let mut params = Params::default();
        params.number(now);
        params.push(FORGET_MAX, Type::INT4);
        let forgotten =
            ask(connection, &format!("SELECT {}($1, $2)", self.name("forget_due")), &params).await?;
        let forgotten: i32 = forgotten.first().ok_or(PostgresError::Answer("upkeep"))?.try_get(0)?;
        let mut more = forgotten >= FORGET_MAX;
        more |= self.fold(connection).await? >= FOLD_MAX;
        more |= self.drop_keys(connection, now - KEY_KEPT).await?;
        if self.upkeep.fetch_add(1, Ordering::Relaxed) % SELDOM == SELDOM - 1 {
            if self.drop_records(connection, now).await? {
                // The next run does this again; other work has its turn before.
                self.upkeep.store(SELDOM - 1, Ordering::Relaxed);
            }
            if self.drop_relayed(connection).await? {
                // The next run does this again.
                self.upkeep.store(SELDOM - 1, Ordering::Relaxed);
                more = true;
            }
        }
        Ok(more)
    }

    /// Folds a piece of the counters' rows. Returns how many.
    async fn fold(&self, connection: &Object) -> Result<i32, PostgresError> {
        let fold = || self.fold.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = *fold();
        let from = begin.from();
        let mut params = Params::default();
        params.push(FOLD_MAX, Type::INT4);
        params.number(from.unwrap_or(0));
        let sql = format!("SELECT folded, page FROM {}($1, $2)", self.name("fold"));
        let began = Instant::now();
        let rows = ask(connection, &sql, &params).await?;
        let row = rows.first().ok_or(PostgresError::Answer("fold"))?;
        let folded = row.try_get(0)?;
        let (page, took) = (row.try_get(1)?, began.elapsed());
        *fold() = match from {
            Some(_) => begin.moved_to(page),
            None if took > FOLD_LONG => Begin::at(page, took),
            None => Begin::default(),
        };
        Ok(folded)
    }

    /// Drops keys in one stretch of their table that nobody has held since `before`. Returns whether there
    /// were many.
    async fn drop_keys(&self, connection: &Object, before: i64) -> Result<bool, PostgresError> {
        let next = self.round.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((from, with_unheld)) = next else { return Ok(false) };
        let mut params = Params::default();
        params.number(before);
        params.push(format!("({from},0)"), Type::TEXT);
        params.push(format!("({},0)", from + KEY_PAGES), Type::TEXT);
        params.number(from + KEY_PAGES);
        // Keys made only to be locked have no time in them, and a transaction that begins again must find its
        // own.
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
            // The keys are dropped, even if the servers cannot be counted.
            let servers = teller::listeners_by(connection, &self.schema).await.unwrap_or(1);
            self.round.lock().unwrap_or_else(PoisonError::into_inner).rest(rest, servers);
        }
        Ok(!is_end && gone >= KEYS_MANY)
    }

    /// Drops the oldest log records if there are too many. Returns whether more are left.
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
        // Dropping records without events does not move `dropped`, so readers are not told.
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

    /// Drops outbox entries that were relayed long ago. Returns whether more are left.
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
        // TRUNCATE locks one table after the other, which may deadlock with other servers' commits.
        for _ in 0..CLEAR_TRIES {
            // Statements sent together form one transaction.
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

    /// Goes through a table of this many stretches. Returns how many runs a round takes, including the rest
    /// after it.
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
