//! What accompanies a decision besides its reads and writes: the retention of what it ends, and the counting
//! of its offers.

use std::sync::Arc;

use crate::event::EventKind;
use crate::ident::{JobId, JobType, QueueName};
use crate::retention::Retention;
use crate::state::State;
use crate::time::Timestamp;

use super::write::push_one;
use super::{Draft, Offered};

impl Draft {
    /// Sets the retention rules for whatever ends from now on. Without them the defaults apply.
    pub fn keep_by(&mut self, retention: Arc<Retention>) {
        self.retention = Some(retention);
    }

    /// Until when a job that ends now in the state `ended` is kept; `None` for the default.
    pub(crate) fn kept_until(
        &self,
        job_type: Option<&JobType>,
        queue: &QueueName,
        ended: State,
    ) -> Option<Timestamp> {
        self.retention.as_ref()?.decide(job_type, queue, ended, self.now())
    }

    /// Whether the present decision logs an event of this kind about the job with that id, or about whatever
    /// else has it.
    pub(crate) fn tells_of(&self, kind: EventKind, id: JobId) -> bool {
        self.group.events.iter().any(|event| event.kind == kind && event.job == id)
    }

    /// The outcomes of this decision's offers that are answered to no caller.
    pub fn offered(&self) -> &[Offered] {
        &self.group.offered
    }

    /// Has an offer's outcome counted once the decision is applied.
    pub(crate) fn count(&mut self, offered: Offered) {
        push_one(&mut self.group.offered, offered);
    }
}
