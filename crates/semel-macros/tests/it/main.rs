//! The compiler's messages about wrong attributes and types.

#[test]
fn a_wrong_attribute_says_what_to_write() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass.rs");
    cases.compile_fail("tests/ui/wrong_*.rs");
}
