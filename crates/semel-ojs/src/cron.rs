//! Crons on the wire: registrations in the spellings of the specification, the suites and the SDKs, and answers.

use std::borrow::Cow;

use semel_core::body::Body;
use semel_core::canon::{Json, digest};
use semel_core::cron::{Change, Cron, Decision, Enabled, Overlap, Registration, Schedule, Tick};
use semel_core::enqueue::Offer;
use semel_core::error::Invalid;
use semel_core::ident::CronName;
use semel_core::time::Timestamp;

use crate::enqueue::{Enqueue, Terms, is_attribute, refuse_slip_of_job};
use crate::members::{Members, Value};
use crate::near::refuse_slip;
use crate::write::{Object, list, object, put_string};
use crate::{offered, sensitive};

/// The longest description, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 1_024;

/// Members about the cron itself. Members about its job that stand beside them are checked with the job.
const MEMBERS: [&str; 8] =
    ["name", "expression", "cron", "timezone", "overlap_policy", "enabled", "description", "job_template"];

/// A parsed registration.
#[derive(Debug)]
pub struct Register {
    /// The cron's name.
    pub name: CronName,
    /// The cron to register.
    pub registration: Registration,
    /// Whether the schedule was sent as `cron`.
    pub says_cron: bool,
}

impl Register {
    /// Reads a registration: `expression` or `cron`; `job_template`, or `type`, `args`, `options` and `meta`
    /// beside the rest. Without `enabled`, an existing cron stays enabled or disabled as it is.
    ///
    /// # Errors
    /// What is wrong, where, and what to send instead.
    pub fn parse(text: &str, terms: Terms<'_>) -> Result<Self, Invalid> {
        let example = r#"{"name": "nightly", "expression": "0 3 * * *", "type": "report.make", "args": []}"#;
        let members = Members::request(text, example)?;
        for (name, value) in members.iter("").filter(|(name, _)| !MEMBERS.contains(name) && !is_of_job(name))
        {
            refuse_slip(name, value, &MEMBERS)?;
            refuse_slip_of_job(name, value)?;
        }
        let name = match members.get("", "name") {
            Some(value) => CronName::parse(&value.string()?, "/name")?,
            None => return Err(Invalid::request("/name", "is missing; send a name for the cron")),
        };
        let Some(expression) = expression_of(&members)? else {
            return Err(Invalid::request(
                "/expression",
                "is missing; send a schedule, such as \"0 9 * * *\"",
            ));
        };
        let says_cron = members.get("", "expression").is_none();
        let (expression, timezone, schedule) = read_schedule(expression, members.get("", "timezone"))?;
        let (template, place) = match members.get("", "job_template") {
            Some(template) => {
                let template = template.members()?;
                refuse_beside(&members, &template)?;
                (job_text(&template, |name| name != "id"), "/job_template")
            }
            // Clients that call the schedule `cron` send the job's members beside it.
            None if !says_cron && !members.iter("").any(|(name, _)| is_of_job(name)) => {
                return Err(Invalid::request(
                    "/job_template",
                    "is missing; send the job to create at each tick, such as {\"type\": \"report.make\", \"args\": []}",
                ));
            }
            None => (job_text(&members, is_of_job), ""),
        };
        let (offer, _) =
            Enqueue::parse(&template, terms).map_err(|refused| refused.under(place))?.into_parts();
        refuse_hidden(&offer).map_err(|refused| refused.under(place))?;
        let description = members.get("", "description").map(|value| value.string()).transpose()?;
        if description.as_ref().is_some_and(|text| text.len() > DESCRIPTION_BYTES_MAX) {
            return Err(Invalid::request(
                "/description",
                format!("is longer than {DESCRIPTION_BYTES_MAX} bytes; shorten it"),
            ));
        }
        let enabled = members.get("", "enabled").map(|value| value.flag()).transpose()?;
        let registration = Registration {
            expression,
            timezone,
            schedule,
            overlap: members.get("", "overlap_policy").map(read_overlap).transpose()?.unwrap_or_default(),
            enabled: enabled.map_or_else(Enabled::default, Enabled::FromNow),
            description: description.map(|text| text.into_owned()),
            offer,
        };
        Ok(Self { name, registration, says_cron })
    }
}

