//! `/ojs/v1/webhooks/subscriptions`, and the courier that delivers events.

mod courier;
mod pace;
mod send;

use std::sync::Arc;
use std::time::Instant;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use http::StatusCode;
use semel_core::event::{Event, EventKind};
use semel_core::hex;
use semel_core::ident::JobId;
use semel_core::time::Timestamp;
use semel_core::webhook::{Delivery, Secret, Subscription, Wish};
use semel_engine::Engine;
use semel_engine::webhooks::{SUBSCRIPTIONS_MAX, Webhooks, Wording};
use semel_ojs::webhook::{self, SecretIs, Target};
use semel_ojs::write::{list as put_list, object};
use semel_ojs::{Code, Problem, event};
use semel_store::StoreError;

use crate::App;
use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::respond::{Answer, Answered, Refused};
use crate::tenancy::Scope;

pub use courier::Courier;
use send::{Sender, forbidden};

/// Event type of the request that tests a subscription.
const TEST: &str = "webhook.test";
/// Subscriptions of one tenant, at most.
const PER_TENANT_MAX: usize = 100;
const PAGE_DEFAULT: u64 = 50;
const PAGE_MAX: u64 = PER_TENANT_MAX as u64;

/// The operator's settings for deliveries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Whether deliveries may go to this machine and private networks, and without TLS. For tests, and for
    /// subscribers that the operator runs.
    pub allow_private: bool,
}

/// Writes events in OJS's form.
struct Ojs;

impl Wording for Ojs {
    fn name(&self, kind: EventKind) -> &'static str {
        event::name(kind)
    }

    fn event(&self, cursor: u64, at: Timestamp, told: &Event) -> String {
        let mut out = String::with_capacity(300);
        event::write(cursor, at, told, &mut out);
        out
    }
}

fn of(engine: &Engine) -> Webhooks {
    engine.webhooks(Arc::new(Ojs))
}

/// `POST /webhooks/subscriptions`: subscribes to events from now on. Only this answer contains the secret.
pub(crate) async fn create(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    caller.check_all_queues()?;
    let (parts, text) = extract::text(request, app.config.body_bytes_max).await?;
    let why = "webhook subscriptions; leave it out, and before you send the request again, check with GET \
               /ojs/v1/webhooks/subscriptions whether the subscription exists: if so, rotate-secret gives it a new secret";
    extract::no_idempotency(&parts, &app, &caller, why)?;
    let secret = random()?;
    let wish = webhook::create(&text, || secret)?;
    check(&wish, app.config.webhooks)?;
    let (tenant, after) = (app.engine.tenant().to_string(), app.engine.log_end().await?);
    let webhooks = of(&app.engine);
    let made = webhooks.change(move |known, now| {
        if known.iter().filter(|of| of.tenant == tenant).count() >= PER_TENANT_MAX {
            return Err(PER_TENANT_MAX);
        }
        if known.len() >= SUBSCRIPTIONS_MAX {
            return Err(SUBSCRIPTIONS_MAX);
        }
        let made = Subscription {
            id: mint(now).to_string(),
            tenant: tenant.clone(),
            wish: wish.clone(),
            created_at: now.as_micros(),
            after,
            epoch: 0,
        };
        known.push(made.clone());
        Ok(made)
    });
    let made = made.await?.map_err(as_many_as_may_be)?;
    Ok(Answer::status(StatusCode::CREATED, show_one(&made, SecretIs::Shown)))
}

/// The refusal at a limit. A tenant at its own limit can delete subscriptions; at the server's only the operator can.
fn as_many_as_may_be(limit: usize) -> Problem {
    let message = if limit == PER_TENANT_MAX {
        format!(
            "the tenant has reached its limit of {limit} webhook subscriptions; delete one that is not needed"
        )
    } else {
        format!(
            "the server has reached its limit of {limit} webhook subscriptions of all tenants together; ask its operator to have some deleted"
        )
    };
    Problem::new(Code::Conflict, message).with_details(|object| object.number("limit", limit))
}

/// `GET /webhooks/subscriptions`, oldest first: `limit`, `cursor`.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    caller.check_all_queues()?;
    let query = Parameters::of(request.uri())?;
    let limit = usize::try_from(query.number("limit", 1, PAGE_DEFAULT, PAGE_MAX)?).unwrap_or(1);
    let after = query.get("cursor").unwrap_or("").to_owned();
    let mut known = of(&app.engine).subscriptions().await?.0;
    known.retain(|of| of.tenant == app.engine.tenant().as_str() && of.id > after);
    known.sort_by(|one, other| one.id.cmp(&other.id));
    let has_more = known.len() > limit;
    known.truncate(limit);
    let mut out = String::new();
    object(&mut out, |outer| {
        put_list(outer.member("subscriptions"), &known, |out, of| {
            webhook::write(of, SecretIs::Withheld, out);
        });
        object(outer.member("pagination"), |page| {
            page.number("limit", limit);
            page.flag("has_more", has_more);
            match known.last().filter(|_| has_more) {
                Some(last) => page.plain("next_cursor", &last.id),
                None => page.raw("next_cursor", "null"),
            }
        });
    });
    Ok(Answer::ok(out))
}

/// `GET /webhooks/subscriptions/{id}`.
pub(crate) async fn show(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    caller.check_all_queues()?;
    let id = extract::name(id, WHAT)?;
    Ok(Answer::ok(show_one(&one(&app, &id).await?, SecretIs::Withheld)))
}

