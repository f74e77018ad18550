//! `/ojs/v1/jobs/batch`: all or nothing. `/ojs/v1/jobs/bulk`: item by item.

use std::collections::HashSet;

use axum::extract::Request;
use http::StatusCode;
use http::request::Parts;
use semel_core::body::Body;
use semel_core::draft::Map;
use semel_core::enqueue::{Batch as Decided, Counts, Mode, Offer, Outcome};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_engine::Job;
use semel_engine::room::{ANSWER_BYTES_MAX, weight};
use semel_ojs::answer::{self, Admitted};
use semel_ojs::batch::Batch;
use semel_ojs::enqueue::once;
use semel_ojs::write::{Object, object};
use semel_ojs::{Code, JobView, Problem};

use crate::App;
use crate::caller::Caller;
use crate::extract;
use crate::jobs::{asked_for, is_own, told};
use crate::replay;
use crate::respond::{Answer, Answered, Refused, if_read, view};
use crate::tenancy::Scope;

/// Approximate size of one job in an answer, in bytes.
const ITEM_BYTES: usize = 700;

/// State of an item before the batch is decided.
enum Item {
    /// The item is to be offered to the engine.
    Offered(Box<(Offer, Body)>),
    /// The item was stored before, and can no longer be read or is no longer permitted: the earlier outcome answers it.
    Answered(Outcome),
    /// The item is refused.
    Refused(Problem),
}

/// An item's body if it is offered, and its outcome if that is already known.
type Taken = (Option<Body>, Option<Outcome>);

/// An item's body if it was offered, or why the item was refused before that.
type Sent = Result<Option<Body>, Problem>;

/// Reads the items of a batch, each with its own part of the batch's `Idempotency-Key`.
async fn read(app: &App, caller: &Caller, parts: &Parts, text: &str) -> Result<Vec<Item>, Refused> {
    let batch = Batch::parse(text)?;
    let templates = app.templates();
    let terms = caller.terms(app, &templates);
    let mut items = Vec::with_capacity(batch.len());
    let (mut unread, mut sent) = (Vec::new(), Vec::new());
    for (index, (item, text)) in batch.requests(terms).zip(batch.texts()).enumerate() {
        let key = extract::idempotency(parts, app, caller, Some(index))?;
        let item = item.and_then(|request| extract::traced(parts, request));
        let item = item.and_then(|request| match key {
            Some(key) => request.once(text, key, terms.tenant),
            None => Ok(request),
        });
        items.push(match item {
            Ok(request) => {
                let (offer, body) = request.into_parts();
                match caller.check_queue(offer.queue.name()) {
                    Ok(()) => Item::Offered(Box::new((offer, body))),
                    Err(problem) => {
                        unread.push(index);
                        sent.push(offer.once);
                        Item::Refused(problem)
                    }
                }
            }
            Err(invalid) => {
                unread.push(index);
                sent.push(key.and_then(|key| once(text, key, terms.tenant).ok()));
                Item::Refused(invalid.into())
            }
        });
    }
    let answers = replay::answers(app, caller, parts, sent).await?;
    for (index, answer) in unread.into_iter().zip(answers) {
        if let (Some(item), Some(answer)) = (items.get_mut(index), answer) {
            *item = match answer {
                Ok(outcome) => Item::Answered(outcome),
                Err(problem) => Item::Refused(problem),
            };
        }
    }
    Ok(items)
}

