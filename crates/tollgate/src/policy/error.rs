//! Why there is no policy.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::policy::finding::Findings;
use crate::problem::plain_cause;
use crate::rate::QuotaError;

/// Why there is no policy. It displays what `tollgate policy check` prints, one problem to a line, also where a `main`
/// that returns it prints it for debugging.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("{}: {}", path.display(), plain_cause(source))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The text or the limits are no policy: every problem at once.
    #[error(transparent)]
    Invalid(#[from] Findings),
    /// The quota of a limit is not possible.
    #[error(transparent)]
    Quota(#[from] QuotaError),
}

impl fmt::Debug for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
