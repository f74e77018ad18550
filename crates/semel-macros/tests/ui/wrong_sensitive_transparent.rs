use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[serde(transparent)]
#[job(type = "a.b")]
struct Card {
    #[job(sensitive)]
    number: String,
}

fn main() {}
