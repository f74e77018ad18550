//! `Idempotency-Key`: a caller that lost the reply sends the same request again and gets the same answer as
//! the first time (SEMANTICS 7).
//!
//! What was created under a key is kept in a document of its own, written in the commit that creates or
//! amends the job. So the key is independent of the job's unique policy, and is decided before it.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::body::Corrupt;
use crate::draft::{DocumentKey, DocumentKind, Draft, Missing};
use crate::ident::JobId;
use crate::job::Head;
use crate::planted::{Bug, is_planted};
use crate::sight::Sight;
use crate::unique::{Disclose, UniqueKey, disclosed};

use super::{Holder, Offer, Outcome};

/// How long a request is remembered under its key.
pub const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// A request that its caller may send again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once {
    /// The key, scoped to tenant and credential: see [`idempotency_key`](crate::unique::idempotency_key).
    pub key: UniqueKey,
    /// Digest of the whole request.
    pub digest: [u8; 32],
}

/// Like [`answered`], for an offer.
pub(super) fn answered_once(draft: &mut Draft, offer: &Offer) -> Result<Option<Outcome>, Missing> {
    let Some(once) = &offer.once else { return Ok(None) };
    let incoming = offer.unique.as_ref().map_or(Disclose::Always, |identity| identity.policy.disclose());
    answered(draft, once, incoming, offer.sight())
}

/// What a request did under its key.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// The job that the request created or was absorbed by.
    job: String,
    digest: [u8; 32],
    /// Whether the request was absorbed by an existing job. Later requests may have overwritten its args and
    /// meta since, and repeating it must not undo that.
    #[serde(default)]
    amended: bool,
}

impl Once {
    /// The document of what was created under the key.
    pub fn document(&self) -> DocumentKey {
        DocumentKey::new(DocumentKind::Request, self.key.to_string())
    }
}

/// The answer to a request that was sent before; `None` if this is the first time. Writes nothing.
///
/// If the job has been deleted since, the key stays spent until its time is over, because a retry must not
/// repeat work that has already run. `incoming` is the request policy's disclosure of holders, `sight` what
/// its caller may see of other people's jobs.
///
/// # Errors
/// [`Missing`] when the snapshot lacks something.
pub fn answered(
    draft: &mut Draft,
    once: &Once,
    incoming: Disclose,
    sight: Sight<'_>,
) -> Result<Option<Outcome>, Missing> {
    let now = draft.now();
    let Some(document) = draft.document(&once.document())? else { return Ok(None) };
    // An expired document counts as absent, whether or not the sweep has deleted it.
    let Some(until) = document.due.filter(|until| *until > now && !is_planted(Bug::RequestForgotten)) else {
        return Ok(None);
    };
    let stored: Stored = match serde_json::from_slice(&document.text) {
        Ok(stored) => stored,
        Err(error) => return Ok(Some(Outcome::Corrupt(Corrupt(error.to_string())))),
    };
    let Ok(id) = JobId::parse(&stored.job, "") else {
        return Ok(Some(Outcome::Corrupt(Corrupt("a request's job has no id".to_owned()))));
    };
    // The id of a deleted job may since have been given to a later one.
    let is_its = |head: &Head| head.created_at.saturating_add(REMEMBERED) <= until;
    let Some((head, _)) = draft.full(id)?.filter(|(head, _)| is_its(head)) else {
        return Ok(Some(Outcome::KeySpent));
    };
    let head = Box::new(head);
    if stored.digest == once.digest || is_planted(Bug::RequestOfAnyContent) {
        let answer = if stored.amended { Outcome::Amended } else { Outcome::Repeated };
        return Ok(Some(answer(head)));
    }
    let disclose = disclosed(incoming, sight, &head);
    Ok(Some(Outcome::KeyReused(Holder { head, disclose })))
}

/// Remembers what was stored. A request that stored nothing is simply decided again.
pub(super) fn remember(draft: &mut Draft, offer: &Offer, outcome: &Outcome) {
    let Some(once) = &offer.once else { return };
    let (job, amended) = match outcome {
        Outcome::Amended(head) => (head.id, true),
        outcome => match outcome.inserted() {
            Some(job) => (job, false),
            None => return,
        },
    };
    let stored = Stored { job: job.to_string(), digest: once.digest, amended };
    // Only strings and numbers: serialising them cannot fail.
    let text = Bytes::from(serde_json::to_vec(&stored).unwrap_or_default());
    draft.set_document(&once.document(), Some((text, Some(draft.now().saturating_add(REMEMBERED)))));
}

/// Forgets a key whose time is over. Returns whether it did.
///
/// # Errors
/// [`Missing`] when the snapshot lacks it.
pub fn forget(draft: &mut Draft, key: &DocumentKey) -> Result<bool, Missing> {
    let Some(document) = draft.document(key)? else { return Ok(false) };
    if document.due.is_none_or(|until| until > draft.now()) {
        return Ok(false);
    }
    draft.set_document(key, None);
    Ok(true)
}
