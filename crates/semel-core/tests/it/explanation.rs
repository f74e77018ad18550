//! What is said of policies and holders, to people.

use semel_core::state::{State, StateSet};
use semel_core::unique::explain::{blocking_sentence, policy_sentence};
use semel_core::unique::{Advice, advice, blocks};

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
         while it is active or completed. A duplicate is rejected. The answer does not show the existing job. Of \
         finished jobs it sees what their own policies and retention have kept."
    );
    assert!(!format!("{secret:?}").contains("secret"));
    let holder = head(0, State::Available, 2);
    assert_eq!(
        blocking_sentence(&content, &holder, NOW),
        format!(
            "Job {} (available, created 2026-02-28T11:58:00Z) blocks until 2026-02-28T12:03:00Z, or before that until it ends.",
            holder.id
        )
    );
    // By the policy's states, the hold ends with the job, or the rest of its window goes on.
    for (policy_text, rest) in [
        (r#"{"period":"PT5M","while_active":true}"#, ""),
        (r#"{"period":"PT1M","while_active":true,"states":["available","completed"]}"#, ""),
        (
            r#"{"period":"PT5M","while_active":true,"states":["available","scheduled","pending","active","retryable","completed"]}"#,
            "; when it ends before 2026-02-28T12:03:00Z, maybe until then",
        ),
    ] {
        let sentence = blocking_sentence(&policy(policy_text), &holder, NOW);
        assert!(sentence.ends_with(&format!(", whatever its window{rest}.")), "{sentence}");
    }
}

/// Whatever states a policy names, what it is said to leave open is what a job goes through without blocking its like.
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
