//! A rule of another program: its numbers, its outcome, and the options beside the files.

use tollgate::Source;

use crate::rls::Answer;

/// The name in metrics of limits that requests carry.
pub const REQUEST_LIMIT: &str = "(request)";

/// Options for answers that are not in the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether answers carry headers for the client.
    pub has_headers: bool,
    /// Whether nothing is refused; the single statuses still report what would be.
    pub is_shadow: bool,
    /// Whether every rule is a quota: a request is refused when all of its rules refuse.
    pub is_quota: bool,
    /// The maximum of a limit that a request brings along; larger ones are lowered to it.
    pub override_max: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { has_headers: false, is_shadow: false, is_quota: false, override_max: u32::MAX }
    }
}

/// An answer, and the results of the single rules.
pub struct Answered<'c> {
    /// The answer.
    pub answer: Answer,
    /// The outcome of each rule.
    pub rules: Vec<Rule<'c>>,
}

/// The numbers of a rule.
#[derive(Debug)]
pub struct Numbered {
    /// Its subject, without its numbers.
    pub name: String,
    /// Why it refuses no request, if so.
    pub off: Option<&'static str>,
    /// Requests in a window.
    pub units: u64,
    /// The length of the window.
    pub seconds: u64,
}

/// The outcome of one rule.
#[derive(Debug)]
pub struct Rule<'a> {
    /// Its name in metrics.
    pub name: &'a str,
    /// Its name with values of the request, if the rule asks for that.
    pub detail: Option<String>,
    /// The rule refuses the request.
    pub is_denied: bool,
    /// The rule only counts, so the request was not denied.
    pub is_shadow: bool,
    /// Less than a fifth of it is left.
    pub is_near: bool,
    /// The source of its count.
    pub source: Source,
}
