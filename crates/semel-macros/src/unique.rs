//! Parses `unique(...)`: which jobs are the same, for how long, and what happens to a duplicate.

use proc_macro2::TokenStream;
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Error, LitStr, Result, Token};

use crate::attribute::{Once, variant};
use crate::check;
use crate::form::{texts, value, words};
use crate::hold::{Hold, LIVE, STATES};
use crate::member::Members;

const KNOWN: &str = "args, args(\"member\", ..), queue, meta(\"member\", ..), meta_except(\"member\", ..), period = \"1h\", period_from, live_and(\"completed\", ..) or states(\"active\", ..), while_active, when_active, on_conflict, on_mismatch, disclose, strict or content";

/// The parts of the builder expression: it begins with the identity, and the other calls follow.
#[derive(Default)]
struct Parts {
    identity: Option<TokenStream>,
    calls: Vec<TokenStream>,
    hold: Hold,
    once: Once,
    /// Whether it was said which meta members count.
    has_meta: bool,
}

/// Parses the attribute into an expression of type `semel::Unique`.
pub fn read(meta: &ParseNestedMeta<'_>, members: &Members) -> Result<TokenStream> {
    let mut parts = Parts::default();
    // Without parentheses it means the job's type.
    if !meta.input.is_empty() && !meta.input.peek(Token![,]) {
        words(meta, "unique(args(\"user_id\"), on_conflict = \"ignore\")", |meta| {
            one(&meta, &mut parts, members)
        })?;
    }
    parts.hold.check()?;
    let identity = parts.identity.unwrap_or_else(|| quote!(::semel::Unique::by_type()));
    let calls = parts.calls;
    Ok(quote!(#identity #(#calls)*))
}

fn one(meta: &ParseNestedMeta<'_>, parts: &mut Parts, members: &Members) -> Result<()> {
    let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
    let choice = |words: &[&str]| -> Result<(LitStr, syn::Ident)> {
        let example = words.last().copied().unwrap_or_default();
        let text: LitStr = value(meta, &format!("{name} = \"{example}\""))?;
        check::one_of(&text, words)?;
        let variant = variant(&text);
        Ok((text, variant))
    };
    match name.as_str() {
        // Checked below: any two of them contradict each other.
        "args" | "strict" | "content" | "states" | "live_and" => {}
        "meta" | "meta_except" if parts.has_meta => {
            return Err(meta.error(
                "the meta members that count are given twice; write either meta(\"member\", ..) or meta_except(\"member\", ..)",
            ));
        }
        _ => parts.once.say(meta, &name)?,
    }
    let call = match name.as_str() {
        "args" if meta.input.peek(syn::token::Paren) => {
            let names = named(meta, "args(\"user_id\")")?;
            known(&names, members)?;
            return identify(meta, parts, quote!(::semel::Unique::by_args([#(#names),*])));
        }
        "args" => return identify(meta, parts, quote!(::semel::Unique::by_all_args())),
        "strict" => return identify(meta, parts, quote!(::semel::Unique::strict())),
        "content" => return identify(meta, parts, quote!(::semel::Unique::content())),
        "queue" => quote!(.and_queue()),
        "meta" => {
            let names = named(meta, "meta(\"tenant\")")?;
            names.iter().try_for_each(check::counts)?;
            parts.has_meta = true;
            quote!(.and_meta([#(#names),*]))
        }
        "meta_except" => {
            let names = texts(meta, "meta_except(\"trace\")")?;
            check::names(&names)?;
            parts.has_meta = true;
            quote!(.and_meta_except([#(#names),*]))
        }
        "period" => {
            let text: LitStr = value(meta, "period = \"1h\"")?;
            let millis = check::millis_within(&text, check::PERIOD_DAYS_MAX)?;
            parts.hold.period = Some(text);
            quote!(.within(::core::time::Duration::from_millis(#millis)))
        }
        "period_from" => {
            let (text, choice) = choice(&["created", "finished", "last_duplicate"])?;
            parts.hold.period_from = Some(text);
            quote!(.period_from(::semel::PeriodFrom::#choice))
        }
        "states" | "live_and" if parts.hold.states.is_some() => {
            return Err(meta.error(
                "the states that block are given twice; write either live_and(\"completed\") or states(\"available\", \"active\")",
            ));
        }
        "live_and" => {
            let mut names = named(meta, "live_and(\"completed\")")?;
            names.iter().try_for_each(|name| check::one_of(name, &STATES[LIVE..]))?;
            let states = names.iter().map(variant);
            let call = quote!(.live_and([#(::semel::JobState::#states),*]));
            let live = STATES[..LIVE].iter().map(|name| LitStr::new(name, meta.path.span()));
            names.extend(live);
            parts.hold.states = Some(names);
            call
        }
        "states" => {
            let names = named(meta, "states(\"available\", \"active\")")?;
            names.iter().try_for_each(|name| check::one_of(name, &STATES))?;
            let states = names.iter().map(variant);
            let call = quote!(.states([#(::semel::JobState::#states),*]));
            parts.hold.states = Some(names);
            call
        }
        "while_active" => quote!(.while_active()),
        "when_active" => {
            let (_, choice) = choice(&["now", "wait"])?;
            quote!(.when_active(::semel::WhenActive::#choice))
        }
        "on_conflict" => {
            let (text, choice) =
                choice(&["reject", "ignore", "replace", "replace_except_schedule", "follow_up"])?;
            parts.hold.on_conflict = Some(text);
            quote!(.on_conflict(::semel::OnConflict::#choice))
        }
        "on_mismatch" => {
            let (_, choice) = choice(&["accept", "reject"])?;
            quote!(.on_mismatch(::semel::OnMismatch::#choice))
        }
        "disclose" => {
            let (text, choice) = choice(&["always", "never"])?;
            parts.hold.disclose = Some(text);
            quote!(.disclose(::semel::Disclose::#choice))
        }
        "key" => {
            return Err(meta.error(
                "a key is given when the job is enqueued: semel.enqueue(job).key(\"evt_1\"); to take it from a field, write unique(args(\"event_id\"))",
            ));
        }
        _ => return Err(meta.error(format!("not part of a unique policy; use {KNOWN}"))),
    };
    parts.calls.push(call);
    Ok(())
}

fn identify(meta: &ParseNestedMeta<'_>, parts: &mut Parts, identity: TokenStream) -> Result<()> {
    if parts.identity.is_some() {
        return Err(meta.error("the identity is given twice; write only one of args, strict and content"));
    }
    parts.identity = Some(identity);
    parts.hold.identity = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
    Ok(())
}

/// `("a", "b")`, at least one.
fn named(meta: &ParseNestedMeta<'_>, example: &str) -> Result<Vec<LitStr>> {
    let names = texts(meta, example)?;
    if names.is_empty() {
        return Err(Error::new_spanned(
            &meta.path,
            "nothing is named here; name at least one, or leave this out",
        ));
    }
    check::names(&names)?;
    Ok(names)
}

/// Refuses members that would fail later: an unknown one at the first enqueue, one that serde sometimes
/// leaves out at some later one.
fn known(names: &[LitStr], members: &Members) -> Result<()> {
    for name in names {
        if members.optional.contains(&name.value()) {
            return Err(Error::new_spanned(
                name,
                format!(
                    "serde leaves \"{}\" out of some jobs (`skip_serializing_if`), and those would be refused; remove `skip_serializing_if`, because null counts like any other value",
                    name.value()
                ),
            ));
        }
    }
    if !members.are_all {
        return Ok(());
    }
    for name in names {
        if !members.names.contains(&name.value()) {
            return Err(Error::new_spanned(
                name,
                format!(
                    "the job's JSON has no member \"{}\"; its members are {}",
                    name.value(),
                    members.names.join(", ")
                ),
            ));
        }
    }
    Ok(())
}
