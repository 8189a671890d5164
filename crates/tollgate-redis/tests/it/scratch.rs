//! Shared by all tests here: directories, free ports, waiting, and exclusive runs for tests that measure.

use std::sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use tollgate_testkit::{Scratch, free_port, rest, until};

static QUIET: RwLock<()> = RwLock::new(());

/// Limits how many tests run concurrently. Clusters share the processors with their servers, so only one test more runs
/// than there are processors, however many test threads there are.
static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// Held by tests that may run beside others.
pub(crate) struct SharedRun(#[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'static, ()>);

pub(crate) fn among_others() -> SharedRun {
    let most = 1 + std::thread::available_parallelism().map_or(1, usize::from);
    let running = RUNNING.0.lock().unwrap_or_else(PoisonError::into_inner);
    let running = RUNNING.1.wait_while(running, |running| *running >= most);
    *running.unwrap_or_else(PoisonError::into_inner) += 1;
    SharedRun(QUIET.read().unwrap_or_else(PoisonError::into_inner))
}

impl Drop for SharedRun {
    fn drop(&mut self) {
        *RUNNING.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        RUNNING.1.notify_one();
    }
}

/// Held by a test that measures time: no other test of this program runs meanwhile.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    QUIET.write().unwrap_or_else(PoisonError::into_inner)
}
