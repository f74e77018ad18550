//! `cargo xtask picture`: plays the demo and draws its output, for readers of the documentation.

use std::fmt::Write as _;
use std::process::Command;

use crate::workspace::Workspace;

/// The file of the picture.
const PATH: &str = "docs/demo.svg";
/// The line height, letter width and margin, in pixels.
const LINE: usize = 19;
const LETTER: usize = 8;
const EDGE: usize = 16;

/// Plays the demo with a release build, or with `program`, and draws its output.
///
/// # Errors
/// When it cannot be built, or the demo's own check fails.
pub fn run(workspace: &Workspace, program: Option<&str>) -> Result<(), String> {
    let mut command = match program {
        Some(program) => Command::new(program),
        None => {
            let mut cargo = workspace.cargo();
            cargo.args(["run", "--release", "--package", "semel-cli", "--bin", "semel", "--"]);
            cargo
        }
    };
    let output = command.arg("demo").output().map_err(|error| format!("cannot start the demo: {error}"))?;
    if !output.status.success() {
        return Err(format!("the demo failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    let lines = end(&String::from_utf8_lossy(&output.stdout));
    if lines.len() < 3 {
        return Err("the demo printed no table".to_owned());
    }
    let path = workspace.root.join(PATH);
    std::fs::write(&path, draw(&lines)).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{PATH}: {} lines", lines.len());
    Ok(())
}

/// The first table that the demo prints, and its final line.
fn end(printed: &str) -> Vec<String> {
    let table =
        printed.lines().skip_while(|line| !line.starts_with("WHAT ")).take_while(|line| !line.is_empty());
    let word = printed.lines().find(|line| line.starts_with("verified: "));
    // How long it took depends on the machine.
    let word = word.map(|line| line.rsplit_once(" (").map_or(line, |(line, _)| line));
    let lines = ["$ semel demo", ""].into_iter().chain(table).chain(["", word.unwrap_or_default()]);
    lines.map(|line| line.trim_end().to_owned()).collect()
}

/// Draws lines of text on a dark background, like a terminal.
fn draw(lines: &[String]) -> String {
    let letters = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let (width, height) = (letters * LETTER + 2 * EDGE, lines.len() * LINE + 2 * EDGE);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         role=\"img\" aria-label=\"The final output of semel demo\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#16181d\"/>\n\
         <g font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\" font-size=\"13\" fill=\"#d6d9e0\">\n"
    );
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
        let y = EDGE + (number + 1) * LINE - LINE / 4;
        let fill = match line.as_str() {
            line if line.starts_with("$ ") => " fill=\"#ffffff\"",
            line if line.starts_with("WHAT ") => " fill=\"#8f96a3\"",
            line if line.starts_with("verified: ") || line.starts_with("executed twice ") => {
                " fill=\"#7bd88f\""
            }
            _ => "",
        };
        let long = line.chars().count() * LETTER;
        // Set on each line, so that columns align in any font.
        let fit = format!(" textLength=\"{long}\" lengthAdjust=\"spacingAndGlyphs\"");
        let text = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = writeln!(svg, "<text x=\"{EDGE}\" y=\"{y}\"{fit}{fill} xml:space=\"preserve\">{text}</text>");
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::{PATH, draw, end};
    use crate::tidy::tree::Tree;
    use crate::workspace::Workspace;

    #[test]
    fn the_table_and_the_last_word_are_drawn() {
        let printed = "  1.0 s  delivering\n\nWHAT      COUNT\nexecuted      7\n\nCHECK\nlog\n\nverified: 7 < 8 (1.2 s)\n";
        let lines = end(printed);
        assert_eq!(lines, ["$ semel demo", "", "WHAT      COUNT", "executed      7", "", "verified: 7 < 8"]);
        let svg = draw(&lines);
        assert!(svg.contains(">verified: 7 &lt; 8</text>") && svg.matches("<text ").count() == 4, "{svg}");
    }

    /// The picture must show the rows that the demo prints now.
    #[test]
    fn the_picture_is_of_this_demo() {
        let tree = Tree::read(&Workspace::here()).unwrap();
        let text = &tree.files.iter().find(|file| file.path == PATH).unwrap().text;
        let is_demo = |path: &str| path.starts_with("crates/semel-cli/src/demo/");
        let demo: String =
            tree.files.iter().filter(|file| is_demo(&file.path)).map(|file| file.text.as_str()).collect();
        let rows = text
            .lines()
            .filter_map(|line| line.strip_suffix("</text>")?.rsplit_once('>').map(|(_, row)| row));
        let names: Vec<&str> = rows
            .filter(|row| row.ends_with(|c: char| c.is_ascii_digit()) && !row.starts_with("verified"))
            .map(|row| row.rsplit_once("  ").map_or(row, |(name, _)| name).trim())
            .map(|name| name.trim_end_matches(|c: char| c.is_ascii_digit() || c == ',').trim_end())
            .collect();
        assert!(names.len() >= 10, "{names:?}");
        for name in names {
            assert!(
                demo.contains(&format!("\"{name}\"")),
                "the demo prints no {name:?}: cargo xtask picture"
            );
        }
    }
}
