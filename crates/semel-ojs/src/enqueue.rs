//! An enqueue request: from its text to an [`Offer`] in one pass, with a place and a remedy for everything refused.

use std::sync::Arc;

use semel_core::body::Body;
use semel_core::canon::{Json, digest};
use semel_core::enqueue::{Identity, Offer, Start, When};
use semel_core::error::Invalid;
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::limits::{
    ARGS_BYTES_MAX, META_BYTES_MAX, PRIORITY_MAX, PRIORITY_MIN, TAGS_MAX, TIMEOUT_MS_MAX,
};
use semel_core::unique::{KeyInput, UniquePolicy};

use crate::members::{Members, Value, below};
use crate::write::{Object, object};
use crate::{digest as request_digest, duration, limit, retry, sensitive, unique};

/// Attributes that only a server sets; a client that sends back an envelope it got is not refused for them.
const SYSTEM: [&str; 25] = [
    "specversion",
    "state",
    "attempt",
    "created_at",
    "enqueued_at",
    "started_at",
    "completed_at",
    "cancelled_at",
    "discarded_at",
    "activated_at",
    "error",
    "errors",
    "result",
    "progress",
    "worker_id",
    "lease",
    "next_attempt_at",
    "retry_delay_ms",
    "parent_results",
    "workflow_id",
    "workflow_step",
    "unique_key",
    "follow_up_id",
    "deduplicated",
    "replaced",
];

/// Whether only a server sets this attribute.
pub(crate) fn is_system(name: &str) -> bool {
    SYSTEM.contains(&name)
}

/// Whether this attribute may stand in `options` or at the top.
pub(crate) fn is_attribute(name: &str) -> bool {
    Attribute::from_name(name).is_some()
}

/// An enqueue request that was understood.
#[derive(Clone, Debug)]
pub struct Enqueue {
    /// What is offered to the engine.
    pub offer: Offer,
    /// What the offer's encoded body says, for the answer.
    pub body: Body,
    /// The `version` the request carries: which version of the job's template it was made for.
    version: Option<String>,
}

impl Enqueue {
    /// Reads a request. `inspect` is whether the caller may see other people's jobs.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse(text: &str, inspect: bool) -> Result<Self, Invalid> {
        let members = Members::read(text, "")?;
        let options = match members.get("", "options") {
            Some(value) => Some(value.members()?),
            None => None,
        };
        let parts = Parts::of(&members, options.as_ref())?;
        let job_type = match parts.job_type {
            Some(value) => JobType::parse(&value.string()?, "/type")?,
            None => {
                return Err(Invalid::request(
                    "/type",
                    "is missing; send the kind of work, such as \"email.send\"",
                ));
            }
        };
        let queue = match parts.get(Attribute::Queue) {
            Some(value) => QueueName::parse(&value.string()?, &value.pointer())?,
            None => QueueName::default(),
        };
        let args_value = parts.args.ok_or_else(|| {
            Invalid::request("/args", "is missing; send an array, [] when the job needs none")
        })?;
        let args = read_args(args_value)?;
        let meta_text = parts.meta_text()?;
        let meta = read_meta(&meta_text)?;
        let retry = retry::read(parts.get(Attribute::Retry), parts.get(Attribute::MaxAttempts))?;
        let policy = parts.get(Attribute::Unique).map(unique::read).transpose()?.flatten();
        let version = parts.version.map(read_version).transpose()?.flatten();
        let unique = match policy {
            None => None,
            Some(policy) => {
                let input = KeyInput {
                    job_type: job_type.as_str(),
                    queue: queue.as_str(),
                    version: version.as_deref(),
                    args: &args,
                    meta: &meta,
                };
                let key = policy.key(&input)?;
                Some(Identity { policy, key })
            }
        };
        let id = match parts.id {
            Some(value) => Some(JobId::parse(&value.string()?, "/id")?),
            None => None,
        };
        let limit = parts.get(Attribute::RateLimit).map(|value| limit::read(value, &queue)).transpose()?;
        let body = Body {
            args: args_value.text().into(),
            meta: meta_text.into(),
            unique: unique.as_ref().map(|identity| UniquePolicy::clone(&identity.policy)),
            tags: parts.get(Attribute::Tags).map(read_tags).transpose()?.unwrap_or_default(),
            sensitive: parts.get(Attribute::Sensitive).map(sensitive::read).transpose()?.unwrap_or_default(),
            extra: parts.extra.into(),
            request_digest: id.map(|_| request_digest::request(&members)).transpose()?,
            retry,
        };
        let offer = Offer {
            id,
            job_type,
            queue,
            priority: parts.slots.priority()?,
            start: parts.slots.start()?,
            expires: parts.slots.get(Attribute::ExpiresAt).map(read_when).transpose()?,
            visibility_ms: parts.slots.millis(Attribute::VisibilityMs)?,
            timeout_ms: parts.slots.timeout()?,
            max_attempts: body.retry.max_attempts,
            unique,
            body: body.encode().map_err(|damaged| Invalid::payload("", damaged.to_string()))?,
            inspect,
            limit,
            bounded: false,
            awaited: false,
        };
        Ok(Self { offer, body, version })
    }

    /// The exact text whose digest is the job's unique key, but for values marked sensitive, which are hidden in it;
    /// none without a policy.
    ///
    /// # Errors
    /// None that [`parse`](Self::parse) has not found already.
    pub fn canonical(&self) -> Result<Option<String>, Invalid> {
        let Some(Identity { policy, .. }) = &self.offer.unique else { return Ok(None) };
        let args = sensitive::hidden_args_by_name(&self.body, policy);
        let meta = sensitive::hidden_meta(&self.body);
        policy
            .canonical(&KeyInput {
                job_type: self.offer.job_type.as_str(),
                queue: self.offer.queue.as_str(),
                version: self.version.as_deref(),
                args: &Json::parse(args.as_deref().unwrap_or(&self.body.args), "/args")?,
                meta: &Json::parse(meta.as_deref().unwrap_or(&self.body.meta), "/meta")?,
            })
            .map(Some)
    }

    /// The offer for the engine, and the body for the answer.
    pub fn into_parts(self) -> (Offer, Body) {
        (self.offer, self.body)
    }

    /// The effective policy.
    pub fn policy(&self) -> Option<&Arc<UniquePolicy>> {
        self.offer.unique.as_ref().map(|identity| &identity.policy)
    }
}

