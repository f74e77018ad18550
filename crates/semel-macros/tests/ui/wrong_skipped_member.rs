use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args("to", "seen")))]
struct Send {
    to: String,
    #[serde(skip)]
    seen: bool,
}

fn main() {}
