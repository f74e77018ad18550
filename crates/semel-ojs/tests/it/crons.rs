//! Cron registrations: a template can say whatever a job can say.

use std::sync::Arc;
use std::time::Duration;

use semel_core::body::Body;
use semel_core::cron::{self, Cron, Enabled, Overlap};
use semel_core::draft::{Draft, Reads, Snapshot};
use semel_core::error::InvalidKind;
use semel_core::time::Timestamp;
use semel_ojs::Terms;
use semel_ojs::cron::{Register, answer, change, listed};

fn read(text: &str) -> Register {
    Register::parse(text, Terms::trusted()).unwrap_or_else(|refused| panic!("{refused} in {text}"))
}

/// The job's members may be in `options`, at the template's top level, or beside the registration's own.
#[test]
fn a_template_keeps_every_attribute_wherever_it_stands() {
    let attributes = r#""queue":"q","priority":7,"timeout_ms":9000,"visibility_timeout_ms":8000,"tags":["t"],
        "retry":{"max_attempts":4},"unique":{"key":"k"},"sensitive":["/args/0/card"],
        "rate_limit":{"key":"r","concurrency":2}"#;
    let job = r#""type":"a.b","args":[{"card":"4242"}],"meta":{"m":1}"#;
    let own = r#""name":"c","expression":"@daily""#;
    for text in [
        format!(r#"{{{own},"job_template":{{{job},"options":{{{attributes}}}}}}}"#),
        format!(r#"{{{own},"job_template":{{{job},{attributes}}}}}"#),
        format!("{{{own},{job},{attributes}}}"),
        format!(r#"{{{own},{job},"options":{{{attributes}}}}}"#),
    ] {
        let offer = read(&text).registration.offer;
        let body = Body::decode(&offer.body).unwrap();
        assert_eq!((offer.queue.as_str(), offer.priority, offer.timeout_ms), ("q", 7, 9_000), "{text}");
        assert_eq!((offer.visibility_ms, offer.max_attempts), (8_000, 4), "{text}");
        assert_eq!(
            (body.tags, body.sensitive),
            (vec!["t".to_owned()], vec!["/args/0/card".to_owned()]),
            "{text}"
        );
        assert_eq!((&*body.meta, body.unique.unwrap().key_text()), (r#"{"m":1}"#, Some("k")), "{text}");
        let limit = offer.limit.unwrap();
        assert_eq!((&*limit.key, limit.concurrency), ("r", Some(2)), "{text}");
        assert!(offer.unique.is_some() && offer.id.is_none(), "{text}");
    }
}

/// A template keeps unknown members as a job does; the registration's own members are not the job's.
#[test]
fn attributes_that_nobody_knows_stay_with_the_template() {
    let template = read(
        r#"{"name":"c","expression":"@daily","job_template":{"id":"x","type":"a.b","x_team":"billing","name":"n"}}"#,
    );
    assert_eq!(
        &*Body::decode(&template.registration.offer.body).unwrap().extra,
        r#"{"x_team":"billing","name":"n"}"#
    );
    let beside = read(
        r#"{"name":"c","cron":"@daily","type":"a.b","enabled":false,"timezone":"UTC","description":"d"}"#,
    );
    assert_eq!(&*Body::decode(&beside.registration.offer.body).unwrap().extra, "{}");
}

/// Without the member, the operator's setting stays.
#[test]
fn a_registration_enables_a_cron_that_is_there_only_where_it_says_so() {
    for (member, expected) in [
        ("", Enabled::AtFirst(true)),
        (r#","enabled":true"#, Enabled::FromNow(true)),
        (r#","enabled":false"#, Enabled::FromNow(false)),
    ] {
        let text = format!(r#"{{"name":"c","expression":"@daily","type":"a.b"{member}}}"#);
        assert_eq!(read(&text).registration.enabled, expected, "{text}");
    }
}

/// Otherwise a misspelt member would seem to have taken effect.
#[test]
fn a_change_of_what_cannot_be_changed_is_refused() {
    let before = before();
    let wanted =
        change(r#"{"enabled":false,"cron":"@hourly","overlap_policy":"allow","description":null}"#, &before)
            .unwrap();
    assert_eq!((wanted.enabled, wanted.overlap), (Some(false), Some(Overlap::Allow)));
    assert_eq!((wanted.expression.as_deref(), wanted.timezone), (Some("@hourly"), None));
    // It does not touch the expression, which another change may be about.
    let zone = change(r#"{"timezone":"Asia/Tokyo"}"#, &before).unwrap();
    assert_eq!((zone.expression, zone.timezone.as_deref()), (None, Some("Asia/Tokyo")));
    assert_eq!(change(r#"{"timezone":"CET"}"#, &before).unwrap_err().pointer, "/timezone");
    assert_eq!(change(r#"{"expression":"x"}"#, &before).unwrap_err().pointer, "/expression");
    assert_eq!(change("{}", &before).unwrap().enabled, None);
    for (text, pointer) in [
        (r#"{"enable":false}"#, "/enable"),
        (r#"{"enabled":false,"job_template":{"type":"a.b"}}"#, "/job_template"),
        (r#"{"description":"d"}"#, "/description"),
    ] {
        let refused = change(text, &before).unwrap_err();
        assert_eq!(refused.pointer, pointer, "{text}");
        for member in ["enabled", "expression", "timezone", "overlap_policy"] {
            assert!(refused.message.contains(member), "{refused}");
        }
    }
}

/// The specification has two words for it.
#[test]
fn a_run_before_is_cancelled_by_either_word() {
    for word in ["cancel", "cancel_previous"] {
        let text = format!(r#"{{"name":"c","expression":"@daily","type":"a.b","overlap_policy":"{word}"}}"#);
        assert_eq!(read(&text).registration.overlap, Overlap::CancelPrevious, "{word}");
    }
}

#[test]
fn a_template_is_refused_with_its_place() {
    for (member, pointer) in [
        (r#""unique":{"keys":[]}"#, "/job_template/unique/keys"),
        (r#""queue":"A""#, "/job_template/queue"),
        (r#""options":{"retry":{"max_attempts":-1}}"#, "/job_template/options/retry/max_attempts"),
        (r#""args":{}"#, "/job_template/args"),
    ] {
        let text =
            format!(r#"{{"name":"c","expression":"@daily","job_template":{{"type":"a.b",{member}}}}}"#);
        assert_eq!(Register::parse(&text, Terms::trusted()).unwrap_err().pointer, pointer, "{text}");
    }
    let refused =
        Register::parse(r#"{"name":"c","expression":"@daily","type":"a.b","queue":"A"}"#, Terms::trusted());
    assert_eq!(refused.unwrap_err().pointer, "/queue");
}

/// Otherwise one of them would be ignored, and the cron tick at other times than its author expects.
#[test]
fn a_schedule_under_two_names_is_one() {
    let text = |members: &str| format!(r#"{{"name":"c",{members},"type":"a.b"}}"#);
    let both = text(r#""expression":"@daily","cron":"@daily""#);
    assert_eq!(read(&both).registration.expression, "@daily");
    let refused = Register::parse(&text(r#""expression":"@daily","cron":"@hourly""#), Terms::trusted())
        .map(drop)
        .unwrap_err();
    assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::Request, "/cron"));
    assert!(refused.message.contains("/expression"), "{refused}");
    let changed = change(r#"{"cron":"@hourly","expression":"@daily"}"#, &before());
    assert_eq!(changed.unwrap_err().pointer, "/cron");
}

/// Otherwise no job of the cron would have it.
#[test]
fn what_is_said_of_the_job_beside_its_template_is_refused() {
    let own = r#""name":"c","expression":"@daily""#;
    let template = r#""job_template":{"type":"a.b","args":[1],"options":{"queue":"q"}}"#;
    for (beside, pointer) in [
        (r#""type":"b.c""#, "/type"),
        (r#""args":[2]"#, "/args"),
        (r#""options":{"queue":"q","priority":7}"#, "/options"),
        (r#""meta":{"m":1}"#, "/meta"),
        (r#""queue":"q""#, "/queue"),
        (r#""unique":{}"#, "/unique"),
        (r#""unique_key":"k""#, "/unique_key"),
    ] {
        let text = format!("{{{own},{template},{beside}}}");
        let refused = Register::parse(&text, Terms::trusted()).map(drop).unwrap_err();
        assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::Request, pointer), "{text}");
        assert!(refused.message.contains("job_template"), "{refused}");
    }
    // Without a template the member is the job's, and refused as in a job.
    let text = format!(r#"{{{own},"type":"a.b","unique_key":"k"}}"#);
    assert_eq!(Register::parse(&text, Terms::trusted()).map(drop).unwrap_err().pointer, "/unique_key");
    for beside in [r#""meta":{},"options":null"#, r#""options":{"queue":"q"},"type":"a.b","args":[1.0]"#] {
        assert_eq!(read(&format!("{{{own},{template},{beside}}}")).registration.offer.queue.as_str(), "q");
    }
}

/// Answers repeat the job beside its template, and the expression beside a wrapper that has its other name.
#[test]
fn a_cron_that_was_answered_may_be_sent_back() {
    let job = r#""type":"a.b","args":[1],"options":{"queue":"q","unique":{"key":"k"}}"#;
    let first = read(&format!(r#"{{"name":"c","expression":"@daily",{job}}}"#));
    let mut snapshot = Snapshot::with_room_for(Timestamp::from_millis(1_800_000_000_000), &Reads::default());
    snapshot.add_document(cron::key(&first.name), None);
    let mut draft = Draft::new(snapshot, 7, Arc::default());
    let registered = cron::register(&mut draft, &first.name, &first.registration);
    let cron = registered.unwrap_or_else(|_| panic!("nothing is missing")).unwrap().cron;
    for answered in [answer(&first.name, &cron), listed(&first.name, &cron)] {
        let again = read(&answered).registration;
        assert_eq!((again.expression.as_str(), again.offer.queue.as_str()), ("@daily", "q"), "{answered}");
    }
}

fn before() -> Cron {
    Cron::decode(
        br#"{"incarnation":1,"expression":"@daily","timezone":"UTC","overlap":"skip","enabled":true,"template":{},
        "created_at":0,"updated_at":0,"next_tick":null,"run_count":0,"skip_count":0,"history":[]}"#,
    )
    .unwrap()
}

/// The next tick of `@every` is one interval later.
#[test]
fn a_schedule_is_read_in_its_zone() {
    let registration = read(r#"{"name":"c","expression":"@every 1h","type":"a.b"}"#).registration;
    let from = Timestamp::from_millis(1_767_225_600_000);
    let next = registration.schedule.next_after(from, from).unwrap();
    assert_eq!(next.since(from), Duration::from_secs(3_600));
    for (text, pointer) in [
        (r#"{"expression":"@daily","type":"a.b"}"#, "/name"),
        (r#"{"name":"A","expression":"@daily","type":"a.b"}"#, "/name"),
        (r#"{"name":"c","type":"a.b"}"#, "/expression"),
        (r#"{"name":"c","expression":"x","type":"a.b"}"#, "/expression"),
        (r#"{"name":"c","expression":"@daily"}"#, "/job_template"),
        (r#"{"name":"c","expression":"@daily","args":[]}"#, "/type"),
        (r#"{"name":"c","cron":"@daily"}"#, "/type"),
        (r#"{"name":"c","expression":"@daily","timezone":"EST","type":"a.b"}"#, "/timezone"),
        (r#"{"name":"c","expression":"@daily","overlap_policy":"x","type":"a.b"}"#, "/overlap_policy"),
    ] {
        assert_eq!(Register::parse(text, Terms::trusted()).unwrap_err().pointer, pointer, "{text}");
    }
}
