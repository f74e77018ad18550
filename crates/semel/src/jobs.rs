//! The jobs that are there, page by page.

use std::fmt;
use std::future::IntoFuture;

use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::state::{State, StateSet};
use semel_store::backend::{BoxFuture, Filter};

use crate::error::Error;
use crate::job::Job;
use crate::queue::Semel;
use crate::stored::Stored;

/// Jobs of a page unless it is said.
const LIMIT_DEFAULT: usize = 100;
/// Jobs of a page, whatever is said.
const LIMIT_MAX: usize = 1_000;

/// A page of jobs on its way: say which, then `.await` it.
#[must_use = "a page is read by `.await`"]
pub struct Jobs {
    semel: Semel,
    states: StateSet,
    queue: Option<String>,
    job_type: Option<String>,
    dead_letters: bool,
    before: Option<JobId>,
    limit: usize,
}

/// A page of jobs.
#[derive(Clone, Debug)]
pub struct Page {
    /// The jobs, the newest first. A page may be short, or empty, and have a next one all the same: of many jobs, or of large ones, a
    /// bounded part is looked at for each.
    pub jobs: Vec<Stored>,
    /// What [`Jobs::before`] takes for the next page; none when this was the last.
    pub next: Option<JobId>,
}

impl Semel {
    /// The jobs that are stored, the newest first: all of them, unless it is said which.
    ///
    /// ```
    /// # use semel::{Job, JobState, Semel};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, Job)]
    /// # #[job(type = "email.welcome", queue = "mail")]
    /// # struct Welcome { user_id: u64 }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), semel::Error> {
    /// # let semel = Semel::open("memory:").await?;
    /// # semel.enqueue(Welcome { user_id: 42 }).await?;
    /// let mut waiting = semel.jobs().of::<Welcome>().state(JobState::Available).await?;
    /// loop {
    ///     for job in &waiting.jobs {
    ///         println!("{} of user {} since {}", job.id(), job.payload::<Welcome>()?.user_id, job.created_at());
    ///     }
    ///     let Some(next) = waiting.next else { break };
    ///     waiting = semel.jobs().of::<Welcome>().state(JobState::Available).before(next).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn jobs(&self) -> Jobs {
        Jobs {
            semel: self.clone(),
            states: StateSet::EMPTY,
            queue: None,
            job_type: None,
            dead_letters: false,
            before: None,
            limit: LIMIT_DEFAULT,
        }
    }
}

impl Jobs {
    /// Those in this state. Said several times, those in any of them.
    pub fn state(mut self, state: State) -> Self {
        self.states = self.states.with(state);
        self
    }

    /// Those in this queue.
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.queue = Some(name.into());
        self
    }

    /// Those of this type.
    pub fn of<J: Job>(self) -> Self {
        self.job_type(J::TYPE)
    }

    /// The same by the type's name on the wire.
    pub fn job_type(mut self, name: impl Into<String>) -> Self {
        self.job_type = Some(name.into());
        self
    }

    /// Those that have failed for good and [can be sent back](crate::Handle::retry).
    pub fn dead_letters(mut self) -> Self {
        self.dead_letters = true;
        self
    }

    /// Those after this one, which are older: where a page [goes on](Page::next).
    pub fn before(mut self, id: JobId) -> Self {
        self.before = Some(id);
        self
    }

    /// At most so many, 1 to 1,000; 100 unless said. What is large makes fewer.
    pub fn limit(mut self, most: usize) -> Self {
        self.limit = most.clamp(1, LIMIT_MAX);
        self
    }

    async fn read(self) -> Result<Page, Error> {
        let queue = self.queue.map(|name| QueueName::parse(&name, "/queue")).transpose()?;
        let job_type = self.job_type.map(|name| JobType::parse(&name, "/type")).transpose()?;
        let filter = Filter {
            states: self.states,
            queue,
            job_type,
            dead_letters: self.dead_letters,
            before: self.before,
            ..Filter::default()
        };
        let (jobs, next) = self.semel.engine()?.page(filter, self.limit).await?;
        Ok(Page { jobs: jobs.into_iter().map(Stored).collect(), next })
    }
}

impl IntoFuture for Jobs {
    /// Fails with [`Error::Invalid`] when a name cannot be one, and with [`Error::Store`] when the store cannot be read or, of a file, the
    /// job that the page was to go on behind is gone and its place cannot be found: begin again.
    type Output = Result<Page, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.read())
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs")
            .field("queue", &self.queue)
            .field("job_type", &self.job_type)
            .field("before", &self.before)
            .finish_non_exhaustive()
    }
}
