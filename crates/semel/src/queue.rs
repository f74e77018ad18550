//! The queue: opening it, enqueueing, closing it.

use std::fmt;
use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use semel_core::ident::JobId;
use semel_engine::Engine;
use semel_ojs::{TemplateSet, Templates};
#[cfg(feature = "http")]
use semel_server::webhooks::Rules;
use semel_store::Backend;
use semel_store::backend::BoxFuture;

#[cfg(feature = "http")]
use crate::admin::Serving;
use crate::enqueue::{Enqueue, EnqueueMany};
use crate::envelope::IntoEnvelope;
use crate::error::Error;
use crate::handle::Handle;
use crate::open::{self, Opened};
use crate::retention::{Keep, Rules as Retention};

/// A job queue. Cheap to clone; all clones are one queue.
///
/// A file belongs to one process; programs share a database or a Redis. Times (schedules, leases, windows)
/// are by the store's clock, not this machine's.
#[derive(Clone)]
pub struct Semel {
    shared: Arc<Shared>,
}

struct Shared {
    /// `None` once the queue has been closed.
    engine: RwLock<Option<Engine>>,
    #[cfg(feature = "sqlite")]
    file: std::sync::Mutex<Option<Arc<semel_sqlite::Sqlite>>>,
    #[cfg(feature = "postgres")]
    database: std::sync::Mutex<Option<Arc<semel_postgres::Postgres>>>,
    keeps_unique: AtomicBool,
    #[cfg(feature = "http")]
    serving: Arc<Serving>,
    /// Templates: the settings for all jobs of a type.
    templates: TemplateSet,
    /// The directory that the templates are read from.
    #[cfg(feature = "templates")]
    folder: Option<std::path::PathBuf>,
}

/// A queue to be opened: set its templates and options, then `.await` it.
#[must_use = "a queue is opened by `.await`"]
#[derive(Clone)]
pub struct Open {
    url: String,
    retention: Retention,
    #[cfg(feature = "templates")]
    folder: Option<std::path::PathBuf>,
    #[cfg(feature = "http")]
    webhooks: Rules,
    #[cfg(feature = "postgres")]
    relays: bool,
}

