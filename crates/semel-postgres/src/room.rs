//! Checks whether the database has room for writes. Without room it still answers reads, so all would seem
//! well.

use std::sync::atomic::Ordering;

use semel_store::backend::{Applied, Verdict};

use crate::connect::ask;
use crate::error::PostgresError;
use crate::server::given_back;
use crate::store::Shared;
use crate::values::Params;

impl Shared {
    /// Records whether a commit failed for lack of room, or has written.
    pub(crate) fn has_committed(&self, done: &Result<Applied, PostgresError>) {
        match done {
            Err(error) if error.may_want_room() => self.wants_room.store(true, Ordering::Release),
            Ok(applied) if has_written(applied) => self.wants_room.store(false, Ordering::Release),
            _ => {}
        }
    }

    /// Checks by writing whether there is room again, after a commit found none. Writes incompressible data,
    /// and undoes it in the same statement: nobody sees it, and the connection is left outside of a
    /// transaction in any case.
    pub(crate) async fn find_room(&self) -> Result<(), PostgresError> {
        let sql = format!(
            "DO $semel$ BEGIN \
             INSERT INTO {} (id, body) SELECT pg_catalog.gen_random_uuid(), pg_catalog.string_agg(\
             pg_catalog.sha512(pg_catalog.convert_to(pg_catalog.random()::text, 'UTF8')), '') \
             FROM pg_catalog.generate_series(1, 1024); \
             RAISE SQLSTATE 'SM001'; \
             EXCEPTION WHEN SQLSTATE 'SM001' THEN NULL; END $semel$",
            self.name("body")
        );
        let connection = self.connection().await?;
        let tried = self.heard(&connection, ask(&connection, &sql, &Params::default())).await;
        given_back(connection, tried)?;
        self.wants_room.store(false, Ordering::Release);
        Ok(())
    }
}

fn has_written(applied: &Applied) -> bool {
    applied.groups.contains(&Verdict::Applied)
        || applied.claims.iter().any(|claimed| !claimed.jobs.is_empty())
}
