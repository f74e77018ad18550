//! Workflows, as people create, read and cancel them. What moves them is the end of their jobs.

use std::sync::Arc;

use semel_core::draft::{DocumentKind, Reads};
use semel_core::ident::WorkflowId;
use semel_core::workflow::{self, Cancelled, Created, Plan, Workflow};
use semel_store::StoreError;
use semel_store::backend::Seek;

use crate::Engine;

impl Engine {
    /// Creates a workflow and offers the steps that wait for nothing. The plan must have been checked.
    ///
    /// # Errors
    /// When the store cannot commit; nothing of it was stored then.
    pub async fn create_workflow(&self, plan: Plan) -> Result<Created, StoreError> {
        self.default_tenant_only()?;
        let mut reads = Reads::default();
        reads.documents.extend(plan.id.map(workflow::key));
        for step in plan.steps.iter().filter(|step| step.after.is_empty()) {
            step.offer.reads(&mut reads);
        }
        self.store().decide(reads, move |draft| workflow::create(draft, &plan)).await
    }

    /// Cancels a workflow with the jobs that were created for it.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn cancel_workflow(&self, id: WorkflowId) -> Result<Cancelled, StoreError> {
        self.default_tenant_only()?;
        self.store().decide(reads(id), move |draft| workflow::cancel(draft, id)).await
    }

    /// A workflow.
    ///
    /// # Errors
    /// When the store cannot be read, or what is stored cannot.
    pub async fn workflow(&self, id: WorkflowId) -> Result<Option<Workflow>, StoreError> {
        self.default_tenant_only()?;
        let snapshot = self.store().load(reads(id)).await?;
        let document = snapshot.peek_document(&workflow::key(id));
        Ok(document.map(|document| Workflow::decode(&document.text)).transpose()?)
    }

    /// Workflows, the newest id first, those before `from`, at most `limit`.
    ///
    /// # Errors
    /// When the store cannot be read, or what is stored cannot.
    pub async fn workflows(
        &self,
        from: Option<WorkflowId>,
        limit: u32,
    ) -> Result<Vec<(WorkflowId, Workflow)>, StoreError> {
        self.default_tenant_only()?;
        let from = from.map(|id| Arc::from(id.to_string()));
        let seek = Seek::Kind { kind: DocumentKind::Workflow, from, descending: true, limit };
        let found = self.store().documents(seek).await?;
        let mut workflows = Vec::with_capacity(found.documents.len());
        for (key, document) in found.documents {
            if let Ok(id) = WorkflowId::parse(&key.name, "") {
                workflows.push((id, Workflow::decode(&document.text)?));
            }
        }
        Ok(workflows)
    }
}

fn reads(id: WorkflowId) -> Reads {
    Reads { documents: vec![workflow::key(id)], ..Reads::default() }
}
