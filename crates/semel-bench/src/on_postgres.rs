//! The cases on PostgreSQL, with figures relative to those of the plain table in the same run.

use std::sync::Arc;

use semel_engine::Engine;
use semel_postgres::{Address, Postgres};

use crate::load::{self, Work};
use crate::postgres::{self, Plain};
use crate::report::{BenchError, Figure, Report};
use crate::{Options, grown, open_loop};

/// Jobs per batch in the batch case, and how many callers send batches.
const BULK: u64 = 1_000;
const BULK_CALLERS: usize = 4;
/// Callers in the case in which jobs only come and go.
const WORKERS: usize = 200;
/// The label of the round in which no jobs wait.
const EMPTY: &str = "empty";

/// Runs all cases on a new store in the database at `address`. Its schema must be unused: it is made and
/// deleted.
///
/// # Errors
/// As [`run`](crate::run).
pub async fn run_on_postgres(
    address: &Address,
    options: &Options,
    progress: impl Fn(&str),
) -> Result<Report, BenchError> {
    let store = Arc::new(Postgres::open(address).await?);
    let measured = async {
        let engine = Engine::start(store)?;
        let run =
            Run { engine: &engine, options, progress: &progress, work: Work::new(options.args_bytes, true)? };
        let report = run.measure(address).await;
        engine.close().await;
        report
    };
    let report = measured.await;
    postgres::remove(address).await?;
    report
}

struct Run<'a, P: Fn(&str)> {
    engine: &'a Engine,
    options: &'a Options,
    progress: &'a P,
    work: Work,
}

/// The limits that figures are shares of, in jobs per second.
struct Limits {
    inserts: f64,
    claims: f64,
}

impl<P: Fn(&str)> Run<'_, P> {
    async fn measure(&self, address: &Address) -> Result<Report, BenchError> {
        let Options { callers, args_bytes, duration, waiting, finished, churn, .. } = self.options;
        let mut figures = Vec::new();
        (self.progress)("limits");
        let plain = Plain::new(address).await?;
        let inserts = plain.inserts(*args_bytes, *duration).await?;
        let claims = plain.claims(*duration).await?;
        plain.remove().await?;
        let limits = Limits { inserts: inserts.per_second, claims: claims.per_second };
        figures.extend([inserts, claims]);

        let mut from = 0;
        self.round(EMPTY, &limits, &mut from, &mut figures).await?;
        if *waiting > 0 || *finished > 0 {
            (self.progress)("emptying");
            load::drain(self.engine, &self.work).await?;
            (self.progress)("filling");
            load::fill(self.engine, &self.work, from, *waiting).await?;
            from += waiting;
            if *finished > 0 {
                grown::finished(address, self.engine, &self.work, from, *finished).await?;
                from += 1;
            }
            let label = if *finished > 0 {
                format!("{waiting} waiting and {finished} finished")
            } else {
                format!("{waiting} waiting")
            };
            self.round(&label, &limits, &mut from, &mut figures).await?;
        }
        if !churn.is_zero() {
            let name = format!("full cycle for {} s", churn.as_secs());
            (self.progress)(&name);
            let figure = load::cycle(&name, self.engine, &self.work, *callers, *churn, from).await?;
            from += figure.jobs + *callers as u64;
            figures.push(figure);
            self.round("afterwards", &limits, &mut from, &mut figures).await?;
        }
        self.engine.stop().await;
        Ok(Report::of(&self.engine.facts(), self.options, figures))
    }

    fn wants(&self, name: &str) -> bool {
        let wants = self.options.wants(name);
        if wants {
            (self.progress)(name);
        }
        wants
    }

    async fn round(
        &self,
        label: &str,
        limits: &Limits,
        from: &mut u64,
        figures: &mut Vec<Figure>,
    ) -> Result<(), BenchError> {
        let Options { callers, duration, .. } = self.options;
        let (callers, duration, engine, work) = (*callers, *duration, self.engine, &self.work);
        let (name, open) = (format!("unique enqueue, {label}"), format!("new jobs, open loop, {label}"));
        let rate_is_sought = self.options.wants(&open) && self.options.rate.is_none();
        let mut reached = 0.0;
        if self.wants(&name) || rate_is_sought {
            let figure = load::enqueue(&name, engine, work, callers, duration, *from, 1).await?;
            *from += figure.jobs + callers as u64;
            reached = figure.per_second;
            figures.push(figure.beside(limits.inserts));
        }
        if self.wants(&open) {
            let pace = self.options.pace(reached);
            let figure = open_loop::enqueue(&open, engine, work, pace, *from).await?;
            *from += figure.jobs;
            figures.push(figure);
        }
        let name = format!("batches of {BULK}, {BULK_CALLERS} callers, {label}");
        if self.wants(&name) {
            let figure = load::bulk(&name, engine, work, BULK_CALLERS, duration, *from, BULK).await?;
            *from += figure.jobs + BULK * BULK_CALLERS as u64;
            figures.push(figure.beside(limits.inserts));
        }
        let name = format!("99 % duplicates, {label}");
        if self.wants(&name) {
            let figure = load::enqueue(&name, engine, work, callers, duration, *from, 100).await?;
            *from += figure.jobs.div_ceil(100);
            figures.push(figure);
        }
        let name = format!("claim 50 and complete each, {label}");
        if self.wants(&name) {
            let figure = load::process(&name, engine, work, WORKERS, duration).await?;
            figures.push(figure.beside(limits.claims));
        }
        let name = format!("full cycle, {label}");
        if self.wants(&name) {
            if label == EMPTY {
                load::drain(engine, work).await?;
            }
            let figure = load::cycle(&name, engine, work, callers, duration, *from).await?;
            *from += figure.jobs + callers as u64;
            figures.push(figure);
        }
        let name = format!("one caller, unique enqueue, {label}");
        if self.wants(&name) {
            let figure = load::enqueue(&name, engine, work, 1, duration, *from, 1).await?;
            *from += figure.jobs + 1;
            figures.push(figure);
        }
        Ok(())
    }
}
