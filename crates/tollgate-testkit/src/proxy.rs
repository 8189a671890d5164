//! Other people's programs in front of Tollgate: started on free ports with the very files that `deploy/` has, and ended by
//! their ids. What stands behind them is a server of the test's own.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Not one of those that the system gives to outgoing connections, which may be another's before a program listens on it.
pub use crate::free_port;
use crate::http::Response;

/// Longest that a program may take to listen.
const START_TRIES: u32 = 2_400;
const START_PAUSE: Duration = Duration::from_millis(25);

/// A file of the repository.
pub fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A folder of a test's own, gone when the test is over.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        Self(crate::folder(name))
    }

    /// A file of the repository, with other addresses in it; each must be there.
    pub fn adapt(&self, source: &str, name: &str, replacements: &[(&str, String)]) -> PathBuf {
        let mut text = std::fs::read_to_string(file(source)).unwrap();
        for (old, new) in replacements {
            assert!(text.contains(old), "{source} has no {old}");
            text = text.replace(old, new);
        }
        self.write(name, &text)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program that listens.
pub struct Proxy {
    child: Child,
    pub address: SocketAddr,
}

impl Proxy {
    /// Starts a program, and returns once it takes connections.
    pub fn start(mut command: Command, port: u16) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let missing = format!("{name} cannot be started; `./test tools` installs it");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect(&missing);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut proxy = Self { child, address };
        for _ in 0..START_TRIES {
            if TcpStream::connect(address).is_ok() {
                return proxy;
            }
            assert!(proxy.child.try_wait().unwrap().is_none(), "{name} ended at once");
            #[allow(
                clippy::disallowed_methods,
                reason = "another program is awaited, which does not announce that it is ready"
            )]
            std::thread::sleep(START_PAUSE);
        }
        panic!("{name} does not listen on {address}");
    }

    /// nginx with this inside `http`. All that it writes is in the folder.
    pub fn nginx(folder: &Folder, port: u16, inside: &str) -> Self {
        let place = folder.0.display();
        let main = folder.write(
            "nginx.conf",
            &format!(
                "daemon off; master_process off; pid {place}/nginx.pid; error_log {place}/error.log;
                 events {{ }}
                 http {{
                     log_format line '$request'; access_log {place}/access.log line;
                     client_body_temp_path {place}/body; proxy_temp_path {place}/proxy; fastcgi_temp_path {place}/fastcgi;
                     uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
                     {inside}
                 }}\n"
            ),
        );
        let mut command = Command::new("nginx");
        command.args(["-p", &place.to_string(), "-c", &main.display().to_string()]).stderr(Stdio::null());
        Self::start(command, port)
    }

    /// Sends a request for a path, with these header lines.
    pub fn get(&self, path: &str, headers: &str) -> Response {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n{headers}\r\n"))
    }

    pub fn send(&self, bytes: &str) -> Response {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(bytes.as_bytes()).unwrap();
        Response::read(&mut BufReader::new(&stream))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Asked first: nginx and HAProxy end their workers then.
        let asked = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        if asked.is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// An application: it answers `hello` to everything, and counts.
pub struct App {
    pub port: u16,
    seen: Arc<AtomicUsize>,
}

impl App {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || answer(&stream, &counted));
            }
        });
        Self { port, seen }
    }

    /// How many requests came through.
    pub fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }
}

fn answer(stream: &TcpStream, seen: &AtomicUsize) {
    let mut head = String::new();
    let mut lines = BufReader::new(stream);
    while !head.ends_with("\r\n\r\n") {
        if lines.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    seen.fetch_add(1, Ordering::SeqCst);
    let answer =
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    let _ = (&mut &*stream).write_all(answer);
}