impl Open {
    /// Applies the job templates in this directory. Every `.yaml` and `.yml` file in it holds the settings
    /// for all jobs of one type, including which of them are the same.
    ///
    /// The templates are read before the store is opened, all of them or none. They apply to whatever this
    /// program enqueues: jobs, batches, workflows, crons, jobs inside transactions, and jobs sent over
    /// [`router`](Semel::router). They also apply to what it [relays](Self::relay_outbox). What a job or its
    /// Rust type sets takes precedence.
    ///
    /// Opening fails with [`Error::Templates`] if anything is wrong with any of them.
    #[cfg(feature = "templates")]
    pub fn templates(mut self, folder: impl Into<std::path::PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Allows webhooks to private addresses and without TLS: to this machine and its networks, for tests and
    /// for subscribers that you run yourself. It is what `semel serve --webhooks-allow-private` does.
    ///
    /// It covers webhooks subscribed at this program's [`router`](Semel::router) or
    /// [server](Semel::serve_admin). If other servers share the store, set the same there: whichever server
    /// takes a delivery applies its own rules.
    #[cfg(feature = "http")]
    pub fn webhooks_allow_private(mut self) -> Self {
        self.webhooks.allow_private = true;
        self
    }

    /// Makes this program relay the outbox of its PostgreSQL database. Several programs may relay the same one; servers (`semel serve`)
    /// always do. Whichever takes an entry applies its own templates to it (here those of `templates`, if any), so give all of them the
    /// same templates. Only PostgreSQL has an outbox.
    #[cfg(feature = "postgres")]
    pub fn relay_outbox(mut self) -> Self {
        self.relays = true;
        self
    }

    /// How long to keep jobs after this program ends them. The rule of the program that ends, cancels or
    /// replaces a job counts, not that of the program that enqueued it, so all programs that share a store
    /// should set the same.
    ///
    /// The time is fixed when a job ends: jobs that ended earlier are kept for as long as was decided then.
    /// [Workflows](crate::Workflow) are kept as long as jobs that end in the same way.
    ///
    /// A unique key is held for as long as its policy says, however briefly its job is kept. Everything else
    /// about a job is available only while it is kept: its result, also through
    /// [`Handle::wait`](crate::Handle::wait), and the memory that a request with its id was sent before.
    ///
    /// Opening fails with [`Error::Invalid`] if a time is out of bounds, or a type's or queue's name is not
    /// valid.
    ///
    /// ```
    /// # use semel::{Keep, Semel};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), semel::Error> {
    /// const HOUR: Duration = Duration::from_secs(3_600);
    /// let semel = Semel::open("memory:")
    ///     .keep(Keep::new().completed(HOUR * 36))
    ///     .keep_queue("billing", Keep::new().completed(HOUR * 24 * 30))
    ///     .keep_type("email.send", Keep::new().completed(HOUR))
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep(mut self, keep: Keep) -> Self {
        self.retention.all = keep;
        self
    }

    /// The same for the jobs of one queue; it takes precedence over [`keep`](Self::keep).
    pub fn keep_queue(mut self, queue: impl Into<String>, keep: Keep) -> Self {
        self.retention.queues.push((queue.into(), keep));
        self
    }

    /// The same for the jobs of one type; it takes precedence over the rule of their queue.
    pub fn keep_type(mut self, job_type: impl Into<String>, keep: Keep) -> Self {
        self.retention.types.push((job_type.into(), keep));
        self
    }

    async fn open(self) -> Result<Semel, Error> {
        let retention = self.retention.checked()?;
        #[cfg(feature = "templates")]
        let templates = match &self.folder {
            Some(folder) => TemplateSet::new(crate::folder::read(folder.clone()).await?),
            None => TemplateSet::default(),
        };
        #[cfg(not(feature = "templates"))]
        let templates = TemplateSet::default();
        let opened = open::open(&self.url).await?;
        let engine = Engine::keeping(Arc::clone(&opened.backend), retention)?;
        #[cfg(feature = "postgres")]
        if let Some(database) = opened.database.as_ref().filter(|_| self.relays) {
            let set = templates.clone();
            let read = move |id: JobId, text: &str| semel_ojs::outbox::read_with(id, text, Some(&set.get()));
            tokio::spawn(engine.relay(Arc::clone(database) as _, Arc::new(read)));
        }
        let shared = Shared::of(engine, opened, templates);
        #[cfg(feature = "templates")]
        let shared = Shared { folder: self.folder, ..shared };
        #[cfg(feature = "http")]
        let shared = Shared { serving: Arc::new(Serving::by(self.webhooks)), ..shared };
        Ok(Semel { shared: Arc::new(shared) })
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open").field("url", &open::shown(&self.url)).finish_non_exhaustive()
    }
}

impl IntoFuture for Open {
    type Output = Result<Semel, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

impl Shared {
    fn of(engine: Engine, opened: Opened, templates: TemplateSet) -> Self {
        #[cfg(not(any(feature = "sqlite", feature = "postgres")))]
        drop(opened);
        Self {
            engine: RwLock::new(Some(engine)),
            #[cfg(feature = "sqlite")]
            file: std::sync::Mutex::new(opened.file),
            #[cfg(feature = "postgres")]
            database: std::sync::Mutex::new(opened.database),
            keeps_unique: AtomicBool::new(true),
            #[cfg(feature = "http")]
            serving: Arc::new(Serving::by(Rules::default())),
            templates,
            #[cfg(feature = "templates")]
            folder: None,
        }
    }
}

impl Semel {
    /// Opens a queue and starts its background duties: making scheduled jobs available, ending the leases of
    /// lost workers, discarding expired jobs, and deleting ended jobs after their retention. Must be awaited
    /// inside a tokio runtime.
    ///
    /// `sqlite:PATH` is a file, created if it does not exist; what has been acknowledged survives a crash of the
    /// program or the machine. `postgres://USER@HOST/DATABASE` and `redis://HOST` are stores that programs and
    /// servers share, from a multi-threaded runtime; one that does not exist yet is created. How durable a Redis
    /// is depends on its settings. `memory:` lasts as long as the program.
    ///
    /// # Errors
    /// When awaited: [`Error::Url`] for any other URL; [`Error::Open`] if the file is in use or cannot be
    /// read, the database cannot be reached, or there is no tokio runtime.
    pub fn open(url: &str) -> Open {
        Open {
            url: url.to_owned(),
            retention: Retention::default(),
            #[cfg(feature = "templates")]
            folder: None,
            #[cfg(feature = "http")]
            webhooks: Rules::default(),
            #[cfg(feature = "postgres")]
            relays: false,
        }
    }

