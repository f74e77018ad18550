use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "email.send", unique(args, meta("tenant", "traceparent")))]
struct SendEmail {
    to: String,
}

fn main() {}
