use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(key = "evt"))]
struct Send { to: String }

fn main() {}
