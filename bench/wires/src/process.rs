//! A service in a process of its own, on the first core; the load comes from the second. Ended when dropped.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::Failure;

/// How long a service may take to answer its first connection, in tries of 50 ms.
const TRIES: usize = 200;

/// A running service.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts a program on the first core, and waits until it listens on all these addresses.
    pub(crate) async fn start(
        program: &Path,
        arguments: &[String],
        listens: &[SocketAddr],
    ) -> Result<Self, Failure> {
        let child = Command::new("taskset")
            .args(["-c", "0"])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let mut process = Self { child };
        for address in listens {
            process.reached(*address, program).await?;
        }
        Ok(process)
    }

    async fn reached(&mut self, address: SocketAddr, program: &Path) -> Result<(), Failure> {
        for _ in 0..TRIES {
            if TcpStream::connect(address).await.is_ok() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("{} ended at once: {status}", program.display()).into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(format!("{} does not listen on {address}", program.display()).into())
    }

    /// Kilobytes of memory that it takes now.
    pub(crate) fn resident_kib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A free address on this machine.
pub(crate) fn free() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
