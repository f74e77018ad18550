//! The OpenAPI 3.1 document, generated from the table of endpoints, OJS's table of errors and `openapi/schemas.json`.

use std::collections::BTreeMap;

use semel_ojs::write::{Object, list, object, put_string};
use semel_ojs::{Code, MEDIA_TYPE};

use crate::caller::Access;
use crate::respond::Answer;
use crate::routes::{Body, Endpoint};
use crate::tenancy::Scope;

/// Schemas that the table's rows refer to.
const SCHEMAS: &str = include_str!("openapi/schemas.json");
const VERSION: &str = "3.1.0";
/// Headers of every answer.
const HEADERS: &str = r#"{"RequestId":{"description":"Identifies the request: the caller's own X-Request-Id, if it sent one.","required":true,"schema":{"type":"string","minLength":1}},"Version":{"description":"The version of Open Job Spec.","required":true,"schema":{"type":"string","const":"1.0"}}}"#;
/// Error codes that every endpoint may answer.
const ALWAYS: [Code; 6] = [
    Code::UnsupportedVersion,
    Code::InvalidRequest,
    Code::TooManyRequests,
    Code::Internal,
    Code::Unavailable,
    Code::Timeout,
];
/// Further codes of endpoints that require a token.
const WITH_TOKEN: [Code; 2] = [Code::Unauthorized, Code::Forbidden];
/// Further codes of endpoints that read a body.
const WITH_BODY: [Code; 4] = [Code::InvalidPayload, Code::UnsupportedMediaType, Code::TooLarge, Code::Slow];

/// `GET /ojs/v1/openapi.json`.
pub(crate) async fn show(Scope(app): Scope) -> Answer {
    Answer::ok(app.openapi.clone())
}

/// The document for this table.
pub(crate) fn document(table: &[Endpoint]) -> String {
    let mut paths: BTreeMap<&str, Vec<&Endpoint>> = BTreeMap::new();
    for endpoint in table {
        paths.entry(endpoint.path).or_default().push(endpoint);
    }
    let mut out = String::with_capacity(64 * 1024);
    object(&mut out, |document| {
        document.plain("openapi", VERSION);
        object(document.member("info"), |info| {
            info.plain("title", "Semel");
            info.plain("version", env!("CARGO_PKG_VERSION"));
            info.plain("description", "Open Job Spec, with answers that say why.");
            object(info.member("license"), |licence| {
                licence.plain("name", "MIT OR Apache-2.0");
                licence.plain("identifier", "MIT OR Apache-2.0");
            });
        });
        object(document.member("paths"), |object_of_paths| {
            for (path, endpoints) in &paths {
                object(object_of_paths.member(path), |methods| {
                    for endpoint in endpoints {
                        let method = endpoint.method.as_str().to_lowercase();
                        object(methods.member(&method), |operation| put(endpoint, operation));
                    }
                });
            }
        });
        object(document.member("components"), |components| {
            components.raw("schemas", SCHEMAS.trim());
            components.raw("headers", HEADERS);
            components.raw(
                "securitySchemes",
                r#"{"token":{"type":"http","scheme":"bearer","description":"A token made with `semel token create`."}}"#,
            );
        });
    });
    out
}

