//! A real browser on a page, used as a person would: what it shows, presses and types; and what went wrong
//! meanwhile.
//!
//! - [`Pipe`]: the process. `hand.js`: finds and judges things on a page by what they are called.
//!
//! A fault is anything that must not happen on any screen: a script error, a refusal by the page's security
//! policy, an answer of 5xx, a request to another server than the page's own, a dialog of the browser itself.

mod pipe;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use pipe::{Pipe, VARIABLE};

/// How long a condition may take to come true.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition is checked.
const POLL: Duration = Duration::from_millis(15);
/// The script that runs in every page before the page's own scripts.
const HAND: &str = include_str!("hand.js");

/// A browser with one page.
pub struct Browser {
    pipe: Pipe,
    session: String,
    /// The origin that the page may send requests to.
    origin: String,
    faults: Vec<String>,
}

impl Browser {
    /// Starts a browser for the pages of one server.
    ///
    /// # Panics
    /// When there is no Chromium: [`VARIABLE`] says where it is.
    pub fn start(origin: &str) -> Self {
        let mut pipe = Pipe::start();
        let targets = pipe.ask(None, "Target.getTargets", &json!({}), drop).unwrap();
        let is_page = |target: &&Value| target["type"] == "page";
        let page = targets["targetInfos"].as_array().unwrap().iter().find(is_page).unwrap();
        let wish = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = pipe.ask(None, "Target.attachToTarget", &wish, drop).unwrap();
        let session = attached["sessionId"].as_str().unwrap().to_owned();
        let mut browser =
            Self { pipe, session, origin: origin.trim_end_matches('/').to_owned(), faults: Vec::new() };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser.call("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": HAND }));
        browser.call("Emulation.setFocusEmulationEnabled", &json!({ "enabled": true }));
        browser.look(1280, false);
        browser
    }

    /// Calls a method of the browser's protocol.
    pub fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.try_call(method, parameters).unwrap_or_else(|error| panic!("{error}; faults: {:?}", self.faults))
    }

    fn try_call(&mut self, method: &str, parameters: &Value) -> Result<Value, String> {
        let (origin, faults) = (&self.origin, &mut self.faults);
        let hear = |told: Value| faults.extend(fault(&told, origin));
        self.pipe.ask(Some(&self.session), method, parameters, hear)
    }

    /// Sets the window's width in pixels, and dark or light colours.
    pub fn look(&mut self, width: u32, is_dark: bool) {
        let is_phone = width < 500;
        let size = json!({ "width": width, "height": if is_phone { 844 } else { 900 }, "deviceScaleFactor": 1, "mobile": is_phone });
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!([
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// Loads a path of the server afresh, and waits until the page is settled.
    pub fn open(&mut self, path: &str) {
        self.begin(path);
        self.until("the page is there", "location.href !== 'about:blank' && hand.isSettled()");
    }

    /// As [`open`](Self::open), with values in the tab's storage.
    pub fn open_with(&mut self, path: &str, kept: &[(&str, &str)]) {
        let kept: Value = kept.iter().map(|(name, value)| json!([name, value])).collect();
        let source = format!(
            "if (location.origin !== 'null') for (const [name, value] of {kept}) sessionStorage.setItem(name, value);"
        );
        let added = self.call("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": source }));
        self.open(path);
        self.call("Page.removeScriptToEvaluateOnNewDocument", &json!({ "identifier": added["identifier"] }));
    }

    /// Starts loading a path of the server afresh.
    pub fn begin(&mut self, path: &str) {
        // Between two places behind `#` the browser would stay on the loaded page.
        self.call("Page.navigate", &json!({ "url": "about:blank" }));
        // The answer may arrive before the old page is gone.
        self.until("the page is left", "location.href === 'about:blank'");
        let url = format!("{}{path}", self.origin);
        self.call("Page.navigate", &json!({ "url": url }));
    }

    /// Goes to another screen of the page.
    pub fn go(&mut self, place: &str) {
        let went = format!("hand.go({})", Value::from(place));
        self.eval(&went);
        self.settle();
    }

    /// Waits until the screen shows what it has to show.
    pub fn settle(&mut self) {
        self.until("the screen is settled", "hand.isSettled()");
    }

    /// The value of a JavaScript expression; promises are awaited.
    pub fn eval(&mut self, expression: &str) -> Value {
        self.try_eval(expression)
            .unwrap_or_else(|error| panic!("{error}: {expression}; faults: {:?}", self.faults))
    }

    /// The same, with the browser's error: between two pages there is none to evaluate it in.
    fn try_eval(&mut self, expression: &str) -> Result<Value, String> {
        let wish = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true });
        let told = self.try_call("Runtime.evaluate", &wish)?;
        if let Some(thrown) = told.get("exceptionDetails") {
            panic!("{expression}: {}", thrown["exception"]["description"]);
        }
        Ok(told["result"]["value"].clone())
    }

    /// Waits until an expression is truthy in the page, and returns its value.
    pub fn until(&mut self, what: &str, expression: &str) -> Value {
        let asked = format!(
            "(() => {{ try {{ return {expression}; }} catch (error) {{ hand.last = String(error); return null; }} }})()"
        );
        let begun = Instant::now();
        loop {
            let found = self.try_eval(&asked).unwrap_or(Value::Null);
            if !matches!(found, Value::Null | Value::Bool(false)) && found != "" && found != 0 {
                return found;
            }
            if begun.elapsed() > PATIENCE {
                let shown = self.eval("`${location.href}\\n${hand.last ?? ''}\\n${document.body.innerText}`");
                panic!(
                    "not so: {what}\n{expression}\n{}\nfaults: {:?}",
                    shown.as_str().unwrap_or(""),
                    self.faults
                );
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits until the page shows a text.
    pub fn sees(&mut self, text: &str) {
        self.until(&format!("the page shows {text:?}"), &format!("hand.shows({})", Value::from(text)));
    }

    /// Clicks, with the mouse in its middle, what has this name: a button, a link, a checkbox; in the dialog
    /// if one is open.
    pub fn press(&mut self, name: &str) {
        let found = format!("hand.spot({})", Value::from(name));
        let spot = self.until(&format!("there is {name:?} to press"), &found);
        self.click(&spot);
    }

    /// Clicks at a spot that `hand.js` found.
    pub fn click(&mut self, spot: &Value) {
        for kind in ["mousePressed", "mouseReleased"] {
            let event =
                json!({ "type": kind, "x": spot["x"], "y": spot["y"], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &event);
        }
    }

    /// Types into the field with this name, replacing its text.
    pub fn fill(&mut self, name: &str, text: &str) {
        self.until(&format!("there is a field {name:?}"), &format!("hand.take({})", Value::from(name)));
        self.call("Input.insertText", &json!({ "text": text }));
    }

    /// Presses a key of the keyboard: a letter, or one of the named keys.
    pub fn key(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            letter => (letter.to_ascii_uppercase().bytes().next().map_or(0, u32::from), letter),
        };
        let kind = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        let down = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code, "text": text });
        self.call("Input.dispatchKeyEvent", &down);
        self.call(
            "Input.dispatchKeyEvent",
            &json!({ "type": "keyUp", "key": key, "windowsVirtualKeyCode": code }),
        );
    }

    /// Saves a picture of the whole page.
    pub fn picture(&mut self, file: &Path) {
        let told =
            self.call("Page.captureScreenshot", &json!({ "format": "png", "captureBeyondViewport": true }));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, decode(told["data"].as_str().unwrap())).unwrap();
    }

    /// What went wrong since the last call.
    pub fn faults(&mut self) -> Vec<String> {
        // All events sent before this answer have arrived with it.
        self.eval("1");
        let told: Vec<Value> = self.pipe.told().collect();
        self.faults.extend(told.iter().filter_map(|told| fault(told, &self.origin)));
        std::mem::take(&mut self.faults)
    }

    /// Asserts that nothing went wrong.
    ///
    /// # Panics
    /// When something went wrong.
    pub fn is_well(&mut self, at: &str) {
        let faults = self.faults().iter().fold(String::new(), |mut all, fault| {
            let _ = write!(all, "\n  {fault}");
            all
        });
        assert!(faults.is_empty(), "{at}:{faults}");
    }
}

