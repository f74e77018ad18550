use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job("email.send")]
struct Bare { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", timeout = 30)]
struct Timeout { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", max_attempts = "5")]
struct Attempts { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", priority = 1000)]
struct Priority { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", tags = "billing")]
struct Tags { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", retry = 3)]
struct Again { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique("to"))]
struct Bracketed { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique = "strict")]
struct Equals { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(args(to)))]
struct Unquoted { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", unique(strict = true))]
struct Valued { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b", retry(coefficient = 2))]
struct Coefficient { to: String }

#[derive(Serialize, Deserialize, Job)]
#[job(type = "a.b" queue = "mail")]
struct Comma { to: String }

fn main() {}
