//! Names of counters in Redis: `tg:{gggg}` and 21 characters, 30 bytes in all, which Redis stores in 32. A name holds a
//! keyed hash and four letters that choose the slot, and nothing that a client sends. A counter that lends may have a
//! second key, which differs in one character.

use tollgate::store::Charge;

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 30;
/// Slots of a Redis Cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The prefix of all keys. A release that changes the meaning of a state changes the prefix, so that two meanings never
/// share a key.
const PREFIX: &[u8; 4] = b"tg:{";
/// Where the group's digits end.
const GROUP_END: usize = 8;
/// The digits of a group: sixteen consecutive letters from a multiple of sixteen. CRC-16 spreads these evenly over the
/// slots, while hexadecimal digits would leave every fifth slot empty.
const DIGITS: &[u8; 16] = b"@ABCDEFGHIJKLMNO";
/// Replaces the first character of the hash in the key of a counter's fleet demand.
const DEMAND_MARK: u8 = b'~';
const BASE64_URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The name of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; KEY_BYTES]);

impl Key {
    /// The key of a charge's counter.
    pub(crate) fn of(charge: &Charge<'_>) -> Self {
        Self::new(charge.key(), charge.group())
    }

    /// The key of a hash, in the slot of its group or, without a group, of the hash itself.
    pub(crate) fn new(hash: u128, group: Option<u16>) -> Self {
        #[allow(
            clippy::cast_possible_truncation,
            reason = "sixteen bits of a hash are a hash of sixteen bits"
        )]
        let group = group.unwrap_or(hash as u16);
        let mut bytes = [b'}'; KEY_BYTES];
        bytes[..PREFIX.len()].copy_from_slice(PREFIX);
        for (index, digit) in bytes[PREFIX.len()..GROUP_END].iter_mut().enumerate() {
            *digit = DIGITS[usize::from(group >> (12 - 4 * index) & 0xf)];
        }
        // 126 of the 128 bits; two more would cost sixteen bytes of Redis memory.
        for (index, digit) in bytes[GROUP_END + 1..].iter_mut().enumerate() {
            *digit = BASE64_URL[usize::try_from(hash >> (122 - 6 * index) & 0x3f).unwrap_or(0)];
        }
        Self(bytes)
    }

    /// The key of this counter's fleet demand, in the same slot. The hash without its first character still tells keys
    /// apart.
    pub(crate) const fn demand_key(mut self) -> Self {
        self.0[GROUP_END + 1] = DEMAND_MARK;
        self
    }

    /// The bytes that Redis sees.
    pub(crate) const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Forty-eight bits of the hash, to find repeated keys.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[GROUP_END + 1..GROUP_END + 9]);
        u64::from_le_bytes(bytes)
    }

    /// The key's cluster slot.
    pub(crate) fn slot(&self) -> u16 {
        slot_of(&self.0[PREFIX.len()..GROUP_END])
    }
}

/// The slot of a key's hash tag: its CRC-16 (XMODEM).
pub(crate) fn slot_of(tag: &[u8]) -> u16 {
    let mut sum = 0u16;
    for &byte in tag {
        sum ^= u16::from(byte) << 8;
        for _ in 0..8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 };
        }
    }
    sum % SLOTS
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key consists of its prefix, its group and its hash.
    #[test]
    fn keys_have_one_shape() {
        let key = Key::new(u128::MAX, Some(0x1f3a));
        assert_eq!(key.as_bytes(), b"tg:{AOCJ}_____________________");
        assert_eq!(Key::new(0xbeef, None).as_bytes(), b"tg:{KNNO}AAAAAAAAAAAAAAAAAAC-7");
        let demand = key.demand_key();
        assert_eq!(demand.as_bytes(), b"tg:{AOCJ}~____________________");
        assert!(demand.slot() == key.slot() && demand.fingerprint() != key.fingerprint());
    }

    /// Slots match Redis's documentation and `CLUSTER KEYSLOT`.
    #[test]
    fn slots_match_redis() {
        assert_eq!(slot_of(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(Key::new(7, Some(0x0666)).slot(), slot_of(b"@FFF"));
    }

    /// Every slot has the same number of groups.
    #[test]
    fn groups_are_spread_evenly_over_the_slots() {
        let mut slots = vec![0u32; usize::from(SLOTS)];
        for group in 0..=u16::MAX {
            slots[usize::from(Key::new(0, Some(group)).slot())] += 1;
        }
        assert!(slots.iter().all(|&groups| groups == 4));
    }
}