/// The fault that a browser event reports, if it does.
fn fault(told: &Value, origin: &str) -> Option<String> {
    let about = &told["params"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match told["method"].as_str()? {
        "Runtime.exceptionThrown" => {
            let thrown = &about["exceptionDetails"];
            Some(format!("script: {} {}", text(&thrown["text"]), text(&thrown["exception"]["description"])))
        }
        "Runtime.consoleAPICalled"
            if matches!(about["type"].as_str(), Some("error" | "assert" | "warning")) =>
        {
            Some(format!("console: {}", about["args"]))
        }
        // 4xx answers are legitimate; 5xx are found below.
        "Log.entryAdded" if about["entry"]["source"] == "network" => None,
        "Log.entryAdded" if matches!(about["entry"]["level"].as_str(), Some("error" | "warning")) => {
            Some(format!("{}: {}", text(&about["entry"]["source"]), text(&about["entry"]["text"])))
        }
        "Network.responseReceived" if about["response"]["status"].as_u64() >= Some(500) => {
            Some(format!("{} from {}", about["response"]["status"], text(&about["response"]["url"])))
        }
        "Network.requestWillBeSent" => {
            let url = text(&about["request"]["url"]);
            let is_own =
                url.starts_with(&format!("{origin}/")) || url.starts_with("data:") || url == "about:blank";
            (!is_own).then(|| format!("a request to {url}"))
        }
        "Network.loadingFailed" if about["blockedReason"].is_string() => {
            Some(format!("blocked: {}", text(&about["blockedReason"])))
        }
        "Page.javascriptDialogOpening" => Some(format!("dialog: {}", text(&about["message"]))),
        _ => None,
    }
}

/// Decodes base64, as the protocol encodes pictures.
fn decode(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => u32::from(byte - b'A'),
        b'a'..=b'z' => u32::from(byte - b'a') + 26,
        b'0'..=b'9' => u32::from(byte - b'0') + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u32> = text.bytes().filter(|byte| *byte != b'=').map(value).collect();
    digits
        .chunks(4)
        .flat_map(|four| {
            let bits = (0..4).fold(0, |bits, at| bits << 6 | four.get(at).copied().unwrap_or(0));
            bits.to_be_bytes()[1..four.len()].to_vec()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_read_from_text() {
        for (text, bytes) in [("", ""), ("TQ==", "M"), ("TWE=", "Ma"), ("TWFu", "Man"), ("TWFuTQ==", "ManM")]
        {
            assert_eq!(decode(text), bytes.as_bytes(), "{text}");
        }
    }

    #[test]
    fn what_must_not_happen_is_told_from_what_may() {
        let of = |told: Value| fault(&told, "http://127.0.0.1:1");
        let asked = |url: &str| {
            of(json!({ "method": "Network.requestWillBeSent", "params": { "request": { "url": url } } }))
        };
        assert_eq!(asked("http://127.0.0.1:1/ojs/v1/jobs"), None);
        assert_eq!(asked("http://127.0.0.1:12/"), Some("a request to http://127.0.0.1:12/".to_owned()));
        let answered = |status: u16| {
            of(
                json!({ "method": "Network.responseReceived", "params": { "response": { "status": status, "url": "/x" } } }),
            )
        };
        assert_eq!((answered(404), answered(503)), (None, Some("503 from /x".to_owned())));
        let logged = |source: &str| {
            of(
                json!({ "method": "Log.entryAdded", "params": { "entry": { "source": source, "level": "error", "text": "no" } } }),
            )
        };
        assert_eq!((logged("network"), logged("security")), (None, Some("security: no".to_owned())));
    }
}
