//! The named queues that jobs wait in: inspect, pause and resume them.

use semel_core::ident::QueueName;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_store::backend::QueueStats;

use crate::error::Error;
use crate::queue::Semel;

impl Semel {
    /// A handle on the queue of this name, whether or not a job has ever waited in it.
    ///
    /// ```
    /// # use semel::{JobState, Semel};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), semel::Error> {
    /// # let semel = Semel::open("memory:").await?;
    /// let mail = semel.queue("mail")?;
    /// mail.pause().await?;
    /// let waiting = mail.load().await?.map_or(0, |queue| queue.count(JobState::Available));
    /// println!("{waiting} mails wait until the provider is back");
    /// mail.resume().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] when the text cannot be a queue's name.
    pub fn queue(&self, name: &str) -> Result<Queue, Error> {
        Ok(Queue { semel: self.clone(), name: QueueName::parse(name, "/name")? })
    }

    /// The queues that have jobs or are paused, sorted by name.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn queues(&self) -> Result<Vec<StoredQueue>, Error> {
        let queues = self.engine()?.queues().await?;
        let mut queues: Vec<StoredQueue> = queues.into_iter().map(StoredQueue).collect();
        queues.sort_by(|one, other| one.name().cmp(other.name()));
        Ok(queues)
    }
}

/// A handle on a queue, by its name. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Queue {
    semel: Semel,
    name: QueueName,
}

impl Queue {
    /// The queue's name.
    pub fn name(&self) -> &str {
        self.name.name()
    }

    /// The queue as it is now; `None` if it has never held a job and nobody has changed a setting of it.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load(&self) -> Result<Option<StoredQueue>, Error> {
        Ok(self.semel.engine()?.queue(&self.name).await?.map(StoredQueue))
    }

    /// Pauses the queue: from now on no worker of any program is given jobs from it. Runs under way go on,
    /// and jobs are still admitted. A queue can be paused before it has any jobs.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn pause(&self) -> Result<(), Error> {
        self.set_paused(true).await
    }

    /// Resumes the queue: workers are given its jobs again.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn resume(&self) -> Result<(), Error> {
        self.set_paused(false).await
    }

    async fn set_paused(&self, paused: bool) -> Result<(), Error> {
        self.semel.engine()?.set_paused(self.name.clone(), paused).await?;
        Ok(())
    }
}

/// A snapshot of a queue.
#[derive(Clone, Debug)]
pub struct StoredQueue(QueueStats);

impl StoredQueue {
    /// The queue's name.
    pub fn name(&self) -> &str {
        self.0.row.name.name()
    }

    /// Whether it is paused.
    pub const fn is_paused(&self) -> bool {
        self.0.row.paused
    }

    /// How many of the jobs stored now are in this state.
    pub fn count(&self, state: State) -> u64 {
        self.0.count(state)
    }

    /// When the job that has waited longest for a worker became ready to run; `None` if none waits.
    pub const fn waiting_since(&self) -> Option<Timestamp> {
        self.0.oldest_ready
    }
}
