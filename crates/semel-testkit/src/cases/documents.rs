//! Documents: what every store must do with them, whatever they contain.

use bytes::Bytes;
use semel_core::draft::{Document, DocumentKey, DocumentKind, Group, Reads};
use semel_core::time::Timestamp;
use semel_core::workflow;
use semel_store::backend::Seek;
use semel_store::backend::Verdict::{Applied, Stale};

use crate::fixture::{Fixture, bytes};

fn named(kind: DocumentKind, name: &str) -> DocumentKey {
    DocumentKey::new(kind, name)
}

fn at(micros: i64) -> Option<Timestamp> {
    Some(Timestamp::from_micros(micros))
}

fn reads(key: &DocumentKey) -> Reads {
    Reads { documents: vec![key.clone()], ..Reads::default() }
}

async fn put(f: &Fixture, key: &DocumentKey, text: Bytes, due: Option<Timestamp>) -> Document {
    f.decide_on(&reads(key), |draft| {
        draft.document(key)?;
        draft.set_document(key, Some((text.clone(), due)));
        draft.document(key)
    })
    .await
    .unwrap()
}

async fn get(f: &Fixture, key: &DocumentKey) -> Option<Document> {
    f.load(&reads(key)).await.peek_document(key).cloned()
}

/// A decided but uncommitted write of a document, for an interleaving.
async fn written(f: &Fixture, key: &DocumentKey, text: &str) -> Group {
    let mut draft = f.draft(&reads(key)).await;
    draft.document(key).unwrap();
    draft.set_document(key, Some((bytes(text), None)));
    draft.finish()
}

async fn find(f: &Fixture, seek: Seek) -> (Vec<String>, Option<Timestamp>) {
    let found = f.backend().documents(seek).await.unwrap();
    (found.documents.iter().map(|(key, _)| key.name.to_string()).collect(), found.next)
}

/// Every kind and any bytes, with and without a due time.
pub async fn a_document_comes_back_as_it_was_written(f: &Fixture) {
    let large = Bytes::from(vec![7; 300_000]);
    for (kind, due) in
        DocumentKind::ALL.into_iter().zip([None, at(-1), at(0), at(253_402_300_799_999_999), at(7), None])
    {
        for (name, text) in [("a", bytes("{}")), ("\u{e5}/7", large.clone()), ("", Bytes::new())] {
            let stored = put(f, &named(kind, name), text.clone(), due).await;
            assert_eq!((&stored.text, stored.due), (&text, due));
            for _ in 0..2 {
                assert_eq!(get(f, &named(kind, name)).await, Some(stored.clone()));
                f.maintain().await;
            }
        }
    }
}

/// This holds whether or not the first version has reached the rows.
pub async fn a_document_that_was_written_again_is_the_newer(f: &Fixture) {
    let key = named(DocumentKind::Cron, "a");
    let mut last = 0;
    for text in ["1", "2", "3"] {
        let stored = put(f, &key, bytes(text), None).await;
        assert!(stored.version > last);
        last = stored.version;
        assert_eq!(get(f, &key).await.unwrap().text, text);
        f.maintain().await;
    }
}

/// A deleted document's name may be used again.
pub async fn a_deleted_document_is_gone(f: &Fixture) {
    let key = named(DocumentKind::Workflow, "a");
    for maintained in [false, true] {
        put(f, &key, bytes("1"), at(1)).await;
        if maintained {
            f.maintain().await;
        }
        f.decide_on(&reads(&key), |draft| {
            draft.document(&key)?;
            draft.set_document(&key, None);
            Ok(())
        })
        .await;
        for _ in 0..2 {
            assert_eq!(get(f, &key).await, None);
            assert_eq!(find(f, Seek::Due { limit: 9 }).await, (vec![], None));
            f.maintain().await;
        }
    }
}

/// The order is by bytes, ascending and descending, whatever part of them has reached the rows.
pub async fn documents_of_a_kind_are_paged_by_name(f: &Fixture) {
    for name in ["d", "b"] {
        put(f, &named(DocumentKind::Cron, name), bytes(name), None).await;
    }
    put(f, &named(DocumentKind::Workflow, "c"), bytes("other"), None).await;
    f.maintain().await;
    for name in ["a", "c", "b"] {
        put(f, &named(DocumentKind::Cron, name), bytes(name), None).await;
    }
    let page = |from: Option<&str>, descending, limit| Seek::Kind {
        kind: DocumentKind::Cron,
        from: from.map(Into::into),
        descending,
        limit,
    };
    assert_eq!(find(f, page(None, false, 9)).await.0, ["a", "b", "c", "d"]);
    assert_eq!(find(f, page(None, false, 2)).await.0, ["a", "b"]);
    assert_eq!(find(f, page(Some("b"), false, 2)).await.0, ["c", "d"]);
    assert_eq!(find(f, page(None, true, 3)).await.0, ["d", "c", "b"]);
    assert_eq!(find(f, page(Some("b"), true, 3)).await.0, ["a"]);
}

