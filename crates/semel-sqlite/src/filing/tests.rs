//! How a round is cut into pieces.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]

use semel_core::draft::{Document, DocumentKey, DocumentKind};

use super::*;
use crate::open::{load, open};
use crate::pending::Pending;

/// More of each kind than one piece takes.
const MANY: i64 = 4_500;

fn length(piece: &Piece) -> usize {
    let prefaced = piece.forgotten.len() + piece.spent.len() + piece.documents.len() + piece.memory.len();
    prefaced + piece.rows.len() + piece.filed.len()
}

#[test]
fn no_piece_is_longer_than_it_may_be_whatever_it_is_made_of() {
    let dir = semel_testkit::TempDir::new();
    let mut db = open(&dir.path().join("a.db")).unwrap();
    let mut at = load(&db, Vec::new()).unwrap();
    let now = Timestamp::from_micros(1_767_225_600_000_000);
    let id = |row: i64| JobId::mint(now, row.unsigned_abs(), 7);
    let key = |number: i64| {
        let mut bytes = [0x5e; 32];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        UniqueKey::from_bytes(bytes)
    };
    let before = db.transaction().unwrap();
    for seq in 1..=MANY {
        before.execute("INSERT INTO note (seq, kind, text) VALUES (?1, 1, x'00')", [seq]).unwrap();
        at.pending.forget(seq, id(seq), false);
    }
    before.commit().unwrap();
    for number in 1..=MANY {
        let (job, request) = (id(MANY + number), id(2 * MANY + number));
        at.pending.spend(request, Some(Absorbed { seq: MANY + number, job, digest: None }));
        at.pending.remember(key(number), number, id(number), None);
        let document = Document { version: 1, due: None, text: Bytes::from_static(b"{}") };
        at.pending.documents.put(DocumentKey::new(DocumentKind::Request, number.to_string()), Some(document));
    }
    at.pending.bytes = 1;
    begin(&mut at, Patience::NONE, now, || 7);
    let mut pieces = 0;
    loop {
        let piece = prepare(&mut at, 1, now).unwrap();
        assert!(length(&piece) <= PIECE_ROWS, "piece {pieces} has {}", length(&piece));
        write(&mut db, &piece).unwrap();
        pieces += 1;
        if settle(&mut at, &piece).is_some() {
            break;
        }
    }
    assert_eq!(pieces, 9, "each but the last is full");
    let Pending { forgotten, going, spent, documents, memory, .. } = &at.pending;
    assert!(forgotten.is_empty() && going.is_empty() && spent.is_empty() && memory.is_empty());
    assert_eq!(documents.keys(), []);
    let count = |table: &str| -> i64 {
        db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    assert_eq!((count("note"), count("absorbed"), count("document")), (0, MANY, MANY));
}
