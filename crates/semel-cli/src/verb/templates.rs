//! `semel templates`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use semel_core::unique::advice;
use semel_ojs::Template;
use semel_ojs::write::object;
use semel_templates::{Fault, Loaded, load};
use serde_json::{Value, json};

use crate::config::{Globals, Settings};
use crate::failure::{Exit, Failure};
use crate::print::Printer;

/// The most faults that are listed; further ones are only counted.
const TOLD_MAX: usize = 50;

/// Check, list or show the templates in a directory
#[derive(Args, Debug)]
#[command(after_help = "\
A template sets the rules for all jobs of one type, namespace.name: which of them are duplicates, the queue, retries.
A template with steps defines a task: POST /v1/tasks creates it. Each template is a YAML file; semel serve
--templates DIR reads them.

  namespace: payments
  name: process_payment
  version: \"1.0.0\"
  identity_strategy: strict        # strict, caller_provided or always_unique; or unique: as in a request
  queue: billing
  steps:
    - name: validate
      handler: payment.validate    # the type of the step's job
    - name: capture
      handler: payment.capture
      depends_on: [validate]
      max_attempts: 5
  schema:                          # what a task's context, or a job's args, must conform to
    type: object
    required: [payment_id]

Examples:
  semel templates check ./templates
  semel templates list ./templates
  semel templates show payments.process_payment ./templates --json
  SEMEL_TEMPLATES=./templates semel templates list")]
