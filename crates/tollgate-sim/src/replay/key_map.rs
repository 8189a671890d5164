//! A map by hashes that are well mixed already.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Keys by their hash, which is well mixed already.
pub(super) type KeyMap<V> = HashMap<u64, V, BuildHasherDefault<Mixed>>;

/// Bytes of the table of a map. It keeps at most seven entries for every eight places, and a byte for each place.
pub(super) fn table_bytes<V>(map: &KeyMap<V>) -> usize {
    map.capacity().div_ceil(7) * 8 * (size_of::<(u64, V)>() + 1)
}

/// Uses a hash as it is.
#[derive(Debug, Default)]
pub(super) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
