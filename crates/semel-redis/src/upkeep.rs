//! Housekeeping, a bounded piece at a time.

use std::sync::atomic::Ordering;

use redis::Cmd;
use semel_core::draft::Reads;
use semel_core::job::Head;
use semel_core::state::State;
use semel_core::unique::UniqueKey;

use crate::error::RedisError;
use crate::scripts::Script;
use crate::store::Shared;
use crate::values::{bytes, number};

/// Heads forgotten by one script.
const FORGET_MAX: i64 = 500;
/// Most records of the log that are kept; older ones are dropped.
const RECORDS_KEPT: u64 = 200_000;
/// About how many bytes of events are kept: one record has all events of a commit, and Redis keeps them in
/// memory.
const BYTES_KEPT: u64 = 256 << 20;
/// Pages of a thousand keys that one script scans when everything is deleted.
const CLEAR_PAGES: u32 = 20;
/// The same for the second scan, when little is left: about a second where the keys belong to others.
const CLEAR_LAST_PAGES: u32 = 2_000;
/// One of this many rounds of housekeeping also trims the log.
const SELDOM: u32 = 64;

impl Shared {
    pub(crate) fn upkeep_call(&self, what: &str) -> Cmd {
        let mut command = self.link.call(Script::Upkeep);
        self.push_time(&mut command);
        command.arg(what);
        command
    }

    /// Does a bounded piece of housekeeping. Answers whether more is waiting.
    pub(crate) async fn maintain(&self) -> Result<bool, RedisError> {
        self.link.connection().await?;
        let mut forget = self.upkeep_call("forget");
        forget.arg(FORGET_MAX);
        let forgotten: i64 = number(self.look(forget).await?)?;
        if self.upkeep.fetch_add(1, Ordering::Relaxed) % SELDOM == SELDOM - 1 {
            self.trim("trim").await?;
        }
        Ok(forgotten >= FORGET_MAX)
    }

    /// Drops the oldest records of a log beyond its bounds.
    pub(crate) async fn trim(&self, what: &str) -> Result<(), RedisError> {
        let mut trim = self.upkeep_call(what);
        trim.arg(RECORDS_KEPT).arg(BYTES_KEPT);
        self.look(trim).await.map(drop)
    }

    /// Deletes everything, in pieces where there is much: Redis serves nothing else meanwhile, and reports
    /// itself busy after five seconds.
    pub(crate) async fn clear(&self) -> Result<(), RedisError> {
        self.link.connection().await?;
        if self.clear_by(CLEAR_PAGES).await? > 1 {
            // What other servers write between two pieces may be deleted only in part, leaving a job that is
            // filed nowhere. A single script deletes it whole.
            self.clear_by(CLEAR_LAST_PAGES).await?;
        }
        Ok(())
    }

    /// Scans all keys once, `pages` pages per script, and answers how many scripts that took.
    async fn clear_by(&self, pages: u32) -> Result<u32, RedisError> {
        let (mut at, mut pieces) = (b"0".to_vec(), 0);
        loop {
            let mut clear = self.upkeep_call("clear");
            clear.arg(&at).arg(pages);
            at = bytes(self.look(clear).await?)?;
            pieces += 1;
            if at == b"0" {
                return Ok(pieces);
            }
        }
    }

    /// The ended holders of a key, including those that another outlives.
    pub(crate) async fn ended_holders(&self, key: UniqueKey) -> Result<Vec<Head>, RedisError> {
        let loaded = self.ask_for(&Reads::default(), &[(key, true)], &[]).await?;
        let held = loaded.found.into_iter().flatten().flat_map(|held| held.holders);
        Ok(held.map(|stored| stored.head).filter(|head| State::is_finished(head.state)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{BYTES_KEPT, RECORDS_KEPT};

    #[test]
    fn the_page_says_how_much_of_the_log_is_kept() {
        let page = include_str!("../../../docs/guide/events.md");
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        for said in [
            "In Redis it is the newest 200,000 commits that told something",
            "of these no more than have about 256 MiB of events",
        ] {
            assert!(page.contains(said), "{said}");
        }
        assert_eq!((RECORDS_KEPT, BYTES_KEPT >> 20), (200_000, 256));
    }
}
