//! The event log of a store under test. A store may keep back what it has committed for the sake of transactions that are older
//! and not its own, for as long as they take: whoever expects something in the log waits for it, and whoever expects nothing more
//! waits for what comes after.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use semel_core::draft::{DocumentKey, DocumentKind};
use semel_core::event::{Event, EventKind};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_store::log::{LogPage, Recorded};

use crate::fixture::Fixture;
use crate::flows::cron_name;
use crate::transact::transact;

/// The longest that is waited.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long between two looks.
const REST: Duration = Duration::from_millis(5);
/// The cron of the marks, which there is not.
const MARK: &str = "mark-of-the-log";

impl Fixture {
    /// The log after `cursor`, as soon as so many events are in it: more, if more are, and fewer when there are no more in all the
    /// time that is waited.
    pub async fn log_page(&self, cursor: u64, limit: u32, expected: usize) -> LogPage {
        self.log_when(cursor, limit, |events| events.len() >= expected).await
    }

    /// All that has happened. A mark is written behind it, and waited for: what is not before that will never be.
    pub async fn log(&self) -> Vec<Recorded> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (name, id) = (cron_name(MARK), JobId::from_bytes([0; 16]));
        let (job_type, queue) = (JobType::from_stored(MARK), QueueName::from_stored(MARK));
        let mark = Event::of_tick(EventKind::CronSkipped, &name, id, &job_type, &queue, number);
        // A commit that writes nothing tells nothing.
        let document = DocumentKey::new(DocumentKind::Request, MARK);
        transact(&*self.backend(), &semel_core::draft::Reads::default(), |draft| {
            draft.document(&document)?;
            draft.set_document(&document, Some((MARK.into(), None)));
            draft.tell_of(mark.clone());
            Ok(())
        })
        .await
        .unwrap();
        let is_mark = |recorded: &Recorded| recorded.event.cron() == Some(MARK);
        let is_last = |recorded: &Recorded| is_mark(recorded) && recorded.event.amount == number;
        let mut page = self.log_when(0, 100_000, |events| events.iter().any(is_last)).await;
        assert!(page.events.iter().any(is_last), "the log is kept back for too long");
        page.events.retain(|recorded| !is_mark(recorded));
        page.events
    }

    async fn log_when(&self, cursor: u64, limit: u32, is_enough: impl Fn(&[Recorded]) -> bool) -> LogPage {
        let begun = Instant::now();
        loop {
            let page = self.backend().events(cursor, limit).await.unwrap();
            if is_enough(&page.events) || begun.elapsed() >= PATIENCE {
                return page;
            }
            tokio::time::sleep(REST).await;
        }
    }
}
