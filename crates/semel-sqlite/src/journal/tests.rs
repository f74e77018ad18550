//! What is read back from the journal's files, whatever was left in them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]

use super::*;

fn record(payload: &[u8]) -> Vec<u8> {
    [&[0; HEADER], payload].concat()
}

fn append(journal: &mut Journal, payload: &str) {
    journal.append(Timestamp::from_micros(7), &mut record(payload.as_bytes())).unwrap();
}

fn texts(entries: &[Entry]) -> Vec<(u64, String)> {
    entries.iter().map(|entry| (entry.cursor, String::from_utf8(entry.payload.to_vec()).unwrap())).collect()
}

#[test]
fn what_was_appended_is_read_again_across_files_and_their_second_use() {
    let dir = semel_testkit::TempDir::new();
    let store = dir.path().join("a.db");
    let (mut journal, found) = Journal::open(&store, 5, 0).unwrap();
    assert_eq!(found, []);
    append(&mut journal, "one, which is long");
    append(&mut journal, "two, which is long");
    assert_eq!(journal.rotate(), 2);
    append(&mut journal, "three");
    let (_, found) = Journal::open(&store, 5, 0).unwrap();
    assert_eq!(texts(&found).iter().map(|(cursor, _)| *cursor).collect::<Vec<_>>(), [1, 2, 3]);
    journal.carried(2);
    assert_eq!(journal.rotate(), 3);
    // Goes to the first file, over records one and two.
    append(&mut journal, "four");
    assert!(!store.with_file_name("a.db-log.2").exists());
    assert_eq!(texts(&journal.entries(2).unwrap()), [(3, "three".into()), (4, "four".into())]);
    let (mut journal, found) = Journal::open(&store, 5, 2).unwrap();
    assert_eq!(texts(&found), [(3, "three".into()), (4, "four".into())]);
    append(&mut journal, "five");
    let (_, found) = Journal::open(&store, 5, 2).unwrap();
    assert_eq!(texts(&found).last().unwrap(), &(5, "five".into()));
}

/// A record of equal length ends exactly where an older one did, so older records follow it as if they were
/// next.
#[test]
fn records_of_an_earlier_use_end_the_journal() {
    semel_testkit::planted::plant_from_environment();
    let dir = semel_testkit::TempDir::new();
    let store = dir.path().join("a.db");
    let (mut journal, _) = Journal::open(&store, 5, 0).unwrap();
    append(&mut journal, "one");
    append(&mut journal, "two");
    assert_eq!(journal.rotate(), 2);
    append(&mut journal, "3 3");
    journal.carried(2);
    assert_eq!(journal.rotate(), 3);
    append(&mut journal, "4 4");
    drop(journal);
    let (mut journal, found) = Journal::open(&store, 5, 2).unwrap();
    assert_eq!(texts(&found), [(3, "3 3".into()), (4, "4 4".into())]);
    append(&mut journal, "five");
    let (_, found) = Journal::open(&store, 5, 2).unwrap();
    assert_eq!(texts(&found).last().unwrap(), &(5, "five".into()));
}

#[test]
fn a_torn_record_ends_the_journal_and_is_written_over() {
    let dir = semel_testkit::TempDir::new();
    let store = dir.path().join("a.db");
    let (mut journal, _) = Journal::open(&store, 5, 0).unwrap();
    append(&mut journal, "one");
    append(&mut journal, "a longer record");
    let path = store.with_file_name("a.db-log.0");
    let whole = std::fs::read(&path).unwrap();
    let whole = &whole[..2 * HEADER + "one".len() + "a longer record".len()];
    for cut in HEADER + 4..whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let (mut journal, found) = Journal::open(&store, 5, 0).unwrap();
        assert_eq!(texts(&found), [(1, "one".into())], "cut at {cut}");
        append(&mut journal, "again");
        let (_, found) = Journal::open(&store, 5, 0).unwrap();
        assert_eq!(texts(&found).last().unwrap(), &(2, "again".into()));
    }
    for flipped in HEADER + 3..whole.len() {
        let mut bytes = whole.to_vec();
        bytes[flipped] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Journal::open(&store, 5, 0).unwrap().1.len(), 1, "flipped at {flipped}");
    }
}

#[test]
fn a_record_makes_the_file_longer_only_now_and_then_and_never_far() {
    let dir = semel_testkit::TempDir::new();
    let store = dir.path().join("a.db");
    let (mut journal, _) = Journal::open(&store, 5, 0).unwrap();
    let path = store.with_file_name("a.db-log.0");
    let mut lengths = std::collections::BTreeSet::new();
    let text = "x".repeat(10_000);
    for _ in 0..100 {
        append(&mut journal, &text);
        let length = std::fs::metadata(&path).unwrap().len();
        assert!(length >= journal.offset && length <= journal.offset + GROWTH.end(), "{length}");
        lengths.insert(length);
    }
    assert!(lengths.len() < 8, "{lengths:?}");
    // After reopening, the journal goes on in the room there is.
    let (mut journal, found) = Journal::open(&store, 5, 0).unwrap();
    assert_eq!(found.len(), 100);
    append(&mut journal, "one more");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), *lengths.last().unwrap());
    assert_eq!(Journal::open(&store, 5, 0).unwrap().1.len(), 101);
}

