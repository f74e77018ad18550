//! The connection to Redis: one for all requests, which are pipelined on it. It is made anew when it is lost
//! or the primary has moved. Nothing is sent again here: only the caller knows whether that is safe.

mod introduction;

use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline};

use self::introduction::NEXT;
use crate::address::Address;
use crate::durability::Durability;
use crate::error::RedisError;
use crate::finder::{Finder, Place};
use crate::said::{Request, Said, each, sent};
use crate::scripts::Script;
use crate::survey::Survey;
use crate::times::Times;

/// How long connecting may take, on a machine that is busy with other things.
pub const CONNECT: Duration = Duration::from_secs(20);
/// How long an answer may take. After that the connection counts as lost.
const ANSWER: Duration = Duration::from_secs(30);

/// How often to connect, in all, while other links keep finding another run of Redis meanwhile.
const TRIES: usize = 3;

/// What is known of the store once a connection was introduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The store's secret.
    pub secret: [u8; 16],
    /// How many partitions the store is divided into.
    pub partitions: u16,
    /// The durability that Redis's settings give.
    pub durability: Durability,
    /// Whether the account may use `MULTI` and `EXEC`.
    pub transacts: bool,
}

/// The connection to one partition of the store.
pub struct Link {
    finder: Arc<Finder>,
    base: String,
    /// The key prefixes of [the next partitions](NEXT).
    next_bases: Vec<String>,
    partition: u16,
    /// How many partitions a new store is to have, if the address says so.
    wanted: Option<u16>,
    replicas: u32,
    times: Arc<Times>,
    sums: OnceLock<Vec<String>>,
    /// Whether this partition of the store has been reached before, by any of its links.
    was_there: Arc<AtomicBool>,
    now: Mutex<Now>,
    /// Held while a connection is made, so that only one is made at a time.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Now {
    connection: Option<Open>,
    /// The secret of the other store whose place this store is about to take.
    heir: Option<[u8; 16]>,
    /// The connection's number, so that a lost connection is dropped only once.
    number: u64,
    known: Option<Known>,
    /// How often no connection could be made, and the reason the last time.
    failures: u64,
    failure: Option<RedisError>,
}

/// A connection that was introduced.
struct Open {
    connection: MultiplexedConnection,
    client: Client,
    place: Place,
    /// The number of its [era](crate::era::Era).
    era: u64,
}

impl Link {
    /// A link to the first partition of the store at `address`, not connected yet.
    pub fn new(address: &Address, times: Times) -> Result<Self, RedisError> {
        Ok(Self {
            finder: Arc::new(Finder::new(address)?),
            base: address.base(),
            next_bases: NEXT.map(|partition| address.base_of(partition)).collect(),
            partition: 0,
            wanted: address.partitions(),
            replicas: address.replicas(),
            times: Arc::new(times),
            sums: OnceLock::new(),
            was_there: Arc::default(),
            now: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        })
    }

    /// A link to another partition of the store, not connected yet. All partitions have one secret, and share
    /// the latest time seen.
    pub fn to_partition(&self, address: &Address, partition: u16) -> Self {
        self.beside_at(address.base_of(partition), partition)
    }

    fn beside_at(&self, base: String, partition: u16) -> Self {
        Self {
            finder: Arc::new(self.finder.to_partition(partition)),
            base,
            partition,
            times: Arc::new(self.times.beside()),
            was_there: Arc::default(),
            ..self.beside()
        }
    }

    /// Another link to the same partition. Should it have to make the store anew, it uses the same secret.
    pub fn beside(&self) -> Self {
        let (known, heir) = {
            let now = self.now();
            (now.known, now.heir)
        };
        Self {
            finder: Arc::clone(&self.finder),
            base: self.base.clone(),
            next_bases: self.next_bases.clone(),
            partition: self.partition,
            wanted: self.wanted,
            replicas: self.replicas,
            times: Arc::clone(&self.times),
            sums: OnceLock::new(),
            was_there: Arc::clone(&self.was_there),
            now: Mutex::new(Now { known, heir, ..Now::default() }),
            connecting: tokio::sync::Mutex::default(),
        }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the store, once it has been reached.
    pub fn known(&self) -> Option<Known> {
        self.now().known
    }

    /// The prefix of all keys of this partition.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The finder of this partition's primary.
    pub const fn finder(&self) -> &Arc<Finder> {
        &self.finder
    }

    /// What is known of the time in this partition.
    pub fn times(&self) -> &Times {
        &self.times
    }

    /// A client for the Redis that this link is connected to, to open other connections with; its address;
    /// and the era.
    pub async fn client(&self) -> Result<(Client, Place, u64), RedisError> {
        self.connection().await?;
        let now = self.now();
        let open = now.connection.as_ref().ok_or(RedisError::Silent)?;
        Ok((open.client.clone(), Place::clone(&open.place), open.era))
    }

    /// A call of a script, without the script's arguments.
    pub fn call(&self, script: Script) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        let sum = self.sums.get().and_then(|sums| sums.get(script as usize));
        command.arg(sum.map_or("", String::as_str)).arg(1).arg(&self.base);
        command
    }

