//! The templates in use. They are replaced as a whole: a request is read by one set from beginning to end.

use std::sync::{Arc, PoisonError, RwLock};

use super::Templates;

/// A set of templates that can be replaced while it is in use. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TemplateSet(Arc<RwLock<Arc<Templates>>>);

impl TemplateSet {
    /// Starts with these templates.
    pub fn new(templates: Templates) -> Self {
        let set = Self::default();
        set.replace(templates);
        set
    }

    /// Replaces all templates. Requests in progress keep the set that they began with.
    pub fn replace(&self, templates: Templates) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(templates);
    }

    /// The templates in use now.
    pub fn get(&self) -> Arc<Templates> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}
