//! Ports for other processes, and waiting for them.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The pause between two polls.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// Polls before a test fails: a minute, because a busy machine is slow.
const POLLS_MAX: u32 = 3_000;
/// Ports below the ephemeral range, so that a server that restarts finds its port still free. The bus of a Redis Cluster
/// listens 10,000 ports above.
const PORTS: std::ops::Range<u32> = 10_000..30_000;

/// A free port on the loopback address. Test programs that run at the same time start from different ports.
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

/// Sleeps in real time, for other processes.
pub fn rest(time: Duration) {
    #[allow(clippy::disallowed_methods, reason = "other processes have clocks of their own")]
    std::thread::sleep(time);
}

/// Polls until the closure returns a value. Panics with `what` after a minute.
pub fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    for _ in 0..POLLS_MAX {
        if let Some(found) = poll() {
            return found;
        }
        rest(POLL_EVERY);
    }
    panic!("it never happened: {what}");
}
