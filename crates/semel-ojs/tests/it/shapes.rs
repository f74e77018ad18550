use semel_core::unique::{Dimension, OnConflict, UniquePolicy};
use semel_ojs::{Enqueue, Terms};

use crate::{all_refused, read, refused};

fn request(unique: &str) -> Enqueue {
    read(&format!(
        r#"{{"type":"a.b","args":[{{"user_id":1,"x":2}}],"meta":{{"m":1}},"options":{{"unique":{unique}}}}}"#
    ))
}

fn policy(unique: &str) -> UniquePolicy {
    let request = request(unique);
    UniquePolicy::clone(request.policy().unwrap_or_else(|| panic!("a policy of {unique}")))
}

fn dimensions(unique: &str) -> Vec<&'static str> {
    policy(unique).dimensions().iter().map(Dimension::name).collect()
}

/// Hidden as a whole, args are still the object whose members count.
#[test]
fn hidden_args_do_not_break_the_canonical_form() {
    let text = |sensitive: &str| {
        format!(
            r#"{{"type":"a.b","args":[{{"user":7,"card":"4242","other":1}}],"unique":{{"keys":["type","args"],"args_keys":["user","card"]}},"sensitive":[{sensitive}]}}"#
        )
    };
    for (sensitive, shown) in [
        (r#""/args/0""#, r#"{"args":{"card":"[sensitive]","user":"[sensitive]"},"type":"a.b"}"#),
        (
            r#""/args/0","/args/0/user""#,
            r#"{"args":{"card":"[sensitive]","user":"[sensitive]"},"type":"a.b"}"#,
        ),
        (r#""/args/0/card""#, r#"{"args":{"card":"[sensitive]","user":7},"type":"a.b"}"#),
        ("", r#"{"args":{"card":"4242","user":7},"type":"a.b"}"#),
    ] {
        assert_eq!(read(&text(sensitive)).canonical().unwrap().unwrap(), shown, "{sensitive}");
    }
}

/// Whatever is accepted can be explained: a name that the policy does not look at is not in the key, and may
/// be there twice.
#[test]
fn a_name_given_twice_beside_the_key_does_not_break_the_canonical_form() {
    let text = |sensitive: &str| {
        format!(
            r#"{{"type":"a.b","args":[{{"user":7,"x":1,"card":"4242","x":2}}],"unique":{{"keys":["type","args"],"args_keys":["user","card"]}},"sensitive":[{sensitive}]}}"#
        )
    };
    for (sensitive, shown) in [
        (r#""/args/0""#, r#"{"args":{"card":"[sensitive]","user":"[sensitive]"},"type":"a.b"}"#),
        (r#""/args/0/card""#, r#"{"args":{"card":"[sensitive]","user":7},"type":"a.b"}"#),
        (r#""/args/0/x""#, r#"{"args":{"card":"4242","user":7},"type":"a.b"}"#),
        (r#""/args/0/x","/args/0/user""#, r#"{"args":{"card":"4242","user":"[sensitive]"},"type":"a.b"}"#),
        ("", r#"{"args":{"card":"4242","user":7},"type":"a.b"}"#),
    ] {
        assert_eq!(read(&text(sensitive)).canonical().unwrap().unwrap(), shown, "{sensitive}");
    }
    // A repeated name that it looks at is refused, in either request.
    let twice = text(r#""/args/0""#).replace("\"x\":1", "\"user\":8");
    assert_eq!(refused(&twice).pointer, "/args/0/user");
    assert_eq!(Enqueue::parse_to_explain(&twice, Terms::trusted()).unwrap_err().pointer, "/args/0/user");
}

#[test]
fn every_shape_that_clients_send_is_read() {
    for (unique, expected) in [
        (r#"{}"#, &["type"] as &[&str]),
        (r#"{"on_conflict":"ignore"}"#, &["type"]),
        (r#"{"keys":["queue","args"]}"#, &["type", "queue", "args"]),
        (r#"{"key":[]}"#, &["type", "args"]),
        (r#"{"key":["type","queue"]}"#, &["type", "queue"]),
        (r#"{"key":["user_id"]}"#, &["type", "args"]),
        (r#"{"period_ms":5000}"#, &["type", "args"]),
        (r#"{"period_ms":5000,"on_conflict":"ignore"}"#, &["type", "args"]),
        (r#"{"period_ms":5000,"states":["active"],"on_conflict":"reject"}"#, &["type", "args"]),
        (r#"{"period_ms":5000,"key":["queue"]}"#, &["type", "queue"]),
        (r#"{"period_ms":5000,"key":"order-7"}"#, &["type"]),
        (r#"{"period_ms":5000,"preset":"content"}"#, &["type", "queue", "args", "meta"]),
        (r#"{"period":"3600s"}"#, &["type"]),
        (r#"{"period":"PT1H"}"#, &["type"]),
        (r#"{"within":"1h"}"#, &["type"]),
        (r#"{"key":"order-7","with_version":false}"#, &["type"]),
        (r#"{"keys":["type"],"period_ms":5000}"#, &["type"]),
        (r#"{"key":"order-7"}"#, &["type"]),
        (r#"{"key":"order-7","scope":"global"}"#, &[]),
        (r#"{"keys":["type"],"args_keys":null,"period":null}"#, &["type"]),
        (r#"{"keys":["type"],"key":null}"#, &["type"]),
        (r#""content""#, &["type", "queue", "args", "meta"]),
    ] {
        assert_eq!(dimensions(unique), expected, "{unique}");
    }
    assert_eq!(policy(r#"{"key":["user_id"]}"#).args_keys(), ["user_id"]);
    assert_eq!(policy(r#"{"key":"order-7"}"#).key_text(), Some("order-7"));
    assert_eq!(policy(r#"{"on_conflict":"use_existing"}"#).on_conflict(), OnConflict::Ignore);
}

#[test]
fn periods_are_read_in_every_spelling() {
    for (member, shown) in [
        (r#""period":"PT1H""#, "PT1H"),
        (r#""period":"P1M""#, "P1M"),
        (r#""period":"3600s""#, "PT1H"),
        (r#""period_ms":90000"#, "PT1M30S"),
        (r#""within":"1h30m""#, "PT1H30M"),
        (r#""within":"PT5M""#, "PT5M"),
        (r#""within":"1.5s""#, "PT1.5S"),
    ] {
        let policy = policy(&format!(r#"{{"keys":["type"],{member}}}"#));
        assert_eq!(policy.period().map(|period| period.to_string()).as_deref(), Some(shown), "{member}");
    }
}

#[test]
fn presets_are_words_or_ground_to_build_on() {
    let strict = read(r#"{"type":"a.b","args":[1],"version":"2","unique":"strict"}"#);
    assert!(strict.canonical().unwrap().unwrap().contains("\"version\":\"2\""));
    let unversioned = read(r#"{"type":"a.b","args":[1],"unique":"strict"}"#);
    assert_eq!(unversioned.canonical().unwrap().unwrap(), r#"{"args":[1],"type":"a.b"}"#);
    let grouped = policy(r#"{"preset":"content","key":"k"}"#);
    assert_eq!((grouped.key_text(), grouped.on_conflict()), (Some("k"), OnConflict::Ignore));
    let content = policy(r#"{"preset":"content","period":"PT5M"}"#);
    assert_eq!((content.on_conflict(), content.while_active()), (OnConflict::Ignore, true));
    assert!(request(r#""always_unique""#).policy().is_none());
    assert!(request(r#"{"preset":"always_unique"}"#).policy().is_none());
    assert_eq!(policy(r#"{"preset":"always_unique","key":"k"}"#).key_text(), Some("k"));
    let own = read(r#"{"type":"a.b","args":[],"version":3,"unique":{"preset":"caller_provided","key":"k"}}"#);
    assert_eq!(own.canonical().unwrap().unwrap(), r#"{"key":"k","type":"a.b","version":"3"}"#);
}

#[test]
fn a_policy_may_stand_in_two_places_if_it_is_one() {
    let same = r#"{"type":"a.b","args":[],"unique":{"keys":["type"],"period":"PT1S"},"options":{"unique":{"period":"PT1S","keys":["type"]}}}"#;
    assert!(read(same).policy().is_some());
    all_refused(&[(
        r#"{"type":"a.b","args":[],"unique":{"keys":["type"]},"options":{"unique":{"keys":["type","args"]}}}"#,
        "/unique",
    )]);
}

#[test]
fn what_is_wrong_with_a_policy_is_said_with_its_place() {
    let cases = [
        (r#"7"#, ""),
        (r#"[]"#, ""),
        (r#""unheard_of""#, ""),
        (r#"{"arg_keys":["a"]}"#, "/arg_keys"),
        (r#"{"with_version":"yes"}"#, "/with_version"),
        (r#"{"keys":["argz"]}"#, "/keys/0"),
        (r#"{"keys":"type"}"#, "/keys"),
        (r#"{"keys":[]}"#, "/keys"),
        (r#"{"keys":["type"],"keys":["args"]}"#, "/keys"),
        (r#"{"keys":["meta"]}"#, "/meta_keys"),
        (r#"{"states":["availabel"]}"#, "/states/0"),
        (r#"{"states":[]}"#, "/states"),
        (r#"{"period":"1 hour"}"#, "/period"),
        (r#"{"period":60}"#, "/period"),
        (r#"{"period":"999999999h"}"#, "/period"),
        (r#"{"period":"PT1S","period_ms":1000}"#, "/period_ms"),
        (r#"{"period":"3600s","period_ms":1000}"#, "/period_ms"),
        (r#"{"period_ms":1000,"period":"3600s"}"#, "/period_ms"),
        (r#"{"period_ms":1000,"within":"1s"}"#, "/within"),
        (r#"{"period_ms":"1000"}"#, "/period_ms"),
        (r#"{"within":1000}"#, "/within"),
        (r#"{"period":"PT1S","within":"1s"}"#, "/within"),
        (r#"{"period_ms":-1}"#, "/period_ms"),
        (r#"{"period_ms":0}"#, "/period_ms"),
        (r#"{"within":"soon"}"#, "/within"),
        (r#"{"on_conflict":"merge"}"#, "/on_conflict"),
        (r#"{"on_conflict":"replace","states":["available","cancelled"]}"#, "/states/1"),
        (r#"{"key":7}"#, "/key"),
        (r#"{"key":" "}"#, "/key"),
        (r#"{"key":["a"],"keys":["type"]}"#, "/key"),
        (r#"{"key":"a","keys":["type"]}"#, "/keys"),
        (r#"{"while_active":"yes"}"#, "/while_active"),
        (r#"{"preset":"unheard_of"}"#, "/preset"),
        (r#"{"preset":"caller_provided"}"#, "/key"),
        (r#"{"disclose":"never","on_conflict":"ignore"}"#, "/disclose"),
    ];
    for (unique, pointer) in cases {
        let text = format!(r#"{{"type":"a.b","args":[{{"a":1}}],"options":{{"unique":{unique}}}}}"#);
        all_refused(&[(&text, &format!("/options/unique{pointer}"))]);
    }
    all_refused(&[
        (r#"{"type":"a.b","args":[1],"unique":{"key":["a"]}}"#, "/args"),
        (r#"{"type":"a.b","args":[{"b":1}],"unique":{"key":["a"]}}"#, "/args/0/a"),
        (r#"{"type":"a.b","args":[9007199254740992],"unique":{"keys":["args"]}}"#, "/args/0"),
        (r#"{"type":"a.b","args":[{"a":1,"a":2}],"unique":{"keys":["args"]}}"#, "/args/0/a"),
        (r#"{"type":"a.b","args":[],"unique":{"keys":["version"]}}"#, "/type"),
        (r#"{"type":"a.b","args":[{"a":"\ud800"}],"unique":{"keys":["args"]}}"#, "/args/0/a"),
        (
            r#"{"type":"a.b","args":[],"meta":{"m":"\udc00"},"unique":{"keys":["meta"],"meta_keys":["m"]}}"#,
            "/meta/m",
        ),
        (r#"{"type":"a.b","args":[],"unique":{"key":"\ud800"}}"#, "/unique/key"),
    ]);
}

/// A key in one member: unique while queued or running. Together with a policy it replaces what the key is
/// made of.
#[test]
fn a_unique_key_is_a_policy_in_short() {
    let read = |options: &str| read(&format!(r#"{{"type":"a.b","args":[],"options":{options}}}"#));
    let short = read(r#"{"unique_key":"evt_1"}"#);
    let policy = short.policy().unwrap();
    assert_eq!((policy.key_text(), policy.on_conflict()), (Some("evt_1"), OnConflict::Ignore));
    assert_eq!(short.canonical().unwrap().unwrap(), r#"{"key":"evt_1","type":"a.b"}"#);
    let longer = read(r#"{"unique_key":"evt_1","unique":{"period":"P1D","on_conflict":"reject"}}"#);
    let policy = longer.policy().unwrap();
    assert_eq!((policy.key_text(), policy.on_conflict()), (Some("evt_1"), OnConflict::Reject));
    let skip = read(r#"{"unique_key":"evt_1","unique":"skip"}"#);
    assert_eq!(skip.policy(), short.policy());
    // The key that a server shows with a job is not a request for one; a server never shows it without the
    // policy.
    let digest = "0a".repeat(32);
    for policy in [r#""unique":{"keys":["type"]}"#, r#""options":{"unique":{"keys":["type"]}}"#] {
        let shown = crate::read(&format!(r#"{{"type":"a.b","args":[],"unique_key":"{digest}",{policy}}}"#));
        assert_eq!(shown.policy().unwrap().key_text(), None, "{policy}");
    }
    for no_policy in ["", r#","unique":null"#, r#","options":{"queue":"q"}"#] {
        let alone = format!(r#"{{"type":"a.b","args":[],"unique_key":"{digest}"{no_policy}}}"#);
        all_refused(&[(&alone, "/unique_key")]);
        assert!(crate::refused(&alone).message.contains("options.unique_key"));
    }
    assert!(crate::read(r#"{"type":"a.b","args":[],"unique_key":null}"#).policy().is_none());
    let blank = r#"{"type":"a.b","args":[],"options":{"unique_key":" "}}"#;
    // A key that no server shows was meant as one: if it were ignored the job would run twice.
    let own = r#"{"type":"a.b","args":[],"unique_key":"evt_1"}"#;
    let number = r#"{"type":"a.b","args":[],"unique_key":7}"#;
    all_refused(&[(blank, "/options/unique_key"), (own, "/unique_key"), (number, "/unique_key")]);
    assert!(crate::refused(own).message.contains("options.unique_key"));
}

/// The pointer names the spelling that was sent.
#[test]
fn a_period_is_refused_where_it_was_sent() {
    for (member, at) in [
        (r#""period":"PT5M""#, "period"),
        (r#""period":"300s""#, "period"),
        (r#""period_ms":300000"#, "period_ms"),
        (r#""within":"5m""#, "within"),
    ] {
        refused_at(&format!(r#"{{{member},"on_conflict":"follow_up"}}"#), &format!("/unique/{at}"));
    }
    for (member, at) in [
        (r#""period":"0s""#, "period"),
        (r#""period_ms":0"#, "period_ms"),
        (r#""within":"0s""#, "within"),
        (r#""period":"PT0S""#, "period"),
    ] {
        refused_at(&format!("{{{member}}}"), &format!("/unique/{at}"));
    }
    let names = vec!["\"args\""; 1_000].join(",");
    refused_at(&format!(r#"{{"key":[{names}]}}"#), "/unique/key");
}

fn refused_at(unique: &str, pointer: &str) {
    let text = format!(r#"{{"type":"a.b","args":[],"unique":{unique}}}"#);
    assert_eq!(crate::refused(&text).pointer, pointer, "{text}");
}
