//! Watches on single jobs. A hint like the others: it may come in vain, and the watcher looks for itself,
//! before waiting and after.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use semel_core::ident::JobId;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

type Watched = HashMap<JobId, (Arc<Notify>, usize), RandomState>;

/// The jobs that are being watched.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    /// Spares a commit the lock if no job is watched.
    number: AtomicUsize,
    jobs: Mutex<Watched>,
}

impl Watchers {
    fn jobs(&self) -> MutexGuard<'_, Watched> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn watch(self: &Arc<Self>, id: JobId) -> Watch {
        let mut jobs = self.jobs();
        let (news, watchers) = jobs.entry(id).or_default();
        *watchers += 1;
        let news = Arc::clone(news);
        self.number.store(jobs.len(), Ordering::Release);
        Watch { id, news, watchers: Arc::clone(self) }
    }

    /// Whether any job is watched.
    pub(crate) fn is_any(&self) -> bool {
        self.number.load(Ordering::Acquire) > 0
    }

    /// The notifiers of those of these jobs that are watched.
    pub(crate) fn among(&self, ids: impl Iterator<Item = JobId>) -> Vec<Arc<Notify>> {
        if self.number.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let jobs = self.jobs();
        ids.filter_map(|id| jobs.get(&id).map(|(news, _)| Arc::clone(news))).collect()
    }

    pub(crate) fn wake_all(&self) {
        for (news, _) in self.jobs().values() {
            news.notify_waiters();
        }
    }
}

/// A watch on one job, until it is dropped.
#[derive(Debug)]
pub struct Watch {
    id: JobId,
    news: Arc<Notify>,
    watchers: Arc<Watchers>,
}

impl Watch {
    /// Notifies when the job was written. Register (`enable`), then look, then wait.
    pub fn news(&self) -> Notified<'_> {
        self.news.notified()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut jobs = self.watchers.jobs();
        if let Some((_, watchers)) = jobs.get_mut(&self.id) {
            *watchers -= 1;
            if *watchers == 0 {
                jobs.remove(&self.id);
            }
        }
        self.watchers.number.store(jobs.len(), Ordering::Release);
    }
}
