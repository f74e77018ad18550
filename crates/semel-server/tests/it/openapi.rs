//! The OpenAPI document: unchanged, and true of what it names. `SEMEL_GOLDEN=write` rewrites it.

use std::path::Path;

use serde_json::Value;

use crate::harness::Server;

async fn document() -> Value {
    let server = Server::in_memory().await;
    let told = server.get("/ojs/v1/openapi.json").await;
    assert_eq!(told.status, 200);
    assert_eq!(server.get("/openapi.json").await.body, told.body);
    server.stop().await;
    told.body
}

#[tokio::test]
async fn the_document_is_as_it_was() {
    let document = document().await;
    let text = serde_json::to_string_pretty(&document).unwrap() + "\n";
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/openapi.json");
    if std::env::var_os("SEMEL_GOLDEN").is_some_and(|word| word == "write") {
        std::fs::create_dir_all(golden.parent().unwrap()).unwrap();
        std::fs::write(&golden, text).unwrap();
        return;
    }
    let before = std::fs::read_to_string(&golden).unwrap_or_default();
    let differs = before.lines().zip(text.lines()).position(|(before, now)| before != now);
    assert!(
        before == text,
        "line {differs:?} of {} differs: cargo xtask golden accepts it",
        golden.display()
    );
}

#[tokio::test]
async fn every_reference_leads_somewhere() {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let document = document().await;
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 100);
    for reference in &found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} names nothing");
    }
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        let reference = format!("#/components/schemas/{name}");
        assert!(found.contains(&reference.as_str()), "nobody names the schema {name}");
    }
}
