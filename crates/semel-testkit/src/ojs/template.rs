//! Texts that contain values of earlier answers: `/ojs/v1/jobs/{{steps.step-1.response.body.job.id}}`.

use serde_json::Value;

use super::answer::{Answers, shown};
use super::path::Path;

/// A text whose templates are filled in when the step is played.
#[derive(Debug)]
pub(super) struct Text(Vec<Part>);

#[derive(Debug)]
enum Part {
    Plain(String),
    Value(Reference),
}

/// A value in the body of an earlier answer.
#[derive(Debug)]
pub(super) struct Reference {
    step: String,
    path: Path,
}

impl Text {
    /// Splits a text at its templates. Other braces, such as `{{job_id}}`, are plain text, as in the official
    /// runner.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        let mut plain = String::new();
        while let Some((before, after)) = rest.split_once("{{") {
            plain.push_str(before);
            if after.trim_start().starts_with("steps.") {
                let (inner, behind) =
                    after.split_once("}}").ok_or_else(|| format!("the template {after:?} does not end"))?;
                parts.push(Part::Plain(std::mem::take(&mut plain)));
                parts.push(Part::Value(Reference::parse(inner)?));
                rest = behind;
            } else {
                plain.push_str("{{");
                rest = after;
            }
        }
        plain.push_str(rest);
        parts.push(Part::Plain(plain));
        Ok(Self(parts))
    }

    /// The text with its templates filled in.
    pub(super) fn render(&self, answers: &Answers) -> Result<String, String> {
        self.fill(answers, |text| text.to_owned())
    }

    /// The same inside JSON text: strings are escaped, so that a quote in a value cannot end the surrounding
    /// string.
    pub(super) fn render_json(&self, answers: &Answers) -> Result<String, String> {
        self.fill(answers, |text| {
            let quoted = Value::from(text).to_string();
            quoted[1..quoted.len() - 1].to_owned()
        })
    }

    fn fill(&self, answers: &Answers, write: impl Fn(&str) -> String) -> Result<String, String> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Plain(plain) => text.push_str(plain),
                Part::Value(reference) => match reference.value(answers)? {
                    Value::Null => {
                        return Err(format!("a template finds null in the answer to {:?}", reference.step));
                    }
                    Value::String(value) => text.push_str(&write(&value)),
                    // As in the official runner: other values are spliced in as JSON.
                    other => text.push_str(&other.to_string()),
                },
            }
        }
        Ok(text)
    }
}

impl Reference {
    /// Parses `steps.ID.response.body`, optionally followed by a path.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let parsed = text.strip_prefix("steps.").and_then(|text| text.split_once(".response.body"));
        match parsed {
            Some((step, rest)) if !step.is_empty() && !step.contains('.') => {
                let path = match rest.strip_prefix('.') {
                    Some(path) => Path::parse(path)?,
                    None => Path::parse(&format!("${rest}"))?,
                };
                Ok(Self { step: step.to_owned(), path })
            }
            _ => Err(format!("the template {text:?} is not understood")),
        }
    }

    /// Parses a text that consists of one template.
    pub(super) fn parse_template(text: &str) -> Result<Self, String> {
        let inner = text.strip_prefix("{{").and_then(|text| text.strip_suffix("}}"));
        Self::parse(inner.ok_or_else(|| format!("{text:?} is not a template"))?)
    }

    /// The value referred to.
    pub(super) fn value(&self, answers: &Answers) -> Result<Value, String> {
        let step = &self.step;
        let answer =
            answers.get(step).ok_or_else(|| format!("a template refers to {step:?}, which has no answer"))?;
        let json = answer
            .json
            .as_ref()
            .ok_or_else(|| format!("a template refers to {step:?}, whose answer is not JSON"))?;
        self.path.find(json, answers)?.ok_or_else(|| {
            format!("a template finds nothing in the answer to {step:?}, {}", shown(Some(json)))
        })
    }
}
