//! A store with something of everything, and the questions that tell whether another store is its copy.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::cron::Overlap;
use semel_core::draft::{Document, DocumentKey, DocumentKind, QueueRow, Reads};
use semel_core::enqueue::once::Once;
use semel_core::enqueue::{Offer, Outcome};
use semel_core::ident::{JobId, QueueName, WorkflowId};
use semel_core::job::{Head, NoteKind};
use semel_core::lease::Grant;
use semel_core::life;
use semel_core::limit::{self, Limit, Turn};
use semel_core::settings::{Backpressure, Directive, QueueSettings};
use semel_core::settle::Settled;
use semel_core::slot::Due;
use semel_core::state::{State, StateSet};
use semel_core::tenant::{Namespace, Tenant};
use semel_core::unique::{Hold, UniqueKey};
use semel_core::webhook::{DOCUMENT, Subscription, Subscriptions, Wish};
use semel_store::backend::{Filter, Seek};
use semel_store::carry::Part;

use crate::cases::retention;
use crate::fixture::{Fixture, bytes};
use crate::flows::{self, chain, registration};
use crate::make::{Want, foreign_id, job, key, keyed};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Texts of the keys in a store that was [filled](fill).
const KEYS: [&str; 14] = [
    "purged",
    "chosen and purged",
    "forgotten",
    "released",
    "often",
    "completed",
    "cancelled",
    "discarded",
    "dead",
    "scheduled",
    "pending",
    "retryable",
    "run",
    "sliding",
];

/// What is known about a store that was [filled](fill).
#[derive(Clone, Debug)]
pub struct Filled {
    /// A job that is running.
    run: Head,
    /// A run, and the follow-up that waits for its end.
    followed: (Head, JobId),
    /// A workflow half-way through.
    workflow: WorkflowId,
    /// A job under a limit that another job uses up.
    limited: JobId,
    /// The job whose args hold what webhooks know of the log.
    paper: JobId,
}

fn strict(text: &str) -> Want {
    keyed(text).states(StateSet::ALL)
}

fn request() -> Offer {
    Offer { once: Some(Once { key: key("request"), digest: [9; 32] }), ..job().queue("once").offer() }
}

fn wish() -> Want {
    keyed("followed").on_conflict("follow_up").queue("follow")
}

async fn claim_one(f: &Fixture, queue: &str) -> Head {
    f.claim(queue, 1).await.jobs.remove(0).0
}

