//! An enqueue request: from its text to an [`Offer`] in one pass. Every refusal names the place and a remedy.

mod attributes;
mod parts;
mod payload;
mod recent;

use std::sync::Arc;

use semel_core::body::Body;
use semel_core::canon::Json;
use semel_core::enqueue::once::Once;
use semel_core::enqueue::{Identity, Offer, When};
use semel_core::error::Invalid;
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::limits::{META_BYTES_MAX, TAGS_MAX};
use semel_core::lineage::Lineage;
use semel_core::schema::Work;
use semel_core::sight::Sight;
use semel_core::tenant::{TENANT_ID, take_own};
use semel_core::unique::{KeyInput, MissingKey, UniqueKey, UniquePolicy};

use self::attributes::Attribute;
use self::parts::Parts;
use self::payload::Payload;
use crate::members::{Members, Value, below};
use crate::near::{meant, refuse_slip};
use crate::template::{Template, Templates};
use crate::{digest as request_digest, duration, limit, retry, sensitive, unique};

/// The idempotency record of an enqueue request of this tenant under this key. `text` is the request as it
/// was sent; it need not be a valid one.
///
/// # Errors
/// When the text is not an object, or its contents are ambiguous.
pub fn once(text: &str, key: UniqueKey, tenant: &str) -> Result<Once, Invalid> {
    Ok(Once { key, digest: request_digest::request(&Members::read(text, "")?, tenant)? })
}

/// Members that only a server sets about a job, and the wrappers of answers. They are dropped, because in
/// answers they would stand beside the server's own. A client may send back an envelope that it got.
const SYSTEM: [&str; 32] = [
    "job",
    "specversion",
    "state",
    "attempt",
    "created_at",
    "enqueued_at",
    "started_at",
    "completed_at",
    "cancelled_at",
    "discarded_at",
    "ended_as",
    "activated_at",
    "previous_state",
    "error",
    "errors",
    "result",
    "progress",
    "worker_id",
    "lease",
    "lease_expires_at",
    "next_attempt_at",
    "retry_delay_ms",
    "parent_results",
    "workflow_id",
    "workflow_step",
    "unique_key",
    "follow_up_id",
    "follow_up_of",
    "replaced_by",
    "replaces",
    "deduplicated",
    "replaced",
];

/// Whether only a server sets this member.
pub(crate) fn is_system(name: &str) -> bool {
    SYSTEM.contains(&name)
}

/// Refuses a name that is no member of a job but nearly one.
pub(crate) fn refuse_slip_of_job(name: &str, value: Value<'_>) -> Result<(), Invalid> {
    refuse_slip(name, value, &["options", "unique_key", "version"])?;
    refuse_slip(name, value, &Attribute::NAMES)
}

