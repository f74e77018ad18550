//! Jobs in queues that the caller may not see.

use std::sync::Arc;

use semel_core::ident::QueueName;
use semel_core::job::Head;
use semel_core::sight::{Queues, Sight};
use semel_core::state::State;
use semel_core::unique::{Admission, Disclose, RejectReason, admit, disclosed};

use crate::admission::{NOW, a_follow_up, head};
use crate::policy;

/// To the caller, a job in a queue it may not see does not exist: no decision shows it, ends it or writes to
/// it.
#[test]
fn what_is_in_another_queue_is_neither_shown_nor_touched() {
    let queues = Queues::Only(Arc::from(["mail".to_owned(), "sms.*".to_owned()]));
    let sight = Sight { inspect: true, queues: &queues };
    let within = |queue: &str, head: Head| Head { queue: QueueName::from_stored(queue), ..head };
    let own = within("sms.eu", head(0, State::Available, 5));
    let older = within("acme/billing", head(1, State::Available, 9));
    let newer = within("acme/billing", head(2, State::Available, 1));
    let by = |strategy: &str| policy(&format!(r#"{{"on_conflict":"{strategy}"}}"#));
    let refused = |holder: &Head, why| Admission::Reject {
        holder: holder.id,
        why,
        disclose: Disclose::Never,
        renew: Vec::new(),
    };
    for strategy in ["ignore", "follow_up", "replace", "replace_except_schedule"] {
        let policy = by(strategy);
        assert!(!matches!(admit(&policy, [&own], NOW, sight), Admission::Reject { .. }), "{strategy}");
        for state in [State::Available, State::Active, State::Retryable, State::Scheduled] {
            let foreign = within("billing", head(3, state, 1));
            let told = admit(&policy, [&foreign], NOW, sight);
            assert_eq!(told, refused(&foreign, RejectReason::Undisclosed), "{strategy} {state}");
        }
    }
    let named = refused(&newer, RejectReason::Duplicate);
    assert_eq!(admit(&by("reject"), [&own, &newer], NOW, sight), named);
    // An answer with one job requires sight of that one; an action on all holders requires sight of all.
    assert!(matches!(admit(&by("ignore"), [&own, &older], NOW, sight), Admission::Existing { .. }));
    for strategy in ["follow_up", "replace"] {
        let told = admit(&by(strategy), [&own, &older], NOW, sight);
        assert_eq!(told, refused(&own, RejectReason::Undisclosed), "{strategy}");
    }
    // It does not block, but the end of the run that is replaced would release it.
    let waiting = within("billing", a_follow_up(4, State::Pending, 1));
    let running = within("mail", head(5, State::Active, 2));
    let replace = policy(r#"{"on_conflict":"replace","states":["active","available"]}"#);
    let told = admit(&replace, [&running, &waiting], NOW, sight);
    assert_eq!(told, refused(&running, RejectReason::Undisclosed));
    assert!(matches!(
        admit(&replace, [&running, &waiting], NOW, Sight::everything()),
        Admission::Replace { .. }
    ));
    // A follow-up that waits for no run is released by no run's end.
    let let_go = within("billing", a_follow_up(6, State::Scheduled, 1));
    assert!(matches!(admit(&replace, [&running, &let_go], NOW, sight), Admission::Replace { .. }));
    // Nor is a job that waits for a person.
    let by_hand = within("billing", head(7, State::Pending, 1));
    assert!(matches!(admit(&replace, [&running, &by_hand], NOW, sight), Admission::Replace { .. }));
    for (holder, shown) in [(&own, Disclose::Always), (&older, Disclose::Never)] {
        assert_eq!(disclosed(Disclose::Always, sight, holder), shown);
    }
}
