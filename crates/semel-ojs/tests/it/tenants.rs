//! Requests of tenants: members that the server shows in the meta of a tenant's jobs are not part of a
//! request.

use semel_core::enqueue::Offer;
use semel_core::unique::UniqueKey;
use semel_ojs::batch::Batch;
use semel_ojs::cron::Register;
use semel_ojs::enqueue::{Enqueue, Terms, once};
use semel_ojs::task::Create;
use semel_ojs::{Template, Templates, workflow};
use serde_json::json;

/// Policies that count `tenant_id`.
const POLICIES: [&str; 4] = [
    r#"{"keys":["meta"],"meta_except":[]}"#,
    r#"{"keys":["queue","meta"],"meta_except":["b"]}"#,
    r#"{"keys":["meta"],"meta_keys":["a","tenant_id"]}"#,
    r#"{"preset":"content","period":"PT5M"}"#,
];

fn terms(tenant: &str) -> Terms<'_> {
    Terms { tenant, ..Terms::trusted() }
}

fn request(tenant: &str, rest: &str, unique: &str) -> Enqueue {
    let text = format!(r#"{{"type":"a.b","args":[1]{rest},"unique":{unique}}}"#);
    Enqueue::parse(&text, terms(tenant)).unwrap_or_else(|refused| panic!("{refused} in {text}"))
}

fn key(offer: &Offer) -> UniqueKey {
    offer.unique.as_ref().unwrap().key
}

/// The key, and the canonical text that it is made of.
fn identity(tenant: &str, rest: &str, unique: &str) -> (UniqueKey, String) {
    let request = request(tenant, rest, unique);
    (key(&request.offer), request.canonical().unwrap().unwrap())
}

#[test]
fn what_the_server_says_of_a_tenants_jobs_is_in_no_key() {
    for unique in POLICIES {
        let first = identity("acme", r#","meta":{"a":1}"#, unique);
        assert_eq!(first, identity("", r#","meta":{"a":1}"#, unique), "a tenant is no dimension: {unique}");
        for again in [
            r#","meta":{"tenant_id":"acme","a":1}"#,
            r#","meta":{"a":1,"\u0074enant_id":"\u0061cme"}"#,
            r#","meta":{"a":1},"options":{"metadata":{"tenant_id":"acme"}}"#,
            r#","options":{"metadata":{"tenant_id":"acme","a":1}}"#,
            // Its value is not visible where the canonical text is made.
            r#","meta":{"tenant_id":"acme","a":1},"sensitive":["/meta/tenant_id"]"#,
        ] {
            assert_eq!(identity("acme", again, unique), first, "{again} by {unique}");
        }
        let none = identity("acme", "", unique);
        assert_eq!(identity("acme", r#","meta":{"tenant_id":"acme"}"#, unique), none, "{unique}");
    }
}

/// Leaving it out would merge jobs that their sender tells apart.
#[test]
fn what_the_server_does_not_say_counts_as_the_callers_own() {
    for unique in POLICIES {
        let first = identity("acme", r#","meta":{"a":1}"#, unique);
        for (tenant, tenant_id) in [
            ("acme", r#""beta""#),
            ("acme", r#""Acme""#),
            ("acme", r#"["acme"]"#),
            ("acme", "null"),
            ("beta", r#""acme""#),
            ("", r#""acme""#),
            ("", r#""""#),
        ] {
            let meta = format!(r#","meta":{{"a":1,"tenant_id":{tenant_id}}}"#);
            assert_ne!(identity(tenant, &meta, unique).0, first.0, "{meta} in {tenant:?} by {unique}");
        }
    }
    let outside = identity("", r#","meta":{"a":1,"tenant_id":"acme"}"#, POLICIES[0]);
    assert_eq!(outside.1, r#"{"meta":{"a":1,"tenant_id":"acme"},"type":"a.b"}"#);
    let kept = request("acme", r#","meta":{"tenant_id":"acme","a":1}"#, POLICIES[0]);
    assert_eq!(&*kept.body.meta, r#"{"tenant_id":"acme","a":1}"#, "it is kept as it was sent");
}

#[test]
fn every_request_that_makes_jobs_is_read_so() {
    let unique = json!({ "keys": ["meta"], "meta_except": [] });
    let mut templates = Templates::default();
    let steps = json!([{ "name": "s", "handler": "a.b" }]);
    let template =
        json!({ "namespace": "a", "name": "task", "version": "1.0.0", "unique": unique, "steps": steps });
    templates.add(Template::read(&template.to_string()).unwrap()).unwrap();
    let keys = |own: &str| {
        let job =
            format!(r#"{{"type":"a.b","args":[],"meta":{{{own}"a":1}},"options":{{"unique":{unique}}}}}"#);
        let explained = Enqueue::parse_to_explain(&job, terms("acme")).unwrap();
        let text = format!(r#"{{"jobs":[{job}]}}"#);
        let item = Batch::parse(&text).unwrap().requests(terms("acme")).next().unwrap().unwrap();
        let text = format!(r#"{{"name":"c","expression":"@daily","job_template":{job}}}"#);
        let cron = Register::parse(&text, terms("acme")).unwrap();
        let text = format!(r#"{{"type":"chain","steps":[{job}]}}"#);
        let flow = workflow::parse(&text, terms("acme")).unwrap();
        let text = format!(r#"{{"namespace":"a","name":"task","context":{{}},{own}"a":1}}"#);
        let task = Create::parse(&text, terms("acme"), &templates).unwrap();
        [
            ("explained", key(&explained.offer)),
            ("item", key(&item.offer)),
            ("cron", key(&cron.registration.offer)),
            ("step", key(&flow.steps[0].offer)),
            ("task", key(&task.plan.offer)),
        ]
    };
    let first = keys("");
    assert_eq!(keys(r#""tenant_id":"acme","#), first);
    for (other, first) in keys(r#""tenant_id":"beta","#).into_iter().zip(first) {
        assert_ne!(other, first, "another's name is the caller's own");
    }
}

/// By the caller's own id, and by an `Idempotency-Key`.
#[test]
fn a_request_that_says_its_tenant_is_the_one_that_did_not() {
    let digest = |tenant: &str, rest: &str| {
        let id = "0197a3c0-1c2d-7e3f-8a4b-5c6d7e8f9a0b";
        let text = format!(r#"{{"id":"{id}","type":"a.b","args":[1]{rest}}}"#);
        let read = Enqueue::parse(&text, terms(tenant)).unwrap();
        let digest = read.body.request_digest.unwrap();
        let key = UniqueKey::from_bytes([7; 32]);
        let sent = once(&text, key, tenant).unwrap();
        assert_eq!(sent.digest, digest, "{rest} in {tenant:?}");
        assert_eq!(read.once(&text, key, tenant).unwrap().offer.once, Some(sent), "{rest} in {tenant:?}");
        digest
    };
    for (first, again) in [
        (r#","meta":{"a":1}"#, r#","meta":{"tenant_id":"acme","a":1}"#),
        // The request had no meta until the server showed one.
        ("", r#","meta":{"tenant_id":"acme"}"#),
        ("", r#","meta":{"tenant_id":"acme","traceparent":"00-1"}"#),
        (r#","options":{"priority":1}"#, r#","options":{"priority":1,"metadata":{"tenant_id":"acme"}}"#),
    ] {
        assert_eq!(digest("acme", again), digest("acme", first), "{again}");
        assert_eq!(digest("", first), digest("acme", first), "of what says no tenant it is what it was");
        for (tenant, other) in [("", again.to_owned()), ("acme", again.replace("acme", "beta"))] {
            assert_ne!(digest(tenant, &other), digest(tenant, first), "{other} in {tenant:?}");
        }
    }
    let own = r#","x_own":{"tenant_id":"acme"}"#;
    assert_ne!(digest("acme", own), digest("acme", r#","x_own":{}"#), "it is no meta");
}
