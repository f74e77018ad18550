//! Templates in use for reading requests.

use std::sync::Arc;

use semel_ojs::{Templates, Terms};

use crate::App;
use crate::caller::Caller;

pub use semel_ojs::TemplateSet;

impl App {
    /// The templates to read one request by. The request keeps this version until it is done.
    pub(crate) fn templates(&self) -> Arc<Templates> {
        self.config.templates.get()
    }
}

impl Caller {
    /// The terms on which this caller's request is read.
    pub(crate) fn terms<'t>(&'t self, app: &'t App, templates: &'t Templates) -> Terms<'t> {
        let tenant = app.engine.tenant().as_str();
        let job_bytes_max = app.config.body_bytes_max;
        Terms { sight: self.sight(), templates: Some(templates), tenant, job_bytes_max }
    }
}
