//! What a policy may not say, where the refusal points, and what the presets stand for.

use semel_core::canon::Json;
use semel_core::error::InvalidKind;
use semel_core::limits::{KEY_TEXT_BYTES_MAX, POLICY_NAMES_MAX};
use semel_core::state::StateSet;
use semel_core::unique::{
    Dimension, Disclose, Given, KeyInput, MissingKey, OnConflict, OnMismatch, PeriodFrom, PolicySpec, Preset,
    Scope, UniqueKey, UniquePolicy, WhenActive, idempotency_key,
};

use crate::{policy, spec};

#[test]
fn every_refusal_names_its_member() {
    let long = |n: usize| format!(r#"{{"key":"{}"}}"#, "k".repeat(n));
    let many = |member: &str| {
        format!(
            r#"{{"keys":["args","meta"],"meta_keys":["m"],"{member}":[{}"x"]}}"#,
            r#""x","#.repeat(POLICY_NAMES_MAX)
        )
    };
    for (text, member) in [
        (r#"{"keys":["type","argz"]}"#, "keys/1"),
        (r#"{"keys":["Type"]}"#, "keys/0"),
        (r#"{"keys":[]}"#, "keys"),
        (r#"{"args_keys":["a"]}"#, "args_keys"),
        (r#"{"keys":["queue"],"args_keys":["a"]}"#, "args_keys"),
        (r#"{"keys":["args"],"args_keys":[]}"#, "args_keys"),
        (r#"{"keys":["meta"]}"#, "meta_keys"),
        (r#"{"keys":["meta"],"meta_keys":[]}"#, "meta_keys"),
        (r#"{"keys":["meta"],"meta_keys":["a"],"meta_except":["b"]}"#, "meta_except"),
        (r#"{"keys":["type"],"meta_keys":["a"]}"#, "meta_keys"),
        (r#"{"keys":["type"],"meta_except":[]}"#, "meta_except"),
        (r#"{"key":"a","keys":["type"]}"#, "keys"),
        (r#"{"key":"a","args_keys":["x"]}"#, "args_keys"),
        (r#"{"key":"a","meta_keys":["x"]}"#, "meta_keys"),
        (r#"{"key":"a","meta_except":["x"]}"#, "meta_except"),
        (r#"{"key":""}"#, "key"),
        (r#"{"key":" \t\u00a0 "}"#, "key"),
        (&long(KEY_TEXT_BYTES_MAX + 1), "key"),
        (r#"{"key":"a","scope":"tenant"}"#, "scope"),
        (r#"{"scope":"global"}"#, "scope"),
        (r#"{"period":"1 hour"}"#, "period"),
        (r#"{"period":"P"}"#, "period"),
        (r#"{"period":"PT0S"}"#, "period"),
        (r#"{"period":"P101Y"}"#, "period"),
        (r#"{"period_ms":0}"#, "period_ms"),
        (r#"{"period":"P1D","period_ms":5}"#, "period_ms"),
        (r#"{"period":"P1D","period_from":"finished"}"#, "period_from"),
        (r#"{"period":"P1D","period_from":"started"}"#, "period_from"),
        (r#"{"states":[]}"#, "states"),
        (r#"{"states":["active","availabel"]}"#, "states/1"),
        (r#"{"when_active":"later"}"#, "when_active"),
        (r#"{"on_conflict":"merge"}"#, "on_conflict"),
        (r#"{"on_conflict":"use_existing"}"#, "on_conflict"),
        (r#"{"on_mismatch":"ignore"}"#, "on_mismatch"),
        (r#"{"disclose":"sometimes"}"#, "disclose"),
        (r#"{"on_conflict":"replace","states":["available","cancelled"]}"#, "states/1"),
        (r#"{"on_conflict":"replace_except_schedule","states":["cancelled"]}"#, "states/0"),
        (r#"{"on_conflict":"follow_up","period":"P1D"}"#, "period"),
        (r#"{"on_conflict":"follow_up","states":["active","available"]}"#, "states"),
        (r#"{"on_conflict":"follow_up","disclose":"never"}"#, "disclose"),
        (r#"{"on_conflict":"ignore","disclose":"never"}"#, "disclose"),
        (&many("args_keys"), "args_keys"),
        (&many("states"), "states"),
        (&many("keys").replacen(r#""keys":["args","meta"],"#, "", 1), "keys"),
        (&many("meta_except").replacen(r#""meta_keys":["m"],"#, "", 1), "meta_except"),
    ] {
        let refused = UniquePolicy::build(&spec(text), "/options/unique").unwrap_err();
        assert_eq!(
            (refused.kind, refused.pointer),
            (InvalidKind::Request, format!("/options/unique/{member}")),
            "{text}: {}",
            refused.message
        );
    }
    assert!(UniquePolicy::build(&spec(&long(KEY_TEXT_BYTES_MAX)), "").is_ok());
}

#[test]
fn an_empty_policy_has_the_specifications_defaults() {
    let policy = policy("{}");
    assert_eq!(policy.dimensions().iter().collect::<Vec<_>>(), [Dimension::Type]);
    assert_eq!(policy.states(), StateSet::LIVE);
    assert_eq!(
        (policy.period(), policy.period_from(), policy.while_active()),
        (None, PeriodFrom::Created, false)
    );
    assert_eq!((policy.on_conflict(), policy.on_mismatch()), (OnConflict::Reject, OnMismatch::Accept));
    assert_eq!(
        (policy.disclose(), policy.when_active(), policy.scope()),
        (Disclose::Always, WhenActive::Now, Scope::Type)
    );
}

#[test]
fn a_policy_written_out_in_full_is_the_same() {
    for text in [
        "{}",
        r#"{"keys":["queue","args","meta","version"],"args_keys":["b","a","a"],"meta_keys":["t"]}"#,
        r#"{"keys":["meta"],"meta_except":[]}"#,
        r#"{"key":" order 7 ","scope":"global","with_version":true}"#,
        r#"{"keys":["args"],"with_version":true,"period_ms":1500,"period_from":"last_duplicate"}"#,
        r#"{"on_conflict":"follow_up","states":["scheduled","available","pending","active","retryable","completed"]}"#,
        r#"{"on_conflict":"replace","when_active":"wait","on_mismatch":"reject","disclose":"never","while_active":true}"#,
    ] {
        let policy = policy(text);
        assert_eq!(UniquePolicy::build(&policy.to_spec(), "").unwrap(), policy, "{text}");
    }
}

#[test]
fn presets_are_ordinary_policies() {
    let preset = |preset: Preset, key| {
        preset.spec(&Given { key, has_version: true, visibility_ms: 0 }).map(Option::unwrap)
    };
    let build = |spec: PolicySpec| UniquePolicy::build(&spec, "").unwrap();
    let strict = build(preset(Preset::Strict, Some("ignored")).unwrap());
    assert_eq!(
        (strict.states(), strict.disclose(), strict.on_conflict()),
        (StateSet::ALL, Disclose::Never, OnConflict::Reject)
    );
    assert_eq!(
        strict.dimensions().iter().collect::<Vec<_>>(),
        [Dimension::Type, Dimension::Args, Dimension::Version]
    );
    let unversioned = build(Preset::Strict.spec(&Given::default()).unwrap().unwrap());
    assert_eq!(unversioned.dimensions().iter().collect::<Vec<_>>(), [Dimension::Type, Dimension::Args]);
    let provided = build(preset(Preset::CallerProvided, Some("ORD-1")).unwrap());
    assert_eq!(provided.key_text(), Some("ORD-1"));
    assert_eq!(provided.dimensions().iter().collect::<Vec<_>>(), [Dimension::Type, Dimension::Version]);
    let skip = build(preset(Preset::Skip, Some("evt")).unwrap());
    assert_eq!((skip.states(), skip.on_conflict()), (StateSet::LIVE, OnConflict::Ignore));
    assert_eq!(skip.dimensions().iter().collect::<Vec<_>>(), [Dimension::Type]);
    assert_eq!(preset(Preset::CallerProvided, None).unwrap_err(), MissingKey(Preset::CallerProvided));

    let content = preset(Preset::Content, None).unwrap();
    assert_eq!(build(content.clone()).period().unwrap().to_string(), "PT2M");
    let briefly = Preset::Content.spec(&Given { visibility_ms: 5_000, ..Given::default() }).unwrap().unwrap();
    assert_eq!(build(briefly).period().unwrap().to_string(), "PT5S");
    // A caller's own key is the whole identity, and so are dimensions.
    let own = build(spec(r#"{"key":"k"}"#).over(content.clone()));
    assert_eq!((own.key_text(), own.dimensions().iter().count()), (Some("k"), 1));
    let named = build(spec(r#"{"keys":["queue"]}"#).over(preset(Preset::CallerProvided, Some("k")).unwrap()));
    assert_eq!((named.key_text(), named.states()), (None, StateSet::ALL));
    assert_eq!(named.dimensions().iter().collect::<Vec<_>>(), [Dimension::Type, Dimension::Queue]);
    let of_queue = |below: &str| build(spec(r#"{"keys":["queue"]}"#).over(spec(below)));
    let once_global = of_queue(r#"{"key":"k","scope":"global"}"#);
    assert_eq!((once_global.key_text(), once_global.scope()), (None, Scope::Type));
    assert_eq!(of_queue(r#"{"keys":["args"],"args_keys":["user"]}"#).args_keys(), [""; 0]);
    let wider = build(
        spec(r#"{"period":"PT5M","meta_keys":["tenant"],"on_conflict":"reject"}"#).over(content.clone()),
    );
    assert_eq!((wider.period().unwrap().to_string().as_str(), wider.while_active()), ("PT5M", true));
    assert_eq!(wider.on_conflict(), OnConflict::Reject);
    // Members about meta go together with the dimension.
    let narrower = build(spec(r#"{"keys":["type","args"]}"#).over(content.clone()));
    assert_eq!(narrower.dimensions().iter().collect::<Vec<_>>(), [Dimension::Type, Dimension::Args]);
    let still =
        build(spec(r#"{"keys":["meta"]}"#).over(spec(r#"{"meta_keys":["tenant"]}"#).over(content.clone())));
    assert_eq!(still.dimensions().iter().collect::<Vec<_>>(), [Dimension::Type, Dimension::Meta]);
    let milliseconds = spec(r#"{"period_ms":5}"#).over(spec(r#"{"period":"P1D"}"#).over(content));
    assert_eq!(build(milliseconds).period().unwrap().to_string(), "PT0.005S");
}

fn key(unique: &str, args: &str, meta: &str) -> Result<String, semel_core::error::Invalid> {
    let (args, meta) = (Json::parse(args, "").unwrap(), Json::parse(meta, "").unwrap());
    policy(unique).canonical(&KeyInput {
        job_type: "a.b",
        queue: "q",
        version: None,
        args: &args,
        meta: &meta,
    })
}

#[test]
fn only_what_is_in_a_dimension_is_looked_at() {
    // A huge integer and a name given twice, neither of which `args_keys` names.
    let args = r#"[{"id":1,"n":9007199254740993,"x":1,"x":2}]"#;
    assert_eq!(
        key(r#"{"keys":["args"],"args_keys":["id"]}"#, args, "null").unwrap(),
        r#"{"args":{"id":1},"type":"a.b"}"#
    );
    assert_eq!(key("{}", args, "null").unwrap(), r#"{"type":"a.b"}"#);
    for (keys, pointer) in
        [(r#"["n"]"#, "/args/0/n"), (r#"["x"]"#, "/args/0/x"), (r#"["q/~"]"#, "/args/0/q~1~0")]
    {
        let unique = format!(r#"{{"keys":["args"],"args_keys":{keys}}}"#);
        assert_eq!(key(&unique, args, "null").unwrap_err().pointer, pointer);
    }
    for args in ["[]", "[[]]", "{}", "[{},{}]", "null"] {
        let refused = key(r#"{"keys":["args"],"args_keys":["id"]}"#, args, "null").unwrap_err();
        assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::Request, "/args"), "{args}");
    }
    let all: Vec<_> = (0..POLICY_NAMES_MAX).map(|n| format!("\"n{n}\"")).collect();
    let unique = format!(r#"{{"keys":["args"],"args_keys":[{}]}}"#, all.join(","));
    let members =
        |most: usize| all[..most].iter().map(|name| format!("{name}:1")).collect::<Vec<_>>().join(",");
    assert!(key(&unique, &format!("[{{{}}}]", members(POLICY_NAMES_MAX)), "null").is_ok());
    let refused = key(&unique, &format!("[{{{}}}]", members(POLICY_NAMES_MAX - 1)), "null").unwrap_err();
    assert_eq!(refused.pointer, format!("/args/0/n{}", POLICY_NAMES_MAX - 1));
    // Names are compared in NFC on both sides.
    let composed =
        key(r#"{"keys":["args"],"args_keys":["caf\u00e9"]}"#, r#"[{"cafe\u0301":1}]"#, "null").unwrap();
    assert_eq!(
        composed,
        key(r#"{"keys":["args"],"args_keys":["cafe\u0301"]}"#, r#"[{"café":1}]"#, "null").unwrap()
    );
}

#[test]
fn meta_counts_as_far_as_the_policy_says() {
    let meta = r#"{"tenant":"a","n":1e400,"semel.x":1,"traceparent":"t","tracestate":"s","baggage":"b"}"#;
    let only = |names: &str| key(&format!(r#"{{"keys":["meta"],"meta_keys":{names}}}"#), "[]", meta);
    assert_eq!(only(r#"["tenant","absent"]"#).unwrap(), r#"{"meta":{"tenant":"a"},"type":"a.b"}"#);
    assert_eq!(only(r#"["n"]"#).unwrap_err().pointer, "/meta/n");
    assert_eq!(
        key(r#"{"keys":["meta"],"meta_except":["n"]}"#, "[]", meta).unwrap(),
        r#"{"meta":{"tenant":"a"},"type":"a.b"}"#
    );
    assert_eq!(
        key(r#"{"keys":["meta"],"meta_except":[]}"#, "[]", "null").unwrap(),
        r#"{"meta":{},"type":"a.b"}"#
    );
    assert_eq!(key(r#"{"keys":["meta"],"meta_except":[]}"#, "[]", "[]").unwrap_err().pointer, "/meta");
    assert_eq!(key(r#"{"keys":["version"]}"#, "[]", "null").unwrap_err().pointer, "/type");
}

#[test]
fn a_key_is_shown_in_part_and_read_in_full() {
    let key = idempotency_key("t", "c", "k");
    let shown = key.to_string();
    assert_eq!(format!("{key:?}"), format!("{}..", &shown[..8]));
    assert_eq!(UniqueKey::from_bytes(*key.as_bytes()), key);
    for text in
        ["", &shown[1..], &shown.to_uppercase(), &format!("{shown}0"), &shown.replace(&shown[..1], "g")]
    {
        assert!(text == shown || UniqueKey::parse(text, "/key").is_err(), "{text}");
    }
}

#[test]
fn an_idempotency_key_belongs_to_its_tenant_and_credential() {
    let keys = [
        idempotency_key("t", "c", "k"),
        idempotency_key("t", "ck", ""),
        idempotency_key("tc", "", "k"),
        idempotency_key("t", "c", "k\",\"x\":\""),
        idempotency_key("t", "c", "caf\u{e9}"),
        idempotency_key("t", "c", "cafe\u{301}"),
    ];
    for (at, key) in keys.iter().enumerate() {
        assert!(!keys[..at].contains(key), "{at}");
    }
}

#[test]
fn what_never_counts_is_refused_as_a_meta_key() {
    for name in ["traceparent", "tracestate", "baggage", "semel.attempt"] {
        let keys = Some(vec!["meta".to_owned()]);
        let meta_keys = Some(vec!["tenant".to_owned(), name.to_owned()]);
        let refused = semel_core::unique::UniquePolicy::build(
            &semel_core::unique::PolicySpec { keys, meta_keys, ..Default::default() },
            "/unique",
        );
        assert_eq!(refused.unwrap_err().pointer, "/unique/meta_keys/1", "{name}");
    }
}

#[test]
fn two_policies_are_alike_whatever_the_text_of_the_key() {
    let of = |member: &str| policy(&format!(r#"{{"key":"a","on_conflict":"replace"{member}}}"#));
    assert!(of("").is_like(&policy(r#"{"key":"b","on_conflict":"replace"}"#)));
    assert!(!of("").is_like(&policy(r#"{"on_conflict":"replace"}"#)));
    for member in [
        r#","scope":"global""#,
        r#","with_version":true"#,
        r#","period":"PT1H""#,
        r#","period_from":"last_duplicate""#,
        r#","states":["active"]"#,
        r#","while_active":true"#,
        r#","when_active":"wait""#,
        r#","on_mismatch":"reject""#,
        r#","disclose":"never""#,
    ] {
        assert!(!of("").is_like(&of(member)) && of(member).is_like(&of(member)), "{member}");
    }
}
