//! Parses `#[job(...)]` on a type.

use proc_macro2::TokenStream;
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, LitFloat, LitInt, LitStr, Meta, Result, Token};

use crate::form::{texts, value, words};
use crate::member::Members;
use crate::{check, form, unique};

/// The words of the attribute, for messages.
const KNOWN: &str = "type, queue, priority, max_attempts, timeout, lease, expires, retry(...), rate_limit(...), tags(...), sensitive_meta(...) and unique(...)";

/// The shortest useful attribute, for messages.
const EXAMPLE: &str = "#[job(type = \"email.send\", queue = \"mail\")]";

/// An example of a rate limit, for messages.
const RATE_LIMIT_EXAMPLE: &str = "rate_limit(key = \"smtp\", concurrency = 5, rate = 100, period = \"1m\")";

/// What a type's attributes say.
pub struct Said {
    /// The job's type.
    pub job_type: Option<LitStr>,
    /// Method calls that build the defaults.
    pub calls: Vec<TokenStream>,
    /// The words seen so far.
    once: Once,
}

/// Parses a type's attributes.
pub fn read(attributes: &[Attribute], members: &Members) -> Result<Said> {
    let mut said = Said { job_type: None, calls: Vec::new(), once: Once::default() };
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("job")) {
        if let Meta::List(list) = &attribute.meta {
            list.parse_args_with(|input: ParseStream<'_>| {
                form::are_words(input, EXAMPLE)?;
                input.parse::<TokenStream>().map(drop)
            })?;
        }
        attribute.parse_nested_meta(|meta| {
            one(&meta, &mut said, members)?;
            form::ends(meta.input, EXAMPLE)
        })?;
    }
    Ok(said)
}

