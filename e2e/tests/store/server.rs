//! One real server, Redis or Valkey, on free loopback ports and in its own directory. It is killed by its process id
//! when its owner is dropped, also after a panic, and by the kernel if the test program itself is killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{FromRedisValue, RedisResult, Value};
use tollgate_testkit::pki::TestCa;

use tollgate_testkit::{Scratch, free_port, until};

/// How long the rig waits for a server's answer. A stopped server gives none.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Another process may take a free port first.
const STARTS_MAX: u32 = 5;

/// Redis or Valkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Redis,
    Valkey,
}

impl Program {
    fn path(self) -> PathBuf {
        match self {
            Program::Redis => PathBuf::from("redis-server"),
            Program::Valkey => tool("valkey-server"),
        }
    }
}

/// A program that `./test` installs for the tests.
pub(crate) fn tool(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/tools/bin").join(name);
    assert!(path.exists(), "{name} is missing: run `./test tools`, which installs it");
    path
}

/// How to start a server.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    program: Program,
    /// Lines of its configuration file.
    lines: Vec<String>,
    tls: bool,
    wrong_clock: bool,
    sentinel: bool,
}

impl Plan {
    pub(crate) fn new(program: Program) -> Self {
        Self { program, lines: Vec::new(), tls: false, wrong_clock: false, sentinel: false }
    }

    /// Adds a line of configuration.
    pub(crate) fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Also listens with TLS, with a certificate of a test CA, and requires client certificates.
    pub(crate) fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// With a clock that [`Server::step_clock`] moves. The allocator of Debian's Redis does not work with libfaketime,
    /// so this is for Valkey.
    pub(crate) fn wrong_clock(mut self) -> Self {
        assert_eq!(self.program, Program::Valkey);
        self.wrong_clock = true;
        self
    }

    pub(crate) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Starts the server. Returns once it answers.
    pub(crate) fn start(self) -> Server {
        for attempt in 1.. {
            let mut server = Server {
                plan: self.clone(),
                port: free_port(),
                tls: self.tls.then(|| (free_port(), TestCa::new("store"))),
                folder: Scratch::in_memory(),
                child: None,
            };
            server.write_files();
            match server.launch() {
                Ok(()) => return server,
                Err(log) if attempt >= STARTS_MAX => panic!("the server does not start: {log}"),
                Err(_) => {}
            }
        }
        unreachable!("the last attempt returns or panics")
    }
}

/// A running server, or one that was killed and may be restarted.
#[derive(Debug)]
pub(crate) struct Server {
    plan: Plan,
    pub(crate) port: u16,
    tls: Option<(u16, TestCa)>,
    folder: Scratch,
    child: Option<Child>,
}

