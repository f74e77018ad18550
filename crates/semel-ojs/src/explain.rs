//! Why a job is, or would be, a duplicate: the answer of `unique/explain`.

use semel_core::enqueue::Outcome;
use semel_core::error::Invalid;
use semel_core::explain::Explanation;
use semel_core::job::Head;
use semel_core::trail::Duplicates;
use semel_core::unique::explain::{blocking_sentence, policy_sentence};
use semel_core::unique::{Admission, Disclose, PROFILE, UniquePolicy, blocks};

use crate::enqueue::Enqueue;
use crate::job::put_duplicates;
use crate::unique;
use crate::write::{Object, list, object};

/// Puts the answer together. `duplicates` is the record of the job that the decision names.
///
/// # Errors
/// None that reading the request has not found already.
pub fn answer(
    request: &Enqueue,
    explained: &Explanation,
    duplicates: Option<&Duplicates>,
) -> Result<String, Invalid> {
    let is_shown = explained.disclose == Disclose::Always;
    let mut out = String::with_capacity(2_048);
    let canonical = request.canonical()?;
    let mut outer = Object::open(&mut out);
    match (&canonical, &request.offer.unique) {
        (Some(canonical), Some(identity)) => {
            outer.text("canonical", canonical);
            outer.plain("key", identity.key);
            outer.plain("profile", PROFILE);
            object(outer.member("policy"), |object| unique::put_members(&identity.policy, object));
        }
        _ => {
            for name in ["canonical", "key", "policy"] {
                outer.raw(name, "null");
            }
        }
    }
    outer.plain("decision", decision(&explained.outcome));
    if is_shown && let Some(id) = named(&explained.outcome) {
        outer.plain("existing_job_id", id);
    }
    if let Outcome::Mismatch { pointers, .. } = &explained.outcome {
        outer.texts("pointers", pointers);
    }
    outer.flag("disclosed", is_shown);
    let has_hidden = !request.body.sensitive.is_empty();
    put_holders(request.policy().map(|policy| &**policy), explained, is_shown, has_hidden, &mut outer);
    match duplicates.filter(|_| is_shown) {
        Some(duplicates) => put_duplicates(duplicates, outer.member("duplicates")),
        None => outer.raw("duplicates", "null"),
    }
    outer.plain("evaluated_at", explained.now);
    outer.close();
    Ok(out)
}

fn put_holders(
    policy: Option<&UniquePolicy>,
    explained: &Explanation,
    is_shown: bool,
    has_hidden: bool,
    outer: &mut Object<'_>,
) {
    let Some(policy) = policy else {
        outer.raw("holders", "[]");
        outer.texts(
            "sentences",
            ["The request has no unique policy: it is never a duplicate, and no other job's check sees it."],
        );
        return;
    };
    let shown: Vec<&Head> =
        explained.holders.iter().filter(|head| is_shown && head.hold.disclose == Disclose::Always).collect();
    list(outer.member("holders"), &shown, |out, head| {
        let blocking = blocks(policy, head, explained.now);
        object(out, |object| {
            object.plain("job_id", head.id);
            object.plain("type", &head.job_type);
            object.plain("queue", &head.queue);
            object.plain("state", head.state);
            object.plain("created_at", head.created_at);
            object.flag("blocks", blocking.is_blocking());
            object.plain("reason", blocking.reason());
            match blocking.until() {
                Some(until) => object.plain("until", until),
                None => object.raw("until", "null"),
            }
        });
    });
    let mut sentences = vec![policy_sentence(policy), sentence(&explained.outcome).to_owned()];
    if has_hidden {
        sentences.push(
            "Values marked sensitive are hidden in `canonical`; the key is made of the real ones.".to_owned(),
        );
    }
    sentences.extend(shown.iter().map(|head| blocking_sentence(policy, head, explained.now)));
    if explained.too_many {
        sentences
            .push("More jobs hold the key than one request may look at; the list is cut short.".to_owned());
    }
    outer.texts("sentences", sentences);
    // What another strategy would do tells a live holder from a finished one.
    if is_shown {
        object(outer.member("strategies"), |object| {
            for (strategy, admission) in &explained.strategies {
                object.plain(strategy.name(), admission_name(admission));
            }
        });
    }
}

fn named(outcome: &Outcome) -> Option<semel_core::ident::JobId> {
    match outcome {
        Outcome::IdTaken(id) => Some(*id),
        Outcome::Repeated(head) => Some(head.id),
        Outcome::Replaced { cancelled, .. } => cancelled.first().copied(),
        other => other.absorbed_by(),
    }
}

/// The word for what would happen.
const fn decision(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Created(_) => "create",
        Outcome::Repeated(_) => "repeat",
        Outcome::Replaced { .. } => "replace",
        Outcome::FollowUp(_) => "follow_up",
        Outcome::Amended(_) => "amend",
        Outcome::Existing(_) => "existing",
        Outcome::Rejected { .. } => "reject",
        Outcome::Mismatch { .. } | Outcome::KeyReused(_) => "mismatch",
        Outcome::KeySpent => "key_spent",
        Outcome::IdTaken(_) => "id_taken",
        Outcome::TooManyHolders => "too_many_holders",
        Outcome::QueueFull(_) => "queue_full",
        Outcome::Corrupt(_) => "error",
    }
}

const fn admission_name(admission: &Admission) -> &'static str {
    match admission {
        Admission::Create => "create",
        Admission::Existing { .. } => "existing",
        Admission::Reject { .. } => "reject",
        Admission::Replace { .. } => "replace",
        Admission::AmendFollowUp { .. } | Admission::AmendWaiting { .. } => "amend",
        Admission::CreateFollowUp { .. } => "follow_up",
    }
}

const fn sentence(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Created(_) => "Nobody blocks this job now: it would be created.",
        Outcome::Repeated(_) => "The same request was admitted before: its job would be the answer.",
        Outcome::Replaced { .. } => "It would be created in place of the jobs that block it.",
        Outcome::FollowUp(_) => "It would be created as a follow-up, and run after the present run.",
        Outcome::Amended(_) => "The existing job would take over its args and meta.",
        Outcome::Existing(_) => "It would be answered with the existing job.",
        Outcome::Rejected { .. } => "It would be rejected as a duplicate.",
        Outcome::Mismatch { .. } | Outcome::KeyReused(_) => {
            "It would be refused: its key stands for other work."
        }
        Outcome::KeySpent => {
            "It would be refused: its Idempotency-Key is used, and the job created under it is deleted."
        }
        Outcome::IdTaken(_) => "It would be refused: another request has used its id.",
        Outcome::TooManyHolders => "It would be refused: too many jobs hold its key.",
        Outcome::QueueFull(_) => "It would be refused: as many jobs wait in its queue as may.",
        Outcome::Corrupt(_) => "What is stored of the job it meets cannot be read.",
    }
}
