//! Keys: the identity of one counter, as a keyed 128-bit hash of length-prefixed parts. No key string is ever kept.
//!
//! The hash is NH, the almost-universal hash under UMAC, in two lanes with secrets of their own: the parts become pairs
//! of 64-bit words, and each lane sums `(first + secret) × (second + secret)` modulo 2^128. An attacker that does not
//! know the secrets finds two keys with equal sums in one lane with probability 2^-64 at best, whatever keys are
//! chosen. The sums are folded to 64 bits each. The half that locates a key in a table is a non-linear mix of both, so
//! that one observed neighbour does not reveal the next.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Pairs of words hashed with secrets of their own; longer messages are folded once for each block of this many.
const BLOCK_PAIRS: usize = 32;
/// A bit that every tag has, because a table marks a free slot by zero. It is above the bits that locate the key.
pub(crate) const NEVER_ZERO: u64 = 1 << 30;
/// Bytes of a part that share the first word with its length.
const HEAD_BYTES: usize = 6;
/// Marks a part whose length does not fit the sixteen bits in the first word; the second word has its length.
const LONG_PART: u64 = 0xFFFE;
/// Bytes of a part that its first pair of words holds.
const PAIR_BYTES: usize = HEAD_BYTES + 8;

/// The process's secret numbers. Has no `Debug`: it must not be printed.
pub struct Secret {
    /// For each pair of words: two secrets for each lane.
    pairs: Box<[[u64; 4]; BLOCK_PAIRS]>,
    /// For the identity of a family of keys.
    family: [u64; 4],
    fold: [u64; 2],
}

/// A keyed 128-bit hash: the identity of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Fingerprint {
    /// The half that also locates it in a table; never zero.
    pub(crate) tag: u64,
    /// The other half.
    pub(crate) rest: u64,
}

/// A hash in progress. Copied from a family's prefix for each key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefix {
    lanes: [u128; 2],
    position: usize,
}

/// The keys of one family that a program counts by itself, outside of any policy. Has no `Debug`, like its secret.
///
/// ```
/// use tollgate::Secret;
/// use tollgate::key::KeyFamily;
/// let users = KeyFamily::new("users", Secret::random());
/// assert_eq!(users.hash(b"alice"), users.hash(b"alice"));
/// assert_ne!(users.hash(b"alice"), users.hash(b"bob"));
/// ```
pub struct KeyFamily {
    secret: Secret,
    prefix: Prefix,
}

impl KeyFamily {
    /// A family of this name, hashed with a secret of its own.
    #[must_use]
    pub fn new(name: &str, secret: Secret) -> Self {
        let prefix = secret.prefix(&[name.as_bytes()]);
        Self { secret, prefix }
    }

    /// The keyed hash of a key. The upper half is never zero; both halves may be used to locate the key in a table.
    #[must_use]
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u128 {
        self.secret.text_key(&self.prefix, key).whole()
    }
}

impl Secret {
    /// Two equal secrets, for two engines that must select the same keys where they enforce a percentage of them.
    #[must_use]
    pub fn twins() -> (Self, Self) {
        let one = Self::random();
        (one.copy(), one)
    }

    /// The same secret for another engine of this process.
    pub(crate) fn copy(&self) -> Self {
        Self { pairs: self.pairs.clone(), family: self.family, fold: self.fold }
    }

    /// A new secret from the operating system's randomness.
    #[must_use]
    pub fn random() -> Self {
        let (left, right) = (RandomState::new(), RandomState::new());
        Self::expand(|counter| left.hash_one(counter) ^ right.hash_one(!counter))
    }

    /// A secret that is the same every time, for tests and simulations that must be repeatable.
    #[must_use]
    pub fn repeatable(seed: u64) -> Self {
        // SplitMix64: it need not be secret, only well mixed. The counter begins at one.
        Self::expand(|counter| mix(seed.wrapping_add((counter - 1).wrapping_mul(GOLDEN))))
    }

