//! What `semel tasks` and `semel workflows` share: paged lists, tables of steps, and cancelling.

use serde_json::{Value, json};

use crate::again::Again;
use crate::config::Settings;
use crate::failure::Failure;
use crate::link::{Link, Pages, Purpose, encode};
use crate::print::{Printer, Style, items, plain, text};

/// The default of `--limit`.
pub const LISTED: u64 = 50;
/// Items per page.
const PAGE: u64 = 200;

/// Tasks, or workflows.
pub struct Kind {
    /// The verb, and the member of an answer that lists them.
    pub name: &'static str,
    /// The path of the list.
    pub path: &'static str,
    /// The JSON pointer to an item in the answer about it.
    pub one: &'static str,
    /// The heads of the first four columns of a table of steps.
    pub heads: [&'static str; 4],
    /// JSON pointers to these columns in a step: name, type, state and job.
    pub columns: [&'static str; 4],
}

/// Which items to list.
pub struct Wanted {
    /// Query parameters that narrow the list down.
    pub filters: Vec<(&'static str, Option<String>)>,
    /// The most items to list.
    pub limit: u64,
    /// Only items after this one in the list, which are older.
    pub before: Option<String>,
    /// The command line for the next page, without its `--before`.
    pub again: Again,
}

impl Kind {
    /// The path of one item.
    pub fn path_of(&self, id: &str) -> String {
        format!("{}/{}", self.path, encode(id))
    }

    /// The item that an answer is about.
    pub fn of<'a>(&self, answer: &'a Value) -> &'a Value {
        answer.pointer(self.one).unwrap_or(answer)
    }

    /// Lists items, newest first.
    ///
    /// # Errors
    /// When the server cannot be asked, or the limit is 0.
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
                Failure::usage("--limit 0 lists nothing").next(format!("give the number of {name} to list"))
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

    /// Cancels an item.
    ///
    /// # Errors
    /// When the server cannot be asked, or the item cannot be cancelled.
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

    /// Prints the steps of an item.
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
