//! Queues as OJS shows them.

use std::time::Duration;

use semel_core::settings::{QueueSettings, waiting};
use semel_core::state::State;
use semel_core::time::Timestamp;

use crate::write::{Object, object};

/// How long something took, of late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpreadView {
    /// So many.
    pub count: u64,
    /// Half of them at most so long.
    pub p50: Duration,
    /// 99 of 100 of them at most so long.
    pub p99: Duration,
}

impl SpreadView {
    fn put(&self, name: &str, object: &mut Object<'_>) {
        crate::write::object(object.member(name), |object| {
            object.number("count", self.count);
            for (name, took) in [("p50_ms", self.p50), ("p99_ms", self.p99)] {
                object.number(name, format_args!("{:.3}", took.as_secs_f64() * 1e3));
            }
        });
    }
}

/// How long the jobs of a queue took in the last minutes, as one server saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyView {
    /// In so many minutes.
    pub minutes: u64,
    /// From when a job could be taken until it was.
    pub wait: SpreadView,
    /// Runs that ended well.
    pub run: SpreadView,
}

/// A queue to be shown.
#[derive(Clone, Debug)]
pub struct QueueView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether claims get nothing from it.
    pub paused: bool,
    /// Jobs now stored, by state number.
    pub counts: [u64; State::ALL.len()],
    /// Jobs ever admitted.
    pub created: u64,
    /// Jobs deleted after their retention.
    pub purged: u64,
    /// The time of the job that has waited longest for a worker.
    pub oldest_ready: Option<Timestamp>,
    /// How long its jobs took of late, if it had any.
    pub latency: Option<LatencyView>,
}

impl QueueView<'_> {
    fn count(&self, state: State) -> u64 {
        self.counts[usize::from(state.code())]
    }

    /// Writes the queue's object at the end of `out`.
    pub fn write(&self, out: &mut String) {
        object(out, |object| {
            object.plain("name", self.name);
            object.flag("paused", self.paused);
            object.plain("status", if self.paused { "paused" } else { "active" });
            self.put_counts(object);
            if let Some(latency) = &self.latency {
                crate::write::object(object.member("latency"), |object| {
                    object.number("minutes", latency.minutes);
                    latency.wait.put("wait", object);
                    latency.run.put("run", object);
                });
            }
        });
    }

    fn put_counts(&self, object: &mut Object<'_>) {
        for state in State::ALL {
            object.number(state.name(), self.count(state));
        }
        object.number("created", self.created);
        object.number("purged", self.purged);
        object.time("oldest_available_at", self.oldest_ready);
    }

    /// The answer to a question about one queue.
    pub fn answer(&self, settings: &QueueSettings) -> String {
        let mut out = String::with_capacity(512);
        object(&mut out, |object| {
            self.write(object.member("queue"));
            object.plain("status", if self.paused { "paused" } else { "active" });
            crate::settings::put_queue(settings, object);
            let put_stats = |object: &mut Object<'_>| {
                object.number("depth", waiting(&self.counts));
                if let Some(bound) = settings.backpressure {
                    object.number("max_depth", bound.max_depth);
                }
                self.put_counts(object);
            };
            crate::write::object(object.member("stats"), |object| {
                object.plain("queue", self.name);
                put_stats(object);
            });
            // For the clients that look there.
            object.plain("name", self.name);
            object.flag("paused", self.paused);
            put_stats(object);
        });
        out
    }
}
