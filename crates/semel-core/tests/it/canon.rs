//! The canonical form ignores whatever does not change a value, and nothing else.

use std::collections::BTreeSet;

use proptest::prelude::*;
use semel_core::canon::{Json, differences, digest, token_name};
use semel_core::error::{Invalid, InvalidKind};
use unicode_normalization::UnicodeNormalization;

fn canonical(text: &str) -> Result<String, Invalid> {
    Json::parse(text, "/args")?.canonical("/args")
}

/// RFC 8785, appendix B.
#[test]
fn numbers_are_written_as_ecmascript_writes_them() {
    for (bits, expected) in [
        (0x0000_0000_0000_0000, "0"),
        (0x8000_0000_0000_0000, "0"),
        (0x0000_0000_0000_0001, "5e-324"),
        (0x8000_0000_0000_0001, "-5e-324"),
        (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
        (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
        (0x4340_0000_0000_0000, "9007199254740992"),
        (0xc340_0000_0000_0000, "-9007199254740992"),
        (0x4430_0000_0000_0000, "295147905179352830000"),
        (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
        (0x44b5_2d02_c7e1_4af6, "1e+23"),
        (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
        (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
        (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
        (0x444b_1ae4_d6e2_ef50, "1e+21"),
        (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
        (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
        (0x41b3_de43_5555_5553, "333333333.3333332"),
        (0x41b3_de43_5555_5554, "333333333.33333325"),
        (0x41b3_de43_5555_5555, "333333333.3333333"),
        (0x41b3_de43_5555_5556, "333333333.3333334"),
        (0x41b3_de43_5555_5557, "333333333.33333343"),
        (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
        (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
    ] {
        // Always with an exponent, so never an integer literal.
        let literal = format!("{:e}", f64::from_bits(bits));
        assert_eq!(canonical(&literal).unwrap(), expected, "{literal}");
    }
    for (literal, expected) in
        [("-0", "0"), ("-0.0", "0"), ("0e9", "0"), ("1.0", "1"), ("1E2", "100"), ("1e-400", "0")]
    {
        assert_eq!(canonical(literal).unwrap(), expected, "{literal}");
    }
}

/// RFC 8785, section 3.2.2 and 3.2.3; the second sample with its presentation form in NFC.
#[test]
fn members_are_sorted_at_every_level() {
    let sample = r#"{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],
        "string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}"#;
    assert_eq!(
        canonical(sample).unwrap(),
        r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#
    );
    // U+FB00 sorts after the smiley in UTF-16 order, because of its surrogates, but before it in UTF-8 order.
    let names = r#"{"\ufb00":1,"\ud83d\ude00":2,"\u00f6":3,"1":4,"\r":5,"\u20ac":6}"#;
    assert_eq!(canonical(names).unwrap(), "{\"\\r\":5,\"1\":4,\"ö\":3,\"€\":6,\"😀\":2,\"ﬀ\":1}");
    let many: Vec<_> = (0..40).rev().map(|n| format!("\"n{n:02}\":{n}")).collect();
    let sorted: Vec<_> = (0..40).map(|n| format!("\"n{n:02}\":{n}")).collect();
    assert_eq!(canonical(&format!("{{{}}}", many.join(" ,"))).unwrap(), format!("{{{}}}", sorted.join(",")));
}

#[test]
fn what_doubles_and_objects_cannot_tell_apart_is_refused_with_its_place() {
    for (text, pointer) in [
        ("[{\"n\":9007199254740992}]", "/args/0/n"),
        ("[{\"n\":-9007199254740992}]", "/args/0/n"),
        ("[123456789012345678901234567890]", "/args/0"),
        ("[[0],[1e400]]", "/args/1/0"),
        ("[-1e400]", "/args/0"),
        ("[{\"a\":1,\"b\":2,\"a\":1}]", "/args/0/a"),
        ("[{\"x\":{\"caf\\u00e9\":1,\"cafe\\u0301\":2}}]", "/args/0/x/café"),
        ("[{\"a/b~c\":1,\"a/b~c\":1}]", "/args/0/a~1b~0c"),
    ] {
        let refused = canonical(text).unwrap_err();
        assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::Request, pointer), "{text}");
    }
    assert_eq!(
        canonical("[9007199254740991,-9007199254740991]").unwrap(),
        "[9007199254740991,-9007199254740991]"
    );
    // Literals written as doubles are rounded the way RFC 8785 rounds them.
    assert_eq!(canonical("[9007199254740993.0,1e20]").unwrap(), "[9007199254740992,100000000000000000000]");
}

#[test]
fn a_digest_keeps_apart_what_a_key_refuses() {
    let of = |text: &str| digest(&Json::parse(text, "").unwrap());
    assert_ne!(of("[9007199254740993]"), of("[9007199254740992]"));
    assert_ne!(of("[1e400]"), of("[2e400]"));
    assert_ne!(of("[{\"a\":1,\"a\":2}]"), of("[{\"a\":2}]"));
    assert_eq!(of("[{\"b\":1.0,\"a\":\"e\\u0301\"}]"), of(" [ {\"a\":\"é\" , \"b\":1} ] "));
}

#[test]
fn differences_are_places_and_never_values() {
    let between = |left: &str, right: &str, most: usize| {
        differences(&Json::parse(left, "").unwrap(), &Json::parse(right, "").unwrap(), "/args", most)
    };
    let left = r#"[{"same":1.0,"other":"secret","gone":1,"in":{"x":[1,2,3]},"é":1,"kind":[]}]"#;
    let right = r#"[{"kind":{},"é":1,"in":{"x":[1,3]},"new":2,"other":"hidden","same":1}]"#;
    assert_eq!(
        between(left, right, 20),
        ["/args/0/gone", "/args/0/in/x/1", "/args/0/in/x/2", "/args/0/kind", "/args/0/new", "/args/0/other"]
    );
    assert_eq!(between(left, right, 2).len(), 2);
    assert_eq!(between(r#"[{"a~/":1}]"#, "[{}]", 20), ["/args/0/a~0~1"]);
    assert_eq!(between("1", "2", 20), ["/args"]);
    assert_eq!(between(&format!("[{}0]", "0,".repeat(99_999)), "[]", 20).len(), 20);
}

/// Normalisation has to sort these marks: a megabyte of them must not take quadratic time.
#[test]
fn a_megabyte_of_combining_marks_is_normalised() {
    let marks = format!("\"a{}\"", "\u{301}\u{316}\u{327}".repeat(170_000));
    assert!(canonical(&marks).unwrap().len() > 1_000_000);
}

/// A value, independent of how it is written.
#[derive(Clone, Debug)]
enum Value {
    Leaf(String),
    Text(String),
    Array(Vec<Value>),
    Object(Vec<(String, Value)>),
}

/// Short strings of characters that matter to NFC, escaping and sorting.
fn word() -> impl Strategy<Value = String> {
    "[ab~/\"\\\\\n\u{1}\u{7f}é\u{e9}e\u{301}\u{327}\u{212b}\u{ac00}\u{1112}\u{1161}\u{ff00}\u{fb01}😀]{0,4}"
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        prop_oneof![Just("null"), Just("true"), Just("false"), Just("-0"), Just("1e21"), Just("0.1")]
            .prop_map(|leaf| Value::Leaf(leaf.to_owned())),
        any::<i32>().prop_map(|n| Value::Leaf(n.to_string())),
        any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(|n| Value::Leaf(format!("{n:e}"))),
        word().prop_map(Value::Text),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec((word(), inner), 0..5).prop_map(Value::Object),
        ]
    })
}

/// Writes a value in one of many ways: order of members, spaces, escapes, normalisation form.
fn write(value: &Value, style: u64, text: &mut String) {
    write_in(value, style, true, text);
}

/// Like [`write`]; `is_free` means that strings may be written in another normalisation form.
fn write_in(value: &Value, style: u64, is_free: bool, text: &mut String) {
    let style = style.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let pick = style >> 33;
    let string = |content: &str, text: &mut String| {
        let content: String = match pick % 3 {
            _ if !is_free => content.to_owned(),
            0 => content.nfc().collect(),
            1 => content.nfd().collect(),
            _ => content.to_owned(),
        };
        text.push('"');
        for char in content.chars() {
            if pick & 8 == 0 || char < ' ' || char == '"' || char == '\\' {
                char.encode_utf16(&mut [0; 2])
                    .iter()
                    .for_each(|unit| text.push_str(&format!("\\u{unit:04X}")));
            } else {
                text.push(char);
            }
        }
        text.push('"');
    };
    let space = if pick & 16 == 0 { "" } else { " \n" };
    match value {
        Value::Leaf(leaf) => text.push_str(leaf),
        Value::Text(content) => string(content, text),
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                text.push_str(if at > 0 { "," } else { space });
                write_in(item, style ^ at as u64, is_free, text);
                text.push_str(space);
            }
            text.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().enumerate().collect();
            if pick & 32 == 0 {
                members.reverse();
            }
            text.push('{');
            for (n, (at, (name, item))) in members.into_iter().enumerate() {
                text.push_str(if n > 0 { "," } else { space });
                string(name, text);
                text.push(':');
                write_in(item, style ^ at as u64, is_free, text);
            }
            text.push('}');
        }
    }
}

fn written(value: &Value, style: u64) -> String {
    let mut text = String::new();
    write(value, style, &mut text);
    text
}

/// Like [`written`], with exactly the characters that its strings have.
fn exactly(value: &Value, style: u64) -> String {
    let mut text = String::new();
    write_in(value, style, false, &mut text);
    text
}

/// Documents of arbitrary characters, and of numbers as people and programs write them.
fn document() -> impl Strategy<Value = Value> {
    let text = || {
        prop_oneof![
            word(),
            any::<String>(),
            "[\u{0}-\u{20}\u{7f}-\u{a0}\u{d7fb}-\u{e000}\u{ffff}\u{10000}\u{10ffff}]{0,6}"
        ]
    };
    let double = || any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |n| n.is_finite());
    let leaf = prop_oneof![
        prop_oneof![
            "null",
            "true",
            "false",
            "-?0(\\.[0-9]{1,9})?",
            "-?[1-9][0-9]{0,25}(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?"
        ],
        prop_oneof![double().prop_map(|n| format!("{n:e}")), double().prop_map(|n| format!("{n:?}"))],
        (-3_i64..3, any::<bool>()).prop_map(|(by, is_less)| {
            let bound = (1_i64 << 53) + by;
            (if is_less { -bound } else { bound }).to_string()
        }),
    ];
    let leaf = prop_oneof![leaf.prop_map(Value::Leaf), text().prop_map(Value::Text)];
    leaf.prop_recursive(4, 60, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::vec((text(), inner), 0..8).prop_map(Value::Object),
        ]
    })
}

/// The value with its strings and names in NFC: the same value to Semel, another one to RFC 8785.
fn normal(value: &Value) -> Value {
    match value {
        Value::Leaf(leaf) => Value::Leaf(leaf.clone()),
        Value::Text(text) => Value::Text(text.nfc().collect()),
        Value::Array(items) => Value::Array(items.iter().map(normal).collect()),
        Value::Object(members) => {
            Value::Object(members.iter().map(|(name, item)| (name.nfc().collect(), normal(item))).collect())
        }
    }
}

/// Whether a value in this form is refused as part of a key although RFC 8785 has a text for it: for an
/// integer that a double may round, RFC 8785 has the rounded one; for members with the same name, if readers
/// accept them at all, the last.
fn is_refused(value: &Value) -> bool {
    match value {
        Value::Leaf(leaf) => {
            let is_integer = leaf.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
            is_integer && leaf.parse::<i128>().is_ok_and(|n| n.abs() >= 1 << 53)
        }
        Value::Text(_) => false,
        Value::Array(items) => items.iter().any(is_refused),
        Value::Object(members) => {
            let names: BTreeSet<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
            names.len() < members.len() || members.iter().any(|(_, item)| is_refused(item))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Byte for byte, except for what Semel refuses, and for NFC.
    #[test]
    fn the_canonical_form_is_that_of_another_writer(value in document(), style in any::<u64>(), other in any::<u64>()) {
        let normal = normal(&value);
        match canonical(&written(&value, style)) {
            Err(refused) => prop_assert!(is_refused(&normal), "{refused:?}"),
            Ok(ours) => {
                prop_assert!(!is_refused(&normal), "{ours}");
                // The other writer does not change strings, so it gets them in NFC, escaped as here.
                let theirs: serde_json::Value = serde_json::from_str(&exactly(&normal, other)).unwrap();
                prop_assert_eq!(ours, serde_json_canonicalizer::to_string(&theirs).unwrap());
            }
        }
    }

    #[test]
    fn a_value_has_one_canonical_form(value in value(), one in any::<u64>(), other in any::<u64>()) {
        let (one, other) = (written(&value, one), written(&value, other));
        match (canonical(&one), canonical(&other)) {
            (Ok(one), Ok(other)) => {
                prop_assert_eq!(&one, &other);
                // A double beyond 2^53 is written without an exponent, so it is not read back as a double.
                if let Ok(again) = canonical(&one) {
                    prop_assert_eq!(again, one);
                }
            }
            (Err(one), Err(other)) => prop_assert_eq!(one.kind, other.kind),
            (one, other) => prop_assert!(false, "{one:?} {other:?}"),
        }
    }

    #[test]
    fn two_values_differ_somewhere_exactly_when_their_digests_do(left in value(), right in value(), style in any::<u64>()) {
        let (left, right) = (written(&left, style), written(&right, style));
        let (left, right) = (Json::parse(&left, "").unwrap(), Json::parse(&right, "").unwrap());
        prop_assert_eq!(differences(&left, &right, "", 20).is_empty(), digest(&left) == digest(&right));
        prop_assert!(differences(&left, &left, "", 20).is_empty());
    }

    #[test]
    fn no_text_breaks_the_reader(text in "[\\[\\]{}:,\"\\\\u0dd8e+.tn1 é-]{0,40}") {
        if let Ok(json) = Json::parse(&text, "") {
            let ours = json.canonical("");
            // Another reader accepts it too.
            let theirs = serde_json::from_str::<serde_json::Value>(&text);
            prop_assert!(theirs.is_ok() || ours.is_err(), "{text}");
        } else {
            prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_err(), "{text}");
        }
    }
}

#[test]
fn a_text_in_another_form_of_unicode_is_no_difference() {
    let (composed, parts) = (r#"["caf\u00e9"]"#, r#"["cafe\u0301"]"#);
    let json = |text| Json::parse(text, "").unwrap();
    assert_eq!(differences(&json(composed), &json(parts), "", 9), Vec::<String>::new());
    assert_eq!(token_name("~01~1"), "~1/");
}
