//! What every test here needs: a directory of its own, free ports, patience, and quiet for those that measure.

use std::sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use tollgate_testkit::{Scratch, free_port, rest, until};

static QUIET: RwLock<()> = RwLock::new(());

/// Tests that run now, and who waits for one of them to end. Clusters share the processors with the servers that they ask: of these
/// tests no more run at once than there are processors, however many threads the tests have.
static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// Held by tests that may run beside others.
pub(crate) struct AmongOthers(#[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'static, ()>);

pub(crate) fn among_others() -> AmongOthers {
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let running = RUNNING.0.lock().unwrap_or_else(PoisonError::into_inner);
    let running = RUNNING.1.wait_while(running, |running| *running >= most);
    *running.unwrap_or_else(PoisonError::into_inner) += 1;
    AmongOthers(QUIET.read().unwrap_or_else(PoisonError::into_inner))
}

impl Drop for AmongOthers {
    fn drop(&mut self) {
        *RUNNING.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        RUNNING.1.notify_one();
    }
}

/// Held by a test that measures time: no other test of this program runs meanwhile.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    QUIET.write().unwrap_or_else(PoisonError::into_inner)
}
