//! Almost valid requests: valid ones with random changes, and texts that are no requests at all. The same on
//! every run.

use semel_ojs::bulk::{self, Bulk};
use semel_ojs::cron::Register;
use semel_ojs::progress::Progress;
use semel_ojs::worker::Fetch;
use semel_ojs::{Enqueue, Terms, settings, webhook, workflow};

use crate::properties;

/// One of each kind of request, with as many members as possible.
const VALID: [&str; 14] = [
    r#"{"type":"a.b","args":[{"a":1,"b":"\u00e9"}],"meta":{"m":[1,2.5e3]},"options":{"queue":"q","priority":-3,"unique":{"keys":["type","args"],"args_keys":["a"],"period":"PT5M","on_conflict":"ignore"},"retry":{"max_attempts":3,"initial_interval":"PT1S"},"rate_limit":{"key":"k","rate":5,"period":"PT1S"}}}"#,
    r#"{"name":"c","expression":"*/5 9-17 * * MON-FRI","timezone":"Europe/Berlin","overlap_policy":"enqueue","enabled":true,"description":"d","job_template":{"type":"a.b","args":[],"unique":{"key":"k"}}}"#,
    r#"{"name":"c","cron":"@every 1h30m","type":"a.b","args":[1],"queue":"q"}"#,
    r#"{"name":"c","expression":"0 0 29 2 *","timezone":"UTC","type":"a.b"}"#,
    r#"{"type":"chain","name":"n","steps":[{"type":"a.b","args":[]},{"type":"group","jobs":[{"type":"c","args":[]},{"type":"d","args":[]}]}]}"#,
    r#"{"type":"batch","jobs":[{"type":"a.b","args":[]}],"callbacks":{"on_success":{"type":"c","args":[]},"on_failure":{"type":"c","args":[]}}}"#,
    r#"{"id":"019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f","steps":[{"id":"a","type":"a.b","args":[]},{"id":"b","type":"c","args":[],"depends_on":["a"]}]}"#,
    r#"{"url":"https://example.com:8443/hook?x=1","events":["job.completed","job.*"],"filter":{"queues":["q"],"job_types":["a.b"]},"secret":"0123456789abcdef","metadata":{"a":"1"}}"#,
    r#"{"filter":{"state":["available","scheduled"],"queue":"q","type":"a.b"},"confirm":true,"limit":10}"#,
    r#"{"states":["available","pending"]}"#,
    r#"{"backpressure":{"max_depth":10,"strategy":"reject","warning_threshold":0.5}}"#,
    r#"{"directive":"quiet"}"#,
    r#"{"job_id":"019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f","progress":50,"message":"half","data":{"n":1}}"#,
    r#"{"queues":["b","a"],"worker_id":"w","count":7,"visibility_timeout_ms":1000}"#,
];

/// Texts to put in place of something.
const PIECES: [&str; 28] = [
    "",
    "null",
    "true",
    "-0",
    "1e999",
    "9007199254740993",
    "\"\"",
    "\"\\ud800\"",
    "[]",
    "{}",
    "[[[[[[[[[",
    "}",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\u{0}",
    "\u{feff}",
    "\u{1f980}",
    "\"a\":1,\"a\":2",
    "@every 1s",
    "* * * * *",
    "99",
    "\"P1M\"",
    "/args/0",
    "depends_on",
    "https://[::1",
];

/// Splitmix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % (end.max(1) as u64)) as usize
    }
}

/// Replaces a random stretch with a piece.
fn change(text: &str, chance: &mut Chance) -> String {
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let from = places[chance.below(places.len())];
    let longest = [1, 4, 40][chance.below(3)];
    let to =
        text[from..].char_indices().map(|(at, _)| from + at).chain([text.len()]).nth(chance.below(longest));
    let piece = match chance.below(3) {
        0 => PIECES[chance.below(PIECES.len())],
        1 => "",
        // A stretch of another request, or of the same one.
        _ => {
            let other = VALID[chance.below(VALID.len())];
            let (a, b) = (chance.below(other.len()), chance.below(other.len()));
            other.get(a.min(b)..a.max(b)).unwrap_or_default()
        }
    };
    format!("{}{piece}{}", &text[..from], &text[to.unwrap_or(text.len())..])
}

#[test]
fn valid_requests_are_understood_and_break_nothing() {
    let cron: fn(&str) -> bool = |text| Register::parse(text, Terms::trusted()).is_ok();
    let flow: fn(&str) -> bool = |text| workflow::parse(text, Terms::trusted()).is_ok();
    let readers: [fn(&str) -> bool; VALID.len()] = [
        |text| Enqueue::parse(text, Terms::trusted()).is_ok(),
        cron,
        cron,
        cron,
        flow,
        flow,
        flow,
        |text| webhook::create(text, String::new).is_ok(),
        |text| Bulk::parse(text).is_ok(),
        |text| bulk::purge(text).is_ok(),
        |text| settings::queue(text).is_ok(),
        |text| settings::directive(text).is_ok(),
        |text| Progress::parse(text).is_ok(),
        |text| Fetch::parse(text).is_ok(),
    ];
    for (text, is_understood) in VALID.into_iter().zip(readers) {
        assert!(is_understood(text), "{text}");
        properties::bodies(text);
    }
}

#[test]
fn what_nearly_is_a_request_is_refused_with_a_place() {
    let (mut chance, mut refusals) = (Chance(7), 0);
    for _ in 0..3_000 {
        let mut text = VALID[chance.below(VALID.len())].to_owned();
        for _ in 0..=chance.below(3) {
            text = change(&text, &mut chance);
        }
        refusals += properties::refusals(&text);
    }
    // Most kinds of request refuse a request of another kind.
    assert!(refusals > 30_000, "{refusals}");
}

#[test]
fn what_is_nothing_is_refused_with_a_place() {
    let (mut chance, mut refusals) = (Chance(11), 0);
    for _ in 0..1_000 {
        let mut text = String::new();
        for _ in 0..chance.below(30) {
            text.push_str(PIECES[chance.below(PIECES.len())]);
            text.extend(char::from_u32((chance.next() % 0x300) as u32));
        }
        assert!(Enqueue::parse(&text, Terms::trusted()).is_err(), "{text}");
        refusals += properties::refusals(&text);
    }
    // Nearly every kind of request refuses it.
    assert!(refusals > 15_000, "{refusals}");
}
