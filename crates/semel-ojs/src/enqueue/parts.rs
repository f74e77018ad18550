//! A request's members, sorted: what the job is, its attributes, and what is kept unchanged; and which policy is in force.

use std::collections::HashMap;
use std::sync::Arc;

use semel_core::canon::digest;
use semel_core::error::Invalid;
use semel_core::template::{Basis, Said, effective};
use semel_core::unique::{Given, UniquePolicy};

use super::attributes::{Attribute, Slots};
use super::recent::{self, Wording};
use super::{Identified, Unread, check_meta_bytes, is_system, refuse_slip_of_job};
use crate::members::{Members, Value, below};
use crate::near::refuse_slip;
use crate::task::check_fits;
use crate::template::Template;
use crate::unique;
use crate::write::{Object, object};

/// A request's members, sorted.
pub(super) struct Parts<'m> {
    pub(super) job_type: Option<Value<'m>>,
    pub(super) args: Option<Value<'m>>,
    pub(super) id: Option<Value<'m>>,
    pub(super) meta: Option<Value<'m>>,
    pub(super) metadata: Option<Value<'m>>,
    pub(super) version: Option<Value<'m>>,
    /// A `version` in `options`, where it does not select a template's version.
    pub(super) misplaced_version: Option<Value<'m>>,
    /// The short form of a policy: a key chosen by the caller.
    pub(super) unique_key: Option<Value<'m>>,
    pub(super) slots: Slots<'m>,
    pub(super) extra: String,
}

impl<'m> Parts<'m> {
    pub(super) fn of(members: &'m Members<'m>, options: Option<&'m Members<'m>>) -> Result<Self, Invalid> {
        let mut parts = Self {
            job_type: None,
            args: None,
            id: None,
            meta: None,
            metadata: None,
            version: None,
            misplaced_version: None,
            unique_key: None,
            slots: Slots::default(),
            extra: String::new(),
        };
        let mut unknown_options = String::new();
        for (name, value) in options.into_iter().flat_map(|options| options.iter("/options")) {
            match Attribute::from_name(name) {
                Some(attribute) => {
                    // Stored unchanged here, so that it can be shown as it was sent.
                    if name == "rate_limit" && !value.is_null() {
                        keep(&mut unknown_options, name, value)?;
                    }
                    parts.slots.put(attribute, value)?;
                }
                None if name == "metadata" => parts.metadata = Some(value).filter(|value| !value.is_null()),
                // At the top level `unique_key` is what a server shows of a job's key.
                None if name == "unique_key" => {
                    parts.unique_key = Some(value).filter(|value| !value.is_null());
                }
                None => {
                    if name == "version" {
                        parts.misplaced_version = Some(value).filter(|value| !value.is_null());
                    }
                    refuse_slip(name, value, &["unique_key", "metadata"])?;
                    refuse_slip(name, value, &Attribute::NAMES)?;
                    keep(&mut unknown_options, name, value)?;
                }
            }
        }
        let mut shown = None;
        for (name, value) in members.iter("") {
            let filled = Some(value).filter(|value| !value.is_null());
            match name {
                "type" => parts.job_type = filled,
                "args" => parts.args = Some(value),
                "id" => parts.id = filled,
                "meta" => parts.meta = filled,
                "options" => {}
                _ => match Attribute::from_name(name) {
                    Some(attribute) => {
                        if name == "rate_limit" && !value.is_null() {
                            keep(&mut parts.extra, name, value)?;
                        }
                        parts.slots.put(attribute, value)?;
                    }
                    // It may have been meant for `options`: ignored, it would let duplicates in.
                    None if name == "unique_key" && !value.is_null() => {
                        if !is_shown_key(value)? {
                            return Err(refused_key(value));
                        }
                        shown = filled;
                    }
                    None if is_system(name) => {}
                    None => {
                        if name == "version" {
                            parts.version = filled;
                            // A null is no version, and would stand beside the one that the template adds.
                            if filled.is_none() {
                                continue;
                            }
                        } else {
                            refuse_slip_of_job(name, value)?;
                        }
                        keep(&mut parts.extra, name, value)?;
                    }
                },
            }
        }
        // A server shows it beside the policy; without a policy it is a digest that the caller made.
        if let Some(value) = shown
            && parts.get(Attribute::Unique).is_none()
            && parts.unique_key.is_none()
        {
            return Err(refused_key(value));
        }
        if !unknown_options.is_empty() {
            unknown_options.push('}');
            put_member(&mut parts.extra, "options", &unknown_options);
        }
        parts.extra.push_str(if parts.extra.is_empty() { "{}" } else { "}" });
        Ok(parts)
    }

