//! The README is true.

use tollgate_testkit::example;

#[test]
fn readme_is_true() {
    example::follow_service(env!("CARGO_BIN_EXE_example-graphql"), env!("CARGO_MANIFEST_DIR"));
}