/// Otherwise the next opening would take it for the end of the file.
#[test]
fn a_record_that_nobody_would_read_again_is_refused_and_the_next_one_counts() {
    let dir = semel_testkit::TempDir::new();
    let store = dir.path().join("a.db");
    let (mut journal, _) = Journal::open(&store, 5, 0).unwrap();
    append(&mut journal, "one");
    let mut long = vec![0; HEADER + PAYLOAD_MAX + 1];
    let refused = journal.append(Timestamp::from_micros(7), &mut long).unwrap_err();
    assert!(matches!(refused, SqliteError::TooLong { .. }) && !refused.is_fatal(), "{refused}");
    drop(long);
    append(&mut journal, "two");
    assert_eq!(texts(&Journal::open(&store, 5, 0).unwrap().1), [(1, "one".into()), (2, "two".into())]);
}

#[test]
fn the_files_of_another_store_are_written_over() {
    let dir = semel_testkit::TempDir::new();
    let store = dir.path().join("a.db");
    let (mut journal, _) = Journal::open(&store, 5, 0).unwrap();
    append(&mut journal, "one");
    let (mut journal, found) = Journal::open(&store, 6, 0).unwrap();
    assert_eq!(found, []);
    append(&mut journal, "mine");
    assert_eq!(texts(&Journal::open(&store, 6, 0).unwrap().1), [(1, "mine".into())]);
}

#[test]
fn a_record_missing_between_two_files_is_damage() {
    let dir = semel_testkit::TempDir::new();
    let store = dir.path().join("a.db");
    let (mut journal, _) = Journal::open(&store, 5, 0).unwrap();
    append(&mut journal, "one");
    append(&mut journal, "two");
    journal.rotate();
    append(&mut journal, "three");
    let path = store.with_file_name("a.db-log.0");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = 2 * HEADER + "one".len() + "two".len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    for error in [Journal::open(&store, 5, 0).map(drop), beside(&store, 5, 0).map(drop)] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("record 2 is missing"), "{error}");
    }
}

#[test]
fn who_copies_a_store_reads_on_where_its_owner_goes_on_in_another_file_meanwhile() {
    let dir = semel_testkit::TempDir::new();
    let store = dir.path().join("a.db");
    let (mut journal, _) = Journal::open(&store, 5, 0).unwrap();
    append(&mut journal, "one");
    assert_eq!(journal.rotate(), 1);
    append(&mut journal, "two");
    journal.carried(1);
    assert_eq!(journal.rotate(), 2);
    append(&mut journal, "three");
    journal.carried(2);
    // The third record is in the first file, and the second file is free.
    let mut opened = Vec::new();
    let found = read_beside(&store, 5, 2, |path| {
        opened.push(path.to_path_buf());
        if opened.len() == 2 {
            append(&mut journal, "four");
            assert_eq!(journal.rotate(), 4);
            append(&mut journal, "five");
        }
        File::open(path)
    });
    assert_eq!(texts(&found.unwrap()), [(3, "three".into()), (4, "four".into()), (5, "five".into())]);
    assert_eq!(opened.len(), 6, "both files and the end of them, twice: {opened:?}");
    assert!(beside(&store, 5, 2).is_ok());
}

#[test]
fn of_records_that_the_rows_have_nothing_is_kept() {
    let dir = semel_testkit::TempDir::new();
    let store = dir.path().join("a.db");
    let (mut journal, _) = Journal::open(&store, 5, 0).unwrap();
    for number in 0..1_000 {
        append(&mut journal, &format!("{number} {}", "x".repeat(1_000)));
    }
    let file = File::open(store.with_file_name("a.db-log.0")).unwrap();
    for (carried, kept) in [(0, 1_000), (990, 10), (1_000, 0)] {
        let contents = read(&file, 5, carried).unwrap();
        assert_eq!((contents.entries.len(), contents.cursor), (kept, 1_000));
        assert_eq!(contents.end, journal.offset);
        // A slice of something larger would keep all of it in memory.
        assert!(contents.last.len() < 2 * 1_000 && parse(&contents.last, 5).unwrap().cursor == 1_000);
    }
    let (mut journal, found) = Journal::open(&store, 5, 990).unwrap();
    assert_eq!(found.len(), 10);
    append(&mut journal, "one more");
    assert_eq!(Journal::open(&store, 5, 990).unwrap().1.len(), 11);
}

#[test]
fn a_file_that_became_very_long_is_shortened_when_it_is_free() {
    let dir = semel_testkit::TempDir::new();
    let store = dir.path().join("a.db");
    let (mut journal, _) = Journal::open(&store, 5, 0).unwrap();
    append(&mut journal, "one");
    // A file with no blocks on the disk.
    let current = journal.current.as_mut().unwrap();
    current.length = 2 * LENGTH_MAX;
    current.file.set_len(current.length).unwrap();
    assert_eq!(journal.rotate(), 1);
    let length = || std::fs::metadata(store.with_file_name("a.db-log.0")).unwrap().len();
    assert_eq!(length(), 2 * LENGTH_MAX);
    journal.carried(1);
    assert_eq!(length(), LENGTH_MAX);
    append(&mut journal, "two");
    assert_eq!(texts(&Journal::open(&store, 5, 1).unwrap().1), [(2, "two".into())]);
}
