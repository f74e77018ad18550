//! Crons, as people register, read and change them. What makes them tick is the duty
//! [`Tend`](crate::duty::Tend).

use std::sync::Arc;

use semel_core::cron::{self, Change, Cron, Registered, Registration, Tick};
use semel_core::draft::{DocumentKind, Reads};
use semel_core::ident::CronName;
use semel_core::sight::Queues;
use semel_store::StoreError;
use semel_store::backend::Seek;

use crate::Engine;
use crate::room::Room;

/// Crons of one tenant, those of the default one aside, who need not share a store with anybody they do not know. Where several
/// are registered at one moment there may be as many more.
pub const CRONS_PER_TENANT_MAX: usize = 1_000;
/// And bytes of them: they are counted by reading them.
pub const CRONS_BYTES_PER_TENANT_MAX: usize = 64 << 20;

/// A cron and its name.
pub type Named = (CronName, Cron);

impl Engine {
    /// Whether the tenant may register a cron of this name: it has one, or [not as many](CRONS_PER_TENANT_MAX) as it may have.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn has_room_for_cron(&self, name: &CronName) -> Result<bool, StoreError> {
        if self.tenant().is_default() {
            return Ok(true);
        }
        let name = name.within(self.tenant());
        let snapshot = self.store().load(reads(&name)).await?;
        if snapshot.peek_document(&cron::key(&name)).is_some() {
            return Ok(true);
        }
        let (first, beyond) = self.tenant().own_names();
        let mut from: Arc<str> = first.into();
        let (mut room, mut count, mut bytes) = (Room::default(), 0, 0);
        loop {
            let piece = room.next();
            let limit = u32::try_from(piece).unwrap_or(u32::MAX);
            let seek =
                Seek::Kind { kind: DocumentKind::Cron, from: Some(from.clone()), descending: false, limit };
            let found = self.store().documents(seek).await?.documents;
            let own = found.iter().take_while(|(key, _)| *key.name < *beyond);
            let sizes: Vec<usize> = own.map(|(_, document)| document.text.len()).collect();
            let size = sizes.iter().sum::<usize>();
            count += sizes.len();
            bytes += size;
            if count >= CRONS_PER_TENANT_MAX || bytes >= CRONS_BYTES_PER_TENANT_MAX {
                return Ok(false);
            }
            room.had(sizes.len(), size);
            match found.last() {
                Some((last, _)) if sizes.len() == piece => from = last.name.clone(),
                _ => return Ok(true),
            }
        }
    }

    /// Registers a cron, or makes the one of that name what is asked for. Whether [there is room](Self::has_room_for_cron) is asked
    /// before, by who takes registrations from tenants.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn register_cron(
        &self,
        name: CronName,
        wanted: Registration,
    ) -> Result<Registered, StoreError> {
        let (name, wanted) = (name.within(self.tenant()), self.space().stored_registration(wanted));
        let registered =
            self.store().decide(reads(&name), move |draft| cron::register(draft, &name, &wanted)).await?;
        Ok(self.space().shown(registered?))
    }

    /// Changes a cron; none when there is none of that name whose jobs go to one of these queues.
    ///
    /// # Errors
    /// When the store cannot commit, or what is stored cannot be read.
    pub async fn change_cron(
        &self,
        name: CronName,
        queues: Queues,
        wanted: Change,
    ) -> Result<Option<Cron>, StoreError> {
        let name = name.within(self.tenant());
        let changed = self
            .store()
            .decide(reads(&name), move |draft| cron::change(draft, &name, &queues, &wanted))
            .await?;
        Ok(self.space().shown(changed.transpose()?))
    }

    /// Deletes a cron; none when there was none whose jobs go to one of these queues. Its jobs stay.
    ///
    /// # Errors
    /// When the store cannot commit, or what is stored cannot be read.
    pub async fn remove_cron(&self, name: CronName, queues: Queues) -> Result<Option<Cron>, StoreError> {
        let name = name.within(self.tenant());
        let removed =
            self.store().decide(reads(&name), move |draft| cron::remove(draft, &name, &queues)).await?;
        Ok(self.space().shown(removed.transpose()?))
    }

    /// Does now what a tick of the cron does; none when there is none of that name whose jobs go to one of these queues.
    ///
    /// # Errors
    /// When the store cannot commit, or what is stored cannot be read.
    pub async fn trigger_cron(
        &self,
        name: CronName,
        queues: Queues,
    ) -> Result<Option<(Cron, Tick)>, StoreError> {
        let name = name.within(self.tenant());
        let triggered =
            self.store().decide(reads(&name), move |draft| cron::trigger(draft, &name, &queues)).await?;
        Ok(self.space().shown(triggered.transpose()?))
    }

    /// A cron.
    ///
    /// # Errors
    /// When the store cannot be read, or what is stored cannot.
    pub async fn cron(&self, name: &CronName) -> Result<Option<Cron>, StoreError> {
        let name = name.within(self.tenant());
        let snapshot = self.store().load(reads(&name)).await?;
        let document = snapshot.peek_document(&cron::key(&name));
        let cron = document.map(|document| Cron::decode(&document.text)).transpose()?;
        Ok(self.space().shown(cron))
    }

    /// Crons by name, those after `from`, at most `limit`.
    ///
    /// # Errors
    /// When the store cannot be read, or what is stored cannot.
    pub async fn crons(&self, from: Option<&str>, limit: u32) -> Result<Vec<Named>, StoreError> {
        let (first, beyond) = self.tenant().own_names();
        // Whatever text the caller sends: nothing before its own names.
        let from = from.map(|name| self.space().stored_name(name)).max(Some(first)).map(Into::into);
        let seek = Seek::Kind { kind: DocumentKind::Cron, from, descending: false, limit };
        let found = self.store().documents(seek).await?;
        let mut crons = Vec::with_capacity(found.documents.len());
        for (key, document) in found.documents.into_iter().take_while(|(key, _)| *key.name < *beyond) {
            crons.push((CronName::from_stored(&key.name), self.space().shown(Cron::decode(&document.text)?)));
        }
        Ok(crons)
    }
}

fn reads(name: &CronName) -> Reads {
    Reads { documents: vec![cron::key(name)], ..Reads::default() }
}
