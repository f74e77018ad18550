//! Requests other than decisions and claims, for a store that allows several commits in flight. They run
//! beside the commits, delay none, and an unreachable part of the store keeps no caller from the rest.
//!
//! Loads that wait for their turn are done as one, so no caller waits for the turns of many others, however
//! long each would take while a part is unreachable.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use semel_core::draft::{Reads, Snapshot};
use tokio::sync::oneshot;

use crate::backend::{Backend, BoxFuture};
use crate::error::StoreError;
use crate::request::{Request, add, read, size};

/// Concurrent requests that only read.
const READS_MAX: usize = 2;
/// Concurrent loads that wait for an unreachable part.
const PATIENT_MAX: usize = 8;
/// The most records that several combined loads read.
const RECORDS_MAX: usize = 2_000;

/// A load and the caller that waits for it.
struct Load {
    reads: Reads,
    reply: oneshot::Sender<Result<Snapshot, StoreError>>,
}

type Read = Pin<Box<dyn Future<Output = Vec<Load>> + Send>>;

/// Queued and running requests that only read.
#[derive(Default)]
pub(crate) struct Asked {
    waiting: VecDeque<Request>,
    /// The loads that each returns are repeated, with more patience.
    under_way: Vec<Read>,
    /// Loads of what was unreachable at the first try. Their callers may be gone when their turn comes.
    away: VecDeque<Request>,
    patient: Vec<Read>,
}

/// What runs together as one turn.
enum Turn {
    Loads(Vec<Load>),
    Other(Request),
}

impl Asked {
    /// Queues a request.
    pub(crate) fn push(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    /// Whether any is running. If none is, none waits either.
    pub(crate) fn is_any(&self) -> bool {
        !self.under_way.is_empty() || !self.patient.is_empty()
    }

    /// Starts as many as there is room for.
    pub(crate) fn begin(&mut self, backend: &Arc<dyn Backend>) {
        while self.under_way.len() < READS_MAX
            && let Some(turn) = next(&mut self.waiting)
        {
            let backend = Arc::clone(backend);
            self.under_way.push(Box::pin(async move {
                match turn {
                    Turn::Loads(loads) => load_soon(&*backend, loads).await,
                    Turn::Other(request) => {
                        read(&*backend, request).await;
                        Vec::new()
                    }
                }
            }));
        }
        while self.patient.len() < PATIENT_MAX
            && let Some(Turn::Loads(loads)) = next(&mut self.away)
        {
            let backend = Arc::clone(backend);
            self.patient.push(Box::pin(async move { load(&*backend, loads).await }));
        }
    }

    /// Ready when one has ended, or must be repeated.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Self { under_way, away, patient, .. } = self;
        let before = under_way.len() + patient.len();
        for reads in [&mut *under_way, &mut *patient] {
            reads.retain_mut(|read| match read.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(again) => {
                    away.extend(again.into_iter().map(|load| Request::Load(load.reads, load.reply)));
                    false
                }
            });
        }
        if under_way.len() + patient.len() < before {
            // Callers that have given up are not kept waiting for a part that stays unreachable.
            away.retain(|request| !request.is_for_nobody());
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

/// The first request whose caller still waits; a load takes along the other queued loads. Loads that name
/// nothing (they only want the time) are combined separately: nothing of theirs is ever unreachable.
fn next(requests: &mut VecDeque<Request>) -> Option<Turn> {
    requests.retain(|request| !request.is_for_nobody());
    let (reads, reply) = match requests.pop_front()? {
        Request::Load(reads, reply) => (reads, reply),
        other => return Some(Turn::Other(other)),
    };
    let records_of = |reads: &Reads| size(reads) + reads.queues.len();
    let (names_nothing, mut records) = (reads.is_empty(), records_of(&reads));
    let mut loads = vec![Load { reads, reply }];
    for request in std::mem::take(requests) {
        match request {
            // A load that does not fit is among the first next time.
            Request::Load(reads, reply)
                if reads.is_empty() == names_nothing && records + records_of(&reads) <= RECORDS_MAX =>
            {
                records += records_of(&reads);
                loads.push(Load { reads, reply });
            }
            other => requests.push_back(other),
        }
    }
    Some(Turn::Loads(loads))
}

/// Serves combined loads, and returns those that name an unreachable part.
fn load_soon(backend: &dyn Backend, mut loads: Vec<Load>) -> BoxFuture<'_, Vec<Load>> {
    Box::pin(async move {
        match backend.load_soon(&named_by(&loads)).await {
            Ok((snapshot, away)) => give(loads, snapshot, &away),
            // Only the load of an unreadable record is refused. It is found by bisection.
            Err(StoreError::Corrupt(_)) if loads.len() > 1 => {
                let rest = loads.split_off(loads.len() / 2);
                let mut away = load_soon(backend, loads).await;
                away.extend(load_soon(backend, rest).await);
                away
            }
            Err(error) => refuse(loads, &error),
        }
    })
}

/// Serves combined loads, waiting for unreachable parts.
async fn load(backend: &dyn Backend, loads: Vec<Load>) -> Vec<Load> {
    match backend.load(&named_by(&loads)).await {
        Ok(snapshot) => give(loads, snapshot, &Reads::default()),
        // Not all of several need be about what is still unreachable or cannot be read.
        Err(error) if loads.len() > 1 => {
            let away = load_soon(backend, loads).await;
            if matches!(error, StoreError::Corrupt(_)) { away } else { refuse(away, &error) }
        }
        Err(error) => refuse(loads, &error),
    }
}

/// All records that these loads name.
fn named_by(loads: &[Load]) -> Reads {
    let mut all = Reads::default();
    loads.iter().for_each(|load| add(&load.reads, &mut all));
    all
}

/// Answers each load with its own records, and returns those that name an unreachable part.
fn give(loads: Vec<Load>, snapshot: Snapshot, away: &Reads) -> Vec<Load> {
    let (back, there): (Vec<Load>, Vec<Load>) = loads.into_iter().partition(|load| load.reads.meet(away));
    match <[Load; 1]>::try_from(there) {
        Ok([only]) => drop(only.reply.send(Ok(snapshot))),
        Err(several) => {
            for Load { reads, reply } in several {
                drop(reply.send(Ok(snapshot.part(&reads))));
            }
        }
    }
    back
}

fn refuse(loads: Vec<Load>, error: &StoreError) -> Vec<Load> {
    for load in loads {
        drop(load.reply.send(Err(error.clone())));
    }
    Vec::new()
}
