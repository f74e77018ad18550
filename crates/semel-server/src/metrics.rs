//! `/metrics`: jobs in the store, request outcomes and response times, in Prometheus's text format.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use semel_core::draft::QueueRow;
use semel_core::enqueue::{OutcomeClass, OutcomeKind};
use semel_core::ident::{JobType, QueueName};
use semel_core::state::State as JobState;
use semel_core::time::Timestamp;
use semel_engine::counters::Series;
use semel_engine::held::HeldKeys;
use semel_engine::hottest::Hot;
use semel_store::backend::QueueStats;

use crate::caller::Caller;
use crate::respond::Refused;
use crate::routes::Row;
use crate::system;
use crate::tenancy::Scope;

/// Queues that have their own series, at most: anyone who may enqueue can create any number of queues.
const QUEUES_MAX: usize = 1_000;
/// The label for all other queues; it is no valid queue name.
const OTHERS: &str = "~other";
/// Keys that have their own series, at most.
const HOTTEST_MAX: usize = 20;
/// Digits of a key that are shown: enough to find it, too few to compute it from.
const KEY_DIGITS: usize = 8;

/// Upper bounds of the histogram's buckets, in microseconds: from a batch in memory to the longest long poll.
const BOUNDS: [u64; 12] =
    [500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 30_000_000];

/// One endpoint's answers: a histogram of their times, and a count for each class of status.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// The last bucket holds what is above every bound.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
    /// From 1xx to 5xx.
    classes: [AtomicU64; 5],
}

impl Times {
    /// Counts one answer.
    pub(crate) fn count(&self, status: StatusCode, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        let class = usize::from(status.as_u16() / 100).wrapping_sub(1);
        let counts = [self.buckets.get(bucket), self.classes.get(class)];
        for count in counts.into_iter().flatten() {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Counts for each class of status, from 1xx on.
    pub(crate) fn classes(&self) -> [u64; 5] {
        self.classes.each_ref().map(|class| class.load(Ordering::Relaxed))
    }

    /// Writes the histogram `name` with `labels` on every line. Writes nothing for an endpoint that was never asked.
    pub(crate) fn write(&self, name: &str, labels: &str, out: &mut String) {
        let counts = self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed));
        let total: u64 = counts.iter().sum();
        if total == 0 {
            return;
        }
        let mut so_far = 0;
        for (count, bound) in counts.iter().zip(BOUNDS) {
            so_far += count;
            let seconds = Duration::from_micros(bound).as_secs_f64();
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{seconds}\"}} {so_far}");
        }
        let sum = Duration::from_micros(self.micros.load(Ordering::Relaxed)).as_secs_f64();
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {total}");
        let _ = writeln!(out, "{name}_sum{{{labels}}} {sum}");
        let _ = writeln!(out, "{name}_count{{{labels}}} {total}");
    }
}

