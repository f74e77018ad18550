//! Every screen in every size and colour scheme; every button; every link; the keyboard.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use semel_testkit::chromium::Browser;
use serde_json::Value;

use super::pictures;
use super::stage::Stage;

/// Widths in pixels: a desk, a small laptop, a phone.
const WIDTHS: [u32; 3] = [1280, 1024, 390];
/// Looks of which a screenshot is kept, by width and whether dark; all looks are checked.
const PICTURED: [(u32, bool); 3] = [(1280, false), (390, false), (1280, true)];
/// How many links of each screen are followed.
const LINKS_EACH: usize = 12;

/// Every screen's location, and a name for its screenshot.
fn screens(stage: &Stage) -> Vec<(String, &'static str)> {
    let mut screens: Vec<(String, &'static str)> = [
        ("overview", "overview"),
        ("keys", "keys"),
        ("keys?list=held", "keys-held"),
        ("why", "why"),
        ("jobs", "jobs"),
        ("jobs?state=discarded", "jobs-discarded"),
        ("duplicates", "duplicates"),
        ("duplicates?minutes=start", "duplicates-start"),
        ("policies", "policies"),
        ("workflows", "workflows"),
        ("crons", "crons"),
        ("crons/nightly", "cron"),
        ("dead", "dead"),
        ("workers", "workers"),
        ("webhooks", "webhooks"),
        ("audit", "audit"),
        ("health", "health"),
    ]
    .map(|(place, name)| (format!("#/{place}"), name))
    .into();
    let mut add = |place: String, name| screens.push((place, name));
    add(format!("#/keys/{}", stage.key), "key");
    add(format!("#/keys/{}", "0".repeat(64)), "key-free");
    add(format!("#/why?of={}", stage.held), "why-of");
    add(format!("#/jobs/{}", stage.held), "job-held");
    add(format!("#/jobs/{}", stage.active), "job-active");
    add(format!("#/jobs/{}", stage.pending), "job-pending");
    add(format!("#/jobs/{}", stage.completed), "job-completed");
    add(format!("#/jobs/{}", stage.dead[0]), "job-dead");
    add(format!("#/workflows/{}", stage.workflow), "workflow");
    screens
}