    /// Its numbers in the order in which they are drawn, for a snapshot. An attacker that has them can target buckets.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.pairs.iter().flatten().chain(&self.family).chain(&self.fold).copied()
    }

    /// The secret with these numbers; `None` if their count is wrong.
    pub(crate) fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let mut left = numbers.iter();
        let mut enough = true;
        let secret = Self::expand(|_| {
            let next = left.next();
            enough &= next.is_some();
            next.copied().unwrap_or_default()
        });
        (enough && left.next().is_none()).then_some(secret)
    }

    /// The secret that these words make, each requested by its number: for processes that must hash alike. The words
    /// must be as secret, and as random, as the secret is to be.
    #[must_use]
    pub fn of_words(word: impl FnMut(u64) -> u64) -> Self {
        Self::expand(word)
    }

    fn expand(mut word: impl FnMut(u64) -> u64) -> Self {
        let mut counter = 0;
        let mut next = || {
            counter += 1;
            word(counter)
        };
        let pairs = Box::new(std::array::from_fn(|_| std::array::from_fn(|_| next())));
        Self { pairs, family: std::array::from_fn(|_| next()), fold: [next(), next()] }
    }

    /// The start of every key of one family of counters, such as a limit's.
    pub(crate) fn prefix(&self, parts: &[&[u8]]) -> Prefix {
        let mut identity = Prefix { lanes: [1, 2], position: 0 };
        for part in parts {
            identity.part(self, part);
        }
        let identity = identity.finish(self);
        let mut start = Prefix { lanes: [3, 4], position: 0 };
        start.lanes = added(start.lanes, &self.family, identity.tag, identity.rest);
        start
    }

    /// The key of a single text. This is the common case, so a short text takes a fast path.
    #[inline(always)]
    pub(crate) fn text_key(&self, family: &Prefix, text: &[u8]) -> Fingerprint {
        if text.len() <= PAIR_BYTES
            && let Some(head) = text.first_chunk::<8>()
            && let Some(tail) = text.last_chunk::<8>()
        {
            let length = text.len() as u64;
            let first = (u64::from_le_bytes(*head) << 16) | length;
            let lanes = added(family.lanes, &self.pairs[0], first, u64::from_le_bytes(*tail));
            return Prefix { lanes, position: 1 }.finish(self);
        }
        self.long_text_key(*family, text)
    }

    #[inline(never)]
    fn long_text_key(&self, mut family: Prefix, text: &[u8]) -> Fingerprint {
        family.part(self, text);
        family.finish(self)
    }
}

impl Prefix {
    #[inline]
    fn pair(&mut self, secret: &Secret, first: u64, second: u64) {
        if self.position == BLOCK_PAIRS {
            self.fold_block(secret);
        }
        self.lanes = added(self.lanes, &secret.pairs[self.position % BLOCK_PAIRS], first, second);
        self.position += 1;
    }

    /// Starts the next block with the hash of all blocks before it.
    #[cold]
    fn fold_block(&mut self, secret: &Secret) {
        let [left, right] = self.folded();
        *self = Prefix { lanes: [5, 6], position: 0 };
        self.pair(secret, left, right);
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "both halves are kept, folded")]
    const fn folded(&self) -> [u64; 2] {
        let [left, right] = self.lanes;
        [(left >> 64) as u64 ^ left as u64, (right >> 64) as u64 ^ right as u64]
    }

    /// Adds one part: its length and first bytes as one word, then the other bytes, eight per word, in pairs. Because
    /// the length comes first, two lists of parts that differ give words that differ.
    #[inline]
    pub(crate) fn part(&mut self, secret: &Secret, bytes: &[u8]) {
        for_each_pair(bytes, |first, second| self.pair(secret, first, second));
    }

    /// A key of this family that no parts can produce: the first word of a part ends in its length or in [`LONG_PART`],
    /// which are below 65,535.
    pub(crate) fn overflow(mut self, secret: &Secret, share: u64) -> Fingerprint {
        self.pair(secret, 0xFFFF, share);
        self.finish(secret)
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "both halves of a 128-bit product are kept, folded")]
    pub(crate) fn finish(self, secret: &Secret) -> Fingerprint {
        let [left, right] = self.folded();
        let product = u128::from(left ^ secret.fold[0]).wrapping_mul(u128::from(right ^ secret.fold[1]));
        let mixed = (product >> 64) as u64 ^ product as u64;
        Fingerprint { tag: mixed | NEVER_ZERO, rest: right }
    }
}

/// One step of NH: each lane plus the product of both words, a secret added to each.
#[inline(always)]
fn added(lanes: [u128; 2], secrets: &[u64; 4], first: u64, second: u64) -> [u128; 2] {
    let product =
        |a: u64, b: u64| u128::from(first.wrapping_add(a)).wrapping_mul(u128::from(second.wrapping_add(b)));
    let [a, b, c, d] = *secrets;
    [lanes[0].wrapping_add(product(a, b)), lanes[1].wrapping_add(product(c, d))]
}

