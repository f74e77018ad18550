//! Surveys how Redis is configured, and which settings may lose acknowledged writes.

use std::fmt;

use redis::aio::MultiplexedConnection;

use crate::durability::Durability;

/// The settings that are read.
const SETTINGS: [&str; 6] = [
    "appendonly",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "maxmemory-policy",
    "min-replicas-to-write",
    "min-replicas-max-lag",
];

/// The order in which findings are reported: the worst first.
const ORDER: [&str; 10] = [
    "role",
    "CONFIG GET",
    "maxmemory-policy",
    "appendonly",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "replicas=",
    "connected_slaves",
    "min-replicas-to-write",
    "min-replicas-max-lag",
];

/// The configuration of the Redis that has the store, or of the cluster nodes that have its partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    nodes: Vec<Node>,
}

/// One node's settings and replicas, as far as it discloses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    place: String,
    settings: Vec<(String, String)>,
    role: Option<String>,
    /// How many replicas are connected.
    replicas: Option<u32>,
    /// How many replicas the store's commits wait for.
    waits_for: u32,
    /// Whether a replica takes over by itself when the primary is gone.
    fails_over: bool,
}

/// A setting by which acknowledged writes may be lost, or writes may not be acknowledged at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The setting, by Redis's name for it.
    pub setting: &'static str,
    /// The value it has; never a secret.
    pub found: String,
    /// The value it should have.
    pub wanted: String,
    /// The consequence of the present value.
    pub why: &'static str,
    /// The cluster nodes that have this value, if other nodes of the store do not.
    pub nodes: Vec<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, but should be {}: {}", self.setting, self.found, self.wanted, self.why)?;
        if self.nodes.is_empty() { Ok(()) } else { write!(f, " (at {})", self.nodes.join(", ")) }
    }
}

impl Survey {
    /// Reads the settings from Redis; an account that may not ask learns nothing.
    pub(crate) async fn of(
        connection: &mut MultiplexedConnection,
        place: &str,
        waits_for: u32,
        fails_over: bool,
    ) -> Self {
        let mut asked = redis::cmd("CONFIG");
        asked.arg("GET").arg(&SETTINGS[..]);
        let settings: Vec<(String, String)> = asked.query_async(connection).await.unwrap_or_default();
        let said: String =
            redis::cmd("INFO").arg("replication").query_async(connection).await.unwrap_or_default();
        let of = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let role = of("role").map(|role| role.trim().to_owned());
        let replicas = of("connected_slaves").and_then(|number| number.trim().parse().ok());
        let place = place.to_owned();
        Self { nodes: vec![Node { place, settings, role, replicas, waits_for, fails_over }] }
    }

    /// Combines surveys, counting each node once.
    pub(crate) fn together(all: impl IntoIterator<Item = Self>) -> Self {
        let mut nodes: Vec<Node> = Vec::new();
        for node in all.into_iter().flat_map(|survey| survey.nodes) {
            if nodes.iter().all(|known| known.place != node.place) {
                nodes.push(node);
            }
        }
        Self { nodes }
    }

    /// What an acknowledged write survives: on several nodes, the durability of the weakest.
    pub fn durability(&self) -> Durability {
        Durability::least(self.nodes.iter().map(Node::durability))
    }

    /// All settings that may lose acknowledged writes, the worst first.
    pub fn findings(&self) -> Vec<Finding> {
        let mut all: Vec<Finding> = Vec::new();
        for found in self.nodes.iter().flat_map(Node::findings) {
            let is_same = |known: &&mut Finding| {
                (known.setting, &known.found, &known.wanted) == (found.setting, &found.found, &found.wanted)
            };
            match all.iter_mut().find(is_same) {
                Some(known) => known.nodes.extend(found.nodes),
                None => all.push(found),
            }
        }
        // A finding that all nodes share names none of them.
        for found in all.iter_mut().filter(|found| found.nodes.len() == self.nodes.len()) {
            found.nodes.clear();
        }
        all.sort_by_key(|found| ORDER.iter().position(|setting| *setting == found.setting));
        all
    }
}