fn names(value: &Value) -> Vec<String> {
    let all = value.as_array().unwrap_or_else(|| panic!("{value} is no list"));
    all.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// Problems with what is shown now.
fn wrongs(browser: &mut Browser) -> Vec<String> {
    names(&browser.eval("hand.wrongs()"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_screen_can_be_read_in_every_size() {
    read_every_screen(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_screen_can_be_read_in_the_dark() {
    read_every_screen(true).await;
}

async fn read_every_screen(is_dark: bool) {
    let scheme = if is_dark { "dark" } else { "light" };
    let stage = Stage::set().await;
    let mut browser = stage.browser();
    browser.open("/");
    let mut found = BTreeSet::new();
    for (place, name) in screens(&stage) {
        browser.look(WIDTHS[0], is_dark);
        browser.go(&place);
        assert_eq!(browser.eval("hand.problem()"), "", "{place}");
        for width in WIDTHS {
            browser.look(width, is_dark);
            let at = format!("{name}, {width} px, {scheme}");
            found.extend(wrongs(&mut browser).into_iter().map(|wrong| format!("{at}: {wrong}")));
            if PICTURED.contains(&(width, is_dark)) {
                browser.picture(&pictures().join(format!("{name}-{width}-{scheme}.png")));
            }
            browser.is_well(&at);
        }
    }
    assert!(found.is_empty(), "{found:#?}");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_became_of_requests_is_drawn_over_any_span() {
    let stage = Stage::set().await;
    let mut browser = stage.browser();
    browser.open("/");
    let drawn = "[...document.querySelectorAll('.charts figure small')].map((node) => parseInt(node.textContent, 10))";
    // The figures are the same for every span, so wait for the span's own note.
    for (span, note) in [("minute", "per minute"), ("hour", "per hour"), ("", "Drawn from")] {
        browser.until("the span is chosen", &format!("hand.choose('Span', {span:?})"));
        // Created (the stage's jobs, the workflow's steps and the cron's) and deduplicated, as the stage made
        // them.
        browser.until(note, &format!("hand.shows({note:?}) && (({drawn})[0] > 15) && (({drawn})[1] === 13)"));
    }
    browser.until("one type", "hand.choose('Type', 'payment.capture')");
    browser.until("its own figures", &format!("({drawn})[0] === 7 && ({drawn})[1] === 12"));
    browser.is_well("the charts");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jobs_page_leads_to_those_before_and_after_it() {
    let stage = Stage::set().await;
    let latest = serde_json::json!({
        "type": "draft.save", "args": [1], "options": { "unique": { "keys": ["type"], "on_conflict": "replace" } },
    });
    let first = stage.server.create(&latest).await.job_id().to_owned();
    let second = stage.server.create(&latest).await.job_id().to_owned();
    let mut browser = stage.browser();
    browser.open(&format!("/#/jobs/{first}"));
    browser.until("who took its place", "hand.shows('Replaced by')");
    browser.eval(&format!("document.querySelector('main dl a[href=\"#/jobs/{second}\"]').click()"));
    browser.until("whose place it took", "hand.shows('Replaces')");
    browser.until(
        "the way back",
        &format!("document.querySelector('main dl a[href=\"#/jobs/{first}\"]') !== null"),
    );
    browser.is_well("lineage");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keyboard_reaches_everything_and_shows_where_it_is() {
    let stage = Stage::set().await;
    let mut browser = stage.browser();
    browser.open("/");
    // Pause, since live events would change the screen during the test.
    browser.press("Pause");
    for (place, name) in screens(&stage) {
        browser.go(&place);
        browser.eval("hand.rest()");
        let count = browser.eval("hand.count()").as_u64().unwrap();
        let mut reached = BTreeSet::new();
        // Tab from wherever focus is until everything was reached; a key press may be lost while the screen
        // is still being drawn.
        for _ in 0..4 * count + 40 {
            browser.key("Tab");
            let focused = browser.eval("hand.focused()");
            if let Some(at) = focused["at"].as_u64() {
                assert_eq!(
                    focused["isMarked"], true,
                    "{name}: nothing shows that {} has the focus",
                    focused["name"]
                );
                reached.insert(at);
            }
            if reached.len() as u64 >= count {
                break;
            }
        }
        let missed: Vec<u64> = (0..count).filter(|at| !reached.contains(at)).collect();
        assert!(missed.is_empty(), "{name}: the keyboard does not reach {missed:?} of {count}");
    }
    browser.is_well("by keyboard");
    // `g` and a letter lead to a screen; other letters act on it.
    browser.go("#/jobs");
    for (letter, title) in [
        ("k", "Keys"),
        ("y", "Why not?"),
        ("d", "Dead letters"),
        ("a", "Audit"),
        ("h", "Health"),
        ("o", "Overview"),
    ] {
        browser.eval("hand.rest()");
        browser.key("g");
        browser.key(letter);
        browser.until(
            title,
            &format!("document.querySelector('h1').textContent === {title:?} && hand.isSettled()"),
        );
    }
    browser.key("?");
    browser.until("the list of keys", "hand.dialog() === 'Keyboard shortcuts'");
    assert_eq!(wrongs(&mut browser), [""; 0]);
    browser.key("Escape");
    browser.until("it is gone", "hand.dialog() === ''");
    browser.go("#/keys");
    browser.eval("hand.rest()");
    browser.key("/");
    assert_eq!(browser.eval("document.activeElement.name"), "what");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_button_and_every_link_leads_somewhere() {
    let stage = Stage::set().await;
    let mut browser = stage.browser();
    browser.open("/");
    let (mut pressed, mut links) = (BTreeSet::new(), BTreeSet::new());
    for (place, name) in screens(&stage) {
        browser.go(&place);
        links.extend(names(&browser.eval("hand.links()")).into_iter().take(LINKS_EACH));
        // A button may reveal others, such as “Resume” after “Pause”; those are pressed as well.
        while let Some(button) = next(&mut browser, &place, &pressed) {
            pressed.insert((place.clone(), button.clone()));
            browser.press(&button);
            browser.settle();
            let title = browser.eval("hand.dialog()");
            if title != "" {
                let at = format!("{name}, {button}");
                assert_eq!(wrongs(&mut browser), [""; 0], "{at}");
                browser.picture(&pictures().join(format!("dialog-{}.png", file_name(&at))));
                browser.press(if title == "Keyboard shortcuts" { "Close" } else { "Back" });
                browser.until("the dialog is gone", "hand.dialog() === ''");
            }
            browser.is_well(&format!("{name}, {button}"));
        }
    }
    assert!(pressed.len() > 60, "{} buttons were found", pressed.len());
    for link in &links {
        browser.go(link);
        // A button pressed above may have removed a dead letter.
        let problem = browser.eval("hand.problem()");
        let problem = problem.as_str().unwrap();
        assert!(
            problem.is_empty() || problem.contains("not found") || problem.contains("there is no"),
            "{link}: {problem}"
        );
        browser.is_well(link);
    }
    assert!(links.len() > 30, "{} links were found", links.len());
    stage.server.stop().await;
}

/// A button of the screen that has not been pressed yet. Reloads the screen if the last one left it.
fn next(browser: &mut Browser, place: &str, pressed: &BTreeSet<(String, String)>) -> Option<String> {
    if browser.eval("location.hash") != place {
        browser.go(place);
    }
    let buttons = names(&browser.eval("hand.buttons()"));
    buttons.into_iter().find(|button| !pressed.contains(&(place.to_owned(), button.clone())))
}

fn file_name(text: &str) -> String {
    let kept = text.chars().filter(|c| c.is_ascii_alphanumeric() || *c == ' ').take(60);
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_tells_of_its_former_holders_and_policies_of_those_that_never_match() {
    let stage = Stage::set().await;
    let latest = serde_json::json!({
        "type": "report.build", "args": [2], "options": {
            "queue": "reports", "unique": { "keys": ["type"], "on_conflict": "replace" },
        },
    });
    let newest = stage.server.create(&latest).await;
    let key = newest.body["job"]["unique_key"].as_str().unwrap().to_owned();
    let mut browser = stage.browser();
    browser.open(&format!("/#/keys/{key}"));
    // The default span starts with the present holder; the jobs that it replaced were admitted before, in the
    // last hour.
    browser.press("1 hour");
    browser.settle();
    let told = "document.querySelectorAll('ol.timeline li').length";
    browser.until("three were admitted and two replaced", &format!("{told} === 5"));
    browser.sees("a newer job with its key took its place");
    assert_eq!(
        names(
            &browser
                .eval("[...new Set([...document.querySelectorAll('ol.timeline li a')].map((a) => a.href))]")
        )
        .len(),
        3
    );
    // The holder has let go: the page shows no holder, but the log still has the events.
    stage.server.post(&format!("/ojs/v1/queues/{}/purge", "reports"), &serde_json::json!({})).await;
    browser.press("whole log");
    browser.until("the end is told of", &format!("{told} === 6"));
    let alone = serde_json::json!({ "type": "log.line", "args": [1], "unique": { "keys": ["args"] } });
    stage.server.create(&alone).await;
    browser.go("#/policies");
    browser.sees("1 has never matched.");
    browser.sees("0.0 %");
    browser.sees("66.7 %");
    browser.is_well("key and policies");
    stage.server.stop().await;
}

/// The server does not send more events than a person can read: the stream rests, says so, and continues with
/// what happens next.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_events_is_not_all_sent_to_a_page() {
    let stage = Stage::set().await;
    let mut browser = stage.browser();
    browser.open("/");
    browser.sees("Live");
    let jobs: Vec<_> = (0..900).map(|n| serde_json::json!({ "type": "storm.drop", "args": [n] })).collect();
    let told = stage.server.post("/ojs/v1/jobs/bulk", &serde_json::json!({ "jobs": jobs })).await;
    assert_eq!(told.status, 200, "{}", told.body);
    browser.sees("more events than are shown");
    stage.server.create(&serde_json::json!({ "type": "storm.unseen", "args": [1] })).await;
    // It rests for three seconds; if this machine took longer, nothing can be asserted.
    let rests = browser.eval("hand.shows('more events than are shown')") == true;
    let drawn = "document.querySelectorAll('ol.feed li').length";
    browser.until("no more is drawn than is shown", &format!("{drawn} === 30"));
    // Once the stream continues, it shows what happens from then on.
    let (begun, mut number) = (Instant::now(), 0);
    let fed = |browser: &mut Browser, name: &str| {
        browser.eval(&format!("document.querySelector('ol.feed').textContent.includes({name:?})")) == true
    };
    while !fed(&mut browser, "calm.after") {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never goes on");
        number += 1;
        stage.server.create(&serde_json::json!({ "type": "calm.after", "args": [number] })).await;
        browser.settle();
    }
    assert!(!rests || !fed(&mut browser, "storm.unseen"), "it was sent all the same");
    browser.is_well("the overview in a storm");
    stage.server.stop().await;
}
