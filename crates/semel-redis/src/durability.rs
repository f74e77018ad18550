//! What an acknowledged write survives, which depends on how Redis is configured.

/// What an acknowledged write survives, according to Redis's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// `appendonly yes`, `appendfsync always`: every answer comes after its write is on the disk.
    Always,
    /// As `Always`, except while the file is rewritten: `no-appendfsync-on-rewrite yes`.
    Rewrites,
    /// `appendonly yes`, `appendfsync everysec`: a crash of Redis loses nothing, one of the machine loses the
    /// last second or two.
    EverySecond,
    /// `appendonly yes`, `appendfsync no`: the operating system writes when it likes.
    Lazily,
    /// No append-only file: what came after the last snapshot is lost with the process.
    Never,
    /// Keys may be evicted: `maxmemory-policy` is not `noeviction`.
    Evicts,
    /// Unknown: the account may not use `CONFIG GET`.
    #[default]
    Unknown,
}

impl Durability {
    /// The durability by these settings; `None` is a setting that Redis does not disclose.
    pub(crate) fn by(
        append: Option<&str>,
        sync: Option<&str>,
        rewrite: Option<&str>,
        eviction: Option<&str>,
    ) -> Self {
        match (eviction, append, sync, rewrite) {
            (Some(policy), ..) if policy != "noeviction" => Self::Evicts,
            (_, Some("no"), ..) => Self::Never,
            (Some(_), Some("yes"), Some("always"), Some("yes")) => Self::Rewrites,
            (Some(_), Some("yes"), Some("always"), Some("no")) => Self::Always,
            (Some(_), Some("yes"), Some("everysec"), _) => Self::EverySecond,
            (Some(_), Some("yes"), Some("no"), _) => Self::Lazily,
            _ => Self::Unknown,
        }
    }

    /// The durability of a store on several nodes: that of the weakest.
    pub(crate) fn least(all: impl Iterator<Item = Self>) -> Self {
        all.min_by_key(|one| one.worth()).unwrap_or_default()
    }

    const fn worth(self) -> u8 {
        match self {
            Self::Evicts => 0,
            Self::Never => 1,
            // It may be as bad as the two before.
            Self::Unknown => 2,
            Self::Lazily => 3,
            Self::EverySecond => 4,
            Self::Rewrites => 5,
            Self::Always => 6,
        }
    }

    /// Whether an acknowledged write survives the loss of power or a crash of the machine.
    pub const fn is_strong(self) -> bool {
        matches!(self, Self::Always)
    }

    /// A description for messages, for commits that wait for replicas.
    pub const fn words_with_replicas(self) -> &'static str {
        match self {
            Self::Always => {
                "acknowledged only after Redis has the write on the disk (appendfsync always) and the replicas that commits \
                 wait for have it in memory"
            }
            Self::EverySecond | Self::Lazily | Self::Rewrites => {
                "acknowledged only after the replicas that commits wait for have the write in memory; it reaches the disks \
                 later (appendfsync): a crash of all machines may lose what was acknowledged last"
            }
            _ => self.words(),
        }
    }

    /// A description for messages, where a replica takes over by itself and commits wait for `replicas`.
    pub const fn words_with_failover(self, replicas: u32) -> &'static str {
        match (self, replicas) {
            (Self::Never | Self::Evicts, 0) => self.words(),
            (Self::Never | Self::Evicts, _) => self.words_with_replicas(),
            (_, 0) => {
                "acknowledged once the primary has the write: a failover loses what the replica that takes over had not \
                 received yet, commonly less than a second, and lost jobs may be accepted again (set --min-replicas)"
            }
            _ => {
                "acknowledged only after the replicas that commits wait for have the write in memory: a failover to one of \
                 them loses nothing, one to another replica may lose what was acknowledged last"
            }
        }
    }

    /// A description for messages.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Always => "acknowledged only after Redis has the write on the disk (appendfsync always)",
            Self::Rewrites => {
                "acknowledged only after Redis has the write on the disk (appendfsync always), except while its file is \
                 rewritten (set no-appendfsync-on-rewrite no)"
            }
            Self::EverySecond => {
                "acknowledged once Redis has the write in its file, which is on the disk a second or two later (appendfsync \
                 everysec): a crash of the machine may lose what was acknowledged in between"
            }
            Self::Lazily => {
                "acknowledged once Redis has the write in its file, which the system writes to the disk at some later time \
                 (appendfsync no): a crash of the machine may lose what was acknowledged before"
            }
            Self::Never => {
                "none: Redis keeps no append-only file, and what was acknowledged since its last snapshot is lost with the \
                 process (set appendonly yes)"
            }
            Self::Evicts => {
                "none: Redis may delete any data when its memory is full (set maxmemory-policy noeviction)"
            }
            Self::Unknown => {
                "unknown: this account may not read Redis's settings (CONFIG GET); appendonly yes, appendfsync always and \
                 maxmemory-policy noeviction lose nothing"
            }
        }
    }
}