/// `POST /jobs/batch`.
pub(crate) async fn all_or_nothing(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (parts, text) = extract::text(request, app.config.batch_bytes_max).await?;
    let mut offers = Vec::new();
    let mut items: Vec<Taken> = Vec::new();
    let mut offered = Vec::new();
    for (index, item) in read(&app, &caller, &parts, &text).await?.into_iter().enumerate() {
        match item {
            Item::Offered(item) => {
                let (offer, body) = *item;
                offers.push(offer);
                offered.push(index);
                items.push((Some(body), None));
            }
            Item::Answered(outcome) => match told(&caller, &outcome) {
                Ok(_) => items.push((None, Some(outcome))),
                Err(refused) => return Err(Refused { problem: refused.problem.at_index(index), ..refused }),
            },
            Item::Refused(problem) => return Err(problem.at_index(index).into()),
        }
    }
    let ids: Vec<Option<JobId>> = offers.iter().map(|offer| offer.id).collect();
    let decided = app.engine.enqueue_batch(offers, Mode::AllOrNothing, &extract::source(&parts)).await?;
    let decided = match decided {
        Decided::Done(outcomes) => outcomes,
        Decided::Refused { index, outcome } => {
            let refused = match outcome {
                // The item with this id is not stored either.
                Outcome::IdTaken(id) if ids.iter().take(index).any(|earlier| *earlier == Some(id)) => {
                    id_twice().into()
                }
                outcome => told(&caller, &outcome).err().unwrap_or_else(Refused::out_of_step),
            };
            let index = offered.get(index).copied().unwrap_or(index);
            return Err(Refused { problem: refused.problem.at_index(index), ..refused });
        }
    };
    if decided.len() != offered.len() {
        return Err(Refused::out_of_step());
    }
    let mut decided = decided.into_iter();
    let (mut bodies, mut outcomes) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
    for (body, known) in items {
        bodies.push(body);
        outcomes.push(known.or_else(|| decided.next()).ok_or_else(Refused::out_of_step)?);
    }
    let mut stored = Stored::read(&app, &caller, &parts, &outcomes).await;
    let mut out = String::with_capacity(ITEM_BYTES * outcomes.len() + 64);
    let mut outer = Object::open(&mut out);
    let jobs = outer.member("jobs");
    jobs.push('[');
    for (at, (outcome, body)) in outcomes.iter().zip(&bodies).enumerate() {
        if at > 0 {
            jobs.push(',');
        }
        let (head, how) = told(&caller, outcome)?;
        stored.show(head, how, body.as_ref(), |view| answer::enqueued_item(view, how, jobs));
    }
    jobs.push(']');
    outer.number("count", outcomes.len());
    answer::put_counts(Counts::of(&outcomes), &mut outer);
    outer.close();
    Ok(said_again(Answer::status(StatusCode::CREATED, out), &outcomes))
}

/// Marks the answer as replayed if the same requests stored all of its items before.
fn said_again(answer: Answer, outcomes: &[Outcome]) -> Answer {
    let is_replay =
        !outcomes.is_empty() && outcomes.iter().all(|outcome| matches!(outcome, Outcome::Repeated(_)));
    if is_replay { answer.replayed() } else { answer }
}

fn id_twice() -> Problem {
    Problem::new(
        Code::Duplicate,
        "an earlier item of the batch has the same job id but different content; leave `id` out, or use a new one",
    )
    .with_details(|object| object.plain("pointer", "/id"))
}

/// `POST /jobs/bulk`: 200 if every item was admitted, 422 if none was, else 207.
pub(crate) async fn each(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (parts, text) = extract::text(request, app.config.batch_bytes_max).await?;
    let mut offers = Vec::new();
    let mut items: Vec<Result<Taken, Problem>> = Vec::new();
    for item in read(&app, &caller, &parts, &text).await? {
        items.push(match item {
            Item::Offered(item) => {
                let (offer, body) = *item;
                offers.push(offer);
                Ok((Some(body), None))
            }
            Item::Answered(outcome) => Ok((None, Some(outcome))),
            Item::Refused(problem) => Err(problem),
        });
    }
    let decided = if offers.is_empty() {
        Vec::new()
    } else {
        match app.engine.enqueue_batch(offers, Mode::Each, &extract::source(&parts)).await? {
            Decided::Done(outcomes) => outcomes,
            Decided::Refused { .. } => return Err(Refused::out_of_step()),
        }
    };
    let (items, outcomes) = with_outcomes(items, decided)?;
    let mut stored = Stored::read(&app, &caller, &parts, &outcomes).await;
    let mut counts = Counts::of(&outcomes);
    let mut decided = outcomes.iter();
    let mut out = String::with_capacity(ITEM_BYTES * items.len() + 128);
    let mut outer = Object::open(&mut out);
    let results = outer.member("results");
    results.push('[');
    let mut failed = 0;
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            results.push(',');
        }
        let verdict = match item {
            Err(problem) => {
                counts.rejected += 1;
                Err(problem.clone())
            }
            Ok(body) => {
                let outcome = decided.next().ok_or_else(Refused::out_of_step)?;
                told(&caller, outcome).map_err(|refused| refused.problem).map(|told| (told, body))
            }
        };
        match verdict {
            Ok(((head, how), body)) => {
                stored.show(head, how, body.as_ref(), |view| put_result(at, Ok((view, how)), results));
            }
            Err(problem) => {
                failed += 1;
                put_result(at, Err(problem), results);
            }
        }
    }
    results.push(']');
    answer::put_counts(counts, &mut outer);
    outer.number("total", items.len());
    outer.number("succeeded", items.len() - failed);
    outer.number("failed", failed);
    outer.close();
    let status = match failed {
        0 => StatusCode::OK,
        all if all == items.len() => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::MULTI_STATUS,
    };
    let answer = Answer::status(status, out);
    Ok(if failed == 0 { said_again(answer, &outcomes) } else { answer })
}

