//! Whatever a head, a body or a note may hold, it is read back as it was written.

use std::sync::atomic::{AtomicU32, Ordering};

use semel_core::draft::{DocumentKey, DocumentKind, Draft, KeyRead, Reads};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::job::{Ending, Head, Lease, NoteKind, Role};
use semel_core::state::{State, StateSet};
use semel_core::time::Timestamp;
use semel_core::unique::{Disclose, Hold, Period, PeriodFrom, UniqueKey};
use semel_store::backend::Verdict;

use crate::fixture::{Fixture, bytes};
use crate::make::{foreign_id, job, keyed};

/// Stores a job with the given head fields, and returns the head as it should be stored.
async fn dressed(f: &Fixture, minted: bool, dress: impl Fn(&mut Head)) -> Head {
    static CHOSEN: AtomicU32 = AtomicU32::new(100);
    let id = (!minted).then(|| foreign_id(CHOSEN.fetch_add(1, Ordering::Relaxed)));
    let (offer, mut draft) = (keyed("dress").offer(), f.draft(&Reads::default()).await);
    let id = id.unwrap_or_else(|| draft.mint());
    let mut head = blank(&draft, id);
    dress(&mut head);
    if let Some(key) = head.key {
        // A decision writes no job with a key before it has looked at the key.
        let keys = vec![KeyRead { key, states: StateSet::ALL, all: true }];
        draft.extend(f.load(&Reads { keys, ..Reads::default() }).await);
    }
    // What an insert cannot hold comes with an update, as in real use.
    let at_first = Head {
        attempt: 0,
        lease: None,
        follow_up: None,
        ending: None,
        started_at: None,
        finished_at: None,
        renewed_at: None,
        state: State::Available,
        ..head.clone()
    };
    draft.insert(at_first, offer.body, minted);
    let inserted = draft.finish();
    draft.update(&mut head);
    let updated = draft.finish();
    assert_eq!(f.commit(vec![inserted, updated]).await, [Verdict::Applied; 2]);
    head
}

fn blank(draft: &Draft, id: JobId) -> Head {
    Head {
        id,
        key: None,
        hold: Hold::NONE,
        job_type: JobType::from_stored("a"),
        queue: QueueName::from_stored("q"),
        priority: 0,
        state: State::Available,
        role: Role::Plain,
        attempt: 0,
        max_attempts: 0,
        visibility_ms: 0,
        timeout_ms: 0,
        version: draft.next_version(0),
        fence: 0,
        created_at: draft.now(),
        available_at: draft.now(),
        expires_at: None,
        started_at: None,
        finished_at: None,
        renewed_at: None,
        until: None,
        lane: None,
        lease: None,
        follow_up: None,
        ending: None,
        awaited: false,
    }
}

/// Reads the job back, filed or not.
async fn check(f: &Fixture, minted: bool, dress: impl Fn(&mut Head)) {
    let head = dressed(f, minted, dress).await;
    for _ in 0..2 {
        assert_eq!(f.head(head.id).await.as_ref(), Some(&head));
        assert_eq!(f.full(head.id).await.unwrap().0, head);
        f.maintain().await;
    }
}

/// As when several requests ask for the same record at once.
pub async fn what_is_named_twice_comes_back_once(f: &Fixture) {
    let held = f.create(&keyed("a").offer()).await;
    for _ in 0..2 {
        f.create(&job().offer()).await;
    }
    let (id, queue) = (held.id, held.queue.clone());
    let read = KeyRead { key: held.key.unwrap(), states: StateSet::ALL, all: true };
    let reads = Reads {
        heads: vec![id, id],
        fulls: vec![id, id],
        keys: vec![read, read],
        queues: vec![queue.clone(), queue.clone(), queue.clone()],
        ..Reads::default()
    };
    let snapshot = f.load(&reads).await;
    assert_eq!(snapshot.peek(id).map(|(head, _)| head), Some(&held));
    assert_eq!(snapshot.peek_key(&read.key).unwrap().holders, [held]);
    assert_eq!(snapshot.peek_queue(&queue).map(|(_, waiting)| waiting), Some(3));
}

