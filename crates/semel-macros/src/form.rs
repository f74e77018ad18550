//! The syntax of an attribute's words: `word`, `word = value`, `word("text", ..)` and `word(word, ..)`. A
//! word written otherwise is answered with an example, where `syn` would only name the token it expected.

use syn::meta::ParseNestedMeta;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Lit, LitStr, Result, Token, parenthesized, token};

/// `= value`, written like `example`.
pub fn value<T: Parse>(meta: &ParseNestedMeta<'_>, example: &str) -> Result<T> {
    like(meta.value(), example)?;
    like(meta.input.parse(), example)
}

/// `("a", "b")`, written like `example`.
pub fn texts(meta: &ParseNestedMeta<'_>, example: &str) -> Result<Vec<LitStr>> {
    let content = like(in_parentheses(meta.input), example)?;
    let texts = content.0.parse_terminated(<LitStr as Parse>::parse, Token![,]);
    Ok(like(texts, example)?.into_iter().collect())
}

/// `(word, ..)`, written like `example`; each is read by `one`.
pub fn words(
    meta: &ParseNestedMeta<'_>,
    example: &str,
    mut one: impl FnMut(ParseNestedMeta<'_>) -> Result<()>,
) -> Result<()> {
    let ahead = meta.input.fork();
    are_words(&like(in_parentheses(&ahead), example)?.0, example)?;
    meta.parse_nested_meta(|meta| {
        let input = meta.input;
        one(meta)?;
        ends(input, example)
    })
}

/// Refuses a text or number where a word must stand.
pub fn are_words(input: ParseStream<'_>, example: &str) -> Result<()> {
    if input.peek(Lit) { Err(input.error(advice(example))) } else { Ok(()) }
}

/// Checks that a word ends here, with a comma or the end of the list, and that a comma is followed by another
/// word.
pub fn ends(input: ParseStream<'_>, example: &str) -> Result<()> {
    if input.is_empty() {
        return Ok(());
    }
    if !input.peek(Token![,]) {
        return Err(input.error(
            "unexpected here: the word before it is complete; remove this, or put a comma before it",
        ));
    }
    let ahead = input.fork();
    ahead.parse::<Token![,]>()?;
    are_words(&ahead, example)
}

/// The content of parentheses. A type of its own, because it comes from a macro that returns early.
struct Content<'a>(syn::parse::ParseBuffer<'a>);

fn in_parentheses<'a>(input: ParseStream<'a>) -> Result<Content<'a>> {
    if !input.peek(token::Paren) {
        return Err(input.error(""));
    }
    let content;
    parenthesized!(content in input);
    Ok(Content(content))
}

fn like<T>(read: Result<T>, example: &str) -> Result<T> {
    read.map_err(|error| Error::new(error.span(), advice(example)))
}

fn advice(example: &str) -> String {
    format!("write it like {example}")
}
