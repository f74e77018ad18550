//! The guide's quick start: its program is the example, and does what the page says.

#[path = "../../examples/start.rs"]
#[allow(dead_code, reason = "its `main` is for people")]
mod program;

const PAGE: &str = include_str!("../../../../docs/guide/start.md");
const PROGRAM: &str = include_str!("../../examples/start.rs");

#[test]
fn the_page_has_the_example_word_for_word() {
    assert!(PAGE.contains(&format!("```rust\n{PROGRAM}```\n")));
    // Until the crate is published.
    assert!(PAGE.contains("\nsemel = { path = \"…/crates/semel\" }\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clicks_are_one_payment() {
    let receipts = program::run("memory:").await.unwrap();
    // A second job would have another receipt.
    assert_eq!(receipts[0], receipts[1]);
    assert!(receipts[0].starts_with("paid 4200 cents of invoice 17: receipt 0"), "{receipts:?}");
}