/// Refuses the placeholder that a cron is shown with in place of a sensitive value: sent back, it would be every job's value.
fn refuse_hidden(offer: &Offer) -> Result<(), Invalid> {
    match Body::decode(&offer.body)
        .ok()
        .and_then(|body| sensitive::already_hidden(&body).map(ToOwned::to_owned))
    {
        Some(pointer) => Err(Invalid::request(
            &pointer,
            format!(
                "is {:?}, which is shown in place of a sensitive value; send the value itself",
                sensitive::HIDDEN
            ),
        )),
        None => Ok(()),
    }
}

/// Reads a change: any of `enabled`, `expression`, `timezone`, `overlap_policy`. `before` is the cron as it is.
///
/// # Errors
/// What is wrong, where, and what to send instead.
pub fn change(text: &str, before: &Cron) -> Result<Change, Invalid> {
    let members = Members::request(text, r#"{"enabled": false}"#)?;
    // Ignored but answered with success, it would be taken as done.
    if let Some(value) = members.besides("", &["enabled", "expression", "cron", "timezone", "overlap_policy"])
    {
        return Err(value.refuse(
            "cannot be changed here; send enabled, expression, timezone or overlap_policy, and register the cron again to change the rest",
        ));
    }
    let text = |value: Option<Value<'_>>| value.map(|value| value.string().map(Cow::into_owned)).transpose();
    let sent = expression_of(&members)?;
    let expression = text(sent)?;
    let timezone = text(members.get("", "timezone"))?;
    if expression.is_some() || timezone.is_some() {
        let schedule = Schedule::parse(
            expression.as_deref().unwrap_or(&before.expression),
            timezone.as_deref().unwrap_or(&before.timezone),
        );
        schedule.map_err(|refused| as_called(refused, sent))?;
    }
    Ok(Change {
        enabled: members.get("", "enabled").map(|value| value.flag()).transpose()?,
        expression,
        timezone,
        overlap: members.get("", "overlap_policy").map(read_overlap).transpose()?,
    })
}

/// The schedule's expression, under either of its names. An object called `cron` is the wrapper from answers.
fn expression_of<'m>(members: &'m Members<'_>) -> Result<Option<Value<'m>>, Invalid> {
    let other = members.get("", "cron");
    let Some(expression) = members.get("", "expression") else { return Ok(other) };
    match other {
        Some(other) if !other.is_object() && digest(&other.tree()?) != digest(&expression.tree()?) => {
            Err(other.refuse(format!(
                "differs from {}, which means the same; send only one of them",
                expression.pointer()
            )))
        }
        _ => Ok(Some(expression)),
    }
}

/// Moves the error about a schedule to the member that was sent.
fn as_called(mut refused: Invalid, sent: Option<Value<'_>>) -> Invalid {
    if let Some(sent) = sent
        && refused.pointer == "/expression"
    {
        refused.pointer = sent.pointer();
    }
    refused
}

/// Refuses job members beside a template, because no job would have them. A member that repeats the
/// template's, as in answers, is accepted.
fn refuse_beside(members: &Members<'_>, template: &Members<'_>) -> Result<(), Invalid> {
    for (name, value) in members.iter("").filter(|(name, _)| is_of_job(name)) {
        let is_said = match template.get("/job_template", name) {
            Some(same) => digest(&same.tree()?) == digest(&value.tree()?),
            None => match (name, value.tree()?) {
                ("options" | "meta", Json::Object(members)) => members.is_empty(),
                ("args" | "tags", Json::Array(items)) => items.is_empty(),
                _ => false,
            },
        };
        if !value.is_null() && !is_said {
            return Err(value.refuse(
                "does not match job_template, which describes the whole job; set it in job_template, and leave it out here",
            ));
        }
    }
    Ok(())
}

fn read_schedule(
    expression: Value<'_>,
    timezone: Option<Value<'_>>,
) -> Result<(String, String, Schedule), Invalid> {
    let sent = expression;
    let expression = sent.string()?.into_owned();
    let timezone = match timezone {
        Some(value) => value.string()?.into_owned(),
        None => "UTC".to_owned(),
    };
    let schedule =
        Schedule::parse(&expression, &timezone).map_err(|refused| as_called(refused, Some(sent)))?;
    Ok((expression, timezone, schedule))
}

fn read_overlap(value: Value<'_>) -> Result<Overlap, Invalid> {
    let name = value.string()?;
    // OJS's OpenAPI document uses this name.
    let name = if name == "cancel" { Overlap::CancelPrevious.name() } else { &*name };
    Overlap::from_name(name).ok_or_else(|| {
        let known = Overlap::ALL.map(Overlap::name).join(", ");
        value.refuse(format!("is not an overlap policy; use one of {known}"))
    })
}

/// Whether a member belongs to the job, in a registration without a template.
fn is_of_job(name: &str) -> bool {
    matches!(name, "type" | "args" | "options" | "meta" | "version" | "unique_key") || is_attribute(name)
}

/// The members that make the job, as the text of an enqueue request. Without an id, because each tick makes its own.
fn job_text(members: &Members<'_>, is_of_job: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    object(&mut text, |object| {
        let mut has_args = false;
        for (name, value) in members.iter("").filter(|(name, _)| is_of_job(name)) {
            has_args |= name == "args";
            object.raw(name, value.text());
        }
        if !has_args {
            object.raw("args", "[]");
        }
    });
    text
}

