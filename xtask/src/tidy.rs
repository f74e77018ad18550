//! `cargo xtask tidy`: what must stay true of this workspace and the compiler does not check.
//!
//! - [`graph`]: which crate may depend on which.
//! - [`homes`]: what may be written in one place only: rules, state transitions, the clock.
//! - [`length`]: files and functions that have become too long.
//! - [`leftovers`]: reminders, ignored tests, paths of a single machine.
//! - [`licence`]: licences of the dependencies.
//! - [`links`]: links and anchors of the documentation, and the book's list of pages.
//! - [`metrics`]: which metrics alerts and dashboards may use.
//! - [`modules`]: files that are in no module.
//! - [`packaging`]: flags, variables and addresses in what is shipped beside the program.
//! - [`promql`]: alerts and panels that Prometheus can parse.
//! - [`publish`]: what a registry requires of each crate.
//! - [`states`]: code outside of the core that names single states of a job.
//! - [`wrappers`]: wrapper stores that fail to forward a method.
//!
//! A check reads a [`Tree`] or cargo's metadata and returns findings. Each has tests that show how it fails.

pub mod code;
pub mod graph;
pub mod homes;
pub mod leftovers;
pub mod length;
pub mod licence;
pub mod links;
pub mod metrics;
pub mod modules;
pub mod packaging;
pub mod promql;
pub mod publish;
pub mod spdx;
pub mod states;
pub mod tree;
pub mod wrappers;

use std::fmt;

use crate::workspace::Workspace;
use tree::Tree;

/// One violation of a check.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// A file and line, or a crate.
    pub place: String,
    /// What is wrong, and what to do about it.
    pub what: String,
    /// Whether it is only a warning.
    pub is_warning: bool,
}

impl Finding {
    /// A violation that must be fixed.
    pub fn error(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into(), is_warning: false }
    }

    /// A violation that is worth a thought.
    pub fn warning(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { is_warning: true, ..Self::error(place, what) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.is_warning { "warning: " } else { "" };
        write!(out, "{}: {mark}{}", self.place, self.what)
    }
}

/// Runs every check and prints its findings.
///
/// # Errors
/// The number of violations that must be fixed.
pub fn run(workspace: &Workspace) -> Result<(), String> {
    let tree = Tree::read(workspace)?;
    let metadata = workspace.metadata()?;
    let checks = [
        ("dependencies between crates", graph::check(&metadata)),
        ("rows of the crate table without a crate", graph::left_over(&metadata)),
        ("planted bugs", graph::planted(&metadata)),
        ("policy words in stores", homes::policy_words(&tree)),
        ("state changes", homes::moves(&tree)),
        ("states named outside the core", states::check(&tree)),
        ("purity of the core", homes::purity(&tree)),
        ("the clock", homes::clock(&tree)),
        ("wrapper stores", wrappers::check(&tree)),
        ("length of files", length::check(&tree)),
        ("leftovers", leftovers::check(&tree)),
        ("files in no module", modules::check(&tree)),
        ("licences", licence::check(&metadata, &tree)),
        ("links", links::check(&tree)),
        ("packaging", packaging::check(&tree)),
        ("metrics", metrics::check(&tree)),
        ("expressions of alerts and panels", promql::check(&tree)),
        ("publishing", publish::check(&metadata)),
        ("length of functions", length::functions(&tree)),
    ];
    let mut mistakes = 0;
    let mut warnings = 0;
    for (name, mut findings) in checks {
        findings.sort();
        let wrong = findings.iter().filter(|finding| !finding.is_warning).count();
        mistakes += wrong;
        warnings += findings.len() - wrong;
        println!("{name}: {}", if wrong == 0 { "ok" } else { "not tidy" });
        for finding in findings {
            println!("  {finding}");
        }
    }
    match mistakes {
        0 => {
            println!("tidy: {} files, {warnings} warnings", tree.files.len());
            Ok(())
        }
        1 => Err("1 thing is not tidy".to_owned()),
        _ => Err(format!("{mistakes} things are not tidy")),
    }
}
