//! All templates in force, by type and version.

use std::collections::BTreeMap;

use semel_core::ident::QueueName;
use semel_core::template::compare_versions;

use super::Template;

/// All templates in force, by type and version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Templates {
    /// The versions of each type, newest last.
    by_type: BTreeMap<String, Vec<Template>>,
}

impl Templates {
    /// Adds a template; returns it if one of its type and version exists.
    ///
    /// # Errors
    /// The template that was not added.
    pub fn add(&mut self, template: Template) -> Result<(), Box<Template>> {
        let versions = self.by_type.entry(template.job_type.to_string()).or_default();
        match versions.binary_search_by(|other| compare_versions(&other.version, &template.version)) {
            Ok(_) => Err(Box::new(template)),
            Err(at) => {
                versions.insert(at, template);
                Ok(())
            }
        }
    }

    /// The template of a type: in the given version, or the newest. `None` if the type has no template.
    ///
    /// # Errors
    /// The existing versions, if the given one is not among them.
    pub fn find(&self, job_type: &str, version: Option<&str>) -> Result<Option<&Template>, Vec<&str>> {
        let Some(versions) = self.by_type.get(job_type) else { return Ok(None) };
        match version {
            None => Ok(versions.last()),
            Some(wanted) => match versions.iter().find(|template| template.version == wanted) {
                Some(template) => Ok(Some(template)),
                None => Err(versions.iter().map(|template| template.version.as_str()).collect()),
            },
        }
    }

    /// The queues that jobs of a type go to by default: one for each version of its template, without
    /// duplicates. The default queue if the type has no template.
    pub fn queues_of(&self, job_type: &str) -> Vec<QueueName> {
        let Some(versions) = self.by_type.get(job_type) else { return vec![QueueName::default()] };
        let mut queues: Vec<QueueName> = versions.iter().map(Template::queue).collect();
        queues.sort_unstable();
        queues.dedup();
        queues
    }

    /// All templates, by type, oldest version first.
    pub fn iter(&self) -> impl Iterator<Item = &Template> {
        self.by_type.values().flatten()
    }

    /// The number of templates.
    pub fn len(&self) -> usize {
        self.by_type.values().map(Vec::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_type.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYMENT: &str = r#"{"namespace":"payments","name":"process","version":"1.0.0"}"#;

    /// Two versions that look alike to a person are different, because the version is part of the jobs' identity.
    #[test]
    fn versions_are_told_apart_by_their_texts() {
        let mut templates = Templates::default();
        for version in ["1.0", "01.0", "1.00"] {
            templates.add(Template::read(&PAYMENT.replace("1.0.0", version)).unwrap()).unwrap();
        }
        for version in ["1.0", "01.0", "1.00"] {
            let found = templates.find("payments.process", Some(version)).unwrap().unwrap();
            assert_eq!(found.version, version);
        }
        assert!(templates.add(Template::read(&PAYMENT.replace("1.0.0", "01.0")).unwrap()).is_err());
    }

    #[test]
    fn the_newest_version_is_taken_unless_one_is_asked_for() {
        let mut templates = Templates::default();
        for version in ["1.10.0", "1.9.0"] {
            let text = PAYMENT.replace("1.0.0", version);
            templates.add(Template::read(&text).unwrap()).unwrap();
        }
        assert!(templates.add(Template::read(&PAYMENT.replace("1.0.0", "1.9.0")).unwrap()).is_err());
        let find =
            |version| templates.find("payments.process", version).map(|found| found.unwrap().version.clone());
        assert_eq!(find(None).unwrap(), "1.10.0");
        assert_eq!(find(Some("1.9.0")).unwrap(), "1.9.0");
        assert_eq!(find(Some("2")).unwrap_err(), ["1.9.0", "1.10.0"]);
        assert_eq!(templates.find("payments.other", None), Ok(None));
    }
    #[test]
    fn the_queues_of_a_type_are_those_of_all_its_versions() {
        let mut templates = Templates::default();
        for (version, queue) in [("1", "null"), ("2", r#""pay""#), ("3", r#""p\u0061y""#), ("4", r#""cash""#)]
        {
            let text = PAYMENT.replace("1.0.0", version).replace('}', &format!(",\"queue\":{queue}}}"));
            templates.add(Template::read(&text).unwrap()).unwrap();
        }
        let queues = |job_type| {
            let queues = templates.queues_of(job_type);
            queues.iter().map(|queue| queue.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(queues("payments.process"), ["cash", "default", "pay"]);
        assert_eq!(queues("payments.other"), ["default"]);
    }
}
