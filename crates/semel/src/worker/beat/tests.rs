//! Heartbeats over links that answer late, in part or never.

use bytes::Bytes;
use semel_core::time::Timestamp;
use semel_store::backend::BoxFuture;

use super::super::link::{Ask, Hears, Reported};
use super::super::verdict::Outcome;
use super::*;

fn granted(fence: u64) -> Delivery {
    Delivery {
        id: JobId::mint(Timestamp::EPOCH, 1, 1),
        job_type: "a".into(),
        queue: "default".into(),
        attempt: 1,
        max_attempts: 2,
        args: "[]".into(),
        meta: "{}".into(),
        has_sensitive: false,
        tags: Vec::new(),
        created_at: Timestamp::EPOCH,
        fence,
        has_own_lease: false,
        lease: Duration::from_secs(30),
        granted: Instant::now(),
        asked: Instant::now(),
        timeout: Duration::from_secs(60),
        parent_results: None,
    }
}

/// How a link answers heartbeats; it answers nothing else.
trait Heart: Send + Sync + 'static {
    fn beat<'a>(&'a self, jobs: &'a [Held], hears: Hears<'a>) -> BoxFuture<'a, Result<(), Error>>;
}

impl<H: Heart> Link for H {
    fn beat<'a>(
        &'a self,
        _: &'a Speaker,
        jobs: &'a [Held],
        _: usize,
        hears: Hears<'a>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Heart::beat(self, jobs, hears)
    }

    fn fetch<'a>(
        &'a self,
        _: &'a Ask,
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Vec<Delivery>, Error>> {
        Box::pin(std::future::pending())
    }

    fn settle<'a>(&'a self, _: &'a Delivery, _: &'a Outcome) -> BoxFuture<'a, Result<Reported, Error>> {
        Box::pin(std::future::pending())
    }

    fn lost<'a>(&'a self, _: &'a Delivery) -> BoxFuture<'a, Stop> {
        Box::pin(std::future::pending())
    }

    fn progress<'a>(&'a self, _: &'a Delivery, _: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(std::future::pending())
    }
}

/// A link that never answers for the first job, nor for other jobs in the same heartbeat unless
/// `answers_half`, and records when a heartbeat included the second job.
#[derive(Default)]
struct Hangs {
    spoken: Mutex<Vec<Instant>>,
    answers_half: bool,
}

impl Hangs {
    fn by_half() -> Self {
        Self { answers_half: true, ..Self::default() }
    }
}