/// The job member that the name is nearly spelt as: an attribute, or `unique_key`, the short form of a policy.
pub(crate) fn meant_of_job(name: &str, value: Value<'_>) -> Option<&'static str> {
    meant(name, value, &Attribute::NAMES).or_else(|| meant(name, value, &["unique_key"]))
}

/// Whether this is an attribute, which may stand in `options` or at the top.
pub(crate) fn is_attribute(name: &str) -> bool {
    Attribute::from_name(name).is_some()
}

/// Whether two members of `options` concern the same thing, so that setting one of them sets the other too.
/// `unique_key` is the short form of a policy.
pub(crate) fn is_alike(one: &str, other: &str) -> bool {
    let attribute = |name: &str| Attribute::from_name(if name == "unique_key" { "unique" } else { name });
    match (attribute(one), attribute(other)) {
        (Some(one), Some(other)) => one.is_about(other),
        _ => one == other,
    }
}

/// A parsed enqueue request.
#[derive(Clone, Debug)]
pub struct Enqueue {
    /// The offer for the engine.
    pub offer: Offer,
    /// The body that the offer contains in encoded form, for the answer.
    pub body: Body,
    /// The request's `version`: the version of the job's template that it was made for.
    version: Option<String>,
    /// Whether the meta contains the member that the server adds to each of the tenant's jobs, and that no key includes.
    says_tenant: bool,
}

impl Enqueue {
    /// Reads a request on these terms.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse(text: &str, terms: Terms<'_>) -> Result<Self, Invalid> {
        Self::parse_within(text, terms, &mut Work::default())
    }

    /// As [`parse`](Self::parse), for one of several jobs in a request, which share the work budget.
    pub(crate) fn parse_within(text: &str, terms: Terms<'_>, work: &mut Work) -> Result<Self, Invalid> {
        terms.check_size(text)?;
        Ok(Self::read(text, terms, Identified::ByRequest, work)?)
    }

    /// As [`parse`](Self::parse), for a job that is not going to be created: it may be a task's.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_to_explain(text: &str, terms: Terms<'_>) -> Result<Self, Invalid> {
        Ok(Self::read(text, terms, Identified::ToExplain, &mut Work::default())?)
    }

    /// As [`parse`](Self::parse), for a job whose request has another form, which may name a key of its own.
    pub(crate) fn read(
        text: &str,
        terms: Terms<'_>,
        identified: Identified<'_>,
        work: &mut Work,
    ) -> Result<Self, Unread> {
        let members = Members::request(text, r#"{"type": "email.send", "args": []}"#)?;
        let options = match members.get("", "options") {
            Some(value) => Some(value.members()?),
            None => None,
        };
        let mut parts = Parts::of(&members, options.as_ref())?;
        let job_type = read_type(parts.job_type)?;
        let asked = parts.version.map(read_version).transpose()?.flatten();
        let template = find_template(terms, &job_type, asked.as_deref(), identified)?;
        let defaults = template.map(Template::defaults).transpose()?;
        let version = match (template, &defaults) {
            (Some(template), Some(defaults)) => Some(parts.go_by(template, defaults, asked)?),
            _ => asked,
        };
        let queue = match parts.get(Attribute::Queue) {
            Some(value) => QueueName::parse(&value.string()?, &value.pointer())?,
            None => QueueName::default(),
        };
        let payload = Payload::read(&parts)?;
        let mut meta = payload.meta()?;
        // Affects the key only: the meta is stored as it was sent, and shown with the server's value in its place.
        let says_tenant = take_own(&mut meta, terms.tenant);
        if let Some(template) = template {
            template.check(&payload.args, &payload.sensitive, work)?;
        }
        let retry = retry::read(parts.get(Attribute::Retry), parts.get(Attribute::MaxAttempts))?;
        let unique = match parts.policy(template, version.is_some(), identified)? {
            None => None,
            Some(policy) => {
                let input = KeyInput {
                    job_type: job_type.as_str(),
                    queue: queue.as_str(),
                    version: version.as_deref(),
                    args: &payload.args,
                    meta: &meta,
                };
                Some(identify(policy, &input, &parts, &payload)?)
            }
        };
        let id = parts.id.map(read_id).transpose()?;
        let limit = parts.get(Attribute::RateLimit).map(|value| limit::read(value, &queue)).transpose()?;
        let body = Body {
            args: payload.args_text.into(),
            meta: payload.meta_text.into(),
            unique: unique.as_ref().map(|identity| UniquePolicy::clone(&identity.policy)),
            tags: parts.get(Attribute::Tags).map(read_tags).transpose()?.unwrap_or_default(),
            sensitive: payload.sensitive,
            extra: parts.extra.into(),
            request_digest: id.map(|_| request_digest::request(&members, terms.tenant)).transpose()?,
            lineage: Lineage::default(),
            retry,
        };
        let offer = Offer {
            id,
            job_type,
            queue,
            priority: parts.slots.priority()?,
            start: parts.slots.start()?,
            expires: parts.slots.get(Attribute::ExpiresAt).map(read_when).transpose()?,
            visibility_ms: parts.slots.visibility()?,
            timeout_ms: parts.slots.timeout()?,
            max_attempts: body.retry.max_attempts,
            unique,
            body: body.encode().map_err(|damaged| Invalid::payload("", damaged.to_string()))?,
            inspect: terms.sight.inspect,
            queues: terms.sight.queues.clone(),
            limit,
            bounded: false,
            awaited: false,
            once: None,
        };
        Ok(Self { offer, body, version, says_tenant })
    }

    /// The exact text whose digest is the job's unique key, except that values marked sensitive are hidden in
    /// it; `None` without a policy.
    ///
    /// # Errors
    /// None that [`parse`](Self::parse) has not found already.
    pub fn canonical(&self) -> Result<Option<String>, Invalid> {
        let Some(Identity { policy, .. }) = &self.offer.unique else { return Ok(None) };
        let args = sensitive::hidden_args_by_name(&self.body, policy);
        let hidden = sensitive::hidden_meta(&self.body);
        let mut meta = Json::parse(hidden.as_deref().unwrap_or(&self.body.meta), "/meta")?;
        // Removed by name: if marked sensitive its value is hidden here, and it is in no key anyway.
        if self.says_tenant
            && let Json::Object(members) = &mut meta
        {
            members.retain(|(name, _)| name != TENANT_ID);
        }
        policy
            .canonical(&KeyInput {
                job_type: self.offer.job_type.as_str(),
                queue: self.offer.queue.as_str(),
                version: self.version.as_deref(),
                args: &Json::parse(args.as_deref().unwrap_or(&self.body.args), "/args")?,
                meta: &meta,
            })
            .map(Some)
    }

    /// Makes the request repeatable under this key for a caller of this tenant. `text` is the request as it was sent.
    ///
    /// # Errors
    /// None that [`parse`](Self::parse) has not found already.
    pub fn once(mut self, text: &str, key: UniqueKey, tenant: &str) -> Result<Self, Invalid> {
        self.offer.once = Some(once(text, key, tenant)?);
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

/// Why a request could not be read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// What is wrong, and where.
    Invalid(Invalid),
    /// The policy in force needs a key, and the request has none where it may stand.
    MissingKey {
        /// Which policy needs it.
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

/// Terms on which requests are read.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'t> {
    /// What the caller may see of jobs that others enqueued.
    pub sight: Sight<'t>,
    /// Templates: defaults and rules for jobs of some types.
    pub templates: Option<&'t Templates>,
    /// The requests' tenant; empty for the default one.
    pub tenant: &'t str,
    /// The largest size of one job, in bytes. It also applies to each job of a request that brings several,
    /// so the bounds that a single request puts on tags and unknown members hold there, too.
    pub job_bytes_max: usize,
}

impl Terms<'_> {
    /// For a caller who sees everything, and a job of the default tenant whose size only the bounds of its parts limit.
    pub const fn trusted() -> Self {
        Self { sight: Sight::everything(), templates: None, tenant: "", job_bytes_max: usize::MAX }
    }

    fn check_size(&self, text: &str) -> Result<(), Invalid> {
        let most = self.job_bytes_max;
        if text.len() <= most {
            return Ok(());
        }
        let long = format!(
            "is larger than {most} bytes, the limit for a job sent on its own; store the data elsewhere and send a reference to it"
        );
        Err(Invalid::too_large("", long))
    }
}

/// What else may determine a job's identity.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Identified<'k> {
    /// Only the request itself.
    ByRequest,
    /// Only the request itself, but it creates nothing: it may be about a task.
    ToExplain,
    /// A task, identified by its key if it has one.
    AsTask(Option<&'k str>),
}

fn read_type(sent: Option<Value<'_>>) -> Result<JobType, Invalid> {
    let sent = sent.ok_or_else(|| {
        Invalid::request("/type", "is missing; send the kind of work, such as \"email.send\"")
    })?;
    JobType::parse(&sent.string()?, "/type")
}

fn read_id(value: Value<'_>) -> Result<JobId, Invalid> {
    JobId::parse(&value.string()?, "/id").map_err(|mut refused| {
        refused.message += "; leave `id` out and the server makes one";
        refused
    })
}

/// The template of the job's type, in the requested version.
fn find_template<'t>(
    terms: Terms<'t>,
    job_type: &JobType,
    version: Option<&str>,
    identified: Identified<'_>,
) -> Result<Option<&'t Template>, Invalid> {
    let Some(templates) = terms.templates else { return Ok(None) };
    match templates.find(job_type.as_str(), version) {
        Ok(Some(template)) if !template.steps.is_empty() && matches!(identified, Identified::ByRequest) => {
            Err(Invalid::request("/type", "is the type of a task, which has steps; create it at /v1/tasks"))
        }
        Ok(found) => Ok(found),
        Err(known) => Err(Invalid::request(
            "/version",
            format!("is not a version of the template of {job_type}; its versions are {}", known.join(", ")),
        )),
    }
}

