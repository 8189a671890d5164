//! CEL expressions over attributes.

/// A compiled CEL expression.
#[derive(Debug)]
pub struct Expression {}