impl Node {
    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn durability(&self) -> Durability {
        let of = |name: &str| self.setting(name);
        Durability::by(
            of("appendonly"),
            of("appendfsync"),
            of("no-appendfsync-on-rewrite"),
            of("maxmemory-policy"),
        )
    }

    fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut note = |setting, said: &str, wanted: &str, why| {
            let (said, wanted) = (said.to_owned(), wanted.to_owned());
            found.push(Finding { setting, found: said, wanted, why, nodes: vec![self.place.clone()] });
        };
        let differs = |name: &str, wanted: &str| self.setting(name).filter(|said| *said != wanted);
        if let Some(role) = self.role.as_deref().filter(|role| *role != "master") {
            note("role", role, "master", "a replica takes no writes");
        }
        if self.settings.is_empty() {
            let why = "it is unknown what a crash would lose";
            note("CONFIG GET", "refused", "allowed for this account (+config|get)", why);
        }
        if let Some(said) = differs("maxmemory-policy", "noeviction") {
            let why = "when its memory is full, Redis deletes jobs and keys";
            note("maxmemory-policy", said, "noeviction", why);
        }
        if let Some(said) = differs("appendonly", "yes") {
            let why = "what was acknowledged since the last snapshot is lost with the process";
            note("appendonly", said, "yes", why);
        } else if let Some(said) = differs("appendfsync", "always") {
            let why = "a crash of the machine loses what was acknowledged last";
            note("appendfsync", said, "always", why);
        } else if let Some(said) = differs("no-appendfsync-on-rewrite", "no") {
            let why = "while its file is rewritten, Redis acknowledges what is not on the disk";
            note("no-appendfsync-on-rewrite", said, "no", why);
        }
        let replicas = self.replicas.unwrap_or(0);
        let waits_for = self.waits_for.to_string();
        if self.waits_for == 0 && (replicas > 0 || self.fails_over) {
            let why = "no commit waits for a replica: one that takes over lacks what it had not received yet";
            note("replicas=", "0", "the number of replicas that must have a commit (--min-replicas)", why);
        }
        if self.waits_for > 0 && replicas < self.waits_for {
            let why = "commits wait for more replicas than are connected, and fail";
            note("connected_slaves", &replicas.to_string(), &waits_for, why);
        }
        // Where a replica takes over by itself, the former primary may still be running, cut off.
        let least = self.waits_for.max(u32::from(self.fails_over));
        let enough = |said: &&str| said.parse::<u32>().is_ok_and(|number| number >= least);
        if let Some(said) = self.setting("min-replicas-to-write").filter(|said| !enough(said)) {
            let why = "a primary that is cut off from its replicas keeps accepting writes that they will never have";
            note("min-replicas-to-write", said, &least.to_string(), why);
        } else if let Some(said) =
            self.setting("min-replicas-max-lag").filter(|said| least > 0 && *said == "0")
        {
            let why = "with 0, Redis requires no replicas, whatever min-replicas-to-write is: a primary that is cut off keeps accepting writes";
            note("min-replicas-max-lag", said, "10, or how many seconds it may go on", why);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::{Node, Survey};
    use crate::durability::Durability;

    fn node(settings: &[(&str, &str)], replicas: u32, waits_for: u32) -> Node {
        let best = [
            ("appendonly", "yes"),
            ("appendfsync", "always"),
            ("no-appendfsync-on-rewrite", "no"),
            ("maxmemory-policy", "noeviction"),
            ("min-replicas-to-write", "0"),
            ("min-replicas-max-lag", "10"),
        ];
        let settings = best.map(|(name, value)| {
            let other = settings.iter().find(|(known, _)| *known == name);
            (name.to_owned(), other.map_or(value, |(_, value)| value).to_owned())
        });
        Node {
            place: "one:6379".to_owned(),
            settings: settings.into(),
            role: Some("master".to_owned()),
            replicas: Some(replicas),
            waits_for,
            fails_over: false,
        }
    }

    fn survey(settings: &[(&str, &str)], replicas: u32, waits_for: u32) -> Survey {
        Survey { nodes: vec![node(settings, replicas, waits_for)] }
    }

    fn named(survey: &Survey) -> Vec<&'static str> {
        survey.findings().into_iter().map(|finding| finding.setting).collect()
    }

