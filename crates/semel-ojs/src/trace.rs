//! W3C trace context: from a request's headers to a job's meta, where workers find it.

use semel_core::error::Invalid;
use semel_core::hex;

use crate::enqueue::Enqueue;
use crate::members::Members;
use crate::write::object;

/// The longest `tracestate` that is passed on, in bytes; a longer one is dropped, as the standard allows.
const STATE_BYTES_MAX: usize = 512;

/// The members of meta that hold the trace context, named like the headers.
const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// A position in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Id of the trace.
    pub trace: [u8; 16],
    /// Id of the caller's span.
    pub span: [u8; 8],
    /// Trace flags, such as whether the caller records the trace.
    pub flags: u8,
    /// Vendors' data (`tracestate`), passed on unchanged.
    pub state: Option<String>,
}

impl Trace {
    /// Reads the headers `traceparent` and `tracestate`. A malformed one counts as absent, as the standard says.
    pub fn read(parent: &str, state: Option<&str>) -> Option<Self> {
        let mut parts = parent.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let [version] = hex::parse::<1>(version)?;
        // Later versions may have more parts.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let (trace, span, [flags]) =
            (hex::parse::<16>(trace)?, hex::parse::<8>(span)?, hex::parse::<1>(flags)?);
        let state = state.filter(|state| !state.is_empty() && state.len() <= STATE_BYTES_MAX);
        let is_valid = trace != [0; 16] && span != [0; 8];
        is_valid.then(|| Self { trace, span, flags, state: state.map(str::to_owned) })
    }

    /// Formats the header `traceparent`.
    pub fn parent(&self) -> String {
        format!("00-{}-{}-{}", hex::text(&self.trace), hex::text(&self.span), hex::text(&[self.flags]))
    }
}

impl Enqueue {
    /// Adds the trace to the job's meta, unless the meta has one; a null counts as none and is replaced.
    /// Neither the job's key nor its digest changes, because both exclude trace context.
    ///
    /// # Errors
    /// None that [`parse`](Self::parse) has not found already.
    pub fn with_trace(mut self, trace: &Trace) -> Result<Self, Invalid> {
        let members = Members::read(&self.body.meta, "/meta")?;
        let is_named = |name: &str| members.get("/meta", name).is_some();
        if is_named(PARENT) {
            return Ok(self);
        }
        let state = trace.state.as_deref().filter(|_| !is_named(STATE));
        let mut meta = String::with_capacity(self.body.meta.len() + 80);
        object(&mut meta, |object| {
            let is_replaced = |name: &str| name == PARENT || (name == STATE && state.is_some());
            if members.iter("").any(|(name, _)| is_replaced(name)) {
                for (name, value) in members.iter("").filter(|(name, _)| !is_replaced(name)) {
                    object.raw(name, value.text());
                }
            } else {
                object.members_of(&self.body.meta);
            }
            object.plain(PARENT, trace.parent());
            if let Some(state) = state {
                object.text(STATE, state);
            }
        });
        self.body.meta = meta.into();
        self.offer.body = self.body.encode().map_err(|damaged| Invalid::payload("", damaged.to_string()))?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enqueue::Terms;

    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn only_what_is_well_formed_is_a_trace() {
        assert_eq!(Trace::read(TRACE, None).unwrap().parent(), TRACE);
        for wrong in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        ] {
            assert_eq!(Trace::read(wrong, None), None, "{wrong}");
        }
        assert!(Trace::read(&format!("01{}-more", &TRACE[2..]), None).is_some(), "a later version");
        assert_eq!(Trace::read(TRACE, Some(&"x".repeat(513))).unwrap().state, None);
    }

    #[test]
    fn a_trace_is_in_meta_and_in_nothing_else() {
        let text = r#"{"id":"01961111-aaaa-7bbb-8ccc-dddddddddddd","type":"a.b","args":[1],"meta":{"a":1},
            "unique":{"keys":["meta"],"meta_except":[]}}"#;
        let trace = Trace::read(TRACE, Some("v=1")).unwrap();
        let plain = Enqueue::parse(text, Terms::trusted()).unwrap();
        let traced = plain.clone().with_trace(&trace).unwrap();
        assert_eq!(&*traced.body.meta, format!(r#"{{"a":1,"traceparent":"{TRACE}","tracestate":"v=1"}}"#));
        assert_ne!(traced.offer.body, plain.offer.body);
        let keys = |enqueue: &Enqueue| enqueue.offer.unique.as_ref().map(|unique| unique.key);
        assert_eq!((keys(&traced), &traced.body.request_digest), (keys(&plain), &plain.body.request_digest));
        // A trace that the caller put there is kept.
        let own = text.replace(r#"{"a":1}"#, r#"{"traceparent":"mine"}"#);
        let own = Enqueue::parse(&own, Terms::trusted()).unwrap().with_trace(&trace).unwrap();
        assert_eq!(&*own.body.meta, r#"{"traceparent":"mine"}"#);
    }

    /// A meta with a duplicate name would not be shown at all.
    #[test]
    fn a_null_names_no_trace_and_what_is_said_stands_in_its_place() {
        let trace = Trace::read(TRACE, Some("v=1")).unwrap();
        let traced = |trace: &Trace, meta: &str| {
            let text = format!(r#"{{"type":"a.b","args":[],"meta":{meta}}}"#);
            Enqueue::parse(&text, Terms::trusted())
                .unwrap()
                .with_trace(trace)
                .unwrap()
                .body
                .meta
                .into_string()
        };
        let both = format!(r#""traceparent":"{TRACE}","tracestate":"v=1""#);
        for (meta, expected) in [
            (r#"{"order":7,"traceparent":null}"#, format!(r#"{{"order":7,{both}}}"#)),
            (r#"{"traceparent":null,"tracestate":null,"order":7}"#, format!(r#"{{"order":7,{both}}}"#)),
            (r#"{"tracestate":null}"#, format!("{{{both}}}")),
            (r#"{"tracestate":"mine"}"#, format!(r#"{{"tracestate":"mine","traceparent":"{TRACE}"}}"#)),
        ] {
            assert_eq!(traced(&trace, meta), expected, "{meta}");
        }
        let stateless = Trace { state: None, ..trace };
        let meta = r#"{"tracestate":null,"a" : 1}"#;
        let expected = format!(r#"{{"tracestate":null,"a" : 1,"traceparent":"{TRACE}"}}"#);
        assert_eq!(traced(&stateless, meta), expected);
    }
}
