use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", timeout = "30 seconds")]
struct Send { to: String }

fn main() {}
