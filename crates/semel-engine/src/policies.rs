//! The policies in use and their effects, counted at this process since its start, in memory, and bounded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use semel_core::body::Body;
use semel_core::draft::Full;
use semel_core::enqueue::{Offer, OutcomeKind};
use semel_core::ident::{JobType, QueueName};
use semel_core::job::Head;
use semel_core::unique::UniquePolicy;

/// The most policies counted, in all. Later ones are counted together.
pub const POLICIES_MAX: usize = 1_000;
/// The most policies counted per type and tenant: a request searches at most this many.
const OF_A_TYPE_MAX: usize = 50;

/// The outcomes of the requests that had a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// The key was free: a job was created.
    pub created: u64,
    /// A job was created that replaced others.
    pub replaced: u64,
    /// A follow-up was created.
    pub followed_up: u64,
    /// Requests that got no job of their own: answered with another job, refused, or merged into a waiting one.
    ///
    /// This includes what the policy refused as other work, and not repeated requests, for which no policy is
    /// consulted: the [class](semel_core::enqueue::OutcomeClass::Suppressed) of that name has both the other
    /// way round.
    pub suppressed: u64,
}

impl Uses {
    /// Requests whose key was held.
    pub const fn hits(&self) -> u64 {
        self.replaced + self.followed_up + self.suppressed
    }

    /// The counter for an outcome of that kind; `None` if the policy was not consulted.
    fn part(&mut self, kind: OutcomeKind) -> Option<&mut u64> {
        if !kind.is_by_policy() {
            return None;
        }
        Some(match kind {
            OutcomeKind::Created => &mut self.created,
            OutcomeKind::Replaced => &mut self.replaced,
            OutcomeKind::FollowUp => &mut self.followed_up,
            _ => &mut self.suppressed,
        })
    }
}

/// A policy in use: of one type, where policies that differ only in the text of the caller's own key count as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// The type of the jobs.
    pub job_type: JobType,
    /// The policy, without the caller's own key.
    pub policy: Arc<UniquePolicy>,
    /// What the policy did.
    pub uses: Uses,
}

/// The facts about a request that are counted, whatever its outcome.
#[derive(Debug)]
pub(crate) struct Label {
    pub(crate) job_type: JobType,
    pub(crate) queue: QueueName,
    pub(crate) policy: Option<Arc<UniquePolicy>>,
    /// What was sent, for the record of a duplicate; empty if it is no longer available.
    pub(crate) body: Bytes,
}

impl Label {
    pub(crate) fn of(offer: &Offer) -> Self {
        let policy = offer.unique.as_ref().map(|identity| Arc::clone(&identity.policy));
        let (job_type, queue) = (offer.job_type.clone(), offer.queue.clone());
        Self { job_type, queue, policy, body: offer.body.clone() }
    }

    /// The label of a stored job that is offered again. An unreadable policy is not counted.
    pub(crate) fn of_stored(head: &Head, full: &Full) -> Self {
        let policy = Body::decode(&full.body).ok().and_then(|body| body.unique).map(Arc::new);
        // It may be resent by someone other than its first sender.
        Self { job_type: head.job_type.clone(), queue: head.queue.clone(), policy, body: Bytes::new() }
    }
}

/// The policy counters.
#[derive(Debug, Default)]
pub(crate) struct Policies(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_tenant: BTreeMap<Box<str>, BTreeMap<JobType, Vec<Row>>>,
    rows: usize,
    /// Requests whose policy found no room.
    others: u64,
}

#[derive(Debug)]
struct Row {
    policy: Arc<UniquePolicy>,
    uses: Uses,
}

impl Table {
    /// The row that counts the policy; `None` if there is no room for another.
    fn row(&mut self, label: &Label, policy: &Arc<UniquePolicy>) -> Option<&mut Row> {
        let tenant = label.queue.tenant();
        let is_full = self.rows >= POLICIES_MAX;
        let is_known =
            self.by_tenant.get(tenant).is_some_and(|by_type| by_type.contains_key(&label.job_type));
        let rows = if is_known || is_full {
            self.by_tenant.get_mut(tenant)?.get_mut(&label.job_type)?
        } else {
            self.by_tenant.entry(tenant.into()).or_default().entry(label.job_type.clone()).or_default()
        };
        let at = match rows.iter().position(|row| row.policy.is_like(policy)) {
            Some(at) => at,
            None if is_full || rows.len() >= OF_A_TYPE_MAX => return None,
            None => {
                let policy = Arc::new(policy.without_key_text());
                rows.push(Row { policy, uses: Uses::default() });
                self.rows += 1;
                rows.len() - 1
            }
        };
        rows.get_mut(at)
    }
}

