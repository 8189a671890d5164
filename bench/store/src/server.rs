//! A redis-server in a process of its own, on the first core; the load comes from the second. Ended when dropped.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::Failure;

/// How long it may take to answer its first connection, in tries of 50 ms.
const TRIES: usize = 200;
/// Clock ticks a second in which the kernel tells processor time, the same on every Linux.
const TICKS: f64 = 100.0;

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
            .map_err(|error| format!("redis-server cannot be started: {error}; apt-get install redis-server"))?;
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
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name of the program, which may have spaces, ends with the last bracket; user and system time follow as 12th and 13th.
        let after = stat.rsplit(')').next().unwrap_or_default();
        let fields: Vec<&str> = after.split_whitespace().collect();
        let ticks = |place: usize| fields.get(place).and_then(|text| text.parse::<f64>().ok());
        let (user, system) = (ticks(11), ticks(12));
        user.zip(system).map(|(user, system)| (user + system) / TICKS).ok_or_else(|| "unreadable /proc stat".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
