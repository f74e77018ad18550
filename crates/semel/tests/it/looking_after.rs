//! Looking after a queue from the program: listing jobs, dead letters, held keys and paused queues.

use semel::{Enqueued, Envelope, Error, Handle, JobId, JobState, OnConflict, Retry, Semel, Unique, Worker};
use semel_core::draft::{Draft, Reads};
use semel_core::ident::QueueName;
use semel_core::job::NoteKind;
use semel_core::settings::{Backpressure, QueueSettings};
use semel_store::backend::Claim;
use semel_testkit::calls::wish;

use crate::harness::{Add, Welcome, memory, on_every_store, soon};

fn handle(enqueued: &Enqueued) -> Handle {
    enqueued.job().unwrap().clone()
}

async fn add(semel: &Semel, a: i64) -> JobId {
    semel.enqueue(Add { a, b: 0 }).await.unwrap().id().unwrap()
}

fn once() -> Unique {
    Unique::by_args(["a"])
}

/// A job with a single attempt.
fn fragile(a: i64) -> Envelope {
    Envelope::of(&Add { a, b: 0 }).unique(once()).max_attempts(1).retry(Retry::new().dead_letter())
}

/// Makes a job that has failed for good.
async fn dead_letter(semel: &Semel, a: i64) -> Handle {
    let job = handle(&semel.enqueue(fragile(a)).await.unwrap());
    let working = Worker::new(semel).handle(async |_: Add| Err::<(), _>("no".to_owned())).start().unwrap();
    assert_eq!(soon(job.wait()).await.unwrap().state(), JobState::Discarded);
    working.stop().await;
    job
}

async fn the_jobs_are_told_page_by_page(semel: Semel) {
    let mut added = Vec::new();
    for a in 0..5 {
        added.push(add(&semel, a).await);
    }
    let welcome = handle(&semel.enqueue(Welcome::of(1)).await.unwrap());
    let elsewhere = semel.enqueue(Add { a: 9, b: 9 }).queue("elsewhere").await.unwrap().id().unwrap();
    let ids = |page: &semel::Page| page.jobs.iter().map(semel::Stored::id).collect::<Vec<_>>();

    let (mut seen, mut before, mut pages) = (Vec::new(), None, 0);
    loop {
        let jobs = semel.jobs().of::<Add>().queue("default").limit(2);
        let page = match before {
            Some(id) => jobs.before(id).await.unwrap(),
            None => jobs.await.unwrap(),
        };
        assert!(page.jobs.len() <= 2);
        assert!(page.jobs.iter().all(|job| job.payload::<Add>().is_ok()));
        seen.extend(ids(&page));
        (before, pages) = (page.next, pages + 1);
        if before.is_none() {
            break;
        }
    }
    added.reverse();
    assert_eq!(seen, added, "each once, the newest first");
    assert!(pages >= 3, "{pages}");

    assert_eq!(ids(&semel.jobs().await.unwrap()).len(), 7);
    assert_eq!(ids(&semel.jobs().queue("elsewhere").await.unwrap()), [elsewhere]);
    assert_eq!(ids(&semel.jobs().job_type("email.welcome").await.unwrap()), [welcome.id()]);
    welcome.cancel().await.unwrap();
    assert_eq!(ids(&semel.jobs().state(JobState::Cancelled).await.unwrap()), [welcome.id()]);
    let either = semel.jobs().state(JobState::Cancelled).state(JobState::Available);
    assert_eq!(ids(&either.await.unwrap()).len(), 7);
    assert!(semel.jobs().state(JobState::Active).await.unwrap().jobs.is_empty());
    assert!(semel.jobs().dead_letters().await.unwrap().jobs.is_empty());
}

async fn a_dead_letter_is_sent_back_or_deleted(semel: Semel) {
    let (sent_back, deleted) = (dead_letter(&semel, 1).await, dead_letter(&semel, 2).await);
    let letters = semel.jobs().dead_letters().await.unwrap();
    assert_eq!(
        letters.jobs.iter().map(semel::Stored::id).collect::<Vec<_>>(),
        [deleted.id(), sent_back.id()]
    );
    assert_eq!(letters.jobs[0].last_failure(), Some("no"));

    sent_back.retry().await.unwrap();
    let again = sent_back.retry().await.unwrap_err();
    assert!(matches!(again, Error::NoDeadLetter { state: JobState::Available, .. }), "{again}");
    let working = Worker::new(&semel).handle(crate::harness::add).start().unwrap();
    assert_eq!(soon(sent_back.result::<i64>()).await.unwrap(), 1);
    working.stop().await;
    assert_eq!(sent_back.load().await.unwrap().unwrap().attempt(), 1, "its attempts were before it again");

    deleted.delete_dead_letter().await.unwrap();
    assert!(matches!(deleted.load().await, Ok(None)));
    assert!(matches!(deleted.retry().await, Err(Error::Gone(_))));
    assert!(matches!(deleted.delete_dead_letter().await, Err(Error::Gone(_))));
    let completed = sent_back.delete_dead_letter().await.unwrap_err();
    assert!(matches!(completed, Error::NoDeadLetter { state: JobState::Completed, .. }), "{completed}");
    assert!(semel.jobs().dead_letters().await.unwrap().jobs.is_empty());
}

/// A retry is a new admission, by the job's own policy.
async fn a_dead_letter_whose_key_is_held_stays(semel: Semel) {
    let letter = dead_letter(&semel, 1).await;
    let other = handle(&semel.enqueue(fragile(1)).await.unwrap());
    let refused = letter.retry().await.unwrap_err();
    assert!(matches!(&refused, Error::KeyHeld { existing: Some(id), .. } if *id == other.id()), "{refused}");
    assert!(refused.to_string().contains(&other.id().to_string()) && !refused.is_retryable(), "{refused}");
    other.cancel().await.unwrap();
    letter.retry().await.unwrap();
}

