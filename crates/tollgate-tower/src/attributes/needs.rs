//! The attributes that decisions depend on. Others are not read, so they cannot make a request fail.

use super::{API_KEY_INDEX, BUILT_IN, MAPPED_MAX, Reader};

/// A set of attributes of a reader, as a bit set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs(u64);

/// Number of bits of the set.
pub(crate) const BITS: u32 = 5 + 32;
const _: () = assert!(BUILT_IN.len() == 5 && MAPPED_MAX == 32, "one bit for each attribute");

impl Needs {
    /// All attributes.
    pub const ALL: Self = Self((1 << BITS) - 1);

    /// The attributes whose names are used.
    #[must_use]
    pub fn of(reader: &Reader, is_used: impl Fn(&str) -> bool) -> Self {
        // The callers file may give any attribute to a credential, so with it the credential is always needed.
        let is_used_of =
            |index: usize, name: &str| is_used(name) || (index == API_KEY_INDEX && reader.callers.is_some());
        let built_in = BUILT_IN.iter().enumerate();
        let built_in = built_in.filter(|(index, name)| is_used_of(*index, name)).map(|(index, _)| index);
        let mapped =
            reader.mapped.iter().take(MAPPED_MAX).enumerate().filter(|(_, mapped)| is_used(&mapped.name));
        let mapped = mapped.map(|(index, _)| index + BUILT_IN.len());
        Self(built_in.chain(mapped).fold(0, |bits, index| bits | 1 << index))
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// Whether the set contains the attribute with this index in [`BUILT_IN`].
    pub(super) const fn built_in(self, index: usize) -> bool {
        self.0 >> index & 1 == 1
    }

    /// Whether the set contains only the attribute with this index in [`BUILT_IN`].
    pub(super) const fn is_only(self, index: usize) -> bool {
        self.0 == 1 << index
    }

    pub(super) const fn mapped(self, index: usize) -> bool {
        self.0 >> (BUILT_IN.len() + index) & 1 == 1
    }

    pub(super) const fn any_mapped(self) -> bool {
        self.0 >> BUILT_IN.len() != 0
    }
}
