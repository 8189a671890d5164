//! What every test here needs: a directory of its own, free ports, patience, and quiet for those that measure.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// How long to wait between two looks, and how many there are before a test gives up: a minute, since a busy machine takes its time.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOKS_MAX: u32 = 3_000;

/// Ports below those that the system gives to outgoing connections, so that a server that restarts finds its own still free.
const PORTS: std::ops::Range<u32> = 10_000..30_000;

/// A directory that is gone when its owner is.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // In memory where that is possible: a cluster writes its map to the disk at each change, and waits for it.
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory } else { Path::new(env!("CARGO_TARGET_TMPDIR")) };
        let path = place.join(format!("tollgate-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The path of a file here, as an argument.
    pub(crate) fn text(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file here, and tells its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.text(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A port on the loopback that nobody listens on. Test programs that run beside each other start at different places.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let span = PORTS.end - PORTS.start;
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + (std::process::id().wrapping_mul(613).wrapping_add(step)) % span;
        let port = u16::try_from(port).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A moment's rest.
pub(crate) fn rest(time: Duration) {
    #[allow(clippy::disallowed_methods, reason = "other processes have clocks of their own")]
    std::thread::sleep(time);
}

/// Looks until something is so. `what` is told when it never is.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..LOOKS_MAX {
        if let Some(found) = look() {
            return found;
        }
        rest(LOOK_EVERY);
    }
    panic!("it never happened: {what}");
}

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
