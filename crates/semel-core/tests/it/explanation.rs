//! What people are told about policies and holders.

use std::sync::Arc;

use semel_core::body::Body;
use semel_core::draft::{Draft, KeyRead, KeyView, Reads, Snapshot};
use semel_core::enqueue::{Identity, Offer, Start};
use semel_core::explain::explain;
use semel_core::ident::{JobType, QueueName};
use semel_core::job::Head;
use semel_core::sight::Queues;
use semel_core::state::{State, StateSet};
use semel_core::unique::explain::{blocking_sentence, policy_sentence};
use semel_core::unique::{
    Advice, Disclose, Hold, OnConflict, PeriodFrom, UniqueKey, UniquePolicy, advice, blocks,
};

use crate::admission::{NOW, head};
use crate::policy;

#[test]
fn an_explanation_says_what_holds_and_what_frees() {
    let content = policy(
        r#"{"keys":["queue","args","meta"],"args_keys":["user","id"],"meta_except":[],"period":"PT5M","on_conflict":"ignore"}"#,
    );
    assert_eq!(
        policy_sentence(&content),
        "Two jobs are the same when they agree in type, queue, the args id, user and all user meta. A job holds its \
         key until it ends, for PT5M from its creation. A duplicate is answered with the existing job."
    );
    let secret =
        policy(r#"{"key":"secret","scope":"global","states":["active","completed"],"disclose":"never"}"#);
    assert_eq!(
        policy_sentence(&secret),
        "Two jobs are the same when they agree in the caller's own key, whatever their type. A job holds its key \
         while it is active or completed. A duplicate is rejected. The answer does not show the existing job. It \
         sees only those finished jobs that their own policies and retention have kept."
    );
    assert!(!format!("{secret:?}").contains("secret"));
    let holder = head(0, State::Available, 2);
    assert_eq!(
        blocking_sentence(&content, &holder, NOW),
        format!(
            "Job {} (available, created 2026-02-28T11:58:00Z) blocks until 2026-02-28T12:03:00Z, or until it ends if that is sooner.",
            holder.id
        )
    );
    // Depending on the policy's states, the hold ends with the job, or the rest of its window runs on.
    for (policy_text, rest) in [
        (r#"{"period":"PT5M","while_active":true}"#, ""),
        (r#"{"period":"PT1M","while_active":true,"states":["available","completed"]}"#, ""),
        (
            r#"{"period":"PT5M","while_active":true,"states":["available","scheduled","pending","active","retryable","completed"]}"#,
            "; if it ends before 2026-02-28T12:03:00Z, possibly until then",
        ),
    ] {
        let sentence = blocking_sentence(&policy(policy_text), &holder, NOW);
        assert!(sentence.ends_with(&format!(", regardless of its window{rest}.")), "{sentence}");
    }
    let active = policy(r#"{"period":"PT1M","while_active":true,"states":["available"]}"#);
    let sentence = blocking_sentence(&active, &holder, NOW);
    assert!(
        sentence.ends_with("blocks until it is no longer available, regardless of its window."),
        "{sentence}"
    );
    // A strategy that replaces nothing has nothing to wait for.
    for (strategy, is_said) in [("replace", true), ("replace_except_schedule", true), ("reject", false)] {
        let waits = policy(&format!(r#"{{"on_conflict":"{strategy}","when_active":"wait"}}"#));
        assert_eq!(policy_sentence(&waits).contains("It does not start before"), is_said, "{strategy}");
    }
}

/// Whatever states a policy names, the advice reports exactly the states a job passes through without
/// blocking its duplicates.
#[test]
fn advice_names_the_states_in_which_a_run_does_not_hold_its_key() {
    for bits in 1..=u8::MAX {
        let states = StateSet::from_bits(bits);
        let names: Vec<String> = states.iter().map(|state| format!("\"{}\"", state.name())).collect();
        let policy = policy(&format!(r#"{{"states":[{}]}}"#, names.join(",")));
        let given = advice(&policy);
        let is_blocked_in = |state| blocks(&policy, &head(0, state, 0), NOW).is_blocking();
        for (expected, state) in
            [(Advice::OpenUnderRetry, State::Retryable), (Advice::OpenAfterLostRun, State::Available)]
        {
            let is_open = is_blocked_in(State::Active) && !is_blocked_in(state);
            assert_eq!(given.contains(&expected), is_open, "{names:?}");
            assert!(expected.trace().contains(state.name()));
        }
    }
}

fn offer(policy: UniquePolicy, key: UniqueKey) -> Offer {
    Offer {
        id: None,
        job_type: JobType::from_stored("email.send"),
        queue: QueueName::default(),
        priority: 0,
        start: Start::Now,
        expires: None,
        visibility_ms: 0,
        timeout_ms: 0,
        max_attempts: 3,
        unique: Some(Identity { policy: Arc::new(policy), key }),
        body: Body::default().encode().unwrap(),
        inspect: true,
        queues: Queues::Only(Arc::from(["default".to_owned()])),
        limit: None,
        bounded: false,
        awaited: false,
        once: None,
    }
}

/// The holders that the caller may see, newest first, and whether they may be shown, by the strictest
/// disclosure.
#[test]
fn an_explanation_shows_what_its_caller_may_see_and_leaves_no_trace() {
    let key = UniqueKey::from_bytes([7; 32]);
    let of = |row, state, age| Head { key: Some(key), ..head(row, state, age) };
    let hold = Hold::new(StateSet::LIVE, PeriodFrom::Created, None, Disclose::Never);
    let (older, newer) = (of(0, State::Completed, 9), of(1, State::Completed, 5));
    let foreign = Head { queue: QueueName::from_stored("billing"), ..of(2, State::Completed, 1) };
    let hidden = Head { hold, ..of(3, State::Available, 7) };
    let told = |policy: &str, holders: &[&Head]| {
        let read = KeyRead { key, states: StateSet::ALL, all: true };
        let mut snapshot = Snapshot::with_room_for(NOW, &Reads::default());
        snapshot
            .add_key(key, KeyView::new(1, holders.iter().map(|&head| head.clone()).collect(), &read, false));
        let mut draft = Draft::new(snapshot, 7, Arc::default());
        let told = explain(&mut draft, &offer(crate::policy(policy), key)).unwrap();
        let writes = draft.finish().writes;
        assert!(writes.is_empty(), "{writes:?}");
        let strategies = told.strategies.len();
        let is_whole = policy.contains("never");
        assert_eq!(strategies, if is_whole { 3 } else { OnConflict::ALL.len() }, "{policy}");
        assert!(told.strategies.contains(&(OnConflict::Reject, told.outcome)), "{policy}");
        (told.holders.iter().map(|head| head.id).collect::<Vec<_>>(), told.disclose)
    };
    assert_eq!(told("{}", &[&older, &foreign, &newer]), (vec![newer.id, older.id], Disclose::Always));
    assert_eq!(told(r#"{"disclose":"never"}"#, &[&older]), (vec![older.id], Disclose::Never));
    assert_eq!(told("{}", &[&older, &hidden]), (vec![hidden.id, older.id], Disclose::Never));
}
