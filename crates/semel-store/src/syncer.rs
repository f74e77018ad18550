//! Waiting for the disk beside the decisions: while what was applied is brought there, the next group is decided. Answers
//! go out in the order of the groups, each after a sync that began when its group had been applied.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{mpsc, oneshot};

use crate::answers::Answers;
use crate::backend::{Backend, Claimed};
use crate::batcher::Ready;
use crate::error::StoreError;
use crate::hints::Hints;
use crate::request::{ClaimReply, Decide, Outcome};

/// What was decided and applied together, and whom it is to be told once it is durable. What wrote nothing is told no
/// sooner: it may name what is not durable yet.
pub(crate) struct Unsynced {
    pub(crate) decided: Vec<Box<dyn Decide>>,
    pub(crate) claimed: Vec<(Claimed, ClaimReply)>,
    pub(crate) ready: Ready,
}

impl Unsynced {
    /// Tells everybody what became of it.
    pub(crate) fn answer(self, synced: &Result<(), StoreError>, answers: &mut Answers<Outcome>, hints: &Hints) {
        if let Err(error) = synced {
            self.decided.into_iter().for_each(|decision| decision.answer(Err(error.clone())));
            self.claimed.into_iter().for_each(|(_, reply)| drop(reply.send(Err(error.clone()))));
            return;
        }
        self.decided.into_iter().for_each(|decision| answers.push(Outcome::Decided(decision)));
        self.claimed.into_iter().for_each(|(claimed, reply)| answers.push(Outcome::Claimed(claimed, reply)));
        answers.give();
        hints.give(&self.ready);
    }
}

enum Message {
    Answer(Unsynced),
    Flush(oneshot::Sender<()>),
}

/// The thread that waits for the disk.
pub(crate) struct Syncer {
    to: mpsc::Sender<Message>,
    /// Groups that have not been answered yet.
    under_way: Arc<AtomicUsize>,
    /// Nothing is ever sent: it ends when the thread has given up the backend.
    ended: oneshot::Receiver<()>,
}

impl Syncer {
    /// Starts it, with room for so many groups.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the thread cannot be started.
    pub(crate) fn start(
        backend: Arc<dyn Backend>,
        hints: Arc<Hints>,
        room: usize,
        mut answers: Answers<Outcome>,
    ) -> Result<Self, StoreError> {
        let (to, mut messages) = mpsc::channel(room.max(1));
        let under_way = Arc::new(AtomicUsize::new(0));
        let done = Arc::clone(&under_way);
        let (alive, ended) = oneshot::channel();
        let serve = async move {
            let mut taken = Vec::new();
            while messages.recv_many(&mut taken, room.max(1)).await > 0 {
                let synced = backend.sync().await;
                for message in taken.drain(..) {
                    match message {
                        Message::Answer(unsynced) => {
                            unsynced.answer(&synced, &mut answers, &hints);
                            done.fetch_sub(1, Ordering::Release);
                        }
                        Message::Flush(reply) => drop(reply.send(())),
                    }
                }
            }
            drop(backend);
            drop(alive);
        };
        std::thread::Builder::new()
            .name("semel-sync".to_owned())
            .spawn(move || match tokio::runtime::Builder::new_current_thread().build() {
                Ok(runtime) => runtime.block_on(serve),
                Err(error) => tracing::error!(%error, "the thread that syncs the store cannot run"),
            })
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Self { to, under_way, ended })
    }

    /// Whether all that was taken has been answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::Acquire) == 0
    }

    /// Takes a group over. Waits while there is no room.
    pub(crate) async fn take(&self, unsynced: Unsynced) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        // A thread that has ended drops it, and with it the replies: the store is closed for those who wait.
        drop(self.to.send(Message::Answer(unsynced)).await);
    }

    /// Waits until all that was taken has been answered.
    pub(crate) async fn flush(&self) {
        if self.is_idle() {
            return;
        }
        let (reply, flushed) = oneshot::channel();
        if self.to.send(Message::Flush(reply)).await.is_ok() {
            drop(flushed.await);
        }
    }

    /// Answers all that was taken, and ends.
    pub(crate) async fn end(self) {
        drop(self.to);
        drop(self.ended.await);
    }
}
