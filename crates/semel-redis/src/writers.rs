//! Connections for commits that wait for replicas. `WAIT` follows the writes in the same pipeline, and Redis
//! serves nothing else on a connection that waits, so nothing that need not wait is sent on these.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};

use crate::address::Address;
use crate::error::RedisError;
use crate::link::Link;
use crate::said::{Request, Said};
use crate::values::number;

/// As many as there are commits under way at once, and one for answers that wrote nothing.
const LINKS: usize = 3;
/// How long one `WAIT` waits for replicas.
const WAIT: Duration = Duration::from_secs(1);
/// How long the nudge's key is kept, in milliseconds.
const NUDGE_KEPT: u32 = 60_000;

/// The nudge: a small write for replicas to confirm. As any other write, it is refused where Redis takes
/// none.
pub fn nudge(link: &Link) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(format!("{}@", link.base())).arg("").arg("PX").arg(NUDGE_KEPT);
    set
}

/// The nudge behind a command that takes no memory. A Redis whose memory is full refuses a script's first
/// write only if that takes memory, and none of the later ones: what was done must be confirmed there too.
const NUDGE: &str = "redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[1], '', 'PX', ARGV[1])";

/// The connections of commits, and how many replicas these wait for.
pub struct Writers {
    links: Vec<Link>,
    next: AtomicUsize,
    /// Whether the last write reached too few replicas.
    is_behind: AtomicBool,
    replicas: u32,
    /// Whether another Redis may become the primary; then what this one refuses is sent again.
    follows: bool,
    /// A small write, so that there is something to wait for.
    nudge: Cmd,
    wait: Cmd,
}

