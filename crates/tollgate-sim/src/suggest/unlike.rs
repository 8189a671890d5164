//! The few keys that are unlike all others, such as abusers.
//!
//! Each key has a smallest rate of those tried that returns its burst within one period. The rate of a key that is unlike
//! the others is at least [`UNLIKE_RATE_MIN`], and at least [`UNLIKE_FACTOR`] times that of every other key. At most one
//! key in [`UNLIKE_PART`] is unlike the others.

use std::cmp::Reverse;

use tollgate::Rate;

use super::need::KeyNeed;
use super::smallest::smallest;

/// How many times the rate of every other key one needs that is unlike them.
pub const UNLIKE_FACTOR: u64 = 4;
/// The least rate that such a key needs, in units of one period. Fewer are those of a page in a browser.
const UNLIKE_RATE_MIN: u64 = 20;
/// At most one in so many keys is unlike the others.
const UNLIKE_PART: usize = 20;
/// Maximum number of keys that are unlike the others.
pub(super) const UNLIKE_MAX: usize = 1_000;

/// Keys that are unlike all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnlikeKeys {
    /// How many there are.
    pub keys: u64,
    /// The first of them, the largest needs first: each with its values.
    pub names: Vec<String>,
    /// For each rate, the smallest burst that one of them needs.
    pub least: Vec<u64>,
    /// For each rate, the largest burst that one of the others needs.
    pub most_of_others: Vec<u64>,
}

/// The indexes of the keys that are unlike the others, the largest needs first; none if all are alike.
pub(super) fn unlike(rates: &[Rate], needs: &[KeyNeed]) -> Vec<usize> {
    let rate_of = |need: &KeyNeed| {
        let fits = smallest(rates, |index| need.burst(index).most <= rates[index].units());
        // A key for which no rate is large enough needs more than the largest.
        fits.map_or_else(
            || rates.iter().map(|rate| rate.units() + 1).max().unwrap_or_default(),
            |index| rates[index].units(),
        )
    };
    let of_keys: Vec<u64> = needs.iter().map(rate_of).collect();
    let Some(Gap { others, unlike }) = gap(of_keys.clone()) else { return Vec::new() };
    let index = rates.iter().position(|rate| rate.units() == others).unwrap_or_default();
    let mut keys: Vec<usize> = (0..needs.len()).filter(|key| of_keys[*key] >= unlike).collect();
    keys.sort_by_key(|key| Reverse(needs[*key].burst(index).most));
    keys
}

/// A gap between the rates that keys need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    /// The largest below it.
    others: u64,
    /// The smallest above it.
    unlike: u64,
}

/// The lowest gap in the highest twentieth.
fn gap(mut of_keys: Vec<u64>) -> Option<Gap> {
    let most = (of_keys.len() / UNLIKE_PART).min(UNLIKE_MAX);
    let first = of_keys.len().checked_sub(most + 1)?;
    of_keys.select_nth_unstable(first);
    // The last key that is an ordinary one in any case, and those that need as much or more.
    let highest = &mut of_keys[first..];
    highest.sort_unstable();
    let is_gap =
        |[below, above]: &[u64; 2]| *above >= UNLIKE_RATE_MIN.max(below.saturating_mul(UNLIKE_FACTOR));
    let [others, unlike] = *highest.array_windows().find(|pair| is_gap(pair))?;
    Some(Gap { others, unlike })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lowest gap in the highest twentieth counts: several groups of abusers are left out together. A small rate is
    /// no abuse, and a fifth of the keys is never left out.
    #[test]
    fn the_gap_divides_few_from_many() {
        let of = |groups: &[(usize, u64)]| {
            let rates = groups.iter().flat_map(|(count, rate)| std::iter::repeat_n(*rate, *count));
            gap(rates.collect()).map(|gap| (gap.others, gap.unlike))
        };
        assert_eq!(of(&[(300, 5), (3, 500)]), Some((5, 500)));
        assert_eq!(of(&[(300, 10), (3, 100), (1, 5_000)]), Some((10, 100)));
        assert_eq!(of(&[(300, 1), (3, 10)]), None);
        assert_eq!(of(&[(300, 10), (3, 20)]), None);
        assert_eq!(of(&[(240, 5), (60, 500)]), None);
        assert_eq!(of(&[(285, 5), (15, 500)]), Some((5, 500)));
        assert_eq!(of(&[(284, 5), (16, 500)]), None);
        assert_eq!(of(&[(18, 5), (1, 500)]), None);
        assert_eq!(of(&[(300, 2_000), (3, 5_001)]), None);
        assert_eq!(of(&[]), None);
    }
}
