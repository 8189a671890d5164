//! A fake Redis that replies as a test wants, including replies that a real one rarely sends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// What the fake does with a command.
pub(crate) enum Does {
    /// Sends these bytes.
    Says(String),
    /// Never answers this command, nor any after it.
    Hangs,
    /// Closes the connection.
    Closes,
}

pub(crate) type Words = Vec<String>;
type Part = dyn Fn(&Words) -> Does + Send + Sync;

/// A fake and the commands it received.
pub(crate) struct Fake {
    pub(crate) port: u16,
    heard: Arc<Mutex<Vec<Words>>>,
    /// Whether it ignores everything it receives, heartbeats included.
    is_deaf: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    /// Starts a fake. The test's function replies to script calls and cluster commands; the fake replies to the others.
    pub(crate) async fn playing(part: impl Fn(&Words) -> Does + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard: Arc<Mutex<Vec<Words>>> = Arc::default();
        let (part, log): (Arc<Part>, _) = (Arc::new(part), Arc::clone(&heard));
        let is_deaf: Arc<AtomicBool> = Arc::default();
        let deaf = Arc::clone(&is_deaf);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let deaf = Arc::clone(&deaf);
                connections.spawn(converse(stream, Arc::clone(&part), Arc::clone(&log), deaf));
            }
        });
        Self { port, heard, is_deaf, task: task.abort_handle() }
    }

    /// Ignores everything from now on, on all connections; or replies again on new ones.
    pub(crate) fn deafen(&self, is_deaf: bool) {
        self.is_deaf.store(is_deaf, Ordering::Relaxed);
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The received commands with this name.
    pub(crate) fn heard(&self, first: &str) -> Vec<Words> {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|words| words[0].eq_ignore_ascii_case(first)).cloned().collect()
    }
}

async fn converse(
    mut stream: TcpStream,
    part: Arc<Part>,
    log: Arc<Mutex<Vec<Words>>>,
    is_deaf: Arc<AtomicBool>,
) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = Vec::new();
    loop {
        while let Some((words, used)) = parse(&buffer) {
            buffer.drain(..used);
            log.lock().unwrap().push(words.clone());
            if is_deaf.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            let does = match words[0].to_ascii_uppercase().as_str() {
                "PING" => Does::Says("+PONG\r\n".to_owned()),
                "CLIENT" | "ASKING" | "SELECT" => Does::Says("+OK\r\n".to_owned()),
                _ => part(&words),
            };
            match does {
                Does::Says(text) => stream.write_all(text.as_bytes()).await.unwrap_or_default(),
                Does::Hangs => std::future::pending().await,
                Does::Closes => return,
            }
        }
        if !matches!(stream.read_buf(&mut buffer).await, Ok(read) if read > 0) {
            return;
        }
    }
}

/// Parses one complete command. Returns it and its length in bytes.
fn parse(bytes: &[u8]) -> Option<(Words, usize)> {
    let (count, mut at) = line(bytes, 0)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (length, start) = line(bytes, at)?;
        bytes.get(start + length + 1)?;
        words.push(String::from_utf8_lossy(&bytes[start..start + length]).into_owned());
        at = start + length + 2;
    }
    Some((words, at))
}

/// Parses the number on a line. Returns it and the start of the next line.
fn line(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let rest = bytes.get(at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let number = std::str::from_utf8(&rest[1..end]).unwrap().parse().unwrap();
    Some((number, at + end + 2))
}
