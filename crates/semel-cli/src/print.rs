//! Everything that is printed: tables and sentences for people, JSON for programs.
//!
//! What was asked for goes to stdout; errors and remarks go to stderr, so that a pipe gets the one without the other.

use std::fmt::{Arguments, Display};
use std::io::{ErrorKind, IsTerminal, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde_json::{Value, json};

use crate::failure::Failure;

/// How text is highlighted on a terminal.
#[derive(Clone, Copy, Debug)]
pub enum Style {
    /// Of first importance.
    Bold,
    /// Of less importance.
    Dim,
    /// As it should be.
    Good,
    /// Not as it should be.
    Bad,
}

/// Prints for a person or for a program.
#[derive(Clone, Debug)]
pub struct Printer {
    json: bool,
    out_is_terminal: bool,
    colour_out: bool,
    colour_err: bool,
}

impl Printer {
    /// A printer; `json` says whether a program reads its output.
    pub fn new(json: bool) -> Self {
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let out_is_terminal = std::io::stdout().is_terminal();
        Self {
            json,
            out_is_terminal,
            colour_out: colour && out_is_terminal && !json,
            colour_err: colour && std::io::stderr().is_terminal() && !json,
        }
    }

    /// Whether a program reads the output.
    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// Whether stderr, or else stdout, shows colours.
    pub const fn has_colour(&self, is_stderr: bool) -> bool {
        if is_stderr { self.colour_err } else { self.colour_out }
    }

    /// Whether stdout is a terminal that a line can be redrawn on.
    pub const fn can_redraw(&self) -> bool {
        self.out_is_terminal && self.colour_out
    }

    /// A line on stdout.
    pub fn line(&self, text: impl Display) {
        put(format_args!("{text}\n"));
    }

    /// Writes lines over the `before` lines that the last such call wrote.
    pub fn redraw(&self, lines: &[String], before: usize) {
        let mut text = if before > 0 { format!("\x1b[{before}A") } else { String::new() };
        for line in lines {
            text.push_str(&format!("\r\x1b[2K{line}\n"));
        }
        put(format_args!("{text}"));
    }

    /// Clears the terminal and shows these lines from its top.
    pub fn screen(&self, lines: &[String]) {
        let mut text = String::from("\x1b[H");
        for line in lines {
            text.push_str(&format!("{line}\x1b[K\n"));
        }
        text.push_str("\x1b[J");
        put(format_args!("{text}"));
    }

    /// A remark for people, on stderr; programs do not get it.
    pub fn remark(&self, text: impl Display) {
        if !self.json {
            remark(format_args!("{text}\n"));
        }
    }

    /// A question, whose answer is read from stdin.
    pub fn ask(&self, question: &str) -> Option<String> {
        remark(format_args!("{question} "));
        let mut answer = String::new();
        match std::io::stdin().read_line(&mut answer) {
            Ok(0) | Err(_) => {
                // What is printed next starts on a line of its own.
                remark(format_args!("\n"));
                None
            }
            Ok(_) => Some(answer.trim().to_owned()),
        }
    }

    /// Whether the answer to a question is yes.
    pub fn agrees(&self, question: &str) -> bool {
        self.ask(question).is_some_and(|answer| matches!(answer.to_lowercase().as_str(), "y" | "yes"))
    }

    /// A value for a program, on one line.
    pub fn value(&self, value: &Value) {
        self.line(value);
    }

    /// A table for people. A column whose heading begins with `>` is aligned to the right.
    pub fn table(&self, headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        if headings.iter().any(|heading| !heading.is_empty()) {
            table.set_header(
                headings.iter().map(|heading| self.styled(Style::Dim, heading.trim_start_matches('>'))),
            );
        }
        for row in rows {
            table.add_row(row);
        }
        for (at, heading) in headings.iter().enumerate() {
            if let Some(column) = table.column_mut(at) {
                column.set_padding((0, 2));
                if heading.starts_with('>') {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        for line in table.lines() {
            self.line(line.trim_end());
        }
    }

    /// A list of names and values.
    pub fn facts<'a>(&self, facts: impl IntoIterator<Item = (&'a str, String)>) {
        let rows: Vec<Vec<String>> =
            facts.into_iter().map(|(name, value)| vec![self.styled(Style::Dim, name), value]).collect();
        self.table(&["", ""], rows);
    }

    /// The text, highlighted if stdout shows colours.
    pub fn styled(&self, style: Style, text: &str) -> String {
        paint(self.colour_out, style, text)
    }

    /// Reports on stderr why a verb failed.
    pub fn failure(&self, failure: &Failure) {
        if self.json {
            let answer = failure.answer.as_ref().and_then(|body| serde_json::from_slice::<Value>(body).ok());
            let value = answer.filter(|answer| answer.get("error").is_some()).unwrap_or_else(
                || json!({ "error": { "code": "cli", "message": failure.what, "hint": failure.next } }),
            );
            remark(format_args!("{value}\n"));
            return;
        }
        // A failure with several causes has a line for each.
        let what = failure.what.lines().map(plain).collect::<Vec<_>>().join("\n  ");
        remark(format_args!("{}: {what}\n", paint(self.colour_err, Style::Bad, "error")));
        if let Some(next) = &failure.next {
            let next = plain(next);
            remark(format_args!("{}: {next}\n", paint(self.colour_err, Style::Dim, " next")));
        }
    }
}

fn paint(colour: bool, style: Style, text: &str) -> String {
    let code = match style {
        Style::Bold => "1",
        Style::Dim => "2",
        Style::Good => "32",
        Style::Bad => "1;31",
    };
    if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Writes a result to stdout. If the reader of a pipe has closed it (`semel jobs | head`), the process ends
/// with 0: nobody is left to tell, and nothing is wrong. On any other write error it ends with 1, so that a
/// script does not take partial output for all.
pub fn put(text: Arguments<'_>) {
    let Err(error) = try_put(text) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    remark(format_args!(
        "error: cannot write to stdout: {error}; the command may have taken effect all the same\n"
    ));
    std::process::exit(1);
}

/// Writes a line to stdout that is not a result; the caller goes on if it cannot be written.
///
/// # Errors
/// When it cannot be written.
pub fn try_put(text: Arguments<'_>) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_fmt(text).and_then(|()| out.flush())
}

/// Writes to stderr. A write error is ignored: there is nowhere to report it, and the exit code still tells.
pub fn remark(text: Arguments<'_>) {
    let mut err = std::io::stderr().lock();
    drop(err.write_fmt(text).and_then(|()| err.flush()));
}

/// Makes text that others wrote safe for a terminal: a character that would move the cursor, change the title
/// or reverse the text is shown as a replacement character, and a line break or tab, which would break a
/// table, as a space. Programs get the text as it is, with `--json`.
pub fn plain(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => ' ',
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// The value of a member of any type, as [`plain`] text; `-` if it is missing or null.
pub fn text(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => plain(text),
        // JSON does not escape all characters that a terminal obeys.
        Some(other) => plain(&other.to_string()),
    }
}

/// The number of a member; 0 if it is missing.
pub fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

/// The items of a list; none if it is missing.
pub fn items<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A time without its fraction, as people read it.
pub fn moment(value: &Value, pointer: &str) -> String {
    let text = text(value, pointer);
    match text.split_once('.') {
        Some((whole, fraction)) if fraction.ends_with('Z') => format!("{whole}Z"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker's message could set the title of the operator's terminal, and its line breaks would break the
    /// table.
    #[test]
    fn what_others_wrote_is_no_command_to_the_terminal() {
        let wrote = "a\u{1b}]0;title\u{7}b\nc\td\u{9b}2Je\u{7f}f\u{202e}g \u{e9}\u{1f980}";
        let value = json!({ "text": wrote, "args": [wrote] });
        for shown in [text(&value, "/text"), text(&value, "/args")] {
            let obeyed = |c: char| c.is_control() || c == '\u{202e}';
            assert!(!shown.contains(obeyed), "{shown:?}");
            assert!(shown.contains("\u{e9}\u{1f980}"), "{shown:?}");
        }
        assert_eq!(plain("a\nb\tc"), "a b c");
    }
}
