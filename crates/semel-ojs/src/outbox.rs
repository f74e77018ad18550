//! An entry of an outbox: an enqueue request that lies in a database.

use semel_core::enqueue::Offer;
use semel_core::ident::JobId;

use crate::enqueue::{Enqueue, Terms};
use crate::template::Templates;

/// Reads an entry. Its id is the job's; the request need not repeat it.
///
/// # Errors
/// What is wrong, and where.
pub fn read(id: JobId, text: &str) -> Result<Offer, String> {
    read_with(id, text, None)
}

/// As [`read`], with what these templates say of their jobs.
///
/// # Errors
/// What is wrong, and where.
pub fn read_with(id: JobId, text: &str, templates: Option<&Templates>) -> Result<Offer, String> {
    let wrong = |pointer: &str, message: &str| {
        if pointer.is_empty() { message.to_owned() } else { format!("{message} (at {pointer})") }
    };
    let terms = Terms { templates, ..Terms::from(true) };
    let request = Enqueue::parse(text, terms).map_err(|invalid| wrong(&invalid.pointer, &invalid.message))?;
    let (mut offer, _) = request.into_parts();
    if offer.id.is_some_and(|own| own != id) {
        return Err(wrong("/id", "is another than the entry's, which is the job's; leave it out"));
    }
    offer.id = Some(id);
    Ok(offer)
}

#[cfg(test)]
mod tests {
    use super::read;
    use semel_core::ident::JobId;

    #[test]
    fn an_entrys_id_is_its_jobs() {
        let id = JobId::parse("019a0000-0000-7000-8000-000000000001", "").unwrap();
        assert_eq!(read(id, r#"{"type": "a.b", "args": []}"#).unwrap().id, Some(id));
        let own = r#"{"type": "a.b", "args": [], "id": "019a0000-0000-7000-8000-000000000002"}"#;
        assert!(read(id, own).unwrap_err().contains("/id"));
        assert!(read(id, r#"{"args": []}"#).unwrap_err().contains("/type"));
    }
}
