//! The suite that every store must pass. Each module checks guarantees of [`Store`] through an [`Engine`], by
//! assertions; a failing one panics and says what broke.
//!
//! It needs a function that makes an empty store for decisions from an instant on. It works through the engine alone,
//! so any program can run it against its own store:
//!
//! ```
//! use tollgate::{MemoryStore, conformance};
//! # fn block_on(future: impl Future<Output = ()>) {
//! #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
//! #     assert!(std::pin::pin!(future).poll(&mut context).is_ready());
//! # }
//! let make = |origin| MemoryStore::new(1 << 20, origin);
//! block_on(conformance::modes::all(&make));
//! ```
//!
//! The store must take the time from the `now` of each call. A store with a clock of its own is run in a mode in which
//! it uses `now`, or with that clock replaced. Keys of different calls never collide, because each engine has its own
//! secret; all calls may therefore share a store.

#![allow(clippy::expect_used, clippy::panic, reason = "a suite of assertions: a broken promise panics")]

pub mod all_or_nothing;
pub mod kept;
pub mod modes;
pub mod settling;
pub mod swapping;

mod fixture;
#[cfg(test)]
mod tests;

use crate::engine::Engine;
use crate::store::Store;
use crate::time::Timestamp;

/// Runs the whole suite, one check after the other.
pub async fn all<S: Store>(make: &impl Fn(Timestamp) -> S) {
    all_or_nothing::all(make).await;
    modes::all(make).await;
    swapping::all(make).await;
    settling::all(make).await;
    kept::all(make).await;
}
