//! How a verb reaches a server: the one that was named, the one that owns the store, or one inside this process. All
//! verbs talk HTTP to it, so there is one path and not two.

use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, Instant};

use semel_client::{Bytes, Client, ClientError, HeaderMap, Method};
use semel_core::retention::Retention;
use semel_ojs::Templates;
use semel_postgres::{Postgres, PostgresError};
use semel_redis::{Redis, RedisError};
use semel_server::auth::Tokens;
use semel_server::{Config, TemplateSet};
use semel_sqlite::lock;
use serde_json::Value;

pub use semel_store::random::text as random;

use crate::config::{Settings, Target};
use crate::failure::{Exit, Failure};
use crate::host::{Host, Opened};
use crate::place::Place;
use crate::verb::templates;

/// How long to wait for another command that holds the store briefly.
const OWNER_PATIENCE: Duration = Duration::from_secs(5);
const OWNER_POLL: Duration = Duration::from_millis(50);
/// How often to check again while a server other than the owner has the address recorded beside the store.
const STRANGER_POLL: Duration = Duration::from_millis(500);
/// How long to wait for an answer: longer than the minute after which a server ends any request itself, so
/// that its own answer, which says what became of the request, comes first.
const ANSWER_PATIENCE: Duration = Duration::from_secs(65);

/// A connection to a server, which may run inside this process.
pub struct Link {
    /// The client to talk with.
    pub client: Client,
    token: Option<String>,
    ca: Option<Vec<u8>>,
    host: Option<Host>,
}

/// What a verb needs a store for: decides what happens if there is none yet, and whether due work is done
/// while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Put something in: a missing store is created.
    Put,
    /// Change what is there: a missing store is an error, for a new one would be empty.
    Change,
    /// Only read; a missing store is an error, as for [`Change`](Self::Change). What is due stays due: a
    /// reader must decide nothing in the store by its own clock, templates or retention.
    Look,
    /// Ask what would happen; a missing store is taken as an empty one in memory. What is due stays due.
    Imagine,
}

impl Purpose {
    /// Whether nothing may be written.
    const fn only_looks(self) -> bool {
        matches!(self, Self::Look | Self::Imagine)
    }
}

impl Link {
    /// Reaches a server.
    ///
    /// # Errors
    /// When there is no server, or the store cannot be opened.
    pub async fn open(settings: &Settings, purpose: Purpose) -> Result<Self, Failure> {
        let place = match &settings.target {
            Target::Server(url) => return Self::to(url, settings),
            Target::Store(place) => place,
        };
        if let Place::Postgres(address) = place {
            // Servers share a database, so there is no owner to find.
            let is_there = is_in_database(address).await?;
            return Self::make(is_there, place, purpose, settings).await;
        }
        if let Place::Redis(address) = place {
            let is_there = purpose == Purpose::Put || {
                let found = Redis::is_there(address).await;
                found.map_err(|error| no_redis(address, &error))?
            };
            return Self::make(is_there, place, purpose, settings).await;
        }
        let Place::Sqlite(path) = place else {
            return Err(Failure::usage("a store in memory exists only inside its server")
                .next("name the server with --server URL, or a file with --store sqlite:PATH"));
        };
        let deadline = Instant::now() + OWNER_PATIENCE;
        loop {
            match lock::owner(path) {
                Some(owner) if owner.server().is_some() => {
                    let link = Self::to(&owner.word, settings)?;
                    match link.leads_to_the_owner_of(path, owner.instance.as_deref()).await {
                        Ok(()) => return Ok(link),
                        // The address may be a former owner's, until the present owner has written its own.
                        Err(_) if Instant::now() < deadline => tokio::time::sleep(STRANGER_POLL).await,
                        Err(failure) => return Err(failure),
                    }
                }
                // An owner that does not serve (yet): a server that is starting, or another command.
                Some(owner) if Instant::now() >= deadline => {
                    return Err(Failure::new(Exit::Unreachable, format!("{} is in use", path.display()))
                        .next(format!("{} has it open; wait until it is done, or stop it", owner.word)));
                }
                Some(_) => tokio::time::sleep(OWNER_POLL).await,
                None => {
                    let is_there = path.exists();
                    // A store that is missing, and that this verb must not create, is not waited for.
                    let may_wait = is_there || purpose == Purpose::Put;
                    match Self::make(is_there, place, purpose, settings).await {
                        // Another process took the store first.
                        Err(failure)
                            if may_wait && failure.exit == Exit::Unreachable && Instant::now() < deadline =>
                        {
                            tokio::time::sleep(OWNER_POLL).await;
                        }
                        linked => return linked,
                    }
                }
            }
        }
    }

