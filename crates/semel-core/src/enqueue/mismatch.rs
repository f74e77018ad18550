//! `on_mismatch: reject`: the same key must stand for the same work (SEMANTICS 4).

use crate::body::{Body, Corrupt};
use crate::canon::{Json, differences, digest};
use crate::draft::{Draft, Full, Missing};
use crate::job::{Head, NoteKind};
use crate::trail::Payload;
use crate::unique::{Admission, Disclose, UniquePolicy, mismatch};

use super::{Holder, Offer, Outcome};

/// Differing places named in a mismatch at most.
const POINTERS_MAX: usize = 20;

/// The refusal of a job whose key stands for another type or other args; none when they are the same.
pub(super) fn refuse_mismatch(
    draft: &mut Draft,
    offer: &Offer,
    policy: &UniquePolicy,
    admission: &Admission,
    named: &Head,
) -> Result<Option<Outcome>, Missing> {
    let Some((head, full)) = draft.full(named.id)? else {
        return Ok(None);
    };
    let texts = Body::decode(&offer.body).and_then(|body| Ok((body.args.to_string(), present_args(&full)?)));
    let parsed = texts.as_ref().map_err(Clone::clone).and_then(|(offered, stored)| {
        let parse = |text| Json::parse(text, "/args").map_err(|invalid| Corrupt(invalid.message));
        Ok((parse(offered)?, parse(stored)?))
    });
    let (offered, stored) = match parsed {
        Ok(parsed) => parsed,
        Err(corrupt) => return Ok(Some(Outcome::Corrupt(corrupt))),
    };
    if !mismatch(policy, &offer.job_type, &digest(&offered), &head.job_type, &digest(&stored)) {
        return Ok(None);
    }
    let disclose = admission.disclose();
    let mut pointers = Vec::new();
    if disclose == Disclose::Always {
        if offer.job_type != head.job_type {
            pointers.push("/type".to_owned());
        }
        pointers.extend(differences(&offered, &stored, "/args", POINTERS_MAX));
    }
    // As it was when it was in the way; its body may have been read later.
    let holder = Holder { head: Box::new(named.clone()), disclose };
    Ok(Some(Outcome::Mismatch { holder, pointers }))
}

/// The args of a job as they are now: a later request may have put its own in place of the first.
fn present_args(full: &Full) -> Result<String, Corrupt> {
    Ok(match full.note(NoteKind::Payload) {
        Some(text) => Payload::decode(text)?.args.get().to_owned(),
        None => Body::decode(&full.body)?.args.to_string(),
    })
}
