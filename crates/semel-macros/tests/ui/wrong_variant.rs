use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "card.charge")]
enum Charge {
    #[job(sensitive)]
    Card { number: String },
    Cash,
}

fn main() {}
