//! The queue.

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
/// One process owns a file; programs share a database. Times (schedules, leases, windows) are the store's, not this clock's.
#[derive(Clone)]
pub struct Semel {
    shared: Arc<Shared>,
}

struct Shared {
    /// Gone when the queue was closed.
    engine: RwLock<Option<Engine>>,
    #[cfg(feature = "sqlite")]
    file: std::sync::Mutex<Option<Arc<semel_sqlite::Sqlite>>>,
    #[cfg(feature = "postgres")]
    database: std::sync::Mutex<Option<Arc<semel_postgres::Postgres>>>,
    keeps_unique: AtomicBool,
    #[cfg(feature = "http")]
    serving: Arc<Serving>,
    /// What holds for jobs of some types.
    templates: TemplateSet,
    /// Where they are read from.
    #[cfg(feature = "templates")]
    folder: Option<std::path::PathBuf>,
}

/// A queue on its way: say where its templates are and what else it does, then `.await` it.
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
    /// Jobs go by the templates of this directory: every `.yaml` and `.yml` file in it says what holds for all jobs of one
    /// type, which of them are the same among it. They are read before the store is opened, as a whole or not at all, and
    /// hold for whatever this program offers: jobs, batches, workflows, crons, inside of transactions, over
    /// [`router`](Semel::router); and for what it [relays](Self::relay_outbox). What a job or its type says itself goes before them.
    ///
    /// Opening fails with [`Error::Templates`] when anything is wrong with any of them.
    #[cfg(feature = "templates")]
    pub fn templates(mut self, folder: impl Into<std::path::PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Webhooks that are subscribed to at this program's [`router`](Semel::router) or [server](Semel::serve_admin) may go to this
    /// machine and its networks, and without TLS: for tests, and for subscribers that you run yourself. It is what
    /// `semel serve --webhooks-allow-private` is. Who shares the store with other servers says the same there: whichever of them
    /// takes a delivery goes by its own rules.
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

    /// How long jobs are kept that this program ends: that they end, cancel or replace counts, not who offered them, so all who
    /// share a store say the same. It is decided when a job ends; what had ended before stays as long as it was decided then.
    /// [Workflows](crate::Workflow) are kept as jobs are that end so.
    ///
    /// A key is held for as long as its policy says, however short its job is kept. All else that is asked of a job is to be had
    /// only while it is kept: its result, for [`Handle::wait`](crate::Handle::wait) too, and that a request with its id
    /// was offered before.
    ///
    /// Opening fails with [`Error::Invalid`] when anything of it is no length of time, or no type's or queue's name.
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

    /// The same for the jobs of a queue: it goes before what [`keep`](Self::keep) says of all.
    pub fn keep_queue(mut self, queue: impl Into<String>, keep: Keep) -> Self {
        self.retention.queues.push((queue.into(), keep));
        self
    }

    /// The same for the jobs of a type: it goes before what is said of their queue.
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
    /// Opens a queue and starts its duties: scheduled jobs become available, leases of lost workers end, expired jobs
    /// are discarded, ended ones deleted after their retention. Awaited inside a tokio runtime.
    ///
    /// `sqlite:PATH` is a file, made if it is not there; what is acknowledged survives a crash of program and
    /// machine. `postgres://USER@HOST/DATABASE` is a database that programs and servers share, from a multi-threaded
    /// runtime, and so is `redis://HOST`, which keeps what it is set to keep; a store that is not there yet is made. `memory:`
    /// ends with the program.
    ///
    /// # Errors
    /// Awaited, [`Error::Url`] for any other URL; [`Error::Open`] when the file is in use or cannot be read, or the database
    /// cannot be reached, or there is no tokio runtime.
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

    /// Reads the templates again, from the directory that the queue was opened with: from now on those hold, as a whole. Says
    /// how many there are.
    ///
    /// # Errors
    /// [`Error::Templates`] with everything that is wrong; those from before stay in use.
    #[cfg(feature = "templates")]
    pub async fn reload_templates(&self) -> Result<usize, Error> {
        let Some(folder) = self.shared.folder.clone() else {
            let unnamed = "no directory was named: open the queue with .templates(folder)".to_owned();
            return Err(Error::Templates { faults: vec![unnamed] });
        };
        let templates = crate::folder::read(folder).await?;
        let count = templates.len();
        self.shared.templates.replace(templates);
        Ok(count)
    }

    /// The templates that hold now.
    pub(crate) fn templates(&self) -> Arc<Templates> {
        self.shared.templates.get()
    }

    /// The same, for whoever has them for longer.
    #[cfg(any(feature = "http", feature = "templates"))]
    pub(crate) fn template_set(&self) -> TemplateSet {
        self.shared.templates.clone()
    }

    /// A queue on a store of one's own making.
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

    /// The engine below; its interface is not covered by semantic versioning.
    ///
    /// # Errors
    /// [`Error::Closed`].
    #[doc(hidden)]
    pub fn engine(&self) -> Result<Engine, Error> {
        let engine = self.shared.engine.read().unwrap_or_else(PoisonError::into_inner);
        engine.clone().ok_or(Error::Closed)
    }

    /// The engine and the database, where the queue is in one.
    #[cfg(feature = "postgres")]
    pub(crate) fn inside(&self) -> Result<(Engine, Arc<semel_postgres::Postgres>), Error> {
        let database = self.shared.database.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Looked at second, for close() takes it first: a closed queue says that it is closed, and not that it is in no database.
        let engine = self.engine()?;
        let database = database.ok_or_else(|| Error::Url {
            url: "this queue's".to_owned(),
            advice: "jobs are enqueued inside a transaction where the queue is in PostgreSQL".to_owned(),
        })?;
        Ok((engine, database))
    }

    /// Whether it is the same queue as another.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether policies count; a test may switch them off.
    pub(crate) fn keeps_unique(&self) -> bool {
        self.shared.keeps_unique.load(Ordering::Relaxed)
    }

    pub(crate) fn keep_unique(&self, keeps: bool) {
        self.shared.keeps_unique.store(keeps, Ordering::Relaxed);
    }

    /// Offers a job. What its type says about it can be said otherwise before the `.await`.
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

    /// Offers many jobs, in one commit where the store can. Each is decided by itself, later ones seeing earlier
    /// ones; a refused one does not stop the others, unless [`all_or_nothing`](EnqueueMany::all_or_nothing).
    pub fn enqueue_many<J: IntoEnvelope>(&self, jobs: impl IntoIterator<Item = J>) -> EnqueueMany {
        EnqueueMany::new(self.clone(), jobs.into_iter().map(IntoEnvelope::into_envelope).collect())
    }

    /// The job of that id, whether or not there is one.
    pub fn job(&self, id: JobId) -> Handle {
        Handle::new(self.clone(), id)
    }

    /// Closes the queue, for all its clones: its servers and duties stop, webhooks that are being delivered are waited for (15 s at
    /// most), what was asked before is answered, and the store is let go of. A file can be opened again at once. Every later call is
    /// [`Error::Closed`], and a `router` that is still mounted answers 503. Workers are to be stopped before: this does not wait for
    /// them, and what they still hold goes to others when its lease has ended. Once begun, the closing goes on where its future is
    /// dropped. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Closed`] when it was closed before, or is being closed.
    pub async fn close(&self) -> Result<(), Error> {
        let engine = {
            let mut slot = self.shared.engine.write().unwrap_or_else(PoisonError::into_inner);
            slot.take().ok_or(Error::Closed)?
        };
        let shared = Arc::clone(&self.shared);
        // In a task of its own: whoever waits for it no longer must not leave the file held by a queue that answers nothing.
        let closing = tokio::spawn(async move {
            #[cfg(feature = "http")]
            shared.serving.end().await;
            // Whoever opens the file right after this must not meet its own lock: these are the last holds on it but the engine's own.
            #[cfg(feature = "postgres")]
            drop(shared.database.lock().unwrap_or_else(PoisonError::into_inner).take());
            #[cfg(feature = "sqlite")]
            drop(shared.file.lock().unwrap_or_else(PoisonError::into_inner).take());
            drop(shared);
            engine.close().await;
        });
        // It fails where the runtime ends under it.
        drop(closing.await);
        Ok(())
    }

    /// What its servers share.
    #[cfg(feature = "http")]
    pub(crate) fn serving(&self) -> &Arc<Serving> {
        &self.shared.serving
    }

    /// Says where others who find the file taken may talk to its owner; or that nobody listens.
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
