//! `on_mismatch: reject`: the same key must stand for the same work (SEMANTICS 4).

use crate::body::{Body, Corrupt};
use crate::canon::{Json, differences, digest};
use crate::draft::{Draft, Full, Missing};
use crate::job::{Head, NoteKind};
use crate::planted::{Bug, is_planted};
use crate::sensitive::{is_within, tellable};
use crate::trail::Payload;
use crate::unique::{Admission, Disclose, OnMismatch, UniquePolicy, mismatch};

use super::{Holder, Offer, Outcome};

/// Differing places named in a mismatch at most.
const POINTERS_MAX: usize = 20;

/// The refusal of a job whose key stands for another type or other args in one of these holders: the job that its answer would
/// name, or all that it would replace. None when they are the same, or the policy does not ask.
pub(super) fn refuse_mismatch(
    draft: &mut Draft,
    offer: &Offer,
    policy: &UniquePolicy,
    admission: &Admission,
    compared: &[Head],
) -> Result<Option<Outcome>, Missing> {
    if policy.on_mismatch() != OnMismatch::Reject || is_planted(Bug::MismatchAccepted) {
        return Ok(None);
    }
    let (mut refused, mut missing) = (None, false);
    for holder in compared {
        match refuse_other_work(draft, offer, policy, admission, holder) {
            // Going on finds who else is missing, in one go.
            Err(Missing) => missing = true,
            Ok(outcome) => refused = refused.or(outcome),
        }
    }
    if missing { Err(Missing) } else { Ok(refused) }
}

/// The refusal by one holder.
fn refuse_other_work(
    draft: &mut Draft,
    offer: &Offer,
    policy: &UniquePolicy,
    admission: &Admission,
    named: &Head,
) -> Result<Option<Outcome>, Missing> {
    let disclose = admission.disclose();
    let may_tell = disclose == Disclose::Always;
    // As it was when it was in the way; its body may have been read later.
    let holder = || Holder { head: Box::new(named.clone()), disclose };
    let Some((head, full)) = draft.full(named.id)? else {
        // Its args went with its body; its type is kept as long as its key.
        if offer.job_type == named.job_type {
            return Ok(None);
        }
        let pointers = differing_type(offer, named, may_tell).into_iter().collect();
        return Ok(Some(Outcome::Mismatch { holder: holder(), pointers }));
    };
    // What is sent again as it was is the same work, whatever is in it.
    let is_repeated = offer.job_type == head.job_type && offer.body == full.body;
    if is_repeated && full.note(NoteKind::Payload).is_none() {
        return Ok(None);
    }
    let pointers = match differing(policy, offer, &head, &full, may_tell) {
        Ok(None) => return Ok(None),
        Ok(Some(pointers)) => pointers,
        Err(corrupt) => return Ok(Some(Outcome::Corrupt(corrupt))),
    };
    Ok(Some(Outcome::Mismatch { holder: holder(), pointers }))
}

/// The refusal of a job whose args would be put in place of those of another type's job: workers of that type would be given them,
/// and nobody would run what was asked for. None when the type is the same.
pub(super) fn refuse_other_type(offer: &Offer, disclose: Disclose, named: &Head) -> Option<Outcome> {
    if offer.job_type == named.job_type {
        return None;
    }
    let pointers = differing_type(offer, named, disclose == Disclose::Always).into_iter().collect();
    Some(Outcome::Mismatch { holder: Holder { head: Box::new(named.clone()), disclose }, pointers })
}

/// The pointer of the type, if it is another and that may be told.
fn differing_type(offer: &Offer, head: &Head, may_tell: bool) -> Option<String> {
    (may_tell && offer.job_type != head.job_type).then(|| "/type".to_owned())
}

/// Where the job that is offered differs from the stored one, if it is other work; nowhere unless it may be told.
fn differing(
    policy: &UniquePolicy,
    offer: &Offer,
    head: &Head,
    full: &Full,
    may_tell: bool,
) -> Result<Option<Vec<String>>, Corrupt> {
    let (ours, mut theirs) = (Body::decode(&offer.body)?, Body::decode(&full.body)?);
    // As they are now: a later request may have put its own in place of the first.
    if let Some(text) = full.note(NoteKind::Payload) {
        Payload::decode(text)?.over(&mut theirs);
    }
    let marked = &theirs.sensitive;
    let parse = |text| Json::parse(text, "/args").map_err(|invalid| Corrupt(invalid.message));
    let (offered, stored) = (parse(&ours.args)?, parse(&theirs.args)?);
    if !mismatch(policy, &offer.job_type, &digest(&offered), &head.job_type, &digest(&stored)) {
        return Ok(None);
    }
    let mut pointers: Vec<String> = differing_type(offer, head, may_tell).into_iter().collect();
    if may_tell {
        for place in differences(&offered, &stored, "/args", POINTERS_MAX) {
            let place = tellable(&place, &ours.sensitive);
            // Those inside of one value come one after the other.
            if !marked.iter().any(|mark| is_within(place, mark))
                && pointers.last().is_none_or(|last| last != place)
            {
                pointers.push(place.to_owned());
            }
        }
        // Whether or not they differ: who leaves all else as it is could try one value after the other.
        let outermost =
            |mark: &&String| mark.starts_with("/args/") && tellable(mark, marked) == mark.as_str();
        pointers.extend(marked.iter().filter(outermost).cloned());
    }
    Ok(Some(pointers))
}
