use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", retries = 3)]
struct Send { to: String }

fn main() {}
