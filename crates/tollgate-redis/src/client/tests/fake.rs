//! A fake Redis that replies as a test wants, including replies that a real one rarely sends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// The reaction of the fake to a command.
pub(crate) enum Action {
    /// Sends these bytes.
    Reply(String),
    /// Never answers this command, nor any after it.
    Hang,
    /// Closes the connection.
    Close,
}

pub(crate) type Command = Vec<String>;
type Responder = dyn Fn(&Command) -> Action + Send + Sync;

/// A fake and the commands it received.
pub(crate) struct Fake {
    pub(crate) port: u16,
    received: Arc<Mutex<Vec<Command>>>,
    /// Whether it ignores everything it receives, heartbeats included.
    is_silent: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    /// Starts a fake. The test's function replies to script calls and cluster commands; the fake replies to the others.
    pub(crate) async fn replying(respond: impl Fn(&Command) -> Action + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let received: Arc<Mutex<Vec<Command>>> = Arc::default();
        let (respond, log): (Arc<Responder>, _) = (Arc::new(respond), Arc::clone(&received));
        let is_silent: Arc<AtomicBool> = Arc::default();
        let shared = Arc::clone(&is_silent);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let is_silent = Arc::clone(&shared);
                connections.spawn(serve(stream, Arc::clone(&respond), Arc::clone(&log), is_silent));
            }
        });
        Self { port, received, is_silent, task: task.abort_handle() }
    }

    /// Ignores everything from now on, on all connections; or replies again on new ones.
    pub(crate) fn set_silent(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::Relaxed);
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The received commands with this name.
    pub(crate) fn received(&self, first: &str) -> Vec<Command> {
        let received = self.received.lock().unwrap();
        received.iter().filter(|words| words[0].eq_ignore_ascii_case(first)).cloned().collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    respond: Arc<Responder>,
    log: Arc<Mutex<Vec<Command>>>,
    is_silent: Arc<AtomicBool>,
) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = Vec::new();
    loop {
        while let Some((words, used)) = parse(&buffer) {
            buffer.drain(..used);
            log.lock().unwrap().push(words.clone());
            if is_silent.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            let action = match words[0].to_ascii_uppercase().as_str() {
                "PING" => Action::Reply("+PONG\r\n".to_owned()),
                "CLIENT" | "ASKING" | "SELECT" => Action::Reply("+OK\r\n".to_owned()),
                _ => respond(&words),
            };
            match action {
                Action::Reply(text) => stream.write_all(text.as_bytes()).await.unwrap_or_default(),
                Action::Hang => std::future::pending().await,
                Action::Close => return,
            }
        }
        if !matches!(stream.read_buf(&mut buffer).await, Ok(read) if read > 0) {
            return;
        }
    }
}

/// Parses one complete command. Returns it and its length in bytes.
fn parse(bytes: &[u8]) -> Option<(Command, usize)> {
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