impl Policies {
    /// Counts the outcome of a request.
    pub(crate) fn count(&self, label: &Label, kind: OutcomeKind) {
        let Some(policy) = label.policy.as_ref().filter(|_| kind.is_by_policy()) else { return };
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let row = table.row(label, policy);
        match row.and_then(|row| row.uses.part(kind)) {
            Some(count) => *count += 1,
            None => table.others += 1,
        }
    }

    /// The policies of a tenant, by type; and how many requests, of any tenant, had a policy beyond the counted ones.
    pub(crate) fn of(&self, tenant: &str) -> (Vec<InUse>, u64) {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        for (job_type, rows) in table.by_tenant.get(tenant).into_iter().flatten() {
            found.extend(rows.iter().map(|row| InUse {
                job_type: job_type.clone(),
                policy: Arc::clone(&row.policy),
                uses: row.uses,
            }));
        }
        (found, table.others)
    }

    pub(crate) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Table::default();
    }
}

#[cfg(test)]
mod tests {
    use semel_core::tenant::Tenant;
    use semel_core::unique::PolicySpec;

    use super::*;

    fn label(job_type: &str, spec: &PolicySpec) -> Label {
        let policy = Some(Arc::new(UniquePolicy::build(spec, "").unwrap()));
        let (job_type, queue) = (JobType::from_stored(job_type), QueueName::default());
        Label { job_type, queue, policy, body: Bytes::new() }
    }

    fn period(hours: usize) -> PolicySpec {
        PolicySpec { period: Some(format!("PT{}H", hours + 1)), ..PolicySpec::default() }
    }

    #[test]
    fn policies_that_differ_in_the_callers_key_alone_are_one() {
        let policies = Policies::default();
        let of = |key: &str, conflict: &str| PolicySpec {
            key: Some(key.to_owned()),
            on_conflict: Some(conflict.to_owned()),
            ..PolicySpec::default()
        };
        for (key, conflict, kind) in [
            ("a", "ignore", OutcomeKind::Created),
            ("b", "ignore", OutcomeKind::Existing),
            ("b", "ignore", OutcomeKind::Mismatch),
            ("b", "ignore", OutcomeKind::Repeated),
            ("b", "ignore", OutcomeKind::QueueFull),
            ("b", "ignore", OutcomeKind::KeyReused),
            ("c", "replace", OutcomeKind::Replaced),
        ] {
            policies.count(&label("a.b", &of(key, conflict)), kind);
        }
        let (found, others) = policies.of("");
        assert_eq!((found.len(), others), (2, 0));
        assert_eq!(found[0].uses, Uses { created: 1, suppressed: 2, ..Uses::default() });
        assert_eq!((found[1].uses.replaced, found[1].uses.hits()), (1, 1));
        assert!(found.iter().all(|each| !["a", "b", "c"].contains(&each.policy.key_text().unwrap())));
        assert_eq!(policies.of("acme").0, []);
        policies.clear();
        assert_eq!(policies.of("").0, []);
    }

    /// The tenants of one program have the same types, and each sees its own policies.
    #[test]
    fn a_type_that_every_tenant_has_is_counted_for_each() {
        let policies = Policies::default();
        let tenants: Vec<Tenant> =
            (0..=OF_A_TYPE_MAX).map(|number| Tenant::from_stored(&format!("t{number}"))).collect();
        for tenant in &tenants {
            let queue = QueueName::default().within(tenant);
            policies.count(&Label { queue, ..label("a.b", &PolicySpec::default()) }, OutcomeKind::Created);
        }
        for tenant in &tenants {
            let (found, others) = policies.of(tenant.as_str());
            assert_eq!((found.len(), others), (1, 0), "{tenant}");
        }
    }

    #[test]
    fn callers_who_invent_policies_are_counted_together() {
        let policies = Policies::default();
        for hours in 0..OF_A_TYPE_MAX + 5 {
            policies.count(&label("a.b", &period(hours)), OutcomeKind::Created);
        }
        let (found, others) = policies.of("");
        assert_eq!((found.len(), others), (OF_A_TYPE_MAX, 5));
        for number in 0..POLICIES_MAX {
            policies.count(&label(&format!("t{number}"), &PolicySpec::default()), OutcomeKind::Created);
        }
        let (found, others) = policies.of("");
        assert_eq!((found.len(), others), (POLICIES_MAX, 5 + OF_A_TYPE_MAX as u64));
        // A policy with a row goes on being counted there.
        policies.count(&label("a.b", &period(0)), OutcomeKind::Rejected);
        assert_eq!(policies.of("").0[0].uses, Uses { created: 1, suppressed: 1, ..Uses::default() });
    }
}