/// `GET /metrics`. The media type has no version, as OJS requires; Prometheus accepts it if its scrape
/// configuration says `fallback_scrape_protocol: PrometheusText0.0.4`.
pub(crate) async fn show(Scope(app): Scope, caller: Caller) -> Result<Response, Refused> {
    caller.check_all_queues()?;
    let (queues, now) = (app.engine.queues_of_all().await?, app.engine.now().await?);
    let mut page = Page(String::with_capacity(16 * 1024));
    let (named, others) = by_name(queues);
    page.put_queues(&named, together(&others).as_ref(), now);
    let help = "Queues without series of their own, because 1,000 others have more jobs; gauges of jobs show them together as ~other.";
    page.family("semel_queues_unnamed", "gauge", help);
    page.sample("semel_queues_unnamed", &[], others.len());
    page.family(
        "semel_outcomes_total",
        "counter",
        "Outcomes of requests, cron ticks, workflow steps and runs since the start, by type, queue and outcome.",
    );
    for ((job_type, queue, outcome), count) in app.engine.counters().all() {
        let labels = labels(&queue, &[("type", job_type.as_str()), ("outcome", outcome)]);
        page.sample("semel_outcomes_total", &labels, count);
    }
    page.put_suppressed(&app.engine.counters().all());
    page.put_keys(app.engine.held_keys().await?);
    // Callers who may not list keys are not told which exist (SEMANTICS 4), not even by part of a key.
    if caller.is_operator() {
        page.put_hottest(&app.engine.hottest_keys(HOTTEST_MAX));
    }
    let help = "The store's time, in seconds since 1970 (UTC); it stays ahead of other clocks if its own once ran ahead.";
    page.family("semel_store_time_seconds", "gauge", help);
    page.sample("semel_store_time_seconds", &[], format_args!("{:.3}", now.as_micros() as f64 / 1e6));
    let help = "Whether the store answers and accepts writes; if it cannot be read at all, this page fails.";
    page.family("semel_store_well", "gauge", help);
    page.sample("semel_store_well", &[], u8::from(system::is_well(&app).await));
    page.put_requests(app.routes.rows());
    page.family("semel_http_requests_under_way", "gauge", "Requests under way, not counting long polls.");
    page.sample("semel_http_requests_under_way", &[], app.load.requests());
    page.family("semel_http_polls_waiting", "gauge", "Long polls that wait for a job.");
    page.sample("semel_http_polls_waiting", &[], app.load.polls());
    page.family("semel_build_info", "gauge", "The running version.");
    page.sample("semel_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    let mut response = page.0.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}

/// The text being written: families in order, all samples of a family together.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let _ = match labels {
            [] => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{}}} {value}", text(labels)),
        };
    }

    /// Writes the series by queue. The other queues together have no counter (their sum may fall) and no paused flag.
    fn put_queues(&mut self, named: &[QueueStats], others: Option<&QueueStats>, now: Timestamp) {
        let all = || named.iter().chain(others);
        self.family("semel_jobs", "gauge", "Jobs now stored, by queue and state.");
        for stats in all() {
            for state in JobState::ALL {
                let labels = labels(&stats.row.name, &[("state", state.name())]);
                self.sample("semel_jobs", &labels, stats.count(state));
            }
        }
        self.family("semel_jobs_created_total", "counter", "Jobs ever admitted, by queue.");
        for stats in named {
            self.sample("semel_jobs_created_total", &labels(&stats.row.name, &[]), stats.created);
        }
        self.family(
            "semel_queue_depth",
            "gauge",
            "Jobs that are available, including those that a limit holds back, by queue.",
        );
        for stats in all() {
            let depth = stats.count(JobState::Available);
            self.sample("semel_queue_depth", &labels(&stats.row.name, &[]), depth);
        }
        let help = "How long the oldest available job has waited, including jobs that a limit holds back; 0 when none waits.";
        self.family("semel_queue_oldest_seconds", "gauge", help);
        for stats in all() {
            let age = stats.oldest_ready.map_or(Duration::ZERO, |oldest| now.since(oldest)).as_secs_f64();
            self.sample("semel_queue_oldest_seconds", &labels(&stats.row.name, &[]), age);
        }
        self.family("semel_queue_paused", "gauge", "Whether a queue is paused.");
        for stats in named {
            let paused = u8::from(stats.row.paused);
            self.sample("semel_queue_paused", &labels(&stats.row.name, &[]), paused);
        }
    }

    fn put_suppressed(&mut self, counts: &[(Series, u64)]) {
        let mut by_type: BTreeMap<&JobType, (u64, u64)> = BTreeMap::new();
        for ((job_type, _, outcome), count) in counts {
            // Ends of runs are counted here too, but are no request outcomes.
            let Some(kind) = OutcomeKind::from_name(outcome) else { continue };
            let (suppressed, all) = by_type.entry(job_type).or_default();
            *suppressed += if kind.class() == OutcomeClass::Suppressed { *count } else { 0 };
            *all += count;
        }
        let help = "The share of requests since the start that created no job because one of the same identity existed, by type; ends of runs are not counted as requests.";
        self.family("semel_suppressed_ratio", "gauge", help);
        for (job_type, (suppressed, all)) in by_type.into_iter().filter(|(_, (_, all))| *all > 0) {
            let ratio = suppressed as f64 / all as f64;
            self.sample("semel_suppressed_ratio", &[("type", job_type.as_str())], format_args!("{ratio:.4}"));
        }
    }

    fn put_keys(&mut self, held: HeldKeys) {
        let help =
            "Keys that jobs hold, of all tenants except the server's own, as of at most 15 seconds ago.";
        self.family("semel_keys_held", "gauge", help);
        self.sample("semel_keys_held", &[], held.keys);
        let help = "Whether semel_keys_held and semel_key_oldest_seconds cover all jobs with a key; if not, they cover the newest 20,000.";
        self.family("semel_keys_held_whole", "gauge", help);
        self.sample("semel_keys_held_whole", &[], u8::from(held.is_whole));
        self.family(
            "semel_key_oldest_seconds",
            "gauge",
            "How long ago the oldest holder of a key was created.",
        );
        self.sample("semel_key_oldest_seconds", &[], held.oldest.unwrap_or_default().as_secs_f64());
    }

    fn put_hottest(&mut self, hottest: &[Hot]) {
        let help = "Duplicates of the keys with the most since the start, at most 20, each named by the first 8 digits of its key; keys of hidden holders are left out.";
        self.family("semel_key_duplicates", "gauge", help);
        for hot in hottest {
            let key: String = hot.key.to_string().chars().take(KEY_DIGITS).collect();
            let labels = labels(&hot.queue, &[("type", hot.job_type.as_str()), ("key", &key)]);
            self.sample("semel_key_duplicates", &labels, hot.count);
        }
    }

    fn put_requests(&mut self, rows: &[Row]) {
        const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        self.family("semel_http_responses_total", "counter", "Answers, by endpoint and status class.");
        for row in rows {
            for (class, count) in CLASSES.iter().zip(row.times.classes()).filter(|(_, count)| *count > 0) {
                let labels = [("method", row.method.as_str()), ("route", row.path), ("class", class)];
                self.sample("semel_http_responses_total", &labels, count);
            }
        }
        const NAME: &str = "semel_http_request_duration_seconds";
        self.family(NAME, "histogram", "How long answers took, including long polls, by endpoint.");
        for row in rows {
            let labels = text(&[("method", row.method.as_str()), ("route", row.path)]);
            row.times.write(NAME, &labels, &mut self.0);
        }
    }
}

