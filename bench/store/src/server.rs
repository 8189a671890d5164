//! A redis-server in a process of its own, on the first core; the load comes from the second. Ended when dropped.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::Failure;

/// How long it may take to answer its first connection, in tries of 50 ms.
const TRIES: usize = 200;

/// Primaries of the cluster.
const SHARDS: usize = 3;

/// A running server.
struct Server {
    child: Child,
    address: SocketAddr,
}

/// One server, or several that are a cluster of primaries without replicas, all on the first core.
pub struct Servers(Vec<Server>);

impl Servers {
    /// One by itself.
    ///
    /// # Errors
    /// It does not start.
    pub async fn one() -> Result<Self, Failure> {
        Ok(Self(vec![Server::start("0", &[]).await?]))
    }

    /// One by itself, on whatever core is free.
    ///
    /// # Errors
    /// It does not start.
    pub async fn beside() -> Result<Self, Failure> {
        Ok(Self(vec![Server::start("0-1", &[]).await?]))
    }

    /// Three with a third of the slots each.
    ///
    /// # Errors
    /// It does not start.
    pub async fn cluster() -> Result<Self, Failure> {
        let mut servers = Vec::new();
        for _ in 0..SHARDS {
            let bus = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
            servers.push(Server::start("0", &["--cluster-enabled", "yes", "--cluster-port", &bus]).await?);
        }
        let mut command = Command::new("redis-cli");
        command.args(["--cluster", "create"]).args(servers.iter().map(|server| server.address.to_string()));
        let output = command.args(["--cluster-replicas", "0", "--cluster-yes"]).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            return Err(format!("redis-cli does not make a cluster: {said}").into());
        }
        Ok(Self(servers))
    }

    /// Where they are.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|server| server.address).collect()
    }

    /// Seconds of processor time that all of them have taken.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn processor_seconds(&self) -> Result<f64, Failure> {
        self.0.iter().map(|server| processor_seconds(&server.child.id().to_string())).sum()
    }
}

impl Server {
    /// Starts one that keeps nothing on disk.
    async fn start(cores: &str, extra: &[&str]) -> Result<Self, Failure> {
        let directory = std::env::temp_dir().join(format!("tollgate-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let port = address.port().to_string();
        let child = Command::new("taskset")
            .args(["-c", cores, "redis-server", "--port", &port, "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"])
            .args(["--cluster-config-file", &format!("nodes-{port}.conf")])
            .args(extra)
            .current_dir(directory)
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
}

/// Seconds of processor time of a process, by its id or `self`.
///
/// # Errors
/// The kernel does not tell.
pub fn processor_seconds(process: &str) -> Result<f64, Failure> {
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
