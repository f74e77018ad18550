//! The members that a type's fields become in JSON, according to serde's attributes.

use syn::{Attribute, Data, DeriveInput, Error, Field, Fields, LitStr, Result};

/// The members of a job's JSON object.
pub struct Members {
    /// Their names on the wire.
    pub names: Vec<String>,
    /// Those marked `#[job(sensitive)]`.
    pub sensitive: Vec<String>,
    /// Those that serde leaves out of some jobs.
    pub optional: Vec<String>,
    /// Whether these are all: a flattened field, an enum or serde's own conversion may add others.
    pub are_all: bool,
}

/// Reads a type's fields.
pub fn read(input: &DeriveInput) -> Result<Members> {
    let mut members =
        Members { names: Vec::new(), sensitive: Vec::new(), optional: Vec::new(), are_all: true };
    let container = Serde::read(&input.attrs)?;
    match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => {
                members.are_all = !container.is_other && !container.is_tagged;
                for field in &fields.named {
                    add(&mut members, field, &container)?;
                }
            }
            Fields::Unit => {}
            Fields::Unnamed(fields) => {
                return Err(Error::new_spanned(
                    fields,
                    "a job's args are one JSON object: give the fields names, like `struct SendEmail { to: String }`",
                ));
            }
        },
        Data::Enum(data) => {
            members.are_all = false;
            for variant in &data.variants {
                if let Some(said) = variant.attrs.iter().find(|said| said.path().is_ident("job")) {
                    return Err(Error::new_spanned(
                        said,
                        "#[job(...)] cannot be used on a variant; to hide its contents, move its fields into a struct of their own and mark the field that holds that struct",
                    ));
                }
            }
            for field in data.variants.iter().flat_map(|variant| &variant.fields) {
                if is_sensitive(field)? {
                    return Err(Error::new_spanned(
                        field,
                        "`sensitive` marks a field of a struct; move the variant's fields into a struct of their own",
                    ));
                }
            }
        }
        Data::Union(data) => {
            return Err(Error::new_spanned(data.union_token, "a union cannot be a job; use a struct"));
        }
    }
    Ok(members)
}

fn add(members: &mut Members, field: &Field, container: &Serde) -> Result<()> {
    let Some(ident) = &field.ident else { return Ok(()) };
    let serde = Serde::read(&field.attrs)?;
    let is_sensitive = is_sensitive(field)?;
    if is_sensitive && container.is_other {
        return Err(Error::new_spanned(
            field,
            "serde writes this type as another one (`into` or `transparent`), so the field has no member of its own to hide; name the place with Envelope::sensitive(\"/args/0/...\") when the job is enqueued, or let serde write the type itself",
        ));
    }
    if serde.is_skipped {
        if is_sensitive {
            return Err(Error::new_spanned(
                field,
                "serde skips this field, so there is nothing to hide; remove one of the two attributes",
            ));
        }
        return Ok(());
    }
    if serde.is_flat {
        if is_sensitive {
            return Err(Error::new_spanned(
                field,
                "a flattened field has no member of its own to hide; remove `flatten`, so that it is nested as one member",
            ));
        }
        members.are_all = false;
        return Ok(());
    }
    let plain = ident.to_string();
    let plain = plain.strip_prefix("r#").unwrap_or(&plain).to_owned();
    let name = match (serde.rename, &container.rename_all) {
        (Some(name), _) => name,
        (None, Some(rule)) => renamed(&plain, rule),
        (None, None) => plain,
    };
    if is_sensitive {
        members.sensitive.push(name.clone());
    }
    // If serde writes another type instead, its attributes on these fields have no effect.
    if serde.is_optional && !container.is_other {
        members.optional.push(name.clone());
    }
    members.names.push(name);
    Ok(())
}

fn is_sensitive(field: &Field) -> Result<bool> {
    let mut found = false;
    for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("job")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("sensitive") {
                found = true;
                Ok(())
            } else {
                Err(meta.error("a field can only be marked `sensitive`: #[job(sensitive)]"))
            }
        })?;
    }
    Ok(found)
}

/// What serde's attributes say about names.
#[derive(Default)]
struct Serde {
    rename: Option<String>,
    rename_all: Option<String>,
    is_flat: bool,
    /// The field is never written.
    is_skipped: bool,
    /// The field is sometimes left out.
    is_optional: bool,
    /// Another type is written instead of this one.
    is_other: bool,
    /// A member that names the type stands beside the fields'.
    is_tagged: bool,
}

impl Serde {
    fn read(attributes: &[Attribute]) -> Result<Self> {
        let mut serde = Self::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("rename") {
                    serde.rename = written(&meta)?.or(serde.rename.take());
                } else if meta.path.is_ident("rename_all") {
                    serde.rename_all = written(&meta)?.or(serde.rename_all.take());
                } else {
                    serde.is_flat |= meta.path.is_ident("flatten");
                    let is = |names: &[&str]| names.iter().any(|name| meta.path.is_ident(name));
                    serde.is_skipped |= is(&["skip", "skip_serializing"]);
                    serde.is_optional |= is(&["skip_serializing_if"]);
                    serde.is_other |= is(&["into", "transparent"]);
                    serde.is_tagged |= is(&["tag"]);
                    skip(&meta)?;
                }
                Ok(())
            })?;
        }
        Ok(serde)
    }
}

/// `= "name"` or `(serialize = "name", ..)`.
fn written(meta: &syn::meta::ParseNestedMeta<'_>) -> Result<Option<String>> {
    if meta.input.peek(syn::Token![=]) {
        return Ok(Some(meta.value()?.parse::<LitStr>()?.value()));
    }
    let mut name = None;
    meta.parse_nested_meta(|inner| {
        let value: LitStr = inner.value()?.parse()?;
        if inner.path.is_ident("serialize") {
            name = Some(value.value());
        }
        Ok(())
    })?;
    Ok(name)
}

/// Skips the arguments of an attribute that does not matter here.
fn skip(meta: &syn::meta::ParseNestedMeta<'_>) -> Result<()> {
    if meta.input.peek(syn::Token![=]) {
        meta.value()?.parse::<syn::Expr>()?;
    } else if meta.input.peek(syn::token::Paren) {
        meta.parse_nested_meta(|inner| skip(&inner))?;
    }
    Ok(())
}

/// A field's name under one of serde's rename rules, which change ASCII letters only.
fn renamed(name: &str, rule: &str) -> String {
    let words = || name.split('_').filter(|word| !word.is_empty());
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters.next().map_or_else(String::new, |first| {
            std::iter::once(first.to_ascii_uppercase()).chain(letters).collect()
        })
    };
    let pascal = || words().map(capital).collect::<String>();
    match rule {
        "UPPERCASE" | "SCREAMING_SNAKE_CASE" => name.to_ascii_uppercase(),
        "PascalCase" => pascal(),
        "camelCase" => {
            let pascal = pascal();
            let mut letters = pascal.chars();
            letters.next().map_or_else(String::new, |first| {
                std::iter::once(first.to_ascii_lowercase()).chain(letters).collect()
            })
        }
        "kebab-case" => name.replace('_', "-"),
        "SCREAMING-KEBAB-CASE" => name.to_ascii_uppercase().replace('_', "-"),
        _ => name.to_owned(),
    }
}