/// What a Redis server says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Server {
    /// Its major version.
    pub(crate) version: u32,
    /// Identifies the run: another after each start, and after each time that it took over as primary.
    pub(crate) run: String,
    /// Whether it says that it is a primary.
    pub(crate) is_primary: bool,
    /// Whether it says that it is a replica.
    pub(crate) is_replica: bool,
    /// Whether it is a node of a cluster.
    pub(crate) is_cluster: bool,
}

impl Server {
    /// Reads the answers of `INFO server` and `INFO replication`.
    pub(crate) fn of(said: &str) -> Self {
        let mut server = Self::default();
        for line in said.lines() {
            match line.split_once(':') {
                Some(("redis_version", version)) => {
                    let first = version.split('.').next().and_then(|first| first.trim().parse().ok());
                    server.version = first.unwrap_or(0);
                }
                Some(("run_id" | "master_replid", part)) => server.run.push_str(part.trim()),
                Some(("role", role)) => {
                    server.is_primary = role.trim() == "master";
                    // `replica` is the name in other servers' answers.
                    server.is_replica = ["slave", "replica"].contains(&role.trim());
                }
                // The second is Valkey's name for it.
                Some(("redis_mode" | "server_mode", mode)) => server.is_cluster = mode.trim() == "cluster",
                _ => {}
            }
        }
        server
    }
}

#[cfg(test)]
mod tests {
    use super::{Durability, Server};

    #[test]
    fn only_what_is_on_the_disk_before_the_answer_is_strong() {
        let by =
            |append, sync, eviction| Durability::by(Some(append), Some(sync), Some("no"), Some(eviction));
        assert_eq!(by("yes", "always", "noeviction"), Durability::Always);
        assert_eq!(by("yes", "everysec", "noeviction"), Durability::EverySecond);
        assert_eq!(by("yes", "no", "noeviction"), Durability::Lazily);
        assert_eq!(by("no", "always", "noeviction"), Durability::Never);
        assert_eq!(by("yes", "always", "allkeys-lru"), Durability::Evicts);
        let with_rewrites = Durability::by(Some("yes"), Some("always"), Some("yes"), Some("noeviction"));
        assert_eq!(with_rewrites, Durability::Rewrites);
        assert!(!with_rewrites.is_strong());
        assert_eq!(Durability::by(Some("yes"), Some("always"), Some("no"), None), Durability::Unknown);
        assert!(by("yes", "always", "noeviction").is_strong() && !Durability::Unknown.is_strong());
    }

    #[test]
    fn what_redis_says_of_itself_is_read() {
        let said = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrun_id:abc\r\n\
                    # Replication\r\nrole:master\r\nmaster_replid:def\r\nmaster_replid2:00\r\n";
        let read = Server { version: 7, run: "abcdef".to_owned(), is_primary: true, ..Server::default() };
        assert_eq!(Server::of(said), read);
        assert!(!Server::of("role:slave\r\n").is_primary);
        assert!(Server::of("redis_mode:cluster\r\n").is_cluster);
    }

    /// Valkey answers as Redis does, except for the name of its mode.
    #[test]
    fn what_valkey_says_of_itself_is_read() {
        let said = "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.1\r\nserver_mode:cluster\r\n\
                    run_id:abc\r\n# Replication\r\nrole:master\r\nmaster_replid:def\r\n";
        let read = Server {
            version: 7,
            run: "abcdef".to_owned(),
            is_primary: true,
            is_cluster: true,
            ..Server::default()
        };
        assert_eq!(Server::of(said), read);
        assert!(!Server::of(&said.replace("mode:cluster", "mode:standalone")).is_cluster);
    }
}
