//! A value at a place inside a job, for searching jobs by their args or meta.

use semel_core::body::Body;
use semel_core::canon::{Json, digest, token_name};
use semel_core::error::Invalid;

use crate::sensitive::{hidden_args, hidden_meta};

/// The longest text of a place that is read, in bytes.
const TEXT_BYTES_MAX: usize = 1_024;

/// A place, and the value that a job must have there.
#[derive(Clone, Debug)]
pub struct Place {
    is_meta: bool,
    /// The names and indices that lead to it.
    path: Vec<String>,
    /// Digest of the value.
    value: [u8; 32],
}

impl Place {
    /// Reads `/args/0/user_id=7`: a JSON pointer (RFC 6901) below args or meta, and after the first `=` a
    /// JSON value; a text that is not JSON stands for itself.
    ///
    /// # Errors
    /// What is wrong, and what to send instead.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let refuse = |why: &str| Invalid::request("", format!("{why}; write it like /args/0/user_id=7"));
        if text.len() > TEXT_BYTES_MAX {
            return Err(refuse("is longer than 1,024 bytes"));
        }
        let (pointer, value) = text.split_once('=').ok_or_else(|| refuse("has no = followed by a value"))?;
        let (is_meta, below) = match (pointer.strip_prefix("/args"), pointer.strip_prefix("/meta")) {
            (Some(below), _) => (false, below),
            (_, Some(below)) => (true, below),
            _ => return Err(refuse("is not a JSON pointer below /args or /meta")),
        };
        let Some(path) = below.strip_prefix('/') else {
            return Err(refuse("is not a JSON pointer below /args or /meta"));
        };
        let path = path.split('/').map(|token| token_name(token).into_owned()).collect();
        let value =
            Json::parse(value, "").map_or_else(|_| digest(&Json::Text(value.into())), |json| digest(&json));
        Ok(Self { is_meta, path, value })
    }

    /// Whether a job has the value there. Sensitive values are not looked at.
    pub fn is_in(&self, body: &Body) -> bool {
        let (hidden, whole) =
            if self.is_meta { (hidden_meta(body), &body.meta) } else { (hidden_args(body), &body.args) };
        let Ok(tree) = Json::parse(hidden.as_deref().unwrap_or(whole), "") else { return false };
        let found = self.path.iter().try_fold(&tree, |value, token| match value {
            Json::Array(items) => token.parse::<usize>().ok().and_then(|at| items.get(at)),
            value => value.get(token),
        });
        found.is_some_and(|value| digest(value) == self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_what_stands_at_the_place() {
        let body = Body {
            args: r#"[{"user_id":7,"name":"Ada","a/b":[true,null],"card":{"pin":"1"}},"x=y"]"#.into(),
            meta: r#"{"tenant":"acme","7":"seven"}"#.into(),
            sensitive: vec!["/args/0/card".to_owned()],
            ..Body::default()
        };
        for (text, is_in) in [
            ("/args/0/user_id=7", true),
            ("/args/0/user_id=7.0", true),
            ("/args/0/user_id=\"7\"", false),
            ("/args/0/name=Ada", true),
            ("/args/0/name=\"Ada\"", true),
            ("/args/0/a~1b=[true, null]", true),
            ("/args/0/a~1b/1=null", true),
            ("/args/1=x=y", true),
            ("/args/2=null", false),
            ("/args/0/user_id/0=7", false),
            ("/meta/tenant=acme", true),
            ("/meta/7=seven", true),
            // A sensitive value is not found by guessing it, nor by its placeholder.
            ("/args/0/card/pin=\"1\"", false),
            ("/args/0/card={\"pin\":\"1\"}", false),
        ] {
            assert_eq!(Place::parse(text).unwrap().is_in(&body), is_in, "{text}");
        }
        for text in ["", "/args", "/args=1", "/argsx/0=1", "args/0=1", "/queue=1", &"/args/0=x".repeat(200)] {
            assert!(Place::parse(text).unwrap_err().message.contains("/args/0/user_id=7"), "{text}");
        }
    }
}