async fn a_released_key_is_free(semel: Semel) {
    let first = semel.enqueue(Welcome::of(1)).await.unwrap();
    assert!(!semel.enqueue(Welcome::of(1)).await.unwrap().is_inserted());
    assert_eq!(handle(&first).release_key().await.unwrap(), 1);
    assert_eq!(handle(&first).release_key().await.unwrap(), 0);
    assert!(semel.enqueue(Welcome::of(1)).await.unwrap().is_inserted());
    assert_eq!(handle(&first).load().await.unwrap().unwrap().state(), JobState::Available);
    assert_eq!(semel.job(add(&semel, 1).await).release_key().await.unwrap(), 0, "it never had one");
    let nobody = semel.job("019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f".parse().unwrap());
    assert!(matches!(nobody.release_key().await, Err(Error::Gone(_))));

    let letter = dead_letter(&semel, 7).await;
    assert_eq!(letter.release_key().await.unwrap(), 1);
    let refused = letter.retry().await.unwrap_err();
    assert!(matches!(refused, Error::KeyTaken(_)), "{refused}");
}

async fn a_paused_queue_gives_no_jobs(semel: Semel) {
    let queue = semel.queue("mail").unwrap();
    assert!(queue.load().await.unwrap().is_none());
    queue.pause().await.unwrap();
    assert!(queue.load().await.unwrap().unwrap().is_paused());
    semel.enqueue(Add { a: 1, b: 2 }).queue("mail").await.unwrap();
    semel.enqueue(Add { a: 1, b: 2 }).queue("another").await.unwrap();
    let claim = async || {
        let claim = Claim { queues: vec![QueueName::parse("mail", "").unwrap()], ..wish(1) };
        semel.engine().unwrap().claim(claim).await.unwrap().len()
    };
    assert_eq!(claim().await, 0);
    queue.resume().await.unwrap();
    let mail = queue.load().await.unwrap().unwrap();
    assert_eq!((mail.name(), mail.is_paused(), mail.count(JobState::Available)), ("mail", false, 1));
    assert!(mail.waiting_since().is_some());
    assert_eq!(claim().await, 1);
    let queues = semel.queues().await.unwrap();
    assert_eq!(queues.iter().map(semel::StoredQueue::name).collect::<Vec<_>>(), ["another", "mail"]);
    assert_eq!(queues[1].count(JobState::Active), 1);
    assert_eq!(queues[1].waiting_since(), None);
    assert!(matches!(semel.queue("Not A Queue"), Err(Error::Invalid { .. })));
}

on_every_store!(
    the_jobs_are_told_page_by_page,
    a_dead_letter_is_sent_back_or_deleted,
    a_dead_letter_whose_key_is_held_stays,
    a_released_key_is_free,
    a_paused_queue_gives_no_jobs,
);

#[tokio::test]
async fn what_broke_a_batch_is_told_as_it_would_be_alone() {
    let semel = memory().await;
    let there = semel.enqueue(fragile(1)).await.unwrap();
    let rejecting = || fragile(1).unique(once().on_conflict(OnConflict::Reject));
    let broken = semel.enqueue_many([fragile(2), rejecting()]).all_or_nothing().await.unwrap_err();
    let Error::Batch { index: 1, outcome, .. } = &broken else { panic!("{broken}") };
    assert!(
        matches!(&**outcome, Ok(Enqueued::Rejected(told)) if told.existing.as_ref().map(Handle::id) == there.id())
    );
    assert!(!broken.is_retryable());

    let bound = Backpressure { max_depth: 1, warning_threshold: 0.5 };
    let settings = QueueSettings { backpressure: Some(bound) };
    semel.engine().unwrap().set_queue(QueueName::default(), settings).await.unwrap();
    let full = semel.enqueue_many([fragile(3)]).all_or_nothing().await.unwrap_err();
    let Error::Batch { index: 0, outcome, .. } = &full else { panic!("{full}") };
    assert!(matches!(**outcome, Err(Error::QueueFull { bound: 1 })), "{outcome:?}");
    assert!(full.is_retryable());
}

/// Its args and result are unknown, which is not the same as empty.
#[tokio::test]
async fn a_job_that_cannot_be_read_is_listed_and_gives_nothing_out_as_its_own() {
    let semel = memory().await;
    let ids = [add(&semel, 1).await, add(&semel, 2).await];
    let working = Worker::new(&semel).handle(async |_: Add| Ok::<_, String>(())).start().unwrap();
    for id in ids {
        soon(semel.job(id).wait()).await.unwrap();
    }
    working.stop().await;
    let reads = Reads { heads: vec![ids[0]], ..Reads::default() };
    let garble = move |draft: &mut Draft| {
        let Some(mut head) = draft.head(ids[0])? else { return Ok(()) };
        draft.update(&mut head);
        draft.note(ids[0], NoteKind::Marks, Some(b"{".as_slice().into()));
        Ok(())
    };
    semel.engine().unwrap().store().decide(reads, garble).await.unwrap();
    let page = semel.jobs().await.unwrap();
    assert_eq!(page.jobs.len(), 2);
    for job in page.jobs {
        let is_readable = job.id() != ids[0];
        assert_eq!((job.is_readable(), job.state()), (is_readable, JobState::Completed));
        assert_eq!(job.payload::<Add>().is_ok(), is_readable);
        assert_eq!(job.result::<()>().is_ok(), is_readable);
        assert_eq!(job.progress::<u8>().is_ok(), is_readable);
    }
}
