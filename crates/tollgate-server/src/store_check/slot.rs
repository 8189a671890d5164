//! Maps a tag to a cluster slot, to find keys that a given server holds.

/// Number of slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// Maximum number of tags that are tried to find one in a given slot: several for each.
const TAGS_MAX: u32 = 1_000_000;

/// The slot of a tag: its CRC-16 (XMODEM), modulo the number of slots.
fn slot(tag: &str) -> u16 {
    let add = |mut sum: u16, byte: u8| {
        sum ^= u16::from(byte) << 8;
        for _ in 0..8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 };
        }
        sum
    };
    tag.bytes().fold(0, add) % SLOTS
}

/// A tag in one of these ranges of slots. `None` for a server without slots.
pub(super) fn tag_within(ranges: &[(u16, u16)]) -> Option<String> {
    let is_there = |tag: &String| ranges.iter().any(|(first, last)| (*first..=*last).contains(&slot(tag)));
    (0..TAGS_MAX).map(|number: u32| number.to_string()).find(is_there)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slots match the cluster specification.
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot("123456789"), 0x31C3);
        assert_eq!(slot("foo"), 12_182);
        for first in (0..SLOTS).step_by(97) {
            let tag = tag_within(&[(first, first)]).unwrap();
            assert_eq!(slot(&tag), first);
        }
        assert_eq!(tag_within(&[]), None);
    }
}