/// All items, and the outcomes of those that were not refused before the decision, in item order.
fn with_outcomes(
    items: Vec<Result<Taken, Problem>>,
    decided: Vec<Outcome>,
) -> Result<(Vec<Sent>, Vec<Outcome>), Refused> {
    let mut decided = decided.into_iter();
    let (mut sent, mut outcomes) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
    for item in items {
        sent.push(match item {
            Ok((body, known)) => {
                outcomes.push(known.or_else(|| decided.next()).ok_or_else(Refused::out_of_step)?);
                Ok(body)
            }
            Err(problem) => Err(problem),
        });
    }
    Ok((sent, outcomes))
}

fn put_result(index: usize, verdict: Result<(&JobView<'_>, Admitted<'_>), Problem>, out: &mut String) {
    object(out, |object| {
        object.number("index", index);
        match verdict {
            Ok((view, how)) => {
                object.plain("status", if how.is_deduplicated() { "duplicate" } else { "created" });
                object.plain("outcome", how.name());
                object.plain("job_id", view.head.id);
                answer::enqueued_item(view, how, object.member("job"));
            }
            Err(problem) => {
                object.plain("status", "failed");
                object.number("code", problem.status());
                problem.put(object, None);
            }
        }
    });
}

/// Jobs that answer items but were not created by them, as far as the answer has room.
struct Stored {
    jobs: Map<JobId, Job>,
    /// Whether the caller may not see these jobs.
    are_hidden: bool,
    /// Bytes of these jobs that were shown whole so far.
    shown: usize,
}

impl Stored {
    async fn read(app: &App, caller: &Caller, parts: &Parts, outcomes: &[Outcome]) -> Self {
        let are_hidden = !caller.inspect();
        if are_hidden {
            return Self { jobs: Map::default(), are_hidden, shown: 0 };
        }
        let mut seen = HashSet::new();
        let others = outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Repeated(head) | Outcome::Amended(head) | Outcome::Existing(head) => Some(head.id),
            _ => None,
        });
        let ids: Vec<JobId> = others.clone().filter(|id| seen.insert(*id)).collect();
        let (jobs, _) = if_read(app.engine.whole(&ids).await);
        let mut jobs: Map<JobId, Job> = jobs.into_iter().map(|job| (job.head.id, job)).collect();
        // A job is shown once for each item that it answers.
        let bytes: usize = others.filter_map(|id| jobs.get(&id)).map(weight).sum();
        // The outcomes are reported in any case; without room for whole jobs, with their heads only.
        if extract::answered(parts, bytes.min(ANSWER_BYTES_MAX)).is_err() {
            jobs.clear();
        }
        Self { jobs, are_hidden, shown: 0 }
    }

    /// Shows an item's job. A job that the item created is shown as requested. Any other job is shown whole, or
    /// by its head if there is no room; a caller who may not inspect it sees only what the item itself asked for.
    fn show<T>(
        &mut self,
        head: &Head,
        how: Admitted<'_>,
        body: Option<&Body>,
        show: impl FnOnce(&JobView<'_>) -> T,
    ) -> T {
        let own = asked_for(head, body);
        if is_own(how) {
            return show(&own);
        }
        if self.are_hidden {
            return show(&JobView { is_curt: true, ..own });
        }
        match self.jobs.get(&head.id).filter(|_| self.shown < ANSWER_BYTES_MAX) {
            Some(job) => {
                self.shown += weight(job);
                show(&view(job))
            }
            None => show(&JobView::bare(head)),
        }
    }
}
