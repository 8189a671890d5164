//! Cheap pseudorandom numbers for sampling and for the ids of spans, where guessing them gains nothing.

use std::cell::Cell;

/// Scrambles a number, so that neighbours become unrelated.
pub use tollgate::key::mix as scrambled;

/// The next number of this thread.
#[inline]
#[must_use]
pub fn next() -> u64 {
    // Without the system's randomness two threads would produce the same numbers, which only confuses their traces.
    thread_local!(static STATE: Cell<u64> = Cell::new(getrandom::u64().unwrap_or(0)));
    STATE.with(|state| {
        let number = state.get();
        state.set(number.wrapping_add(1));
        scrambled(number)
    })
}
