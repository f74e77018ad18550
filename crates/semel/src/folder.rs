//! Reads job templates from a directory.

use std::path::PathBuf;

use semel_ojs::Templates;

use crate::error::Error;

/// Reads a directory of templates on a blocking thread, off the runtime's own.
pub(crate) async fn read(folder: PathBuf) -> Result<Templates, Error> {
    let read = tokio::task::spawn_blocking(move || read_now(&folder)).await;
    read.unwrap_or_else(|error| Err(Error::Templates { faults: vec![error.to_string()] }))
}

/// Reads a directory of templates, blocking the calling thread.
pub(crate) fn read_now(folder: &std::path::Path) -> Result<Templates, Error> {
    match semel_templates::load(folder) {
        Ok(loaded) => Ok(loaded.templates),
        Err(faults) => Err(Error::Templates { faults: faults.iter().map(ToString::to_string).collect() }),
    }
}
