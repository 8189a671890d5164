//! The real Envoy in front of a real upstream, with the very configuration of `deploy/envoy` and the commands of
//! `docs/envoy.md`.

#![allow(
    clippy::disallowed_methods,
    reason = "Envoy is a program of its own: it starts, and comes back, in real time, and does not announce it"
)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::program::Server;
use crate::raw_http::Response;

const CONFIGURATION: &str = include_str!("../../../deploy/envoy/envoy.yaml");
const POLICY: &str = include_str!("../../../deploy/envoy/policy.yaml");
const GUIDE: &str = include_str!("../../../docs/envoy.md");
/// How long anything may take on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers every request, and counts them.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    served: Arc<AtomicU64>,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, served) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
        let count = Arc::clone(&served);
        // Ends with the process: nothing but Envoy, which ends first, ever connects.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let count = Arc::clone(&count);
                std::thread::spawn(move || serve(&stream, &count));
            }
        });
        Self { address, served }
    }

    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::SeqCst)
    }
}

/// The requests of one connection; none of them has a body.
fn serve(mut stream: &TcpStream, count: &AtomicU64) {
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(line)) = lines.next() {
        if line.is_empty() {
            count.fetch_add(1, Ordering::SeqCst);
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    }
}

/// Envoy as a child process, with a folder for what it writes.
pub(crate) struct Envoy {
    child: Child,
    pub(crate) address: SocketAddr,
    folder: PathBuf,
}

impl Envoy {
    /// Starts Envoy by the configuration of the guide, with the test's own addresses and `changes` in it.
    fn start(upstream: SocketAddr, tollgate: SocketAddr, changes: &[(&str, &str)]) -> Self {
        // What is tested is who decides, not how fast a busy machine is.
        let changes: Vec<(&str, &str)> =
            [("timeout: 0.05s ", "timeout: 20s ")].into_iter().chain(changes.iter().copied()).collect();
        Self::start_with(CONFIGURATION, upstream, tollgate, &changes)
    }