/// Writes a cron's members into an object.
pub fn put(name: &CronName, cron: &Cron, object: &mut Object<'_>) {
    put_schedule(name, cron, object);
    if let Some(job) = &cron.last_job {
        object.text("last_job_id", job);
    }
    put_job(cron, object);
}

/// Writes the schedule, the next tick and the count of ticks: nothing about jobs.
fn put_schedule(name: &CronName, cron: &Cron, object: &mut Object<'_>) {
    let time = |micros: i64| Timestamp::from_micros(micros);
    object.plain("name", name);
    object.text("expression", &cron.expression);
    object.text("timezone", &cron.timezone);
    object.plain("overlap_policy", cron.overlap.name());
    object.flag("enabled", cron.enabled);
    object.plain("status", if cron.enabled { "active" } else { "paused" });
    if let Some(description) = &cron.description {
        object.text("description", description);
    }
    object.time("next_run_at", cron.next_tick.map(time));
    object.time("last_run_at", cron.last_run_at.map(time));
    object.number("run_count", cron.run_count);
    object.number("skip_count", cron.skip_count);
    object.time("created_at", time(cron.created_at));
    object.time("updated_at", time(cron.updated_at));
}

/// Writes the job of its ticks, both in a wrapper and beside it.
fn put_job(cron: &Cron, object: &mut Object<'_>) {
    let Ok(offer) = cron.offer() else { return };
    let Ok(body) = Body::decode(&offer.body) else { return };
    let put_members = |object: &mut Object<'_>| {
        object.plain("type", &offer.job_type);
        object.raw("args", sensitive::hidden_args(&body).as_deref().unwrap_or(&body.args));
        if &*body.meta != "{}" {
            object.raw("meta", sensitive::hidden_meta(&body).as_deref().unwrap_or(&body.meta));
        }
        crate::write::object(object.member("options"), |object| offered::put_options(&offer, &body, object));
    };
    crate::write::object(object.member("job_template"), |object| {
        put_members(object);
        // Beside the cron's own members these would be taken for the cron's.
        offered::put_own(&body, object);
    });
    put_members(object);
}

/// As [`put`], with the schedule under both of its names.
fn put_both(name: &CronName, cron: &Cron, object: &mut Object<'_>) {
    object.text("cron", &cron.expression);
    put(name, cron, object);
}

/// The answer about one cron: wrapped under both names, and with its members beside the wrappers.
pub fn answer(name: &CronName, cron: &Cron) -> String {
    let mut out = String::with_capacity(2_048);
    object(&mut out, |outer| {
        object(outer.member("cron"), |object| put(name, cron, object));
        object(outer.member("cron_job"), |object| put_both(name, cron, object));
        // With its `cron` member here, the schedule would be taken for the wrapper.
        put(name, cron, outer);
    });
    out
}

