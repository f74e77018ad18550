//! `#[job(...)]` on a type.

use proc_macro2::TokenStream;
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::parse::Parse;
use syn::{Attribute, LitFloat, LitInt, LitStr, Result, Token};

use crate::member::Members;
use crate::{check, unique};

/// What can be said, for messages.
const KNOWN: &str = "type, queue, priority, max_attempts, timeout, lease, expires, retry(...), tags(...), sensitive_meta(...) and unique(...)";

/// What a type's attributes say.
pub struct Said {
    /// The job's type.
    pub job_type: Option<LitStr>,
    /// Calls that put the defaults together.
    pub calls: Vec<TokenStream>,
    /// What has been said.
    once: Once,
}

/// Reads a type's attributes.
pub fn read(attributes: &[Attribute], members: &Members) -> Result<Said> {
    let mut said = Said { job_type: None, calls: Vec::new(), once: Once::default() };
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("job")) {
        attribute.parse_nested_meta(|meta| one(&meta, &mut said, members))?;
    }
    Ok(said)
}

fn one(meta: &ParseNestedMeta<'_>, said: &mut Said, members: &Members) -> Result<()> {
    let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
    said.once.say(meta, &name)?;
    let call = match name.as_str() {
        "type" => {
            let text: LitStr = value(meta)?;
            check::job_type(&text)?;
            said.job_type = Some(text);
            return Ok(());
        }
        "queue" => {
            let text: LitStr = value(meta)?;
            check::queue(&text)?;
            quote!(.queue(#text))
        }
        "priority" => {
            let minus: Option<Token![-]> = {
                let input = meta.value()?;
                input.parse()?
            };
            let number: LitInt = meta.input.parse()?;
            let amount: i16 = number.base10_parse()?;
            if amount > 100 {
                return Err(syn::Error::new_spanned(&number, "a priority is -100 to 100; higher runs first"));
            }
            let amount = i8::try_from(if minus.is_some() { -amount } else { amount }).unwrap_or_default();
            quote!(.priority(#amount))
        }
        "max_attempts" => {
            let number: LitInt = value(meta)?;
            let count: u32 = number.base10_parse()?;
            if count == 0 || count > 10_000 {
                return Err(syn::Error::new_spanned(&number, "max_attempts is 1 to 10000; 1 means no retry"));
            }
            quote!(.max_attempts(#count))
        }
        "timeout" | "lease" => {
            let millis = check::millis_within(&value(meta)?, check::TIMEOUT_DAYS_MAX)?;
            let ident = meta.path.get_ident();
            quote!(.#ident(::core::time::Duration::from_millis(#millis)))
        }
        "expires" => {
            let millis = check::millis_within(&value(meta)?, check::PERIOD_DAYS_MAX)?;
            quote!(.expires_after(::core::time::Duration::from_millis(#millis)))
        }
        "retry" => {
            let calls = retry(meta)?;
            quote!(.retry(::semel::Retry::new() #(#calls)*))
        }
        "tags" => {
            let tags = texts(meta)?;
            check::number(&tags)?;
            quote!(.tags([#(#tags),*]))
        }
        "sensitive_meta" => {
            let members = texts(meta)?;
            quote!(.sensitive_meta([#(#members),*]))
        }
        "unique" => {
            let unique = unique::read(meta, members)?;
            quote!(.unique(#unique))
        }
        "sensitive" => return Err(meta.error("`sensitive` marks a field: write #[job(sensitive)] above it")),
        _ => return Err(meta.error(format!("not a part of a job's description; use {KNOWN}"))),
    };
    said.calls.push(call);
    Ok(())
}

fn retry(meta: &ParseNestedMeta<'_>) -> Result<Vec<TokenStream>> {
    let (mut calls, mut once) = (Vec::new(), Once::default());
    meta.parse_nested_meta(|meta| {
        let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        once.say(&meta, &name)?;
        calls.push(match name.as_str() {
            "initial" | "max" => {
                let millis = check::millis_within(&value(&meta)?, check::INTERVAL_DAYS_MAX)?;
                let ident = meta.path.get_ident();
                quote!(.#ident(::core::time::Duration::from_millis(#millis)))
            }
            "coefficient" => {
                let number: LitFloat = value(&meta)?;
                check::coefficient(&number)?;
                quote!(.coefficient(#number))
            }
            "backoff" => {
                let text: LitStr = value(&meta)?;
                check::one_of(&text, &["exponential", "linear", "constant", "polynomial"])?;
                let variant = variant(&text);
                quote!(.backoff(::semel::Backoff::#variant))
            }
            "no_jitter" => quote!(.no_jitter()),
            "dead_letter" => quote!(.dead_letter()),
            "never" => {
                let errors = texts(&meta)?;
                check::names(&errors)?;
                quote!(.never([#(#errors),*]))
            }
            _ => {
                return Err(meta.error(
                    "not a part of a retry policy; use initial = \"1s\", max = \"5m\", coefficient = 2.0, backoff = \"linear\", no_jitter, dead_letter, never(\"ErrorType\")",
                ));
            }
        });
        Ok(())
    })?;
    Ok(calls)
}

/// The words that have been said: of two that are the same the later would take the place of the earlier, and nobody would see it.
#[derive(Default)]
pub struct Once(Vec<String>);

impl Once {
    /// Refuses a word that has been said. One that nobody knows is refused at its first time anyway.
    pub fn say(&mut self, meta: &ParseNestedMeta<'_>, word: &str) -> Result<()> {
        if self.0.iter().any(|said| said == word) {
            return Err(meta.error(format!("`{word}` is said twice; say it once, with all that holds")));
        }
        self.0.push(word.to_owned());
        Ok(())
    }
}

/// A name on the wire as the variant it stands for: `replace_except_schedule` is `ReplaceExceptSchedule`.
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

/// `= value`.
pub fn value<T: Parse>(meta: &ParseNestedMeta<'_>) -> Result<T> {
    meta.value()?.parse()
}

/// `("a", "b")`.
pub fn texts(meta: &ParseNestedMeta<'_>) -> Result<Vec<LitStr>> {
    let content;
    syn::parenthesized!(content in meta.input);
    let texts = content.parse_terminated(<LitStr as Parse>::parse, Token![,])?;
    Ok(texts.into_iter().collect())
}
