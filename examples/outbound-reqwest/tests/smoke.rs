//! The README is true.

use tollgate_testkit::example;

#[test]
fn readme_is_true() {
    example::follow_program(env!("CARGO_BIN_EXE_example-outbound-reqwest"), env!("CARGO_MANIFEST_DIR"));
}
