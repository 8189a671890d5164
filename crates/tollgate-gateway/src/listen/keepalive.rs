//! Detects peers that are gone without closing, such as a machine that lost its power or its network, by TCP keep-alive
//! probes. docs/gateway-clients.md promises the time.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// How long a connection may be silent before the first probe.
const ASKED_AFTER: Duration = Duration::from_secs(30);
/// Interval of the probes, and how many may stay unanswered.
const ASKED_EVERY: Duration = Duration::from_secs(10);
const QUESTIONS: u32 = 3;
/// How long a peer may leave sent data unacknowledged, or accept none of it. No probes are sent meanwhile.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(60);

/// Maximum bytes that the system buffers ahead of what it can send. Beyond that a write waits, and so shows how fast
/// the peer reads. A system that buffers megabytes hides a slow reader for minutes.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 64 << 10;

/// Enables keep-alive probes. Connections inherit this from their listener.
///
/// # Errors
/// When the system does not support it. Then a peer counts as gone only when it closes its connection.
pub fn ask_when_silent(socket: SockRef<'_>) -> io::Result<()> {
    let asked = TcpKeepalive::new().with_time(ASKED_AFTER).with_interval(ASKED_EVERY).with_retries(QUESTIONS);
    socket.set_tcp_keepalive(&asked)
}

/// Enables the probes, and ends a connection whose peer acknowledges nothing. Not for an upstream that may take its
/// time to read a body.
///
/// # Errors
/// As [`ask_when_silent`].
pub fn end_when_deaf(socket: SockRef<'_>) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    ask_when_silent(socket)
}

/// Makes writes wait for a peer that reads slowly, so that its rate can be measured. Connections inherit this, too.
///
/// # Errors
/// When the system does not support it. Then a slow reader may be taken for one that does not read.
pub fn show_pace(socket: SockRef<'_>) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
    Ok(())
}