impl Heart for Hangs {
    fn beat<'a>(&'a self, jobs: &'a [Held], hears: Hears<'a>) -> BoxFuture<'a, Result<(), Error>> {
        let is_of = |fence| jobs.iter().any(|job| job.fence == fence);
        if is_of(2) {
            self.spoken.lock().unwrap().push(Instant::now());
        }
        let hangs = is_of(1);
        if !hangs || self.answers_half {
            let extended = jobs.iter().filter(|job| job.fence != 1).copied().collect();
            hears(Beaten { extended, ..Beaten::default() });
        }
        if hangs { Box::pin(std::future::pending()) } else { Box::pin(async { Ok(()) }) }
    }
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_is_not_answered_keeps_no_other_job_from_being_spoken_of() {
    let (beats, link) = (Arc::new(Beats::default()), Arc::new(Hangs::default()));
    let stop = CancellationToken::new();
    let _first = beats.hold(&granted(1), Signals::default());
    let speaker = Speaker { worker: "w".into(), queues: Vec::new(), lease: None };
    let running = tokio::spawn(Arc::clone(&beats).run(link.clone(), speaker, stop.clone()));
    // By now the first heartbeat for the first job is under way.
    tokio::time::sleep(Duration::from_millis(10_500)).await;
    let lease = Duration::from_secs(1);
    let short = Delivery { id: JobId::mint(Timestamp::EPOCH, 2, 2), lease, ..granted(2) };
    let _second = beats.hold(&short, Signals::default());
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(9)).await;
    let mut before = begun;
    let spoken = link.spoken.lock().unwrap().clone();
    for at in spoken.into_iter().chain([Instant::now()]) {
        assert!(at - before < lease, "{:?} after {:?}", at - begun, before - begun);
        before = at;
    }
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_has_run_out_when_nothing_was_answered_for_so_long() {
    let (beats, link) = (Arc::new(Beats::default()), Arc::new(Hangs::default()));
    let stop = CancellationToken::new();
    let speaker = Speaker { worker: "w".into(), queues: Vec::new(), lease: None };
    let running = tokio::spawn(Arc::clone(&beats).run(link, speaker, stop.clone()));
    let (unanswered, answered) = (Signals::default(), Signals::default());
    let _first = beats.hold(&granted(1), unanswered.clone());
    let began = Instant::now();
    // Never in one heartbeat with the first job, which would not be answered.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let other = Delivery { id: JobId::mint(Timestamp::EPOCH, 2, 2), ..granted(2) };
    let _second = beats.hold(&other, answered.clone());
    unanswered.ran_out.cancelled().await;
    assert_eq!(began.elapsed().as_secs(), 30);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!answered.ran_out.is_cancelled() && !answered.lost.is_cancelled());
    assert!(!unanswered.lost.is_cancelled(), "its end may still count");
    assert_eq!((unanswered.cause.told(), answered.cause.told()), (Some(Stop::LeaseLost), None));
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_was_extended_is_whatever_becomes_of_the_rest_of_the_answer() {
    let (beats, link) = (Arc::new(Beats::default()), Arc::new(Hangs::by_half()));
    let stop = CancellationToken::new();
    let speaker = Speaker { worker: "w".into(), queues: Vec::new(), lease: None };
    let (unanswered, answered) = (Signals::default(), Signals::default());
    let _first = beats.hold(&granted(1), unanswered.clone());
    let other = Delivery { id: JobId::mint(Timestamp::EPOCH, 2, 2), ..granted(2) };
    let _second = beats.hold(&other, answered.clone());
    let running = tokio::spawn(Arc::clone(&beats).run(link.clone(), speaker, stop.clone()));
    unanswered.ran_out.cancelled().await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!answered.ran_out.is_cancelled() && !answered.lost.is_cancelled());
    // Nor is it in another heartbeat before it is due.
    let spoken = link.spoken.lock().unwrap().clone();
    let every = granted(2).lease / BEATS_PER_LEASE;
    assert!(spoken.windows(2).all(|two| two[1] - two[0] >= every * 3 / 4), "{spoken:?}");
    stop.cancel();
    running.await.unwrap();
}

/// A link that answers after this delay, and says that the first job was completed by its run.
struct Slow {
    answers_after: Duration,
    spoken: Mutex<Vec<(u64, Instant)>>,
}

impl Heart for Slow {
    fn beat<'a>(&'a self, jobs: &'a [Held], hears: Hears<'a>) -> BoxFuture<'a, Result<(), Error>> {
        self.spoken.lock().unwrap().extend(jobs.iter().map(|job| (job.fence, Instant::now())));
        Box::pin(async move {
            tokio::time::sleep(self.answers_after).await;
            let (completed, extended) = jobs.iter().partition(|job| job.fence == 1);
            hears(Beaten { completed, extended, ..Beaten::default() });
            Ok(())
        })
    }
}

/// Ten minutes with a job of this fence and lease, which was granted `ago`.
async fn played(
    answers_after: Duration,
    fence: u64,
    lease: Duration,
    ago: Duration,
) -> (Signals, Vec<Instant>) {
    let (beats, link) =
        (Arc::new(Beats::default()), Arc::new(Slow { answers_after, spoken: Mutex::default() }));
    tokio::time::sleep(ago).await;
    let (stop, signals) = (CancellationToken::new(), Signals::default());
    let speaker = Speaker { worker: "w".into(), queues: Vec::new(), lease: None };
    let delivery = Delivery { lease, asked: Instant::now() - ago, ..granted(fence) };
    let holding = beats.hold(&delivery, signals.clone());
    let running = tokio::spawn(Arc::clone(&beats).run(link.clone(), speaker, stop.clone()));
    tokio::time::sleep(Duration::from_secs(600)).await;
    stop.cancel();
    running.await.unwrap();
    drop(holding);
    let spoken = link.spoken.lock().unwrap().iter().map(|(_, at)| *at).collect();
    (signals, spoken)
}

