//! Lists the stored jobs, page by page.

use std::fmt;
use std::future::IntoFuture;

use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::state::{State, StateSet};
use semel_store::backend::{BoxFuture, Filter};

use crate::error::Error;
use crate::job::Job;
use crate::queue::Semel;
use crate::stored::Stored;

/// How many jobs a page has by default.
const LIMIT_DEFAULT: usize = 100;
/// The most jobs a page may have, whatever limit is asked for.
const LIMIT_MAX: usize = 1_000;

/// A query for a page of jobs: narrow it down, then `.await` it.
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
    /// The jobs, newest first. A page may be short or empty although more follow: each read looks at a
    /// bounded number of jobs and of bytes.
    pub jobs: Vec<Stored>,
    /// The cursor for the next page, for [`Jobs::before`]; `None` on the last page.
    pub next: Option<JobId>,
}

impl Semel {
    /// Lists the stored jobs, newest first: all of them, unless the query is narrowed down.
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
    /// Only jobs in this state. Called several times: jobs in any of those states.
    pub fn state(mut self, state: State) -> Self {
        self.states = self.states.with(state);
        self
    }

    /// Only jobs in this queue.
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.queue = Some(name.into());
        self
    }

    /// Only jobs of this type.
    pub fn of<J: Job>(self) -> Self {
        self.job_type(J::TYPE)
    }

    /// Only jobs of this type, by its name on the wire.
    pub fn job_type(mut self, name: impl Into<String>) -> Self {
        self.job_type = Some(name.into());
        self
    }

    /// Only dead letters: jobs that have failed for good and [can be sent back](crate::Handle::retry).
    pub fn dead_letters(mut self) -> Self {
        self.dead_letters = true;
        self
    }

    /// Only jobs older than this one: continues after a [page](Page::next).
    pub fn before(mut self, id: JobId) -> Self {
        self.before = Some(id);
        self
    }

    /// The most jobs of the page: 1 to 1,000, 100 by default. Values outside are clamped; large jobs make a
    /// page shorter.
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
    /// Fails with [`Error::Invalid`] when a queue's or type's name is not valid, and with [`Error::Store`]
    /// when the store cannot be read. In a store in a file, also when the job given to [`Jobs::before`] is
    /// gone and its place cannot be found: start again from the first page.
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
