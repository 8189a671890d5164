//! The memory store passes the suite that all stores must pass, as a third party runs it. The library's own tests run
//! each promise alone.

use tollgate::{MemoryStore, conformance};

/// The whole suite on one store. Memory never waits, so one poll finishes it.
#[test]
fn the_whole_suite_in_one_call() {
    let make = |origin| MemoryStore::new(1 << 20, origin);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(std::pin::pin!(conformance::all(&make)).poll(&mut context).is_ready(), "memory never waits");
}
