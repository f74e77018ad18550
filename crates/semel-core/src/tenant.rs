//! Tenants: namespaces around ids, keys and queues (SEMANTICS 2). To one tenant, what another has does not exist.
//!
//! A tenant's queue is stored as `tenant/queue`, a form that no queue's own name has. So a job's row tells whose it
//! is, and claims, counts and pauses are separate without any further check. Ids and keys are stored as the image
//! of what the tenant sees under a permutation of its own: the same id or key of two tenants is stored as two,
//! shown values lead back to stored ones without a table, and nobody who does not know the store's secret can
//! construct an id or key that collides with another tenant's. The default tenant has neither prefix nor permutation.

mod shown;

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::canon::Json;
use crate::error::Invalid;
use crate::ident::{JobId, QueueName};
use crate::limits::TENANT_BYTES_MAX;
use crate::unique::UniqueKey;

pub use shown::Show;

/// The member of meta in which a server names a job's tenant.
pub const TENANT_ID: &str = "tenant_id";

/// What separates a tenant's name from a queue's in a stored name. Neither may contain it.
pub(crate) const SEPARATOR: char = '/';
/// The character that a tenant's own names begin with as stored.
const OWN: char = '\u{1}';
/// The character after [`OWN`], and the one after [`SEPARATOR`]: they bound ranges of stored names.
const AFTER_OWN: char = '\u{2}';
const AFTER_SEPARATOR: char = '0';
/// Rounds of the permutation of ids: four make it indistinguishable from a random one (Luby and Rackoff).
const ROUNDS: u8 = 4;
/// Bits in each half of an id's permuted part: everything below the time except the UUID's variant.
const HALF_BITS: u32 = 31;
const HALF: u64 = (1 << HALF_BITS) - 1;

/// A tenant's name: letters, digits, dots, hyphens and underscores, starting with a letter or digit, at most
/// [`TENANT_BYTES_MAX`] bytes. The default tenant's is empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Arc<str>);

impl Tenant {
    /// Parses a tenant's name.
    ///
    /// # Errors
    /// `invalid_request` at `pointer` when the text is not of the documented form.
    pub fn parse(text: &str, pointer: &str) -> Result<Self, Invalid> {
        let starts_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let is_valid = text.len() <= TENANT_BYTES_MAX
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        if starts_well && is_valid {
            return Ok(Self(Arc::from(text)));
        }
        Err(Invalid::request(
            pointer,
            format!(
                "is not a tenant's name; use at most {TENANT_BYTES_MAX} letters, digits, dots, hyphens and underscores, starting with a letter or digit"
            ),
        ))
    }

    /// The server's own tenant, for the jobs it makes for itself: no request can name it.
    pub fn system() -> Self {
        Self(Arc::from("~"))
    }

    /// Takes a stored name as it is: it was checked when it was stored.
    pub fn from_stored(text: &str) -> Self {
        Self(Arc::from(text))
    }

    /// The name's text; empty for the default tenant.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The stored form of a name of this tenant: it collides with no name of another tenant.
    pub(crate) fn own(&self, name: &str) -> String {
        match self.is_default() {
            false => format!("{OWN}{self}{SEPARATOR}{name}"),
            // Doubled: no other tenant's stored names begin so.
            true if name.starts_with(OWN) => format!("{OWN}{name}"),
            true => name.to_owned(),
        }
    }

    /// The range of this tenant's own names in the order of all stored names: from the first string, inclusive, to
    /// the second, exclusive.
    pub fn own_names(&self) -> (String, String) {
        match self.is_default() {
            // The other tenants' names stand together, before the default tenant's.
            true => (AFTER_OWN.to_string(), char::MAX.to_string()),
            false => (self.own(""), format!("{OWN}{self}{AFTER_SEPARATOR}")),
        }
    }

    /// Splits a stored name into its tenant and the name by which the tenant knows it.
    pub fn of_own(stored: &str) -> (&str, &str) {
        let owned = stored.strip_prefix(OWN).filter(|rest| !rest.starts_with(OWN));
        owned.and_then(|rest| rest.split_once(SEPARATOR)).unwrap_or(("", stored))
    }