fn put(endpoint: &Endpoint, operation: &mut Object<'_>) {
    operation.plain("operationId", endpoint.name);
    operation.text("summary", endpoint.says);
    let roles = endpoint.access.roles();
    if !roles.is_empty() {
        operation.raw("security", r#"[{"token":[]},{}]"#);
        operation.texts("x-semel-roles", roles.iter().map(|role| role.name()));
    } else {
        operation.raw("security", "[]");
    }
    if endpoint.is_global {
        operation.flag("x-semel-whole-server", true);
    }
    put_parameters(endpoint, operation);
    let (schema, required) = match endpoint.body {
        Body::None => (None, false),
        Body::May(schema) => (Some(schema), false),
        Body::Must(schema) => (Some(schema), true),
    };
    if let Some(schema) = schema {
        object(operation.member("requestBody"), |body| {
            body.flag("required", required);
            object(body.member("content"), |content| {
                put_content(MEDIA_TYPE, schema, content);
                put_content("application/json", schema, content);
            });
        });
    }
    put_responses(endpoint, operation);
}

fn put_parameters(endpoint: &Endpoint, operation: &mut Object<'_>) {
    let in_path = endpoint.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path =
        in_path.map(|name| (name, "path", r#"{"type":"string","minLength":1}"#, "Its id, name or key."));
    let query = endpoint.query.iter().map(|query| (query.name, "query", query.schema, query.says));
    let all: Vec<_> = in_path.chain(query).collect();
    if all.is_empty() {
        return;
    }
    list(operation.member("parameters"), all, |out, (name, place, schema, says)| {
        object(out, |parameter| {
            parameter.plain("name", name);
            parameter.plain("in", place);
            parameter.flag("required", place == "path");
            parameter.text("description", says);
            parameter.raw("schema", schema);
        });
    });
}

/// What one status may mean: successes, each with a media type and a schema, and error codes.
type Responses<'t> = (Vec<(&'t str, &'t str)>, Vec<&'t str>);

fn put_responses(endpoint: &Endpoint, operation: &mut Object<'_>) {
    // One status may stand for both a success and refusals.
    let mut responses: BTreeMap<u16, Responses<'_>> = BTreeMap::new();
    for (status, media, schema) in &endpoint.answers {
        responses.entry(*status).or_default().0.push((media.unwrap_or(MEDIA_TYPE), schema));
    }
    let with_token: &[Code] = if endpoint.access == Access::Public { &[] } else { &WITH_TOKEN };
    let with_body: &[Code] = if matches!(endpoint.body, Body::None) { &[] } else { &WITH_BODY };
    let is_versioned = endpoint.access.is_versioned();
    let always = ALWAYS.iter().filter(|code| is_versioned || **code != Code::UnsupportedVersion);
    for code in endpoint.refuses.iter().chain(always).chain(with_token).chain(with_body) {
        let entry = code.entry();
        let (_, codes) = responses.entry(entry.status).or_default();
        if !codes.contains(&entry.wire) {
            codes.push(entry.wire);
        }
    }
    object(operation.member("responses"), |object_of_responses| {
        for (status, (answers, codes)) in &responses {
            object(object_of_responses.member(&status.to_string()), |response| {
                // An answer without content has no schema.
                let answers = if *status == 204 { &[][..] } else { &answers[..] };
                put_response(answers, codes, response);
            });
        }
    });
}

fn put_response(answers: &[(&str, &str)], codes: &[&str], response: &mut Object<'_>) {
    let mut says = if answers.is_empty() && !codes.is_empty() { String::new() } else { "Done. ".to_owned() };
    if !codes.is_empty() {
        says.push_str("Refused: ");
        says.push_str(&codes.join(", "));
        says.push('.');
    }
    response.text("description", says.trim_end());
    response.raw(
        "headers",
        r##"{"X-Request-Id":{"$ref":"#/components/headers/RequestId"},"OJS-Version":{"$ref":"#/components/headers/Version"}}"##,
    );
    object(response.member("content"), |content| {
        let mut by_media: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (media, schema) in answers {
            by_media.entry(media).or_default().push(schema);
        }
        if !codes.is_empty() {
            by_media.entry(MEDIA_TYPE).or_default().push("Problem");
        }
        for (media, schemas) in by_media {
            match &schemas[..] {
                [only] => put_content(media, only, content),
                several => object(content.member(media), |media| {
                    object(media.member("schema"), |schema| {
                        list(schema.member("anyOf"), several, |out, name| put_reference(name, out));
                    });
                }),
            }
        }
    });
}

fn put_content(media: &str, schema: &str, content: &mut Object<'_>) {
    object(content.member(media), |media| put_reference(schema, media.member("schema")));
}

fn put_reference(schema: &str, out: &mut String) {
    object(out, |object| put_string(object.member("$ref"), &format!("#/components/schemas/{schema}")));
}
