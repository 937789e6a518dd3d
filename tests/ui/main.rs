//! What must not compile does not, with an error that says what to write; what must compile does, without a warning.

#[test]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("ui/fail/*.rs");
}
