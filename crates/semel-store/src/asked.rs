//! What is asked of a store that lets several commits be in flight, and is no decision: it goes on beside them, delays none, and
//! a part of the store that is away keeps nobody from the rest of it.
//!
//! Loads that wait for their turn are done as one. So nobody waits for the turns of many others, however long each of theirs would
//! take where something is away.

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

/// Requests that only read, under way at once.
const READS_MAX: usize = 2;
/// The same of those that wait for a part of the store that is away.
const PATIENT_MAX: usize = 8;
/// Records that several load together at most.
const RECORDS_MAX: usize = 2_000;

/// What is to be loaded, and who waits for it.
struct Load {
    reads: Reads,
    reply: oneshot::Sender<Result<Snapshot, StoreError>>,
}

type Read = Pin<Box<dyn Future<Output = Vec<Load>> + Send>>;

/// Requests that only read.
#[derive(Default)]
pub(crate) struct Asked {
    waiting: VecDeque<Request>,
    /// What each gives back is asked for again, with more patience.
    under_way: Vec<Read>,
    /// Loads of what was away when it was looked for. Who waits so long may be gone by the time of his turn.
    away: VecDeque<Request>,
    patient: Vec<Read>,
}

/// What has its turn at once.
enum Turn {
    Loads(Vec<Load>),
    Other(Request),
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

    /// Ready when one has ended, or is to be asked for again.
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
            // Those who have given up meanwhile are not kept for a part that stays away.
            away.retain(|request| !request.is_for_nobody());
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

/// The first that somebody still waits for, and if it is a load, the others that are. Those that name nothing, for they want the time
/// alone, are apart: nothing of theirs is ever away.
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
            // One that finds no room is among the first next time.
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

/// Serves loads by one, and gives back those that name a part of the store that is away.
fn load_soon(backend: &dyn Backend, mut loads: Vec<Load>) -> BoxFuture<'_, Vec<Load>> {
    Box::pin(async move {
        match backend.load_soon(&named_by(&loads)).await {
            Ok((snapshot, away)) => give(loads, snapshot, &away),
            // Who asks for what cannot be read is refused alone. It is looked for by halves.
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

/// The same, and waits for what is away.
async fn load(backend: &dyn Backend, loads: Vec<Load>) -> Vec<Load> {
    match backend.load(&named_by(&loads)).await {
        Ok(snapshot) => give(loads, snapshot, &Reads::default()),
        // Of several not all need be about what is away still, or cannot be read.
        Err(error) if loads.len() > 1 => {
            let away = load_soon(backend, loads).await;
            if matches!(error, StoreError::Corrupt(_)) { away } else { refuse(away, &error) }
        }
        Err(error) => refuse(loads, &error),
    }
}

/// All that these name.
fn named_by(loads: &[Load]) -> Reads {
    let mut all = Reads::default();
    loads.iter().for_each(|load| add(&load.reads, &mut all));
    all
}

/// Answers loads with what each has asked for, and gives back those that name what is away.
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
