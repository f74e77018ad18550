//! `[retention]` in `semel.toml`: how long ended jobs are kept.

use std::collections::BTreeMap;

use semel_core::ident::{JobType, QueueName};
use semel_core::retention::{Keep, Retention, parse_keep};
use semel_core::unique::Period;
use serde::Deserialize;

/// The `[retention]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Table {
    completed: Option<Length>,
    cancelled: Option<Length>,
    discarded: Option<Length>,
    types: BTreeMap<Type, Lengths>,
    queues: BTreeMap<Queue, Lengths>,
}

/// The table of one type or queue.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Lengths {
    completed: Option<Length>,
    cancelled: Option<Length>,
    discarded: Option<Length>,
}

/// An ISO 8601 duration.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
struct Length(Period);

/// The name of a type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct Type(String);

/// The name of a queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct Queue(String);

// Invalid values are refused while the file is parsed, so that the error names the line.
impl TryFrom<String> for Length {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse_keep(&text, "").map(Self).map_err(|refused| format!("a retention {}", refused.message))
    }
}

impl TryFrom<String> for Type {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match JobType::parse(&text, "") {
            Ok(_) => Ok(Self(text)),
            Err(refused) => Err(format!("{text:?} {}", refused.message)),
        }
    }
}

impl TryFrom<String> for Queue {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match QueueName::parse(&text, "") {
            Ok(_) => Ok(Self(text)),
            Err(refused) => Err(format!("{text:?} {}", refused.message)),
        }
    }
}

impl Table {
    /// The retention rules of the table.
    pub fn rules(&self) -> Retention {
        let Self { completed, cancelled, discarded, types, queues } = self;
        let all = Lengths { completed: *completed, cancelled: *cancelled, discarded: *discarded };
        let mut rules = Retention::new(all.keep());
        for (Type(name), lengths) in types {
            rules.keep_type(&JobType::from_stored(name), lengths.keep());
        }
        for (Queue(name), lengths) in queues {
            rules.keep_queue(&QueueName::from_stored(name), lengths.keep());
        }
        rules
    }
}

impl Lengths {
    fn keep(self) -> Keep {
        let period = |length: Option<Length>| length.map(|Length(period)| period);
        Keep {
            completed: period(self.completed),
            cancelled: period(self.cancelled),
            discarded: period(self.discarded),
        }
    }
}