    #[test]
    fn each_setting_that_loses_something_is_named() {
        assert_eq!(named(&survey(&[], 0, 0)), [] as [&str; 0]);
        for (name, value) in [
            ("appendonly", "no"),
            ("appendfsync", "everysec"),
            ("appendfsync", "no"),
            ("no-appendfsync-on-rewrite", "yes"),
            ("maxmemory-policy", "allkeys-lru"),
        ] {
            let survey = survey(&[(name, value)], 0, 0);
            assert_eq!(named(&survey), [name]);
            assert!(!survey.durability().is_strong(), "{name} {value}");
            assert!(survey.findings()[0].to_string().contains(value));
        }
        assert!(survey(&[], 0, 0).durability().is_strong());
    }

    #[test]
    fn replicas_are_there_to_be_waited_for() {
        assert_eq!(named(&survey(&[], 1, 0)), ["replicas="]);
        assert_eq!(named(&survey(&[], 1, 2)), ["connected_slaves", "min-replicas-to-write"]);
        assert_eq!(named(&survey(&[("min-replicas-to-write", "1")], 1, 1)), [] as [&str; 0]);
        let named_of = |node| named(&Survey { nodes: vec![node] });
        let alone = Node { fails_over: true, ..node(&[], 0, 0) };
        assert_eq!(named_of(alone), ["replicas=", "min-replicas-to-write"]);
        let waits = Node { fails_over: true, ..node(&[("min-replicas-to-write", "1")], 1, 1) };
        assert_eq!(named_of(waits), [] as [&str; 0]);
        // A lag of 0 switches `min-replicas-to-write` off.
        let at_once = [("min-replicas-to-write", "1"), ("min-replicas-max-lag", "0")];
        assert_eq!(named(&survey(&at_once, 1, 1)), ["min-replicas-max-lag"]);
        assert_eq!(named(&survey(&at_once[1..], 1, 1)), ["min-replicas-to-write"]);
        assert_eq!(named(&survey(&at_once[1..], 0, 0)), [] as [&str; 0]);
        let replica = Node { role: Some("slave".to_owned()), ..node(&[], 0, 0) };
        assert_eq!(named_of(replica), ["role"]);
    }

    #[test]
    fn who_may_not_ask_is_told_so() {
        assert_eq!(named(&Survey { nodes: vec![Node::default()] }), ["CONFIG GET"]);
    }

    /// One node is worse in one way, another node in another.
    #[test]
    fn what_any_node_is_set_to_is_told_once_and_whose_it_is() {
        let at = |place: &str, setting: (&str, &str)| Survey {
            nodes: vec![Node { place: place.to_owned(), fails_over: true, ..node(&[setting], 0, 0) }],
        };
        let all = [
            at("one", ("appendfsync", "always")),
            at("two", ("appendfsync", "everysec")),
            at("three", ("maxmemory-policy", "allkeys-lru")),
            at("one", ("appendfsync", "always")),
        ];
        let all = Survey::together(all);
        let told: Vec<_> = all.findings().into_iter().map(|found| (found.setting, found.nodes)).collect();
        let only = |place: &str| vec![place.to_owned()];
        let expected = [
            ("maxmemory-policy", only("three")),
            ("appendfsync", only("two")),
            ("replicas=", Vec::new()),
            ("min-replicas-to-write", Vec::new()),
        ];
        assert_eq!(told, expected);
        assert!(all.findings()[0].to_string().ends_with("(at three)"));
        assert_eq!(all.durability(), Durability::Evicts);
    }
}
