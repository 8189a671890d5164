//! A redis-server in a process of its own, on the first core; the load comes from the second. Ended when dropped.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::Failure;

/// How long it may take to answer its first connection, in tries of 50 ms.
const TRIES: usize = 200;

/// A running server.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts one that keeps nothing on disk.
    pub(crate) async fn start() -> Result<Self, Failure> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let port = address.port().to_string();
        let child = Command::new("taskset")
            .args(["-c", "0", "redis-server", "--port", &port, "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                format!("redis-server cannot be started: {error}; apt-get install redis-server")
            })?;
        let server = Self { child, address };
        for _ in 0..TRIES {
            if TcpStream::connect(address).await.is_ok() {
                return Ok(server);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(format!("redis-server does not listen on {address}").into())
    }

    /// Seconds of processor time that it has taken.
    pub(crate) fn processor_seconds(&self) -> Result<f64, Failure> {
        processor_seconds(&self.child.id().to_string())
    }
}

/// Seconds of processor time of a process, by its id or `self`.
pub(crate) fn processor_seconds(process: &str) -> Result<f64, Failure> {
    let text = std::fs::read_to_string(format!("/proc/{process}/schedstat"))?;
    let nanos: Option<f64> = text.split_whitespace().next().and_then(|first| first.parse().ok());
    nanos.map(|nanos| nanos / 1e9).ok_or_else(|| "unreadable /proc schedstat".into())
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