/// An unreadable workflow is kept for a program that can read it.
pub async fn a_workflow_that_cannot_be_read_is_in_nobodys_way(f: &Fixture) {
    let key = named(DocumentKind::Workflow, "0190a0b0-0000-7000-8000-000000000001");
    put(f, &key, bytes("of tomorrow"), Some(f.now().await)).await;
    assert_eq!(f.decide(|draft| workflow::look(draft, &key)).await, workflow::Looked::NotDue);
    assert_eq!(find(f, Seek::Due { limit: 9 }).await.0, Vec::<String>::new());
    assert_eq!(get(f, &key).await.unwrap().text, bytes("of tomorrow"));
}

/// Due documents come oldest first, with the due time of the first that is left.
pub async fn documents_are_due_in_order_and_bounded(f: &Fixture) {
    let now = f.now().await.as_micros();
    put(f, &named(DocumentKind::Cron, "late"), bytes(""), at(now - 10)).await;
    put(f, &named(DocumentKind::Cron, "moved"), bytes(""), at(now - 40)).await;
    f.maintain().await;
    put(f, &named(DocumentKind::Workflow, "later"), bytes(""), at(now - 20)).await;
    put(f, &named(DocumentKind::Cron, "latest"), bytes(""), at(now - 30)).await;
    put(f, &named(DocumentKind::Cron, "not-yet"), bytes(""), at(now + 3_600_000_000)).await;
    put(f, &named(DocumentKind::Cron, "moved"), bytes(""), at(now + 7_200_000_000)).await;
    put(f, &named(DocumentKind::Cron, "never"), bytes(""), None).await;
    for _ in 0..2 {
        let all = find(f, Seek::Due { limit: 9 }).await;
        assert_eq!(all, (vec!["latest".into(), "later".into(), "late".into()], at(now + 3_600_000_000)));
        assert_eq!(
            find(f, Seek::Due { limit: 2 }).await,
            (vec!["latest".into(), "later".into()], at(now - 10))
        );
        f.maintain().await;
    }
}

/// Load, load, commit, commit: two servers write the same document.
pub async fn the_second_of_two_writers_of_a_document_is_stale(f: &Fixture) {
    let key = named(DocumentKind::Cron, "a");
    put(f, &key, bytes("0"), None).await;
    let (first, second) = (written(f, &key, "1").await, written(f, &key, "2").await);
    assert_eq!(f.commit(vec![first]).await, [Applied]);
    assert_eq!(f.commit(vec![second]).await, [Stale]);
    assert_eq!(get(f, &key).await.unwrap().text, "1");
}

/// Absence has a version as well.
pub async fn a_document_made_meanwhile_makes_a_decision_stale(f: &Fixture) {
    let key = named(DocumentKind::Cron, "a");
    let (first, second) = (written(f, &key, "1").await, written(f, &key, "2").await);
    assert_eq!(f.commit(vec![first, second]).await, [Applied, Stale]);
    f.maintain().await;
    assert_eq!(get(f, &key).await.unwrap().text, "1");
}

/// This holds even when both writers produced the same version number.
pub async fn a_group_that_relies_on_a_stale_document_is_stale(f: &Fixture) {
    let key = named(DocumentKind::Cron, "a");
    put(f, &key, bytes("0"), None).await;
    let other = written(f, &key, "1").await;
    let mut draft = f.draft(&reads(&key)).await;
    let mut groups = Vec::new();
    for text in ["2", "3"] {
        draft.document(&key).unwrap();
        draft.set_document(&key, Some((bytes(text), None)));
        groups.push(draft.finish());
    }
    assert_eq!(f.commit(vec![other]).await, [Applied]);
    assert_eq!(f.commit(groups).await, [Stale, Stale]);
    assert_eq!(get(f, &key).await.unwrap().text, "1");
}
