//! The error of a call that has no response.

use crate::refusal::Refusal;

/// Any error of the service below.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a call has no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// It did not leave.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It left, and its deadline passed without a response.
    #[error("no response before the deadline of the call")]
    DeadlineExceeded,
    /// The service below failed.
    #[error(transparent)]
    Failed(BoxError),
}

impl CallError {
    /// The refusal, if the call did not leave.
    #[must_use]
    pub const fn refusal(&self) -> Option<&Refusal> {
        match self {
            CallError::Refused(refusal) => Some(refusal),
            CallError::DeadlineExceeded | CallError::Failed(_) => None,
        }
    }
}

/// Whether an error proves that nothing was sent: no connection was made.
pub(crate) fn is_connect_error(error: &BoxError) -> bool {
    use std::io::ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable};
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return matches!(
                error.kind(),
                AddrNotAvailable | ConnectionRefused | HostUnreachable | NetworkUnreachable
            );
        }
        cause = error.source();
    }
    false
}
