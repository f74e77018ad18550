//! Generates the implementation.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, Error, Result};

use crate::{attribute, member};

/// Generates `impl semel::Job`.
pub fn job(input: &DeriveInput) -> Result<TokenStream> {
    let members = member::read(input)?;
    let said = attribute::read(&input.attrs, &members)?;
    let Some(job_type) = said.job_type else {
        return Err(Error::new_spanned(
            &input.ident,
            "the job has no type; write #[job(type = \"email.send\")] above the struct",
        ));
    };
    if let Some(lifetime) = input.generics.lifetimes().next() {
        return Err(Error::new_spanned(
            lifetime,
            "a job is stored and read back later, so it must own its fields; use String instead of &str",
        ));
    }
    let name = &input.ident;
    let calls = said.calls;
    let sensitive = members.sensitive;
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics ::semel::Job for #name #type_generics #where_clause {
            const TYPE: &'static str = #job_type;
            const SENSITIVE: &'static [&'static str] = &[#(#sensitive),*];

            fn defaults() -> ::semel::Options {
                ::semel::Options::new() #(#calls)*
            }
        }
    })
}