    fn to(url: &str, settings: &Settings) -> Result<Self, Failure> {
        let token = settings.token()?.map(|token| token.expose().to_owned());
        let ca = settings.ca.as_deref().map(|path| {
            std::fs::read(path).map_err(|error| {
                Failure::usage(format!("cannot read the certificates in {}: {error}", path.display()))
            })
        });
        let ca = ca.transpose()?;
        Ok(Self { client: client(url, token.as_deref(), ca.as_deref())?, token, ca, host: None })
    }

    /// Checks that the server is the one that recorded its address beside the store. Another server may have
    /// that address: on this machine, if the owner runs in a container, or since the owner was killed. Asks
    /// without the token, which is for the owner alone.
    async fn leads_to_the_owner_of(&self, path: &Path, instance: Option<&str>) -> Result<(), Failure> {
        let Some(instance) = instance else { return Ok(()) };
        let url = self.client.base_url();
        match client(url, None, self.ca.as_deref())?.get_json("/live").await {
            Ok(told) if told["instance"] == instance => return Ok(()),
            // Whatever another server answers on a path that it does not know.
            Ok(_) => {}
            Err(ref error @ (ClientError::Status { .. } | ClientError::Protocol { .. }))
                if !error.passes() => {}
            Err(error) => return Err(error.into()),
        }
        let what =
            format!("{} is in use, and the server at {url} is not the one that has it open", path.display());
        Err(Failure::new(Exit::Unreachable, what).next(
            "run this where its server runs, such as in its container, or name that server with --server URL",
        ))
    }

    async fn make(
        is_there: bool,
        place: &Place,
        purpose: Purpose,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let (templates, retention) = (templates::of(settings)?, settings.retention.clone());
        match purpose {
            _ if is_there => {}
            Purpose::Put => {}
            Purpose::Imagine => return Self::inside(&Place::Memory, templates, retention).await,
            Purpose::Change | Purpose::Look => {
                return Err(Failure::new(Exit::Unreachable, format!("there is no store at {place}")).next(
                    "name the store with --store or its server with --server URL, or create one: semel serve",
                ));
            }
        }
        if purpose.only_looks() {
            return Self::of(Opened::open(place).await?.keeping(retention).only_to_look(), templates).await;
        }
        Self::inside(place, templates, retention).await
    }

    /// Starts a server in this process, on a free local port. It applies these templates and this retention,
    /// as the server that owns the store does: a job is the same whichever of them it comes through.
    ///
    /// # Errors
    /// When the store cannot be opened.
    pub async fn inside(place: &Place, templates: Templates, retention: Retention) -> Result<Self, Failure> {
        Self::of(Opened::open(place).await?.keeping(retention), templates).await
    }

    /// Like [`inside`](Self::inside), on an open store.
    async fn of(opened: Opened, templates: Templates) -> Result<Self, Failure> {
        // The token keeps other users of this machine out of a server that lives for one command.
        let token = random();
        let templates = TemplateSet::new(templates);
        let config =
            Config { tokens: Tokens::new([&token]), templates, tells_causes: true, ..Config::default() };
        let host = Host::start(opened, "127.0.0.1:0", config).await?;
        let client = client(&host.url(), Some(&token), None)?;
        Ok(Self { client, token: Some(token), ca: None, host: Some(host) })
    }

    /// Another client of the same server, with connections of its own.
    ///
    /// # Errors
    /// Only those that the first client would have met.
    pub fn another(&self) -> Result<Client, Failure> {
        client(self.client.base_url(), self.token.as_deref(), self.ca.as_deref())
    }

    /// Stops the server inside this process, if there is one.
    ///
    /// # Errors
    /// When this process's server had failed.
    pub async fn close(self) -> Result<(), Failure> {
        // The server would wait for the client's idle connections.
        drop(self.client);
        match self.host {
            Some(host) => host.stop().await,
            None => Ok(()),
        }
    }

