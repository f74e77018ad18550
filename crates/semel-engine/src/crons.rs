//! Crons, as people register, read and change them. What makes them tick is the duty
//! [`Tend`](crate::duty::Tend).

use std::sync::Arc;

use semel_core::cron::{self, Change, Cron, Registered, Registration, Tick};
use semel_core::draft::{DocumentKind, Reads};
use semel_core::ident::CronName;
use semel_store::StoreError;
use semel_store::backend::Seek;

use crate::Engine;

/// A cron and its name.
pub type Named = (CronName, Cron);

impl Engine {
    /// Registers a cron, or makes the one of that name what is asked for.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn register_cron(
        &self,
        name: CronName,
        wanted: Registration,
    ) -> Result<Registered, StoreError> {
        self.default_tenant_only()?;
        let registered =
            self.store().decide(reads(&name), move |draft| cron::register(draft, &name, &wanted)).await?;
        Ok(registered?)
    }

    /// Changes a cron; none when there is none of that name.
    ///
    /// # Errors
    /// When the store cannot commit, or what is stored cannot be read.
    pub async fn change_cron(&self, name: CronName, wanted: Change) -> Result<Option<Cron>, StoreError> {
        self.default_tenant_only()?;
        let changed =
            self.store().decide(reads(&name), move |draft| cron::change(draft, &name, &wanted)).await?;
        Ok(changed.transpose()?)
    }

    /// Deletes a cron; none when there was none. Its jobs stay.
    ///
    /// # Errors
    /// When the store cannot commit, or what is stored cannot be read.
    pub async fn remove_cron(&self, name: CronName) -> Result<Option<Cron>, StoreError> {
        self.default_tenant_only()?;
        let removed = self.store().decide(reads(&name), move |draft| cron::remove(draft, &name)).await?;
        Ok(removed.transpose()?)
    }

    /// Does now what a tick of the cron does; none when there is none of that name.
    ///
    /// # Errors
    /// When the store cannot commit, or what is stored cannot be read.
    pub async fn trigger_cron(&self, name: CronName) -> Result<Option<(Cron, Tick)>, StoreError> {
        self.default_tenant_only()?;
        let triggered = self.store().decide(reads(&name), move |draft| cron::trigger(draft, &name)).await?;
        Ok(triggered.transpose()?)
    }

    /// A cron.
    ///
    /// # Errors
    /// When the store cannot be read, or what is stored cannot.
    pub async fn cron(&self, name: &CronName) -> Result<Option<Cron>, StoreError> {
        self.default_tenant_only()?;
        let snapshot = self.store().load(reads(name)).await?;
        let document = snapshot.peek_document(&cron::key(name));
        Ok(document.map(|document| Cron::decode(&document.text)).transpose()?)
    }

    /// Crons by name, those after `from`, at most `limit`.
    ///
    /// # Errors
    /// When the store cannot be read, or what is stored cannot.
    pub async fn crons(&self, from: Option<&str>, limit: u32) -> Result<Vec<Named>, StoreError> {
        self.default_tenant_only()?;
        let seek =
            Seek::Kind { kind: DocumentKind::Cron, from: from.map(Arc::from), descending: false, limit };
        let found = self.store().documents(seek).await?;
        let mut crons = Vec::with_capacity(found.documents.len());
        for (key, document) in found.documents {
            crons.push((CronName::from_stored(&key.name), Cron::decode(&document.text)?));
        }
        Ok(crons)
    }
}

fn reads(name: &CronName) -> Reads {
    Reads { documents: vec![cron::key(name)], ..Reads::default() }
}

impl Engine {
    /// Crons and workflows are the default tenant's: their names and ids are not kept apart yet, so nobody else may ask
    /// for them.
    pub(crate) fn default_tenant_only(&self) -> Result<(), StoreError> {
        if self.tenant().is_default() {
            return Ok(());
        }
        Err(StoreError::Unsupported("crons and workflows are there for the default tenant only".to_owned()))
    }
}
