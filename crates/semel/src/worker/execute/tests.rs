//! Reports over links that leave them unanswered or refuse them.

use bytes::Bytes;
use semel_core::ident::QueueName;
use semel_core::state::State;
use semel_store::StoreError;

use super::super::link::{Ask, Beaten, Hears, Held, Speaker};
use super::*;
use crate::{Envelope, Error, Semel, Worker};

#[tokio::test]
async fn a_type_that_is_not_handled_is_told_of_once() {
    let semel = Semel::open("memory:").await.unwrap();
    let shared = Worker::new(&semel).shared().unwrap();
    assert_eq!(["a.b", "a.c", "a.b"].map(|job_type| shared.is_news(job_type)), [true, true, false]);
}

/// A link that answers heartbeats after some time, and reports after `unheard` of them were made.
struct Deaf {
    begun: Instant,
    beats_after: Duration,
    /// How long an unanswered report takes.
    takes: Duration,
    unheard: Mutex<u32>,
    says: fn() -> Error,
}

impl Deaf {
    fn new(unheard: u32, takes: Duration, beats_after: Duration) -> Arc<Self> {
        let says = || StoreError::Unavailable(String::new()).into();
        let (begun, unheard) = (Instant::now(), Mutex::new(unheard));
        Arc::new(Self { begun, beats_after, takes, unheard, says })
    }

    /// A link that answers heartbeats at once, and fails the first `unheard` reports with this error.
    fn that_says(unheard: u32, says: fn() -> Error) -> Arc<Self> {
        let (begun, unheard) = (Instant::now(), Mutex::new(unheard));
        Arc::new(Self { begun, beats_after: Duration::ZERO, takes: Duration::ZERO, unheard, says })
    }
}

impl Link for Deaf {
    fn beat<'a>(
        &'a self,
        _: &'a Speaker,
        jobs: &'a [Held],
        _: usize,
        hears: Hears<'a>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        if self.begun.elapsed() < self.beats_after {
            return Box::pin(async { Err(StoreError::Unavailable(String::new()).into()) });
        }
        hears(Beaten { extended: jobs.to_vec(), ..Beaten::default() });
        Box::pin(async { Ok(()) })
    }

    fn fetch<'a>(
        &'a self,
        _: &'a Ask,
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Vec<Delivery>, Error>> {
        Box::pin(std::future::pending())
    }

    fn settle<'a>(&'a self, _: &'a Delivery, _: &'a Outcome) -> BoxFuture<'a, Result<Reported, Error>> {
        let mut unheard = self.unheard.lock().unwrap();
        if *unheard == 0 {
            return Box::pin(async { Ok(Reported::Counted) });
        }
        *unheard -= 1;
        Box::pin(async {
            tokio::time::sleep(self.takes).await;
            Err((self.says)())
        })
    }

    fn lost<'a>(&'a self, _: &'a Delivery) -> BoxFuture<'a, Stop> {
        Box::pin(std::future::pending())
    }

    fn progress<'a>(&'a self, _: &'a Delivery, _: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(std::future::pending())
    }
}

/// Whether a report over this link is acknowledged, for a job with a lease of five seconds that heartbeats
/// extend or do not.
async fn is_heard(link: Arc<Deaf>, is_held: bool) -> bool {
    reported(link, is_held, Duration::from_secs(5), |_| std::future::pending()).await
}

/// Whether a report over this link is acknowledged, for a job with this lease, while something else happens
/// to the worker.
async fn reported<F: Future<Output = ()>>(
    link: Arc<Deaf>,
    is_held: bool,
    lease: Duration,
    meanwhile: impl FnOnce(CancellationToken) -> F,
) -> bool {
    let semel = Semel::open("memory:").await.unwrap();
    semel.enqueue(Envelope::new("a.b")).await.unwrap();
    let mut shared = Worker::new(&semel).shared().unwrap();
    let lease = Some(lease);
    let ask = Ask { queue: QueueName::default(), limit: 1, worker: "w".into(), lease };
    let run = shared.link.fetch(&ask, &shared.stop).await.unwrap().remove(0);
    shared.link = link;
    let holding = is_held
        .then(|| shared.beats.hold(&Delivery { asked: Instant::now(), ..run.clone() }, Signals::default()));
    let speaker = Speaker { worker: "w".into(), queues: Vec::new(), lease };
    let stop = CancellationToken::new();
    let beats = Arc::clone(&shared.beats).run(Arc::clone(&shared.link), speaker, stop.clone());
    let beats = tokio::spawn(beats);
    let is_heard = tokio::select! {
        is_heard = shared.report(&run, &Outcome::Done) => is_heard,
        () = meanwhile(shared.stop.clone()) => false,
    };
    drop(holding);
    stop.cancel();
    beats.await.unwrap();
    is_heard
}

