//! Functions for fuzz targets only. They are not part of the crate's public API.

mod poll_once;

pub use crate::engine::sealed;
pub use poll_once::poll_once;

/// The words that a key's parts are hashed as.
#[must_use]
pub fn key_words(parts: &[&[u8]]) -> Vec<u64> {
    crate::key::words(parts)
}
