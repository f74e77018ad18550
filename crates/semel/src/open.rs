//! Opens the store that a URL names.

use std::sync::Arc;

use semel_store::Backend;
use semel_store::copy::unfinished;
use semel_store::memory::Memory;

use crate::error::Error;

/// An open store: its backend, and the concrete file or database behind it where a feature needs that.
pub(crate) struct Opened {
    pub(crate) backend: Arc<dyn Backend>,
    #[cfg(feature = "sqlite")]
    pub(crate) file: Option<Arc<semel_sqlite::Sqlite>>,
    #[cfg(feature = "postgres")]
    pub(crate) database: Option<Arc<semel_postgres::Postgres>>,
}

impl Opened {
    pub(crate) fn on(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            #[cfg(feature = "sqlite")]
            file: None,
            #[cfg(feature = "postgres")]
            database: None,
        }
    }
}

/// The error text for a call outside a tokio runtime, where tokio itself would panic.
pub(crate) const NO_RUNTIME: &str =
    "there is no tokio runtime here; call this inside one, such as in #[tokio::main] or Runtime::block_on";

/// The kind of store that a URL names, and where it is.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Memory,
    File(&'a str),
    Database(&'a str),
    Redis(&'a str),
}

fn place(url: &str) -> Result<Place<'_>, Error> {
    let refuse = |advice: &str| Err(Error::Url { url: shown(url), advice: advice.to_owned() });
    if url == "memory:" {
        return Ok(Place::Memory);
    }
    if let Some(rest) = url.strip_prefix("sqlite:") {
        let path = rest.strip_prefix("//").unwrap_or(rest);
        #[cfg(feature = "sqlite")]
        if let Err(advice) = semel_sqlite::refuse_parameters(path) {
            return refuse(advice);
        }
        return match path {
            "" => refuse("write the file's path after it, like sqlite:app.db"),
            ":memory:" => refuse("write memory: for a store without a file"),
            _ => Ok(Place::File(path)),
        };
    }
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(Place::Database(url));
    }
    if ["redis://", "rediss://", "redis+", "rediss+"].iter().any(|scheme| url.starts_with(scheme)) {
        return Ok(Place::Redis(url));
    }
    if url.starts_with("http:") || url.starts_with("https:") {
        return refuse(
            "that is a server's URL; run its jobs with Worker::remote(url), and enqueue them with any OJS client",
        );
    }
    refuse(
        "write sqlite:PATH for a store in a file, postgres://USER@HOST/DATABASE or redis://HOST for one that servers share, \
         or memory: for one that lasts as long as the program",
    )
}

/// A URL without its credentials, for messages: it may carry a password before its host or among its
/// parameters.
pub(crate) fn shown(url: &str) -> String {
    let (before, after) = url.split_once('?').unwrap_or((url, ""));
    match (before.find("://"), before.rfind('@')) {
        // The password contains a `?`.
        (Some(begin), _) if after.contains('@') => format!("{}://…", &before[..begin]),
        (Some(begin), Some(at)) if begin < at => format!("{}://…{}", &before[..begin], &before[at..]),
        // Without `://` it may still be an address with a password, or a libpq connection string: show none
        // of it.
        (None, _) if url.contains(['@', '=']) && !url.starts_with("sqlite:") => "…".to_owned(),
        _ => before.to_owned(),
    }
}

/// Opens the store that a URL names.
pub(crate) async fn open(url: &str) -> Result<Opened, Error> {
    let place = place(url)?;
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(Error::Open { url: shown(url), reason: NO_RUNTIME.to_owned() });
    }
    let opened = match place {
        Place::Memory => return Ok(Opened::on(Arc::new(Memory::default()))),
        Place::File(path) => open_file(url, path).await?,
        Place::Database(address) => open_database(address).await?,
        Place::Redis(address) => open_redis(address).await?,
    };
    let refuse = |reason: String| Error::Open { url: shown(url), reason };
    if unfinished(&*opened.backend).await.map_err(|error| refuse(error.to_string()))? {
        return Err(refuse(
            "it is a copy of another store that is still being made or was interrupted; run the same semel copy again to continue it"
                .to_owned(),
        ));
    }
    Ok(opened)
}

#[cfg(feature = "sqlite")]
async fn open_file(url: &str, path: &str) -> Result<Opened, Error> {
    let refuse = |reason: String| Error::Open { url: url.to_owned(), reason };
    let path = std::path::PathBuf::from(path);
    // Opening reads the file, which takes time when it is large: keep it off the runtime's threads.
    let opened = tokio::task::spawn_blocking(move || semel_sqlite::Sqlite::open(path));
    let file = opened.await.map_err(|error| refuse(error.to_string()))?;
    let file = Arc::new(file.map_err(|error| refuse(error.to_string()))?);
    Ok(Opened { file: Some(Arc::clone(&file)), ..Opened::on(file) })
}

