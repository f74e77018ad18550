//! Creating, reading and cancelling workflows. They advance when their jobs end.

use std::sync::Arc;

use semel_core::draft::{DocumentKind, Reads};
use semel_core::ident::WorkflowId;
use semel_core::workflow::{self, Cancelled, Created, Plan, Workflow};
use semel_store::StoreError;
use semel_store::backend::Seek;

use crate::Engine;

impl Engine {
    /// Creates a workflow and offers the steps without predecessors. The plan must have been checked.
    ///
    /// # Errors
    /// When the store cannot commit; nothing of it was then stored.
    pub async fn create_workflow(&self, plan: Plan) -> Result<Created, StoreError> {
        let mut plan = self.space().stored_plan(plan);
        self.bound_first(&mut plan).await?;
        let mut reads = Reads::default();
        reads.documents.extend(plan.id.map(|id| workflow::key(&plan.owner, id)));
        for step in plan.steps.iter().filter(|step| step.after.is_empty()) {
            step.offer.reads(&mut reads);
        }
        let created = self.store().decide(reads, move |draft| workflow::create(draft, &plan)).await?;
        Ok(self.space().shown(created))
    }

    /// Cancels a workflow together with the jobs created for it.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn cancel_workflow(&self, id: WorkflowId) -> Result<Cancelled, StoreError> {
        let owner = self.tenant().clone();
        let reads = self.reads_of(id);
        let cancelled = self.store().decide(reads, move |draft| workflow::cancel(draft, &owner, id)).await?;
        Ok(self.space().shown(cancelled))
    }

    /// A workflow.
    ///
    /// # Errors
    /// When the store cannot be read, or the stored workflow cannot be decoded.
    pub async fn workflow(&self, id: WorkflowId) -> Result<Option<Workflow>, StoreError> {
        let snapshot = self.store().load(self.reads_of(id)).await?;
        let document = snapshot.peek_document(&workflow::key(self.tenant(), id));
        let workflow = document.map(|document| Workflow::decode(&document.text)).transpose()?;
        Ok(self.space().shown(workflow))
    }

    /// Workflows before `from`, newest id first, at most `limit`.
    ///
    /// # Errors
    /// When the store cannot be read, or a stored workflow cannot be decoded.
    pub async fn workflows(
        &self,
        from: Option<WorkflowId>,
        limit: u32,
    ) -> Result<Vec<(WorkflowId, Workflow)>, StoreError> {
        let (first, beyond) = self.tenant().own_names();
        let from = from.map_or_else(|| Arc::from(beyond), |id| workflow::key(self.tenant(), id).name);
        let seek = Seek::Kind { kind: DocumentKind::Workflow, from: Some(from), descending: true, limit };
        let found = self.store().documents(seek).await?;
        let mut workflows = Vec::with_capacity(found.documents.len());
        for (key, document) in found.documents.into_iter().take_while(|(key, _)| *key.name >= *first) {
            if let Some(id) = workflow::id_of(&key.name) {
                workflows.push((id, self.space().shown(Workflow::decode(&document.text)?)));
            }
        }
        Ok(workflows)
    }

    /// Marks the steps offered at once as subject to a queue's bound, since they come from outside like any
    /// job. Steps that follow from them are admitted however many wait.
    pub(crate) async fn bound_first(&self, plan: &mut Plan) -> Result<(), StoreError> {
        for step in plan.steps.iter_mut().filter(|step| step.after.is_empty()) {
            step.offer.bounded = self.is_bounded(&step.offer.queue).await?;
        }
        Ok(())
    }

    fn reads_of(&self, id: WorkflowId) -> Reads {
        Reads { documents: vec![workflow::key(self.tenant(), id)], ..Reads::default() }
    }
}