    /// Reads the templates again, from the directory the queue was opened with, and replaces all of them at
    /// once. Returns how many there are.
    ///
    /// # Errors
    /// [`Error::Templates`] with everything that is wrong, or if the queue was opened without a directory of
    /// templates. The earlier templates stay in use.
    #[cfg(feature = "templates")]
    pub async fn reload_templates(&self) -> Result<usize, Error> {
        let Some(folder) = self.shared.folder.clone() else {
            let unnamed =
                "no directory of templates is set: open the queue with .templates(folder)".to_owned();
            return Err(Error::Templates { faults: vec![unnamed] });
        };
        let templates = crate::folder::read(folder).await?;
        let count = templates.len();
        self.shared.templates.replace(templates);
        Ok(count)
    }

    /// The templates now in use.
    pub(crate) fn templates(&self) -> Arc<Templates> {
        self.shared.templates.get()
    }

    /// The set of templates, whose content a reload replaces.
    #[cfg(any(feature = "http", feature = "templates"))]
    pub(crate) fn template_set(&self) -> TemplateSet {
        self.shared.templates.clone()
    }

    /// A queue on a backend of your own.
    ///
    /// # Errors
    /// When the store's thread cannot be started.
    #[doc(hidden)]
    pub fn on(backend: Arc<dyn Backend>) -> Result<Self, Error> {
        Ok(Self::of(Engine::start(Arc::clone(&backend))?, Opened::on(backend)))
    }

    pub(crate) fn of(engine: Engine, opened: Opened) -> Self {
        let shared = Shared::of(engine, opened, TemplateSet::default());
        Self { shared: Arc::new(shared) }
    }

    /// The engine underneath; its interface is not covered by semantic versioning.
    ///
    /// # Errors
    /// [`Error::Closed`] once the queue is closed.
    #[doc(hidden)]
    pub fn engine(&self) -> Result<Engine, Error> {
        let engine = self.shared.engine.read().unwrap_or_else(PoisonError::into_inner);
        engine.clone().ok_or(Error::Closed)
    }

    /// The engine and the database, if the queue is in PostgreSQL.
    #[cfg(feature = "postgres")]
    pub(crate) fn inside(&self) -> Result<(Engine, Arc<semel_postgres::Postgres>), Error> {
        let database = self.shared.database.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Checked second, because close() takes the engine first: a closed queue must say that it is closed,
        // not that it has no database.
        let engine = self.engine()?;
        let database = database.ok_or_else(|| Error::Url {
            url: "this queue's store".to_owned(),
            advice: "jobs can be enqueued inside a transaction only if the queue is in PostgreSQL".to_owned(),
        })?;
        Ok((engine, database))
    }

    /// Whether both are handles on the same queue.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether unique policies apply; a test may switch them off.
    pub(crate) fn keeps_unique(&self) -> bool {
        self.shared.keeps_unique.load(Ordering::Relaxed)
    }

    pub(crate) fn keep_unique(&self, keeps: bool) {
        self.shared.keeps_unique.store(keeps, Ordering::Relaxed);
    }

    /// Enqueues a job. Before the `.await`, the settings of its type can be overridden for this job.
    ///
    /// ```
    /// # use semel::{Job, JobState, OnConflict, Semel, Unique};
    /// # use serde::{Deserialize, Serialize};
    /// # use std::time::Duration;
    /// # #[derive(Serialize, Deserialize, Job)]
    /// # #[job(type = "email.remind")]
    /// # struct Remind { user_id: u64 }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), semel::Error> {
    /// # let semel = Semel::open("memory:").await?;
    /// let hourly = Unique::by_args(["user_id"])
    ///     .live_and([JobState::Completed])
    ///     .within(Duration::from_secs(3600))
    ///     .on_conflict(OnConflict::Ignore);
    /// let reminder = semel.enqueue(Remind { user_id: 42 }).after(Duration::from_secs(600)).unique(hourly).await?;
    /// println!("job {}: {}", reminder.id().unwrap(), reminder.reason());
    /// // An event of a webhook is queued once, however often it is delivered while its job waits or runs, and for a week afterwards:
    /// let event = Unique::by_type().live_and([JobState::Completed]).within(Duration::from_secs(7 * 86_400));
    /// semel.enqueue(Remind { user_id: 43 }).unique(event).key("evt_1").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn enqueue(&self, job: impl IntoEnvelope) -> Enqueue {
        Enqueue::new(self.clone(), job.into_envelope())
    }

