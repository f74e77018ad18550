use semel_core::error::InvalidKind;
use semel_ojs::{Enqueue, Terms};
use serde_json::{Value, json};

const VECTORS: &str = include_str!("../../../semel-core/testdata/unique-keys.json");

fn request(case: &Value) -> Option<String> {
    if let Some(raw) = case["raw"].as_str() {
        return Some(raw.to_owned());
    }
    let job = case["job"].as_object()?;
    let mut request = json!({ "unique": case["unique"], "options": { "queue": job["queue"] } });
    let members = request.as_object_mut()?;
    members.extend(
        job.iter().filter(|(name, _)| *name != "queue").map(|(name, value)| (name.clone(), value.clone())),
    );
    Some(request.to_string())
}

#[test]
fn keys_over_the_wire_are_those_of_the_vectors() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let mut checked = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let Some(text) = request(case) else { continue };
        let name = &case["name"];
        let request =
            Enqueue::parse(&text, Terms::trusted()).unwrap_or_else(|refused| panic!("{name}: {refused}"));
        assert_eq!(request.canonical().unwrap().as_deref(), case["canonical"].as_str(), "{name}");
        let key = request.offer.unique.as_ref().unwrap().key.to_string();
        assert_eq!(Some(key.as_str()), case["key"].as_str(), "{name}");
        checked += 1;
    }
    assert!(checked >= 40, "{checked}");
}

#[test]
fn errors_over_the_wire_are_those_of_the_vectors() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    for case in vectors["errors"].as_array().unwrap() {
        let Some(text) = request(case) else { continue };
        let name = &case["name"];
        let refused =
            Enqueue::parse(&text, Terms::trusted()).err().unwrap_or_else(|| panic!("{name} was not refused"));
        assert!(matches!(refused.kind, InvalidKind::Request | InvalidKind::Payload), "{name}: {refused}");
        if let Some(pointer) = case["pointer"].as_str() {
            assert_eq!(refused.pointer, pointer, "{name}");
        }
    }
}
