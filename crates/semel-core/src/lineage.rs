//! Which jobs a job replaced or follows, for people who ask why it is there. No rule reads it.

use bytes::Bytes;

use crate::body::Body;
use crate::ident::JobId;
use crate::limits::LINEAGE_MAX;

/// The jobs that a job replaced or follows, as decided at its admission. The reverse is kept in
/// [`Marks::replaced_by`](crate::trail::Marks::replaced_by) and [`Head::follow_up`](crate::job::Head::follow_up).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// The jobs it replaced, the one that an answer names first; at most [`LINEAGE_MAX`].
    pub replaces: Vec<JobId>,
    /// The jobs whose runs it waited for, in the order in which they hold the key; at most [`LINEAGE_MAX`].
    pub follow_up_of: Vec<JobId>,
}

impl Lineage {
    /// The lineage of a job that replaces these.
    pub(crate) fn replacing(ids: &[JobId]) -> Self {
        Self { replaces: first(ids.iter().copied()), ..Self::default() }
    }

    /// The lineage of a follow-up of these.
    pub(crate) fn following(ids: impl Iterator<Item = JobId>) -> Self {
        Self { follow_up_of: first(ids), ..Self::default() }
    }

    /// Whether the job replaced and follows no other.
    pub fn is_empty(&self) -> bool {
        self.replaces.is_empty() && self.follow_up_of.is_empty()
    }

    /// The encoded body with this lineage in it. An unreadable body is returned as it is; its next reader reports it.
    pub(crate) fn put_in(self, body: &Bytes) -> Bytes {
        if self.is_empty() {
            return body.clone();
        }
        Body::decode(body)
            .and_then(|body| Body { lineage: self, ..body }.encode())
            .unwrap_or_else(|_| body.clone())
    }
}

fn first(ids: impl Iterator<Item = JobId>) -> Vec<JobId> {
    ids.take(LINEAGE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    #[test]
    fn so_many_jobs_are_remembered_the_first_ones() {
        let ids: Vec<JobId> = (0..20).map(|row| JobId::mint(Timestamp::EPOCH, row, 0)).collect();
        assert_eq!(Lineage::replacing(&ids).replaces, ids[..LINEAGE_MAX]);
        assert_eq!(Lineage::following(ids.iter().copied()).follow_up_of, ids[..LINEAGE_MAX]);
    }
}