    pub(super) fn get(&self, attribute: Attribute) -> Option<Value<'m>> {
        self.slots.get(attribute)
    }

    /// Fills in the template's defaults. A group of attributes with one subject is filled in only as a whole.
    fn fill_in(&mut self, defaults: &'m Members<'m>) {
        let known = defaults.iter("").filter_map(|(name, value)| Some((Attribute::from_name(name)?, value)));
        let unsaid: Vec<(Attribute, Value<'m>)> =
            known.filter(|(attribute, _)| !self.slots.speak_of(*attribute)).collect();
        for (attribute, value) in unsaid {
            self.slots.0[attribute as usize].get_or_insert(value);
        }
    }

    /// Applies the template of the job's type. Returns its version: the requested one, or the template's own,
    /// which is then stored with the job.
    pub(super) fn go_by(
        &mut self,
        template: &Template,
        defaults: &'m Members<'m>,
        asked: Option<String>,
    ) -> Result<String, Invalid> {
        // Ignored, it would make this a job of another version, with another key.
        if let Some(misplaced) = self.misplaced_version {
            return Err(misplaced.refuse("does not select a version here; send it next to the job's type"));
        }
        self.fill_in(defaults);
        match (asked, self.version) {
            (Some(version), _) => Ok(version),
            (None, Some(odd)) => Err(odd
                .refuse("is neither a string nor a number; name a version of the template, or leave it out")),
            (None, None) => {
                self.add_text("version", &template.version);
                Ok(template.version.clone())
            }
        }
    }

    /// Adds a member to those that are kept and shown unchanged.
    fn add_text(&mut self, name: &str, text: &str) {
        let mut own = String::new();
        crate::write::put_string(&mut own, name);
        own.push(':');
        crate::write::put_string(&mut own, text);
        let is_empty = self.extra == "{}";
        self.extra.insert_str(1, &if is_empty { own } else { own + "," });
    }

    /// The policy in force, whichever source decides it (SEMANTICS 6).
    pub(super) fn policy(
        &self,
        template: Option<&Template>,
        has_version: bool,
        identified: Identified<'_>,
    ) -> Result<Option<Arc<UniquePolicy>>, Unread> {
        let sent = self.get(Attribute::Unique);
        let wording = match (sent, identified) {
            (Some(sent), Identified::ByRequest | Identified::ToExplain)
                if self.unique_key.is_none() && template.is_none() =>
            {
                let visibility_ms = self.slots.visibility()?;
                Some(Wording { text: sent.text(), has_version, visibility_ms })
            }
            _ => None,
        };
        if let Some(policy) = wording.and_then(recent::known) {
            return Ok(Some(policy));
        }
        let read = sent.map(unique::read_asked).transpose()?;
        if read.is_none() && self.unique_key.is_none() && template.is_none() {
            return Ok(None);
        }
        let short = self.unique_key.map(|value| value.string()).transpose()?;
        let key = match identified {
            Identified::AsTask(key) => key,
            Identified::ByRequest | Identified::ToExplain => short.as_deref(),
        };
        let key_at = match (identified, self.unique_key, &sent) {
            (Identified::AsTask(_), ..) => "/idempotency_key".to_owned(),
            (_, Some(value), _) => value.pointer(),
            (_, None, Some(sent)) => below(&sent.pointer(), "key"),
            (_, None, None) => "/options/unique_key".to_owned(),
        };
        let pointer = sent.map_or_else(|| "/options/unique".to_owned(), |value| value.pointer());
        let said = Said {
            request: read.as_ref().map(|read| &read.asked),
            key,
            template: template.map(|template| template.identity.as_ref()),
        };
        let given = Given { key: None, has_version, visibility_ms: self.slots.visibility()? };
        let effective = effective(said, &given)
            .map_err(|missing| Unread::MissingKey { missing, pointer: key_at.clone() })?;
        let Some(spec) = effective.spec else { return Ok(None) };
        let built = UniquePolicy::build_new(&spec, &pointer).map_err(|mut refused| {
            if effective.basis == Basis::RequestKey && refused.pointer == below(&pointer, "key") {
                refused.pointer.clone_from(&key_at);
            }
            match &read {
                Some(read) => read.place(refused, &pointer),
                None => refused,
            }
        });
        let policy = built?;
        if template.is_some_and(|template| !template.steps.is_empty()) {
            check_fits(&policy, &pointer)?;
        }
        let policy = Arc::new(policy);
        if let Some(wording) = wording {
            recent::remember(wording, &policy);
        }
        Ok(Some(policy))
    }

    /// Meta merged with `options.metadata`. Neither is parsed if it is too long by itself.
    pub(super) fn meta_text(&self) -> Result<String, Invalid> {
        let (meta, metadata) = match (self.meta, self.metadata) {
            (None, None) => return Ok("{}".to_owned()),
            (Some(only), None) | (None, Some(only)) => return Ok(checked_meta(only)?.text().to_owned()),
            (Some(meta), Some(metadata)) => (checked_meta(meta)?, checked_meta(metadata)?),
        };
        let own = meta.members()?;
        let known: HashMap<&str, Value<'_>> = own.iter("/meta").collect();
        let mut text = String::with_capacity(meta.text().len() + metadata.text().len());
        object(&mut text, |object: &mut Object<'_>| {
            object.members_of(meta.text());
        });
        let added = metadata.members()?;
        for (name, value) in added.iter("/options/metadata") {
            match known.get(name) {
                None => {
                    text.pop();
                    if text.len() > 1 {
                        text.push(',');
                    }
                    crate::write::put_string(&mut text, name);
                    text.push(':');
                    text.push_str(value.text());
                    text.push('}');
                }
                Some(other) if digest(&other.tree()?) == digest(&value.tree()?) => {}
                Some(other) => {
                    return Err(value.refuse(format!(
                        "differs from {}, into which it would be merged; send only one of them",
                        other.pointer()
                    )));
                }
            }
        }
        Ok(text)
    }
}

/// Keeps a member that this server does not interpret. Its depth is bounded like any other's.
fn keep(object: &mut String, name: &str, value: Value<'_>) -> Result<(), Invalid> {
    value.tree()?;
    put_member(object, name, value.text());
    Ok(())
}

/// Adds a member to an object's text that is not closed yet, or not begun.
fn put_member(object: &mut String, name: &str, json: &str) {
    object.push(if object.is_empty() { '{' } else { ',' });
    crate::write::put_string(object, name);
    object.push(':');
    object.push_str(json);
}

fn checked_meta(value: Value<'_>) -> Result<Value<'_>, Invalid> {
    if !value.is_object() {
        return Err(value.refuse("is not an object; send an object, or leave it out"));
    }
    check_meta_bytes(value.text())?;
    Ok(value)
}

fn refused_key(value: Value<'_>) -> Invalid {
    value.refuse(
        "is only for the key that a server shows next to `unique`, 64 hexadecimal digits; send a key of your own as options.unique_key",
    )
}

/// Whether the value is a key as a server shows it.
fn is_shown_key(value: Value<'_>) -> Result<bool, Invalid> {
    let text = value.string()?;
    Ok(text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
