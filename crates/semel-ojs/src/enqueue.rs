//! An enqueue request: from its text to an [`Offer`] in one pass, with a place and a remedy for everything refused.

use std::sync::Arc;

use semel_core::body::Body;
use semel_core::canon::{Json, digest};
use semel_core::enqueue::once::Once;
use semel_core::enqueue::{Identity, Offer, Start, When};
use semel_core::error::Invalid;
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::limits::{
    ARGS_BYTES_MAX, META_BYTES_MAX, PRIORITY_MAX, PRIORITY_MIN, TAGS_MAX, TIMEOUT_MS_MAX,
};
use semel_core::template::{Basis, Said, effective};
use semel_core::unique::{Given, KeyInput, MissingKey, UniqueKey, UniquePolicy};

use crate::members::{Members, Value, below};
use crate::task::check_fits;
use crate::template::{Template, Templates};
use crate::write::{Object, object};
use crate::{digest as request_digest, duration, limit, retry, sensitive, unique};

/// How an enqueue request may be sent again under this key. `text` is the request as it was sent; whether it can be
/// understood does not matter.
///
/// # Errors
/// When it is not an object, or what is in it cannot be told apart.
pub fn once(text: &str, key: UniqueKey) -> Result<Once, Invalid> {
    Ok(Once { key, digest: request_digest::request(&Members::read(text, "")?)? })
}

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
    /// Reads a request on these terms; `true` or `false` alone say whether the caller may see other people's jobs.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse<'t>(text: &str, terms: impl Into<Terms<'t>>) -> Result<Self, Invalid> {
        Ok(Self::read(text, terms.into(), Identified::ByRequest)?)
    }

    /// As [`parse`](Self::parse), of a job that nobody is going to create: it may be a task's.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_to_explain<'t>(text: &str, terms: impl Into<Terms<'t>>) -> Result<Self, Invalid> {
        Ok(Self::read(text, terms.into(), Identified::ToExplain)?)
    }

    /// As [`parse`](Self::parse), of a job whose request is in another form, which may name a key of its own.
    pub(crate) fn read(text: &str, terms: Terms<'_>, identified: Identified<'_>) -> Result<Self, Unread> {
        let members = Members::read(text, "")?;
        let options = match members.get("", "options") {
            Some(value) => Some(value.members()?),
            None => None,
        };
        let mut parts = Parts::of(&members, options.as_ref())?;
        let job_type = match parts.job_type {
            Some(value) => JobType::parse(&value.string()?, "/type")?,
            None => {
                let missing = "is missing; send the kind of work, such as \"email.send\"";
                return Err(Invalid::request("/type", missing).into());
            }
        };
        let mut version = parts.version.map(read_version).transpose()?.flatten();
        let template = find_template(terms, &job_type, version.as_deref(), identified)?;
        let defaults = template.map(Template::defaults).transpose()?;
        if let (Some(template), Some(defaults)) = (template, &defaults) {
            parts.fill_in(defaults);
            if version.is_none() {
                version = Some(template.version.clone());
                parts.add_text("version", &template.version);
            }
        }
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
        let unique = match parts.policy(template, version.is_some(), identified)? {
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
            inspect: terms.inspect,
            limit,
            bounded: false,
            awaited: false,
            once: None,
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

    /// The same request, which its caller may send again under this key. `text` is the request as it was sent.
    ///
    /// # Errors
    /// None that [`parse`](Self::parse) has not found already.
    pub fn once(mut self, text: &str, key: UniqueKey) -> Result<Self, Invalid> {
        self.offer.once = Some(once(text, key)?);
        Ok(self)
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

/// Why a request was not understood.
#[derive(Debug)]
pub(crate) enum Unread {
    /// What is wrong, and where.
    Invalid(Invalid),
    /// What holds is made of a key, and there is none where one may stand.
    MissingKey {
        /// What holds.
        missing: MissingKey,
        /// Where the key would stand.
        pointer: String,
    },
}

impl From<Invalid> for Unread {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

impl From<Unread> for Invalid {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Invalid(invalid) => invalid,
            Unread::MissingKey { missing, pointer } => unique::missing_key(missing, &pointer),
        }
    }
}

/// On which terms requests are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms<'t> {
    /// Whether the caller may see other people's jobs.
    pub inspect: bool,
    /// What holds for jobs of some types.
    pub templates: Option<&'t Templates>,
}

impl From<bool> for Terms<'_> {
    fn from(inspect: bool) -> Self {
        Self { inspect, templates: None }
    }
}

