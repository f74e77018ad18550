//! A job's payload: its args, its meta, and which of their values are sensitive.

use semel_core::canon::Json;
use semel_core::error::Invalid;
use semel_core::limits::ARGS_BYTES_MAX;

use super::attributes::Attribute;
use super::check_meta_bytes;
use super::parts::Parts;
use crate::members::{Members, Value};
use crate::sensitive;

/// Args and meta as they were sent, with the sensitive marks.
pub(super) struct Payload<'m> {
    pub(super) args_text: &'m str,
    pub(super) args: Json<'m>,
    pub(super) meta_text: String,
    /// JSON pointers to values that only the worker is shown.
    pub(super) sensitive: Vec<String>,
    /// The member that marks them.
    marked: Option<Value<'m>>,
}

impl<'m> Payload<'m> {
    /// Reads the payload. Meta is not parsed until [`meta`](Self::meta) is called.
    pub(super) fn read(parts: &Parts<'m>) -> Result<Self, Invalid> {
        let sent = parts.args.ok_or_else(|| {
            Invalid::request("/args", "is missing; send an array, or [] if the job needs no args")
        })?;
        let marked = parts.get(Attribute::Sensitive);
        let sensitive = marked.map(sensitive::read).transpose()?.unwrap_or_default();
        let told = |refused: Invalid| sensitive::told(refused, &sensitive);
        let args = read_args(sent).map_err(told)?;
        let meta_text = parts.meta_text().map_err(told)?;
        Ok(Self { args_text: sent.text(), args, meta_text, sensitive, marked })
    }

    /// Meta as a tree, after checking that the marks can hide what they name in args and meta.
    pub(super) fn meta(&self) -> Result<Json<'_>, Invalid> {
        let meta = read_meta(&self.meta_text).map_err(|refused| self.told(refused))?;
        if let Some(marked) = self.marked {
            sensitive::check(marked, &self.sensitive, &self.args, &meta)?;
        }
        Ok(meta)
    }

    /// A refusal that reveals nothing about sensitive values.
    pub(super) fn told(&self, refused: Invalid) -> Invalid {
        sensitive::told(refused, &self.sensitive)
    }
}

fn read_args(value: Value<'_>) -> Result<Json<'_>, Invalid> {
    if !value.is_array() {
        return Err(value.refuse("is not an array; send a JSON array, such as [{\"user_id\": 42}]"));
    }
    if value.text().len() > ARGS_BYTES_MAX {
        return Err(Invalid::too_large(
            "/args",
            format!(
                "is longer than {ARGS_BYTES_MAX} bytes; store the data elsewhere and send a reference to it"
            ),
        ));
    }
    value.tree()
}

fn read_meta(text: &str) -> Result<Json<'_>, Invalid> {
    check_meta_bytes(text)?;
    let tree = Json::parse(text, "/meta")?;
    // Members of meta are looked up and added by name, so names must be distinct.
    if matches!(&tree, Json::Object(members) if members.len() > 1) {
        Members::read(text, "/meta")?;
    }
    Ok(tree)
}
