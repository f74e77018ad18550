use std::time::Duration;

use semel_core::body::Body;
use semel_core::enqueue::{Start, When};
use semel_core::error::InvalidKind;
use semel_core::limits::META_BYTES_MAX;
use semel_core::retry::{Backoff, OnExhaustion, RetryPolicy};
use semel_core::time::Timestamp;
use semel_core::unique::{PolicySpec, UniquePolicy};

use crate::{all_refused, read, refused};

#[test]
fn the_least_request_takes_the_defaults() {
    let request = read(r#"{"type":"email.send","args":[]}"#);
    let offer = &request.offer;
    assert_eq!((offer.queue.as_str(), offer.priority, offer.max_attempts), ("default", 0, 3));
    assert_eq!((offer.start, offer.expires, offer.id), (Start::Now, None, None));
    assert!(offer.unique.is_none() && offer.inspect);
    assert_eq!((&*request.body.meta, &*request.body.extra), ("{}", "{}"));
    assert_eq!(request.body.request_digest, None);
}

#[test]
fn attributes_may_stand_in_options_or_at_the_top() {
    let attributes = r#""queue":"reports","priority":-7,"timeout_ms":5000,"visibility_timeout_ms":9000,
        "scheduled_at":"2030-01-01T00:00:00Z","expires_at":"+PT1H","tags":["a","b"],"max_attempts":7"#;
    let inside = read(&format!(r#"{{"type":"a.b","args":[1],"options":{{{attributes}}}}}"#));
    let at_top = read(&format!(r#"{{"type":"a.b","args":[1],{attributes}}}"#));
    for request in [&inside, &at_top] {
        let offer = &request.offer;
        assert_eq!((offer.queue.as_str(), offer.priority), ("reports", -7));
        assert_eq!((offer.timeout_ms, offer.visibility_ms, offer.max_attempts), (5_000, 9_000, 7));
        let at = Timestamp::parse("2030-01-01T00:00:00Z", "").unwrap();
        assert_eq!(offer.start, Start::Later(When::At(at)));
        assert_eq!(offer.expires, Some(When::In(Duration::from_secs(3_600))));
        assert_eq!(request.body.tags, ["a", "b"]);
    }
    // Giving the same value twice is not a contradiction.
    let both =
        read(r#"{"type":"a.b","args":[],"priority":1,"options":{"priority":1,"delay_until":"+PT2S"}}"#);
    assert_eq!(both.offer.start, Start::Later(When::In(Duration::from_secs(2))));
    assert_eq!(read(r#"{"type":"a.b","args":[],"timeout":30}"#).offer.timeout_ms, 30_000);
    assert_eq!(
        read(r#"{"type":"a.b","args":[],"options":{"pending":true}}"#).offer.start,
        Start::OnActivation
    );
}

/// OJS has both spellings of the lease's length.
#[test]
fn a_visibility_timeout_may_be_a_duration() {
    for (member, millis) in [
        (r#""visibility_timeout":"PT30S""#, 30_000),
        (r#""visibility_timeout":"1m30s""#, 90_000),
        (r#""visibility_timeout":"PT0.0001S""#, 1),
        (r#""visibility_timeout":"PT0S""#, 0),
        (r#""visibility_timeout":"P30D","visibility_timeout_ms":2592000000"#, 2_592_000_000),
        (r#""visibility_timeout":null,"visibility_timeout_ms":5"#, 5),
    ] {
        for text in [
            format!(r#"{{"type":"a.b","args":[],"options":{{{member}}}}}"#),
            format!(r#"{{"type":"a.b","args":[],{member}}}"#),
        ] {
            let request = read(&text);
            assert_eq!((request.offer.visibility_ms, &*request.body.extra), (millis, "{}"), "{text}");
        }
    }
    all_refused(&[
        (
            r#"{"type":"a.b","args":[],"options":{"visibility_timeout":"soon"}}"#,
            "/options/visibility_timeout",
        ),
        (r#"{"type":"a.b","args":[],"options":{"visibility_timeout":30}}"#, "/options/visibility_timeout"),
        (r#"{"type":"a.b","args":[],"visibility_timeout":"P31D"}"#, "/visibility_timeout"),
        (
            r#"{"type":"a.b","args":[],"options":{"visibility_timeout":"PT1S","visibility_timeout_ms":2000}}"#,
            "/options/visibility_timeout",
        ),
    ]);
}

#[test]
fn null_means_that_nothing_was_sent() {
    let request = read(
        r#"{"type":"a.b","args":[],"id":null,"meta":null,"unique":null,"retry":null,"options":{"queue":null,"unique":null,"metadata":null}}"#,
    );
    assert_eq!(request.offer.queue.as_str(), "default");
    assert!(request.offer.unique.is_none());
    assert!(read(r#"{"type":"a.b","args":[],"options":null}"#).offer.id.is_none());
}

#[test]
fn args_and_meta_are_kept_byte_for_byte() {
    let request =
        read("{\"type\":\"a.b\",\"args\": [ 1.50, {\"b\":1, \"a\":\"\\u00e9\"} ] ,\"meta\":{ \"x\" : 1e3 }}");
    assert_eq!(&*request.body.args, "[ 1.50, {\"b\":1, \"a\":\"\\u00e9\"} ]");
    assert_eq!(&*request.body.meta, "{ \"x\" : 1e3 }");
}

#[test]
fn metadata_is_merged_into_meta() {
    let merged = |request: &str| read(request).body.meta.to_string();
    assert_eq!(merged(r#"{"type":"a.b","args":[],"options":{"metadata":{"t":1}}}"#), r#"{"t":1}"#);
    assert_eq!(
        merged(r#"{"type":"a.b","args":[],"meta":{"a":1},"options":{"metadata":{"t":[2],"a":1}}}"#),
        r#"{"a":1,"t":[2]}"#
    );
    assert_eq!(merged(r#"{"type":"a.b","args":[],"meta":{},"options":{"metadata":{"t":1}}}"#), r#"{"t":1}"#);
    all_refused(&[(
        r#"{"type":"a.b","args":[],"meta":{"a":1},"options":{"metadata":{"a":2}}}"#,
        "/options/metadata/a",
    )]);
}

/// In a tenant, and when a trace is added, meta is taken apart: a name given twice would be kept once or not
/// at all. Args stay one text, and so do the values inside meta.
#[test]
fn a_member_of_meta_that_is_given_twice_is_refused() {
    all_refused(&[
        (r#"{"type":"a.b","args":[],"meta":{"a":1,"a":2}}"#, "/meta/a"),
        (r#"{"type":"a.b","args":[],"meta":{"a":1,"b":2,"\u0061":1}}"#, "/meta/a"),
        (r#"{"type":"a.b","args":[],"meta":{"traceparent":null,"traceparent":"x"}}"#, "/meta/traceparent"),
        (r#"{"type":"a.b","args":[],"options":{"metadata":{"a":1,"a":2}}}"#, "/meta/a"),
    ]);
    let inside = r#"{"type":"a.b","args":[{"a":1,"a":2}],"meta":{"m":{"a":1,"a":2},"n":[]}}"#;
    assert_eq!(&*read(inside).body.meta, r#"{"m":{"a":1,"a":2},"n":[]}"#);
}

/// The two are compared member by member only if each is short.
#[test]
fn meta_and_metadata_are_refused_by_their_length_before_they_are_merged() {
    let long = format!(r#"{{"a":1,"long":"{}"}}"#, "x".repeat(META_BYTES_MAX));
    for (meta, metadata) in [(r#"{"a":2}"#, &*long), (&*long, r#"{"a":2}"#)] {
        let text = format!(r#"{{"type":"a.b","args":[],"meta":{meta},"options":{{"metadata":{metadata}}}}}"#);
        let refused = refused(&text);
        assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::TooLarge, "/meta"));
    }
    let half = |name: &str| format!(r#"{{"{name}":"{}"}}"#, "x".repeat(META_BYTES_MAX / 2));
    let (meta, metadata) = (half("a"), half("b"));
    let text = format!(r#"{{"type":"a.b","args":[],"meta":{meta},"options":{{"metadata":{metadata}}}}}"#);
    assert_eq!(refused(&text).kind, InvalidKind::TooLarge, "together");
}

#[test]
fn many_members_are_merged_as_few_are() {
    let members = |numbers: std::ops::Range<u32>| -> String {
        numbers.map(|number| format!(r#""m{number}":{number}"#)).collect::<Vec<_>>().join(",")
    };
    let (own, added) = (members(0..2_000), members(1_000..3_000));
    let request = |added: &str| {
        format!(r#"{{"type":"a.b","args":[],"meta":{{{own}}},"options":{{"metadata":{{{added}}}}}}}"#)
    };
    let merged = format!("{{{}}}", members(0..3_000));
    assert_eq!(&*read(&request(&added)).body.meta, merged);
    let other = added.replace(r#""m1999":1999"#, r#""m1999":0"#);
    assert_eq!(refused(&request(&other)).pointer, "/options/metadata/m1999");
    // Equal nulls are not a contradiction.
    let nulls = r#"{"type":"a.b","args":[],"meta":{"a":null},"options":{"metadata":{"a":null,"b":1}}}"#;
    assert_eq!(&*read(nulls).body.meta, r#"{"a":null,"b":1}"#);
}

#[test]
fn unknown_attributes_are_kept_and_what_servers_set_is_not() {
    let request = read(
        r#"{"specversion":"1.0","type":"a.b","args":[],"state":"completed","attempt":9,"x_a":{"b":[1]},"schema":"s:1","options":{"rate_limit":{"max_per_second":1}}}"#,
    );
    assert_eq!(
        &*request.body.extra,
        r#"{"x_a":{"b":[1]},"schema":"s:1","options":{"rate_limit":{"max_per_second":1}}}"#
    );
}

#[test]
fn retry_policies_are_read_in_every_shape() {
    let retry =
        |text: &str| read(&format!(r#"{{"type":"a.b","args":[],"options":{{"retry":{text}}}}}"#)).body.retry;
    let iso = retry(
        r#"{"max_attempts":5,"initial_interval":"PT0.5S","backoff_coefficient":3,"max_interval":"PT10M","jitter":false,"backoff_strategy":"linear","non_retryable_errors":["A.*"],"on_exhaustion":"dead_letter"}"#,
    );
    assert_eq!(
        (iso.max_attempts, iso.initial_interval, iso.coefficient),
        (5, Duration::from_millis(500), 3.0)
    );
    assert_eq!(
        (iso.max_interval, iso.jitter, iso.backoff),
        (Duration::from_secs(600), false, Backoff::Linear)
    );
    assert_eq!((iso.on_exhaustion, iso.non_retryable_errors.len()), (OnExhaustion::DeadLetter, 1));
    let millis = retry(r#"{"initial_interval_ms":250,"max_interval_ms":1000,"backoff_type":"none"}"#);
    assert_eq!(
        (millis.initial_interval, millis.max_interval),
        (Duration::from_millis(250), Duration::from_secs(1))
    );
    assert_eq!((millis.backoff, millis.max_attempts), (Backoff::Constant, 3));
    assert_eq!(
        retry(r#"{"initial_interval":"1s","max_interval":"5m"}"#).max_interval,
        Duration::from_secs(300)
    );
    assert_eq!(retry(r#"{"initial_interval":"PT0S"}"#).initial_interval, Duration::ZERO);
    // As stored: less than a millisecond is not rounded to nothing.
    let parts = retry(r#"{"initial_interval":"PT0.0001S","max_interval":"PT1.9999S"}"#);
    let whole = (Duration::from_millis(1), Duration::from_secs(2));
    assert_eq!((parts.initial_interval, parts.max_interval), whole);
    let by_name =
        read(r#"{"type":"a.b","args":[],"options":{"retry_policy":{"max_attempts":2},"max_attempts":2}}"#);
    assert_eq!(by_name.offer.max_attempts, 2);
}

#[test]
fn a_wrong_retry_policy_is_an_error_of_its_own_that_names_the_member() {
    for (retry, member) in [
        (r#"{"max_attempts":-1}"#, "max_attempts"),
        (r#"{"max_attempts":1.5}"#, "max_attempts"),
        (r#"{"backoff_coefficient":0.5}"#, "backoff_coefficient"),
        (r#"{"backoff_coefficient":"2"}"#, "backoff_coefficient"),
        (r#"{"initial_interval":"soon"}"#, "initial_interval"),
        (r#"{"initial_interval_ms":-1}"#, "initial_interval_ms"),
        (r#"{"max_interval":"P9000D"}"#, "max_interval"),
        (r#"{"jitter":1}"#, "jitter"),
        (r#"{"on_exhaustion":"explode"}"#, "on_exhaustion"),
        (r#"{"backoff_strategy":"magic"}"#, "backoff_strategy"),
        (r#"{"initial_interval":"PT1S","initial_interval_ms":2000}"#, "initial_interval_ms"),
        (r#"{"max_attempt":3}"#, "max_attempts"),
    ] {
        let refused = refused(&format!(r#"{{"type":"a.b","args":[],"options":{{"retry":{retry}}}}}"#));
        assert_eq!(refused.kind, InvalidKind::RetryPolicy, "{retry}");
        assert!(refused.to_string().contains(member), "{retry}: {refused}");
        assert!(refused.pointer.starts_with("/options/retry/"), "{refused}");
    }
}

/// The pointer names the spelling that was sent, inside the policy or beside it.
#[test]
fn a_retry_policy_is_refused_where_it_was_sent() {
    for (members, pointer) in [
        (r#""max_attempts":-1"#, "/max_attempts"),
        (r#""options":{"max_attempts":-1}"#, "/options/max_attempts"),
        (r#""options":{"retry":{"jitter":true},"max_attempts":-1}"#, "/options/max_attempts"),
        (r#""options":{"retry":{"jitter":true}},"max_attempts":-1"#, "/max_attempts"),
        (r#""options":{"retry":{"max_attempts":-1},"max_attempts":-1}"#, "/options/retry/max_attempts"),
        (r#""options":{"retry":{"max_attempts":null},"max_attempts":-1}"#, "/options/max_attempts"),
        (r#""retry_policy":{"max_attempts":-1}"#, "/retry_policy/max_attempts"),
        (r#""retry":{"backoff_type":"magic"}"#, "/retry/backoff_type"),
        (r#""retry":{"backoff":"magic"}"#, "/retry/backoff"),
        (r#""max_attempts":"x""#, "/max_attempts"),
    ] {
        let refused = refused(&format!(r#"{{"type":"a.b","args":[],{members}}}"#));
        assert_eq!(
            (refused.kind, refused.pointer.as_str()),
            (InvalidKind::RetryPolicy, pointer),
            "{members}"
        );
        let member = pointer.rsplit('/').next().unwrap();
        assert!(!refused.message.contains(member), "{refused}");
    }
}

#[test]
fn what_breaks_a_rule_is_refused_with_its_place() {
    all_refused(&[
        (r#"[]"#, ""),
        (r#"{"args":[]}"#, "/type"),
        (r#"{"type":null,"args":[]}"#, "/type"),
        (r#"{"type":7,"args":[]}"#, "/type"),
        (r#"{"type":"Email","args":[]}"#, "/type"),
        (r#"{"type":"a.b"}"#, "/args"),
        (r#"{"type":"a.b","args":{}}"#, "/args"),
        (r#"{"type":"a.b","args":null}"#, "/args"),
        (r#"{"type":"a.b","args":[],"meta":[]}"#, "/meta"),
        (r#"{"type":"a.b","args":[],"id":"x"}"#, "/id"),
        (r#"{"type":"a.b","args":[],"id":""}"#, "/id"),
        (r#"{"type":"a.b","args":[],"options":[]}"#, "/options"),
        (r#"{"type":"a.b","args":[],"options":{"queue":"A"}}"#, "/options/queue"),
        (r#"{"type":"a.b","args":[],"options":{"priority":101}}"#, "/options/priority"),
        (r#"{"type":"a.b","args":[],"priority":1.5}"#, "/priority"),
        (r#"{"type":"a.b","args":[],"priority":1,"options":{"priority":2}}"#, "/priority"),
        (r#"{"type":"a.b","args":[],"options":{"timeout_ms":-1}}"#, "/options/timeout_ms"),
        (
            r#"{"type":"a.b","args":[],"options":{"scheduled_at":"2030-01-01T00:00:00"}}"#,
            "/options/scheduled_at",
        ),
        (r#"{"type":"a.b","args":[],"options":{"scheduled_at":7}}"#, "/options/scheduled_at"),
        (
            r#"{"type":"a.b","args":[],"options":{"delay_until":"+PT2S","scheduled_at":"+PT3S"}}"#,
            "/options/scheduled_at",
        ),
        (r#"{"type":"a.b","args":[],"options":{"expires_at":"tomorrow"}}"#, "/options/expires_at"),
        (r#"{"type":"a.b","args":[],"options":{"pending":true,"delay_until":"+PT2S"}}"#, "/options/pending"),
        (r#"{"type":"a.b","args":[],"options":{"tags":"x"}}"#, "/options/tags"),
        (r#"{"type":"a.b","args":[],"options":{"tags":[1]}}"#, "/options/tags/0"),
        (r#"{"type":"a.b","type":"a.c","args":[]}"#, "/type"),
        (r#"{"type":"a.b","args":[],"options":{"queue":"a","queue":"b"}}"#, "/options/queue"),
    ]);
}

#[test]
fn depth_and_size_are_bounded_everywhere() {
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    read(&format!(r#"{{"type":"a.b","args":{}}}"#, deep(64)));
    for name in ["args", "meta", "x"] {
        let value = if name == "meta" { format!(r#"{{"m":{}}}"#, deep(64)) } else { deep(65) };
        let text = match name {
            "args" => format!(r#"{{"type":"a.b","args":{value}}}"#),
            _ => format!(r#"{{"type":"a.b","args":[],"{name}":{value}}}"#),
        };
        let refused = refused(&text);
        assert_eq!(refused.kind, InvalidKind::Request);
        assert!(refused.pointer.starts_with(&format!("/{name}")), "{refused}");
    }
    let long = "x".repeat(1024 * 1024);
    assert_eq!(refused(&format!(r#"{{"type":"a.b","args":["{long}"]}}"#)).kind, InvalidKind::TooLarge);
    let meta = refused(&format!(r#"{{"type":"a.b","args":[],"meta":{{"a":"{long}"}}}}"#));
    assert_eq!((meta.kind, meta.pointer.as_str()), (InvalidKind::TooLarge, "/meta"));
}

/// A sensitive value may have a card number as a member's name, and errors go into logs.
#[test]
fn what_cannot_be_taken_inside_of_a_sensitive_value_is_told_at_its_place() {
    let number = "4242424242424242";
    let deep = format!("{}0{}", "[".repeat(70), "]".repeat(70));
    let unsafe_integer = format!(r#"{{"{number}":9007199254740993}}"#);
    let twice = format!(r#"{{"{number}":1,"{number}":2}}"#);
    let half = format!(r#"{{"{number}":"\ud800"}}"#);
    let deep = format!(r#"{{"{number}":{deep}}}"#);
    let args = |card: &str| {
        format!(
            r#"{{"type":"a.b","args":[{{"card":{card}}}],"options":{{"sensitive":["/args/0/card"],"unique":{{"keys":["args"]}}}}}}"#
        )
    };
    let meta = |of: &str| format!(r#"{{"type":"a.b","args":[],"sensitive":["/meta/card"],{of}}}"#);
    for (text, pointer) in [
        (args(&unsafe_integer), "/args/0/card"),
        (args(&twice), "/args/0/card"),
        (args(&half), "/args/0/card"),
        (args(&deep), "/args/0/card"),
        (meta(&format!(r#""meta":{{"card":{half}}}"#)), "/meta/card"),
        (meta(&format!(r#""options":{{"metadata":{{"card":{half}}}}}"#)), "/meta/card"),
        (meta(&format!(r#""meta":{{"card":1}},"options":{{"metadata":{{"card":{half}}}}}"#)), "/meta/card"),
        (
            meta(&format!(
                r#""meta":{{"card":{unsafe_integer}}},"unique":{{"keys":["meta"],"meta_keys":["card"]}}"#
            )),
            "/meta/card",
        ),
    ] {
        let told = refused(&text);
        assert_eq!(told.pointer, pointer, "{text}: {told}");
        assert!(!told.message.contains(number) && told.message.contains("it is sensitive"), "{told}");
        // The same value, when not sensitive, is reported in full.
        let open = refused(&text.replace("sensitive", "x_open"));
        assert!(open.pointer.ends_with(number) || open.pointer.contains(&format!("{number}/")), "{open}");
    }
    // Names in the policy are not secret, and the sender must learn that one is missing.
    let text = r#"{"type":"a.b","args":[{"b":1}],"sensitive":["/args/0"],"unique":{"key":["a"]}}"#;
    let told = refused(text);
    assert_eq!(told.pointer, "/args/0/a");
    assert!(told.message.contains("is missing"), "{told}");
}

#[test]
fn what_is_not_json_is_a_payload_error() {
    for text in ["", " ", "{", "{\"type\":}", "{\"type\":\"a.b\",\"args\":[\"\\ud80\"]}", "{} {}", "nope"] {
        assert_eq!(refused(text).kind, InvalidKind::Payload, "{text}");
    }
}

#[test]
fn a_repetition_under_the_callers_id_has_the_same_digest() {
    let id = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f";
    let digest = |rest: &str| {
        let digest = read(&format!(r#"{{"id":"{id}","type":"a.b",{rest}}}"#)).body.request_digest;
        digest.unwrap_or_else(|| panic!("a digest"))
    };
    let first = digest(r#""args":[{"a":1,"b":2}],"options":{"delay_until":"+PT2S","priority":1}"#);
    let same = [
        r#""options": {"priority":1, "delay_until":"+PT2S"}, "args":[ {"b":2,"a":1} ]"#,
        r#""args":[{"a":1,"b":2}],"options":{"delay_until":"+PT2S","priority":1},"meta":{"traceparent":"00-1"},"attempt":3"#,
    ];
    assert_eq!(digest(same[0]), first);
    // A trace differs from try to try; an empty meta beside it is still a meta.
    assert_eq!(digest(same[1]), digest(&same[1].replace("00-1", "00-2")));
    for other in [
        r#""args":[{"a":1,"b":3}],"options":{"delay_until":"+PT2S","priority":1}"#,
        r#""args":[{"a":1,"b":2}],"options":{"delay_until":"+PT3S","priority":1}"#,
        r#""args":[{"a":1,"b":2}],"options":{"delay_until":"+PT2S"}"#,
        r#""args":[{"a":9007199254740993,"b":2}],"options":{"delay_until":"+PT2S","priority":1}"#,
    ] {
        assert_ne!(digest(other), first, "{other}");
    }
}

/// Every answer about the job contains all of these names.
#[test]
fn names_outside_of_args_and_meta_have_a_bound() {
    let name = |bytes: usize| "n".repeat(bytes);
    let many = |number: usize, item: &str| vec![format!("\"{item}\""); number].join(",");
    let pointer = |bytes: usize| format!("/args/0/{}", name(bytes - 8));
    let retry = |names: &str| format!(r#""retry":{{"non_retryable_errors":[{names}]}}"#);
    let sensitive = |names: &str| format!(r#""sensitive":[{names}]"#);
    let keys = |member: &'static str| {
        move |names: &str| format!(r#""unique":{{"keys":["args","meta"],{member}[{names}]}}"#)
    };
    let (args_keys, meta_keys, meta_except) =
        (keys(r#""meta_except":[],"args_keys":"#), keys(r#""meta_keys":"#), keys(r#""meta_except":"#));
    let listed = |names: &str| format!(r#""unique":{{"key":[{names}]}}"#);
    let read_all = |options: &str, arg: &str| {
        format!(r#"{{"type":"a.b","args":[{{"{arg}":1}}],"options":{{{options}}}}}"#)
    };
    for (options, arg) in [
        (retry(&many(64, &name(255))), ""),
        (sensitive(&many(64, &pointer(1_024))), ""),
        (args_keys(&many(64, &name(255))), &*name(255)),
        (listed(&many(64, &name(255))), &*name(255)),
        (meta_keys(&many(64, &name(255))), ""),
        (meta_except(&many(64, &name(255))), ""),
    ] {
        read(&read_all(&options, arg));
    }
    let long = format!(r#""x","{}""#, name(256));
    for (options, place, bound) in [
        (retry(&many(65, "x")), "/retry/non_retryable_errors", "64"),
        (retry(&long), "/retry/non_retryable_errors/1", "255 bytes"),
        (sensitive(&many(65, "/args/0")), "/sensitive", "64"),
        (sensitive(&format!(r#""/args/0","{}""#, pointer(1_025))), "/sensitive/1", "1024 bytes"),
        (args_keys(&many(65, "x")), "/unique/args_keys", "64"),
        (args_keys(&long), "/unique/args_keys/1", "255 bytes"),
        (listed(&long), "/unique/key/1", "255 bytes"),
        (meta_keys(&many(65, "x")), "/unique/meta_keys", "64"),
        (meta_keys(&long), "/unique/meta_keys/1", "255 bytes"),
        (meta_except(&many(65, "x")), "/unique/meta_except", "64"),
        (meta_except(&long), "/unique/meta_except/1", "255 bytes"),
    ] {
        let refused = refused(&read_all(&options, "x"));
        assert_eq!(refused.pointer, format!("/options{place}"), "{refused}");
        assert!(refused.message.contains(bound) && refused.message.contains(';'), "{refused}");
    }
}

/// Any other pointer would hide nothing, and everybody could see what it was meant for.
#[test]
fn a_pointer_into_an_array_names_an_element_by_its_number() {
    let text = |pointer: &str| {
        format!(
            r#"{{"type":"a.b","args":[{{"cards":["4242"],"00":1}},7],"meta":{{"list":[1],"*":2}},"options":{{"sensitive":["{pointer}"]}}}}"#
        )
    };
    for odd in ["00", "+0", "-0", "*", "-", "", "card", "0x0", " 0", "~00"] {
        for array in ["/args", "/args/0/cards", "/meta/list"] {
            let refused = refused(&text(&format!("{array}/{odd}")));
            assert_eq!(refused.pointer, "/options/sensitive", "{array}/{odd}");
            assert!(refused.message.contains("its number"), "{refused}");
        }
        assert_eq!(refused(&text(&format!("/args/{odd}/card"))).pointer, "/options/sensitive", "{odd}");
    }
    // Members that only some jobs of a type have may be named, and members may have any name.
    for pointer in
        ["/args/0/absent", "/args/9/card", "/args/1/card", "/args/0/00", "/meta/*", "/meta/absent/00"]
    {
        assert_eq!(read(&text(pointer)).body.sensitive, [pointer]);
    }
    // So may an index beyond any array.
    assert_eq!(read(&text("/args/0/cards/99999999999999999999999")).body.sensitive.len(), 1);
}

/// Stored before the bound existed.
#[test]
fn longer_names_that_are_stored_are_read() {
    let name = "n".repeat(300);
    let spec = PolicySpec {
        keys: Some(vec!["meta".to_owned()]),
        meta_except: Some(vec![name.clone()]),
        ..PolicySpec::default()
    };
    let body = Body {
        unique: Some(UniquePolicy::build(&spec, "").unwrap()),
        sensitive: vec![format!("/args/{}", "x".repeat(2_000)); 100],
        retry: RetryPolicy { non_retryable_errors: vec![name; 100], ..RetryPolicy::default() },
        ..Body::default()
    };
    assert_eq!(Body::decode(&body.encode().unwrap()).unwrap(), body);
    assert_eq!(UniquePolicy::build_new(&spec, "").unwrap_err().pointer, "/meta_except/0");
}