/// The store has extended the lease, if later than the worker waited for.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_is_heard() {
    let second = Duration::from_secs(1);
    let (signals, _) = played(second * 6 / 5, 2, second * 3, Duration::ZERO).await;
    assert!(!signals.ran_out.is_cancelled() && !signals.lost.is_cancelled());
}

/// No other worker has the job, so it has no lease to extend, and none that may run out.
#[tokio::test(start_paused = true)]
async fn a_job_that_its_run_has_completed_is_spoken_of_no_more() {
    let (signals, spoken) = played(Duration::ZERO, 1, Duration::from_secs(30), Duration::ZERO).await;
    assert!(!signals.ran_out.is_cancelled() && !signals.lost.is_cancelled());
    assert_eq!(spoken.len(), 1);
}

/// The grant may have taken long to arrive.
#[tokio::test(start_paused = true)]
async fn a_lease_is_extended_in_time_from_its_grant() {
    let ago = Duration::from_secs(25);
    let begun = Instant::now();
    let (signals, spoken) = played(Duration::ZERO, 2, Duration::from_secs(30), ago).await;
    assert!(!signals.ran_out.is_cancelled());
    assert_eq!(spoken[0] - begun, ago);
}

/// A link that says of every job that a transaction holds it, but never answers one of the heartbeats.
struct Busy {
    begun: Instant,
    unanswered: Mutex<u32>,
}

impl Heart for Busy {
    fn beat<'a>(&'a self, jobs: &'a [Held], hears: Hears<'a>) -> BoxFuture<'a, Result<(), Error>> {
        let mut unanswered = self.unanswered.lock().unwrap();
        if *unanswered == 0 && self.begun.elapsed() > Duration::from_secs(300) {
            *unanswered += 1;
            return Box::pin(std::future::pending());
        }
        hears(Beaten { busy: jobs.to_vec(), ..Beaten::default() });
        Box::pin(async { Ok(()) })
    }
}

/// However long its lease once was, an answer that the job is busy counts for less time.
#[tokio::test(start_paused = true)]
async fn a_job_that_is_held_outlives_a_heartbeat_that_is_lost() {
    let link = Arc::new(Busy { begun: Instant::now(), unanswered: Mutex::default() });
    let (beats, stop, signals) = (Arc::new(Beats::default()), CancellationToken::new(), Signals::default());
    let _holding = beats.hold(&Delivery { lease: Duration::from_secs(120), ..granted(2) }, signals.clone());
    let speaker = Speaker { worker: "w".into(), queues: Vec::new(), lease: None };
    let running = tokio::spawn(Arc::clone(&beats).run(link.clone(), speaker, stop.clone()));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(*link.unanswered.lock().unwrap(), 1);
    assert!(!signals.ran_out.is_cancelled() && !signals.lost.is_cancelled());
    stop.cancel();
    running.await.unwrap();
}

/// It may have been granted just now, which a heartbeat finds out; if nobody answers, it has run out.
#[tokio::test(start_paused = true)]
async fn a_grant_that_was_on_its_way_for_longer_than_its_lease_is_asked_about() {
    let second = Duration::from_secs(1);
    let (signals, _) = played(second / 2, 2, second * 3, second * 4).await;
    assert!(!signals.ran_out.is_cancelled() && !signals.lost.is_cancelled());
    let (signals, _) = played(second * 3600, 2, second * 3, second * 4).await;
    assert!(signals.ran_out.is_cancelled());
}

/// A run that lost its lease was told so, and after the end of a run nobody is left to be told.
#[tokio::test(start_paused = true)]
async fn nobody_is_told_of_a_lease_that_is_lost_or_needed_no_more() {
    let (beats, link) = (Arc::new(Beats::default()), Arc::new(Hangs::default()));
    let stop = CancellationToken::new();
    let speaker = Speaker { worker: "w".into(), queues: Vec::new(), lease: None };
    let running = tokio::spawn(Arc::clone(&beats).run(link, speaker, stop.clone()));
    let all: Vec<(Signals, Holding)> = (1..=3)
        .map(|number| {
            let (id, signals) = (JobId::mint(Timestamp::EPOCH, number, 1), Signals::default());
            let holding = beats.hold(&Delivery { id, ..granted(1) }, signals.clone());
            (signals, holding)
        })
        .collect();
    all[0].0.lost.cancel();
    all[1].0.ended.cancel();
    all[2].0.ran_out.cancelled().await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!all[0].0.ran_out.is_cancelled() && !all[1].0.ran_out.is_cancelled());
    stop.cancel();
    running.await.unwrap();
}