/// How often a report that always gets this error is sent in ten minutes, for a job with this lease.
async fn told(lease: Duration, says: fn() -> Error) -> u32 {
    let link = Deaf::that_says(u32::MAX, says);
    let over = |_| tokio::time::sleep(Duration::from_secs(600));
    assert!(!reported(Arc::clone(&link), true, lease, over).await);
    u32::MAX - *link.unheard.lock().unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_not_heard_is_told_less_and_less_often() {
    let says = || StoreError::Unavailable("a report that is told now and then".to_owned()).into();
    semel_testkit::warnings::keep();
    let times = told(Duration::from_secs(120), says).await;
    // Every ten seconds in the end, with at most a quarter less by jitter.
    assert!((65..=90).contains(&times), "{times}");
    let warned = semel_testkit::warnings::with("a report that is told now and then");
    assert!((8..=11).contains(&warned.len()), "{}", warned.len());
    // But often enough for a short lease.
    let times = told(Duration::from_secs(6), says).await;
    assert!((300..=420).contains(&times), "{times}");
}

/// A shutdown waits only some seconds, and would give up a report that paused for longer.
#[tokio::test(start_paused = true)]
async fn a_worker_that_stops_tells_an_end_again_soon() {
    let says = || StoreError::Unavailable(String::new()).into();
    let link = Deaf::that_says(u32::MAX, says);
    let after = Duration::from_secs(101);
    let stops = |stop: CancellationToken| {
        let link = Arc::clone(&link);
        async move {
            tokio::time::sleep(after).await;
            *link.unheard.lock().unwrap() = 0;
            stop.cancel();
            std::future::pending::<()>().await;
        }
    };
    assert!(reported(Arc::clone(&link), true, Duration::from_secs(120), stops).await);
    let waited = link.begun.elapsed() - after;
    assert!(waited <= REPORT_AGAIN_MAX_AT_STOP + Duration::from_millis(1), "{waited:?}");
}

#[cfg(feature = "remote")]
fn refusal(status: u16, retry_after: Option<u64>) -> Error {
    Error::Remote(semel_client::ClientError::Status {
        status: http::StatusCode::from_u16(status).unwrap(),
        code: None,
        message: String::new(),
        hint: None,
        retry_after: retry_after.map(Duration::from_secs),
        body: Bytes::new(),
    })
}

/// Otherwise its job would be held for as long as the attempt may last, and its slot would be lost to others.
#[cfg(feature = "remote")]
#[tokio::test(start_paused = true)]
async fn an_end_that_is_refused_for_long_gives_up_its_place() {
    let link = Deaf::that_says(u32::MAX, || refusal(403, None));
    let minute = Duration::from_secs(60);
    let heard = tokio::time::timeout(10 * minute, is_heard(Arc::clone(&link), true)).await;
    assert_eq!(heard, Ok(false), "it holds its place");
    let waited = link.begun.elapsed();
    assert!(waited >= 2 * minute && waited < 2 * minute + Duration::from_secs(3), "{waited:?}");
    // A refusal that passes in time, or a server that is too busy, loses no finished work.
    assert!(is_heard(Deaf::that_says(60, || refusal(403, None)), true).await);
    assert!(is_heard(Deaf::that_says(600, || refusal(503, None)), true).await);
}

#[cfg(feature = "remote")]
#[tokio::test(start_paused = true)]
async fn an_end_is_told_again_when_the_server_asks_for_it() {
    let times = told(Duration::from_secs(120), || refusal(503, Some(30))).await;
    assert!((16..=21).contains(&times), "{times}");
    // Whatever the server asks for, several times before the lease would end.
    let times = told(Duration::from_secs(60), || refusal(503, Some(3_600))).await;
    assert!((30..=32).contains(&times), "{times}");
}

/// The store would accept it; giving up would have the work done again.
#[tokio::test(start_paused = true)]
async fn an_end_is_told_for_as_long_as_its_lease_is_extended() {
    let second = Duration::from_secs(1);
    assert!(!is_heard(Deaf::new(60, second, Duration::ZERO), false).await, "nobody extends it");
    assert!(is_heard(Deaf::new(60, second, Duration::ZERO), true).await);
    // The lease is extended after all, while what would be the last report is under way.
    assert!(is_heard(Deaf::new(2, second * 6, second * 7), true).await);
}

/// A grant that took long to arrive leaves the attempt less time, but at least a second.
#[tokio::test(start_paused = true)]
async fn an_attempt_ends_when_the_store_says() {
    let semel = Semel::open("memory:").await.unwrap();
    semel.enqueue(Envelope::new("a.b")).await.unwrap();
    let shared = Worker::new(&semel).shared().unwrap();
    let ask = Ask { queue: QueueName::default(), limit: 1, worker: "w".into(), lease: None };
    let run = shared.link.fetch(&ask, &shared.stop).await.unwrap().remove(0);
    let asked = Instant::now();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let lasts = |timeout| {
        let timeout = Duration::from_millis(timeout);
        let run = Delivery { asked, granted: Instant::now(), timeout, ..run.clone() };
        assert!(run.begins_by() < run.attempt_ends());
        run.attempt_ends().duration_since(Instant::now()).as_millis()
    };
    assert_eq!([30_000, 8_500, 2_000, 200].map(lasts), [22_000, 1_000, 1_000, 200]);
}

/// Otherwise nobody would know that its work is done.
#[tokio::test]
async fn an_end_is_heard_that_comes_when_the_shutdown_waits_no_longer() {
    let semel = Semel::open("memory:").await.unwrap();
    let job = semel.enqueue(Envelope::new("a.b")).await.unwrap();
    let shared = Worker::new(&semel).shared().unwrap();
    let ask = Ask { queue: QueueName::default(), limit: 1, worker: "w".into(), lease: None };
    let run = shared.link.fetch(&ask, &shared.stop).await.unwrap().remove(0);
    shared.give_up.cancel();
    assert!(shared.report(&run, &Outcome::Done).await);
    assert_eq!(job.wait().await.unwrap().state(), State::Completed);
}
