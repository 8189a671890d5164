//! A share of keys.

use std::fmt;

/// The parts of a share in a whole.
const WHOLE: u32 = 1_000_000;
/// The shares from which [`WantedShare::Finest`] chooses, the finest first: those of which 1,000, 500, 200 and 100 keys
/// leave one out.
const STEPS: [KeyShare; 4] = [KeyShare(999_000), KeyShare(998_000), KeyShare(995_000), KeyShare(990_000)];

/// A share of keys, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyShare(u32);

impl KeyShare {
    /// The finest of the usual shares.
    pub const USUAL: Self = STEPS[0];

    /// This many millionths, at least one and at most all of them.
    #[must_use]
    pub const fn from_millionths(millionths: u32) -> Option<Self> {
        if millionths == 0 || millionths > WHOLE { None } else { Some(Self(millionths)) }
    }

    /// The smallest number of keys that is at least this share of `keys`.
    #[must_use]
    pub fn of(self, keys: u64) -> u64 {
        let parts = u128::from(keys) * u128::from(self.0);
        u64::try_from(parts.div_ceil(u128::from(WHOLE))).unwrap_or(u64::MAX)
    }

    /// The least number of keys of which this share leaves one out. Of fewer, it is all of them, and each single key
    /// would decide. `None` for the share of all keys.
    #[must_use]
    pub fn keys_for_one_more(self) -> Option<u64> {
        (self.0 < WHOLE).then(|| u64::from(WHOLE).div_ceil(u64::from(WHOLE - self.0)))
    }

    /// The value that at least this share of the values does not exceed.
    pub(super) fn quantile<T: Ord + Copy + Default>(self, values: &mut [T]) -> T {
        let count = usize::try_from(self.of(values.len() as u64)).unwrap_or(values.len());
        match count.checked_sub(1).filter(|index| *index < values.len()) {
            Some(index) => *values.select_nth_unstable(index).1,
            None => T::default(),
        }
    }
}

/// The share of keys that a limit is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedShare {
    /// This one, however few keys there are.
    Exactly(KeyShare),
    /// The finest usual one, 99.9 % at most, of which the keys leave one out.
    Finest,
}

impl WantedShare {
    /// The share for so many keys. Of fewer than 100 keys none of the usual shares leaves one out; it is 99 % then.
    #[must_use]
    pub fn of(self, keys: u64) -> KeyShare {
        let leaves_one_out =
            |share: &KeyShare| share.keys_for_one_more().is_some_and(|needed| needed <= keys);
        match self {
            Self::Exactly(share) => share,
            Self::Finest => STEPS.into_iter().find(leaves_one_out).unwrap_or(STEPS[STEPS.len() - 1]),
        }
    }

    /// The shares that are possible if there are at least so many keys.
    pub(super) fn possible(self, keys: u64) -> Vec<KeyShare> {
        match self {
            Self::Exactly(share) => vec![share],
            Self::Finest => STEPS.into_iter().filter(|share| *share >= self.of(keys)).collect(),
        }
    }
}

impl fmt::Display for KeyShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 10_000, self.0 % 10_000);
        let digits = format!("{part:04}");
        match digits.trim_end_matches('0') {
            "" => write!(f, "{whole} %"),
            digits => write!(f, "{whole}.{digits} %"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At least the share of the values is no larger than the quantile, and the next smaller value would not do.
    #[test]
    fn quantiles_hold_what_they_say() {
        let share = |millionths| KeyShare::from_millionths(millionths).unwrap();
        for (millionths, count, expected) in
            [(1_000_000, 10, 10), (999_000, 1_000, 999), (999_000, 10, 10), (500_000, 10, 5), (1, 10, 1)]
        {
            let mut values: Vec<u64> = (1..=count).rev().collect();
            assert_eq!(share(millionths).quantile(&mut values), expected, "{millionths} of {count}");
        }
        assert_eq!(share(999_000).quantile::<u64>(&mut []), 0);
        assert_eq!(KeyShare::from_millionths(0), None);
        assert_eq!(KeyShare::from_millionths(1_000_001), None);
    }

    /// The share grows finer with the keys, leaves at least one out from 100 keys on, and an exact one stays.
    #[test]
    fn the_finest_share_leaves_one_key_out() {
        for (keys, expected) in
            [(1, 990_000), (100, 990_000), (199, 990_000), (200, 995_000), (999, 998_000), (1_000, 999_000)]
        {
            let share = WantedShare::Finest.of(keys);
            assert_eq!(share, KeyShare(expected), "{keys}");
            assert!(keys < 100 || share.of(keys) < keys, "{keys}");
            let possible = WantedShare::Finest.possible(keys);
            assert!((keys..2_000).all(|more| possible.contains(&WantedShare::Finest.of(more))), "{keys}");
        }
        assert_eq!(WantedShare::Finest.of(5_000_000), KeyShare(999_000));
        assert_eq!(WantedShare::Exactly(KeyShare(999_000)).of(1), KeyShare(999_000));
    }

    /// Of so many keys one is left out, and of one fewer none.
    #[test]
    fn a_share_says_how_many_keys_it_takes() {
        for (millionths, expected) in [(999_000, 1_000), (990_000, 100), (997_000, 334), (500_000, 2)] {
            let share = KeyShare::from_millionths(millionths).unwrap();
            assert_eq!(share.keys_for_one_more(), Some(expected), "{millionths}");
            assert_eq!(
                (share.of(expected), share.of(expected - 1)),
                (expected - 1, expected - 1),
                "{millionths}"
            );
        }
        assert_eq!(KeyShare(WHOLE).keys_for_one_more(), None);
    }

    /// Shares are written as people write them.
    #[test]
    fn shares_are_written() {
        for (millionths, expected) in [(999_000, "99.9 %"), (1_000_000, "100 %"), (999_950, "99.995 %")] {
            assert_eq!(KeyShare::from_millionths(millionths).unwrap().to_string(), expected);
        }
    }
}
