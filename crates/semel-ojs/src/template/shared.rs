//! The templates that hold now. They are replaced as a whole: a request is read by one set, from its beginning to its
//! end.

use std::sync::{Arc, PoisonError, RwLock};

use super::Templates;

/// A set of templates that can be replaced while it is in use. Clones share it.
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
