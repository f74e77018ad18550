//! Whom a job comes after, for people who ask why it is there. No rule goes by it.

use bytes::Bytes;

use crate::body::Body;
use crate::ident::JobId;
use crate::limits::LINEAGE_MAX;

/// The jobs that a job comes after, as it was decided when it was admitted. The other way round is
/// [`Marks::replaced_by`](crate::trail::Marks::replaced_by) and [`Head::follow_up`](crate::job::Head::follow_up).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// Those whose place it took, the one that an answer names first; at most [`LINEAGE_MAX`].
    pub replaces: Vec<JobId>,
    /// Those for the ends of whose runs it waited, in the order in which they hold the key; at most [`LINEAGE_MAX`].
    pub follow_up_of: Vec<JobId>,
}

impl Lineage {
    /// Of a job that takes the place of these.
    pub(crate) fn replacing(ids: &[JobId]) -> Self {
        Self { replaces: first(ids.iter().copied()), ..Self::default() }
    }

    /// Of a follow-up of these.
    pub(crate) fn following(ids: impl Iterator<Item = JobId>) -> Self {
        Self { follow_up_of: first(ids), ..Self::default() }
    }

    /// Whether the job comes after nobody.
    pub fn is_empty(&self) -> bool {
        self.replaces.is_empty() && self.follow_up_of.is_empty()
    }

    /// The encoded body with this in it. One that cannot be read stays what it is: whoever reads it next says so.
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
