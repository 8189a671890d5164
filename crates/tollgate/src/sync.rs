//! The atomics and locks of the memory store. Under loom, which searches for races, they are loom's.

#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering, fence},
    sync::{Mutex, MutexGuard},
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering, fence},
    sync::{Mutex, MutexGuard},
    thread::yield_now,
};
