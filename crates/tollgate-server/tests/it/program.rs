//! The program as a child process. Each child is ended by its own id when the test is over, however it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// A limit that nobody waits for: what a test counts is not refilled while it runs.
pub(crate) const SLOW_POLICY: &str = "limits: [{name: per-key, by: [api_key], rate: 5/h}]";

/// The program with these arguments, and nothing from the environment of the tests.
pub(crate) fn tollgate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TOLLGATE_") {
            command.env_remove(name);
        }
    }
    command.env_remove("OTEL_EXPORTER_OTLP_ENDPOINT");
    // Each server of a test listens on ports of its own.
    command.env("TOLLGATE_RESP", "127.0.0.1:0");
    // Wires that a test does not name listen on ports that nobody else has.
    command.env("TOLLGATE_GRPC", "127.0.0.1:0");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end with `input` as its standard input.
pub(crate) fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = tollgate(arguments).stdin(Stdio::piped()).spawn().unwrap();
    // A command that does not read its input may have ended before it is written.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A running server.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) grpc: Option<SocketAddr>,
    pub(crate) banner: String,
    stderr: Option<BufReader<ChildStderr>>,
}

impl Server {
    /// Starts a server with a policy, and returns once it listens.
    pub(crate) fn start(policy: &str) -> Self {
        Self::start_with(&["serve", "--http", "127.0.0.1:0", "--policy", "-"], policy)
    }

    pub(crate) fn start_with(arguments: &[&str], policy: &str) -> Self {
        Self::spawn(tollgate(arguments), policy)
    }

    pub(crate) fn spawn(mut command: Command, policy: &str) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(policy.as_bytes()).unwrap();
        let stderr = child.stderr.take().map(BufReader::new);
        let mut banner = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        while !banner.contains("Stop it with") {
            let read = lines.read_line(&mut banner).unwrap();
            if read == 0 {
                let mut errors = String::new();
                let _ = stderr.map(|mut stderr| stderr.read_to_string(&mut errors));
                panic!("the server did not start: {errors}");
            }
        }
        let shown = |wire: &str| banner.lines().find_map(|line| line.trim().strip_prefix(wire));
        let (_, address) = shown("HTTP    http").unwrap().split_once("://").unwrap();
        let address = address.parse().unwrap();
        let grpc = shown("gRPC    ").and_then(|address| address.parse().ok());
        Self { child, address, grpc, banner, stderr }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        stream
    }

    /// The id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to this child.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until the log has a line with `text`.
    pub(crate) fn await_log(&mut self, text: &str) {
        let log = self.stderr.as_mut().unwrap();
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "the log ended without {text:?}");
        }
    }

    /// What else the log says; for a server that has ended, or this waits for its end.
    pub(crate) fn rest_of_log(&mut self) -> String {
        let mut rest = String::new();
        self.stderr.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        rest
    }

    /// What is left of its log.
    pub(crate) fn log(&mut self) -> &mut BufReader<ChildStderr> {
        self.stderr.as_mut().unwrap()
    }

    /// Waits for its end, but not for ever.
    #[allow(clippy::disallowed_methods, reason = "another process has another clock")]
    pub(crate) fn wait_at_most(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() || start.elapsed() > timeout {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