    /// The connection, its number, and where it leads; connects first if necessary.
    pub async fn connection(&self) -> Result<(MultiplexedConnection, u64, Place), RedisError> {
        if let Some(found) = self.present() {
            return Ok(found);
        }
        let failures = self.now().failures;
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(found) = self.present() {
            return Ok(found);
        }
        // A caller that waited for another's attempt takes over its failure: each attempt may take long, and
        // many callers wait.
        let failed =
            Some(self.now()).filter(|now| now.failures != failures).and_then(|now| now.failure.clone());
        if let Some(failure) = failed {
            return Err(failure);
        }
        let made = self.make().await;
        if let Err(failure) = &made {
            let mut now = self.now();
            (now.failures, now.failure) = (now.failures + 1, Some(failure.clone()));
        }
        made
    }

    /// Connects anew, and again where other links have found another run of Redis meanwhile.
    async fn make(&self) -> Result<(MultiplexedConnection, u64, Place), RedisError> {
        for _ in 0..TRIES {
            if let Some(made) = self.try_to_make().await? {
                return Ok(made);
            }
        }
        Err(RedisError::Silent)
    }

    async fn try_to_make(&self) -> Result<Option<(MultiplexedConnection, u64, Place)>, RedisError> {
        let since = self.finder.era().number();
        let (mut connection, client, place) = self.fresh().await?;
        // Other callers wait for this attempt.
        let (known, run) = self.unless_it_leaves(&place, self.introduce(&mut connection, &place)).await?;
        let mut now = self.now();
        // Tenants' keys are derived from the secret: with another one they would be different keys.
        let is_heir = now.heir == Some(known.secret);
        if now.known.is_some_and(|before| before.secret != known.secret) && !is_heir {
            return Err(RedisError::Unsupported(
                "this address leads to another store than the one that was opened: restart the program to use it"
                    .to_owned(),
            ));
        }
        if now.known.is_some_and(|before| before.durability != known.durability) {
            tracing::warn!(
                durability = known.durability.words(),
                "Redis's settings have changed since the last connection, or it is another Redis"
            );
        }
        let Some(era) = self.finder.era().find(run, since) else { return Ok(None) };
        now.number += 1;
        now.known = Some(known);
        now.connection =
            Some(Open { connection: connection.clone(), client, place: Place::clone(&place), era });
        Ok(Some((connection, now.number, place)))
    }

    fn present(&self) -> Option<(MultiplexedConnection, u64, Place)> {
        let now = self.now();
        let open = now.connection.as_ref()?;
        let is_of_now = open.era == self.finder.era().number() && !self.finder.has_left(&open.place);
        is_of_now.then(|| (open.connection.clone(), now.number, Place::clone(&open.place)))
    }

    /// Announces that this store is about to take the place of the one with this secret: a new connection may
    /// find either secret.
    pub fn expect_heir(&self, secret: [u8; 16]) {
        self.now().heir = Some(secret);
    }

    /// Drops the connection of that number. Answers the era it was made in, unless it was dropped before.
    fn lose(&self, number: u64) -> Option<u64> {
        let mut now = self.now();
        let lost = if now.number == number { now.connection.take() } else { None };
        lost.map(|open| open.era)
    }

    /// Sends a request and answers the outcome of each of its commands. An error is the connection's.
    pub async fn send(&self, request: &Request) -> Result<Said, RedisError> {
        let (connection, number, place) = self.connection().await?;
        let sent = if self.finder.follows() {
            // Answers of a former primary are ignored: they may rest on writes that no other server ever saw.
            match select(pin!(self.finder.leaves(&place)), pin!(sent(connection, request))).await {
                Either::Left(_) => Err(RedisError::Silent),
                Either::Right((sent, _)) => sent,
            }
        } else {
            sent(connection, request).await
        };
        let any = |is_so: fn(&RedisError) -> bool| {
            sent.as_ref().is_ok_and(|said| said.iter().any(|said| said.as_ref().is_err_and(is_so)))
        };
        if any(RedisError::is_another_node) {
            // The other links' connections lead to the same wrong server.
            if let Some(era) = self.lose(number) {
                self.finder.era().end(era);
            }
        } else if sent.as_ref().is_err_and(RedisError::is_lost_connection) || any(RedisError::is_emptied) {
            // An emptied store is made anew by the next connection's introduction.
            self.lose(number);
        }
        sent
    }

    /// Does `work` with the Redis at `place`, and gives it up when the primary is found elsewhere.
    async fn unless_it_leaves<T>(
        &self,
        place: &Place,
        work: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        match select(pin!(self.finder.leaves_or_never(place)), pin!(work)).await {
            Either::Left(_) => Err(RedisError::Silent),
            Either::Right((done, _)) => done,
        }
    }

