//! What goes beside what a decision reads and writes: by which rules it keeps what it ends, and what of it is counted.

use std::sync::Arc;

use crate::event::EventKind;
use crate::ident::{JobId, JobType, QueueName};
use crate::retention::Retention;
use crate::state::State;
use crate::time::Timestamp;

use super::write::push_one;
use super::{Draft, Offered};

impl Draft {
    /// Has what ends from now on be kept by these rules; by the defaults where nobody says.
    pub fn keep_by(&mut self, retention: Arc<Retention>) {
        self.retention = Some(retention);
    }

    /// Until when what ends so now is kept, where that is not the default.
    pub(crate) fn kept_until(
        &self,
        job_type: Option<&JobType>,
        queue: &QueueName,
        ended: State,
    ) -> Option<Timestamp> {
        self.retention.as_ref()?.decide(job_type, queue, ended, self.now())
    }

    /// Whether the present decision tells the log this of that job, or of whatever else has that id.
    pub(crate) fn tells_of(&self, kind: EventKind, id: JobId) -> bool {
        self.group.events.iter().any(|event| event.kind == kind && event.job == id)
    }

    /// What became of the offers of this decision that nobody is answered.
    pub fn offered(&self) -> &[Offered] {
        &self.group.offered
    }

    /// Has what became of an offer be counted when the decision is applied.
    pub(crate) fn count(&mut self, offered: Offered) {
        push_one(&mut self.group.offered, offered);
    }
}