/// What else may say who a job is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Identified<'k> {
    /// The request itself and nothing else.
    ByRequest,
    /// The same, of a request that creates nothing: it may be about a task.
    ToExplain,
    /// A task, by its key, if it has one.
    AsTask(Option<&'k str>),
}

/// The template of the job's type, in the version that is asked for.
fn find_template<'t>(
    terms: Terms<'t>,
    job_type: &JobType,
    version: Option<&str>,
    identified: Identified<'_>,
) -> Result<Option<&'t Template>, Invalid> {
    let Some(templates) = terms.templates else { return Ok(None) };
    match templates.find(job_type.as_str(), version) {
        Ok(Some(template)) if !template.steps.is_empty() && matches!(identified, Identified::ByRequest) => {
            Err(Invalid::request("/type", "is a task's, which has steps; create it at /v1/tasks"))
        }
        Ok(found) => Ok(found),
        Err(known) => Err(Invalid::request(
            "/version",
            format!("is not a version of the template of {job_type}; there are {}", known.join(", ")),
        )),
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
    /// The short form of a policy: a key of the caller's own.
    unique_key: Option<Value<'m>>,
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
            unique_key: None,
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
                // At the top it is what a server shows of a job's key.
                None if name == "unique_key" => {
                    parts.unique_key = Some(value).filter(|value| !value.is_null());
                }
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

    /// What the template says where the request says nothing. Attributes that say one thing together come together.
    fn fill_in(&mut self, defaults: &'m Members<'m>) {
        let is_sent = |attribute| self.slots.get(attribute).is_some();
        let retry = is_sent(Attribute::Retry) || is_sent(Attribute::MaxAttempts);
        let timeout = is_sent(Attribute::TimeoutMs) || is_sent(Attribute::TimeoutS);
        for (name, value) in defaults.iter("") {
            let Some(attribute) = Attribute::from_name(name) else { continue };
            let is_said = match attribute {
                Attribute::Retry | Attribute::MaxAttempts => retry,
                Attribute::TimeoutMs | Attribute::TimeoutS => timeout,
                _ => false,
            };
            if !is_said {
                self.slots.0[attribute as usize].get_or_insert(value);
            }
        }
    }

    /// Adds a member to those that are kept and shown as they are.
    fn add_text(&mut self, name: &str, text: &str) {
        let mut own = String::new();
        crate::write::put_string(&mut own, name);
        own.push(':');
        crate::write::put_string(&mut own, text);
        let is_empty = self.extra == "{}";
        self.extra.insert_str(1, &if is_empty { own } else { own + "," });
    }

    /// The policy that holds, by whoever decides it (SEMANTICS 6).
    fn policy(
        &self,
        template: Option<&Template>,
        has_version: bool,
        identified: Identified<'_>,
    ) -> Result<Option<Arc<UniquePolicy>>, Unread> {
        let sent = self.get(Attribute::Unique);
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
        let given =
            Given { key: None, has_version, visibility_ms: self.slots.millis(Attribute::VisibilityMs)? };
        let effective = effective(said, &given)
            .map_err(|missing| Unread::MissingKey { missing, pointer: key_at.clone() })?;
        let Some(spec) = effective.spec else { return Ok(None) };
        let built = UniquePolicy::build(&spec, &pointer).map_err(|mut refused| {
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
        Ok(Some(Arc::new(policy)))
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
