//! The key types of a [`KeyedGate`](super::KeyedGate).

use crate::key::{Fingerprint, Prefix, Secret};

/// A value that identifies a counter: text, bytes, numbers, addresses, and tuples of them.
pub trait GateKey {
    /// Adds its parts to the hash.
    fn feed(&self, hasher: &mut KeyHasher<'_>);

    /// The key as one text, if it is nothing else: a faster path to the same hash.
    #[inline]
    fn as_text(&self) -> Option<&[u8]> {
        None
    }
}

/// Collects the parts of a key. Parts are length-prefixed: `("ab", "c")` and `("a", "bc")` are two keys.
pub struct KeyHasher<'a> {
    secret: &'a Secret,
    state: Prefix,
}

impl<'a> KeyHasher<'a> {
    #[inline]
    pub(super) const fn new(secret: &'a Secret, state: Prefix) -> Self {
        Self { secret, state }
    }

    /// Adds one part.
    #[inline]
    pub fn part(&mut self, bytes: &[u8]) {
        self.state.part(self.secret, bytes);
    }

    #[inline]
    pub(super) fn finish(self) -> Fingerprint {
        self.state.finish(self.secret)
    }
}

impl GateKey for () {
    fn feed(&self, _: &mut KeyHasher<'_>) {}
}

impl GateKey for str {
    #[inline]
    fn feed(&self, hasher: &mut KeyHasher<'_>) {
        hasher.part(self.as_bytes());
    }

    #[inline]
    fn as_text(&self) -> Option<&[u8]> {
        Some(self.as_bytes())
    }
}

impl GateKey for String {
    #[inline]
    fn feed(&self, hasher: &mut KeyHasher<'_>) {
        hasher.part(self.as_bytes());
    }

    #[inline]
    fn as_text(&self) -> Option<&[u8]> {
        Some(self.as_bytes())
    }
}

impl GateKey for [u8] {
    #[inline]
    fn feed(&self, hasher: &mut KeyHasher<'_>) {
        hasher.part(self);
    }
}

impl GateKey for u64 {
    #[inline]
    fn feed(&self, hasher: &mut KeyHasher<'_>) {
        hasher.part(&self.to_le_bytes());
    }
}

impl GateKey for std::net::IpAddr {
    #[inline]
    fn feed(&self, hasher: &mut KeyHasher<'_>) {
        match self {
            std::net::IpAddr::V4(address) => hasher.part(&address.octets()),
            std::net::IpAddr::V6(address) => hasher.part(&address.octets()),
        }
    }
}

impl<T: GateKey + ?Sized> GateKey for &T {
    #[inline]
    fn feed(&self, hasher: &mut KeyHasher<'_>) {
        (**self).feed(hasher);
    }

    #[inline]
    fn as_text(&self) -> Option<&[u8]> {
        (**self).as_text()
    }
}

impl<A: GateKey, B: GateKey> GateKey for (A, B) {
    #[inline]
    fn feed(&self, hasher: &mut KeyHasher<'_>) {
        self.0.feed(hasher);
        self.1.feed(hasher);
    }
}
