use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args("user")))]
struct Send { user_id: u64, to: String }

fn main() {}