/// Computes the job's identity under the policy in force.
fn identify(
    policy: Arc<UniquePolicy>,
    input: &KeyInput<'_>,
    parts: &Parts<'_>,
    payload: &Payload<'_>,
) -> Result<Identity, Invalid> {
    let key = policy.key(input).map_err(|refused| {
        // Names that the policy itself lists are no secret.
        let is_named = policy.args_keys().iter().any(|name| refused.pointer == below("/args/0", name));
        let refused = if is_named { refused } else { payload.told(refused) };
        match parts.get(Attribute::Unique) {
            Some(sent) => unique::in_its_words(refused, sent),
            None => refused,
        }
    })?;
    Ok(Identity { policy, key })
}

fn check_meta_bytes(text: &str) -> Result<(), Invalid> {
    if text.len() <= META_BYTES_MAX {
        return Ok(());
    }
    Err(Invalid::too_large(
        "/meta",
        format!("is longer than {META_BYTES_MAX} bytes; send less, or put it into args"),
    ))
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

/// A version is a string, or a number taken by its digits. A value of any other type is the caller's own.
fn read_version(value: Value<'_>) -> Result<Option<String>, Invalid> {
    if value.is_string() {
        value.string().map(|text| Some(text.into_owned()))
    } else {
        Ok(value.is_number().then(|| value.text().to_owned()))
    }
}
