//! How Redis is set, and what of it contradicts that nothing acknowledged is lost.

use std::fmt;

use redis::aio::MultiplexedConnection;

use crate::durability::Durability;

/// What is asked about.
const SETTINGS: [&str; 5] =
    ["appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy", "min-replicas-to-write"];

/// What Redis says of its settings and its replicas. What it does not say is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    settings: Vec<(String, String)>,
    role: Option<String>,
    /// Replicas that are connected.
    replicas: Option<u32>,
    /// Replicas that the store's commits wait for.
    waits_for: u32,
    /// Whether a replica takes over by itself.
    fails_over: bool,
}

/// A setting by which what was acknowledged may be lost, or not be acknowledged at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is set, by Redis's name for it.
    pub setting: &'static str,
    /// As what; never a secret.
    pub found: String,
    /// As what it is to be set.
    pub wanted: String,
    /// What comes of it as it is.
    pub why: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, to be {}: {}", self.setting, self.found, self.wanted, self.why)
    }
}

impl Survey {
    /// Asks Redis; an account that may not ask learns nothing.
    pub(crate) async fn of(connection: &mut MultiplexedConnection, waits_for: u32, fails_over: bool) -> Self {
        let mut asked = redis::cmd("CONFIG");
        asked.arg("GET").arg(&SETTINGS[..]);
        let settings: Vec<(String, String)> = asked.query_async(connection).await.unwrap_or_default();
        let said: String =
            redis::cmd("INFO").arg("replication").query_async(connection).await.unwrap_or_default();
        let of = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let role = of("role").map(|role| role.trim().to_owned());
        let replicas = of("connected_slaves").and_then(|number| number.trim().parse().ok());
        Self { settings, role, replicas, waits_for, fails_over }
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// What an acknowledged write survives.
    pub fn durability(&self) -> Durability {
        let of = |name: &str| self.setting(name);
        Durability::by(
            of("appendonly"),
            of("appendfsync"),
            of("no-appendfsync-on-rewrite"),
            of("maxmemory-policy"),
        )
    }

    /// Everything that contradicts it, the worst first.
    pub fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut note = |setting, said: &str, wanted: &str, why| {
            found.push(Finding { setting, found: said.to_owned(), wanted: wanted.to_owned(), why });
        };
        let differs = |name: &str, wanted: &str| self.setting(name).filter(|said| *said != wanted);
        if let Some(role) = self.role.as_deref().filter(|role| *role != "master") {
            note("role", role, "master", "a replica takes no writes");
        }
        if self.settings.is_empty() {
            let why = "nobody can say what a crash loses";
            note("CONFIG GET", "refused", "allowed to the account (+config|get)", why);
        }
        if let Some(said) = differs("maxmemory-policy", "noeviction") {
            let why = "when its memory is full Redis deletes jobs and keys";
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
            let why = "no commit waits for a replica: one that takes over lacks what it had not got yet";
            note("replicas=", "0", "as many as must have an answer (--min-replicas)", why);
        }
        if self.waits_for > 0 && replicas < self.waits_for {
            let why = "commits wait for more replicas than are there, and are given up";
            note("connected_slaves", &replicas.to_string(), &waits_for, why);
        }
        // Where a replica takes over by itself, the primary that was cut off is still there.
        let least = self.waits_for.max(u32::from(self.fails_over));
        let enough = |said: &&str| said.parse::<u32>().is_ok_and(|number| number >= least);
        if let Some(said) = self.setting("min-replicas-to-write").filter(|said| !enough(said)) {
            let why = "a primary that is cut off from its replicas goes on writing what they will never have";
            note("min-replicas-to-write", said, &least.to_string(), why);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::Survey;

    fn survey(settings: &[(&str, &str)], replicas: u32, waits_for: u32) -> Survey {
        let best = [
            ("appendonly", "yes"),
            ("appendfsync", "always"),
            ("no-appendfsync-on-rewrite", "no"),
            ("maxmemory-policy", "noeviction"),
            ("min-replicas-to-write", "0"),
        ];
        let settings = best.map(|(name, value)| {
            let other = settings.iter().find(|(known, _)| *known == name);
            (name.to_owned(), other.map_or(value, |(_, value)| value).to_owned())
        });
        Survey {
            settings: settings.into(),
            role: Some("master".to_owned()),
            replicas: Some(replicas),
            waits_for,
            fails_over: false,
        }
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
        let alone = Survey { fails_over: true, ..survey(&[], 0, 0) };
        assert_eq!(named(&alone), ["replicas=", "min-replicas-to-write"]);
        let waits = Survey { fails_over: true, ..survey(&[("min-replicas-to-write", "1")], 1, 1) };
        assert_eq!(named(&waits), [] as [&str; 0]);
        let replica = Survey { role: Some("slave".to_owned()), ..survey(&[], 0, 0) };
        assert_eq!(named(&replica), ["role"]);
    }

    #[test]
    fn who_may_not_ask_is_told_so() {
        assert_eq!(named(&Survey::default()), ["CONFIG GET"]);
    }
}
