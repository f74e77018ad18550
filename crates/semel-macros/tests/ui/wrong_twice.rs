use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", type = "a.c")]
struct Type { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", queue = "mail")]
#[job(queue = "post")]
struct Lines { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", retry(max = "5m"), retry(never("Declined")))]
struct Retries { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", retry(max = "5m", no_jitter, max = "9m"))]
struct Inside { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args("to")))]
#[job(unique(period = "1h"))]
struct Unique { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args, period = "1h", period = "2h"))]
struct Period { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args, meta("region"), meta_except("trace")))]
struct Meta { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args("to"), strict))]
struct Identity { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args, states("active"), live_and("completed")))]
struct States { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args, live_and("active")))]
struct Live { to: String }

fn main() {}
