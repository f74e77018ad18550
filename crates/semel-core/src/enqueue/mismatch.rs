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

/// Most differing places that a mismatch names.
const POINTERS_MAX: usize = 20;

/// The refusal of an offer whose key stands for another type or other args in one of the holders in
/// `compared`: the job that its answer would name, or all that it would replace. `None` if they are the same
/// work, or if the policy does not check.
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
            // Going on finds everything that is missing in one pass.
            Err(Missing) => missing = true,
            Ok(outcome) => refused = refused.or(outcome),
        }
    }
    if missing { Err(Missing) } else { Ok(refused) }
}

/// The refusal because of one holder.
fn refuse_other_work(
    draft: &mut Draft,
    offer: &Offer,
    policy: &UniquePolicy,
    admission: &Admission,
    named: &Head,
) -> Result<Option<Outcome>, Missing> {
    let disclose = admission.disclose();
    let may_tell = disclose == Disclose::Always;
    // The holder as it was when it blocked; its body may have been read later.
    let holder = || Holder { head: Box::new(named.clone()), disclose };
    let Some((head, full)) = draft.full(named.id)? else {
        // The holder's args went with its body; its type is kept as long as its key.
        if offer.job_type == named.job_type {
            return Ok(None);
        }
        let pointers = differing_type(offer, named, may_tell).into_iter().collect();
        return Ok(Some(Outcome::Mismatch { holder: holder(), pointers }));
    };
    // An identical request is the same work, whatever it contains.
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

/// The refusal of an offer whose args would overwrite those of a job of another type.
///
/// Otherwise workers of that type would get those args, and the work that was asked for would never run.
/// `None` if the type is the same.
pub(super) fn refuse_other_type(offer: &Offer, disclose: Disclose, named: &Head) -> Option<Outcome> {
    if offer.job_type == named.job_type {
        return None;
    }
    let pointers = differing_type(offer, named, disclose == Disclose::Always).into_iter().collect();
    Some(Outcome::Mismatch { holder: Holder { head: Box::new(named.clone()), disclose }, pointers })
}

/// The pointer of the type, if it differs and may be disclosed.
fn differing_type(offer: &Offer, head: &Head, may_tell: bool) -> Option<String> {
    (may_tell && offer.job_type != head.job_type).then(|| "/type".to_owned())
}

/// Where the offered job differs from the stored one, or `None` if they are the same work. The list is empty
/// unless it may be disclosed.
fn differing(
    policy: &UniquePolicy,
    offer: &Offer,
    head: &Head,
    full: &Full,
    may_tell: bool,
) -> Result<Option<Vec<String>>, Corrupt> {
    let (ours, mut theirs) = (Body::decode(&offer.body)?, Body::decode(&full.body)?);
    // The payload as it is now: a later request may have overwritten the first one's.
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
            // Places inside one value are adjacent.
            if !marked.iter().any(|mark| is_within(place, mark))
                && pointers.last().is_none_or(|last| last != place)
            {
                pointers.push(place.to_owned());
            }
        }
        // Name sensitive places whether or not they differ: otherwise a caller that keeps all else equal
        // could probe one value after another.
        let outermost =
            |mark: &&String| mark.starts_with("/args/") && tellable(mark, marked) == mark.as_str();
        pointers.extend(marked.iter().filter(outermost).cloned());
    }
    Ok(Some(pointers))
}
