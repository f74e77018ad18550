//! Validation of a value against a parsed schema.

use std::borrow::Cow;

use crate::canon::{Json, push_token};
use crate::error::Flaw;

use super::number::Decimal;
use super::{Bound, Kind, Node, Rules};

/// Longest pointer that a flaw reports, in bytes. Pointers contain names that the caller chose.
const POINTER_BYTES_MAX: usize = 512;

/// At most `most` places where `value`, located at `pointer`, does not fit the schema. `steps` is the work
/// budget; what remains of it is left there.
pub(super) fn flaws(root: &Node, value: &Json<'_>, pointer: &str, most: usize, steps: &mut u64) -> Vec<Flaw> {
    let mut check = Check { path: pointer.to_owned(), found: Vec::new(), most, steps: *steps };
    check.see(root, value);
    if check.steps == 0 && check.found.len() < most {
        let message = "takes too long to check against its schema; send less data in one job";
        check.found.push(Flaw { pointer: pointer.to_owned(), message: message.to_owned() });
    }
    *steps = check.steps;
    check.found
}

struct Check {
    path: String,
    found: Vec<Flaw>,
    most: usize,
    /// Remaining work budget.
    steps: u64,
}

impl Check {
    fn is_over(&self) -> bool {
        self.steps == 0 || self.found.len() >= self.most
    }

    /// Charges `steps` to the budget before the work is done, and returns whether the check may go on.
    fn pay(&mut self, steps: u64) -> bool {
        self.steps = self.steps.saturating_sub(steps);
        !self.is_over()
    }

    fn flaw(&mut self, message: impl Into<String>) {
        if self.found.len() < self.most {
            self.found.push(Flaw { pointer: clipped(&self.path).into_owned(), message: message.into() });
        }
    }

    /// Runs `see` with `token` appended to the path.
    fn below(&mut self, token: &str, see: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        self.path.push('/');
        push_token(&mut self.path, token);
        see(self);
        self.path.truncate(length);
    }

    fn see(&mut self, node: &Node, value: &Json<'_>) {
        if !self.pay(1) {
            return;
        }
        match node {
            Node::Anything => {}
            Node::Nothing => self.flaw("is not allowed"),
            Node::Rules(rules) => self.hold(rules, value),
        }
    }

    fn hold(&mut self, rules: &Rules, value: &Json<'_>) {
        if let Some(kinds) = &rules.kinds
            && !kinds.iter().any(|kind| kind.is_of(value))
        {
            return self.flaw(not_of(kinds));
        }
        for values in &rules.values {
            if !self.pay(values.len() as u64) {
                return;
            }
            let is_listed = values.iter().any(|constant| constant.is(value, &mut self.steps));
            if self.is_over() {
                return;
            }
            if !is_listed {
                self.flaw("is not one of the values that its schema lists");
            }
        }
        match value {
            Json::Number(number) => self.number(rules, &Decimal::of(number.literal())),
            Json::Text(text) => self.text(rules, text),
            Json::Array(items) => self.array(rules, items),
            Json::Object(members) => self.object(rules, members),
            Json::Null | Json::Bool(_) => {}
        }
    }

    fn number(&mut self, rules: &Rules, number: &Decimal) {
        if let Some(Bound { literal, value, is_exclusive }) = &rules.least
            && (number < value || (*is_exclusive && number == value))
        {
            let than = if *is_exclusive { "not more than" } else { "less than" };
            self.flaw(format!("is {than} {literal}"));
        }
        if let Some(Bound { literal, value, is_exclusive }) = &rules.most
            && (number > value || (*is_exclusive && number == value))
        {
            let than = if *is_exclusive { "not less than" } else { "more than" };
            self.flaw(format!("is {than} {literal}"));
        }
    }

    fn text(&mut self, rules: &Rules, text: &str) {
        if rules.shortest.is_some() || rules.longest.is_some() {
            let length = text.chars().count() as u64;
            if let Some(shortest) = rules.shortest.filter(|shortest| length < *shortest) {
                self.flaw(format!("is shorter than {shortest} characters"));
            }
            if let Some(longest) = rules.longest.filter(|longest| length > *longest) {
                self.flaw(format!("is longer than {longest} characters"));
            }
        }
        if let Some(pattern) = &rules.pattern
            && self.pay(pattern.steps(text))
            && !pattern.is_in(text)
        {
            self.flaw(format!("does not match {}", pattern.text()));
        }
    }

    fn array(&mut self, rules: &Rules, items: &[Json<'_>]) {
        let count = items.len() as u64;
        if let Some(fewest) = rules.fewest.filter(|fewest| count < *fewest) {
            self.flaw(format!("has fewer than {fewest} items"));
        }
        if let Some(maximal) = rules.maximal.filter(|maximal| count > *maximal) {
            self.flaw(format!("has more than {maximal} items"));
        }
        for (at, item) in items.iter().enumerate() {
            let Some(node) = rules.first.get(at).or(rules.items.as_ref()) else { return };
            if self.is_over() {
                return;
            }
            self.below(&at.to_string(), |check| check.see(node, item));
        }
    }

    fn object(&mut self, rules: &Rules, members: &[(Cow<'_, str>, Json<'_>)]) {
        if !rules.required.is_empty() {
            if !self.pay((members.len() + rules.required.len()) as u64) {
                return;
            }
            let mut names: Vec<&str> = members.iter().map(|(name, _)| &**name).collect();
            names.sort_unstable();
            for name in &rules.required {
                if names.binary_search(&name.as_str()).is_err() {
                    self.below(name, |check| check.flaw("is missing"));
                }
            }
        }
        for (name, value) in members {
            if self.is_over() {
                return;
            }
            let own = rules.properties.binary_search_by(|(its, _)| its.as_str().cmp(name));
            let node = match own.ok().and_then(|at| rules.properties.get(at)) {
                Some((_, node)) => node,
                None => match &rules.additional {
                    Some(node) => node,
                    None => continue,
                },
            };
            self.below(name, |check| check.see(node, value));
        }
    }
}

fn not_of(kinds: &[Kind]) -> String {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    match names.as_slice() {
        [one] => format!("is not of type {one}"),
        _ => format!("is not of any of the types {}", names.join(", ")),
    }
}

/// The pointer as it is reported: one that is too long is cut at the boundary of a name.
fn clipped(pointer: &str) -> Cow<'_, str> {
    if pointer.len() <= POINTER_BYTES_MAX {
        return Cow::Borrowed(pointer);
    }
    let end = (0..=POINTER_BYTES_MAX).rev().find(|at| pointer.is_char_boundary(*at)).unwrap_or(0);
    let end = pointer[..end].rfind('/').unwrap_or(0);
    Cow::Owned(format!("{}/…", &pointer[..end]))
}
