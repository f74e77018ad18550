//! Curves, as a page with tables, as data, and as pictures.

use std::fmt::Write as _;
use std::path::Path;

use super::super::stores::Store;
use super::super::summary::number;
use super::{Along, data};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 40.0;
/// One colour for each case.
const COLOURS: [&str; 4] = ["#0b6e4f", "#3466c2", "#b3541e", "#7a3e9d"];

/// One case on one store.
pub struct Curve {
    /// The store that was measured.
    pub store: Store,
    /// The quantity that grows.
    pub along: Along,
    /// The case that was measured.
    pub case: &'static str,
    /// The points, with the quantity ascending.
    pub points: Vec<Point>,
}

impl Curve {
    /// A curve without points.
    pub const fn new(store: Store, along: Along, case: &'static str) -> Self {
        Self { store, along, case, points: Vec::new() }
    }
}

/// One figure.
#[derive(Clone, Debug)]
pub struct Point {
    /// The quantity.
    pub at: u64,
    /// Jobs a second.
    pub per_second: f64,
    /// The figure of an empty store in the same run.
    pub empty: Option<f64>,
}

impl Point {
    /// The figure, with its ratio to the empty store's.
    pub fn line(&self) -> String {
        let share = self.empty.map_or_else(String::new, |empty| format!(" ({:.2})", self.per_second / empty));
        format!("{}{share}", number(self.per_second))
    }
}

/// Writes the page, the data and the pictures.
///
/// # Errors
/// When a file cannot be written.
pub fn write(folder: &Path, said: &str, servers: &[String], curves: &[Curve]) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let put = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).map_err(|error| format!("{name}: {error}"))
    };
    let data = data(said, servers, curves);
    put("scaling.json", &serde_json::to_string_pretty(&data).map_err(|error| error.to_string())?)?;
    for group in groups(curves) {
        put(&name(group), &picture(group))?;
    }
    put("README.md", &page(said, servers, curves))
}

/// The curves that are drawn together.
fn groups(curves: &[Curve]) -> impl Iterator<Item = &[Curve]> {
    curves.chunk_by(|one, other| (one.store, one.along) == (other.store, other.along))
}

fn name(group: &[Curve]) -> String {
    let Some(first) = group.first() else { return String::new() };
    let store = first.store.name().to_lowercase();
    let words = store.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| word.len() > 1);
    format!("{}-{}.svg", words.collect::<Vec<_>>().join("-"), first.along.word())
}

fn page(said: &str, servers: &[String], curves: &[Curve]) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut page = format!(
        "# Scaling: as jobs, callers and partitions grow in number\n\nMade by `cargo xtask bench scaling {said}` on a machine with {cores} cores, which Semel shares with \
         the servers: {}. Figures are jobs a second; each job has 200 bytes of args and its own key; 512 callers unless a heading says otherwise. In brackets: the ratio to the empty store \
         in the same run. Compare these ratios, because the figures of two runs differ by the machine's load. All data: [scaling.json](scaling.json).\n",
        if servers.is_empty() { "none".to_owned() } else { servers.join("; ") }
    );
    for group in groups(curves) {
        let Some(first) = group.first() else { continue };
        let title = format!("On {}: {}", first.store.name(), first.along.title());
        let _ = write!(page, "\n## {title}\n\nDurability: {}.\n\n|", first.store.durability());
        for point in &first.points {
            let _ = write!(page, " | {}", number(point.at as f64));
        }
        let _ = write!(page, " |\n|---{}|\n", "|---".repeat(first.points.len()));
        for curve in group {
            let _ = write!(page, "| {}", curve.case);
            for point in &curve.points {
                let _ = write!(page, " | {}", point.line());
            }
            page.push_str(" |\n");
        }
        let _ = write!(page, "\n![{title}]({})\n", name(group));
    }
    page
}

/// A picture of one store's cases as lines: the quantity on a logarithmic x axis, jobs a second from zero on
/// the y axis.
fn picture(group: &[Curve]) -> String {
    let all = || group.iter().flat_map(|curve| &curve.points);
    let most = all().map(|point| point.per_second).fold(1.0, f64::max);
    let log = |at: u64| (at.max(1) as f64).log10();
    let (first, last) = all().fold((f64::MAX, 0.0_f64), |(first, last), point| {
        (first.min(log(point.at)), last.max(log(point.at)))
    });
    let wide = (last - first).max(f64::EPSILON);
    let x = |at: u64| LEFT + (log(at) - first) / wide * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM);
    let title = group
        .first()
        .map_or_else(String::new, |curve| format!("{}, {}", curve.store.name(), curve.along.title()));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n\
         <title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"26\" font-size=\"16\" fill=\"#222\">{title} (jobs a second)</text>\n"
    );
    for part in [0.0, 0.5, 1.0] {
        let at = y(most * part);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#222\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            number(most * part)
        );
    }
    for point in group.first().into_iter().flat_map(|curve| &curve.points) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#222\">{}</text>",
            x(point.at),
            HEIGHT - 14.0,
            number(point.at as f64)
        );
    }
    for (row, (curve, colour)) in group.iter().zip(COLOURS).enumerate() {
        let places: Vec<String> = curve
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x(point.at), y(point.per_second)))
            .collect();
        let (label, line) = (WIDTH - RIGHT + 16.0, TOP + 12.0 + 20.0 * row as f64);
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <text x=\"{label}\" y=\"{line}\" fill=\"{colour}\">{}</text>",
            places.join(" "),
            curve.case
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::super::CASES;
    use super::*;

    fn curves() -> Vec<Curve> {
        let point = |at: u64, per_second: f64| Point { at, per_second, empty: Some(400.0) };
        let points = || vec![point(1_000, 400.0), point(100_000, 200.0)];
        CASES
            .map(|case| Curve { points: points(), ..Curve::new(Store::RedisAlways, Along::Waiting, case) })
            .into()
    }

    #[test]
    fn a_line_goes_from_the_least_to_the_most_and_the_greatest_is_on_top() {
        let svg = picture(&curves());
        let (right, middle) = (WIDTH - RIGHT, TOP + (HEIGHT - TOP - BOTTOM) / 2.0);
        let places = format!("{LEFT:.1},{TOP:.1} {right:.1},{middle:.1}");
        assert_eq!(svg.matches(&places).count(), CASES.len(), "{svg}");
    }

    #[test]
    fn a_page_has_a_table_with_shares_and_names_its_picture() {
        let page = page("--to 100000", &["Redis 7".to_owned()], &curves());
        assert!(page.contains("| full cycle | 400 (1.00) | 200 (0.50) |"), "{page}");
        assert!(page.contains("(redis-always-waiting.svg)") && page.contains("--to 100000"), "{page}");
    }
}
