//! An upstream that can be overloaded: a process of its own with so many workers, and a hidden queue. The process is this
//! binary, which runs [`an_upstream_has_so_many_workers`] with a word in its environment.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const WORD: &str = "BUSY_UPSTREAM_WORKERS";
const NAME: &str = "busy::an_upstream_has_so_many_workers";
/// How long a worker takes for a request.
pub(crate) const SERVICE_MILLIS: u64 = 20;
const SERVICE: Duration = Duration::from_millis(SERVICE_MILLIS);

/// The process.
pub(crate) struct Busy {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Busy {
    pub(crate) fn start(workers: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(WORD, workers.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let reported =
            lines.map(Result::unwrap).find_map(|line| Some(line.split_once("busy at ")?.1.to_owned()));
        Self { child, address: reported.expect("the upstream tells its address").parse().unwrap() }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until its parent process has ended.
fn serve(workers: usize) {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // Past the harness, which would keep it.
        let reported = format!("\nbusy at {}\n", listener.local_addr().unwrap());
        std::io::stdout().write_all(reported.as_bytes()).unwrap();
        let workers = Arc::new(Semaphore::new(workers));
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(connection(stream, Arc::clone(&workers)));
        }
    });
}

async fn connection(mut stream: TcpStream, workers: Arc<Semaphore>) {
    let mut head = Vec::new();
    loop {
        let mut part = [0; 4_096];
        match stream.read(&mut part).await {
            Ok(read) if read > 0 => head.extend_from_slice(&part[..read]),
            _ => return,
        }
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            // A request of a client that has gone is served all the same, as by most servers.
            let worker = workers.acquire().await.unwrap();
            tokio::time::sleep(SERVICE).await;
            drop(worker);
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.is_err() {
                return;
            }
        }
    }
}

/// The status of one request on a connection of its own, or one that is kept.
pub(crate) async fn ask(stream: &mut TcpStream, request: &str) -> std::io::Result<u16> {
    stream.write_all(request.as_bytes()).await?;
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            if length.is_some_and(|length| body.len() >= length.trim().parse().unwrap()) {
                return Ok(head[9..12].parse().unwrap());
            }
        }
        let mut part = [0; 4_096];
        match stream.read(&mut part).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => read.extend_from_slice(&part[..count]),
        }
    }
}

/// The other tests rely on this: with two workers a dozen requests at once take at least six turns, however quick the machine is.
#[test]
#[allow(clippy::disallowed_methods, reason = "another process has another clock")]
fn an_upstream_has_so_many_workers() {
    if let Ok(workers) = std::env::var(WORD) {
        return serve(workers.parse().unwrap());
    }
    let busy = Busy::start(2);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let began = Instant::now();
    runtime.block_on(async {
        let address = busy.address;
        let asked = (0..12).map(|_| {
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                ask(&mut stream, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap()
            })
        });
        for asked in asked.collect::<Vec<_>>() {
            assert_eq!(asked.await.unwrap(), 200);
        }
    });
    assert!(began.elapsed() >= SERVICE * 6);
}