fn one(meta: &ParseNestedMeta<'_>, said: &mut Said, members: &Members) -> Result<()> {
    let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
    said.once.say(meta, &name)?;
    let call = match name.as_str() {
        "type" => {
            let text: LitStr = value(meta, "type = \"email.send\"")?;
            check::job_type(&text)?;
            said.job_type = Some(text);
            return Ok(());
        }
        "queue" => {
            let text: LitStr = value(meta, "queue = \"mail\"")?;
            check::queue(&text)?;
            quote!(.queue(#text))
        }
        "priority" => {
            let Whole { is_negative, number } = value(meta, "priority = 10")?;
            match number.base10_parse::<i8>() {
                Ok(amount @ ..=100) => {
                    let amount = if is_negative { -amount } else { amount };
                    quote!(.priority(#amount))
                }
                _ => {
                    return Err(syn::Error::new_spanned(
                        &number,
                        "a priority must be from -100 to 100; higher runs first",
                    ));
                }
            }
        }
        "max_attempts" => {
            let number: LitInt = value(meta, "max_attempts = 5")?;
            match number.base10_parse::<u32>() {
                Ok(count @ 1..=10_000) => quote!(.max_attempts(#count)),
                _ => {
                    return Err(syn::Error::new_spanned(
                        &number,
                        "max_attempts must be from 1 to 10000; 1 means no retry",
                    ));
                }
            }
        }
        "timeout" | "lease" => {
            let millis =
                check::millis_within(&value(meta, &format!("{name} = \"30s\""))?, check::TIMEOUT_DAYS_MAX)?;
            let ident = meta.path.get_ident();
            quote!(.#ident(::core::time::Duration::from_millis(#millis)))
        }
        "expires" => {
            let millis = check::millis_within(&value(meta, "expires = \"1d\"")?, check::PERIOD_DAYS_MAX)?;
            quote!(.expires_after(::core::time::Duration::from_millis(#millis)))
        }
        "retry" => {
            let calls = retry(meta)?;
            quote!(.retry(::semel::Retry::new() #(#calls)*))
        }
        "rate_limit" => {
            let limit = rate_limit(meta)?;
            quote!(.rate_limit(#limit))
        }
        "tags" => {
            let tags = texts(meta, "tags(\"billing\", \"slow\")")?;
            check::number(&tags)?;
            quote!(.tags([#(#tags),*]))
        }
        "sensitive_meta" => {
            let members = texts(meta, "sensitive_meta(\"email\")")?;
            quote!(.sensitive_meta([#(#members),*]))
        }
        "unique" => {
            let unique = unique::read(meta, members)?;
            quote!(.unique(#unique))
        }
        "sensitive" => return Err(meta.error("`sensitive` marks a field: write #[job(sensitive)] above it")),
        _ => return Err(meta.error(format!("not a job option; use {KNOWN}"))),
    };
    said.calls.push(call);
    Ok(())
}

fn retry(meta: &ParseNestedMeta<'_>) -> Result<Vec<TokenStream>> {
    let (mut calls, mut once) = (Vec::new(), Once::default());
    words(meta, "retry(initial = \"1s\", max = \"5m\")", |meta| {
        let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        once.say(&meta, &name)?;
        calls.push(match name.as_str() {
            "initial" | "max" => {
                let millis = check::millis_within(&value(&meta, &format!("{name} = \"30s\""))?, check::INTERVAL_DAYS_MAX)?;
                let ident = meta.path.get_ident();
                quote!(.#ident(::core::time::Duration::from_millis(#millis)))
            }
            "coefficient" => {
                let number: LitFloat = value(&meta, "coefficient = 2.0")?;
                check::coefficient(&number)?;
                quote!(.coefficient(#number))
            }
            "backoff" => {
                let text: LitStr = value(&meta, "backoff = \"linear\"")?;
                check::one_of(&text, &["exponential", "linear", "constant", "polynomial"])?;
                let variant = variant(&text);
                quote!(.backoff(::semel::Backoff::#variant))
            }
            "no_jitter" => quote!(.no_jitter()),
            "dead_letter" => quote!(.dead_letter()),
            "never" => {
                let errors = texts(&meta, "never(\"Declined\")")?;
                check::names(&errors)?;
                quote!(.never([#(#errors),*]))
            }
            _ => {
                return Err(meta.error(
                    "not part of a retry policy; use initial = \"1s\", max = \"5m\", coefficient = 2.0, backoff = \"linear\", no_jitter, dead_letter, never(\"ErrorType\")",
                ));
            }
        });
        Ok(())
    })?;
    Ok(calls)
}

fn rate_limit(meta: &ParseNestedMeta<'_>) -> Result<TokenStream> {
    let mut once = Once::default();
    let (mut key, mut concurrency, mut rate, mut period) = (None, None, None, None);
    words(meta, RATE_LIMIT_EXAMPLE, |meta| {
        let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        once.say(&meta, &name)?;
        match name.as_str() {
            "key" => {
                let text = value(&meta, "key = \"smtp\"")?;
                check::limit_key(&text)?;
                key = Some(text);
            }
            "concurrency" => {
                let number = value(&meta, "concurrency = 5")?;
                concurrency = Some(check::count(&number, check::CONCURRENCY_MAX)?);
            }
            "rate" => {
                let number = value(&meta, "rate = 100")?;
                rate = Some(check::count(&number, check::RATE_MAX)?);
            }
            "period" => {
                let text: LitStr = value(&meta, "period = \"1m\"")?;
                period = Some((check::millis_within(&text, check::RATE_PERIOD_DAYS_MAX)?, text));
            }
            _ => {
                return Err(meta.error(
                    "not part of a rate limit; use key = \"smtp\", concurrency = 5, rate = 100 and period = \"1m\"",
                ));
            }
        }
        Ok(())
    })?;
    if concurrency.is_none() && rate.is_none() && period.is_none() {
        return Err(meta.error(format!("this limits nothing; write it like {RATE_LIMIT_EXAMPLE}")));
    }
    let new = match key {
        Some(key) => quote!(::semel::RateLimit::new(#key)),
        None => quote!(::semel::RateLimit::of_queue()),
    };
    let concurrency = concurrency.map(|jobs| quote!(.concurrency(#jobs)));
    let rate = match (rate, period) {
        (None, None) => None,
        (None, Some((_, text))) => {
            return Err(syn::Error::new_spanned(
                text,
                "a period needs a rate: add how many jobs may start in it, like rate = 100",
            ));
        }
        (Some(starts), Some((millis, _))) => {
            Some(quote!(.rate(#starts, ::core::time::Duration::from_millis(#millis))))
        }
        (Some(starts), None) => Some(quote!(.starts(#starts))),
    };
    Ok(quote!(#new #concurrency #rate))
}

/// The words seen so far. Of two equal ones the later would silently replace the earlier.
#[derive(Default)]
pub struct Once(Vec<String>);

impl Once {
    /// Refuses a word that was seen before. An unknown word is refused at its first occurrence anyway.
    pub fn say(&mut self, meta: &ParseNestedMeta<'_>, word: &str) -> Result<()> {
        if self.0.iter().any(|said| said == word) {
            return Err(
                meta.error(format!("`{word}` is given twice; give it once, with everything that applies"))
            );
        }
        self.0.push(word.to_owned());
        Ok(())
    }
}

/// The variant that a wire name stands for: `replace_except_schedule` is `ReplaceExceptSchedule`.
pub fn variant(text: &LitStr) -> syn::Ident {
    let name: String = text
        .value()
        .split('_')
        .map(|word| {
            let mut letters = word.chars();
            letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
        })
        .collect();
    syn::Ident::new(&name, text.span())
}

/// An integer with its sign.
struct Whole {
    is_negative: bool,
    number: LitInt,
}

impl Parse for Whole {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let minus: Option<Token![-]> = input.parse()?;
        Ok(Self { is_negative: minus.is_some(), number: input.parse()? })
    }
}
