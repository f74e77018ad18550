//! Samples of incoming jobs, by type, for advice on their policies: off unless requested, in memory, bounded,
//! and only digests. They cover one server since the request.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use semel_core::body::Body;
use semel_core::canon::Json;
use semel_core::draft::Map;
use semel_core::enqueue::{Batch, Offer, Outcome, OutcomeKind};
use semel_core::ident::JobType;
use semel_core::tenant::Tenant;
use semel_core::unique::sample::{Finding, Met, Observed, Sample};

use crate::Engine;

/// The most types sampled, over all tenants: the first ones seen.
pub const SAMPLE_TYPES_MAX: usize = 64;

/// The advice on one type's policy.
#[derive(Clone, Debug)]
pub struct Advised {
    /// The type.
    pub job_type: JobType,
    /// The number of jobs in its sample.
    pub jobs: usize,
    /// How many of them another job blocked.
    pub duplicates: usize,
    /// What to reconsider about the policy.
    pub findings: Vec<Finding>,
}

/// The samples by tenant and type.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    is_on: AtomicBool,
    by_type: Mutex<Map<(Tenant, JobType), Sample>>,
    /// The number of jobs whose types found no room.
    left_out: AtomicU64,
}

impl Samples {
    fn lock(&self) -> MutexGuard<'_, Map<(Tenant, JobType), Sample>> {
        self.by_type.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Observes an offer before it is decided; nothing while sampling is off.
    pub(crate) fn look(&self, offer: &Offer) -> Option<Observed> {
        if !self.is_on.load(Ordering::Relaxed) {
            return None;
        }
        let identity = offer.unique.as_ref()?;
        let body = Body::decode(&offer.body).ok()?;
        let (args, meta) = (Json::parse(&body.args, "").ok()?, Json::parse(&body.meta, "").ok()?);
        let queue = offer.queue.name();
        Some(Observed::of(&identity.policy, identity.key, queue, &args, &meta, &body.sensitive))
    }

    /// Adds an observed offer with its outcome to the sample.
    pub(crate) fn take(
        &self,
        tenant: &Tenant,
        job_type: &JobType,
        observed: Option<Observed>,
        outcome: &Outcome,
    ) {
        let (Some(observed), Some(met)) = (observed, met(outcome.kind())) else { return };
        let place = (tenant.clone(), job_type.clone());
        let mut by_type = self.lock();
        if by_type.len() >= SAMPLE_TYPES_MAX && !by_type.contains_key(&place) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        by_type.entry(place).or_default().take(observed, met);
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
        self.left_out.store(0, Ordering::Relaxed);
    }
}

/// What the policy made of the offer; `None` if it was not consulted.
fn met(kind: OutcomeKind) -> Option<Met> {
    kind.is_by_policy().then_some(match kind {
        OutcomeKind::Created => Met::Nobody,
        OutcomeKind::Existing
        | OutcomeKind::Rejected
        | OutcomeKind::RejectedFinished
        | OutcomeKind::RejectedUndisclosed => Met::Suppressed,
        _ => Met::Absorbed,
    })
}

impl Engine {
    /// Starts sampling incoming jobs.
    pub fn sample_policies(&self) {
        self.samples().is_on.store(true, Ordering::Relaxed);
    }

    /// Whether jobs are being sampled.
    pub fn samples_policies(&self) -> bool {
        self.samples().is_on.load(Ordering::Relaxed)
    }

    /// The advice on the policies of the tenant's types, by type; and how many jobs, of any tenant's types, no
    /// sample had room for.
    pub fn advice(&self) -> (Vec<Advised>, u64) {
        let samples = self.samples();
        let own = |(place, sample): (&(Tenant, JobType), &Sample)| {
            (place.0 == *self.tenant()).then(|| (place.1.clone(), sample.clone()))
        };
        // Analysed outside the lock, on which every enqueue waits.
        let taken: Vec<(JobType, Sample)> = samples.lock().iter().filter_map(own).collect();
        let advised = |(job_type, sample): (JobType, Sample)| Advised {
            job_type,
            jobs: sample.jobs(),
            duplicates: sample.duplicates(),
            findings: sample.findings(),
        };
        let mut all: Vec<Advised> = taken.into_iter().map(advised).collect();
        all.sort_by(|one, other| one.job_type.as_str().cmp(other.job_type.as_str()));
        (all, samples.left_out.load(Ordering::Relaxed))
    }

    /// Observes a batch before it is decided.
    pub(crate) fn look_at(&self, offers: &[Offer]) -> Vec<Option<Observed>> {
        if !self.samples_policies() {
            return Vec::new();
        }
        offers.iter().map(|offer| self.samples().look(offer)).collect()
    }

    /// Adds an observed batch with its outcomes to the samples.
    pub(crate) fn take_batch<'l>(
        &self,
        observed: Vec<Option<Observed>>,
        types: impl Iterator<Item = &'l JobType>,
        batch: &Batch,
    ) {
        let Batch::Done(outcomes) = batch else { return };
        for ((observed, job_type), outcome) in observed.into_iter().zip(types).zip(outcomes) {
            self.samples().take(self.tenant(), job_type, observed, outcome);
        }
    }
}