    /// A new connection without an introduction, its client, and where it leads.
    async fn fresh(&self) -> Result<(MultiplexedConnection, Client, Place), RedisError> {
        let (client, place) = self.finder.find().await?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(ANSWER));
        let connecting = async { Ok(client.get_multiplexed_async_connection_with_config(&config).await?) };
        // A server that does not answer may lose its primary role while it is waited for.
        let connection = self.unless_it_leaves(&place, connecting).await?;
        Ok((connection, client, place))
    }

    /// Reads how Redis is configured.
    pub async fn survey(&self) -> Result<Survey, RedisError> {
        let (mut connection, _, place) = self.fresh().await?;
        let () = redis::cmd("PING").exec_async(&mut connection).await?;
        Ok(self.survey_on(&mut connection, &place).await)
    }

    async fn survey_on(&self, connection: &mut MultiplexedConnection, place: &str) -> Survey {
        Survey::of(connection, place, self.replicas, self.finder.follows()).await
    }

    /// How many partitions the store has, if one is there. Does not make a store.
    pub async fn partitions_there(&self) -> Result<u16, RedisError> {
        let (mut connection, ..) = self.fresh().await?;
        let mut asked = redis::cmd("HGET");
        asked.arg(format!("{}!", self.base)).arg("partitions");
        Ok(asked.query_async::<Option<u16>>(&mut connection).await?.unwrap_or(1))
    }

    /// Whether a store is there. Does not make one.
    pub async fn is_there(&self) -> Result<bool, RedisError> {
        let (mut connection, ..) = self.fresh().await?;
        self.is_there_by(&mut connection).await
    }

    async fn is_there_by(&self, connection: &mut MultiplexedConnection) -> Result<bool, RedisError> {
        Ok(redis::cmd("EXISTS").arg(format!("{}!", self.base)).query_async(connection).await?)
    }

    /// Loads the scripts into Redis again.
    pub async fn teach(&self) -> Result<(), RedisError> {
        let (mut connection, _, place) = self.connection().await?;
        self.unless_it_leaves(&place, self.load_scripts(&mut connection)).await
    }

    async fn load_scripts(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
        let mut pipeline = Pipeline::with_capacity(Script::ALL.len());
        for script in Script::ALL {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(script.text());
        }
        let sums = each(connection, &pipeline, Script::ALL.len()).await?;
        // The same text has the same digest, so the first ones stay valid.
        self.sums.get_or_init(|| sums);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::{CONNECT, Link, Times};
    use crate::address::Address;
    use crate::error::RedisError;

    fn link(port: u16) -> Link {
        Link::new(&Address::parse(&format!("redis://127.0.0.1:{port}")).unwrap(), Times::default()).unwrap()
    }

    /// Where the network drops every packet, each attempt takes its full time.
    #[tokio::test(start_paused = true)]
    async fn whoever_waits_while_no_connection_can_be_made_is_told_so_with_the_first() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let link = link(silent.local_addr().unwrap().port());
        let begun = Instant::now();
        let told = futures_util::future::join_all((0..5).map(|_| link.connection())).await;
        assert!(told.iter().all(Result::is_err));
        assert!(begun.elapsed() < 2 * CONNECT, "{:?}", begun.elapsed());
        // A later caller makes its own attempt.
        let begun = Instant::now();
        assert!(link.connection().await.is_err());
        assert!(begun.elapsed() >= CONNECT, "{:?}", begun.elapsed());
    }

    /// As much of a Redis of 2020 as is asked here: its `INFO` takes one section.
    async fn old_redis(listener: tokio::net::TcpListener) {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = client.read(&mut buffer).await {
            let asked = String::from_utf8_lossy(&buffer[..read]).into_owned();
            // Each command begins with the number of its words.
            for command in asked.split('*').skip(1) {
                let words: Vec<&str> = command.split("\r\n").skip(2).step_by(2).collect();
                let said = match words.as_slice() {
                    ["INFO", _] => {
                        let text = "redis_version:6.2.7\r\nrole:master\r\n";
                        format!("${}\r\n{text}\r\n", text.len())
                    }
                    ["INFO", ..] => "-ERR syntax error\r\n".to_owned(),
                    _ => "-ERR unknown command\r\n".to_owned(),
                };
                client.write_all(said.as_bytes()).await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn a_redis_that_is_too_old_is_told_to_be() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let link = link(listener.local_addr().unwrap().port());
        let told = tokio::select! {
            told = link.connection() => told.map(drop),
            () = old_redis(listener) => panic!("it hung up"),
        };
        let Err(RedisError::Unsupported(why)) = told else { panic!("{told:?}") };
        assert!(why.contains("Redis 6") && why.contains('7'), "{why}");
    }
}