pub struct Templates {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Report every error by file and line; exits with 2 if there is one
    Check {
        /// The directory [default: from SEMEL_TEMPLATES or semel.toml]
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
    /// List the templates
    List {
        /// The directory [default: from SEMEL_TEMPLATES or semel.toml]
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
    /// Show one template, in its newest version
    Show {
        /// The type of the template's jobs: namespace.name
        #[arg(value_name = "TYPE")]
        job_type: String,
        /// The directory [default: from SEMEL_TEMPLATES or semel.toml]
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
        /// Show this version instead
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
    },
}

impl Templates {
    /// Reads the directory and runs the action. Asks no server.
    ///
    /// # Errors
    /// When no directory is named, something in it is wrong, or there is no such template.
    pub fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let folder = |named: Option<PathBuf>| match named {
            Some(named) => Ok(named),
            None => Settings::read(globals, None)?.templates.ok_or_else(|| {
                Failure::usage("no template directory is given")
                    .next("name it, as in semel templates check ./templates, or set SEMEL_TEMPLATES")
            }),
        };
        match self.action {
            Action::Check { folder: named } => check(&folder(named)?, printer),
            Action::List { folder: named } => {
                list(&read(&folder(named)?)?, printer);
                Ok(())
            }
            Action::Show { job_type, folder: named, version } => {
                show(&read(&folder(named)?)?, &job_type, version.as_deref(), printer)
            }
        }
    }
}

/// The advice on the policies of templates, each with its type and version.
pub fn thoughts(templates: &semel_ojs::Templates) -> Vec<String> {
    let of_one = |template: &Template| {
        let (job_type, version) = (template.job_type.to_string(), template.version.clone());
        let open = template.policy().map(|policy| advice(&policy)).unwrap_or_default();
        open.into_iter().map(move |advice| format!("{job_type} {version}: {}", advice.trace()))
    };
    templates.iter().flat_map(of_one).collect()
}

/// The templates of the directory that the settings name; none if they name none.
///
/// # Errors
/// Everything that is wrong with them.
pub fn of(settings: &Settings) -> Result<semel_ojs::Templates, Failure> {
    match &settings.templates {
        None => Ok(semel_ojs::Templates::default()),
        Some(folder) => Ok(read(folder)?.templates),
    }
}

/// Reads a directory whose templates are to be used.
///
/// # Errors
/// Everything that is wrong, by file and line.
pub fn read(folder: &Path) -> Result<Loaded, Failure> {
    load(folder).map_err(|faults| {
        Failure::usage(told(&faults)).next("correct the files; semel templates check DIR checks them")
    })
}

fn told(faults: &[Fault]) -> String {
    let mut lines: Vec<String> = faults.iter().take(TOLD_MAX).map(ToString::to_string).collect();
    if faults.len() > TOLD_MAX {
        lines.push(format!("and {} more", faults.len() - TOLD_MAX));
    }
    lines.join("\n")
}

fn check(folder: &Path, printer: &Printer) -> Result<(), Failure> {
    match load(folder) {
        Ok(loaded) => {
            let thoughts = thoughts(&loaded.templates);
            if printer.is_json() {
                printer.value(&json!({
                    "valid": true,
                    "templates": loaded.templates.len(),
                    "faults": [],
                    "advice": thoughts,
                }));
                return Ok(());
            }
            printer.line(format_args!("{} templates, all valid", loaded.templates.len()));
            for thought in &thoughts {
                printer.line(format_args!("advice: {thought}"));
            }
            Ok(())
        }
        Err(faults) => {
            if printer.is_json() {
                let shown: Vec<Value> = faults.iter().map(fault).collect();
                printer.value(&json!({ "valid": false, "templates": 0, "faults": shown }));
            }
            Err(Failure::usage(told(&faults)).next("correct the files; nothing was loaded"))
        }
    }
}

fn fault(fault: &Fault) -> Value {
    json!({
        "file": fault.path.display().to_string(),
        "line": fault.place.map(|place| place.line),
        "column": fault.place.map(|place| place.column),
        "pointer": fault.pointer,
        "message": fault.message,
    })
}

fn whole(template: &Template) -> Value {
    let mut text = String::new();
    object(&mut text, |object| template.put(object));
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

fn list(loaded: &Loaded, printer: &Printer) {
    if printer.is_json() {
        let shown: Vec<Value> = loaded.templates.iter().map(whole).collect();
        printer.value(&json!({ "templates": shown }));
        return;
    }
    if loaded.templates.is_empty() {
        printer.remark("no templates");
        return;
    }
    let rows = loaded.templates.iter().map(|template| {
        let file = loaded.files.iter().find(|(_, job_type, version)| {
            *job_type == template.job_type.as_str() && *version == template.version
        });
        vec![
            template.job_type.to_string(),
            template.version.clone(),
            identity(template),
            template.steps.len().to_string(),
            file.map(|(path, ..)| path.display().to_string()).unwrap_or_default(),
        ]
    });
    printer.table(&["TYPE", "VERSION", "IDENTITY", ">STEPS", "FILE"], rows);
}

/// The preset of the template's unique policy, and the members by which the template overrides it.
fn identity(template: &Template) -> String {
    let unique = &whole(template)["unique"];
    let Some(preset) = unique.as_str().or(unique["preset"].as_str()) else {
        return "its own policy".to_owned();
    };
    let members = unique.as_object().into_iter().flatten();
    let own = members.filter(|(name, value)| *name != "preset" && !value.is_null());
    let own: Vec<&str> = own.map(|(name, _)| name.as_str()).collect();
    if own.is_empty() { preset.to_owned() } else { format!("{preset} with its own {}", own.join(", ")) }
}

fn show(loaded: &Loaded, job_type: &str, version: Option<&str>, printer: &Printer) -> Result<(), Failure> {
    let missing = |what: String| {
        Failure::new(Exit::NotFound, what).next("semel templates list DIR lists the templates")
    };
    let template = match loaded.templates.find(job_type, version) {
        Ok(Some(template)) => template,
        Ok(None) => return Err(missing(format!("there is no template {job_type}"))),
        Err(known) => return Err(missing(format!("{job_type} has only the versions {}", known.join(", ")))),
    };
    let shown = whole(template);
    if printer.is_json() {
        printer.value(&shown);
        return Ok(());
    }
    printer.facts([
        ("type", job_type.to_owned()),
        ("version", template.version.clone()),
        ("description", template.description.clone().unwrap_or_default()),
        ("unique", shown["unique"].as_str().map_or_else(|| shown["unique"].to_string(), str::to_owned)),
    ]);
    if let Some(schema) = &template.schema {
        let tree: Option<Value> = serde_json::from_str(schema.text()).ok();
        let pretty = tree.and_then(|tree| serde_json::to_string_pretty(&tree).ok());
        let of = if template.steps.is_empty() { "args" } else { "context" };
        printer.line(format_args!("schema of the {of}: {}", pretty.as_deref().unwrap_or(schema.text())));
    }
    if template.steps.is_empty() {
        return Ok(());
    }
    let rows = template.steps.iter().map(|step| {
        let after: Vec<&str> = step
            .after
            .iter()
            .filter_map(|at| template.steps.get(*at as usize))
            .map(|step| step.name.as_str())
            .collect();
        vec![step.name.clone(), step.handler.to_string(), after.join(" ")]
    });
    printer.table(&["STEP", "HANDLER", "AFTER"], rows);
    Ok(())
}