impl Fingerprint {
    /// Both halves in one number, the tag in the upper half.
    pub(crate) const fn whole(self) -> u128 {
        ((self.tag as u128) << 64) | self.rest as u128
    }

    /// The fingerprint of such a number.
    #[allow(clippy::cast_possible_truncation, reason = "each half has 64 bits")]
    pub(crate) const fn of_whole(whole: u128) -> Self {
        Self { tag: (whole >> 64) as u64, rest: whole as u64 }
    }

    /// A number for the key in jitter and percentages, which reveals nothing about its neighbours.
    pub(crate) const fn digest(self) -> u64 {
        self.rest.rotate_left(32) ^ self.tag
    }
}

/// The step between two states of splitmix64.
#[doc(hidden)]
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// One step of splitmix64: every bit of the input changes every bit of the output.
#[doc(hidden)]
#[must_use]
pub const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(GOLDEN);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The words of one part, two at a time. Decoding needs only the length in the first word, so the encoding is
/// injective.
#[inline]
fn for_each_pair(bytes: &[u8], mut pair: impl FnMut(u64, u64)) {
    if bytes.len() as u64 >= LONG_PART {
        return for_each_long_pair(bytes, pair);
    }
    let (head, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES));
    let (second, rest) = rest.split_at(rest.len().min(8));
    // A part that fits its first pair stores its last eight bytes in the second word, even those that the first word
    // has.
    let second = match bytes.last_chunk::<8>() {
        Some(last) if rest.is_empty() => u64::from_le_bytes(*last),
        _ => word(second),
    };
    pair((word(head) << 16) | bytes.len() as u64, second);
    for chunk in rest.chunks(16) {
        let (first, second) = chunk.split_at(chunk.len().min(8));
        pair(word(first), word(second));
    }
}

/// As `for_each_pair`, for a part whose length does not fit beside its first bytes.
#[cold]
fn for_each_long_pair(bytes: &[u8], mut pair: impl FnMut(u64, u64)) {
    pair(LONG_PART, bytes.len() as u64);
    for chunk in bytes.chunks(16) {
        let (first, second) = chunk.split_at(chunk.len().min(8));
        pair(word(first), word(second));
    }
}

/// All words that a list of parts is hashed as.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn words(parts: &[&[u8]]) -> Vec<u64> {
    let mut all = Vec::new();
    for part in parts {
        for_each_pair(part, |first, second| all.extend([first, second]));
    }
    all
}

