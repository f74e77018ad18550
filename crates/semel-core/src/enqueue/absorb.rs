//! Absorbing a request into an existing job, and the ids that such requests leave behind: a caller that lost
//! the reply and asks again gets the same answer as the first time (SEMANTICS 4).

use serde_json::value::RawValue;

use crate::body::{Body, Corrupt};
use crate::draft::{Draft, Full, KeyRead, Missing};
use crate::event::EventKind;
use crate::ident::JobId;
use crate::job::NoteKind;
use crate::planted::{Bug, is_planted};
use crate::trail::Payload;

use super::{Offer, Outcome};

/// Whether two requests are the same, by their digests. A request has a digest only if its caller chose an
/// id; this is the only place that compares them.
fn is_same(stored: Option<[u8; 32]>, offered: Option<[u8; 32]>) -> bool {
    stored.is_some() && stored == offered
}

/// The answer to a request whose id has been used before, given ahead of any other check; `None` for an
/// unused id.
pub(super) fn answered_before(
    draft: &mut Draft,
    offer: &Offer,
    id: JobId,
) -> Result<Option<Outcome>, Missing> {
    if let Some((head, full)) = draft.full(id)? {
        if !offer.sight().sees(&head.queue) {
            return Ok(Some(Outcome::IdTaken(id)));
        }
        let digests = digest(&full.body).and_then(|stored| Ok((stored, digest(&offer.body)?)));
        return Ok(Some(match digests {
            Ok((stored, offered)) if is_same(stored, offered) => Outcome::Repeated(Box::new(head)),
            Ok(_) => Outcome::IdTaken(id),
            Err(corrupt) => Outcome::Corrupt(corrupt),
        }));
    }
    let Some(spent) = draft.spent(id) else {
        return Ok(None);
    };
    let offered = match digest(&offer.body) {
        Ok(offered) => offered,
        Err(corrupt) => return Ok(Some(Outcome::Corrupt(corrupt))),
    };
    let absorbed_by = if is_same(spent.digest, offered) { draft.full(spent.job)? } else { None };
    Ok(Some(match absorbed_by {
        Some((head, _)) if offer.sight().sees(&head.queue) => Outcome::Amended(Box::new(head)),
        _ => Outcome::IdTaken(id),
    }))
}

fn digest(body: &[u8]) -> Result<Option<[u8; 32]>, Corrupt> {
    Ok(Body::decode(body)?.request_digest)
}

/// Overwrites the holder's args and meta with the offer's, and keeps the offer's id with the holder. The
/// holder, while unstarted, expires no sooner than either of the two would have.
pub(super) fn amend(
    draft: &mut Draft,
    offer: &Offer,
    read: KeyRead,
    holder: JobId,
) -> Result<Outcome, Missing> {
    let Some((mut head, full)) = draft.full(holder)? else {
        // The holder is gone since its key was loaded: load the key's holders again.
        return Err(draft.look_again(read));
    };
    let (mut payload, digest) = match merged(&full, offer) {
        Ok(merged) => merged,
        Err(corrupt) => return Ok(Outcome::Corrupt(corrupt)),
    };
    let expires = offer.expires.map(|when| when.resolve(draft.now()));
    // `None` means never.
    head.expires_at = head.expires_at.zip(expires).map(|(own, offered)| own.max(offered));
    draft.update(&mut head);
    if let Some(id) = offer.id {
        draft.spend(id, head.id, digest);
        for oldest in payload.absorb(id) {
            draft.free(oldest);
        }
    }
    // The parents' results belonged to the args that are overwritten. A workflow step brings its own.
    if full.note(NoteKind::ParentResults).is_some() {
        draft.note(head.id, NoteKind::ParentResults, None);
    }
    if !is_planted(Bug::LastRequestLost) {
        draft.note(head.id, NoteKind::Payload, Some(payload.encode()));
    }
    draft.tell(EventKind::Amended, &head, 0);
    Ok(Outcome::Amended(Box::new(head)))
}

/// The payload after the offer, including the ids absorbed before it, and the offer's digest.
fn merged(full: &Full, offer: &Offer) -> Result<(Payload, Option<[u8; 32]>), Corrupt> {
    let before = full.note(NoteKind::Payload).map(|text| Payload::decode(text)).transpose()?;
    let body = Body::decode(&offer.body)?;
    let raw = |text: &str| RawValue::from_string(text.to_owned()).map_err(|error| Corrupt(error.to_string()));
    let payload = Payload {
        args: raw(&body.args)?,
        meta: raw(&body.meta)?,
        sensitive: Some(body.sensitive),
        absorbed: before.map(|before| before.absorbed).unwrap_or_default(),
    };
    Ok((payload, body.request_digest))
}
