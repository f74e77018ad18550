//! Crons, as people register, read and change them. What makes them tick is the duty
//! [`Tend`](crate::duty::Tend).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use semel_core::cron::{self, Change, Cron, Registered, Registration, Tick};
use semel_core::draft::{DocumentKind, Reads};
use semel_core::ident::CronName;
use semel_core::sight::Queues;
use semel_core::tenant::Tenant;
use semel_store::StoreError;
use semel_store::backend::Seek;
use tokio::time::Instant;

use crate::Engine;
use crate::room::Room;

/// Crons of one tenant, those of the default one aside, who need not share a store with anybody they do not know. Where several
/// are registered at one moment there may be as many more.
pub const CRONS_PER_TENANT_MAX: usize = 1_000;
/// And bytes of them, about: they are counted by reading them.
pub const CRONS_BYTES_PER_TENANT_MAX: usize = 64 << 20;
/// What was counted is remembered for so long: whoever asks again and again does not have it read each time.
const COUNTED_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// What a tenant has of crons, as far as it is known here.
#[derive(Clone, Copy)]
pub(crate) struct Tally {
    crons: usize,
    bytes: usize,
    counted: Instant,
}

/// Of each tenant that has registered one lately.
pub(crate) type Tallies = tokio::sync::Mutex<HashMap<Tenant, Tally>>;

/// A cron and its name.
pub type Named = (CronName, Cron);

impl Engine {
    /// Whether the tenant may register this cron: all of its own are then [no more](CRONS_PER_TENANT_MAX), and not much
    /// [longer](CRONS_BYTES_PER_TENANT_MAX), than they may be. What was counted is remembered for some seconds, in which what is
    /// registered elsewhere is not seen.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn has_room_for_cron(
        &self,
        name: &CronName,
        wanted: &Registration,
    ) -> Result<bool, StoreError> {
        if self.tenant().is_default() {
            return Ok(true);
        }
        let name = name.within(self.tenant());
        let snapshot = self.store().load(reads(&name)).await?;
        let old = snapshot.peek_document(&cron::key(&name)).map(|document| document.text.len());
        // One count at a time: it reads what it counts.
        let mut tallies = self.cron_tallies().lock().await;
        let now = Instant::now();
        tallies.retain(|_, tally| now.duration_since(tally.counted) < COUNTED_AGAIN_AFTER);
        let tally = match tallies.get(self.tenant()) {
            Some(tally) => *tally,
            None => self.count_crons().await?,
        };
        let then = Tally {
            crons: tally.crons + usize::from(old.is_none()),
            bytes: tally.bytes.saturating_sub(old.unwrap_or(0)) + wanted.offer.body.len(),
            ..tally
        };
        let has_room = then.crons <= CRONS_PER_TENANT_MAX && then.bytes <= CRONS_BYTES_PER_TENANT_MAX;
        tallies.insert(self.tenant().clone(), if has_room { then } else { tally });
        Ok(has_room)
    }

    /// Reads the tenant's crons, up to as many as it may have.
    async fn count_crons(&self) -> Result<Tally, StoreError> {
        let (first, beyond) = self.tenant().own_names();
        let mut from: Arc<str> = first.into();
        let mut room = Room::default();
        let mut tally = Tally { crons: 0, bytes: 0, counted: Instant::now() };
        while tally.crons <= CRONS_PER_TENANT_MAX && tally.bytes <= CRONS_BYTES_PER_TENANT_MAX {
            let piece = room.next();
            let limit = u32::try_from(piece).unwrap_or(u32::MAX);
            let seek =
                Seek::Kind { kind: DocumentKind::Cron, from: Some(from.clone()), descending: false, limit };
            let found = self.store().documents(seek).await?.documents;
            let own = found.iter().take_while(|(key, _)| *key.name < *beyond);
            let sizes: Vec<usize> = own.map(|(_, document)| document.text.len()).collect();
            let size = sizes.iter().sum::<usize>();
            tally.crons += sizes.len();
            tally.bytes += size;
            room.had(sizes.len(), size);
            match found.last() {
                Some((last, _)) if sizes.len() == piece => from = last.name.clone(),
                _ => break,
            }
        }
        Ok(tally)
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
        // It is counted anew when that is asked for, for whoever removes one may want its place.
        self.cron_tallies().lock().await.remove(self.tenant());
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
