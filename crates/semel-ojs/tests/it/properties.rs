//! Properties of any incoming text: nothing panics, whatever is accepted is accepted again the same way, and
//! what is written is read back unchanged. Checked on the kept inputs here, and on endless ones by `fuzz/`.

use semel_core::body::Body;
use semel_core::canon::{Json, differences, digest};
use semel_core::error::Invalid;
use semel_core::sight::Sight;
use semel_core::time::Timestamp;
use semel_core::unique::{Period, UniquePolicy};
use semel_ojs::batch::Batch;
use semel_ojs::bulk::{self, Bulk};
use semel_ojs::cron::Register;
use semel_ojs::progress::Progress;
use semel_ojs::worker::{Ack, Fetch, Heartbeat, Nack, bearer, reason};
use semel_ojs::{Enqueue, Terms, duration, settings, webhook, workflow};

/// The canonical form of a canonical form is itself, and other parsers accept it as JSON.
pub fn canon(text: &str) {
    let Ok(value) = Json::parse(text, "") else { return };
    let _any = digest(&value);
    assert!(differences(&value, &value, "", 4).is_empty());
    let Ok(canonical) = value.canonical("") else { return };
    let theirs: serde_json::Value = serde_json::from_str(&canonical).unwrap();
    let again = Json::parse(&canonical, "").unwrap();
    match again.canonical("") {
        Ok(twice) => assert_eq!(twice, canonical),
        // RFC 8785 writes 3e20 as an integer, and integers of that size are refused in requests.
        Err(refused) => return assert!(has_long_number(&theirs), "{refused} in {canonical}"),
    }
    assert_eq!(digest(&again), digest(&Json::parse(&canonical, "").unwrap()));
    assert_eq!(Json::parse(&theirs.to_string(), "").unwrap().canonical("").unwrap(), canonical);
}

/// Whether a number is written as an integer beyond 2^53 - 1.
fn has_long_number(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Number(number) => {
            number.as_f64().is_some_and(|number| (9_007_199_254_740_992.0..1e21).contains(&number.abs()))
        }
        serde_json::Value::Array(items) => items.iter().any(has_long_number),
        serde_json::Value::Object(members) => members.values().any(has_long_number),
        _ => false,
    }
}

/// An accepted policy keeps its meaning when it is sent back, and gives one key.
pub fn policy(text: &str) {
    let body =
        |unique: &str| format!(r#"{{"type":"a.b","args":[{{"a":1}}],"meta":{{"m":2}},"unique":{unique}}}"#);
    // Only one whole value, so that the text cannot change the rest of the body.
    if Json::parse(text, "").is_err() {
        return;
    }
    let Ok(request) = Enqueue::parse(&body(text), Terms::trusted()) else { return };
    let (first, again) =
        (request.canonical(), Enqueue::parse(&body(text), Terms::trusted()).unwrap().canonical());
    assert_eq!(first, again);
    if let Some(policy) = request.policy() {
        let rebuilt = UniquePolicy::build(&policy.to_spec(), "").unwrap();
        assert_eq!(&rebuilt, &**policy);
    }
}

/// Times and durations are accepted or refused; a time that is shown is read back unchanged.
pub fn times(text: &str) {
    let _any = (duration::parse(text, ""), duration::when(text, ""));
    if let Ok(at) = Timestamp::parse(text, "") {
        // Times are shown in milliseconds.
        assert_eq!(Timestamp::parse(&at.to_string(), "").unwrap().as_millis(), at.as_millis(), "{at}");
    }
    if let Ok(period) = Period::parse(text, "") {
        let now = Timestamp::from_millis(1_767_225_600_000);
        assert!(period.after(now) >= now, "a window ends before it begins");
    }
}

/// Bodies of requests.
pub fn bodies(text: &str) {
    let _any = refusals(text);
}

/// Parses the text as each kind of request: it is accepted, or refused with a pointer and a reason. Returns
/// the number of refusals.
pub fn refusals(text: &str) -> usize {
    let mut refused: Vec<Option<Invalid>> = vec![
        Fetch::parse(text).err(),
        Ack::parse(text).err(),
        Nack::parse(text).err(),
        Heartbeat::parse(text).err(),
        bearer(text).err(),
        reason(text).err(),
        workflow::parse(text, Terms::trusted()).err(),
        Bulk::parse(text).err(),
        bulk::purge(text).err(),
        settings::queue(text).err(),
        settings::directive(text).err(),
        Progress::parse(text).err(),
        Progress::parse_percent(text).err(),
    ];
    for inspect in [false, true] {
        let terms = Terms { sight: Sight { inspect, ..Sight::everything() }, ..Terms::trusted() };
        match Enqueue::parse(text, terms) {
            Ok(request) => {
                let _any = request.canonical();
                let (offer, body) = request.into_parts();
                assert_eq!(Body::decode(&offer.body).unwrap(), body);
            }
            Err(invalid) => refused.push(Some(invalid)),
        }
    }
    match Batch::parse(text) {
        Ok(batch) => assert_eq!(batch.requests(Terms::trusted()).count(), batch.len()),
        Err(invalid) => refused.push(Some(invalid)),
    }
    let registered = Register::parse(text, Terms::trusted());
    refused.push(registered.as_ref().err().cloned());
    if let Ok(Register { name, registration, .. }) = registered {
        // Every accepted schedule ticks.
        let now = Timestamp::from_millis(1_767_225_600_000);
        assert!(registration.schedule.next_after(now, now).is_some(), "{name}: {}", registration.expression);
    }
    let created = webhook::create(text, || "0123456789abcdef".to_owned());
    refused.push(created.as_ref().err().cloned());
    if let Ok(mut wish) = created {
        assert!(webhook::Target::parse(&wish.url).is_ok(), "{}", wish.url);
        refused.push(webhook::change(text, &mut wish).err());
    }
    let refused: Vec<Invalid> = refused.into_iter().flatten().collect();
    for refused in &refused {
        assert!(refused.pointer.is_empty() || refused.pointer.starts_with('/'), "{refused} in {text}");
        assert!(!refused.message.is_empty(), "{} in {text}", refused.pointer);
    }
    refused.len()
}
