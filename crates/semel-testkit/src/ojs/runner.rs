//! Playing tests against a server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use semel_client::{Bytes, Client, HeaderMap, Method};
use tokio::task::JoinSet;

use super::answer::{Answer, Answers};
use super::report::{Failure, Outcome, Report};
use super::suite::{Action, Script, Step, SuiteTest};

/// Plays one test with all its steps, even after a failure, as the official runner does: later steps often
/// clean up after earlier ones.
pub async fn run(test: &SuiteTest, client: &Client) -> Outcome {
    run_in_turn(test, &Turns::new(std::slice::from_ref(client))).await
}

async fn run_in_turn(test: &SuiteTest, servers: &Turns<'_>) -> Outcome {
    let started = Instant::now();
    let (failures, notes) = match test.script() {
        Ok(script) => (play(script, servers).await, script.ignored.clone()),
        Err(reason) => (vec![Failure { step: "file".to_owned(), reason: reason.clone() }], Vec::new()),
    };
    Outcome {
        path: test.path.clone(),
        test_id: test.test_id.clone(),
        name: test.name.clone(),
        spec_ref: test.spec_ref.clone(),
        failures,
        notes,
        took: started.elapsed(),
    }
}

/// Plays the tests one after the other. Posts to the base URL of `reset`, if given, before each: many tests
/// share a queue and some use fixed job ids.
pub async fn run_all(tests: &[SuiteTest], client: &Client, reset: Option<&Client>) -> Report {
    run_all_in_turn(tests, std::slice::from_ref(client), reset.map_or(&[], std::slice::from_ref)).await
}

/// The same with several servers on one store: each request goes to the next of `clients`, and a reset to
/// every one of `resets`.
pub async fn run_all_in_turn(tests: &[SuiteTest], clients: &[Client], resets: &[Client]) -> Report {
    let mut outcomes = Vec::new();
    let servers = Turns::new(clients);
    for test in tests {
        let mut failure = None;
        for reset in resets {
            failure = failure.or(post_reset(reset).await.err());
        }
        let mut outcome = run_in_turn(test, &servers).await;
        if let Some(reason) = failure {
            outcome.failures.insert(0, Failure { step: "reset".to_owned(), reason });
        }
        outcomes.push(outcome);
    }
    Report { outcomes }
}

/// Servers that are used in turn.
struct Turns<'a> {
    clients: &'a [Client],
    next: AtomicUsize,
}

impl<'a> Turns<'a> {
    fn new(clients: &'a [Client]) -> Self {
        Self { clients, next: AtomicUsize::new(0) }
    }

    fn client(&self) -> Client {
        self.clients[self.next.fetch_add(1, Ordering::Relaxed) % self.clients.len()].clone()
    }
}

async fn post_reset(reset: &Client) -> Result<(), String> {
    let answer =
        reset.request(Method::POST, "", None, HeaderMap::new()).await.map_err(|error| error.to_string())?;
    if answer.status.is_success() {
        Ok(())
    } else {
        Err(format!("{} answered {}", reset.base_url(), answer.status))
    }
}

async fn play(script: &Script, servers: &Turns<'_>) -> Vec<Failure> {
    let mut answers = Answers::new();
    let mut failures = Vec::new();
    let mut rest = &script.steps[..];
    while !rest.is_empty() {
        let (group, later) = rest.split_at(group_len(rest, &script.steps));
        rest = later;
        for (step, reason) in send_group(group, servers, &mut answers).await {
            failures.push(Failure { step: step.id.clone(), reason });
        }
        for step in group {
            // A step without an answer has failed already, or is a pause.
            if let Some(answer) = answers.get(&step.id) {
                let reasons = step.assertions.check(answer, &answers);
                failures.extend(reasons.into_iter().map(|reason| Failure { step: step.id.clone(), reason }));
            }
        }
    }
    failures
}

/// How many of the next steps run at the same time: consecutive steps that name another in `parallel_with`,
/// or are named there.
fn group_len(rest: &[Step], all: &[Step]) -> usize {
    let is_named = |step: &Step| all.iter().any(|other| other.parallel_with.as_ref() == Some(&step.id));
    let is_parallel = |step: &&Step| step.parallel_with.is_some() || is_named(step);
    rest.iter().take_while(is_parallel).count().max(1)
}

/// Sends the requests of a group at once, adds the answers, and returns which steps have none and why.
async fn send_group<'a>(
    group: &'a [Step],
    servers: &Turns<'_>,
    answers: &mut Answers,
) -> Vec<(&'a Step, String)> {
    let mut failures = Vec::new();
    let mut requests = JoinSet::new();
    for (number, step) in group.iter().enumerate() {
        match Prepared::new(step, answers) {
            Ok(prepared) => {
                let client = servers.client();
                requests.spawn(async move { (number, prepared.send(&client).await) });
            }
            Err(reason) => failures.push((step, reason)),
        }
    }
    while let Some(joined) = requests.join_next().await {
        match joined {
            Ok((number, Ok(answer))) => {
                answers.extend(answer.map(|answer| (group[number].id.clone(), answer)));
            }
            Ok((number, Err(reason))) => failures.push((&group[number], reason)),
            Err(error) => failures.push((&group[0], format!("the runner itself failed: {error}"))),
        }
    }
    failures
}

/// A step with its templates filled in.
struct Prepared {
    delay: std::time::Duration,
    request: Option<(Method, String, HeaderMap, Option<Bytes>)>,
}

impl Prepared {
    fn new(step: &Step, answers: &Answers) -> Result<Self, String> {
        let request = match &step.action {
            Action::Wait => None,
            Action::Send { method, path, headers, body } => {
                let body = body.as_ref().map(|body| body.render_json(answers)).transpose()?;
                if let Some(text) = &body {
                    // An object spliced in between quotes would be sent as a malformed request, and the
                    // refusal would pass.
                    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|error| {
                        format!("the body is not JSON once its templates are filled in ({error})")
                    })?;
                }
                Some((method.clone(), path.render(answers)?, headers.clone(), body.map(Bytes::from)))
            }
        };
        Ok(Self { delay: step.delay, request })
    }

    async fn send(self, client: &Client) -> Result<Option<Answer>, String> {
        tokio::time::sleep(self.delay).await;
        let Some((method, path, headers, body)) = self.request else { return Ok(None) };
        let sent = Instant::now();
        let response =
            client.request(method, &path, body, headers).await.map_err(|error| error.to_string())?;
        Ok(Some(Answer::new(response, sent.elapsed())))
    }
}
