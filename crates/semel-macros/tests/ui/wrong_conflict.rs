use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args, on_conflict = "skip"))]
struct Send { to: String }

fn main() {}