    /// Runs `talk` with a client of a server, then closes what was opened for it, whatever the outcome.
    ///
    /// # Errors
    /// Those of [`open`](Self::open) and of `talk`.
    pub async fn with<T>(
        settings: &Settings,
        purpose: Purpose,
        talk: impl AsyncFnOnce(&Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let link = Self::open(settings, purpose).await?;
        let said = match &link.host {
            None => talk(&link.client).await,
            // A failed store of this process's own server stays failed, however long one retries.
            Some(host) => {
                let said = tokio::select! {
                    biased;
                    said = talk(&link.client) => said,
                    why = host.broken() => Err(Failure::failed(why).next(
                        "check the disk, then try again; if the file is damaged, restore a backup: semel restore",
                    )),
                };
                said.map_err(|failure| failure.of_store(&host.url(), &settings.store.to_string()))
            }
        };
        let closed = link.close().await;
        said.and_then(|value| closed.map(|()| value))
    }
}

/// Whether there is a store in a database. A store with an earlier schema is refused: its servers decide when
/// it is migrated, not a command that looks into it.
///
/// # Errors
/// When the database cannot be asked, or its schema has an earlier version.
pub async fn is_in_database(address: &semel_postgres::Address) -> Result<bool, Failure> {
    let status = Postgres::status(address).await.map_err(|error| no_postgres(address, &error))?;
    if status.found > 0 && !status.pending.is_empty() {
        return Err(Failure::failed(format!("{address} has the schema of an earlier version")).next(
            "bring it up to date first: semel migrate run --store ...; or name its server with --server URL",
        ));
    }
    Ok(status.found > 0)
}

/// The failure for a Redis that could not be asked or opened. Its exit code tells an unreachable Redis from
/// one that refuses; it says what to do where the error does not say it itself.
pub fn no_redis(address: &semel_redis::Address, error: &RedisError) -> Failure {
    let failure = no_store(address, error, error.passes());
    match error {
        RedisError::Redis(_) | RedisError::Silent | RedisError::Astray(_) => {
            failure.next(next_at_redis(&error.to_string()))
        }
        _ => failure,
    }
}

/// What to do about this error message of a Redis.
fn next_at_redis(said: &str) -> &'static str {
    if said.contains("MISCONF") {
        "Redis cannot write its snapshot, and refuses writes until it can: free space on its disk and look at its log; it recovers by itself \
         after the next successful BGSAVE"
    } else if said.contains("OOM") {
        "Redis is out of memory: raise its maxmemory, or store less other data in it, and keep maxmemory-policy noeviction"
    } else {
        "check that Redis is up, and that its user may run scripts on the store's keys"
    }
}

/// The failure for a PostgreSQL that could not be asked or opened, as [`no_redis`] has it.
pub fn no_postgres(address: &semel_postgres::Address, error: &PostgresError) -> Failure {
    let is_silent = match error {
        PostgresError::Pool(_) => true,
        // A server that refuses with a code is up: the password is wrong, say, or the database does not
        // exist.
        PostgresError::Postgres(cause) => cause.code().is_none() && error.is_lost_connection(),
        _ => false,
    };
    let failure = no_store(address, error, is_silent);
    match error {
        PostgresError::Postgres(cause) => {
            failure.next(next_at_postgres(cause.code().map_or("", |code| code.code())))
        }
        PostgresError::Pool(_) => failure.next(next_at_postgres("")),
        _ => failure,
    }
}

/// What to do about a PostgreSQL error with this SQLSTATE, or with none.
fn next_at_postgres(code: &str) -> &'static str {
    match code {
        "53300" => {
            "PostgreSQL has no connections left: raise its max_connections (or this user's CONNECTION LIMIT), or let fewer servers and \
             programs connect; pg_stat_activity shows who is connected"
        }
        "57014" => {
            "a statement was cancelled, because it took longer than statement_timeout or somebody cancelled it: raise the timeout (ALTER ROLE \
             ... SET statement_timeout), and look in pg_stat_activity for what it was waiting for"
        }
        _ => "check that the database is up, and that its user may create a schema in it",
    }
}

fn no_store(address: impl Display, error: impl Display, is_silent: bool) -> Failure {
    let exit = if is_silent { Exit::Unreachable } else { Exit::Failed };
    Failure::new(exit, format!("{address}: {error}"))
}

fn client(url: &str, token: Option<&str>, ca: Option<&[u8]>) -> Result<Client, Failure> {
    let client = Client::new(url)?.with_timeout(ANSWER_PATIENCE);
    let client = match ca {
        Some(certificates) => client.with_ca(certificates)?,
        None => client,
    };
    Ok(match token {
        Some(token) => client.with_token(token)?,
        None => client,
    })
}

/// Sends a request with a method, or a body, that the client has no shorthand for.
///
/// # Errors
/// Those of the client.
pub async fn send(client: &Client, method: Method, path: &str, body: &Value) -> Result<Value, Failure> {
    let body = Some(Bytes::from(body.to_string()));
    let response = client.request(method, path, body, HeaderMap::new()).await?;
    Ok(client.read(response)?)
}

/// Opens a link and sends one request with a body.
///
/// # Errors
/// Those of [`Link::open`] and of the client.
pub async fn ask(settings: &Settings, method: Method, path: &str, body: &Value) -> Result<Value, Failure> {
    Link::with(settings, Purpose::Change, async |client| send(client, method.clone(), path, body).await).await
}

