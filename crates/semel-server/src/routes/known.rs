//! The table as the edge uses it: looked up by path.

use http::Method;

use crate::caller::Access;
use crate::metrics::Times;

use super::endpoint::Endpoint;

/// The edge's view of one row.
pub(crate) struct Row {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    /// Operation id in OpenAPI.
    pub(crate) name: &'static str,
    pub(crate) access: Access,
    /// Whether it concerns the whole server: requests made for a tenant do not find it.
    pub(crate) is_global: bool,
    /// Names of its query parameters.
    pub(crate) query: Vec<&'static str>,
    pub(crate) times: Times,
}

impl Row {
    /// The method's name: GET, POST, …
    pub(crate) fn name_of_method(&self) -> &'static str {
        const KNOWN: [Method; 5] = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        const NAMES: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];
        KNOWN.iter().zip(NAMES).find(|(method, _)| **method == self.method).map_or("OTHER", |(_, name)| name)
    }
}

/// The table as the edge uses it: looked up by path.
pub(crate) struct Known(Vec<Row>);

impl Known {
    pub(crate) fn of(table: &[Endpoint]) -> Self {
        let row = |endpoint: &Endpoint| Row {
            method: endpoint.method.clone(),
            path: endpoint.path,
            name: endpoint.name,
            access: endpoint.access,
            is_global: endpoint.is_global,
            query: endpoint.query.iter().map(|parameter| parameter.name).collect(),
            times: Times::default(),
        };
        let mut rows: Vec<Row> = table.iter().map(row).collect();
        rows.sort_by_key(|row| row.path);
        Self(rows)
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.0
    }

    /// Whether the route at this path concerns the whole server.
    pub(crate) fn is_global(&self, path: &str) -> bool {
        self.of_path(path).any(|row| row.is_global)
    }

    /// The row for `method` on the route at this path; `None` if the route does not have the method.
    pub(crate) fn find<'k>(&'k self, path: &'k str, method: &Method) -> Option<&'k Row> {
        // HEAD is a GET whose body is not sent.
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        self.of_path(path).find(|row| row.method == *method)
    }

    fn of_path<'k>(&'k self, path: &'k str) -> impl Iterator<Item = &'k Row> {
        let first = self.0.partition_point(|row| row.path < path);
        self.0.iter().skip(first).take_while(move |row| row.path == path)
    }
}
