//! Parses values that Redis answers.

use redis::Value;
use semel_core::ident::JobId;
use semel_core::time::Timestamp;

use crate::error::RedisError;

/// Expects a list.
pub fn list(value: Value) -> Result<Vec<Value>, RedisError> {
    match value {
        Value::Array(values) | Value::Set(values) => Ok(values),
        _ => Err(RedisError::Answer("a list was expected")),
    }
}

/// Expects bytes.
pub fn bytes(value: Value) -> Result<Vec<u8>, RedisError> {
    maybe_bytes(value)?.ok_or(RedisError::Answer("bytes were expected"))
}

/// Expects bytes, or nil.
pub fn maybe_bytes(value: Value) -> Result<Option<Vec<u8>>, RedisError> {
    match value {
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::Nil => Ok(None),
        Value::SimpleString(text) => Ok(Some(text.into_bytes())),
        _ => Err(RedisError::Answer("bytes were expected")),
    }
}

/// Expects an integer, as such or in digits.
pub fn number<T: TryFrom<i64>>(value: Value) -> Result<T, RedisError> {
    let wrong = || RedisError::Answer("a number was expected");
    let number = match value {
        Value::Int(number) => number,
        other => {
            let digits = bytes(other)?;
            std::str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok()).ok_or_else(wrong)?
        }
    };
    T::try_from(number).map_err(|_| wrong())
}

/// Expects UTF-8 text.
pub fn text(value: Value) -> Result<String, RedisError> {
    String::from_utf8(bytes(value)?).map_err(|_| RedisError::Answer("a text was expected"))
}

/// Expects a job's id.
pub fn id(value: Value) -> Result<JobId, RedisError> {
    id_of(&bytes(value)?)
}

/// Reads a job's id from its 16 bytes.
pub fn id_of(bytes: &[u8]) -> Result<JobId, RedisError> {
    let bytes = bytes.try_into().map_err(|_| RedisError::Answer("an id has 16 bytes"))?;
    Ok(JobId::from_bytes(bytes))
}

/// Expects names and values: a map, or a list in which they alternate.
pub fn pairs(value: Value) -> Result<Vec<(Value, Value)>, RedisError> {
    if let Value::Map(pairs) = value {
        return Ok(pairs);
    }
    let mut values = list(value)?.into_iter();
    let mut pairs = Vec::with_capacity(values.len() / 2);
    while let (Some(name), Some(value)) = (values.next(), values.next()) {
        pairs.push((name, value));
    }
    Ok(pairs)
}

/// Takes the values of an answer one after the other.
pub struct Values(std::vec::IntoIter<Value>);

impl Values {
    /// Expects a list of values.
    pub fn of(value: Value) -> Result<Self, RedisError> {
        Ok(Self(list(value)?.into_iter()))
    }

    /// Takes the next value.
    pub fn take(&mut self) -> Result<Value, RedisError> {
        self.0.next().ok_or(RedisError::Answer("it ends too early"))
    }

    /// Takes a time, in microseconds.
    pub fn time(&mut self) -> Result<Timestamp, RedisError> {
        number(self.take()?).map(Timestamp::from_micros)
    }

    /// The values not taken yet.
    pub fn rest(self) -> std::vec::IntoIter<Value> {
        self.0
    }
}