    /// The same by any configuration with the usual addresses.
    pub(crate) fn start_with(
        configuration: &str,
        upstream: SocketAddr,
        tollgate: SocketAddr,
        changes: &[(&str, &str)],
    ) -> Self {
        let mut configuration = configuration.to_owned();
        let mut change = |from: &str, to: &str| {
            assert_eq!(configuration.matches(from).count(), 1, "{from} is once in the configuration");
            configuration = configuration.replace(from, to);
        };
        change("port_value: 10000", "port_value: 0");
        change("port_value: 9000", &format!("port_value: {}", upstream.port()));
        change("port_value: 8081", &format!("port_value: {}", tollgate.port()));
        changes.iter().for_each(|(from, to)| change(from, to));
        configuration
            .push_str("admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }\n");

        let folder = tollgate_testkit::folder("envoy");
        let (file, admin) = (folder.join("envoy.yaml"), folder.join("admin"));
        fs::write(&file, configuration).unwrap();
        let log = fs::File::create(folder.join("log")).unwrap();
        let child = Command::new(program())
            .args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning", "-c"])
            .arg(&file)
            .arg("--admin-address-path")
            .arg(&admin)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut envoy = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), folder };
        envoy.address = envoy.listener(&admin);
        envoy
    }

    /// Where it listens, which its administration tells once it does.
    fn listener(&mut self, admin: &Path) -> SocketAddr {
        let begun = Instant::now();
        loop {
            assert!(self.child.try_wait().unwrap().is_none(), "Envoy ended: {}", self.log());
            assert!(begun.elapsed() < PATIENCE, "Envoy does not start: {}", self.log());
            let address = fs::read_to_string(admin).ok().and_then(|address| address.parse().ok());
            let reported = address.and_then(listeners).unwrap_or_default();
            let line = reported.lines().find_map(|line| line.strip_prefix("ingress::"));
            if let Some(address) = line.and_then(|line| line.parse::<SocketAddr>().ok())
                && address.port() != 0
            {
                return address;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    pub(crate) fn get(&self, path: &str, headers: &str) -> Response {
        try_get(self.address, path, headers)
            .unwrap_or_else(|| panic!("Envoy does not answer: {}", self.log()))
    }

    /// The statuses of so many requests with an API key.
    fn statuses(&self, key: &str, requests: usize) -> Vec<u16> {
        let header = format!("X-API-Key: {key}\r\n");
        (0..requests).map(|_| self.get("/", &header).status).collect()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The Envoy that `./test tools` installs.
pub(crate) fn program() -> PathBuf {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/tools/bin/envoy");
    assert!(program.exists(), "there is no Envoy at {}; run `./test tools`", program.display());
    program
}

/// The answer of Envoy's administration about its listeners, with the head and the chunks that it comes in.
fn listeners(admin: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(admin).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /listeners HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn try_get(address: SocketAddr, path: &str, headers: &str) -> Option<Response> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n");
    (&stream).write_all(request.as_bytes()).ok()?;
    let mut answer = BufReader::new(&stream);
    answer.fill_buf().ok().filter(|bytes| !bytes.is_empty())?;
    Some(Response::read(&mut answer))
}

/// Of N + k requests exactly N reach the upstream, for each key, and the limit of the path holds beside that of the key.
#[test]
fn limits_hold_to_the_request() {
    let (upstream, tollgate) = (Upstream::start(), Server::start(POLICY));
    let envoy = Envoy::start(upstream.address, tollgate.grpc.unwrap(), &[]);
    assert_eq!(envoy.statuses("k1", 9), [200, 200, 200, 200, 200, 429, 429, 429, 429]);
    assert_eq!(upstream.served(), 5);
    assert_eq!(envoy.statuses("k2", 6), [200, 200, 200, 200, 200, 429]);
    assert_eq!(upstream.served(), 10);
    let reports: Vec<u16> =
        (0..3).map(|_| envoy.get("/reports?of=today", "X-API-Key: k3\r\n").status).collect();
    assert_eq!(reports, [200, 200, 429]);
    // What the path's limit denied cost the key nothing.
    assert_eq!(envoy.statuses("k3", 4), [200, 200, 200, 429]);
    // Without a key there is only the address to count by.
    assert_eq!(envoy.get("/", "").status, 200);
    assert_eq!(upstream.served(), 16);
}

/// Envoy's own headers are made of our statuses; ours come along; and there is one of each.
#[test]
fn headers_arrive() {
    let (upstream, tollgate) = (Upstream::start(), Server::start(POLICY));
    let envoy = Envoy::start(upstream.address, tollgate.grpc.unwrap(), &[]);
    let passed = envoy.get("/", "X-API-Key: k1\r\n");
    assert_eq!(passed.status, 200);
    assert_eq!(
        passed.header("x-ratelimit-limit"),
        Some("5, 5;w=3600;name=\"per-key\", 1000;w=3600;name=\"per-address\"")
    );
    assert_eq!(passed.header("x-ratelimit-remaining"), Some("4"));
    assert_eq!(passed.header("x-ratelimit-reset"), Some("720"));
    let policies = passed.header("ratelimit-policy").unwrap();
    assert!(policies.contains("\"per-key\";q=5;w=3600"), "{policies}");
    assert_eq!(passed.header("retry-after"), None);

    assert_eq!(envoy.statuses("k1", 4), [200; 4]);
    let denied = envoy.get("/", "X-API-Key: k1\r\n");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    let retry: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((600..=800).contains(&retry), "{retry}");
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    for response in [&passed, &denied] {
        let mut names: Vec<&String> = response.headers.iter().map(|(name, _)| name).collect();
        names.sort();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "{:?}", response.headers);
    }
}

/// A limit in shadow is far exceeded, and everybody passes.
#[test]
fn shadow_limits_pass() {
    let policy = "domain: api\nlimits: [{name: considered, by: [api_key], rate: 1/h, mode: shadow}]";
    let (upstream, tollgate) = (Upstream::start(), Server::start(policy));
    let envoy = Envoy::start(upstream.address, tollgate.grpc.unwrap(), &[]);
    assert_eq!(envoy.statuses("k1", 6), [200; 6]);
    let seen = envoy.get("/", "X-API-Key: k1\r\n");
    assert_eq!(seen.header("x-ratelimit-limit"), Some("1, 1;w=3600;name=\"considered\""));
    assert_eq!(seen.header("x-ratelimit-remaining"), Some("0"));
}

/// Envoy sends us headers that are not UTF-8 as they are, which no protobuf library reads, and would let the request pass if
/// that were an error. So a client that sends one is refused.
#[test]
fn odd_bytes_open_nothing() {
    let policy = "domain: api\nlimits: [{name: per-key, by: [api_key], rate: 2/h}]";
    let (upstream, tollgate) = (Upstream::start(), Server::start(policy));
    let envoy = Envoy::start(upstream.address, tollgate.grpc.unwrap(), &[]);
    for _ in 0..3 {
        let stream = TcpStream::connect(envoy.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\nX-API-Key: \xff\xfe\r\n\r\n";
        (&stream).write_all(request).unwrap();
        assert_eq!(Response::read(&mut BufReader::new(&stream)).status, 429);
    }
    // Nor does one that is longer than a key may be.
    let long = format!("X-API-Key: {}\r\n", "x".repeat(5_000));
    assert_eq!(envoy.get("/", &long).status, 429);
    assert_eq!(upstream.served(), 0);
    assert_eq!(envoy.statuses("plain", 3), [200, 200, 429]);
}

/// Without Tollgate Envoy does what its own configuration says, and once Tollgate is back it is asked again.
#[test]
fn a_killed_tollgate_leaves_the_choice_to_envoy() {
    for (deny, without) in [("false", 200), ("true", 500)] {
        let (upstream, tollgate) = (Upstream::start(), Server::start(POLICY));
        let address = tollgate.grpc.unwrap();
        let mode = format!("failure_mode_deny: {deny} ");
        let envoy = Envoy::start(upstream.address, address, &[("failure_mode_deny: false ", &mode)]);
        assert_eq!(envoy.statuses("k1", 6), [200, 200, 200, 200, 200, 429]);

        drop(tollgate); // Killed, not asked to stop.
        assert_eq!(envoy.statuses("k1", 8), [without; 8]);
        assert_eq!(envoy.get("/", "X-API-Key: k1\r\n").header("x-ratelimit-limit"), None);

        let address = address.to_string();
        let arguments = ["serve", "--http", "127.0.0.1:0", "--grpc", &address, "--policy", "-"];
        let _restarted = Server::start_with(&arguments, POLICY);
        let begun = Instant::now();
        while envoy.get("/", "X-API-Key: probe\r\n").header("x-ratelimit-limit").is_none() {
            assert!(begun.elapsed() < PATIENCE, "Envoy never asked again: {}", envoy.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(envoy.statuses("k1", 6), [200, 200, 200, 200, 200, 429]);
    }
}

/// The commands of the guide, run in order, print what the guide shows.
#[test]
fn the_guide_is_true() {
    let (upstream, tollgate) = (Upstream::start(), Server::start(POLICY));
    let envoy = Envoy::start(upstream.address, tollgate.grpc.unwrap(), &[]);
    let mut lines = GUIDE.lines();
    let mut blocks: Vec<(&str, String)> = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let inside: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push((language, inside.join("\n")));
        }
    }
    let yaml: Vec<&String> =
        blocks.iter().filter(|(kind, _)| *kind == "yaml").map(|(_, text)| text).collect();
    assert_eq!(yaml[0].trim(), POLICY.trim(), "the guide shows the policy of the recipe");
    let mut compared = 0;
    for pair in blocks.windows(2) {
        let [(kind, commands), (shown_kind, shown)] = pair else { continue };
        if (*kind, *shown_kind) != ("sh", "text") {
            continue;
        }
        let commands = commands.replace("127.0.0.1:10000", &envoy.address.to_string());
        let output = Command::new("sh").args(["-euc", &commands]).output().unwrap();
        assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8(output.stdout).unwrap().replace('\r', "");
        assert_eq!(printed.trim(), shown.trim(), "{commands}");
        compared += 1;
    }
    assert!(compared >= 3, "only {compared} outputs were compared");
}
