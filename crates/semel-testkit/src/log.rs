//! The event log of a store under test. A store may hold back committed events for as long as older
//! transactions of other programs are open. So a test that expects an event waits for it, and a test that
//! expects no more events waits for a later one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use semel_core::draft::{DocumentKey, DocumentKind};
use semel_core::event::{Event, EventKind};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_store::log::{LogPage, Recorded};

use crate::fixture::Fixture;
use crate::flows::cron_name;
use crate::transact::transact;

/// The longest time to wait for events.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long to pause between two looks at the log.
const REST: Duration = Duration::from_millis(5);
/// The cron that the mark events name; no such cron exists.
const MARK: &str = "mark-of-the-log";

impl Fixture {
    /// The log after `cursor`, as soon as it has at least `expected` events; after `PATIENCE` whatever is
    /// there, which may be fewer.
    pub async fn log_page(&self, cursor: u64, limit: u32, expected: usize) -> LogPage {
        self.log_when(cursor, limit, |events| events.len() >= expected).await
    }

    /// The whole log so far. Writes a mark event behind it and waits for that one: no event can still appear
    /// before it.
    pub async fn log(&self) -> Vec<Recorded> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (name, id) = (cron_name(MARK), JobId::from_bytes([0; 16]));
        let (job_type, queue) = (JobType::from_stored(MARK), QueueName::from_stored(MARK));
        let mark = Event::of_tick(EventKind::CronSkipped, &name, id, &job_type, &queue, number);
        // A commit that writes nothing adds no event, so the mark comes with a document.
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
