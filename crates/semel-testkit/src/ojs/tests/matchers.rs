//! Demands on one value, satisfied and violated.

use serde_json::{Value, json};

use super::*;
use crate::ojs::canned::Canned;
use crate::ojs::{SuiteTest, run};

/// The value matchers: the demand, values of `v` that meet it, values that do not. `null` in the texts is
/// JSON's; an empty text is a body without `v`.
const MATCHERS: &[(&str, &[&str], &[&str])] = &[
    (r#""any""#, &["1", "null", "{}"], &[""]),
    (r#""exists""#, &["1", r#""""#, "false"], &["", "null"]),
    (r#""absent""#, &["", "null"], &["0", "false", r#""""#, "[]"]),
    (r#"{"$exists": true}"#, &["1", r#""""#, "[]"], &["", "null"]),
    (r#"{"$exists": false}"#, &["", "null"], &["0", "[]"]),
    (r#"{"$exists": true, "$type": "string"}"#, &[r#""x""#], &["", "null", "1", "{}"]),
    (r#"{"$type": "null"}"#, &["null"], &["", "0"]),
    (r#"{"$type": "boolean"}"#, &["false"], &["", "0", "null"]),
    (r#"{"$type": "number"}"#, &["0", "1.5"], &["", r#""0""#]),
    (r#"{"$type": "array"}"#, &["[]"], &["", "{}"]),
    (r#"{"$type": "object"}"#, &["{}"], &["", "[]"]),
    ("null", &["null"], &["", "0", "false"]),
    ("true", &["true"], &["", "false", "1", r#""true""#, "null"]),
    ("false", &["false"], &["", "true", "0", "null"]),
    ("0", &["0", "0.0", "-0"], &["", "1", r#""0""#, "null", "false"]),
    ("42", &["42", "42.0"], &["41", "42.5", r#""42""#, "[42]"]),
    ("9007199254740993", &["9007199254740993"], &["9007199254740992"]),
    ("1.5", &["1.5"], &["1.50001", "1", "2", r#""1.5""#]),
    (
        r#""available""#,
        &[r#""available""#],
        &["", "null", r#""availabl""#, r#""Available""#, r#"["available"]"#],
    ),
    (r#""https://h/p""#, &[r#""https://h/p""#], &[r#""https://h/q""#]),
    (r#"{"$eq": "a"}"#, &[r#""a""#], &["", r#""b""#, "null"]),
    (r#"{"$eq": 1}"#, &["1"], &["", "2", r#""1""#]),
    (r#"{"$eq": true}"#, &["true"], &["", "false"]),
    (r#""string:nonempty""#, &[r#""x""#], &["", r#""""#, "null", "1", "[1]"]),
    (r#""string:non_empty""#, &[r#""x""#], &["", r#""""#, "null", "1"]),
    (
        r#""string:uuid""#,
        &[r#""019461a8-1a2b-4c3d-0e4f-5a6b7c8d9e0f""#],
        &["", r#""019461A8-1a2b-4c3d-0e4f-5a6b7c8d9e0f""#, r#""019461a8""#, "1"],
    ),
    (
        r#""string:uuidv7""#,
        &[r#""019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f""#],
        &["", r#""019461a8-1a2b-4c3d-8e4f-5a6b7c8d9e0f""#, r#""019461a8-1a2b-7c3d-0e4f-5a6b7c8d9e0f""#, "1"],
    ),
    (
        r#""string:datetime""#,
        &[r#""2026-01-02T03:04:05Z""#, r#""2026-01-02T03:04:05.678+02:00""#],
        &["", r#""2026-01-02T03:04:05""#, r#""2026-01-02 03:04:05Z""#, r#""2026-01-02T03:04:05Zx""#, "1"],
    ),
    (r#""string:contains:max:x""#, &[r#""a max:x b""#], &["", r#""max""#, r#"["max:x"]"#]),
    (r#""string:pattern(^a:[0-9]+$)""#, &[r#""a:12""#], &["", r#""a:""#, r#""xa:1""#, "12"]),
    (r#"{"$match": "^[0-9a-f]{4}$"}"#, &[r#""09af""#], &["", r#""09ag""#, r#""009af""#, "1234"]),
    (r#""number:positive""#, &["1", "0.5"], &["", "0", "-1", r#""1""#]),
    (r#""number:non_negative""#, &["0", "1"], &["", "-1", r#""0""#, "null"]),
    (r#""number:range(-1.5, 2)""#, &["-1.5", "0", "2"], &["", "-1.6", "2.1", r#""0""#]),
    (r#"{"range": {"min": 1000, "max": 3000}}"#, &["1000", "3000"], &["", "999", "3001", r#""2000""#]),
    (r#"{"range": {"min": 5}}"#, &["5", "6"], &["", "4"]),
    (r#"{"range": {"max": 5}}"#, &["5", "4"], &["", "6"]),
    (r#"{"$gte": 1}"#, &["1", "2"], &["", "0", r#""1""#]),
    (r#""~1000""#, &["500", "1000", "1500"], &["", "499", "1501", r#""1000""#]),
    (r#""~2.5""#, &["1.25", "3.75"], &["1.2", "3.8"]),
    (r#""array:nonempty""#, &["[0]"], &["", "[]", "null", r#""x""#, "{}"]),
    (r#""array:empty""#, &["[]"], &["", "[0]", "null", r#""""#]),
    (r#""array:min:2""#, &["[1,2]", "[1,2,3]"], &["", "[1]", "2"]),
    (r#""array:min_length:2""#, &["[1,2]", "[1,2,3]"], &["", "[1]", "null"]),
    (r#""array:length:2""#, &["[1,2]"], &["", "[1]", "[1,2,3]", r#""ab""#]),
    (r#""array:length(0)""#, &["[]"], &["", "[1]", "null"]),
    (r#"{"$size": 2}"#, &["[1,2]"], &["", "[1]", "[1,2,3]", "2"]),
    (r#"{"$size": {"$gte": 1}}"#, &["[1]", "[1,2]"], &["", "[]", "1"]),
    (r#""contains:a:b""#, &[r#"["x","a:b"]"#], &["", "[]", r#"["a"]"#, r#""a:b""#]),
    (r#""contains:7""#, &["[7]", r#"["7"]"#], &["[77]", "7"]),
    (r#""not_contains:a""#, &["[]", r#"["b","aa"]"#], &["", "null", r#"["b","a"]"#, r#""b""#]),
    (r#"{"$in": ["a", 7, "array:empty"]}"#, &[r#""a""#, "7", "[]"], &["", r#""b""#, "8", "[1]", "null"]),
    (r#"{"$or": ["string:uuid", {"$type": "number"}]}"#, &["7"], &["", r#""x""#, "null"]),
    (r#"{"$empty": true}"#, &["", "null", "[]", "{}", r#""""#], &["0", "[0]", "false", r#""x""#]),
    ("[]", &["[]"], &["", "null", "[1]", "{}"]),
    (
        r#"["hello", 42, null, {"key": "value"}]"#,
        &[r#"["hello",42,null,{"key":"value","more":1}]"#],
        &[
            "",
            r#"["hello",42,null]"#,
            r#"["hello",42,null,{"key":"other"}]"#,
            r#"["hello",42,0,{"key":"value"}]"#,
        ],
    ),
    (
        r#"{"a": "string:nonempty", "b": "absent"}"#,
        &[r#"{"a":"x"}"#, r#"{"a":"x","c":1}"#],
        &["", "null", r#"{"a":""}"#, r#"{"a":"x","b":1}"#, r#"["a"]"#],
    ),
    ("{}", &["{}", r#"{"a":1}"#], &["", "null", "[]"]),
];

/// Checks a demand on `$.v` against a body; returns nothing if it is met.
async fn differences(matcher: &Value, body: &str) -> Vec<String> {
    let test = demanding(&json!({"body": {"$.v": matcher}}));
    assert_eq!(test.problem(), None, "{matcher}");
    let server = Canned::always(200, body).await;
    reasons(&run(&test, &server.client()).await)
}

#[tokio::test]
async fn every_matcher_accepts_and_refuses() {
    let body = |value: &str| if value.is_empty() { "{}".to_owned() } else { format!("{{\"v\": {value}}}") };
    for (matcher, good, bad) in MATCHERS {
        let matcher: Value = serde_json::from_str(matcher).unwrap();
        for value in *good {
            assert_eq!(
                differences(&matcher, &body(value)).await,
                Vec::<String>::new(),
                "{matcher} on {value:?}"
            );
        }
        for value in *bad {
            assert_ne!(
                differences(&matcher, &body(value)).await,
                Vec::<String>::new(),
                "{matcher} on {value:?}"
            );
        }
    }
}

#[test]
fn an_unknown_matcher_or_field_is_a_problem_of_the_file() {
    for matcher in [
        json!("string:nonempy"),
        json!("string:"),
        json!("string:contains:"),
        json!("string:nonempty:x"),
        json!("string:pattern(()"),
        json!("number:range(1)"),
        json!("number:range(a,b)"),
        json!("number:even"),
        json!("number:positive:1"),
        json!("array:length:x"),
        json!("array:length(-1)"),
        json!("array:min"),
        json!("array:sorted"),
        json!("one_of:1,2"),
        json!("boolean:true"),
        json!("object:nonempty"),
        json!("~"),
        json!("~abc"),
        json!("~-1"),
        json!("~inf"),
        json!("{{steps.a.response.headers.x}}"),
        json!("{{steps.a"),
        json!({"$exist": true}),
        json!({"$exists": "yes"}),
        json!({"$exists": true, "$typ": "string"}),
        json!({"$type": "text"}),
        json!({"$match": "("}),
        json!({"$in": "a"}),
        json!({"$in": []}),
        json!({"$or": []}),
        json!({"$size": -1}),
        json!({"$size": {"$lt": 1}}),
        json!({"$size": {"$gte": 1, "$lte": 2}}),
        json!({"$gte": "1"}),
        json!({"range": {}}),
        json!({"range": {"low": 1}}),
        json!({"$empty": false}),
        json!({"$ne": 1}),
        json!({"a": {"$ne": 1}}),
        json!([{"$ne": 1}]),
        json!({"a": 1, "$in": [1]}),
    ] {
        assert!(demanding(&json!({"body": {"$.v": matcher.clone()}})).problem().is_some(), "{matcher}");
    }
    for assertions in [
        json!({"stauts": 200}),
        json!({"status": [200, 201]}),
        json!({"status": "any"}),
        json!({"status": "2xx"}),
        json!({"status": "one_of:"}),
        json!({"status": "one_of:400,x"}),
        json!({"status": {"$gte": 200}}),
        json!({"status": {"$in": []}}),
        json!({"status": 200.5}),
        json!({"status": null}),
        json!({"status_in": 200}),
        json!({"headers": {"a b": "x"}}),
        json!({"headers": {"A": 1}}),
        json!({"headers": {"A": {"$in": ["x"]}}}),
        json!({"headers": {"A": {"$match": "("}}}),
        json!({"body": {"v": {}, "$and": []}}),
        json!({"body": []}),
        json!({"body": {}}),
        json!({"body": {"$or": []}}),
        json!({"body": {"$or": [{}]}}),
        json!({"body": {"$.": 1}}),
        json!({"body_absent": "$.a"}),
        json!({"timing_ms": {"at_most": 1}}),
        json!({"timing_ms": {"less_than": "1"}}),
        json!({"equality": {"$.steps.a.response.body": "x"}}),
        json!({"equality": {"$.job": "{{steps.a.response.body}}"}}),
        json!({"exclusive_claim": {"job_id": "x", "fetches": []}}),
        json!([]),
    ] {
        assert!(demanding(&assertions).problem().is_some(), "{assertions}");
    }
    for step in [
        json!({"action": "GET"}),
        json!({"id": "s"}),
        json!({"id": "s", "action": "GET", "expects": {}}),
        json!({"id": "s", "action": "G T"}),
        json!({"id": "s", "action": "GET", "duration_ms": 1}),
        json!({"id": "s", "action": "WAIT", "assertions": {"status": 200}}),
        json!({"id": "s", "action": "GET", "delay_ms": "1s"}),
        json!({"id": "s", "action": "GET", "parallel_with": "t"}),
        json!({"id": "s", "action": "GET", "headers": {"a": "{{steps.s.response.body.a}}"}}),
        json!({"id": "s", "action": "GET", "path": "/{{steps.s}}"}),
    ] {
        assert!(test(&json!([step.clone()])).problem().is_some(), "{step}");
    }
    assert!(test(&json!([])).problem().is_some());
    let step = json!({"id": "s", "action": "GET"});
    assert!(test(&json!([step.clone(), step])).problem().unwrap().contains("two steps"));
    for file in
        ["", "[]", "{}", r#"{"steps": {}}"#, r#"{"steps": [{"id": "s", "action": "GET"}], "setup": {}}"#]
    {
        assert!(SuiteTest::parse("t.json".to_owned(), file).problem().is_some(), "{file}");
    }
}

#[tokio::test]
async fn a_file_that_is_not_understood_fails_and_sends_nothing() {
    let server = Canned::always(200, "{}").await;
    let outcome = run(&demanding(&json!({"body": {"$.v": "string:nonempy"}})), &server.client()).await;
    assert_eq!(reasons(&outcome), ["file: s: the matcher \"string:nonempy\" is not known"]);
    assert_eq!(server.seen().len(), 0);
}
