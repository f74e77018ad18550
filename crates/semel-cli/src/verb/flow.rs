//! What `semel tasks` and `semel workflows` have in common: lists by pages, tables of steps, and the end of one by hand.

use serde_json::{Value, json};

use crate::again::Again;
use crate::config::Settings;
use crate::failure::Failure;
use crate::link::{Link, Pages, Purpose, encode};
use crate::print::{Printer, Style, items, plain, text};

/// Things that are listed unless more are asked for.
pub const LISTED: u64 = 50;
/// Things of a page.
const PAGE: u64 = 200;

/// Tasks, or workflows.
pub struct Kind {
    /// The verb, and the member of an answer that lists them.
    pub name: &'static str,
    /// Where the server has them.
    pub path: &'static str,
    /// Where one is in the answer about it: a JSON pointer.
    pub one: &'static str,
    /// The heads of the first four columns of a table of steps.
    pub heads: [&'static str; 4],
    /// The members of a step that are in them: name, type, state and job.
    pub columns: [&'static str; 4],
}

/// Which of them.
pub struct Wanted {
    /// What narrows them down.
    pub filters: Vec<(&'static str, Option<String>)>,
    /// At most so many.
    pub limit: u64,
    /// Those before this one.
    pub before: Option<String>,
    /// What to type for the others, but for where it goes on.
    pub again: Again,
}

impl Kind {
    /// Where the server has this one.
    pub fn path_of(&self, id: &str) -> String {
        format!("{}/{}", self.path, encode(id))
    }

    /// The one that an answer is about.
    pub fn of<'a>(&self, answer: &'a Value) -> &'a Value {
        answer.pointer(self.one).unwrap_or(answer)
    }

    /// Lists them, the newest first.
    ///
    /// # Errors
    /// When the server cannot be asked, or nothing is to be listed.
    pub async fn list(
        &self,
        settings: &Settings,
        printer: &Printer,
        wanted: Wanted,
        heads: &[&str],
        row: impl Fn(&Value) -> Vec<String>,
    ) -> Result<(), Failure> {
        let (name, Wanted { filters, limit, before, again }) = (self.name, wanted);
        if limit == 0 {
            return Err(
                Failure::usage("--limit 0 lists nothing").next(format!("give how many {name} to list"))
            );
        }
        let pages = Pages { path: self.path, filters, member: name, page: PAGE };
        let (found, next) = Link::with(settings, Purpose::Look, async |client| {
            pages.read(client, before.clone(), limit).await
        })
        .await?;
        if printer.is_json() {
            let pagination = json!({ "has_more": next.is_some(), "next_cursor": next });
            printer.value(&json!({ name: found, "pagination": pagination }));
            return Ok(());
        }
        if found.is_empty() {
            printer.remark(format_args!("no {name}"));
            return Ok(());
        }
        printer.table(heads, found.iter().map(row));
        if let Some(next) = next {
            let next = again.with("--before", Some(next));
            printer.remark(format_args!("there may be more: {next}"));
        }
        Ok(())
    }

    /// Cancels one.
    ///
    /// # Errors
    /// When the server cannot be asked, or there is nothing of it to cancel.
    pub async fn cancel(&self, settings: &Settings, printer: &Printer, id: &str) -> Result<(), Failure> {
        let path = self.path_of(id);
        let answer =
            Link::with(settings, Purpose::Change, async |client| Ok(client.delete_json(&path).await?))
                .await?;
        if printer.is_json() {
            printer.value(self.of(&answer));
        } else {
            printer.line(format_args!("{id} is cancelled"));
        }
        Ok(())
    }

    /// The steps of one.
    pub fn steps(&self, printer: &Printer, one: &Value) {
        let rows = items(one, "/steps").iter().map(|step| {
            let [name, job_type, state, job] = self.columns.map(|column| text(step, column));
            let after: Vec<String> =
                items(step, "/depends_on").iter().filter_map(|id| id.as_str().map(plain)).collect();
            let state = printer.styled(style(&state), &state);
            vec![name, job_type, state, job, after.join(" "), text(step, "/error/message")]
        });
        let [name, job_type, state, job] = self.heads;
        printer.table(&[name, job_type, state, job, "AFTER", "ERROR"], rows);
    }
}

/// How a state is shown.
pub fn style(state: &str) -> Style {
    if matches!(state, "failed" | "cancelled") { Style::Bad } else { Style::Good }
}
