//! Crons, as people register, read and change them. What makes them tick is the duty
//! [`Tend`](crate::duty::Tend).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::cron::{self, Change, Cron, Registered, Registration, Tick};
use semel_core::draft::{Document, DocumentKey, DocumentKind, Reads};
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
struct Tally {
    crons: usize,
    bytes: usize,
    counted: Instant,
}

impl Tally {
    /// Whether it need not be counted again yet.
    fn is_fresh(&self) -> bool {
        self.counted.elapsed() < COUNTED_AGAIN_AFTER
    }
}

/// A tenant's tally, if there is one. Who counts holds it while he reads, and the tenant's others wait for what he finds.
type Slot = Arc<tokio::sync::Mutex<Option<Tally>>>;

/// Of each tenant that has registered one lately. While one tenant's crons are counted no other tenant waits.
#[derive(Default)]
pub(crate) struct Tallies(Mutex<HashMap<Tenant, Slot>>);

impl Tallies {
    fn slots(&self) -> MutexGuard<'_, HashMap<Tenant, Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tenant's slot. Those that nobody has, and that have nothing fresh, are forgotten.
    fn of(&self, tenant: &Tenant) -> Slot {
        let mut slots = self.slots();
        slots.retain(|_, slot| {
            let unused = Arc::get_mut(slot);
            unused.is_none_or(|tally| tally.get_mut().as_ref().is_some_and(Tally::is_fresh))
        });
        Arc::clone(slots.entry(tenant.clone()).or_default())
    }

    /// Has the tenant's be counted anew when that is asked for next.
    async fn forget(&self, tenant: &Tenant) {
        let slot = self.slots().get(tenant).cloned();
        if let Some(slot) = slot {
            *slot.lock().await = None;
        }
    }
}

/// A cron and its name.
pub type Named = (CronName, Cron);

impl Engine {
    /// Whether the tenant may register this cron: there are then [no more](CRONS_PER_TENANT_MAX) than may be, or it is there; and all of
    /// them are not much [longer](CRONS_BYTES_PER_TENANT_MAX) than they may be, or its job becomes no longer. What was counted is
    /// remembered for some seconds, in which what is registered elsewhere is not seen.
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
        let old = snapshot.peek_document(&cron::key(&name)).map(|document| &document.text);
        let slot = self.cron_tallies().of(self.tenant());
        let mut known = slot.lock().await;
        let tally = match known.filter(Tally::is_fresh) {
            Some(tally) => tally,
            None => self.count_crons().await?,
        };
        let wanted = self.space().stored_registration(wanted.clone());
        let kept = old.and_then(|text| Cron::decode(text).ok()).map_or(0, |cron| cron.template().len());
        let more = cron::template_bytes(&wanted.offer)?.saturating_sub(kept);
        // Who makes one shorter has that counted when all are counted again.
        let then =
            Tally { crons: tally.crons + usize::from(old.is_none()), bytes: tally.bytes + more, ..tally };
        // Programs register their crons at each start, and are to be able to where there are more than may be: each of two servers may have
        // let one in.
        let has_room = (old.is_some() || then.crons <= CRONS_PER_TENANT_MAX)
            && (more == 0 || then.bytes <= CRONS_BYTES_PER_TENANT_MAX);
        *known = Some(if has_room { then } else { tally });
        Ok(has_room)
    }

    /// Reads the tenant's crons, up to as many as it may have.
    async fn count_crons(&self) -> Result<Tally, StoreError> {
        let mut from: Option<Arc<str>> = None;
        let mut room = Room::default();
        let mut tally = Tally { crons: 0, bytes: 0, counted: Instant::now() };
        while tally.crons <= CRONS_PER_TENANT_MAX && tally.bytes <= CRONS_BYTES_PER_TENANT_MAX {
            let piece = room.next();
            let found = self.stored_crons(from.as_deref(), u32::try_from(piece).unwrap_or(u32::MAX)).await?;
            let size: usize = found.iter().map(|(_, document)| document.text.len()).sum();
            tally.crons += found.len();
            tally.bytes += size;
            room.had(found.len(), size);
            match found.last() {
                Some((last, _)) if found.len() == piece => from = Some(Arc::clone(&last.name)),
                _ => break,
            }
        }
        Ok(tally)
    }

    /// The tenant's crons as they are stored, by name, those after the stored name `from`, at most `limit`.
    async fn stored_crons(
        &self,
        from: Option<&str>,
        limit: u32,
    ) -> Result<Vec<(DocumentKey, Document)>, StoreError> {
        let (first, beyond) = self.tenant().own_names();
        // Whatever text the caller sends: nothing before its own names.
        let from = from.max(Some(&*first)).map(Into::into);
        let seek = Seek::Kind { kind: DocumentKind::Cron, from, descending: false, limit };
        let mut found = self.store().documents(seek).await?.documents;
        found.truncate(found.partition_point(|(key, _)| *key.name < *beyond));
        Ok(found)
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
            self.store().decide(reads(&name), move |draft| cron::register(draft, &name, &wanted)).await;
        if !matches!(registered, Ok(Ok(_))) {
            // It was counted as one that is there.
            self.cron_tallies().forget(self.tenant()).await;
        }
        Ok(self.space().shown(registered??))
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
        self.cron_tallies().forget(self.tenant()).await;
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
        let from = from.map(|name| self.space().stored_name(name));
        let found = self.stored_crons(from.as_deref(), limit).await?;
        let mut crons = Vec::with_capacity(found.len());
        for (key, document) in found {
            crons.push((CronName::from_stored(&key.name), self.space().shown(Cron::decode(&document.text)?)));
        }
        Ok(crons)
    }
}

fn reads(name: &CronName) -> Reads {
    Reads { documents: vec![cron::key(name)], ..Reads::default() }
}
