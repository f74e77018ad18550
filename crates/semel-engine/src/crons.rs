//! Registering, reading and changing crons. The duty [`Tend`](crate::duty::Tend) makes them tick.

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

/// The most crons of one tenant. The default tenant has no limit, since it shares its store with no stranger.
/// Concurrent registrations may exceed the limit by their number.
pub const CRONS_PER_TENANT_MAX: usize = 1_000;
/// The most bytes of one tenant's crons, approximately: they are counted by reading them.
pub const CRONS_BYTES_PER_TENANT_MAX: usize = 64 << 20;
/// How long a count is reused, so that repeated registrations do not read all crons each time.
const COUNTED_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The crons of a tenant, as counted by this process.
#[derive(Clone, Copy)]
struct Tally {
    crons: usize,
    bytes: usize,
    counted: Instant,
}

impl Tally {
    /// Whether it may still be reused.
    fn is_fresh(&self) -> bool {
        self.counted.elapsed() < COUNTED_AGAIN_AFTER
    }
}

/// A tenant's tally, if there is one. It stays locked during a count, so that concurrent requests share the result.
type Slot = Arc<tokio::sync::Mutex<Option<Tally>>>;

/// The slots of tenants that registered a cron lately. A count for one tenant delays no other.
#[derive(Default)]
pub(crate) struct Tallies(Mutex<HashMap<Tenant, Slot>>);

impl Tallies {
    fn slots(&self) -> MutexGuard<'_, HashMap<Tenant, Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tenant's slot. Drops slots that are neither in use nor fresh.
    fn of(&self, tenant: &Tenant) -> Slot {
        let mut slots = self.slots();
        slots.retain(|_, slot| {
            let unused = Arc::get_mut(slot);
            unused.is_none_or(|tally| tally.get_mut().as_ref().is_some_and(Tally::is_fresh))
        });
        Arc::clone(slots.entry(tenant.clone()).or_default())
    }

    /// Makes the next request count the tenant's crons anew.
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
    /// Whether the tenant may register this cron: either it exists or there is [room for one
    /// more](CRONS_PER_TENANT_MAX), and either its job grows no longer or their total
    /// [length](CRONS_BYTES_PER_TENANT_MAX) stays about within bounds. The count is reused for some seconds,
    /// in which registrations at other servers go unseen.
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
        // A cron that becomes shorter is counted as such only in the next full count.
        let then =
            Tally { crons: tally.crons + usize::from(old.is_none()), bytes: tally.bytes + more, ..tally };
        // Programs register their crons at each start, which must succeed even above the limit: each of two
        // servers may have let one in.
        let has_room = (old.is_some() || then.crons <= CRONS_PER_TENANT_MAX)
            && (more == 0 || then.bytes <= CRONS_BYTES_PER_TENANT_MAX);
        *known = Some(if has_room { then } else { tally });
        Ok(has_room)
    }

    /// Counts the tenant's crons, up to the limits.
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

    /// The tenant's crons as stored, by name, those after the stored name `from`, at most `limit`.
    async fn stored_crons(
        &self,
        from: Option<&str>,
        limit: u32,
    ) -> Result<Vec<(DocumentKey, Document)>, StoreError> {
        let (first, beyond) = self.tenant().own_names();
        // Whatever text the caller sends, no name before the tenant's own is read.
        let from = from.max(Some(&*first)).map(Into::into);
        let seek = Seek::Kind { kind: DocumentKind::Cron, from, descending: false, limit };
        let mut found = self.store().documents(seek).await?.documents;
        found.truncate(found.partition_point(|(key, _)| *key.name < *beyond));
        Ok(found)
    }

    /// Registers a cron, or changes the one of that name as requested. A server that takes registrations from
    /// tenants must check first that [there is room](Self::has_room_for_cron).
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
            // The count had included it already.
            self.cron_tallies().forget(self.tenant()).await;
        }
        Ok(self.space().shown(registered??))
    }

    /// Changes a cron; `None` if there is none of that name whose jobs go to one of these queues.
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

    /// Deletes a cron; `None` if there was none whose jobs go to one of these queues. Its jobs stay.
    ///
    /// # Errors
    /// When the store cannot commit, or what is stored cannot be read.
    pub async fn remove_cron(&self, name: CronName, queues: Queues) -> Result<Option<Cron>, StoreError> {
        let name = name.within(self.tenant());
        let removed =
            self.store().decide(reads(&name), move |draft| cron::remove(draft, &name, &queues)).await?;
        // Forces a new count, since a caller may remove one to make room for another.
        self.cron_tallies().forget(self.tenant()).await;
        Ok(self.space().shown(removed.transpose()?))
    }

    /// Does immediately what a tick of the cron does; `None` if there is none of that name whose jobs go to
    /// one of these queues.
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
    /// When the store cannot be read, or the stored cron cannot be decoded.
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
    /// When the store cannot be read, or a stored cron cannot be decoded.
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