    /// Whether this is the tenant of callers that name none.
    pub fn is_default(&self) -> bool {
        self.0.is_empty()
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self(Arc::from(""))
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Removes from the meta of a tenant's request the `tenant_id` that the server adds to each of the tenant's jobs,
/// and returns whether it was there.
///
/// A job that is sent back as it was answered is then the same work, and the same request, as without it: a tenant
/// is no dimension of a key (SEMANTICS 2). Any other value is the caller's own and stays: removing it would make
/// different work the same. In the default tenant, where the server adds nothing, every value is the caller's own.
pub fn take_own(meta: &mut Json<'_>, tenant: &str) -> bool {
    let Json::Object(members) = meta else { return false };
    let before = members.len();
    if !tenant.is_empty() {
        members.retain(|(name, value)| name != TENANT_ID || value.as_str() != Some(tenant));
    }
    members.len() < before
}

/// Maps what a tenant sees to what is stored, and back. Pure: the same tenant and secret always give the same mapping.
#[derive(Clone, Debug, Default)]
pub struct Namespace {
    tenant: Tenant,
    /// `None` for the default tenant, which is shown what is stored.
    secrets: Option<Secrets>,
}

#[derive(Clone)]
struct Secrets {
    rounds: [[u8; 32]; ROUNDS as usize],
    key: [u8; 32],
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl Namespace {
    /// The namespace of `tenant` in a store with this secret.
    pub fn new(tenant: Tenant, secret: &[u8; 16]) -> Self {
        if tenant.is_default() {
            return Self::default();
        }
        let derive = |purpose: u8| -> [u8; 32] {
            let mut hasher = Sha256::new();
            hasher.update(b"semel tenant ");
            hasher.update([purpose]);
            hasher.update(secret);
            hasher.update(tenant.as_str());
            hasher.finalize().into()
        };
        let secrets = Secrets { rounds: [derive(0), derive(1), derive(2), derive(3)], key: derive(ROUNDS) };
        Self { tenant, secrets: Some(secrets) }
    }

    /// The tenant whose namespace this is.
    pub const fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Whether stored values are shown as they are.
    pub const fn is_default(&self) -> bool {
        self.secrets.is_none()
    }

    /// Whether a job in that stored queue is this tenant's.
    pub fn owns(&self, queue: &QueueName) -> bool {
        queue.tenant() == self.tenant.as_str()
    }

    /// The queue as stored.
    pub fn stored_queue(&self, queue: &QueueName) -> QueueName {
        queue.within(&self.tenant)
    }

    /// The stored form of any other name of this tenant: it collides with no name of another tenant.
    pub fn stored_name(&self, name: &str) -> String {
        self.tenant.own(name)
    }

    /// The id as stored.
    pub fn stored_id(&self, id: JobId) -> JobId {
        let Some(secrets) = &self.secrets else { return id };
        id.map_tail(|left, right| {
            (0..ROUNDS)
                .fold((left, right), |(left, right), round| (right, left ^ secrets.round(round, right)))
        })
    }

    /// The id as this tenant sees it.
    pub fn shown_id(&self, id: JobId) -> JobId {
        let Some(secrets) = &self.secrets else { return id };
        id.map_tail(|left, right| {
            (0..ROUNDS)
                .rev()
                .fold((left, right), |(left, right), round| (right ^ secrets.round(round, left), left))
        })
    }

    /// The key as stored, from the key as this tenant sees it, or the reverse: the mapping is its own inverse.
    pub fn other_key(&self, key: UniqueKey) -> UniqueKey {
        let Some(secrets) = &self.secrets else { return key };
        let mut bytes = *key.as_bytes();
        bytes.iter_mut().zip(secrets.key).for_each(|(byte, mask)| *byte ^= mask);
        UniqueKey::from_bytes(bytes)
    }
}

impl Secrets {
    fn round(&self, round: u8, half: u64) -> u64 {
        let mut hasher = Sha256::new();
        hasher.update(self.rounds[usize::from(round)]);
        hasher.update(half.to_le_bytes());
        let digest: [u8; 32] = hasher.finalize().into();
        u64::from_le_bytes([
            digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
        ]) & HALF
    }
}

impl JobId {
    /// The id with the two halves of its lowest 62 bits mapped; its time, version and variant stay.
    fn map_tail(self, map: impl FnOnce(u64, u64) -> (u64, u64)) -> Self {
        let bytes = self.to_bytes();
        let (upper, lower) = bytes.split_at(8);
        let mut tail = [0; 8];
        tail.copy_from_slice(lower);
        let tail = u64::from_be_bytes(tail);
        let (left, right) = map((tail >> HALF_BITS) & HALF, tail & HALF);
        let tail = (tail & !((HALF << HALF_BITS) | HALF)) | (left & HALF) << HALF_BITS | (right & HALF);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(upper);
        bytes[8..].copy_from_slice(&tail.to_be_bytes());
        Self::from_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn space(name: &str) -> Namespace {
        Namespace::new(Tenant::parse(name, "").unwrap(), &[7; 16])
    }

    #[test]
    fn what_is_shown_leads_back_to_what_is_stored() {
        let acme = space("acme");
        for row in 0..2_000 {
            let id = JobId::mint(Timestamp::from_micros(1_800_000_000_000_000 + row as i64), row, 5);
            let stored = acme.stored_id(id);
            assert_eq!(acme.shown_id(stored), id);
            assert_eq!(acme.stored_id(acme.shown_id(id)), id);
            assert_eq!(JobId::parse(&stored.to_string(), "").unwrap(), stored, "still a UUIDv7");
            assert_eq!(stored.to_bytes()[..8], id.to_bytes()[..8], "its time stays, so ids go on ascending");
            assert_ne!(stored, space("acme2").stored_id(id));
        }
        let key = UniqueKey::from_bytes([3; 32]);
        assert_eq!(acme.other_key(acme.other_key(key)), key);
        assert_ne!(acme.other_key(key), space("acme2").other_key(key));
        let other_secret = Namespace::new(acme.tenant().clone(), &[8; 16]);
        assert_ne!(acme.other_key(key), other_secret.other_key(key));
    }

    /// Rows are numbered over all tenants: row numbers would tell one tenant how busy the others are.
    #[test]
    fn shown_ids_do_not_tell_row_numbers() {
        let acme = space("acme");
        let at = Timestamp::from_micros(1_800_000_000_000_000);
        let shown: Vec<u64> = (0..64).map(|row| acme.shown_id(JobId::mint(at, row, 0)).row()).collect();
        assert!(shown.windows(2).any(|pair| pair[0] > pair[1]));
        assert!(shown.iter().any(|row| *row > JobId::ROW_MAX / 2));
    }

    #[test]
    fn the_default_tenant_sees_what_is_stored() {
        let plain = Namespace::new(Tenant::default(), &[7; 16]);
        let id = JobId::mint(Timestamp::from_micros(1), 9, 9);
        let queue = QueueName::default();
        assert_eq!((plain.stored_id(id), plain.shown_id(id)), (id, id));
        assert_eq!(plain.stored_queue(&queue), queue);
        assert!(plain.owns(&queue) && !plain.owns(&space("acme").stored_queue(&queue)));
    }

    #[test]
    fn a_stored_queue_says_whose_it_is_and_shows_its_own_name() {
        let stored = space("Acme-1.x").stored_queue(&QueueName::default());
        assert_eq!(
            (stored.as_str(), stored.tenant(), stored.name()),
            ("Acme-1.x/default", "Acme-1.x", "default")
        );
        assert_eq!(stored.to_string(), "default");
        assert!(space("Acme-1.x").owns(&stored) && !space("Acme-1").owns(&stored));
        assert!(QueueName::parse(stored.as_str(), "").is_err(), "nobody can ask for it by its stored name");
        assert_eq!(space("other").stored_queue(&stored), stored, "whose it is does not change");
    }

    /// One tenant's names can be paged through without meeting another's.
    #[test]
    fn own_names_of_a_tenant_stand_together() {
        let tenants = ["a", "a-b", "a.b", "a0", "A", "ab", ""].map(Tenant::from_stored);
        let mut names = Vec::new();
        for tenant in &tenants {
            for name in ["0", "a", "daily.report", "zz"] {
                let stored = tenant.own(name);
                assert_eq!(Tenant::of_own(&stored), (tenant.as_str(), name));
                names.push(stored);
            }
        }
        for tenant in &tenants {
            let (first, beyond) = tenant.own_names();
            let within = names.iter().filter(|name| **name >= first && **name < beyond);
            let owners: Vec<&str> = within.map(|name| Tenant::of_own(name).0).collect();
            assert_eq!(owners, [tenant.as_str(); 4]);
        }
    }

    #[test]
    fn only_what_the_server_says_of_a_tenants_jobs_is_taken_out_of_meta() {
        for (tenant, meta, left) in [
            ("acme", r#"{"a":1,"tenant_id":"acme","b":2}"#, r#"{"a":1,"b":2}"#),
            ("acme", r#"{"\u0074enant_id":"\u0061cme"}"#, "{}"),
            // Values that the server never adds.
            ("acme", r#"{"tenant_id":"Acme"}"#, r#"{"tenant_id":"Acme"}"#),
            ("acme", r#"{"tenant_id":["acme"]}"#, r#"{"tenant_id":["acme"]}"#),
            ("acme", r#"{"tenant_id":null,"tenant":"acme"}"#, r#"{"tenant":"acme","tenant_id":null}"#),
            ("acme", r#"{"a":{"tenant_id":"acme"}}"#, r#"{"a":{"tenant_id":"acme"}}"#),
            ("", r#"{"tenant_id":""}"#, r#"{"tenant_id":""}"#),
            ("", r#"{"tenant_id":"acme"}"#, r#"{"tenant_id":"acme"}"#),
            ("acme", "null", "null"),
        ] {
            let mut json = Json::parse(meta, "").unwrap();
            let before = json.canonical("").unwrap();
            assert_eq!(take_own(&mut json, tenant), before != left, "{meta} in {tenant:?}");
            assert_eq!(json.canonical("").unwrap(), left, "{meta} in {tenant:?}");
        }
    }

    #[test]
    fn names_are_refused_with_their_place() {
        for text in ["", "-a", ".a", "a/b", "a b", "\u{e9}", &"a".repeat(TENANT_BYTES_MAX + 1)] {
            assert_eq!(Tenant::parse(text, "/x").unwrap_err().pointer, "/x", "{text}");
        }
        assert!(Tenant::parse(&"a".repeat(TENANT_BYTES_MAX), "").is_ok());
    }
}
