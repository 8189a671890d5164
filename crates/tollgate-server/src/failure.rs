//! An error that lasts, as `/readyz` and the admin API show it.

use tollgate::Timestamp;

/// Maximum length of an error text, in characters.
const ERROR_CHARS_MAX: usize = 4_000;

/// An error, and when it occurred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) text: String,
    pub(crate) at: Timestamp,
}

impl Failure {
    pub(crate) fn new(text: impl Into<String>, at: Timestamp) -> Self {
        let mut text = text.into();
        if let Some((end, _)) = text.char_indices().nth(ERROR_CHARS_MAX) {
            text.truncate(end);
            text.push('…');
        }
        Self { text, at }
    }
}
