//! Patterns with `*`.

/// A pattern in which `*` stands for any run of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {}
