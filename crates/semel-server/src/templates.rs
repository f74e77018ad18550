//! The templates that hold now. They are replaced as a whole: a request is read by one set, from its beginning to its
//! end.

use std::sync::{Arc, PoisonError, RwLock};

use semel_core::sight::Sight;
use semel_ojs::{Templates, Terms};

use crate::App;
use crate::caller::Caller;

/// A set of templates that can be replaced while the server runs. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TemplateSet(Arc<RwLock<Arc<Templates>>>);

impl TemplateSet {
    /// Begins with these.
    pub fn new(templates: Templates) -> Self {
        let set = Self::default();
        set.replace(templates);
        set
    }

    /// From now on these and no others. Requests under way end by those they began with.
    pub fn replace(&self, templates: Templates) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(templates);
    }

    /// Those that hold now.
    pub fn get(&self) -> Arc<Templates> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl App {
    /// The templates that a request is read by; it holds on to them.
    pub(crate) fn templates(&self) -> Arc<Templates> {
        self.config.templates.get()
    }
}

impl Caller {
    /// On which terms this caller's request is read.
    pub(crate) fn terms<'t>(&'t self, templates: &'t Templates) -> Terms<'t> {
        let Sight { inspect, queues } = self.sight();
        Terms { inspect, queues: Some(queues), templates: Some(templates) }
    }
}
