//! Cache of recently parsed policies. Programs send the same few again and again, and a text's meaning never changes.

use std::cell::RefCell;
use std::sync::Arc;

use semel_core::unique::UniquePolicy;

/// Policies that each thread keeps: more than a program uses, few enough to scan.
const KEPT: usize = 8;
/// The longest text that is kept, in bytes; it bounds the memory per thread.
const TEXT_MAX: usize = 1_024;

/// Everything that a policy's meaning depends on when only its own text decides the identity.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Wording<'t> {
    pub(super) text: &'t str,
    pub(super) has_version: bool,
    pub(super) visibility_ms: u32,
}

struct Known {
    text: Box<str>,
    has_version: bool,
    visibility_ms: u32,
    policy: Arc<UniquePolicy>,
}

impl Known {
    fn wording(&self) -> Wording<'_> {
        Wording { text: &self.text, has_version: self.has_version, visibility_ms: self.visibility_ms }
    }
}

#[derive(Default)]
struct Recent {
    known: Vec<Known>,
    /// Index of the next entry to be replaced.
    oldest: usize,
}

thread_local! {
    static RECENT: RefCell<Recent> = RefCell::default();
}

/// The policy for this text, if this thread parsed it recently.
pub(super) fn known(wording: Wording<'_>) -> Option<Arc<UniquePolicy>> {
    RECENT.with_borrow(|recent| {
        let known = recent.known.iter().find(|known| known.wording() == wording)?;
        Some(Arc::clone(&known.policy))
    })
}

/// Keeps the policy for this text. Only successes are kept, because a refusal names the places of one request.
pub(super) fn remember(wording: Wording<'_>, policy: &Arc<UniquePolicy>) {
    let Wording { text, has_version, visibility_ms } = wording;
    if text.len() > TEXT_MAX {
        return;
    }
    let known = Known { text: text.into(), has_version, visibility_ms, policy: Arc::clone(policy) };
    RECENT.with_borrow_mut(|recent| {
        if recent.known.len() < KEPT {
            recent.known.push(known);
        } else {
            let oldest = recent.oldest;
            recent.known[oldest] = known;
            recent.oldest = (oldest + 1) % KEPT;
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use semel_core::unique::{PolicySpec, UniquePolicy};

    use super::{KEPT, TEXT_MAX, Wording, known, remember};

    fn policy(key: &str) -> Arc<UniquePolicy> {
        let spec = PolicySpec { key: Some(key.to_owned()), ..PolicySpec::default() };
        Arc::new(UniquePolicy::build(&spec, "").unwrap())
    }

    fn wording(text: &str) -> Wording<'_> {
        Wording { text, has_version: false, visibility_ms: 0 }
    }

    #[test]
    fn words_are_known_with_all_that_their_meaning_depends_on() {
        let meant = policy("a");
        remember(wording("a"), &meant);
        assert!(Arc::ptr_eq(&known(wording("a")).unwrap(), &meant));
        assert!(known(wording("b")).is_none());
        assert!(known(Wording { has_version: true, ..wording("a") }).is_none());
        assert!(known(Wording { visibility_ms: 1, ..wording("a") }).is_none());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let meant = policy("a");
        let texts: Vec<String> = (0..=KEPT).map(|number| number.to_string()).collect();
        texts.iter().for_each(|text| remember(wording(text), &meant));
        assert!(known(wording(&texts[0])).is_none());
        assert!(texts[1..].iter().all(|text| known(wording(text)).is_some()));
        let long = "x".repeat(TEXT_MAX + 1);
        remember(wording(&long), &meant);
        assert!(known(wording(&long)).is_none());
    }
}