/// This holds for every way of reading it.
pub async fn a_plain_job_comes_back_as_it_was_written(f: &Fixture) {
    for want in [job(), keyed("a"), keyed("b").id(foreign_id(1)), job().times(1, 2).priority(-7).attempts(9)]
    {
        let offer = want.args(r#"[{"å":"\u0000"}]"#).body(|body| body.tags = vec!["t".to_owned()]).offer();
        let head = f.create(&offer).await;
        let (stored, full) = f.full(head.id).await.unwrap();
        assert_eq!((stored, full.body, full.notes.len()), (head, offer.body, 0));
    }
}

/// Every number at its limits.
pub async fn the_largest_values_come_back(f: &Fixture) {
    let late = Timestamp::from_micros(253_402_300_799_999_999);
    for minted in [true, false] {
        check(f, minted, |head| {
            head.priority = i8::MIN;
            (head.max_attempts, head.attempt) = (u32::MAX, u32::MAX);
            (head.visibility_ms, head.timeout_ms) = (u32::MAX, u32::MAX);
            (head.available_at, head.expires_at) = (late, Some(late));
            head.fence = i64::MAX as u64;
            (head.created_at, head.started_at) = (Timestamp::EPOCH, Some(Timestamp::EPOCH));
            head.renewed_at = Some(Timestamp::from_micros(-1));
            head.until = Some(late);
            head.state = State::Active;
            head.lease = Some(Box::new(Lease {
                worker: "w".repeat(255).into(),
                visible_until: late,
                run_until: Timestamp::MAX,
            }));
            head.follow_up = Some(JobId::from_bytes([0xff; 16]));
        })
        .await;
        check(f, minted, |head| {
            head.priority = i8::MAX;
            head.expires_at = Some(Timestamp::EPOCH);
            head.state = State::Active;
            head.lease = Some(Box::new(Lease {
                worker: "".into(),
                visible_until: Timestamp::EPOCH,
                run_until: Timestamp::from_micros(1),
            }));
            head.follow_up = Some(JobId::from_bytes([0; 16]));
        })
        .await;
    }
}

/// States, roles and endings are stored by fixed numbers.
pub async fn every_state_role_and_ending_comes_back(f: &Fixture) {
    let endings = [
        Ending::Completed,
        Ending::Cancelled,
        Ending::Replaced,
        Ending::Failed,
        Ending::DeadLetter,
        Ending::Expired,
    ];
    for state in State::ALL {
        for role in [Role::Plain, Role::FollowUp] {
            check(f, true, |head| (head.state, head.role) = (state, role)).await;
        }
    }
    for ending in endings {
        check(f, true, |head| {
            (head.state, head.ending) = (State::Discarded, Some(ending));
            head.finished_at = Some(head.created_at);
            (head.attempt, head.fence) = (2, 77);
        })
        .await;
    }
}

/// Both as part of the head and as the memory of a purged job.
pub async fn every_hold_comes_back(f: &Fixture) {
    let periods = [None, Period::new(1, 0), Period::new(0, 1), Period::new(1_199, 86_399_999_999)];
    let mut number = 0_u8;
    for period in periods {
        for &from in PeriodFrom::ALL {
            for disclose in [Disclose::Always, Disclose::Never] {
                number += 1;
                let hold = Hold::new(StateSet::from_bits(number | 1), from, period, disclose);
                let key = UniqueKey::from_bytes([number; 32]);
                let head = dressed(f, true, |head| {
                    (head.hold, head.key) = (hold, Some(key));
                    (head.state, head.ending) = (State::Completed, Some(Ending::Completed));
                    head.finished_at = Some(head.created_at);
                })
                .await;
                assert_eq!(f.head(head.id).await.unwrap().hold, hold);
                f.maintain().await;
                assert_eq!(f.head(head.id).await, Some(head));
                let remembered = f.holders(key).await;
                assert_eq!(remembered.iter().map(|head| head.hold).collect::<Vec<_>>(), [hold]);
            }
        }
    }
}

/// Every kind, empty and large, on live and filed jobs.
pub async fn every_note_comes_back(f: &Fixture) {
    let live = f.create(&job().offer()).await;
    let ended = f.finished(&job().priority(1).offer()).await;
    f.maintain().await;
    for head in [live, ended] {
        let texts: Vec<_> = NoteKind::ALL
            .into_iter()
            .map(|kind| (kind, bytes(&"\u{0}x".repeat(usize::from(kind.code()) * 3_000))))
            .collect();
        f.decide_on(&Reads { heads: vec![head.id], ..Reads::default() }, |draft| {
            let mut head = draft.head(head.id)?.unwrap();
            draft.update(&mut head);
            for (kind, text) in &texts {
                draft.note(head.id, *kind, Some(text.clone()));
            }
            Ok(())
        })
        .await;
        f.maintain().await;
        assert_eq!(f.full(head.id).await.unwrap().1.notes, texts);
    }
}

/// One of a megabyte, and an empty one.
pub async fn a_large_body_comes_back(f: &Fixture) {
    let offer = job().args(&format!("[\"{}\"]", "x".repeat(1 << 20))).offer();
    let large = f.create(&offer).await;
    let mut draft = f.draft(&Reads::default()).await;
    let empty = blank(&draft, foreign_id(1));
    draft.insert(empty.clone(), bytes(""), false);
    f.commit(vec![draft.finish()]).await;
    assert_eq!(f.full(large.id).await.unwrap().1.body, offer.body);
    assert_eq!(f.full(empty.id).await.unwrap().1.body, bytes(""));
    assert_eq!(f.claim("q", 1).await.jobs[0].1.body, bytes(""));
}

/// Whatever row a foreign id seems to name.
pub async fn the_oldest_and_youngest_ids_come_back(f: &Fixture) {
    let minted = f.create(&job().offer()).await;
    let far = Timestamp::from_millis((1 << 48) - 1);
    let ids = [
        JobId::mint(Timestamp::EPOCH, 0, 0),
        JobId::mint(Timestamp::EPOCH, minted.id.row(), 1),
        JobId::mint(far, minted.id.row() + 1, 2),
        JobId::mint(far, JobId::ROW_MAX, u32::MAX),
    ];
    let mut heads = vec![minted];
    for id in ids {
        heads.push(f.create(&job().id(id).offer()).await);
    }
    heads.push(f.create(&job().offer()).await);
    for head in &heads {
        assert_eq!(f.head(head.id).await.as_ref(), Some(head));
    }
    let claimed = f.claim("default", 10).await.jobs;
    assert_eq!(claimed.len(), heads.len());
    for (run, _) in &claimed {
        f.complete(run).await;
    }
    f.maintain().await;
    for head in &heads {
        assert_eq!(f.head(head.id).await.unwrap().state, State::Completed);
    }
}

/// Names at their maximum length.
pub async fn long_names_come_back(f: &Fixture) {
    let (name, queue) = ("t".repeat(255), "q".repeat(128));
    let head = f.create(&job().of_type(&name).queue(&queue).offer()).await;
    // A type and a queue of the same name are different things.
    let same = f.create(&job().of_type("same").queue("same").offer()).await;
    let found = f.head(head.id).await.unwrap();
    assert_eq!((found.job_type.as_str(), found.queue.as_str()), (&*name, &*queue));
    assert_eq!(f.head(same.id).await, Some(same));
    assert_eq!(f.queue(&queue).await.unwrap().created, 1);
}

/// Reads of heads, whole jobs, keys and queues.
pub async fn a_read_of_what_is_not_there_says_so(f: &Fixture) {
    let key = crate::make::key("nobody");
    let name = QueueName::from_stored("nowhere");
    let read = KeyRead { key, states: StateSet::ALL, all: true };
    let reads = Reads {
        heads: vec![foreign_id(1)],
        fulls: vec![foreign_id(2)],
        keys: vec![read],
        queues: vec![name.clone()],
        documents: vec![DocumentKey::new(DocumentKind::Cron, "none")],
    };
    let mut draft = f.draft(&reads).await;
    assert_eq!(draft.head(foreign_id(1)), Ok(None));
    assert_eq!(draft.full(foreign_id(2)), Ok(None));
    assert!(draft.key(&read).unwrap().holders.is_empty());
    assert_eq!(draft.queue(&name).unwrap().version, 0);
    assert_eq!(draft.document(&DocumentKey::new(DocumentKind::Cron, "none")), Ok(None));
    assert!(draft.head(foreign_id(3)).is_err(), "what was not asked for is missing, not absent");
}
