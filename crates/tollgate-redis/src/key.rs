//! The names of counters in Redis: `tg:{gggg}` and 21 characters, 30 bytes in all, which Redis keeps in 32. Nothing that a client
//! sends shapes a name: it is made of a keyed hash, and of four letters that choose the slot. Beside a counter that lends there may be
//! another key, of the same name but for one character.

use tollgate::charge::Charge;

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 30;
/// Slots of a Redis Cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// What keys begin with. A release that means something else by a state uses another, so that no two meanings meet in one key.
const PREFIX: &[u8; 4] = b"tg:{";
/// Where the digits of the group end.
const GROUP_END: usize = 8;
/// The digits of a group. Sixteen neighbours that start at a multiple of sixteen: a checksum spreads those over the slots evenly,
/// while hexadecimal digits would leave every fifth slot without a key.
const DIGITS: &[u8; 16] = b"@ABCDEFGHIJKLMNO";
/// What stands in a name in index of the hash's first character where it is not of a counter, but of what is asked of it.
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

    /// The key of a hash, in the slot of its group; without one, in a slot of its own.
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
        // 126 of the 128 bits; the other two would cost sixteen bytes of Redis's memory.
        for (index, digit) in bytes[GROUP_END + 1..].iter_mut().enumerate() {
            *digit = BASE64_URL[usize::try_from(hash >> (122 - 6 * index) & 0x3f).unwrap_or(0)];
        }
        Self(bytes)
    }

    /// The key, in the same slot, of what all nodes are asked for of this counter. One letter of the hash less tells them apart as well.
    pub(crate) const fn demand_key(mut self) -> Self {
        self.0[GROUP_END + 1] = DEMAND_MARK;
        self
    }

    /// The bytes that Redis sees.
    pub(crate) const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A number that different keys hardly ever share: forty-eight bits of its hash.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[GROUP_END + 1..GROUP_END + 9]);
        u64::from_le_bytes(bytes)
    }

    /// The slot of a cluster that it lies in.
    pub(crate) fn slot(&self) -> u16 {
        slot_of(&self.0[PREFIX.len()..GROUP_END])
    }
}

/// The slot of what stands between a key's braces: CRC-16 as XMODEM has it.
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

    /// A key is its prefix, its group and its hash, and nothing else.
    #[test]
    fn keys_have_one_shape() {
        let key = Key::new(u128::MAX, Some(0x1f3a));
        assert_eq!(key.as_bytes(), b"tg:{AOCJ}_____________________");
        assert_eq!(Key::new(0xbeef, None).as_bytes(), b"tg:{KNNO}AAAAAAAAAAAAAAAAAAC-7");
        let demand = key.demand_key();
        assert_eq!(demand.as_bytes(), b"tg:{AOCJ}~____________________");
        assert!(demand.slot() == key.slot() && demand.fingerprint() != key.fingerprint());
    }

    /// The slots that Redis's own documentation and `CLUSTER KEYSLOT` tell.
    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(slot_of(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(Key::new(7, Some(0x0666)).slot(), slot_of(b"@FFF"));
    }

    /// Every slot has as many groups as every other.
    #[test]
    fn groups_spread_over_the_slots() {
        let mut slots = vec![0u32; usize::from(SLOTS)];
        for group in 0..=u16::MAX {
            slots[usize::from(Key::new(0, Some(group)).slot())] += 1;
        }
        assert!(slots.iter().all(|&groups| groups == 4));
    }
}
