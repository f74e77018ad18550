//! The figures as pictures: one per case, with a bar for each queue.

use std::fmt::Write as _;

use super::Run;
use super::cases::{CASES, Case, Unit};
use super::peers::PEERS;
use super::summary::{Median, median, number};

const ROW: usize = 26;
const TOP: usize = 46;
const LABEL: usize = 250;
const BAR: usize = 420;
const WIDTH: usize = 800;

/// Names and titles of the pictures.
pub fn names() -> Vec<(String, &'static str)> {
    cases().map(|case| (name(case), case.name)).collect()
}

/// The pictures, by name.
pub fn pictures(runs: &[Run]) -> Vec<(String, String)> {
    cases().map(|case| (name(case), picture(case, runs))).collect()
}

/// The cases that are drawn. Surplus and growth are lines of the table only, since often there is nothing to
/// draw.
fn cases() -> impl Iterator<Item = &'static Case> {
    CASES.iter().filter(|case| matches!(case.unit, Unit::PerSecond | Unit::P99) && case.kind != "limit")
}

fn name(case: &Case) -> String {
    let words = case.name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    format!("{}.svg", words.collect::<Vec<_>>().join("-"))
}

fn picture(case: &Case, runs: &[Run]) -> String {
    let asked = PEERS
        .iter()
        .filter(|peer| runs.iter().any(|run| std::ptr::eq(run.peer, *peer) && run.case.name == case.name));
    let mut bars: Vec<Median> = asked.map(|peer| median(runs, peer, case)).collect();
    let value = |bar: &Median| bar.value.unwrap_or(0.0);
    bars.sort_by(|a, b| {
        if case.unit == Unit::P99 { value(a).total_cmp(&value(b)) } else { value(b).total_cmp(&value(a)) }
    });
    let greatest = bars.iter().map(|bar| bar.range.1).fold(1.0, f64::max);
    let (height, unit) = (
        TOP + ROW * bars.len() + 12,
        if case.unit == Unit::P99 { "ms, p99: lower is better" } else { "jobs a second" },
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n\
         <title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"26\" font-size=\"16\" fill=\"#222\">{title} ({unit})</text>\n",
        title = escaped(case.name)
    );
    for (row, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * row;
        let length = |value: f64| value / greatest * BAR as f64;
        let colour = if bar.peer.is_semel() { "#0b6e4f" } else { "#9aa5b1" };
        let label = escaped(&bar.peer.label());
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#222\">{label}</text>",
            LABEL - 8,
            y + 16
        );
        let Some(value) = bar.value else {
            let _ = writeln!(svg, "<text x=\"{LABEL}\" y=\"{}\" fill=\"#b00020\">failed</text>", y + 16);
            continue;
        };
        let text = if case.unit == Unit::P99 { format!("{value:.1}") } else { number(value) };
        let _ = writeln!(
            svg,
            "<rect x=\"{LABEL}\" y=\"{}\" width=\"{:.1}\" height=\"18\" fill=\"{colour}\"/>\n\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{mid}\" y2=\"{mid}\" stroke=\"#222\"/>\n\
             <text x=\"{:.1}\" y=\"{}\" fill=\"#222\">{text}</text>",
            y + 3,
            length(value).max(1.0),
            LABEL as f64 + length(bar.range.0),
            LABEL as f64 + length(bar.range.1),
            LABEL as f64 + length(bar.range.1.max(value)) + 8.0,
            y + 16,
            mid = y + 12,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Run;
    use super::super::cases::CASES;
    use super::super::peers::PEERS;
    use super::{names, pictures};

    #[test]
    fn a_bar_is_as_long_as_its_figure_and_names_are_those_of_files() {
        let run = |peer: usize, jobs: u32| {
            let result = Ok(json!({ "jobs": jobs, "seconds": 1.0 }));
            Run { peer: &PEERS[peer], case: &CASES[1], round: 1, result }
        };
        let drawn = pictures(&[run(4, 1_000), run(5, 250)]);
        let (name, picture) = &drawn[0];
        assert_eq!(name, "unique-64-callers.svg");
        assert!(picture.contains("width=\"420.0\"") && picture.contains("width=\"105.0\""), "{picture}");
        assert!(names().iter().all(|(name, _)| !name.contains(' ')));
    }
}
