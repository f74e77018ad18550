//! The four questions that operators of other queues cannot answer, answered on the demo's data from the
//! dashboard alone. A click is a press of the mouse; the operator knows what is pasted.
//! docs/guide/dashboard.md has the counts.

use semel_testkit::chromium::Browser;
use serde_json::{Value, json};

use crate::run::{Folder, Server};

/// A person at the dashboard, whose clicks are counted.
struct Asker {
    browser: Browser,
    clicks: u32,
}

impl Asker {
    /// In front of the first page.
    fn begin(&mut self) {
        self.browser.open("/");
        self.clicks = 0;
    }

    fn press(&mut self, name: &str) {
        self.browser.press(name);
        self.browser.settle();
        self.clicks += 1;
    }
}

/// Enqueues with the program, as a caller would.
fn offer(folder: &Folder, server: &Server, body: &Value) {
    let args = body["args"][0].to_string();
    let policy = body["options"]["unique"].to_string();
    let job_type = body["type"].as_str().unwrap();
    let words = ["enqueue", job_type, args.as_str(), "--unique", policy.as_str(), "--server", &server.url];
    let ran = folder.run(&words);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[test]
fn the_four_questions_take_a_few_clicks_each() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let report = folder.json(&["demo", "--events", "300", "--server", &server.url]);
    assert_eq!(report["ok"], true);
    // A policy that includes a time never matches.
    for at in 0..6 {
        let never = json!({ "type": "stock.sync", "args": [{ "sku": 1, "at": at }], "options": { "unique": { "keys": ["args"] } } });
        offer(&folder, &server, &never);
    }
    let hottest = folder.json(&["top", "--once", "--server", &server.url])["hottest"]["items"][0].clone();
    let (key, id) = (hottest["key"].as_str().unwrap(), hottest["job_id"].as_str().unwrap());
    let job = folder.json(&["job", id, "--server", &server.url]);
    let job = job.get("job").cloned().unwrap_or(job);
    let mut asker = Asker { browser: Browser::start(&server.url), clicks: 0 };

    // Why was event X not run again? Its payload is pasted.
    asker.begin();
    asker.press("Why not?");
    let mut policy = job["unique"].clone();
    policy.as_object_mut().unwrap().remove("duplicates");
    let payload = json!({ "type": job["type"], "args": job["args"], "options": { "queue": job["queue"], "unique": policy } });
    asker.browser.fill("Payload", &payload.to_string());
    asker.press("Ask");
    asker.browser.sees("Who blocks it");
    asker.browser.sees(&format!("Job {id} (completed, created "));
    assert_eq!(asker.clicks, 2);

    // Which key is hottest?
    asker.begin();
    asker.press("Hottest keys →");
    let first = asker.browser.eval("document.querySelector('tbody tr td a').getAttribute('title')");
    assert_eq!(first, key);
    assert_eq!(asker.clicks, 1);

    // Which policy never matches?
    asker.begin();
    asker.press("Policies");
    let never = "[...document.querySelectorAll('.card')].filter((card) => card.textContent.includes('never met a duplicate')) \
                 .map((card) => card.querySelector('h2').textContent).join()";
    assert_eq!(asker.browser.eval(never), "stock.sync");
    assert_eq!(asker.clicks, 1);

    // What frees key K? It is pasted.
    asker.begin();
    asker.press("Keys");
    asker.browser.fill("Key or job id", key);
    asker.press("Find");
    asker.browser.until("the key's page", &format!("location.hash === '#/keys/{key}'"));
    asker.browser.settle();
    asker.browser.sees("Held.");
    asker.browser.sees("blocks until its key is released or its record is purged.");
    assert_eq!(asker.clicks, 2);

    asker.browser.is_well("the four questions");
    assert_eq!(server.stop().0.code(), Some(0));
}
