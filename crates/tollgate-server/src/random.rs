//! Cheap pseudorandom numbers for sampling and for the ids of spans, where guessing them gains nothing.

use std::cell::Cell;

/// Scrambles a number with the finalizer of splitmix64, so that neighbours become unrelated.
#[inline]
pub(crate) const fn scrambled(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The next number of this thread.
#[inline]
pub(crate) fn next() -> u64 {
    // Without the system's randomness two threads would produce the same numbers, which only confuses their traces.
    thread_local!(static STATE: Cell<u64> = Cell::new(getrandom::u64().unwrap_or(0)));
    STATE.with(|state| {
        let number = state.get();
        state.set(number.wrapping_add(1));
        scrambled(number)
    })
}
