//! What is asked of a store that lets several commits be in flight, and is no decision: it goes on beside them, delays none, and
//! a part of the store that is away keeps nobody from the rest of it.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::backend::Backend;
use crate::request::{Request, read, read_soon};

/// Requests that only read, under way at once.
const READS_MAX: usize = 2;
/// The same of those that wait for a part of the store that is away.
const PATIENT_MAX: usize = 8;

type Read<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Requests that only read.
#[derive(Default)]
pub(crate) struct Asked {
    waiting: VecDeque<Request>,
    /// What each gives back is asked for again, with more patience.
    under_way: Vec<Read<Option<Request>>>,
    /// Those that name what was away when it was looked for. Who waits so long may be gone by the time of his turn.
    away: VecDeque<Request>,
    patient: Vec<Read<()>>,
}

impl Asked {
    /// Adds one, behind all others.
    pub(crate) fn push(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    /// Whether any is under way. None waits while there is none.
    pub(crate) fn is_any(&self) -> bool {
        !self.under_way.is_empty() || !self.patient.is_empty()
    }

    /// Begins with as many as there is room for.
    pub(crate) fn begin(&mut self, backend: &Arc<dyn Backend>) {
        while self.under_way.len() < READS_MAX
            && let Some(request) = next(&mut self.waiting)
        {
            let backend = Arc::clone(backend);
            self.under_way.push(Box::pin(async move { read_soon(&*backend, request).await }));
        }
        while self.patient.len() < PATIENT_MAX
            && let Some(request) = next(&mut self.away)
        {
            let backend = Arc::clone(backend);
            self.patient.push(Box::pin(async move { read(&*backend, request).await }));
        }
    }

    /// Ready when one has ended, or is to be asked for again.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Self { under_way, away, patient, .. } = self;
        let before = under_way.len() + patient.len();
        under_way.retain_mut(|read| match read.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(again) => {
                away.extend(again);
                false
            }
        });
        patient.retain_mut(|read| read.as_mut().poll(context).is_pending());
        if under_way.len() + patient.len() < before {
            // Those who have given up meanwhile are not kept for a part that stays away.
            away.retain(|request| !request.is_for_nobody());
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

/// The first that somebody still waits for.
fn next(requests: &mut VecDeque<Request>) -> Option<Request> {
    loop {
        let request = requests.pop_front()?;
        if !request.is_for_nobody() {
            return Some(request);
        }
    }
}
