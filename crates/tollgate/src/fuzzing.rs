//! What fuzz targets may see and programs may not. No part of the crate's promises.

pub use crate::engine::sealed;

/// The words that a key's parts are hashed as.
#[must_use]
pub fn key_words(parts: &[&[u8]]) -> Vec<u64> {
    crate::key::words(parts)
}
