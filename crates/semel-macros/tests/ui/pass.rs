use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(type = "email.send", unique(args("to")))]
struct Send {
    to: String,
}

fn main() {
    assert_eq!(Send::TYPE, "email.send");
}
