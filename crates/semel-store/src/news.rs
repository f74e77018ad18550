//! What a commit means to other processes on the same store. A hint like all others: a process that gets it
//! looks for itself, and one that misses it finds out later.

use std::sync::{Mutex, MutexGuard, PoisonError};

use semel_core::draft::{Group, Write};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::limit::Lane;
use semel_core::slot::{Filing, Slot};
use tokio::sync::Notify;

use crate::backend::Claimed;

/// The limit under which another job may start because of this write: a finished run frees a place, and a new
/// job may have changed the limit itself.
pub(crate) fn freed_lane(head: &Head, slot: Slot) -> Option<Lane> {
    head.lane.filter(|_| slot != Slot::Lease)
}

/// What was written, as far as another process may be waiting for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Jobs became ready, or a queue was resumed.
    pub ready: bool,
    /// A job under a limit moved: another may start.
    pub lanes: bool,
    /// The log has grown.
    pub log: bool,
    /// Jobs that moved, other than by granting or extending a lease.
    pub jobs: Vec<JobId>,
    /// Whether more jobs moved than are named.
    pub more_jobs: bool,
}

impl News {
    /// The news of the applied groups and claims.
    pub fn of<'a>(groups: impl Iterator<Item = &'a Group>, claimed: &[Claimed]) -> Self {
        let mut news =
            Self { log: claimed.iter().any(|claimed| !claimed.jobs.is_empty()), ..Self::default() };
        for group in groups {
            news.log |= !group.events.is_empty();
            for write in &group.writes {
                match write {
                    Write::Insert { head, .. } | Write::Update { head } => {
                        let slot = Filing::of(head).slot;
                        news.ready |= slot == Slot::Ready;
                        news.lanes |= freed_lane(head, slot).is_some();
                        if matches!(write, Write::Update { .. }) && slot != Slot::Lease {
                            news.jobs.push(head.id);
                        }
                    }
                    Write::Forget { job, .. } => news.jobs.push(*job),
                    Write::Queue { .. } => news.ready = true,
                    Write::Note { .. }
                    | Write::Spend { .. }
                    | Write::Free { .. }
                    | Write::Document { .. } => {}
                }
            }
        }
        news
    }

    /// News that wakes every waiter.
    pub const fn everything() -> Self {
        Self { ready: true, lanes: true, log: true, jobs: Vec::new(), more_jobs: true }
    }

    /// Whether there is nothing to report.
    pub const fn is_empty(&self) -> bool {
        !(self.ready || self.lanes || self.log || self.more_jobs) && self.jobs.is_empty()
    }

    /// Merges later news; at most `jobs_max` jobs stay named.
    pub fn add(&mut self, later: Self, jobs_max: usize) {
        self.ready |= later.ready;
        self.lanes |= later.lanes;
        self.log |= later.log;
        self.more_jobs |= later.more_jobs;
        self.jobs.extend(later.jobs);
        if self.jobs.len() > jobs_max {
            self.jobs.truncate(jobs_max);
            self.more_jobs = true;
        }
    }
}

/// News that other processes have not been sent yet. Noting news is quick; one task takes and sends what has gathered.
#[derive(Debug)]
pub struct UnsentNews {
    gathered: Mutex<News>,
    jobs_max: usize,
    wake: Notify,
}

impl UnsentNews {
    /// No news yet; at most `jobs_max` jobs will be named.
    pub fn new(jobs_max: usize) -> Self {
        Self { gathered: Mutex::default(), jobs_max, wake: Notify::new() }
    }

    fn gathered(&self) -> MutexGuard<'_, News> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds news to be sent soon.
    pub fn note(&self, news: News) {
        if !news.is_empty() {
            self.gathered().add(news, self.jobs_max);
            self.wake();
        }
    }

    /// Wakes the sending task, though there may be nothing to send.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits until there is news to send, or [`wake`](Self::wake) is called.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Takes the news gathered so far.
    pub fn take(&self) -> News {
        std::mem::take(&mut *self.gathered())
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::{News, UnsentNews};
    use semel_core::ident::JobId;

    #[test]
    fn what_is_too_much_to_name_is_said_to_be_more() {
        let mut news = News::default();
        assert!(news.is_empty());
        let of = |count: usize| News { jobs: vec![JobId::from_bytes([1; 16]); count], ..News::default() };
        news.add(of(3), 5);
        assert!(!news.is_empty() && !news.more_jobs);
        news.add(of(3), 5);
        assert_eq!((news.jobs.len(), news.more_jobs), (5, true));
        assert!(!News::everything().is_empty());
    }

    #[tokio::test]
    async fn what_is_noted_is_taken_once() {
        let unsent = UnsentNews::new(5);
        unsent.note(News::default());
        let mut nobody = Context::from_waker(Waker::noop());
        assert!(pin!(unsent.woken()).poll(&mut nobody).is_pending(), "there is nothing to tell");
        for _ in 0..2 {
            unsent.note(News { ready: true, ..News::default() });
        }
        unsent.woken().await;
        assert!(unsent.take().ready && unsent.take().is_empty());
        unsent.wake();
        unsent.woken().await;
    }
}
