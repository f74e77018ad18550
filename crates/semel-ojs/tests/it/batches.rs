//! Requests with many jobs: how large each job may be, and how much validation all of them together may cost.

use semel_core::error::{Invalid, InvalidKind};
use semel_ojs::batch::Batch;
use semel_ojs::{Enqueue, Template, Templates, Terms, workflow};
use serde_json::json;

/// A template whose schema checks a long pattern: a string costs by its length at every place of it, even
/// where the first character decides.
fn templates() -> Templates {
    let schema = json!({ "items": { "pattern": "^(?:a|(?:[b-z]{3}x){300})" } });
    let keys = json!({ "keys": ["type"] });
    let template = json!({ "namespace": "mail", "name": "send", "unique": keys, "schema": schema });
    let mut templates = Templates::default();
    templates.add(Template::read(&template.to_string()).unwrap()).unwrap();
    templates
}

/// Each job takes most of what one may cost; a full batch of them would take minutes.
#[test]
fn the_jobs_of_a_request_share_what_their_schemas_may_cost() {
    const JOBS: usize = 200;
    let templates = templates();
    let terms = Terms { templates: Some(&templates), ..Terms::trusted() };
    let job = format!(r#"{{"type":"mail.send","args":["{}"]}}"#, "a".repeat(4_000));
    let jobs = vec![job.as_str(); JOBS].join(",");
    let text = format!(r#"{{"jobs":[{jobs}]}}"#);
    let batch = Batch::parse(&text).unwrap();
    let read: Vec<Result<Enqueue, Invalid>> = batch.requests(terms).collect();
    let fit = read.iter().take_while(|item| item.is_ok()).count();
    assert!((10..JOBS).contains(&fit), "{fit}");
    for (at, item) in read.iter().enumerate().skip(fit) {
        let refused = item.as_ref().unwrap_err();
        assert_eq!((refused.kind, &refused.pointer), (InvalidKind::TooLarge, &format!("/jobs/{at}/args")));
        assert!(refused.message.contains("send fewer jobs at once"), "{refused}");
    }
    // The steps of a workflow share it, too.
    let Err(refused) = workflow::parse(&format!(r#"{{"type":"group","jobs":[{jobs}]}}"#), terms) else {
        panic!("not refused")
    };
    assert_eq!((refused.kind, refused.pointer), (InvalidKind::TooLarge, format!("/jobs/{fit}/args")));
    // Each request has the whole allowance again.
    assert!((0..JOBS).all(|_| Enqueue::parse(&job, terms).is_ok()));
}

#[test]
fn a_job_among_others_is_no_larger_than_one_alone() {
    const MOST: usize = 1_000;
    let terms = Terms { job_bytes_max: MOST, ..Terms::trusted() };
    for (before, after) in [
        (r#"{"type":"a.b","args":[],"tags":[""#, r#""]}"#),
        (r#"{"type":"a.b","args":[],"x_own":""#, r#""}"#),
        (r#"{"type":"a.b","args":[""#, r#""]}"#),
    ] {
        let job = |bytes: usize| format!("{before}{}{after}", "x".repeat(bytes - before.len() - after.len()));
        let text = format!(r#"{{"jobs":[ {} , {} ]}}"#, job(MOST), job(MOST + 1));
        let batch = Batch::parse(&text).unwrap();
        let read: Vec<Result<Enqueue, Invalid>> = batch.requests(terms).collect();
        assert!(read[0].is_ok(), "{:?}", read[0]);
        let refused = read[1].as_ref().unwrap_err();
        assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::TooLarge, "/jobs/1"));
        assert!(refused.message.contains("1000 bytes") && refused.message.contains(';'), "{refused}");
        let chain = |last: usize| format!(r#"{{"type":"chain","steps":[{},{}]}}"#, job(MOST), job(last));
        workflow::parse(&chain(MOST), terms).unwrap();
        let refused = workflow::parse(&chain(MOST + 1), terms).unwrap_err();
        assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::TooLarge, "/steps/1"));
    }
}
