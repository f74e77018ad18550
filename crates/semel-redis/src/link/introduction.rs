//! The introduction of a connection: which Redis it leads to, and which store is there.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use redis::aio::MultiplexedConnection;
use semel_store::random;

use super::{Known, Link};
use crate::durability::Server;
use crate::error::RedisError;
use crate::said::{each, plain};
use crate::scripts::Script;
use crate::shortcut::may_transact;
use crate::values;

/// The partitions that are looked for where the first one is gone. Their slots lie a quarter of all slots
/// apart (`address.rs`), so in a cluster of up to four primaries one of them is on another node than the
/// first.
pub(super) const NEXT: RangeInclusive<u16> = 1..=3;
/// The store layout that this program reads and writes.
const LAYOUT: &str = "2";
/// The layout of a divided store: an older program must refuse it rather than write to one part.
const LAYOUT_DIVIDED: &str = "3";
/// The oldest supported major version of Redis.
const OLDEST: u32 = 7;

impl Link {
    /// Introduces a connection: checks the Redis server, loads the scripts, and opens the store, checking its
    /// layout. Answers what is known then, and the run of Redis.
    pub(super) async fn introduce(
        &self,
        connection: &mut MultiplexedConnection,
        place: &str,
    ) -> Result<(Known, String), RedisError> {
        // One section per `INFO`: servers too old for this program accept no more.
        let mut asked = redis::pipe();
        asked.cmd("INFO").arg("server").cmd("INFO").arg("replication");
        let server = Server::of(&each(connection, &asked, 2).await?.concat());
        if server.version < OLDEST {
            return Err(RedisError::Unsupported(format!(
                "this is Redis {}: the store needs {OLDEST} or later",
                server.version
            )));
        }
        if server.is_cluster != self.finder.is_in_cluster() {
            return Err(RedisError::Unsupported(
                if server.is_cluster {
                    "this Redis is a node of a cluster: use the address redis+cluster://HOST:PORT"
                } else {
                    "this Redis is not a node of a cluster: use the address redis://HOST:PORT"
                }
                .to_owned(),
            ));
        }
        if self.finder.follows() && !server.is_primary {
            return Err(RedisError::Astray(
                "the server named as the primary is not a primary yet".to_owned(),
            ));
        }
        if server.is_replica {
            return Err(RedisError::Replica);
        }
        self.load_scripts(connection).await?;
        self.is_alone(connection).await?;
        // By its full text: Redis may forget loaded scripts at any time.
        let mut open = redis::cmd("EVAL");
        open.arg(Script::Open.text()).arg(1).arg(&self.base);
        // If Redis came back empty, the store is made anew with the same secret.
        let secret = self.known().map_or_else(random::secret, |known| known.secret);
        open.arg(LAYOUT).arg(&secret[..]).arg(&server.run);
        let wanted = self.known().map(|known| known.partitions).or(self.wanted);
        open.arg(wanted.map(|wanted| wanted.to_string()).unwrap_or_default());
        open.arg(LAYOUT_DIVIDED).arg(self.partition);
        self.times.push_run(&mut open, &server.run);
        let opened = plain(connection.send_packed_command(&open).await)?;
        let mut opened = values::Values::of(opened.map_err(RedisError::introduced)?)?;
        let layout = values::text(opened.take()?)?;
        if ![LAYOUT, LAYOUT_DIVIDED].contains(&layout.as_str()) {
            return Err(RedisError::Unsupported(format!(
                "the store has layout {layout}, but this program knows {LAYOUT} and {LAYOUT_DIVIDED}: use the program that wrote it, or a later one"
            )));
        }
        let secret = values::bytes(opened.take()?)?;
        let partitions: u16 = values::number(opened.take()?)?;
        let is_new = values::number::<u8>(opened.take()?)? == 1;
        if self.was_there.swap(true, Ordering::AcqRel) && is_new {
            tracing::error!(
                store = %self.base,
                "Redis has lost all that was stored in it: it was emptied (FLUSHALL, FLUSHDB), or came back without its data. \
                 The store starts over, empty: jobs that were acknowledged will not run, and their keys are free. If the data \
                 can be brought back (an append-only file, a snapshot, a replica), stop all servers, bring it back and start \
                 them again; otherwise enqueue the missing jobs again. `semel doctor` with that store says what a restart \
                 loses"
            );
        }
        if let Some(wanted) = wanted.filter(|wanted| *wanted != partitions) {
            return Err(RedisError::Unsupported(format!(
                "the store has {partitions} partitions, not {wanted}, and their number cannot change: leave ?partitions= and \
                 --partitions out, or name another store with ?prefix="
            )));
        }
        let secret = secret.try_into().map_err(|_| RedisError::Answer("a secret has 16 bytes"))?;
        let durability = self.survey_on(connection, place).await.durability();
        let known = Known { secret, partitions, durability, transacts: may_transact(connection).await };
        Ok((known, server.run))
    }

    /// Refuses to make a store where the first partition, which describes the whole store, is gone and others
    /// are still there.
    async fn is_alone(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
        if self.partition != 0 || self.known().is_some() {
            return Ok(());
        }
        // An account limited to the first partition has an undivided store; what else it may not do, the
        // script finds out.
        let unless_forbidden = |told: Result<bool, RedisError>, instead| match told {
            Err(error) if error.is_forbidden() => Ok(instead),
            told => told,
        };
        if unless_forbidden(self.is_there_by(connection).await, true)? {
            return Ok(());
        }
        for (place, base) in NEXT.zip(&self.next_bases) {
            let is_next_there = self.beside_at(base.clone(), place).is_there().await;
            // The first partition is made first: another server may have made the whole store meanwhile.
            if unless_forbidden(is_next_there, false)? && !self.is_there_by(connection).await? {
                return Err(RedisError::Unsupported(
                    "the store's first partition is gone, but others are still there, so no new store is made. Bring back the \
                     data of the node that has it; or, to start with an empty store, name another with ?prefix=, or delete \
                     what is left of this one"
                        .to_owned(),
                ));
            }
        }
        Ok(())
    }
}
