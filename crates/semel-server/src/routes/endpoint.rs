//! One endpoint: a row of the table, and builder methods for it.

use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};
use http::Method;
use semel_ojs::Code;

use crate::caller::Access;

use super::parameters::Parameter;

/// The body that a request carries.
#[derive(Clone, Copy)]
pub(crate) enum Body {
    /// No body is read.
    None,
    /// JSON of this schema, or no body.
    May(&'static str),
    /// JSON of this schema.
    Must(&'static str),
}

/// One row of the table.
pub(crate) struct Endpoint {
    pub(crate) method: Method,
    /// In axum's syntax for parameters, which is OpenAPI's too.
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    /// Operation id in OpenAPI; unique.
    pub(crate) name: &'static str,
    pub(crate) says: &'static str,
    pub(crate) query: &'static [Parameter],
    pub(crate) body: Body,
    /// Each success's status, media type (`None` for OJS's) and schema.
    pub(crate) answers: Vec<(u16, Option<&'static str>, &'static str)>,
    /// The endpoint's own error codes; those that every endpoint has are implied.
    pub(crate) refuses: Vec<Code>,
    /// Whether it concerns the whole server: requests made for a tenant do not find it.
    pub(crate) is_global: bool,
    /// The handler. It gets its tenant's app from the request ([`Scope`](crate::tenancy::Scope)) and nowhere else.
    pub(super) handler: MethodRouter,
}

impl Endpoint {
    fn new<H, T>(method: Method, path: &'static str, access: Access, handler: H) -> Self
    where
        H: Handler<T, ()>,
        T: 'static,
    {
        let filter = MethodFilter::try_from(method.clone()).unwrap_or(MethodFilter::TRACE);
        Self {
            method,
            path,
            access,
            name: "",
            says: "",
            query: &[],
            body: Body::None,
            answers: Vec::new(),
            refuses: Vec::new(),
            is_global: false,
            handler: on(filter, handler),
        }
    }

    /// Sets the operation id in OpenAPI, and a one-sentence summary.
    pub(super) fn named(self, name: &'static str, says: &'static str) -> Self {
        Self { name, says, ..self }
    }

    pub(super) fn query(self, query: &'static [Parameter]) -> Self {
        Self { query, ..self }
    }

    /// Requires a body of this schema.
    pub(super) fn takes(self, schema: &'static str) -> Self {
        Self { body: Body::Must(schema), ..self }
    }

    /// Accepts a body of this schema, or none.
    pub(super) fn may_take(self, schema: &'static str) -> Self {
        Self { body: Body::May(schema), ..self }
    }

    /// Adds a success: its status and schema.
    pub(super) fn answers(mut self, status: u16, schema: &'static str) -> Self {
        self.answers.push((status, None, schema));
        self
    }

    /// Adds a success with a media type other than OJS's.
    pub(super) fn answers_as(mut self, status: u16, media: &'static str, schema: &'static str) -> Self {
        self.answers.push((status, Some(media), schema));
        self
    }

    /// Marks the endpoint as concerning the whole server and all tenants.
    pub(super) fn global(self) -> Self {
        Self { is_global: true, ..self }
    }

    pub(super) fn refuses(mut self, codes: &[Code]) -> Self {
        self.refuses.extend_from_slice(codes);
        self
    }
}

pub(super) fn get<H: Handler<T, ()>, T: 'static>(path: &'static str, access: Access, handler: H) -> Endpoint {
    Endpoint::new(Method::GET, path, access, handler)
}

pub(super) fn post<H: Handler<T, ()>, T: 'static>(
    path: &'static str,
    access: Access,
    handler: H,
) -> Endpoint {
    Endpoint::new(Method::POST, path, access, handler)
}

pub(super) fn patch<H: Handler<T, ()>, T: 'static>(
    path: &'static str,
    access: Access,
    handler: H,
) -> Endpoint {
    Endpoint::new(Method::PATCH, path, access, handler)
}

pub(super) fn put<H: Handler<T, ()>, T: 'static>(path: &'static str, access: Access, handler: H) -> Endpoint {
    Endpoint::new(Method::PUT, path, access, handler)
}

pub(super) fn delete<H: Handler<T, ()>, T: 'static>(
    path: &'static str,
    access: Access,
    handler: H,
) -> Endpoint {
    Endpoint::new(Method::DELETE, path, access, handler)
}
