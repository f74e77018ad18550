//! Why a job is, or would be, a duplicate: what may be disclosed, and the answer of `unique/explain`.

use semel_core::enqueue::Outcome;
use semel_core::error::Invalid;
use semel_core::explain::Explanation;
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::trail::Duplicates;
use semel_core::unique::explain::{blocking_sentence, policy_sentence};
use semel_core::unique::{Blocking, Disclose, OnConflict, PROFILE, UniqueKey, UniquePolicy, blocks};

use crate::enqueue::Enqueue;
use crate::job::put_duplicates;
use crate::unique;
use crate::write::{Object, list, object};

/// What would happen to a job, and why, as far as the caller may be told (SEMANTICS 4).
#[derive(Clone, Debug)]
pub struct Account {
    /// Time of the decision, on the store's clock.
    pub at: Timestamp,
    /// The outcome.
    pub would: Would,
    /// The existing job that would be the answer, be replaced, or is in the way.
    pub existing: Option<JobId>,
    /// JSON pointers of the places that differ, if it would be a mismatch.
    pub differs_at: Vec<String>,
    /// The text that is hashed, with values marked sensitive hidden in it; `None` without a policy.
    pub canonical: Option<String>,
    /// The unique key; `None` without a policy.
    pub key: Option<UniqueKey>,
    /// Whether the jobs that hold the key may be shown.
    pub is_disclosed: bool,
    /// The jobs that hold the key and may be shown, newest first.
    pub holders: Vec<Holding>,
    /// The explanation in sentences.
    pub sentences: Vec<String>,
    /// What the job's outcome would be under each strategy that fits the rest of the policy, where that may be shown.
    pub strategies: Vec<(OnConflict, Would)>,
}

/// A job that has the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The job.
    pub id: JobId,
    /// Its type.
    pub job_type: String,
    /// Its queue.
    pub queue: String,
    /// Its state.
    pub state: State,
    /// When it was admitted.
    pub created_at: Timestamp,
    /// Whether it blocks the job in question, why, and until when.
    pub blocking: Blocking,
}

/// What would happen to a job if it were offered now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Would {
    /// No job blocks it: it would be created.
    Create,
    /// The same request was admitted before: its job would be the answer.
    Repeat,
    /// It would be created in place of the jobs that block it.
    Replace,
    /// It would be created, and run after the present run.
    FollowUp,
    /// The existing job would take over its args and meta.
    Amend,
    /// The existing job would be the answer.
    Existing,
    /// It would be rejected as a duplicate.
    Reject,
    /// It would be refused: its key stands for different work.
    Mismatch,
    /// It would be refused: its `Idempotency-Key` is used, and the job created under it is deleted.
    KeySpent,
    /// It would be refused: another request has used its id.
    IdTaken,
    /// It would be refused: too many jobs hold its key.
    TooManyHolders,
    /// It would be refused: its queue is full.
    QueueFull,
    /// The stored record of the job that it meets cannot be read.
    Error,
}

impl Would {
    const fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Created(_) => Self::Create,
            Outcome::Repeated(_) => Self::Repeat,
            Outcome::Replaced { .. } => Self::Replace,
            Outcome::FollowUp(_) => Self::FollowUp,
            Outcome::Amended(_) => Self::Amend,
            Outcome::Existing(_) => Self::Existing,
            Outcome::Rejected { .. } => Self::Reject,
            Outcome::Mismatch { .. } | Outcome::KeyReused(_) => Self::Mismatch,
            Outcome::KeySpent => Self::KeySpent,
            Outcome::IdTaken(_) => Self::IdTaken,
            Outcome::TooManyHolders => Self::TooManyHolders,
            Outcome::QueueFull(_) => Self::QueueFull,
            Outcome::Corrupt(_) => Self::Error,
        }
    }

    /// The name of this outcome in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Repeat => "repeat",
            Self::Replace => "replace",
            Self::FollowUp => "follow_up",
            Self::Amend => "amend",
            Self::Existing => "existing",
            Self::Reject => "reject",
            Self::Mismatch => "mismatch",
            Self::KeySpent => "key_spent",
            Self::IdTaken => "id_taken",
            Self::TooManyHolders => "too_many_holders",
            Self::QueueFull => "queue_full",
            Self::Error => "error",
        }
    }

    /// Whether a job would be created.
    pub const fn is_inserted(self) -> bool {
        matches!(self, Self::Create | Self::Replace | Self::FollowUp)
    }

    const fn sentence(self) -> &'static str {
        match self {
            Self::Create => "No other job blocks this one now: it would be created.",
            Self::Repeat => "The same request was admitted before: it would be answered with that job.",
            Self::Replace => "It would be created in place of the jobs that block it.",
            Self::FollowUp => "It would be created as a follow-up, and run after the current run.",
            Self::Amend => "The existing job would take over its args and meta.",
            Self::Existing => "It would be answered with the existing job.",
            Self::Reject => "It would be rejected as a duplicate.",
            Self::Mismatch => "It would be refused: its key is already used for different work.",
            Self::KeySpent => {
                "It would be refused: its Idempotency-Key has been used, and the job created under it has been deleted."
            }
            Self::IdTaken => "It would be refused: another request has used its id.",
            Self::TooManyHolders => {
                "It would be refused: too many jobs hold its key, or wait for those that do to end."
            }
            Self::QueueFull => "It would be refused: its queue is full.",
            Self::Error => "A stored record that decides this cannot be read.",
        }
    }
}

