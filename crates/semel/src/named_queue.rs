//! The named queues that jobs wait in: look at one, pause it, let it go on.

use semel_core::ident::QueueName;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_store::backend::QueueStats;

use crate::error::Error;
use crate::queue::Semel;

impl Semel {
    /// The queue of that name, whether or not anything has ever waited in it.
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

    /// The queues that have jobs or are paused, by name.
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

/// A queue by its name. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Queue {
    semel: Semel,
    name: QueueName,
}

impl Queue {
    /// Its name.
    pub fn name(&self) -> &str {
        self.name.name()
    }

    /// The queue as it is now; none when nothing has ever been in it and nobody has said anything of it.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load(&self) -> Result<Option<StoredQueue>, Error> {
        Ok(self.semel.engine()?.queue(&self.name).await?.map(StoredQueue))
    }

    /// No worker is given jobs of it from now on, whichever program it is of. Runs under way go on, and jobs are admitted as ever: it
    /// may be paused before it has any.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn pause(&self) -> Result<(), Error> {
        self.set_paused(true).await
    }

    /// Its jobs are given to workers again.
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

/// A queue at one moment.
#[derive(Clone, Debug)]
pub struct StoredQueue(QueueStats);

impl StoredQueue {
    /// Its name.
    pub fn name(&self) -> &str {
        self.0.row.name.name()
    }

    /// Whether it is paused.
    pub const fn is_paused(&self) -> bool {
        self.0.row.paused
    }

    /// How many jobs that are stored now are in that state.
    pub fn count(&self, state: State) -> u64 {
        self.0.count(state)
    }

    /// Since when the job that has waited longest for a worker could have been given to one; none when none waits.
    pub const fn waiting_since(&self) -> Option<Timestamp> {
        self.0.oldest_ready
    }
}
