//! The smallest of several rates, whatever their periods.

use std::cmp::Ordering;

use tollgate::{Rate, Ticks};

/// The index of the smallest rate that fits.
pub(super) fn smallest(rates: &[Rate], fits: impl Fn(usize) -> bool) -> Option<usize> {
    (0..rates.len()).filter(|index| fits(*index)).min_by(|one, other| compare(rates[*one], rates[*other]))
}

/// Compares what two rates give in the same time.
fn compare(one: Rate, other: Rate) -> Ordering {
    let product = |units: u64, period: Ticks| u128::from(units) * u128::from(period.as_micros());
    product(one.units(), other.period()).cmp(&product(other.units(), one.period()))
}
