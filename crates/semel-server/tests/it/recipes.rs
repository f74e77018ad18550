//! The guide's recipes: each request on the page, and every line of what it says will happen.

use std::sync::Arc;
use std::time::Duration;

use semel_core::enqueue::Outcome;
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::settle::{Report, Settled};
use semel_engine::duty::{Expire, Promote, Purge, Reap};
use semel_engine::{Engine, Job};
use semel_ojs::{Enqueue, Terms};
use semel_store::backend::Claim;
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use serde_json::Value;

const PAGE: &str = include_str!("../../../../docs/guide/recipes.md");

/// A recipe: a request, and the lines that say what happens.
struct Recipe {
    name: String,
    request: Value,
    steps: Vec<[String; 3]>,
}

/// The page's recipes, in order.
fn recipes() -> Vec<Recipe> {
    PAGE.split("\n## ").skip(1).map(recipe).collect()
}

fn recipe(section: &str) -> Recipe {
    let name = section.lines().next().unwrap().to_owned();
    let (_, request) = section.split_once("```json\n").unwrap_or_else(|| panic!("{name} has no request"));
    let (request, rest) = request.split_once("```").unwrap();
    let rows = rest.lines().filter(|line| line.starts_with('|')).skip(2);
    let steps = rows.map(|row| {
        let cells: Vec<String> =
            row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
        cells.try_into().unwrap_or_else(|_| panic!("{name}: {row}"))
    });
    let steps = steps.collect();
    Recipe { name, request: serde_json::from_str(request).unwrap(), steps }
}

fn duration(text: &str) -> Duration {
    let Some((number, unit)) = text.split_once(' ') else { return Duration::ZERO };
    let seconds = match unit {
        "s" => 1.0,
        "minutes" => 60.0,
        "h" | "hours" => 3_600.0,
        "days" => 86_400.0,
        _ => panic!("{text} is no time"),
    };
    Duration::from_secs_f64(number.parse::<f64>().unwrap() * seconds)
}

/// The recipe's request with the members that the line names replaced.
fn request(recipe: &Recipe, what: &str) -> String {
    let mut request = recipe.request.clone();
    if let Some(changes) = what.strip_prefix("it is sent with ") {
        for change in changes.split(" and ") {
            let (pointer, value) = change.split_once(" = ").unwrap();
            let (pointer, value) = (pointer.trim_matches('`'), value.trim_matches('`'));
            let member = request.pointer_mut(pointer);
            let member = member.unwrap_or_else(|| panic!("{}: there is no {pointer}", recipe.name));
            *member = serde_json::from_str(value).unwrap();
        }
    }
    request.to_string()
}

/// The page's word for an outcome.
fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Created(_) => "created",
        Outcome::Replaced { .. } => "replaced",
        Outcome::FollowUp(_) => "follow-up",
        Outcome::Amended(_) => "amended",
        Outcome::Existing(_) => "existing",
        Outcome::Rejected { .. } => "rejected",
        Outcome::Mismatch { .. } => "mismatch",
        other => panic!("{other:?}"),
    }
}

fn ended(settled: &Settled) -> &'static str {
    match settled {
        Settled::Done(head) | Settled::Repeated(head) => head.state.name(),
        Settled::Refused(_) => "refused",
    }
}

struct Scene {
    engine: Engine,
    clock: ManualClock,
    /// The latest run.
    run: Option<Job>,
}

impl Scene {
    fn new() -> Self {
        let clock = ManualClock::default();
        let engine = Engine::without_duties(Arc::new(Memory::new(clock.clone()))).unwrap();
        Self { engine, clock, run: None }
    }

    /// Advances the clock and runs the duties that are due.
    async fn rest(&self, time: Duration) {
        self.clock.advance(time);
        let store = self.engine.store();
        while Promote.run_once(store).await.unwrap().moved > 0 {}
        while Reap.run_once(store).await.unwrap().moved > 0 {}
        while Expire.run_once(store).await.unwrap().moved > 0 {}
        while Purge.run_once(store).await.unwrap().moved > 0 {}
    }

    async fn act(&mut self, recipe: &Recipe, what: &str) -> &'static str {
        let bearer =
            |run: &Job| (run.head.id, Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None });
        match what {
            "a worker takes it" => {
                let queue = semel_core::ident::QueueName::parse("default", "").unwrap();
                let grant = Grant::new("w".into(), None);
                let claim = Claim { queues: vec![queue], limit: 1, grant, closed: Vec::new() };
                let Some(run) = self.engine.claim(claim).await.unwrap().pop() else { return "nothing" };
                self.run = Some(run);
                "started"
            }
            "its run succeeds" => {
                let (id, bearer) = bearer(self.run.as_ref().unwrap());
                ended(&self.engine.complete(id, bearer, None).await.unwrap())
            }
            "its run fails" => {
                let (id, bearer) = bearer(self.run.as_ref().unwrap());
                let report = Report {
                    code: "e".to_owned(),
                    message: "it failed".to_owned(),
                    error_type: "e".to_owned(),
                    retryable: None,
                    retry_in: None,
                    details: None,
                };
                ended(&self.engine.fail(id, bearer, report).await.unwrap())
            }
            sent if sent.starts_with("it is sent") => {
                let (offer, _) =
                    Enqueue::parse(&request(recipe, sent), Terms::trusted()).unwrap().into_parts();
                word(&self.engine.enqueue(offer, "test").await.unwrap())
            }
            other => panic!("{}: nothing is known of `{other}`", recipe.name),
        }
    }
}

#[tokio::test]
async fn what_the_recipes_say_happens() {
    let recipes = recipes();
    assert!(recipes.len() >= 10, "{}", recipes.len());
    for recipe in recipes {
        assert!(!recipe.steps.is_empty(), "{} has no steps", recipe.name);
        let mut scene = Scene::new();
        for (number, [after, what, answer]) in recipe.steps.iter().enumerate() {
            scene.rest(duration(after)).await;
            let answered = scene.act(&recipe, what).await;
            assert_eq!(answered, answer, "{}, line {}: {what}", recipe.name, number + 1);
        }
        scene.engine.close().await;
    }
}

/// The table at the top lists exactly the recipes.
#[test]
fn the_table_leads_to_every_recipe() {
    let anchor = |name: &str| {
        let kept = name.chars().filter(|letter| letter.is_alphanumeric() || " -".contains(*letter));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    let (table, _) = PAGE.split_once("\n## ").unwrap();
    let named: Vec<&str> =
        table.split("](#").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)).collect();
    let there: Vec<String> = recipes().iter().map(|recipe| anchor(&recipe.name)).collect();
    assert_eq!(named, there);
}
