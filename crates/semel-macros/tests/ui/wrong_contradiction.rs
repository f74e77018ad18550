use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args("to"), on_conflict = "follow_up", period = "1h"))]
struct Period { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args, on_conflict = "follow_up", states("available", "active")))]
struct States { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args, on_conflict = "replace", states("available", "cancelled")))]
struct Cancelled { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args, period = "1h", period_from = "finished"))]
struct Finished { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(strict, on_conflict = "ignore"))]
struct Hidden { to: String }

fn main() {}
