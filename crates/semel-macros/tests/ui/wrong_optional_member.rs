use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args("to", "replyTo")))]
#[serde(rename_all = "camelCase")]
struct Send {
    to: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply_to: Option<String>,
}

fn main() {}
