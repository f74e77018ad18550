//! An outbox entry: an enqueue request in a database table.

use semel_core::enqueue::Offer;
use semel_core::ident::JobId;

use crate::enqueue::{Enqueue, Terms};
use crate::template::Templates;

/// Reads an entry. Its id becomes the job's; the request need not repeat it.
///
/// # Errors
/// What is wrong, and where.
pub fn read(id: JobId, text: &str) -> Result<Offer, String> {
    read_with(id, text, None)
}

/// As [`read`], with these templates' defaults and rules.
///
/// # Errors
/// What is wrong, and where.
pub fn read_with(id: JobId, text: &str, templates: Option<&Templates>) -> Result<Offer, String> {
    let wrong = |pointer: &str, message: &str| {
        // Messages are written to follow the place, as in the answer to a request.
        format!("{} {message}", if pointer.is_empty() { "the envelope" } else { pointer })
    };
    if !id.is_v7() {
        return Err(
            "the entry's id, which becomes the job's, is not a UUIDv7; leave it out and the database makes one"
                .to_owned(),
        );
    }
    let terms = Terms { templates, ..Terms::trusted() };
    let request =
        Enqueue::parse(text, terms).map_err(|invalid| wrong(&invalid.pointer, &invalid.whole_message()))?;
    let (mut offer, _) = request.into_parts();
    if offer.id.is_some_and(|own| own != id) {
        return Err(wrong("/id", "differs from the entry's id, which becomes the job's; leave it out"));
    }
    offer.id = Some(id);
    Ok(offer)
}

#[cfg(test)]
mod tests {
    use super::{Enqueue, Terms, read};
    use crate::Problem;
    use semel_core::ident::JobId;

    #[test]
    fn an_entrys_id_is_its_jobs() {
        let id = JobId::parse("019a0000-0000-7000-8000-000000000001", "").unwrap();
        assert_eq!(read(id, r#"{"type": "a.b", "args": []}"#).unwrap().id, Some(id));
        let own = r#"{"type": "a.b", "args": [], "id": "019a0000-0000-7000-8000-000000000002"}"#;
        assert!(read(id, own).unwrap_err().contains("/id"));
        assert!(read(id, r#"{"args": []}"#).unwrap_err().contains("/type"));
        let reason = read(id, r#"{"type": "a.b"}"#).unwrap_err();
        assert!(reason.starts_with("/args is missing; send"), "{reason}");
        let reason = read(id, "[]").unwrap_err();
        assert!(reason.starts_with("the envelope "), "{reason}");
    }

    #[test]
    fn an_entrys_id_is_one_that_a_job_may_have() {
        // A UUIDv4, one of another variant, and one whose upper half is empty.
        for id in [0x019a_0000_0000_4000_8000_0000_0000_0001, 0x019a_0000_0000_7000_c000_0000_0000_0001, 1] {
            let id = JobId::from_bytes(u128::to_be_bytes(id));
            assert!(read(id, r#"{"type": "a.b", "args": []}"#).unwrap_err().contains("UUIDv7"), "{id}");
        }
    }

    /// Clients look for the name in the message, and people read it, both in an answer and as the reason of an outbox entry.
    #[test]
    fn a_member_of_a_retry_policy_is_named_once() {
        let id = JobId::parse("019a0000-0000-7000-8000-000000000001", "").unwrap();
        for (members, said) in [
            (r#""retry":{"max_attempts":-1}"#, "/retry/max_attempts must be from 0 to 10000"),
            (r#""max_attempts":"3""#, "/max_attempts is not an integer; send a whole number without quotes"),
            (
                r#""retry":{"max_attempts":2},"max_attempts":3"#,
                "/max_attempts differs from the one in the retry policy; send only one of them",
            ),
            (r#""retry":{"jitter":1}"#, "/retry/jitter is not a boolean; send true or false"),
            (
                r#""retry":{"initial_interval_ms":-1}"#,
                "/retry/initial_interval_ms is negative; send 0 or more milliseconds",
            ),
            (
                r#""retry":{"max_interval":"P367D"}"#,
                "/retry/max_interval is longer than 366 days; send a shorter interval",
            ),
            (
                r#""retry":{"backoff_coefficient":"2"}"#,
                "/retry/backoff_coefficient is not a number; send one of at least 1.0",
            ),
            (
                r#""retry":{"backoff":"magic"}"#,
                "/retry/backoff must be exponential, linear, constant, polynomial or none",
            ),
            (
                r#""retry":{"non_retryable_errors":[7]}"#,
                "/retry/non_retryable_errors/0 is not a string; send a string",
            ),
        ] {
            let text = format!(r#"{{"type":"a.b","args":[],{members}}}"#);
            let Err(refused) = Enqueue::parse(&text, Terms::trusted()) else { panic!("not refused: {text}") };
            assert_eq!(Problem::from(refused).message(), said);
            assert_eq!(read(id, &text).unwrap_err(), said);
        }
    }
}
