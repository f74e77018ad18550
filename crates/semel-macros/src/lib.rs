//! `#[derive(Job)]`. Use it through the crate `semel`, which documents it. Everything here is checked at
//! compile time, so that a mistake in an attribute is not found only by the first job.

use proc_macro::TokenStream;

mod attribute;
mod check;
mod expand;
mod form;
mod hold;
mod member;
mod unique;

/// Makes a type a job; see `semel::Job`.
#[proc_macro_derive(Job, attributes(job))]
pub fn derive_job(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::job(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