impl Account {
    /// What may be disclosed of an explanation of `request`.
    ///
    /// # Errors
    /// None that reading the request has not found already.
    pub fn of(request: &Enqueue, explained: &Explanation) -> Result<Self, Invalid> {
        let would = Would::of(&explained.outcome);
        let is_disclosed = explained.disclose == Disclose::Always;
        let may_show = |head: &&Head| is_disclosed && head.hold.is_disclosed();
        let shown: Vec<&Head> = explained.holders.iter().filter(may_show).collect();
        let mut account = Self {
            at: explained.now,
            would,
            existing: named(&explained.outcome).filter(|_| is_disclosed),
            differs_at: Vec::new(),
            canonical: request.canonical()?,
            key: request.offer.unique.as_ref().map(|identity| identity.key),
            is_disclosed,
            holders: Vec::new(),
            sentences: Vec::new(),
            strategies: Vec::new(),
        };
        if let Outcome::Mismatch { pointers, .. } = &explained.outcome {
            account.differs_at.clone_from(pointers);
        }
        let Some(policy) = request.policy() else {
            account.sentences.push(
                "The request has no unique policy: it is never a duplicate, and other jobs are not checked against it."
                    .to_owned(),
            );
            return Ok(account);
        };
        account.holders = shown.iter().map(|head| Holding::of(policy, head, explained.now)).collect();
        account.sentences = vec![policy_sentence(policy), would.sentence().to_owned()];
        if !request.body.sensitive.is_empty() {
            account.sentences.push(
                "Values marked sensitive are hidden in `canonical`; the key is computed from the real ones."
                    .to_owned(),
            );
        }
        account.sentences.extend(shown.iter().map(|head| blocking_sentence(policy, head, explained.now)));
        if explained.too_many {
            account
                .sentences
                .push("More jobs hold the key than one request may read; the list is cut short.".to_owned());
        }
        // The outcome under other strategies would tell a live holder from a finished one.
        if is_disclosed {
            let strategies = explained.strategies.iter();
            account.strategies =
                strategies.map(|(strategy, outcome)| (*strategy, Would::of(outcome))).collect();
        }
        Ok(account)
    }

    /// The job whose duplicates record covers jobs like this one. A job found by its id has absorbed none of
    /// them: it is this very request's, or another's.
    pub fn absorbing(&self) -> Option<JobId> {
        self.existing.filter(|_| !matches!(self.would, Would::Repeat | Would::IdTaken))
    }
}

impl Holding {
    fn of(policy: &UniquePolicy, head: &Head, now: Timestamp) -> Self {
        Self {
            id: head.id,
            job_type: head.job_type.as_str().to_owned(),
            queue: head.queue.as_str().to_owned(),
            state: head.state,
            created_at: head.created_at,
            blocking: blocks(policy, head, now),
        }
    }
}

/// Writes an account. `duplicates` is the record of the [absorbing](Account::absorbing) job.
pub fn answer(request: &Enqueue, account: &Account, duplicates: Option<&Duplicates>) -> String {
    let mut out = String::with_capacity(2_048);
    let mut outer = Object::open(&mut out);
    match (&account.canonical, &account.key, request.policy()) {
        (Some(canonical), Some(key), Some(policy)) => {
            outer.text("canonical", canonical);
            outer.plain("key", key);
            outer.plain("profile", PROFILE);
            object(outer.member("policy"), |object| unique::put_members(policy, object));
        }
        _ => {
            for name in ["canonical", "key", "policy"] {
                outer.raw(name, "null");
            }
        }
    }
    outer.plain("decision", account.would.name());
    if let Some(id) = account.existing {
        outer.plain("existing_job_id", id);
    }
    if account.would == Would::Mismatch {
        outer.texts("pointers", &account.differs_at);
    }
    outer.flag("disclosed", account.is_disclosed);
    list(outer.member("holders"), &account.holders, |out, holding| {
        object(out, |object| {
            object.plain("job_id", holding.id);
            object.text("type", &holding.job_type);
            object.text("queue", &holding.queue);
            object.plain("state", holding.state);
            object.time("created_at", holding.created_at);
            object.flag("blocks", holding.blocking.is_blocking());
            object.plain("reason", holding.blocking.reason());
            match holding.blocking.until() {
                Some(until) => object.time("until", until),
                None => object.raw("until", "null"),
            }
        });
    });
    outer.texts("sentences", &account.sentences);
    if account.is_disclosed && request.policy().is_some() {
        object(outer.member("strategies"), |object| {
            for (strategy, would) in &account.strategies {
                object.plain(strategy.name(), would.name());
            }
        });
    }
    match duplicates.filter(|_| account.is_disclosed) {
        Some(duplicates) => put_duplicates(duplicates, outer.member("duplicates")),
        None => outer.raw("duplicates", "null"),
    }
    outer.time("evaluated_at", account.at);
    outer.close();
    out
}

fn named(outcome: &Outcome) -> Option<JobId> {
    match outcome {
        Outcome::IdTaken(id) => Some(*id),
        Outcome::Repeated(head) => Some(head.id),
        Outcome::Replaced { cancelled, .. } => cancelled.first().copied(),
        other => other.absorbed_by(),
    }
}
