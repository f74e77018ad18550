//! Requests for tasks, and what templates add to requests.

use semel_core::limits::{ARGS_BYTES_MAX, TASK_BYTES_MAX};
use semel_core::retry::{OnExhaustion, RetryPolicy};
use semel_ojs::enqueue::{Enqueue, Terms};
use semel_ojs::task::{Create, Refused};
use semel_ojs::{Template, Templates};
use serde_json::{Value, json};

fn templates(of: &[Value]) -> Templates {
    let mut templates = Templates::default();
    for template in of {
        templates.add(Template::read(&template.to_string()).unwrap()).unwrap();
    }
    templates
}

/// Each step gets the whole context, so without a bound a short request could demand any amount of room.
#[test]
fn a_context_is_bounded_by_what_all_steps_make_of_it() {
    let steps: Vec<Value> = (0..20)
        .map(|n| json!({ "name": format!("step-{n}"), "handler": "a.b", "config": "x".repeat(1_000) }))
        .collect();
    let templates =
        templates(&[json!({ "namespace": "a", "name": "long", "version": "1.0.0", "steps": steps })]);
    let create = |length: usize| {
        let context = json!({ "text": "x".repeat(length) });
        let request = json!({ "namespace": "a", "name": "long", "context": context }).to_string();
        Create::parse(&request, Terms::trusted(), &templates)
    };
    let fits = TASK_BYTES_MAX / 20 - 1_100;
    assert!(create(fits).is_ok());
    let refused = create(fits + 100).unwrap_err();
    let Refused::Invalid(invalid) = refused else { panic!("{refused:?}") };
    assert_eq!(invalid.pointer, "/context");
    assert!(invalid.message.contains("20 steps"), "{}", invalid.message);
}