/// Opens a link and reads what is at `path`.
///
/// # Errors
/// Those of [`Link::open`] and of the client.
pub async fn get(settings: &Settings, path: &str) -> Result<Value, Failure> {
    Link::with(settings, Purpose::Look, async |client| Ok(client.get_json(path).await?)).await
}

/// A list that is read page by page.
pub struct Pages {
    /// The path of the list.
    pub path: &'static str,
    /// Query parameters that narrow it down.
    pub filters: Vec<(&'static str, Option<String>)>,
    /// The answer's member with the items.
    pub member: &'static str,
    /// The most items in one answer.
    pub page: u64,
}

impl Pages {
    /// Reads up to `most` items from `cursor` on. Also returns the cursor of the next ones, if there may be
    /// more.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn read(
        &self,
        client: &Client,
        cursor: Option<String>,
        most: u64,
    ) -> Result<(Vec<Value>, Option<String>), Failure> {
        let (mut found, mut next) = (Vec::new(), cursor);
        loop {
            let left = most.saturating_sub(found.len() as u64);
            let mut parameters = self.filters.clone();
            parameters.push(("limit", Some(left.min(self.page).to_string())));
            parameters.push(("cursor", next));
            let mut answer = client.get_json(&query(self.path, &parameters)).await?;
            next = answer["pagination"]["next_cursor"].as_str().map(str::to_owned);
            if let Some(Value::Array(items)) = answer.get_mut(self.member).map(Value::take) {
                found.extend(items);
            }
            if next.is_none() || found.len() as u64 >= most {
                return Ok((found, next));
            }
        }
    }
}

/// Percent-encodes a value, for a path or a query.
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// A path with those parameters that have a value.
pub fn query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let mut url = path.to_owned();
    for (name, value) in parameters {
        if let Some(value) = value {
            url.push(if url.contains('?') { '&' } else { '?' });
            url.push_str(name);
            url.push('=');
            url.push_str(&encode(value));
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Globals;

    #[test]
    fn queries_are_encoded() {
        let url = query("/x", &[("a", Some("b c&d".into())), ("no", None), ("e", Some("1".into()))]);
        assert_eq!(url, "/x?a=b%20c%26d&e=1");
    }

    /// A Redis that loads or is silent may answer a later retry; one that refuses will not.
    #[test]
    fn a_redis_that_reads_its_data_is_not_reached_yet() {
        let address = semel_redis::Address::parse("redis://127.0.0.1:1/0").unwrap();
        let exit = |error| no_redis(&address, &error).exit;
        assert_eq!(exit(RedisError::Loading), Exit::Unreachable);
        assert_eq!(exit(RedisError::Silent), Exit::Unreachable);
        assert_eq!(exit(RedisError::Unsupported("too old".to_owned())), Exit::Failed);
        let next = |error| no_redis(&address, &error).next;
        assert!(next(RedisError::Silent).unwrap().contains("Redis is up"));
        assert_eq!(next(RedisError::Unsupported("too old".to_owned())), None);
    }

    #[test]
    fn who_refuses_for_want_of_something_is_told_apart() {
        let said = |said: &str| next_at_redis(&format!("redis: {said}: why"));
        assert!(said("MISCONF").contains("BGSAVE") && said("OOM").contains("maxmemory"));
        assert!(said("NOPERM").contains("run scripts"));
        assert!(next_at_postgres("53300").contains("max_connections"));
        assert!(next_at_postgres("57014").contains("statement_timeout"));
        assert!(next_at_postgres("28P01").contains("the database is up"));
    }

    /// Even a verb that decides nothing by the rules reports them.
    #[tokio::test]
    async fn the_rules_that_are_set_are_told_whoever_opens_the_store() {
        let dir = semel_testkit::TempDir::new();
        let file = dir.path().join("semel.toml");
        std::fs::write(&file, "[retention]\ncompleted = \"PT1H\"\n").unwrap();
        let store = Some(format!("sqlite:{}", dir.path().join("semel.db").display()));
        let globals = Globals { config: Some(file), store, ..Globals::default() };
        let settings = Settings::read(&globals, None).unwrap();
        // The first asks an empty store in memory, the second creates one.
        for purpose in [Purpose::Imagine, Purpose::Put, Purpose::Look, Purpose::Imagine] {
            let link = Link::open(&settings, purpose).await.unwrap();
            let told = link.client.get_json("/ojs/manifest").await.unwrap();
            assert_eq!(told["limits"]["retention_completed_s"], 3_600, "{purpose:?}");
            link.close().await.unwrap();
        }
    }
}
