use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", rate_limit(key = "smtp"))]
struct Nothing { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", rate_limit(concurrency = 5, period = "1m"))]
struct Period { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", rate_limit(concurrency = 1001))]
struct Concurrency { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", rate_limit(rate = 0))]
struct Rate { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", rate_limit(rate = 5, period = "25h"))]
struct Long { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", rate_limit(key = "", rate = 5))]
struct Key { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", rate_limit(per_minute = 5))]
struct Word { to: String }

fn main() {}
