//! Other processes: where they may listen, and patience with them.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long to wait between two looks, and how many there are before a test gives up: a minute, since a busy machine takes its time.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOKS_MAX: u32 = 3_000;
/// Ports below those that the system gives to outgoing connections, so that a server that restarts finds its own still free. The bus of
/// a Redis Cluster listens 10,000 above, which is a port too.
const PORTS: std::ops::Range<u32> = 10_000..30_000;

/// A port on the loopback that nobody listens on. Test programs that run beside each other start at different places.
pub fn free_port() -> u16 {
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
pub fn rest(time: Duration) {
    #[allow(clippy::disallowed_methods, reason = "other processes have clocks of their own")]
    std::thread::sleep(time);
}

/// Looks until something is so. `what` is told when it never is.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..LOOKS_MAX {
        if let Some(found) = look() {
            return found;
        }
        rest(LOOK_EVERY);
    }
    panic!("it never happened: {what}");
}