#[cfg(not(feature = "sqlite"))]
async fn open_file(url: &str, _: &str) -> Result<Opened, Error> {
    Err(Error::Url { url: url.to_owned(), advice: "enable semel's feature `sqlite`".to_owned() })
}

#[cfg(feature = "postgres")]
async fn open_database(url: &str) -> Result<Opened, Error> {
    let refuse =
        |error: semel_postgres::PostgresError| Error::Open { url: shown(url), reason: error.to_string() };
    let address = semel_postgres::Address::parse(url).map_err(refuse)?;
    let store = semel_postgres::Postgres::open(&address).await.map_err(refuse)?;
    let store = Arc::new(store);
    Ok(Opened { database: Some(Arc::clone(&store)), ..Opened::on(store) })
}

#[cfg(not(feature = "postgres"))]
async fn open_database(url: &str) -> Result<Opened, Error> {
    Err(Error::Url { url: shown(url), advice: "enable semel's feature `postgres`".to_owned() })
}

#[cfg(feature = "redis")]
async fn open_redis(url: &str) -> Result<Opened, Error> {
    let refuse = |error: semel_redis::RedisError| Error::Open { url: shown(url), reason: error.to_string() };
    let address = semel_redis::Address::parse(url).map_err(refuse)?;
    let store = semel_redis::Redis::open(&address).await.map_err(refuse)?;
    store.warn_of_settings().await;
    Ok(Opened::on(Arc::new(store)))
}

#[cfg(not(feature = "redis"))]
async fn open_redis(url: &str) -> Result<Opened, Error> {
    Err(Error::Url { url: shown(url), advice: "enable semel's feature `redis`".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_any_part_of_its_password() {
        for (url, text) in [
            ("postgres://ada:secret@host/db?schema=a", "postgres://…@host/db"),
            ("redis+unix:///run/sock?pass=secret", "redis+unix:///run/sock"),
            ("postgres://ada:s?ecret@host/db", "postgres://…"),
            ("postgres://ada:one@sec?ret@host/db", "postgres://…"),
            ("sqlite:a@b.db", "sqlite:a@b.db"),
            ("host=db user=ada password=secret", "…"),
        ] {
            assert_eq!(shown(url), text);
        }
    }

    #[test]
    fn where_no_runtime_is_that_is_said() {
        for url in ["memory:", "sqlite:/", "postgres://user:secret@host/db", "redis://host"] {
            let opening = crate::Semel::open(url).into_future();
            let refused = futures_util::FutureExt::now_or_never(opening).unwrap().unwrap_err();
            assert!(
                matches!(&refused, Error::Open { reason, .. } if reason.contains("tokio runtime")),
                "{refused}"
            );
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let semel = runtime.block_on(async { crate::Semel::open("memory:").await }).unwrap();
        let worker = crate::Worker::new(&semel).handle_type("a.b", |_| async {});
        assert!(matches!(worker.start(), Err(Error::Worker(reason)) if reason.contains("tokio runtime")));
    }

    #[test]
    fn a_url_that_names_no_store_says_what_to_write() {
        assert_eq!(place("memory:").unwrap(), Place::Memory);
        assert_eq!(place("sqlite:a/b.db").unwrap(), Place::File("a/b.db"));
        assert_eq!(place("sqlite:///a/b.db").unwrap(), Place::File("/a/b.db"));
        let database = "postgres://user@host/db";
        assert_eq!(place(database).unwrap(), Place::Database(database));
        for redis in [
            "redis://user@host/1",
            "rediss://host",
            "redis+unix:///run/sock",
            "redis+cluster://one,other",
            "rediss+sentinel://one,other/main",
        ] {
            assert_eq!(place(redis).unwrap(), Place::Redis(redis));
        }
        for (url, word) in [
            ("", "sqlite:PATH"),
            ("app.db", "sqlite:PATH"),
            ("sqlite:", "sqlite:app.db"),
            ("sqlite::memory:", "memory:"),
            #[cfg(feature = "sqlite")]
            ("sqlite://app.db?mode=rwc", "write only the path"),
            ("http://127.0.0.1:8080", "Worker::remote"),
            ("mysql://user:secret@host/db", "postgres://USER"),
            ("postgres:/user:secret@host/db", "postgres://USER"),
            ("user:secret@host:5432/db", "postgres://USER"),
        ] {
            let refused = place(url).unwrap_err().to_string();
            assert!(refused.contains(word) && !refused.contains("secret"), "{refused}");
        }
    }
}