/// The answer for a client that calls the schedule `cron` and looks for it there: the only wrapper is `cron_job`.
pub fn answer_by_cron(name: &CronName, cron: &Cron) -> String {
    let mut out = String::with_capacity(2_048);
    object(&mut out, |outer| {
        object(outer.member("cron_job"), |object| put_both(name, cron, object));
        put_both(name, cron, outer);
    });
    out
}

/// The answer for a caller who may act on the cron but not read jobs: its schedule only.
pub fn answer_curt(name: &CronName, cron: &Cron) -> String {
    let mut out = String::with_capacity(1_024);
    object(&mut out, |outer| {
        for wrapper in ["cron", "cron_job"] {
            object(outer.member(wrapper), |object| put_schedule(name, cron, object));
        }
        put_schedule(name, cron, outer);
    });
    out
}

/// The answer to a manual tick for a caller who may not read jobs: its result, and no job.
pub fn triggered_curt(name: &CronName, cron: &Cron, tick: &Tick) -> String {
    let mut out = String::with_capacity(512);
    object(&mut out, |outer| {
        object(outer.member("cron"), |object| put_schedule(name, cron, object));
        put_decision(tick, outer);
    });
    out
}

/// The answer to a manual tick.
pub fn triggered(name: &CronName, cron: &Cron, tick: &Tick) -> String {
    let mut out = String::with_capacity(1_024);
    object(&mut out, |outer| {
        object(outer.member("cron"), |object| put(name, cron, object));
        put_tick_members(tick, outer);
    });
    out
}

/// The members under which a page lists its crons, because clients look in different places.
const LISTS: [&str; 3] = ["crons", "cron_jobs", "items"];
/// How many times a page contains each of its crons.
pub const TIMES_LISTED: usize = LISTS.len();

/// One cron of a page.
pub fn listed(name: &CronName, cron: &Cron) -> String {
    let mut out = String::with_capacity(1_024);
    object(&mut out, |object| put_both(name, cron, object));
    out
}

/// A page of crons, each as [`listed`] writes it. Only the first page has the total, because later pages do
/// not know how many came before.
pub fn answer_list(crons: &[String], next: Option<&str>, is_first: bool) -> String {
    let bytes: usize = crons.iter().map(String::len).sum();
    let mut out = String::with_capacity(TIMES_LISTED * bytes + 1_024);
    object(&mut out, |outer| {
        for member in LISTS {
            list(outer.member(member), crons, |out, cron| out.push_str(cron));
        }
        outer.number("count", crons.len());
        object(outer.member("pagination"), |page| {
            if is_first {
                page.number("total", crons.len());
                page.flag("is_lower_bound", next.is_some());
            }
            page.flag("has_more", next.is_some());
            match next {
                Some(next) => page.text("next_cursor", next),
                None => page.raw("next_cursor", "null"),
            }
        });
    });
    out
}

/// The answer about a cron's last ticks, newest first.
pub fn history(name: &CronName, cron: &Cron) -> String {
    let mut out = String::with_capacity(200 * (cron.history.len() + 1));
    object(&mut out, |outer| {
        outer.plain("name", name);
        list(outer.member("history"), cron.history.iter().rev(), put_tick);
        outer.number("run_count", cron.run_count);
        outer.number("skip_count", cron.skip_count);
    });
    out
}

fn put_tick(out: &mut String, tick: &Tick) {
    object(out, |object| put_tick_members(tick, object));
}

fn put_decision(tick: &Tick, object: &mut Object<'_>) {
    object.time("scheduled_at", Timestamp::from_micros(tick.tick));
    object.time("decided_at", Timestamp::from_micros(tick.at));
    object.plain("outcome", tick.decision.name());
    object.flag("by_hand", tick.by_hand);
}

fn put_tick_members(tick: &Tick, object: &mut Object<'_>) {
    put_decision(tick, object);
    if let Some(job) = &tick.job {
        let member = if tick.decision == Decision::Fired { "job_id" } else { "existing_job_id" };
        put_string(object.member(member), job);
    }
}
