//! Constants that a schema lists in `enum` or `const`, and equality with them.

use std::borrow::Cow;

use super::number::Decimal;
use crate::canon::Json;

/// A constant in a schema.
#[derive(Clone, Debug)]
pub(super) enum Constant {
    Null,
    Bool(bool),
    Number(Decimal),
    Text(String),
    Array(Vec<Constant>),
    /// Sorted by name.
    Object(Vec<(String, Constant)>),
}

impl Constant {
    pub(super) fn of(value: &Json<'_>) -> Self {
        match value {
            Json::Null => Self::Null,
            Json::Bool(flag) => Self::Bool(*flag),
            Json::Number(number) => Self::Number(Decimal::of(number.literal())),
            Json::Text(text) => Self::Text(text.clone().into_owned()),
            Json::Array(items) => Self::Array(items.iter().map(Self::of).collect()),
            Json::Object(members) => {
                let mut members: Vec<(String, Self)> = members
                    .iter()
                    .map(|(name, value)| (name.clone().into_owned(), Self::of(value)))
                    .collect();
                members.sort_by(|(one, _), (other, _)| one.cmp(other));
                Self::Object(members)
            }
        }
    }

    /// Whether `value` equals this constant. The order of members and the notation of numbers do not matter;
    /// strings are compared character by character. `steps` is the remaining budget; when it runs out, the
    /// comparison stops and the result means nothing.
    pub(super) fn is(&self, value: &Json<'_>, steps: &mut u64) -> bool {
        let mut pay = |cost: usize| {
            *steps = steps.saturating_sub(cost as u64);
            *steps > 0
        };
        match (self, value) {
            (Self::Null, Json::Null) => true,
            (Self::Bool(one), Json::Bool(other)) => one == other,
            (Self::Number(one), Json::Number(other)) => {
                pay(other.literal().len()) && *one == Decimal::of(other.literal())
            }
            (Self::Text(one), Json::Text(other)) => one == other,
            (Self::Array(all), Json::Array(others)) => {
                all.len() == others.len()
                    && pay(all.len())
                    && all.iter().zip(others).all(|(one, other)| one.is(other, steps))
            }
            (Self::Object(all), Json::Object(others)) => {
                if all.len() != others.len() || !pay(all.len()) {
                    return false;
                }
                let mut others: Vec<&(Cow<'_, str>, Json<'_>)> = others.iter().collect();
                others.sort_by(|(one, _), (other, _)| one.cmp(other));
                all.iter().zip(others).all(|((name, one), (its, other))| name == its && one.is(other, steps))
            }
            _ => false,
        }
    }
}
