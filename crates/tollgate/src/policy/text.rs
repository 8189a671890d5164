//! Values as text on the hot path: decimal text of numbers without allocation, and maps from the policy's own texts.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) use itoa::Buffer as Digits;

use crate::request::Value;

/// A map with keys of the policy and lookups by clients. A client cannot add a key, so it cannot cause collisions, and a fast
/// hash without a seed is enough.
pub(crate) type TextMap<V> = HashMap<Box<str>, V, BuildHasherDefault<TextHasher>>;

/// A multiply-and-rotate hash over eight bytes at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TextHasher(u64);

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl TextHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.0.rotate_left(23) ^ word) * u128::from(FACTOR);
        let [low, high] = [product & u128::from(u64::MAX), product >> 64];
        self.0 = u64::try_from(low ^ high).unwrap_or_default();
    }
}

impl Hasher for TextHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let length = (bytes.len() as u64) << 56;
        if let Some((_, last)) = bytes.split_last_chunk::<8>() {
            // The last eight bytes overlap the words before them, so that no text needs padding.
            let (words, _) = bytes[..bytes.len() - 1].as_chunks::<8>();
            for word in words {
                self.mix(u64::from_le_bytes(*word));
            }
            self.mix(u64::from_le_bytes(*last) ^ length);
        } else if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
            let [first, last] = [first, last].map(|half| u64::from(u32::from_le_bytes(*half)));
            self.mix((first | last << 32) ^ length);
        } else if let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) {
            let middle = u64::from(bytes[bytes.len() / 2]);
            self.mix((u64::from(first) | middle << 8 | u64::from(last) << 16) ^ length);
        }
    }

    #[inline]
    fn write_u8(&mut self, _: u8) {
        // `str` ends its hash with a byte that separates it from a following value. A key here is one text, and `write` has
        // mixed its length in.
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// The value as text, a number in decimal, written into `digits`.
#[inline]
pub(crate) fn as_text<'a>(value: Value<'a>, digits: &'a mut Digits) -> &'a str {
    match value {
        Value::Text(text) => text,
        Value::Number(number) => digits.format(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that differ in length or in any byte have different hashes.
    #[test]
    fn near_texts_hash_apart() {
        let hash = |text: &str| {
            let mut hasher = TextHasher::default();
            std::hash::Hash::hash(text, &mut hasher);
            hasher.finish()
        };
        let texts = ["", "\0", "\0\0", "a", "a\0", "tenant", "tenants", "12345678", "12345678\0"];
        let hashes: std::collections::HashSet<u64> = texts.iter().map(|text| hash(text)).collect();
        assert_eq!(hashes.len(), texts.len());
    }
}
