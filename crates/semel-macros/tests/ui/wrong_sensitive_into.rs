use semel::Job;
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize, Job)]
#[serde(into = "String", from = "String")]
#[job(type = "a.b")]
struct Card {
    #[job(sensitive)]
    number: String,
}

impl From<Card> for String {
    fn from(card: Card) -> Self {
        card.number
    }
}

impl From<String> for Card {
    fn from(number: String) -> Self {
        Self { number }
    }
}

fn main() {}
