//! Which attributes anybody asks for. What nobody asks for is not read, and cannot be wrong.

use super::{API_KEY_PLACE, BUILT_IN, MAPPED_MAX, Reader};

/// A set of a reader's attributes, in so many bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs(u64);

/// How many bits it takes.
pub(crate) const BITS: u32 = 5 + 32;
const _: () = assert!(BUILT_IN.len() == 5 && MAPPED_MAX == 32, "one bit for each attribute");

impl Needs {
    /// All attributes.
    pub const ALL: Self = Self((1 << BITS) - 1);

    /// Those that a question about their names says.
    #[must_use]
    pub fn of(reader: &Reader, is_used: impl Fn(&str) -> bool) -> Self {
        // Whatever a policy names may be what the callers file gives to a credential.
        let is_used_of =
            |place: usize, name: &str| is_used(name) || (place == API_KEY_PLACE && reader.callers.is_some());
        let built_in = BUILT_IN.iter().enumerate();
        let built_in = built_in.filter(|(place, name)| is_used_of(*place, name)).map(|(place, _)| place);
        let mapped =
            reader.mapped.iter().take(MAPPED_MAX).enumerate().filter(|(_, mapped)| is_used(&mapped.name));
        let mapped = mapped.map(|(place, _)| place + BUILT_IN.len());
        Self(built_in.chain(mapped).fold(0, |bits, place| bits | 1 << place))
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// Whether one of [`BUILT_IN`] is among them, by its place there. Whatever is mapped may be made of any of these.
    pub(super) const fn built_in(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }

    /// Whether it is that one of [`BUILT_IN`] and nothing else.
    pub(super) const fn is_only(self, place: usize) -> bool {
        self.0 == 1 << place
    }

    pub(super) const fn mapped(self, place: usize) -> bool {
        self.0 >> (BUILT_IN.len() + place) & 1 == 1
    }

    pub(super) const fn any_mapped(self) -> bool {
        self.0 >> BUILT_IN.len() != 0
    }
}