    /// Enqueues many jobs, in one commit where the store can. Each job is decided by itself, and later ones
    /// see earlier ones. A refused job does not stop the others, unless
    /// [`all_or_nothing`](EnqueueMany::all_or_nothing) is set.
    pub fn enqueue_many<J: IntoEnvelope>(&self, jobs: impl IntoIterator<Item = J>) -> EnqueueMany {
        EnqueueMany::new(self.clone(), jobs.into_iter().map(IntoEnvelope::into_envelope).collect())
    }

    /// A handle on the job with this id, whether or not it exists.
    pub fn job(&self, id: JobId) -> Handle {
        Handle::new(self.clone(), id)
    }

    /// Closes the queue for all its clones: its servers and duties stop, webhook deliveries under way are
    /// awaited (at most 15 s), earlier calls are answered, and the store is released. A file can be reopened
    /// at once.
    ///
    /// Every later call returns [`Error::Closed`], and a `router` that is still mounted answers 503. Stop
    /// workers first: this does not wait for them, and jobs they still hold go to others when their leases
    /// end. Once begun, closing completes even if the future is dropped. Must be called inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`Error::Closed`] if the queue was closed before, or is being closed.
    pub async fn close(&self) -> Result<(), Error> {
        let engine = {
            let mut slot = self.shared.engine.write().unwrap_or_else(PoisonError::into_inner);
            slot.take().ok_or(Error::Closed)?
        };
        let shared = Arc::clone(&self.shared);
        // In a task of its own: a caller that stops waiting must not leave the file held by a queue that
        // answers nothing.
        let closing = tokio::spawn(async move {
            #[cfg(feature = "http")]
            shared.serving.end().await;
            // Reopening the file right after close() must not meet this queue's own lock: besides the
            // engine's, these are the last references to it.
            #[cfg(feature = "postgres")]
            drop(shared.database.lock().unwrap_or_else(PoisonError::into_inner).take());
            #[cfg(feature = "sqlite")]
            drop(shared.file.lock().unwrap_or_else(PoisonError::into_inner).take());
            drop(shared);
            engine.close().await;
        });
        // It fails only if the runtime is shut down meanwhile.
        drop(closing.await);
        Ok(())
    }

    /// What the servers of this queue share.
    #[cfg(feature = "http")]
    pub(crate) fn serving(&self) -> &Arc<Serving> {
        &self.shared.serving
    }

    /// Writes beside the store where other programs that find the file in use can reach its owner; `None`
    /// withdraws the address.
    #[cfg(feature = "http")]
    pub(crate) fn announce(&self, url: Option<&str>) {
        #[cfg(feature = "sqlite")]
        if let Some(file) = &*self.shared.file.lock().unwrap_or_else(PoisonError::into_inner)
            && let Err(error) =
                url.map_or_else(|| file.withdraw(), |url| file.announce(url, semel_server::instance()))
        {
            tracing::warn!(%error, "the address could not be written beside the store; tools need --server URL");
        }
        #[cfg(not(feature = "sqlite"))]
        let _ = url;
    }
}

impl fmt::Debug for Semel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = self.shared.engine.read().unwrap_or_else(PoisonError::into_inner);
        let store = engine.as_ref().map_or("closed", |engine| engine.facts().engine);
        f.debug_struct("Semel").field("store", &store).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::Semel;

    #[test]
    fn a_queue_on_its_way_shows_no_password() {
        for url in
            ["postgres://ada:s3cret@host/db", "postgres://host/db?password=s3cret", "redis://:s3cret@host"]
        {
            let shown = format!("{:?}", Semel::open(url));
            assert!(shown.contains("host") && !shown.contains("s3cret"), "{shown}");
        }
    }
}