/// Attributes that may stand in `options` or at the top (NOTES of OJS, 4.1).
#[derive(Clone, Copy)]
enum Attribute {
    Queue,
    Priority,
    TimeoutMs,
    TimeoutS,
    VisibilityMs,
    ScheduledAt,
    ExpiresAt,
    Retry,
    MaxAttempts,
    Unique,
    Tags,
    Pending,
    Sensitive,
    RateLimit,
}

impl Attribute {
    const COUNT: usize = 14;

    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "queue" => Self::Queue,
            "priority" => Self::Priority,
            "timeout_ms" => Self::TimeoutMs,
            "timeout" => Self::TimeoutS,
            "visibility_timeout_ms" => Self::VisibilityMs,
            "scheduled_at" | "delay_until" => Self::ScheduledAt,
            "expires_at" => Self::ExpiresAt,
            "retry" | "retry_policy" => Self::Retry,
            "max_attempts" => Self::MaxAttempts,
            "unique" => Self::Unique,
            "tags" => Self::Tags,
            "pending" => Self::Pending,
            "sensitive" => Self::Sensitive,
            "rate_limit" => Self::RateLimit,
            _ => return None,
        })
    }
}

/// The attributes that were sent, each once or twice alike.
#[derive(Default)]
struct Slots<'m>([Option<Value<'m>>; Attribute::COUNT]);

impl<'m> Slots<'m> {
    fn get(&self, attribute: Attribute) -> Option<Value<'m>> {
        self.0[attribute as usize]
    }

    fn put(&mut self, attribute: Attribute, value: Value<'m>) -> Result<(), Invalid> {
        if value.is_null() {
            return Ok(());
        }
        let slot = &mut self.0[attribute as usize];
        if let Some(other) = slot
            && other.text() != value.text()
            && digest(&other.tree()?) != digest(&value.tree()?)
        {
            return Err(
                value.refuse(format!("differs from {}, which means the same; send it once", other.pointer()))
            );
        }
        slot.get_or_insert(value);
        Ok(())
    }

    fn priority(&self) -> Result<i8, Invalid> {
        let Some(value) = self.get(Attribute::Priority) else { return Ok(0) };
        let priority = value.within(PRIORITY_MIN, PRIORITY_MAX)?;
        i8::try_from(priority).map_err(|_| value.refuse("is out of range"))
    }

    fn start(&self) -> Result<Start, Invalid> {
        let later = self.get(Attribute::ScheduledAt);
        let pending = match self.get(Attribute::Pending) {
            Some(value) if value.flag()? => Some(value),
            _ => None,
        };
        match (later, pending) {
            (None, None) => Ok(Start::Now),
            (Some(value), None) => read_when(value).map(Start::Later),
            (None, Some(_)) => Ok(Start::OnActivation),
            (Some(_), Some(value)) => {
                Err(value.refuse("cannot stand beside a time to start at; send one or the other"))
            }
        }
    }

    fn millis(&self, attribute: Attribute) -> Result<u32, Invalid> {
        let Some(value) = self.get(attribute) else { return Ok(0) };
        let millis = value.within(0, i64::try_from(TIMEOUT_MS_MAX).unwrap_or(i64::MAX))?;
        u32::try_from(millis).map_err(|_| value.refuse("is too long"))
    }

    /// `timeout_ms`, or the core specification's `timeout` in seconds.
    fn timeout(&self) -> Result<u32, Invalid> {
        let millis = self.millis(Attribute::TimeoutMs)?;
        let Some(value) = self.get(Attribute::TimeoutS) else { return Ok(millis) };
        let seconds = value.within(0, i64::try_from(TIMEOUT_MS_MAX / 1000).unwrap_or(i64::MAX))?;
        let own = u32::try_from(seconds * 1000).map_err(|_| value.refuse("is too long"))?;
        if millis != 0 && own != 0 && own != millis {
            return Err(value.refuse("is in seconds and differs from timeout_ms; send one of them"));
        }
        Ok(millis.max(own))
    }
}