/// Splits off the queues with the fewest jobs, live jobs first, beyond [`QUEUES_MAX`]; the first part is sorted by name.
fn by_name(mut queues: Vec<QueueStats>) -> (Vec<QueueStats>, Vec<QueueStats>) {
    if queues.len() <= QUEUES_MAX {
        return (queues, Vec::new());
    }
    let live = |stats: &QueueStats| {
        let states = JobState::ALL.into_iter().filter(|state| state.is_live());
        states.map(|state| stats.count(state)).sum::<u64>()
    };
    queues.sort_by_cached_key(|stats| Reverse((live(stats), stats.counts.iter().sum::<u64>())));
    let others = queues.split_off(QUEUES_MAX);
    queues.sort_by(|one, other| one.row.name.cmp(&other.row.name));
    (queues, others)
}

/// Merges queues into one. Jobs of a paused queue wait for it to be resumed, not for a worker, so they do not
/// count as the oldest.
fn together(others: &[QueueStats]) -> Option<QueueStats> {
    if others.is_empty() {
        return None;
    }
    let mut counts = [0; JobState::ALL.len()];
    for stats in others {
        counts.iter_mut().zip(stats.counts).for_each(|(sum, count)| *sum += count);
    }
    let at_work = others.iter().filter(|stats| !stats.row.paused);
    Some(QueueStats {
        row: QueueRow::fresh(QueueName::from_stored(OTHERS)),
        counts,
        created: 0,
        purged: 0,
        oldest_ready: at_work.filter_map(|stats| stats.oldest_ready).min(),
    })
}

/// Labels: the queue, its tenant if it has one, and the given ones.
fn labels<'a>(queue: &'a QueueName, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut labels = vec![("queue", queue.name())];
    if !queue.tenant().is_empty() {
        labels.push(("tenant", queue.tenant()));
    }
    labels.extend_from_slice(more);
    labels
}

