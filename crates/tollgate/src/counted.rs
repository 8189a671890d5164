//! Counts steps of a decision in tests, for each thread: a request is matched once, and each of its keys is hashed and
//! looked up once.

use std::cell::Cell;
use std::thread::LocalKey;

/// The steps of one thread so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Steps {
    /// Requests that were matched with a policy.
    pub(crate) matchings: u32,
    /// Keys of limits that were hashed.
    pub(crate) hashed_keys: u32,
    /// Look-ups in the thread caches of leases.
    pub(crate) cache_lookups: u32,
    /// Look-ups in the maps of leases.
    pub(crate) map_lookups: u32,
}

thread_local! {
    static STEPS: Cell<Steps> = const { Cell::new(Steps { matchings: 0, hashed_keys: 0, cache_lookups: 0, map_lookups: 0 }) };
}

fn add(steps: &'static LocalKey<Cell<Steps>>, change: impl FnOnce(&mut Steps)) {
    let mut counted = steps.get();
    change(&mut counted);
    steps.set(counted);
}

pub(crate) fn matching() {
    add(&STEPS, |steps| steps.matchings += 1);
}

pub(crate) fn hashed_key() {
    add(&STEPS, |steps| steps.hashed_keys += 1);
}

pub(crate) fn cache_lookup() {
    add(&STEPS, |steps| steps.cache_lookups += 1);
}

pub(crate) fn map_lookup() {
    add(&STEPS, |steps| steps.map_lookups += 1);
}

/// The steps that `act` takes on this thread.
pub(crate) fn steps_of<T>(act: impl FnOnce() -> T) -> (T, Steps) {
    let before = STEPS.replace(Steps::default());
    let done = act();
    (done, STEPS.replace(before))
}