/// A request's members, told apart.
struct Parts<'m> {
    job_type: Option<Value<'m>>,
    args: Option<Value<'m>>,
    id: Option<Value<'m>>,
    meta: Option<Value<'m>>,
    metadata: Option<Value<'m>>,
    version: Option<Value<'m>>,
    slots: Slots<'m>,
    extra: String,
}

impl<'m> Parts<'m> {
    fn of(members: &'m Members<'m>, options: Option<&'m Members<'m>>) -> Result<Self, Invalid> {
        let mut parts = Self {
            job_type: None,
            args: None,
            id: None,
            meta: None,
            metadata: None,
            version: None,
            slots: Slots::default(),
            extra: String::new(),
        };
        let mut unknown_options = String::new();
        for (name, value) in options.into_iter().flat_map(|options| options.iter("/options")) {
            match Attribute::from_name(name) {
                Some(attribute) => {
                    // Nothing else keeps what it says, and it is shown as it was sent.
                    if name == "rate_limit" && !value.is_null() {
                        keep(&mut unknown_options, name, value)?;
                    }
                    parts.slots.put(attribute, value)?;
                }
                None if name == "metadata" => parts.metadata = Some(value).filter(|value| !value.is_null()),
                None => keep(&mut unknown_options, name, value)?,
            }
        }
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
                    None if is_system(name) => {}
                    None => {
                        if name == "version" {
                            parts.version = filled;
                        }
                        keep(&mut parts.extra, name, value)?;
                    }
                },
            }
        }
        if !unknown_options.is_empty() {
            unknown_options.push('}');
            put_member(&mut parts.extra, "options", &unknown_options);
        }
        parts.extra.push_str(if parts.extra.is_empty() { "{}" } else { "}" });
        Ok(parts)
    }

    fn get(&self, attribute: Attribute) -> Option<Value<'m>> {
        self.slots.get(attribute)
    }

    /// Meta, with what `options.metadata` adds to it.
    fn meta_text(&self) -> Result<String, Invalid> {
        let (meta, metadata) = match (self.meta, self.metadata) {
            (None, None) => return Ok("{}".to_owned()),
            (Some(only), None) | (None, Some(only)) => return Ok(checked_object(only)?.text().to_owned()),
            (Some(meta), Some(metadata)) => (checked_object(meta)?, checked_object(metadata)?),
        };
        let own = meta.members()?;
        let mut text = String::with_capacity(meta.text().len() + metadata.text().len());
        object(&mut text, |object: &mut Object<'_>| {
            object.members_of(meta.text());
        });
        let added = metadata.members()?;
        for (name, value) in added.iter("/options/metadata") {
            match own.get("/meta", name) {
                None if !own.iter("").any(|(its, _)| its == name) => {
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
                _ => {
                    return Err(value.refuse(format!(
                        "differs from {}, into which it would be merged; send it once",
                        below("/meta", name)
                    )));
                }
            }
        }
        Ok(text)
    }
}

/// Keeps an attribute that this server gives no meaning to. Its depth is bounded like that of any other.
fn keep(object: &mut String, name: &str, value: Value<'_>) -> Result<(), Invalid> {
    value.tree()?;
    put_member(object, name, value.text());
    Ok(())
}

/// Adds a member to the text of an object that is not closed yet, or not begun.
fn put_member(object: &mut String, name: &str, json: &str) {
    object.push(if object.is_empty() { '{' } else { ',' });
    crate::write::put_string(object, name);
    object.push(':');
    object.push_str(json);
}

fn checked_object(value: Value<'_>) -> Result<Value<'_>, Invalid> {
    if value.is_object() {
        Ok(value)
    } else {
        Err(value.refuse("is not an object; send an object, or leave it out"))
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
    if text.len() > META_BYTES_MAX {
        return Err(Invalid::too_large(
            "/meta",
            format!("is longer than {META_BYTES_MAX} bytes; send less, or put it into args"),
        ));
    }
    Json::parse(text, "/meta")
}

fn read_when(value: Value<'_>) -> Result<When, Invalid> {
    duration::when(&value.string()?, &value.pointer())
}

fn read_tags(value: Value<'_>) -> Result<Vec<String>, Invalid> {
    let tags = value.strings()?;
    if tags.len() > TAGS_MAX {
        return Err(value.refuse(format!("has more than {TAGS_MAX} tags; send fewer")));
    }
    Ok(tags)
}

/// A version is a text or a number, by its digits. Any other value is the caller's own affair.
fn read_version(value: Value<'_>) -> Result<Option<String>, Invalid> {
    if value.is_string() {
        value.string().map(|text| Some(text.into_owned()))
    } else {
        Ok(value.is_number().then(|| value.text().to_owned()))
    }
}