/// Labels as written between the braces.
fn text(labels: &[(&str, &str)]) -> String {
    let escape = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value)));
    labels.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dashboard and `semel top` group the same outcomes as suppressed (a test of the latter checks it
    /// against the dashboard); the guide names them.
    #[test]
    fn what_is_suppressed_is_one_list_for_all_who_show_it() {
        let dashboard = include_str!("dashboard/files/metrics.js");
        let named = |quote: char| {
            let names = OutcomeClass::Suppressed.names().map(|name| format!("{quote}{name}{quote}"));
            names.collect::<Vec<_>>().join(", ")
        };
        let names = named('"');
        assert!(dashboard.contains(&format!("{{ name: \"Deduplicated\", outcomes: [{names}],")), "{names}");
        let guide = include_str!("../../../docs/guide/alerts.md");
        let names = named('`');
        assert!(guide.replace('\n', " ").contains(&format!("{names} are suppressed")), "{names}");
    }

    /// Without the bound, one line for each queue that somebody invents could make a page of hundreds of megabytes.
    #[test]
    fn the_queues_with_most_jobs_are_named_and_the_others_stand_together() {
        let now = Timestamp::from_micros(10_000_000);
        let queue = |number: usize, available: u64| {
            let mut counts = [0; JobState::ALL.len()];
            counts[usize::from(JobState::Available.code())] = available;
            QueueStats {
                row: QueueRow::fresh(QueueName::from_stored(&format!("q{number:04}"))),
                counts,
                created: available,
                purged: 0,
                oldest_ready: (available > 0).then(|| Timestamp::from_micros(9_000_000)),
            }
        };
        let mut queues: Vec<_> = (0..QUEUES_MAX + 3).map(|number| queue(number, 2)).collect();
        queues[0] = queue(0, 0);
        queues[1] = queue(1, 1);
        queues[2] = QueueStats { oldest_ready: Some(Timestamp::from_micros(1)), ..queue(2, 1) };
        queues[2].row.paused = true;
        let (named, others) = by_name(queues.clone());
        let mut page = Page(String::new());
        page.put_queues(&named, together(&others).as_ref(), now);
        assert_eq!((named.len(), others.len()), (QUEUES_MAX, 3));
        let lines = |text: &str| page.0.lines().filter(|line| line.starts_with(text)).count();
        assert_eq!(lines("semel_queue_depth{"), QUEUES_MAX + 1);
        assert_eq!(
            (lines("semel_jobs_created_total{"), lines("semel_queue_paused{")),
            (QUEUES_MAX, QUEUES_MAX)
        );
        for line in [
            "semel_jobs{queue=\"~other\",state=\"available\"} 2\n",
            "semel_queue_depth{queue=\"~other\"} 2\n",
            "semel_queue_oldest_seconds{queue=\"~other\"} 1\n",
            "semel_queue_depth{queue=\"q0003\"} 2\n",
        ] {
            assert!(page.0.contains(line), "{line}");
        }
        assert!(QueueName::parse(OTHERS, "").is_err(), "somebody's queue has the name");
        queues.truncate(QUEUES_MAX);
        let (named, others) = by_name(queues);
        assert_eq!((named.len(), together(&others)), (QUEUES_MAX, None));
    }

    #[test]
    fn buckets_add_up() {
        let times = Times::default();
        for micros in [500, 501, 40_000_000] {
            times.count(StatusCode::OK, Duration::from_micros(micros));
        }
        let mut out = String::new();
        times.write("x_seconds", "route=\"/a\"", &mut out);
        assert!(out.contains("x_seconds_bucket{route=\"/a\",le=\"0.0005\"} 1\n"), "{out}");
        assert!(out.contains("x_seconds_bucket{route=\"/a\",le=\"0.001\"} 2\n"), "{out}");
        assert!(out.contains("le=\"30\"} 2\n") && out.contains("le=\"+Inf\"} 3\n"), "{out}");
        assert!(out.contains("x_seconds_count{route=\"/a\"} 3\n"), "{out}");
        assert_eq!(times.classes(), [0, 3, 0, 0, 0]);
    }
}
