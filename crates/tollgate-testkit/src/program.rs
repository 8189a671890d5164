//! The program as a child process. Each child is ended by its own id when the test is over, however it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// A limit that refills so slowly that a test sees no unit return.
pub const SLOW_POLICY: &str = "limits: [{name: per-key, by: [api_key], rate: 5/h}]";

/// Where Cargo has built the program: beside the directory of the test's own executable.
pub fn executable() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(Path::parent).unwrap().join("tollgate");
    assert!(
        built.is_file(),
        "{} is missing; build it with `cargo build -p tollgate-server`",
        built.display()
    );
    built
}

/// The program with these arguments, and nothing from the environment of the tests.
pub fn tollgate(arguments: &[&str]) -> Command {
    let mut command = Command::new(executable());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TOLLGATE_") {
            command.env_remove(name);
        }
    }
    command.env_remove("OTEL_EXPORTER_OTLP_ENDPOINT");
    // No command finds a server of another test, unless a test sets a directory of its own.
    command.env("XDG_RUNTIME_DIR", "/nonexistent").env("TMPDIR", "/nonexistent");
    // Each server of a test listens on ports of its own.
    command.env("TOLLGATE_RESP", "127.0.0.1:0");
    // Protocols that a test does not name listen on free ports.
    command.env("TOLLGATE_GRPC", "127.0.0.1:0");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end with `input` as its standard input.
pub fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = tollgate(arguments).stdin(Stdio::piped()).spawn().unwrap();
    // A command that does not read its input may have ended before it is written.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A running server.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub grpc: Option<SocketAddr>,
    pub banner: String,
    stderr: Option<BufReader<ChildStderr>>,
}

impl Server {
    /// Starts a server with a policy, and returns once it listens.
    pub fn start(policy: &str) -> Self {
        Self::start_with(&["serve", "--http", "127.0.0.1:0", "--policy", "-"], policy)
    }

    pub fn start_with(arguments: &[&str], policy: &str) -> Self {
        Self::spawn(tollgate(arguments), policy)
    }

    pub fn spawn(mut command: Command, policy: &str) -> Self {
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
        let shown = |label: &str| banner.lines().find_map(|line| line.trim().strip_prefix(label));
        let (_, address) = shown("HTTP    http").unwrap().split_once("://").unwrap();
        let address = address.parse().unwrap();
        let grpc = shown("gRPC    ").and_then(|address| address.parse().ok());
        Self { child, address, grpc, banner, stderr }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        stream
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to this child.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until the log has a line with `text`.
    pub fn await_log(&mut self, text: &str) {
        let log = self.stderr.as_mut().unwrap();
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "the log ended without {text:?}");
        }
    }

    /// The rest of the log; for a server that has ended, or this waits for its end.
    pub fn rest_of_log(&mut self) -> String {
        let mut rest = String::new();
        self.stderr.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        rest
    }

    /// The rest of its log.
    pub fn log(&mut self) -> &mut BufReader<ChildStderr> {
        self.stderr.as_mut().unwrap()
    }

    /// Waits for its end, but not for ever.
    #[allow(clippy::disallowed_methods, reason = "another process has another clock")]
    pub fn wait_at_most(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() || start.elapsed() > limit {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
