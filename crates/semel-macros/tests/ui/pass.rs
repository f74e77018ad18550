use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "email.send", unique(args("to")))]
struct Send {
    to: String,
}

/// Left out at times, but not what the key is made of.
#[derive(Serialize, Deserialize, Job)]
#[job(type = "email.reply", queue = "mail", retry(max = "5m", never("Declined")))]
#[job(unique(args("to"), meta("region"), period = "1h"), tags("mail"))]
struct Reply {
    to: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cc: Option<String>,
}

fn main() {
    assert_eq!(Reply::TYPE, "email.reply");
    assert_eq!(Send::TYPE, "email.send");
}