/// Nothing else would tell the earlier run: from then on heartbeats are about the newer lease.
#[tokio::test]
async fn a_job_that_is_granted_again_has_lost_the_lease_before() {
    let beats = Arc::new(Beats::default());
    let (first, second) = (Signals::default(), Signals::default());
    let before = beats.hold(&granted(1), first.clone());
    let now = beats.hold(&granted(2), second.clone());
    assert!(first.lost.is_cancelled() && !second.lost.is_cancelled());
    assert_eq!((first.cause.told(), second.cause.told()), (Some(Stop::LeaseLost), None));
    drop(before);
    assert_eq!(beats.held().by_id.len(), 1, "the newer one is held");
    drop(now);
    assert!(beats.held().by_id.is_empty());
}

/// A link that refuses every heartbeat, and records when.
#[derive(Default)]
struct Refuses {
    spoken: Mutex<Vec<Instant>>,
}

impl Heart for Refuses {
    fn beat<'a>(&'a self, _: &'a [Held], _: Hears<'a>) -> BoxFuture<'a, Result<(), Error>> {
        self.spoken.lock().unwrap().push(Instant::now());
        let said = StoreError::Unavailable("a heartbeat that is refused".to_owned());
        Box::pin(async { Err(said.into()) })
    }
}

/// Two requests a second from every worker help neither an overloaded server nor a revoked token.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_fails_is_sent_less_and_less_often_but_to_the_end_of_its_lease() {
    semel_testkit::warnings::keep();
    let (beats, link, signals) =
        (Arc::new(Beats::default()), Arc::new(Refuses::default()), Signals::default());
    let stop = CancellationToken::new();
    let lease = Duration::from_secs(120);
    let _holding = beats.hold(&Delivery { lease, ..granted(1) }, signals.clone());
    let speaker = Speaker { worker: "w".into(), queues: Vec::new(), lease: None };
    let running = tokio::spawn(Arc::clone(&beats).run(link.clone(), speaker, stop.clone()));
    signals.ran_out.cancelled().await;
    let (ended, spoken) = (Instant::now(), link.spoken.lock().unwrap().clone());
    // One every half second would be 160.
    assert!((20..=32).contains(&spoken.len()), "{}", spoken.len());
    assert!(ended - *spoken.last().unwrap() <= AGAIN_AFTER, "{:?}", ended - *spoken.last().unwrap());
    tokio::time::sleep(Duration::from_secs(600)).await;
    let later = link.spoken.lock().unwrap().len() - spoken.len();
    assert!(later <= 100, "{later}");
    let warned = semel_testkit::warnings::with("a heartbeat that is refused").len();
    assert!((10..=13).contains(&warned), "{warned}");
    stop.cancel();
    running.await.unwrap();
}

#[test]
fn a_heartbeat_is_sent_again_as_late_as_its_lease_allows() {
    let ms = Duration::from_millis;
    for (failed, left, asked, most) in [
        (1, 80_000, None, 500),
        (2, 80_000, None, 1_000),
        (5, 80_000, None, 8_000),
        (6, 80_000, None, 10_000),
        (u32::MAX, 80_000, None, 10_000),
        // Several times within what is left of the lease.
        (6, 20_000, None, 5_000),
        (6, 1_000, None, 500),
        (6, 1, None, 500),
        // Nothing is left to save.
        (6, 0, None, 10_000),
        (1, 80_000, Some(15_000), 15_000),
        (1, 80_000, Some(3_600_000), 20_000),
        (1, 2_000, Some(3_600_000), 500),
    ] {
        let again = again_after(failed, ms(left), asked.map(ms), 0);
        assert_eq!(again, ms(most), "{failed}, {left}, {asked:?}");
    }
}
