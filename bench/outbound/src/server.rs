//! The strict server: a bucket that leaks, as `tollgate_testkit::provider` counts it, behind HTTP/1.1.

use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tollgate::Clock;
use tollgate_testkit::provider::{Asked, Counter, Provider, Rule, Speech};

use crate::{Failure, PER_SECOND, SIZE};

type Shared = Arc<Mutex<Provider>>;

fn provider() -> Provider {
    let counter = Counter::LeakyBucket { size: SIZE.into(), per_minute: u64::from(PER_SECOND) * 60 };
    Provider::new(vec![Rule::calls("requests", counter)], Speech::Ietf, 0)
}

pub(crate) async fn serve() -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let (shared, clock) = (Arc::new(Mutex::new(provider())), Clock::precise());
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(answer_all(stream, Arc::clone(&shared), clock.clone()));
    }
}

/// Answers the requests of a connection. They have no bodies.
async fn answer_all(stream: TcpStream, shared: Shared, clock: Clock) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Some(first) = lines.next_line().await? {
        while lines.next_line().await?.is_some_and(|line| !line.is_empty()) {}
        let target = first.split(' ').nth(1).unwrap_or("/").to_owned();
        let reply = reply(&target, &shared, &clock);
        write.write_all(reply.as_bytes()).await?;
    }
    Ok(())
}

fn reply(target: &str, shared: &Shared, clock: &Clock) -> String {
    let mut provider = shared.lock().unwrap_or_else(PoisonError::into_inner);
    match target {
        "/call" => {
            let now = clock.now().unix_micros();
            let answer = provider.call(Asked { route: target, units: 1 }, now);
            let fields: String = answer.headers.iter().map(|(name, text)| format!("{name}: {text}\r\n")).collect();
            format!("HTTP/1.1 {} Answer\r\ncontent-length: 0\r\n{fields}\r\n", answer.status)
        }
        "/reset" => {
            *provider = self::provider();
            text("")
        }
        _ => text(&format!("{} {}", provider.admitted, provider.refused.len())),
    }
}

fn text(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}