impl Writers {
    /// The connections for a store; `None` where commits wait for no replicas.
    pub fn new(address: &Address, beside: &Link) -> Option<Self> {
        let replicas = address.replicas();
        if replicas == 0 {
            return None;
        }
        let links = (0..LINKS).map(|_| beside.beside()).collect();
        let mut nudge = redis::cmd("EVAL");
        nudge.arg(NUDGE).arg(1).arg(format!("{}@", beside.base())).arg(NUDGE_KEPT);
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas).arg(u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX));
        Some(Self {
            links,
            next: AtomicUsize::new(0),
            is_behind: AtomicBool::new(false),
            replicas,
            follows: beside.finder().follows(),
            nudge,
            wait,
        })
    }

    /// The next connection, in turn.
    pub fn next(&self) -> Option<&Link> {
        self.links.get(self.next.fetch_add(1, Ordering::Relaxed) % self.links.len())
    }

    /// All connections.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Whether a commit must first make sure that replicas are back. Otherwise claims would keep taking jobs
    /// for workers who are then told of a failure, until the jobs have no attempts left.
    pub fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Acquire)
    }

    /// The commands with a `WAIT` behind them.
    pub fn first(&self, mut commands: Vec<Cmd>) -> Request {
        commands.push(self.wait.clone());
        Request::of(commands)
    }

    /// The same request once more, perhaps on another connection. A connection that has written nothing waits
    /// for nothing, so a nudge comes first: it follows everything done before.
    pub fn again(&self, mut commands: Vec<Cmd>) -> Request {
        commands.insert(0, self.nudge.clone());
        self.first(commands)
    }

    /// The outcome of the commands alone. `Lagging` where too few replicas have the write, and `Behind` where
    /// Redis itself refuses writes because too few are connected (`min-replicas-to-write`).
    pub fn unwrap(&self, mut said: Said, is_again: bool) -> Result<Said, RedisError> {
        let reached = said.pop().ok_or(RedisError::Answer("wait"))?;
        let is_refused =
            |said: &Result<Value, RedisError>| said.as_ref().is_err_and(RedisError::lacks_replicas);
        if !said.is_empty() && said.iter().all(is_refused) {
            tracing::debug!("too few replicas are connected for Redis to accept a commit");
            self.is_behind.store(true, Ordering::Release);
            return Err(RedisError::Behind);
        }
        if is_again && !said.is_empty() {
            said.remove(0)?;
        }
        // Unknown scripts or an emptied store make the caller send everything again; so does a server that is
        // not the primary, where another may be. Otherwise a part may have been written, and counts only once
        // replicas have it.
        let is_sent_again = |error: &RedisError| {
            error.is_unknown_script() || error.is_emptied() || (self.follows && error.is_on_its_way())
        };
        if said.iter().any(|said| said.as_ref().is_err_and(is_sent_again)) {
            return Ok(said);
        }
        match reached {
            Ok(Value::Int(reached)) if reached >= i64::from(self.replicas) => {
                self.is_behind.store(false, Ordering::Release);
                Ok(said)
            }
            Ok(other) => {
                let reached: i64 = number(other)?;
                tracing::debug!(reached, wanted = self.replicas, "too few replicas have a commit yet");
                self.is_behind.store(true, Ordering::Release);
                Err(RedisError::Lagging)
            }
            // The commands before the `WAIT` were done, and which replicas have that is unknown.
            Err(error) if said.iter().any(Result::is_ok) => {
                tracing::debug!(%error, "it is unknown how many replicas have a commit");
                self.is_behind.store(true, Ordering::Release);
                Err(RedisError::Lagging)
            }
            Err(error) => {
                // `MOVED` or `READONLY` says why the `WAIT` failed. Any other answer counts for nothing until
                // replicas have confirmed it.
                let refused = said.into_iter().filter_map(Result::err).find(RedisError::is_another_node);
                Err(refused.unwrap_or(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind, ServerErrorKind, Value};

    use super::Writers;
    use crate::address::Address;
    use crate::error::RedisError;
    use crate::link::Link;
    use crate::times::Times;

    /// A primary that becomes a replica between two commands of a request has done the first.
    #[tokio::test]
    async fn a_part_that_was_done_counts_only_once_replicas_have_it() {
        let writers = |text| {
            let address = Address::parse(text).unwrap();
            Writers::new(&address, &Link::new(&address, Times::default()).unwrap()).unwrap()
        };
        let refused = |kind, why| Err(RedisError::Redis((ErrorKind::Server(kind), why).into()));
        let said = || {
            let claim = refused(ServerErrorKind::ReadOnly, "a replica takes no writes");
            let wait = refused(ServerErrorKind::ResponseError, "a replica waits for nobody");
            vec![Ok(Value::Okay), claim, wait]
        };
        let told = writers("redis://one?replicas=1").unwrap(said(), false);
        assert!(matches!(told, Err(RedisError::Lagging)), "{told:?}");
        // A refusal counts for nothing either until it is confirmed: this server may not be the primary any
        // more.
        let unblocked = || refused(ServerErrorKind::ResponseError, "nobody waits any more");
        let given_up = Err(RedisError::Redis(redis::RedisError::from((
            ErrorKind::Extension,
            "SEMELOLD",
            "given up".to_owned(),
        ))));
        let told = writers("redis+cluster://one?replicas=1").unwrap(vec![given_up, unblocked()], false);
        assert!(told.as_ref().is_err_and(|told| told.to_string().contains("nobody waits")), "{told:?}");
        let moved = refused(ServerErrorKind::ReadOnly, "a replica takes no writes");
        let told = writers("redis://one?replicas=1").unwrap(vec![moved, unblocked()], false);
        assert!(told.as_ref().is_err_and(RedisError::is_another_node), "it says why: {told:?}");
        let none = vec![refused(ServerErrorKind::ResponseError, "a replica waits for nobody")];
        let told = writers("redis://one?replicas=1").unwrap(none, false);
        assert!(matches!(told, Err(RedisError::Redis(_))), "nothing was done: {told:?}");
        // Where the request is sent again because of the claim, the second attempt waits for replicas.
        let said = writers("redis+cluster://one?replicas=1").unwrap(said(), false).unwrap();
        assert!(said[1].as_ref().is_err_and(RedisError::passes));
    }
}