/// Up to eight bytes as one number, from overlapping reads.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    if let Some(whole) = bytes.first_chunk::<8>() {
        u64::from_le_bytes(*whole)
    } else if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        u64::from(u32::from_le_bytes(*first))
            | (u64::from(u32::from_le_bytes(*last)) << (8 * (bytes.len() - 4)))
    } else {
        bytes.iter().rev().fold(0, |packed, &byte| (packed << 8) | u64::from(byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An implementation that was written from docs/design/key-hash.md alone computes the same hashes.
    #[test]
    fn an_independent_implementation_agrees() {
        let parts = |text: &str| -> Vec<Vec<u8>> {
            let bytes = |part: &str| match part.strip_prefix("x*") {
                Some(count) => vec![b'x'; count.parse().unwrap()],
                None => (0..part.len() / 2)
                    .map(|at| u8::from_str_radix(&part[2 * at..2 * at + 2], 16).unwrap())
                    .collect(),
            };
            text.split(',').map(|part| bytes(part.trim_matches('-'))).collect()
        };
        let secret = Secret::repeatable(42);
        let vectors = include_str!("../tests/key_hash/vectors.txt");
        for line in vectors.lines() {
            let [family, key, hash] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let family: Vec<Vec<u8>> = parts(family);
            let mut prefix = secret.prefix(&family.iter().map(Vec::as_slice).collect::<Vec<_>>());
            parts(key).iter().for_each(|part| prefix.part(&secret, part));
            assert_eq!(format!("{:032x}", prefix.finish(&secret).whole()), hash, "{line}");
        }
        assert_eq!(vectors.lines().count(), 83);
    }

    /// The words of a part can be decoded: nothing is lost, whatever its length.
    #[test]
    fn the_encoding_of_parts_can_be_read_back() {
        for length in 0..200 {
            let part: Vec<u8> = (0..length).map(|i| u8::try_from((i * 37 + 11) % 256).unwrap()).collect();
            let encoded = words(&[&part]);
            let claimed = (encoded[0] & 0xFFFF) as usize;
            let mut bytes: Vec<u8> = encoded[0].to_le_bytes()[2..].to_vec();
            if (8..=PAIR_BYTES).contains(&length) {
                // The second word holds the last eight bytes in full.
                bytes.truncate(length - 8);
            }
            for word in &encoded[1..] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            assert_eq!(claimed, length);
            assert_eq!(&bytes[..length], &part[..], "length {length}");
            assert!(bytes[length..].iter().all(|&byte| byte == 0), "padding is zero at length {length}");
        }
    }

    /// Moving a byte from one part to the next gives another key: delimiters cannot be injected.
    #[test]
    fn parts_do_not_run_into_each_other() {
        let secret = Secret::repeatable(7);
        let family = secret.prefix(&[b"limit"]);
        let key = |parts: &[&[u8]]| {
            let mut prefix = family;
            parts.iter().for_each(|part| prefix.part(&secret, part));
            prefix.finish(&secret)
        };
        assert_ne!(key(&[b"ab", b"c"]), key(&[b"a", b"bc"]));
        assert_ne!(key(&[b"", b"abc"]), key(&[b"abc", b""]));
        assert_ne!(key(&[b"user_a"]), key(&[b"user", b"a"]));
        assert_eq!(key(&[b"ab", b"c"]), key(&[b"ab", b"c"]));
    }

    /// A message longer than one block still depends on every byte of it.
    #[test]
    fn long_parts_depend_on_every_byte() {
        let secret = Secret::repeatable(8);
        let family = secret.prefix(&[b"limit"]);
        let key = |bytes: &[u8]| {
            let mut prefix = family;
            prefix.part(&secret, bytes);
            prefix.finish(&secret)
        };
        let long = vec![b'x'; 4096];
        let whole = key(&long);
        for at in [0, 5, 6, 500, 505, 2_000, 4_095] {
            let mut other = long.clone();
            other[at] = b'y';
            assert_ne!(key(&other), whole, "byte {at}");
        }
    }

    /// Consecutive names spread evenly over the table: no bucket is far fuller than chance allows.
    #[test]
    fn consecutive_keys_spread_evenly() {
        let secret = Secret::repeatable(9);
        let family = secret.prefix(&[b"limit"]);
        let mut counts = vec![0u32; 1024];
        for number in 0..102_400 {
            let mut prefix = family;
            prefix.part(&secret, format!("user-{number:07}").as_bytes());
            counts[(prefix.finish(&secret).tag % 1024) as usize] += 1;
        }
        // 100 expected for each; 6 standard deviations either way.
        assert!(counts.iter().all(|&count| (40..=160).contains(&count)), "{:?}", counts.iter().max());
    }

    /// The fast path for short texts gives the same key as the slow path.
    #[test]
    fn the_short_way_is_the_long_way() {
        let secret = Secret::repeatable(10);
        let family = secret.prefix(&[b"limit"]);
        for length in 0..40 {
            let text: Vec<u8> = (0..length).map(|i: u8| i.wrapping_mul(31)).collect();
            let mut long = family;
            long.part(&secret, &text);
            assert_eq!(secret.text_key(&family, &text), long.finish(&secret), "length {length}");
        }
    }

    /// A family of a program's own gives other hashes than another family, and no upper half is zero.
    #[test]
    fn families_of_a_program() {
        let family = |name| KeyFamily::new(name, Secret::repeatable(11));
        let (one, other) = (family("one"), family("other"));
        for key in [&b""[..], b"k", b"user-0001", b"a key that takes the long way"] {
            assert_ne!(one.hash(key), other.hash(key));
            assert_ne!(one.hash(key) >> 64, 0);
        }
    }

    /// Different families (limits) never share a counter for one value.
    #[test]
    fn families_are_apart() {
        let secret = Secret::random();
        let key = |name: &[u8]| {
            let mut prefix = secret.prefix(&[name]);
            prefix.part(&secret, b"same");
            prefix.finish(&secret)
        };
        assert_ne!(key(b"one"), key(b"two"));
    }
}
