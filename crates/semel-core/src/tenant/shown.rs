//! Results of decisions as the tenant sees them: ids and keys are mapped back from their stored form. Queues
//! keep their stored names, which display as the tenant's own and still tell which tenant they belong to.

use crate::cron::{Cron, Registered, Registration, Tick};
use crate::enqueue::{Batch, Offer, Outcome};
use crate::event::Event;
use crate::explain::Explanation;
use crate::ident::JobId;
use crate::job::Head;
use crate::life::{KeyReleased, Revived};
use crate::lineage::Lineage;
use crate::settle::Settled;
use crate::task::{TaskOutcome, TaskPlan};
use crate::tenant::Namespace;
use crate::waiting::{Waiter, Waiters};
use crate::workflow::{Cancelled, Created, Plan, PlannedStep, Workflow};

/// A value that contains ids or keys and can be shown to a tenant.
pub trait Show {
    /// Maps every id and key in the value from the stored to the shown form.
    fn show(&mut self, space: &Namespace);
}

impl Namespace {
    /// The value as this tenant sees it.
    #[must_use]
    pub fn shown<T: Show>(&self, mut stored: T) -> T {
        if !self.is_default() {
            stored.show(self);
        }
        stored
    }

    /// The offer in its stored form.
    #[must_use]
    pub fn stored_offer(&self, mut offer: Offer) -> Offer {
        if !self.is_default() {
            offer.id = offer.id.map(|id| self.stored_id(id));
            offer.queue = self.stored_queue(&offer.queue);
            if let Some(identity) = &mut offer.unique {
                identity.key = self.other_key(identity.key);
            }
        }
        if let Some(limit) = &mut offer.limit {
            limit.key = self.stored_name(&limit.key).into();
        }
        offer
    }
}

impl Namespace {
    /// The plan in its stored form.
    #[must_use]
    pub fn stored_plan(&self, mut plan: Plan) -> Plan {
        plan.owner = self.tenant().clone();
        let stored = |step: PlannedStep| PlannedStep { offer: self.stored_offer(step.offer), ..step };
        plan.steps = plan.steps.into_iter().map(stored).collect();
        plan
    }

    /// The task plan in its stored form.
    #[must_use]
    pub fn stored_task(&self, plan: TaskPlan) -> TaskPlan {
        TaskPlan { offer: self.stored_offer(plan.offer), steps: self.stored_plan(plan.steps) }
    }

    /// The registration in its stored form.
    #[must_use]
    pub fn stored_registration(&self, registration: Registration) -> Registration {
        Registration { offer: self.stored_offer(registration.offer), ..registration }
    }
}

/// Maps a job id that is kept as text.
fn show_text(id: &mut String, space: &Namespace) {
    if let Ok(stored) = JobId::parse(id, "") {
        *id = space.shown_id(stored).to_string();
    }
}

impl Show for JobId {
    fn show(&mut self, space: &Namespace) {
        *self = space.shown_id(*self);
    }
}

impl Show for Head {
    fn show(&mut self, space: &Namespace) {
        self.id.show(space);
        self.follow_up.show(space);
        self.key = self.key.map(|key| space.other_key(key));
    }
}

impl Show for Lineage {
    fn show(&mut self, space: &Namespace) {
        self.replaces.show(space);
        self.follow_up_of.show(space);
    }
}

impl Show for Event {
    fn show(&mut self, space: &Namespace) {
        // A workflow is stored under the id that its owner knows.
        if !self.kind.is_of_workflow() {
            self.job.show(space);
        }
    }
}

impl<T: Show> Show for Box<T> {
    fn show(&mut self, space: &Namespace) {
        (**self).show(space);
    }
}

impl<T: Show> Show for Option<T> {
    fn show(&mut self, space: &Namespace) {
        if let Some(stored) = self {
            stored.show(space);
        }
    }
}

impl<T: Show> Show for Vec<T> {
    fn show(&mut self, space: &Namespace) {
        self.iter_mut().for_each(|stored| stored.show(space));
    }
}

