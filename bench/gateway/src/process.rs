//! A program in a process of its own, on one core. Ended when dropped, with whatever it started.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::Failure;

/// How long a program may take to answer its first connection, in tries of 50 ms.
const TRIES: usize = 200;

/// The cores: one for whoever is measured, one for the load and the upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Core {
    Measured = 0,
    Load = 1,
}

/// A running program.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts a program on a core, and waits until it listens.
    pub(crate) fn start(
        program: &Path,
        arguments: &[String],
        core: Core,
        listens: SocketAddr,
    ) -> Result<Self, Failure> {
        let child = Command::new("taskset")
            .args(["-c", &(core as u8).to_string()])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let mut process = Self { child };
        for _ in 0..TRIES {
            if TcpStream::connect(listens).is_ok() {
                return Ok(process);
            }
            if let Some(status) = process.child.try_wait()? {
                return Err(format!("{} ended at once: {status}", program.display()).into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("{} does not listen on {listens}", program.display()).into())
    }

    /// The process and its children.
    fn family(&self) -> Vec<u32> {
        let own = self.child.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|child| child.parse().ok());
        std::iter::once(own).chain(children).collect()
    }

    /// Kilobytes of memory that it takes now, shared pages divided among those who share them.
    pub(crate) fn resident_kib(&self) -> Result<u64, Failure> {
        self.family().iter().try_fold(0, |sum, process| {
            let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
            let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).ok_or("no Pss")?;
            Ok(sum + line.split_whitespace().next().unwrap_or_default().parse::<u64>()?)
        })
    }

    /// Processor time that its threads have taken, as the scheduler counts it, to the nanosecond.
    pub(crate) fn processor(&self) -> Result<Duration, Failure> {
        let mut sum = Duration::ZERO;
        for process in self.family() {
            for task in fs::read_dir(format!("/proc/{process}/task"))? {
                let text = fs::read_to_string(task?.path().join("schedstat"))?;
                sum += Duration::from_nanos(text.split_whitespace().next().unwrap_or_default().parse()?);
            }
        }
        Ok(sum)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // nginx's worker goes on without its master; a master that is still there would start another.
        let children = self.family().split_off(1);
        let _ = self.child.kill();
        for child in children {
            let _ = Command::new("kill").arg(child.to_string()).status();
        }
        let _ = self.child.wait();
    }
}

/// A free address on this machine.
pub(crate) fn free() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
