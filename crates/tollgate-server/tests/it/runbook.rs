//! The runbook `docs/runbook.md` is run as the guides are: its policy is served, its commands are executed, its outputs compared.

use crate::guide;

const RUNBOOK: &str = include_str!("../../../../docs/runbook.md");

/// Every command that needs no more than a running server works, and answers what the runbook says.
#[test]
fn the_runbook_is_true() {
    guide::follow(RUNBOOK, 6);
}