/// Fills an empty store through the requests of callers, workers and operators.
///
/// It gets jobs in every state, windows, keys remembered after their jobs are gone, absorbed requests, crons,
/// a half-done workflow, limits, settings and leases.
pub async fn fill(f: &Fixture) -> Filled {
    f.finished(&strict("purged").period(DAY * 400, "created").offer()).await;
    f.finished(&strict("chosen and purged").id(foreign_id(8)).offer()).await;
    f.finished(&keyed("forgotten").offer()).await;
    f.advance(DAY * 2).await;
    assert_eq!(f.purge().await, 3);
    // The last holder outlives the first ones: they are released with it, without a record of their own.
    for _ in 0..3 {
        f.finished(&keyed("released").offer()).await;
        f.advance(SECOND).await;
    }
    f.decide(|draft| life::release_key(draft, key("released"))).await;
    // The same with jobs that are kept for longer than the default.
    let rules = retention::rules(DAY * 30);
    for _ in 0..9 {
        retention::finished(f, &rules, &keyed("often")).await;
        f.advance(SECOND).await;
    }
    f.finished(&strict("completed").id(foreign_id(7)).offer()).await;
    f.finished(&strict("sliding").period(DAY, "last_duplicate").offer()).await;
    let cancelled = f.create(&strict("cancelled").offer()).await;
    f.cancel(cancelled.id).await;
    f.create(&strict("discarded").attempts(1).queue("fails").offer()).await;
    f.fail(&claim_one(f, "fails").await).await;
    f.create(&strict("dead").attempts(1).dead_letter().queue("fails").offer()).await;
    f.fail(&claim_one(f, "fails").await).await;
    f.create(&keyed("retryable").queue("fails").offer()).await;
    f.fail(&claim_one(f, "fails").await).await;
    f.create(&keyed("scheduled").later(HOUR).expires(DAY).priority(7).offer()).await;
    f.create(&keyed("pending").pending().offer()).await;
    f.create(&job().args(r#"[{"without": "a key"}]"#).offer()).await;
    f.create(&keyed("run").queue("run").offer()).await;
    let run = claim_one(f, "run").await;
    f.create(&wish().offer()).await;
    let first = claim_one(f, "follow").await;
    let next = f.create(&wish().id(foreign_id(1)).offer()).await;
    f.enqueue(&wish().id(foreign_id(2)).digest(2).offer()).await;
    f.create(&request()).await;
    let steps = [0; 3].map(|_| job().queue("flow").offer());
    let (workflow, _) = flows::create(f, &chain(steps)).await;
    f.complete(&claim_one(f, "flow").await).await;
    flows::register(f, "nightly", &registration("* * * * *", Overlap::Skip, job().queue("cron").offer()))
        .await;
    let limit = Limit { key: "k".into(), concurrency: Some(1), rate: None };
    let under = || Offer { limit: Some(limit.clone()), ..job().queue("limited").offer() };
    let (granted, limited) = (f.create(&under()).await, f.create(&under()).await);
    assert!(is_granted(f, granted.id).await && !is_granted(f, limited.id).await);
    let paused = QueueName::from_stored("paused");
    f.create(&job().queue("paused").offer()).await;
    f.decide(|draft| life::set_paused(draft, &paused, true)).await;
    let bound = Backpressure { max_depth: 1, warning_threshold: 0.5 };
    let settings = QueueSettings { backpressure: Some(bound) };
    f.decide(|draft| life::set_queue(draft, &paused, &settings)).await;
    f.decide(|draft| life::direct(draft, "w", Directive::Quiet)).await;
    let paper = paper(f).await;
    Filled { run, followed: (first, next.id), workflow, limited: limited.id, paper }
}

/// Creates the job whose args hold what webhooks know of the log.
async fn paper(f: &Fixture) -> JobId {
    let log = f.backend().events(0, 1).await.unwrap().newest;
    let space = Namespace::new(Tenant::system(), &f.backend().secret());
    let queue = space.stored_queue(&QueueName::from_stored("documents"));
    let offer = job().of_type(DOCUMENT).queue(queue.as_str()).pending().offer();
    let head = f.create(&offer).await;
    let subscription = Subscription {
        id: "s".to_owned(),
        tenant: String::new(),
        wish: Wish { url: "https://example.com".to_owned(), active: true, ..Wish::default() },
        created_at: 1,
        after: log,
        epoch: 0,
    };
    let list = Subscriptions(vec![subscription]).payload();
    f.decide(|draft| {
        let Some(mut head) = draft.head(head.id)? else { return Ok(()) };
        draft.update(&mut head);
        draft.note(head.id, NoteKind::Payload, Some(list.clone()));
        draft.note(head.id, NoteKind::Progress, Some(bytes(&log.to_string())));
        Ok(())
    })
    .await;
    head.id
}

async fn is_granted(f: &Fixture, id: JobId) -> bool {
    let turn =
        f.decide(|draft| Ok(limit::claim(draft, &[id], &Grant::new("w".into(), None), 1)?.remove(0).1));
    matches!(turn.await, Turn::Granted(_))
}

/// All jobs by id, each with the key that it holds.
async fn jobs(f: &Fixture) -> Vec<Head> {
    let mut filter = Filter { limit: 7, ..Filter::default() };
    let mut found = Vec::new();
    loop {
        let listing = f.backend().list(filter.clone()).await.unwrap();
        found.extend(listing.heads);
        let Some(next) = listing.next else { break };
        filter.before = Some(next);
    }
    for head in &mut found {
        if let Some(key) = head.key
            && head.state.is_finished()
            && f.holders(key).await.iter().all(|holder| holder.id != head.id)
        {
            head.key = None;
        }
        if head.key.is_none() {
            // The hold says how a key is held; not every store keeps it for a job without a key.
            head.hold = Hold::NONE;
        }
    }
    found.sort_by_key(|head| head.id);
    found
}

async fn documents(f: &Fixture) -> Vec<(DocumentKey, Document)> {
    let mut found = Vec::new();
    for kind in DocumentKind::ALL {
        let seek = Seek::Kind { kind, from: None, descending: false, limit: 1_000 };
        found.extend(f.backend().documents(seek).await.unwrap().documents);
    }
    found
}

async fn rows(f: &Fixture) -> BTreeMap<String, QueueRow> {
    let (mut found, mut after) = (BTreeMap::new(), None);
    loop {
        let piece = f.backend().rest(Part::Rows, after, 2).await.unwrap();
        found.extend(piece.rows.into_iter().map(|row| (row.name.as_str().to_owned(), row)));
        after = piece.next;
        if after.is_none() {
            return found;
        }
    }
}

/// Heads kept for their keys alone, reduced to what all stores keep of them.
async fn remembered(f: &Fixture) -> BTreeMap<JobId, String> {
    let (mut found, mut after) = (BTreeMap::new(), None);
    loop {
        let piece = f.backend().rest(Part::Remembered, after, 1).await.unwrap();
        let shown = |head: Head, until| {
            let Head { key, hold, state, version, fence, created_at, finished_at, renewed_at, .. } = head;
            format!(
                "{key:?} {hold:?} {state:?} {version} {fence} {created_at:?} {finished_at:?} {renewed_at:?} {until:?}"
            )
        };
        found.extend(piece.heads.into_iter().map(|(head, until)| (head.id, shown(head, until))));
        after = piece.next;
        if after.is_none() {
            return found;
        }
    }
}

/// The holders that a key leads to, reduced to what decisions depend on.
async fn holders(f: &Fixture, key: UniqueKey) -> Vec<String> {
    let holders = f.holders(key).await.into_iter();
    holders.map(|head| format!("{} {:?} {} {:?}", head.id, head.state, head.fence, head.renewed_at)).collect()
}

/// Asserts that both stores answer every question alike.
pub async fn same(original: &Fixture, copy: &Fixture, filled: &Filled) {
    let (known, found) = (jobs(original).await, jobs(copy).await);
    assert_eq!(known, found);
    assert!(known.len() > 20 && State::ALL.iter().all(|state| known.iter().any(|head| head.state == *state)));
    for head in &known {
        let (known, found) = (original.full(head.id).await, copy.full(head.id).await);
        if head.id == filled.paper {
            let log = copy.backend().events(0, 1).await.unwrap();
            let (_, full) = found.unwrap();
            let begin = Subscriptions::of(&full).unwrap().0[0].after;
            assert!((log.kept_after..=log.newest).contains(&begin), "its log is another: {begin} {log:?}");
            assert_eq!(full.note(NoteKind::Progress), Some(&bytes(&begin.to_string())));
        } else {
            let whole = |found: Option<(Head, _)>| found.map(|(head, full)| (head.version, full));
            assert_eq!(whole(known), whole(found), "{}", head.id);
        }
    }
    assert_eq!(documents(original).await, documents(copy).await);
    assert_eq!(rows(original).await, rows(copy).await);
    let kept = remembered(original).await;
    assert_eq!((kept.len(), &kept), (2, &remembered(copy).await));
    for text in KEYS {
        assert_eq!(holders(original, key(text)).await, holders(copy, key(text)).await, "{text}");
    }
    for due in Due::ALL {
        assert_eq!(original.due(due, 50).await, copy.due(due, 50).await);
    }
    let spent = Reads { fulls: vec![foreign_id(2)], ..Reads::default() };
    let whose = original.load(&spent).await.peek_spent(foreign_id(2));
    assert_eq!(whose.unwrap().job, filled.followed.1);
    assert_eq!(whose, copy.load(&spent).await.peek_spent(foreign_id(2)));
    for queue in copy.backend().queues().await.unwrap() {
        if !queue.row.name.is_queue() {
            continue;
        }
        let known = original.queue(queue.row.name.as_str()).await.unwrap();
        assert_eq!((known.counts, known.oldest_ready), (queue.counts, queue.oldest_ready), "{:?}", queue.row);
        assert_eq!(queue.created, queue.counts.iter().sum::<u64>() + queue.purged);
    }
    assert!(copy.now().await >= original.now().await);
    // No reader of the original's log can continue with its cursor in the copy's log.
    let old = original.backend().events(0, 1_000).await.unwrap();
    let new = copy.backend().events(0, 1_000).await.unwrap();
    assert!(new.events.is_empty() && new.kept_after <= new.newest);
    // A reader that had read the whole log misses nothing.
    let goes_on = |cursor| cursor != old.newest && new.place(cursor) == semel_core::event::Place::Kept;
    assert!(!old.events.iter().any(|event| goes_on(event.cursor)));
}

/// What callers and workers are told from now on: a store and its copy must give the same. Moves the clock.
pub async fn go_on(f: &Fixture, filled: &Filled) -> Vec<String> {
    let mut told = Vec::new();
    for text in KEYS {
        let outcome = f.enqueue(&strict(text).queue("again").offer()).await;
        told.push(format!("{text}: {}", said(&outcome)));
    }
    for want in [
        strict("completed").id(foreign_id(7)),
        job().id(foreign_id(8)),
        wish().id(foreign_id(1)),
        wish().id(foreign_id(2)).digest(2),
    ] {
        told.push(said(&f.enqueue(&want.offer()).await));
    }
    told.push(said(&f.enqueue(&request()).await));
    told.push(format!("limited {}", is_granted(f, filled.limited).await));
    told.push(format!("paused {}", f.claim("paused", 5).await.jobs.len()));
    let bounded = job().queue("paused").bounded().offer();
    told.push(format!("bounded {}", f.enqueue(&bounded).await.is_inserted()));
    let late = Head { fence: filled.run.fence - 1, ..filled.run.clone() };
    assert!(matches!(f.complete(&late).await, Settled::Refused(_)), "its fence is an older one");
    f.complete(&filled.run).await;
    told.push(format!("ended {:?}", f.head(filled.run.id).await.unwrap().state));
    f.complete(&filled.followed.0).await;
    told.push(format!("follow-up {:?}", f.head(filled.followed.1).await.unwrap().state));
    let again = claim_one(f, "follow").await;
    assert!(again.fence > filled.followed.0.fence, "fences of a key ascend");
    f.complete(&claim_one(f, "flow").await).await;
    told.push(format!("workflow {}", flows::statuses(f, filled.workflow).await));
    f.advance(DAY).await;
    f.run_duties().await;
    let ticked = matches!(flows::look(f, "nightly").await, semel_core::cron::Looked::Ticked(_));
    told.push(format!("ticked {ticked} {}", f.claim("cron", 5).await.jobs.len()));
    let mut states: Vec<State> = jobs(f).await.into_iter().map(|head| head.state).collect();
    states.sort_unstable_by_key(|state| state.code());
    told.push(format!("{states:?}"));
    f.advance(DAY * 250).await;
    let purged = f.purge().await;
    told.push(format!("purged {purged} {}", f.backend().events(0, 1).await.unwrap().events.len()));
    for text in ["purged", "completed", "discarded"] {
        told.push(format!("{text}: {}", said(&f.enqueue(&strict(text).offer()).await)));
    }
    told
}

/// A short form of an outcome, without the ids of new jobs, which may differ.
fn said(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Rejected { holder, .. } => format!("rejected {:?}", holder.named().map(|head| head.id)),
        Outcome::Repeated(head) => format!("repeated {}", head.id),
        Outcome::Amended(head) => format!("amended {}", head.id),
        Outcome::IdTaken(id) => format!("taken {id}"),
        other if other.is_inserted() => "created".to_owned(),
        other => format!("{other:?}"),
    }
}