/// Most of it comes from the template, and what was sent has its own bound.
#[test]
fn a_step_of_a_template_is_not_bounded_by_what_a_request_may_be() {
    let steps = json!([{ "name": "s", "handler": "a.b", "config": "x".repeat(5_000) }]);
    let templates =
        templates(&[json!({ "namespace": "a", "name": "b", "version": "1.0.0", "steps": steps })]);
    let terms = Terms { job_bytes_max: 1_000, ..Terms::trusted() };
    assert!(Create::parse(r#"{"namespace":"a","name":"b","context":{}}"#, terms, &templates).is_ok());
}

/// Otherwise it would be kept as one of the author's members, and two requests would make two tasks.
#[test]
fn a_key_that_a_task_cannot_have_is_refused() {
    let templates = templates(&[
        json!({ "namespace": "a", "name": "b", "version": "1.0.0", "steps": [{ "name": "s", "handler": "a.b" }] }),
    ]);
    let create = |more: Value| {
        let mut request = json!({ "namespace": "a", "name": "b", "context": {} });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Create::parse(&request.to_string(), Terms::trusted(), &templates)
    };
    assert!(create(json!({})).is_ok());
    let Err(Refused::Invalid(invalid)) = create(json!({ "unique_key": "evt_1" })) else { panic!() };
    assert_eq!(invalid.pointer, "/unique_key");
}

/// What a template cannot say either needs another remedy.
#[test]
fn what_a_task_cannot_have_is_refused_with_what_to_do_instead() {
    let templates = templates(&[
        json!({ "namespace": "a", "name": "b", "version": "1.0.0", "steps": [{ "name": "s", "handler": "a.b" }] }),
    ]);
    for (member, instead) in [
        ("queue", "its template sets this"),
        ("retry", "its template sets this"),
        ("timeout_ms", "its template sets this"),
        ("id", "Idempotency-Key"),
        ("type", "namespace"),
        ("args", "context"),
        ("meta", "next to the context"),
        ("unique_key", "idempotency_key"),
        ("scheduled_at", "create it when"),
        ("delay_until", "create it when"),
        ("pending", "create it when"),
        ("expires_at", "cancel it"),
        ("rate_limit", "a job of its own"),
        ("sensitive", "a job of its own"),
    ] {
        let mut request = json!({ "namespace": "a", "name": "b", "context": {} });
        request[member] = json!("x");
        let Err(Refused::Invalid(invalid)) =
            Create::parse(&request.to_string(), Terms::trusted(), &templates)
        else {
            panic!("{member}")
        };
        assert_eq!(invalid.pointer, format!("/{member}"));
        assert!(invalid.message.contains(instead), "{invalid}");
        let by_template = json!({ "namespace": "a", "name": "c", member: null });
        assert_eq!(
            Template::read(&by_template.to_string()).is_ok(),
            instead.contains("template"),
            "{member}"
        );
    }
}

/// The args are made of the context, and a step's of its config too: the caller sent neither.
#[test]
fn what_is_wrong_with_the_args_is_told_of_the_context_alone() {
    let config: Value = serde_json::from_str(&format!("{}{}", "[".repeat(64), "]".repeat(64))).unwrap();
    let step = json!({ "name": "s", "handler": "a.b", "config": config });
    let templates = templates(&[
        json!({ "namespace": "a", "name": "deep", "steps": [step] }),
        json!({ "namespace": "a", "name": "b", "steps": [{ "name": "s", "handler": "a.b" }] }),
    ]);
    let place = |name: &str, context: Value| {
        let request = json!({ "namespace": "a", "name": name, "context": context }).to_string();
        match Create::parse(&request, Terms::trusted(), &templates) {
            Err(Refused::Invalid(invalid)) => invalid.pointer,
            other => panic!("{other:?}"),
        }
    };
    let in_config = place("deep", json!({}));
    assert!(in_config.starts_with("/args/1/0"), "{in_config}");
    assert_eq!(place("b", json!({ "n": 9_007_199_254_740_993_u64 })), "/context/n");
    assert_eq!(place("b", json!({ "text": "x".repeat(ARGS_BYTES_MAX) })), "/context");
}

/// A template without an identity gets one as soon as a request brings a key, so its faults must be reported
/// before.
#[test]
fn what_stands_beside_no_identity_is_checked_as_well() {
    let read = |unique: Value| {
        Template::read(&json!({ "namespace": "a", "name": "b", "unique": unique }).to_string())
    };
    assert!(read(json!("always_unique")).is_ok());
    assert!(read(json!({ "preset": "always_unique", "period": "P1D" })).is_ok());
    for odd in
        [json!({ "states": ["bogus"] }), json!({ "period": "soon" }), json!({ "on_conflict": "ignored" })]
    {
        let mut unique = odd.clone();
        unique["preset"] = json!("always_unique");
        assert!(read(unique).is_err(), "{odd}");
    }
}

/// Of two members with one name, readers would disagree on which counts.
#[test]
fn a_templates_version_stands_once_in_what_is_kept() {
    let templates =
        templates(&[json!({ "namespace": "email", "name": "send", "version": "1.0.0", "queue": "mail" })]);
    let read = |version: Value| {
        let request = json!({ "type": "email.send", "args": [], "version": version }).to_string();
        Enqueue::parse(&request, Terms { templates: Some(&templates), ..Terms::trusted() })
    };
    let (offer, _) = read(Value::Null).unwrap().into_parts();
    let kept = String::from_utf8_lossy(&offer.body).into_owned();
    assert_eq!(kept.matches("\"version\":").count(), 1, "{kept}");
    for odd in [json!(true), json!({}), json!([])] {
        assert_eq!(read(odd).unwrap_err().pointer, "/version");
    }
}

/// If it were ignored, the job would be one of the newest version, under that version's key.
#[test]
fn a_version_among_the_options_of_a_templates_job_is_refused() {
    let templates = templates(&[json!({ "namespace": "email", "name": "send", "version": "1.0.0" })]);
    let read = |job_type: &str, version: Value| {
        let request = json!({ "type": job_type, "args": [], "options": { "version": version } }).to_string();
        Enqueue::parse(&request, Terms { templates: Some(&templates), ..Terms::trusted() })
    };
    assert_eq!(read("email.send", json!("1.0.0")).unwrap_err().pointer, "/options/version");
    // A null version says nothing, and types without a template may have one.
    assert!(read("email.send", Value::Null).is_ok() && read("email.other", json!("1.0.0")).is_ok());
}

/// In either spelling: together they would contradict each other.
#[test]
fn what_a_request_says_stands_before_what_its_template_says_of_the_same() {
    let templates = templates(&[json!({
        "namespace": "email", "name": "send", "timeout_ms": 7_000, "visibility_timeout_ms": 8_000, "max_attempts": 9,
    })]);
    let read = |options: Value| {
        let request = json!({ "type": "email.send", "args": [], "options": options }).to_string();
        let terms = Terms { templates: Some(&templates), ..Terms::trusted() };
        let offer = Enqueue::parse(&request, terms).unwrap().into_parts().0;
        (offer.timeout_ms, offer.visibility_ms, offer.max_attempts)
    };
    assert_eq!(read(json!({})), (7_000, 8_000, 9));
    let other = json!({ "timeout": 5, "visibility_timeout": "PT6S", "retry": { "max_attempts": 4 } });
    assert_eq!(read(other), (5_000, 6_000, 4));
}

/// The policy is taken as a whole: half of one and half of another is what neither author meant.
#[test]
fn what_a_request_says_of_retries_takes_the_place_of_all_that_its_template_says() {
    let retry = json!({ "max_attempts": 9, "initial_interval": "PT7S", "on_exhaustion": "dead_letter" });
    let templates = templates(&[json!({ "namespace": "email", "name": "send", "retry": retry })]);
    let read = |options: Value| {
        let request = json!({ "type": "email.send", "args": [], "options": options }).to_string();
        let terms = Terms { templates: Some(&templates), ..Terms::trusted() };
        Enqueue::parse(&request, terms).unwrap().body.retry
    };
    let own = RetryPolicy { max_attempts: 2, ..RetryPolicy::default() };
    assert_eq!(own.on_exhaustion, OnExhaustion::Discard);
    for options in [json!({ "retry": { "max_attempts": 2 } }), json!({ "max_attempts": 2 })] {
        assert_eq!(read(options.clone()), own, "{options}");
    }
    let kept = read(json!({ "priority": 1 }));
    assert_eq!((kept.max_attempts, kept.on_exhaustion), (9, OnExhaustion::DeadLetter));
}
