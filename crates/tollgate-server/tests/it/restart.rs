//! Restarts of the real program: what was counted is still counted, whatever ended the process, and a disk that fails costs
//! neither a decision nor the last good snapshot.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use crate::program::{Server, run, stderr, tollgate};

/// A month's quota: too long to wait for.
const POLICY: &str =
    "limits: [{name: monthly, by: [api_key], rate: 1000/month, algorithm: fixed-window, align: first-hit}]";

/// The path of a directory of the test's own, which is not there yet, removed when it is over.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        Self(tollgate_testkit::folder(name).join("state"))
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn snapshot(&self) -> PathBuf {
        self.0.join("counters.snapshot")
    }

    /// When the snapshot was last replaced.
    fn written_at(&self) -> Option<SystemTime> {
        fs::metadata(self.snapshot()).and_then(|metadata| metadata.modified()).ok()
    }

    /// Waits until a snapshot is there that was begun after this call: the second one from now on.
    pub(crate) fn await_snapshot(&self) {
        for _ in 0..2 {
            let before = self.written_at();
            await_until(|| self.written_at() != before && self.written_at().is_some());
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = self.0.parent().map(fs::remove_dir_all);
    }
}

/// Waits for something that another process does.
#[allow(clippy::disallowed_methods, reason = "another process has another clock")]
pub(crate) fn await_until(is_done: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_done() {
        assert!(start.elapsed() < Duration::from_secs(30), "it does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a server that keeps its state in a directory.
pub(crate) fn start(scratch: &Scratch, every: &str, policy: &str) -> Server {
    let arguments = [
        "serve",
        "--http",
        "127.0.0.1:0",
        "--policy",
        "-",
        "--state-dir",
        scratch.path(),
        "--snapshot-every",
        every,
    ];
    Server::start_with(&arguments, policy)
}

fn charge(server: &Server, key: &str, cost: u64) -> bool {
    let answer = server.check(&format!(r#"{{"attributes":{{"api_key":"{key}"}},"cost":{cost}}}"#));
    answer["allowed"].as_bool().unwrap()
}

/// A server that stops and starts again has forgotten nothing: a month's quota stays used, also under another policy, and
/// a place in flight stays taken.
#[test]
fn a_stop_forgets_nothing() {
    let scratch = Scratch::new("stop");
    let policy = |units: u64| {
        format!(
            "limits: [{{name: monthly, by: [api_key], rate: {units}/month}}, {{name: in-flight, by: [tenant], concurrency: 1}}]"
        )
    };
    let mut server = start(&scratch, "off", &policy(1_000));
    assert!(server.banner.contains("counters start empty"), "{}", server.banner);
    assert!(charge(&server, "k", 990));
    let in_flight = r#"{"attributes":{"tenant":"acme"}}"#;
    assert_eq!(server.check(in_flight)["allowed"], true);
    assert!(!scratch.snapshot().exists(), "off means only at the end");
    for signal in ["-TERM", "-INT"] {
        server.signal(signal);
        server.await_log("counters are on disk");
        assert_eq!(server.wait().code(), Some(0));
        server = start(&scratch, "off", &policy(1_000));
        assert!(server.banner.contains("state   counters restored: 2 ("), "{}", server.banner);
        assert_eq!(server.remaining("k"), 10, "after {signal}");
        assert_eq!(server.check(in_flight)["allowed"], false, "after {signal}");
    }
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
    let server = start(&scratch, "off", &policy(500));
    assert_eq!(server.remaining("k"), 10, "what was left is left, under a smaller quota, too");
    assert!(!charge(&server, "k", 11));
}

/// Killed without warning, the server forgets at most what it admitted since the last snapshot.
#[test]
fn a_crash_loses_counts_after_the_last_snapshot() {
    let scratch = Scratch::new("crash");
    let mut server = start(&scratch, "100ms", POLICY);
    let mut certain = 0;
    for round in 1..=3 {
        assert!(charge(&server, "k", 100));
        certain += 100;
        scratch.await_snapshot();
        let mut hasty = 0;
        while hasty < 50 {
            assert!(charge(&server, "k", 1));
            hasty += 1;
        }
        server.signal("-KILL");
        assert!(server.wait().code().is_none());
        server = start(&scratch, "100ms", POLICY);
        let used = 1_000 - server.remaining("k");
        assert!(
            (certain..=certain + hasty).contains(&used),
            "round {round}: {used} of {certain} and {hasty}"
        );
        certain = used;
    }
}

/// A damaged snapshot is reported and set aside; the server starts with empty counters, and writes good ones again.
#[test]
fn a_damaged_snapshot_is_set_aside() {
    let scratch = Scratch::new("damaged");
    let mut server = start(&scratch, "off", POLICY);
    assert!(charge(&server, "k", 7));
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
    let mut bytes = fs::read(scratch.snapshot()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(scratch.snapshot(), &bytes).unwrap();

    let mut server = start(&scratch, "off", POLICY);
    for expected in ["warning: the snapshot is damaged near byte", "counters.snapshot.bad-1", "EMPTY"] {
        assert!(server.banner.contains(expected), "{expected:?} is not in {}", server.banner);
    }
    server.await_log("the snapshot is damaged");
    assert_eq!(fs::read(scratch.0.join("counters.snapshot.bad-1")).unwrap(), bytes);
    assert_eq!(server.remaining("k"), 1_000);
    assert!(charge(&server, "k", 1));
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(start(&scratch, "off", POLICY).remaining("k"), 999);
}

/// A disk that takes nothing: the fault is observed in the log, decisions go on, and the server still ends well.
#[test]
fn a_full_disk_costs_no_decision() {
    let scratch = Scratch::new("full");
    let program = tollgate(&[]).get_program().to_str().unwrap().to_owned();
    let mut command = Command::new("sh");
    // No file may have any content, and the signal that comes with that is ignored: every write fails, as on a full disk.
    let script = r#"trap "" XFSZ; ulimit -f 0; exec "$0" "$@""#;
    command.args([
        "-c",
        script,
        &program,
        "serve",
        "--http",
        "127.0.0.1:0",
        "--resp",
        "off",
        "--policy",
        "-",
    ]);
    command.args(["--state-dir", scratch.path(), "--snapshot-every", "100ms"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut server = Server::spawn(command, POLICY);
    for remaining in [999, 998] {
        server.await_log("a snapshot could not be written; decisions go on");
        assert!(charge(&server, "k", 1));
        assert_eq!(server.remaining("k"), remaining);
    }
    assert!(!scratch.snapshot().exists());
    assert!(!scratch.0.join("counters.snapshot.tmp").exists(), "half a snapshot was left on a full disk");
    server.signal("-TERM");
    server.await_log("stopped");
    assert_eq!(server.wait().code(), Some(0));
}

/// `docs/restarts.md` is true: its command starts a server, and the second time the banner says what it
/// shows.
#[test]
fn the_guide_to_restarts_is_true() {
    let guide = include_str!("../../../../docs/restarts.md");
    let block = |language: &str| {
        let (_, rest) = guide.split_once(&format!("```{language}\n")).expect("it has such a block");
        rest.split_once("```").expect("it ends").0.trim().to_owned()
    };
    let scratch = Scratch::new("guide");
    let command = block("bash").replace("/var/lib/tollgate", scratch.path()).replace("policy.yaml", "-");
    let mut words = command.split_whitespace();
    assert_eq!(words.next(), Some("tollgate"));
    let arguments: Vec<&str> = words.chain(["--http", "127.0.0.1:0"]).collect();
    let mut server = Server::start_with(&arguments, POLICY);
    assert!(charge(&server, "k", 1) && charge(&server, "l", 1));
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
    let server = Server::start_with(&arguments, POLICY);
    let shown = block("console");
    let (shown, _) = shown.split_once(" (").expect("it shows an age");
    assert!(server.banner.contains(shown), "{shown:?} is not in {}", server.banner);
}

/// Two servers in one directory would overwrite each other's counters; directories that cannot be are refused as well.
#[test]
fn directories_that_are_refused() {
    let scratch = Scratch::new("shared");
    let _first = start(&scratch, "off", POLICY);
    let serve = |directory: &str, every: &str| {
        run(&["serve", "--http", "127.0.0.1:0", "--state-dir", directory, "--snapshot-every", every], b"")
    };
    let second = serve(scratch.path(), "off");
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains("is used by another Tollgate"), "{}", stderr(&second));
    let impossible = serve("/dev/null/state", "off");
    assert_eq!(impossible.status.code(), Some(1));
    assert!(
        stderr(&impossible).contains("name a directory that this user can write to"),
        "{}",
        stderr(&impossible)
    );
    let never = serve(scratch.path(), "never");
    assert_eq!(never.status.code(), Some(2));
    assert!(stderr(&never).contains("accepted: off, or 100ms to 24h"), "{}", stderr(&never));
}