impl Show for Outcome {
    fn show(&mut self, space: &Namespace) {
        match self {
            Self::Created(head)
            | Self::Repeated(head)
            | Self::FollowUp(head)
            | Self::Amended(head)
            | Self::Existing(head) => head.show(space),
            Self::Replaced { head, cancelled, disclose: _ } => {
                head.show(space);
                cancelled.show(space);
            }
            Self::Rejected { holder, why: _ }
            | Self::Mismatch { holder, pointers: _ }
            | Self::KeyReused(holder) => {
                holder.head_mut().show(space);
            }
            Self::IdTaken(id) => id.show(space),
            Self::KeySpent | Self::TooManyHolders | Self::QueueFull(_) | Self::Corrupt(_) => {}
        }
    }
}

impl Show for Batch {
    fn show(&mut self, space: &Namespace) {
        match self {
            Self::Done(outcomes) => outcomes.show(space),
            Self::Refused { index: _, outcome } => outcome.show(space),
        }
    }
}

impl Show for Settled {
    fn show(&mut self, space: &Namespace) {
        match self {
            Self::Done(head) | Self::Repeated(head) => head.show(space),
            Self::Refused(_) => {}
        }
    }
}

impl Show for Revived {
    fn show(&mut self, space: &Namespace) {
        match self {
            Self::Done(head) => head.show(space),
            Self::Blocked { holder } => holder.head_mut().show(space),
            Self::Refused(_) => {}
        }
    }
}

impl Show for KeyReleased {
    fn show(&mut self, space: &Namespace) {
        match self {
            Self::Done(heads) => heads.show(space),
            Self::NobodyHolds | Self::TooMany => {}
        }
    }
}

impl Show for Explanation {
    fn show(&mut self, space: &Namespace) {
        self.outcome.show(space);
        self.holders.show(space);
        self.strategies.iter_mut().for_each(|(_, outcome)| outcome.show(space));
    }
}

impl Show for Workflow {
    fn show(&mut self, space: &Namespace) {
        for step in &mut self.steps {
            let holder = step.error.as_mut().and_then(|error| error.holder.as_mut());
            for id in step.job.iter_mut().chain(holder) {
                show_text(id, space);
            }
        }
    }
}

impl Show for TaskOutcome {
    fn show(&mut self, space: &Namespace) {
        match self {
            Self::Created { id: _, outcome, workflow } => {
                outcome.show(space);
                workflow.show(space);
            }
            Self::Decided(outcome) => outcome.show(space),
            Self::Unfit(_) | Self::Corrupt(_) => {}
        }
    }
}

impl Show for Created {
    fn show(&mut self, space: &Namespace) {
        match self {
            Self::Done(_, workflow) | Self::Repeated(_, workflow) => workflow.show(space),
            Self::IdTaken(_) | Self::QueueFull(_) | Self::Corrupt(_) => {}
        }
    }
}

impl Show for Cancelled {
    fn show(&mut self, space: &Namespace) {
        match self {
            Self::Done(workflow) => workflow.show(space),
            Self::NotFound | Self::Over(_) | Self::Corrupt(_) => {}
        }
    }
}

/// The offer of the cron's job stays in its stored form.
impl Show for Cron {
    fn show(&mut self, space: &Namespace) {
        if let Some(id) = &mut self.last_job {
            show_text(id, space);
        }
        self.history.show(space);
    }
}

impl Show for Tick {
    fn show(&mut self, space: &Namespace) {
        if let Some(id) = &mut self.job {
            show_text(id, space);
        }
    }
}

impl Show for Registered {
    fn show(&mut self, space: &Namespace) {
        self.cron.show(space);
    }
}

impl Show for (Cron, Tick) {
    fn show(&mut self, space: &Namespace) {
        self.0.show(space);
        self.1.show(space);
    }
}

/// Workflows are stored under the ids that their owners know.
impl Show for Waiters {
    fn show(&mut self, space: &Namespace) {
        for waiter in &mut self.0 {
            if let Waiter::Held { job } = waiter {
                show_text(job, space);
            }
        }
    }
}
