//! What a program warns its operator of, in the log, while a test runs.

use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_global_default;
use tracing::{Event, Level, Metadata, Subscriber};

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Has warnings and errors of this process kept from now on, whatever task of whichever test says them: look for something that
/// only one's own can say.
pub fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| set_global_default(Keeper).unwrap());
}

/// Those that have been said and have this in them: level, message, fields.
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
