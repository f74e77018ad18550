use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "Email.Send")]
struct Send { to: String }

fn main() {}
