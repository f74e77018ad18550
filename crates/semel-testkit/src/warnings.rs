//! Warnings that a program logs for its operator while a test runs.

use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_global_default;
use tracing::{Event, Level, Metadata, Subscriber};

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps all warnings and errors of this process from now on, of every task of every test: look for text that
/// only your own test can produce.
pub fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| set_global_default(Keeper).unwrap());
}

/// The kept warnings that contain `part`: level, message, fields.
pub fn with(part: &str) -> Vec<String> {
    SAID.lock().unwrap().iter().filter(|said| said.contains(part)).cloned().collect()
}

struct Keeper;

impl Subscriber for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.is_event()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        SAID.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _infallible = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
