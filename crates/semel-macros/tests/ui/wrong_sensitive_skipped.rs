use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b")]
struct Card {
    #[serde(skip)]
    #[job(sensitive)]
    number: String,
}

fn main() {}
