//! Values that a schema lists, and what is equal to them.

use std::borrow::Cow;

use super::number::Decimal;
use crate::canon::Json;

/// A value in a schema.
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

    /// Whether a value is this one: members in any order, a number however it is written, texts character by character.
    pub(super) fn is(&self, value: &Json<'_>) -> bool {
        match (self, value) {
            (Self::Null, Json::Null) => true,
            (Self::Bool(one), Json::Bool(other)) => one == other,
            (Self::Number(one), Json::Number(other)) => *one == Decimal::of(other.literal()),
            (Self::Text(one), Json::Text(other)) => one == other,
            (Self::Array(all), Json::Array(others)) => {
                all.len() == others.len() && all.iter().zip(others).all(|(one, other)| one.is(other))
            }
            (Self::Object(all), Json::Object(others)) => {
                let mut others: Vec<&(Cow<'_, str>, Json<'_>)> = others.iter().collect();
                others.sort_by(|(one, _), (other, _)| one.cmp(other));
                let is_same = |((name, one), (its, other)): (&(String, Self), &(Cow<'_, str>, Json<'_>))| {
                    name == its && one.is(other)
                };
                all.len() == others.len() && all.iter().zip(others).all(is_same)
            }
            _ => false,
        }
    }
}
