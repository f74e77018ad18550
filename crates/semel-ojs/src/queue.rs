//! Queues in OJS's form.

use std::time::Duration;

use semel_core::settings::{QueueSettings, waiting};
use semel_core::state::State;
use semel_core::time::Timestamp;

use crate::write::{Object, object};

/// Percentiles of recent durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpreadView {
    /// Number of measurements.
    pub count: u64,
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
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

/// Recent latencies of a queue's jobs, as one server measured them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyView {
    /// How many minutes they cover.
    pub minutes: u64,
    /// From when a job became available until it was claimed.
    pub wait: SpreadView,
    /// Durations of successful runs.
    pub run: SpreadView,
}

/// A queue to be shown.
#[derive(Clone, Debug)]
pub struct QueueView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether the queue is paused: claims get nothing from it.
    pub paused: bool,
    /// Jobs now stored, indexed by state number.
    pub counts: [u64; State::ALL.len()],
    /// Jobs ever admitted.
    pub created: u64,
    /// Jobs deleted after their retention.
    pub purged: u64,
    /// Since when the longest-waiting available job has been waiting.
    pub oldest_ready: Option<Timestamp>,
    /// Recent latencies, if it had any jobs.
    pub latency: Option<LatencyView>,
}

impl QueueView<'_> {
    fn count(&self, state: State) -> u64 {
        self.counts[usize::from(state.code())]
    }

    /// Appends the queue's object to `out`.
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

    /// The answer about one queue.
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
            // Repeated here for clients that look here.
            object.plain("name", self.name);
            object.flag("paused", self.paused);
            put_stats(object);
        });
        out
    }
}
