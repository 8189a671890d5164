//! A real redis-server on a free port, stopped with the test.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) struct Server {
    pub(crate) port: u16,
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    pub(crate) fn with(arguments: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self::at(port, arguments)
    }

    pub(crate) fn at(port: u16, arguments: &[&str]) -> Self {
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.args(["--dir", "/tmp", "--loglevel", "warning"]).args(arguments);
        let child =
            command.stdout(Stdio::null()).spawn().expect("redis-server must be installed for this test");
        let server = Self { port, child };
        server.wait();
        server
    }

    fn wait(&self) {
        for _ in 0..500 {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            #[allow(clippy::disallowed_methods, reason = "another process has no virtual clock")]
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("redis-server did not start on port {}", self.port);
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Runs a command through redis-cli and returns what it printed.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-p", &self.port.to_string()])
            .args(words)
            .output()
            .expect("redis-cli must be installed for this test");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}