impl Server {
    /// A Redis with default settings.
    pub(crate) fn redis() -> Self {
        Plan::new(Program::Redis).start()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A file in its directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    /// The TLS port, and the files that a client needs: CA, certificate, key.
    pub(crate) fn tls(&self) -> (u16, [String; 3]) {
        let (port, _) = self.tls.as_ref().unwrap();
        (*port, ["authority.pem", "client.pem", "client.key"].map(|name| self.folder.text(name)))
    }

    fn write_files(&self) {
        let mut lines = vec![
            format!("port {}", self.port),
            "bind 127.0.0.1".to_owned(),
            format!("dir \"{}\"", self.folder.text(".")),
            format!("logfile \"{}\"", self.folder.text("log")),
            "daemonize no".to_owned(),
        ];
        if !self.plan.sentinel {
            lines.extend(["save \"\"".to_owned(), "appendonly no".to_owned()]);
            // A replica that was disconnected resynchronises without waiting for the next check.
            lines.push("repl-diskless-sync-delay 0".to_owned());
            lines.push("enable-debug-command yes".to_owned());
        }
        if let Some((port, authority)) = &self.tls {
            let (server, client) = (authority.server(), authority.client());
            self.folder.write("authority.pem", &authority.pem);
            self.folder.write("client.pem", &client.certificate);
            self.folder.write("client.key", &client.key);
            self.folder.write("server.pem", &server.certificate);
            self.folder.write("server.key", &server.key);
            let [ca, certificate, key] =
                ["authority.pem", "server.pem", "server.key"].map(|name| self.folder.text(name));
            lines.push(format!("tls-port {port}"));
            lines.push(format!("tls-ca-cert-file \"{ca}\"\ntls-cert-file \"{certificate}\""));
            lines.push(format!("tls-key-file \"{key}\"\ntls-auth-clients yes"));
        }
        self.folder.write("clock", "+0");
        lines.extend(self.plan.lines.iter().cloned());
        self.folder.write("conf", &(lines.join("\n") + "\n"));
    }

    /// Starts the process. Returns its log if it does not answer.
    fn launch(&mut self) -> Result<(), String> {
        let program = self.plan.program.path();
        // If this program is killed, the kernel kills the server. It does so when the starting thread ends, so a test's
        // own thread starts servers.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&program).arg(self.folder.path("conf"));
        if self.plan.sentinel {
            command.arg("--sentinel");
        }
        if self.plan.wrong_clock {
            command.env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketime.so.1");
            command.env("FAKETIME_TIMESTAMP_FILE", self.folder.path("clock"));
            command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = command.spawn();
        self.child = Some(started.unwrap_or_else(|error| panic!("setpriv cannot be run: {error}")));
        let answers = until("a server answers or ends", || {
            if self.ask::<String>(&["PING"]).is_ok() {
                return Some(true);
            }
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            ended.map(|_| false)
        });
        if answers { Ok(()) } else { Err(self.log()) }
    }

    /// Its log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path("log")).unwrap_or_else(|_| {
            format!("{} wrote nothing; is it installed?", self.plan.program.path().display())
        })
    }

    fn connection(&self) -> RedisResult<redis::Connection> {
        let connection = redis::Client::open(self.url())?.get_connection_with_timeout(TIMEOUT)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        Ok(connection)
    }

    /// Runs a command; returns its answer or the error.
    pub(crate) fn ask<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        command.query(&mut self.connection()?)
    }

    /// Runs a command that must succeed.
    pub(crate) fn tell(&self, words: &[&str]) {
        let answer: RedisResult<Value> = self.ask(words);
        answer.unwrap_or_else(|error| panic!("{words:?} of port {}: {error}", self.port));
    }

    /// A field of INFO, if it exists.
    pub(crate) fn info(&self, field: &str) -> Option<String> {
        let text: String = self.ask(&["INFO", "all"]).ok()?;
        let found = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.map(|value| value.trim().to_owned())
    }

    /// How often a command was called, and how often it failed.
    pub(crate) fn calls(&self, command: &str) -> (u64, u64) {
        let Some(text) = self.info(&format!("cmdstat_{command}")) else { return (0, 0) };
        let number = |name: &str| {
            let found = text.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            found.map_or(0, |value| value.parse().unwrap())
        };
        (number("calls"), number("failed_calls"))
    }

    /// How often it answered with this error, such as NOSCRIPT.
    pub(crate) fn errors(&self, kind: &str) -> u64 {
        let found = self.info(&format!("errorstat_{kind}"));
        found.map_or(0, |text| text.trim_start_matches("count=").parse().unwrap())
    }

    /// Every key and its time to live in milliseconds; −1 means no expiry.
    pub(crate) fn lives(&self) -> Vec<(String, i64)> {
        let mut connection = self.connection().unwrap();
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        let mut lives = Vec::new();
        for key in keys {
            let life: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
            lives.push((key, life));
        }
        // A key that expired between the two commands.
        lives.retain(|(_, life)| *life != -2);
        lives
    }

    /// Moves its clock by this much. Returns once the server reports the new time.
    pub(crate) fn step_clock(&self, seconds: i64) {
        let draft = self.folder.write("clock.draft", &format!("{seconds:+}s\n"));
        std::fs::rename(draft, self.folder.path("clock")).unwrap();
        let wanted = i128::from(seconds) * 1_000_000;
        until("the server's clock has stepped", || {
            let off = i128::from(self.time()) - i128::from(true_time()) - wanted;
            (off.abs() < 1_000_000).then_some(())
        });
    }

    /// The server's time, in microseconds.
    pub(crate) fn time(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.ask(&["TIME"]).unwrap();
        seconds * 1_000_000 + micros
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Kills it, and returns when it is gone.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts it again on the same port.
    pub(crate) fn restart(&mut self) {
        assert!(self.child.is_none());
        self.launch().unwrap_or_else(|log| panic!("the server does not start again: {log}"));
    }
}

/// The wall-clock time, in microseconds.
#[allow(clippy::disallowed_methods, reason = "what a server's clock is compared with")]
fn true_time() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
