//! The number of each tenant's runs that ended in the last minute, at this process.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use semel_core::tenant::Tenant;
use tokio::time::Instant;

const SECONDS: usize = 60;
/// Tenants counted at a time, including the default one. While this many have had a run end within a minute,
/// runs of further tenants are not counted.
const TENANTS_MAX: usize = 1_000;

/// Runs that ended in the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastMinute {
    /// Runs that completed.
    pub completed: u64,
    /// Runs that failed, whether or not they are retried.
    pub failed: u64,
}

/// Counts for the last minute, by tenant and second.
#[derive(Debug)]
pub(crate) struct Throughput {
    began: Instant,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    tenants: BTreeMap<Tenant, Minute>,
    /// The second of the last search for tenants without a run in the last minute.
    looked_at: u64,
}

/// One tenant's counts: the second that each slot stands for, and what ended in it.
#[derive(Debug)]
struct Minute([(u64, LastMinute); SECONDS]);

impl Default for Minute {
    fn default() -> Self {
        Self([(0, LastMinute::default()); SECONDS])
    }
}

impl Minute {
    fn count(&mut self, second: u64, is_well: bool) {
        let slot = &mut self.0[usize::try_from(second).unwrap_or(0) % SECONDS];
        if slot.0 != second {
            *slot = (second, LastMinute::default());
        }
        if is_well {
            slot.1.completed += 1;
        } else {
            slot.1.failed += 1;
        }
    }

    fn sum(&self, now: u64) -> LastMinute {
        let lately = self.0.iter().filter(|(second, _)| now - second.min(&now) < SECONDS as u64);
        lately.fold(LastMinute::default(), |sum, (_, counts)| LastMinute {
            completed: sum.completed + counts.completed,
            failed: sum.failed + counts.failed,
        })
    }
}

impl Default for Throughput {
    fn default() -> Self {
        // Other tenants never crowd out the default one.
        let tenants = BTreeMap::from([(Tenant::default(), Minute::default())]);
        Self { began: Instant::now(), counts: Mutex::new(Counts { tenants, looked_at: 0 }) }
    }
}

impl Throughput {
    pub(crate) fn count(&self, tenant: &Tenant, is_well: bool) {
        let second = self.began.elapsed().as_secs();
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(minute) = counts.tenants.get_mut(tenant) {
            return minute.count(second, is_well);
        }
        if counts.tenants.len() >= TENANTS_MAX && counts.looked_at != second {
            counts.looked_at = second;
            counts
                .tenants
                .retain(|tenant, minute| tenant.is_default() || minute.sum(second) != LastMinute::default());
        }
        if counts.tenants.len() < TENANTS_MAX {
            counts.tenants.entry(tenant.clone()).or_default().count(second, is_well);
        }
    }

    pub(crate) fn last_minute(&self, tenant: &Tenant) -> LastMinute {
        let now = self.began.elapsed().as_secs();
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.tenants.get(tenant).map_or(LastMinute::default(), |minute| minute.sum(now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::parse(name, "").unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn what_ended_more_than_a_minute_ago_is_forgotten() {
        let throughput = Throughput::default();
        let own = Tenant::default();
        throughput.count(&own, true);
        tokio::time::advance(Duration::from_secs(30)).await;
        throughput.count(&own, true);
        throughput.count(&own, false);
        assert_eq!(throughput.last_minute(&own), LastMinute { completed: 2, failed: 1 });
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(throughput.last_minute(&own), LastMinute { completed: 1, failed: 1 });
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(throughput.last_minute(&own), LastMinute::default());
    }

    #[tokio::test(start_paused = true)]
    async fn each_tenant_has_its_own_and_those_who_are_still_make_room() {
        let throughput = Throughput::default();
        let one = LastMinute { completed: 1, failed: 0 };
        for number in 0..TENANTS_MAX {
            throughput.count(&tenant(&format!("t{number}")), true);
        }
        let last = tenant(&format!("t{}", TENANTS_MAX - 1));
        assert_eq!(throughput.last_minute(&tenant("t0")), one);
        assert_eq!(throughput.last_minute(&last), LastMinute::default(), "one more than there may be");
        throughput.count(&Tenant::default(), true);
        assert_eq!(throughput.last_minute(&Tenant::default()), one);
        tokio::time::advance(Duration::from_secs(SECONDS as u64)).await;
        throughput.count(&last, true);
        assert_eq!(throughput.last_minute(&last), one);
        assert_eq!(throughput.counts.lock().unwrap().tenants.len(), 2);
    }
}