/// `PATCH /webhooks/subscriptions/{id}`: changes the members that are sent. A subscription made active again
/// gets the events from then on.
pub(crate) async fn change(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Answered {
    caller.check_all_queues()?;
    let id = extract::name(id, WHAT)?;
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    let rules = app.config.webhooks;
    let changed = edit(&app, id, move |wish| {
        webhook::change(&text, wish)?;
        check(wish, rules)
    });
    Ok(Answer::ok(show_one(&changed.await?, SecretIs::Withheld)))
}

/// `POST /webhooks/subscriptions/{id}/rotate-secret`: only this answer contains the new secret.
pub(crate) async fn rotate(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    caller.check_all_queues()?;
    let (id, secret) = (extract::name(id, WHAT)?, random()?);
    let changed = edit(&app, id, move |wish| {
        wish.secret = Secret(secret.clone());
        Ok(())
    });
    Ok(Answer::ok(show_one(&changed.await?, SecretIs::Shown)))
}

/// `POST /webhooks/subscriptions/{id}/test`: sends one `webhook.test` request to the subscriber, signed like every other,
/// at once instead of through the queue, and reports whether it arrived. Works for a paused subscription as well.
pub(crate) async fn test(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    caller.check_all_queues()?;
    let id = extract::name(id, WHAT)?;
    let of = one(&app, &id).await?;
    let now = app.engine.now().await?;
    let event = format!("{{\"type\":\"{TEST}\",\"time\":\"{now}\"}}");
    let delivery = Delivery::new(&of.id, TEST, event).map_err(StoreError::from)?;
    let began = Instant::now();
    let sent = match courier::letter(&of, &delivery, mint(now)) {
        Ok(letter) => Sender::of(app.config.webhooks).send(&letter).await,
        Err(failed) => Err(failed),
    };
    let mut out = String::new();
    object(&mut out, |object| {
        object.flag("delivered", sent.is_ok());
        object.number("took_ms", began.elapsed().as_millis());
        if let Err(failed) = &sent {
            let is_operators = app.engine.tenant().is_default();
            object.text("error", if is_operators { &failed.why } else { failed.for_tenants() });
        }
    });
    Ok(Answer::ok(out))
}

/// `DELETE /webhooks/subscriptions/{id}`: events not delivered yet are no longer delivered.
pub(crate) async fn remove(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    caller.check_all_queues()?;
    let id = extract::name(id, WHAT)?;
    let (tenant, wanted) = (app.engine.tenant().to_string(), id.clone());
    let webhooks = of(&app.engine);
    let removed = webhooks.change(move |known, _| {
        let before = known.len();
        known.retain(|of| of.tenant != tenant || of.id != wanted);
        known.len() < before
    });
    if !removed.await? {
        return Err(Problem::not_found(WHAT).naming(id).into());
    }
    let mut out = String::new();
    object(&mut out, |object| {
        object.flag("deleted", true);
        object.text("id", &id);
    });
    Ok(Answer::ok(out))
}

const WHAT: &str = "webhook subscription";

async fn one(app: &App, id: &str) -> Result<Subscription, Refused> {
    let known = of(&app.engine).subscriptions().await?.0;
    let found = known.into_iter().find(|of| of.id == id && of.tenant == app.engine.tenant().as_str());
    Ok(found.ok_or_else(|| Problem::not_found(WHAT).naming(id))?)
}

async fn edit(
    app: &App,
    id: String,
    mut change: impl FnMut(&mut Wish) -> Result<(), Problem> + Send + 'static,
) -> Result<Subscription, Refused> {
    let (tenant, now) = (app.engine.tenant().to_string(), app.engine.log_end().await?);
    let webhooks = of(&app.engine);
    let edited = webhooks.change(move |known, _| {
        let it = known.iter_mut().find(|of| of.id == id && of.tenant == tenant);
        let of = it.ok_or_else(|| Problem::not_found(WHAT).naming(&id))?;
        let mut wish = of.wish.clone();
        change(&mut wish)?;
        if wish.active && !of.wish.active {
            of.after = now;
        }
        of.wish = wish;
        Ok::<_, Problem>(of.clone())
    });
    Ok(edited.await??)
}

/// A new unique id.
fn mint(now: Timestamp) -> JobId {
    let entropy = semel_store::random::secret();
    let (row, rest) = entropy.split_at(8);
    let row = row.try_into().map_or(0, u64::from_le_bytes);
    let rest = rest.first_chunk().copied().map_or(0, u32::from_le_bytes);
    JobId::mint(now, row, rest)
}

fn show_one(of: &Subscription, secret: SecretIs) -> String {
    let mut out = String::new();
    object(&mut out, |outer| webhook::write(of, secret, outer.member("subscription")));
    out
}

/// Checks that deliveries may go to this URL, as far as the URL alone tells; each delivery checks the
/// addresses that its host resolves to.
fn check(wish: &Wish, rules: Rules) -> Result<(), Problem> {
    if rules.allow_private {
        return Ok(());
    }
    let target = Target::parse(&wish.url)?;
    let refuse = |what: &str| {
        let problem = Problem::new(Code::InvalidRequest, format!("/url {what}"));
        Err(problem.with_details(|object| object.plain("pointer", "/url")))
    };
    if !target.is_tls {
        return refuse("is not https; deliveries tell what happens to jobs, so send an https URL");
    }
    let is_local = target.host == "localhost" || target.host.ends_with(".localhost");
    match target.host.parse().ok().and_then(forbidden) {
        Some(why) => refuse(&format!("names an address that is {why}; send a public one")),
        None if is_local => refuse("names this machine; send a public host"),
        None => Ok(()),
    }
}

/// A new secret: 256 random bits as text.
fn random() -> Result<String, Problem> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|_| Problem::internal())?;
    Ok(format!("whsec_{}", hex::text(&bytes)))
}
