//! A bad network in a small box: a TCP proxy on the loopback that delays, swallows, cuts or refuses on command, and counts what it did.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::scratch::free_port;

/// Bytes that one read takes.
const CHUNK_BYTES: usize = 16 << 10;
/// Chunks that may be under way in one direction of one connection.
const CHUNKS_MAX: usize = 1_024;

/// How the network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Fair,
    /// Every byte arrives this much later, in either direction.
    Slow(Duration),
    /// Connections stay, new ones too; nothing arrives any more and nobody is told.
    HalfOpen,
    /// The same, for those that call from this address.
    HalfOpenFor(Ipv4Addr),
    /// A connection ends, in both directions, once its answers had this many bytes more.
    CutAfter(u64),
    /// Nobody listens, and connections are gone.
    Refuse,
}

/// What the proxy did.
#[derive(Debug, Default)]
pub(crate) struct Deeds {
    pub(crate) connections: AtomicU64,
    pub(crate) delayed: AtomicU64,
    pub(crate) swallowed_bytes: AtomicU64,
    pub(crate) cut: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    pub(crate) deeds: Arc<Deeds>,
    weather: watch::Sender<Weather>,
    /// Its tasks end with it.
    _runtime: Runtime,
}

#[derive(Clone)]
struct Box {
    to: u16,
    /// Where the caller of a connection is.
    caller: IpAddr,
    deeds: Arc<Deeds>,
    weather: watch::Receiver<Weather>,
}

impl Proxy {
    /// Stands before a port, in fair weather.
    pub(crate) fn before(to: u16) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (weather, receiver) = watch::channel(Weather::Fair);
        let (port, deeds) = (free_port(), Arc::new(Deeds::default()));
        let caller = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let inside = Box { to, caller, deeds: Arc::clone(&deeds), weather: receiver };
        let listener = runtime.block_on(listen(port));
        runtime.spawn(inside.accept(port, listener));
        Self { port, deeds, weather, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on the network is like this.
    pub(crate) fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

async fn listen(port: u16) -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.unwrap()
}

impl Box {
    /// Whether nothing of this connection arrives.
    fn swallows(&self, weather: Weather) -> bool {
        match weather {
            Weather::HalfOpen => true,
            Weather::HalfOpenFor(caller) => IpAddr::V4(caller) == self.caller,
            _ => false,
        }
    }

    async fn accept(mut self, port: u16, listener: TcpListener) {
        let mut listening = Some(listener);
        loop {
            if *self.weather.borrow_and_update() == Weather::Refuse {
                listening = None;
            } else if listening.is_none() {
                listening = Some(listen(port).await);
            }
            let incoming = async {
                match &listening {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.weather.changed() => if changed.is_err() { return },
                Ok((stream, caller)) = incoming => {
                    self.deeds.connections.fetch_add(1, Ordering::Relaxed);
                    tokio::spawn(Self { caller: caller.ip(), ..self.clone() }.carry(stream));
                }
            }
        }
    }

    /// One connection, until either side or the weather ends it.
    async fn carry(self, client: TcpStream) {
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.to)).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (client_reads, client_writes) = client.into_split();
        let (server_reads, server_writes) = server.into_split();
        tokio::select! {
            () = self.pump(client_reads, server_writes, false) => {}
            () = self.pump(server_reads, client_writes, true) => {}
            () = self.storm() => {}
        }
    }

    /// Returns when the weather ends a connection as it changes.
    async fn storm(&self) {
        let mut weather = self.weather.clone();
        let mut swallowing = false;
        loop {
            match *weather.borrow_and_update() {
                Weather::Refuse => return,
                weather if self.swallows(weather) => swallowing = true,
                // A stream with a hole in it cannot be mended.
                _ if swallowing => return,
                _ => {}
            }
            if weather.changed().await.is_err() {
                return;
            }
        }
    }

    async fn pump(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, answers: bool) {
        let (chunks, mut arriving) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
        let deliver = async move {
            while let Some((at, bytes)) = arriving.recv().await {
                sleep_until(at).await;
                if to.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        };
        let collect = async {
            let mut left = None;
            loop {
                let mut bytes = vec![0; CHUNK_BYTES];
                let Ok(length @ 1..) = from.read(&mut bytes).await else { return };
                bytes.truncate(length);
                let mut at = Instant::now();
                let weather = *self.weather.borrow();
                match weather {
                    _ if self.swallows(weather) => {
                        self.deeds.swallowed_bytes.fetch_add(length as u64, Ordering::Relaxed);
                        continue;
                    }
                    Weather::Fair | Weather::Refuse | Weather::HalfOpen | Weather::HalfOpenFor(_) => {
                        left = None
                    }
                    Weather::Slow(by) => {
                        self.deeds.delayed.fetch_add(1, Ordering::Relaxed);
                        at += by;
                    }
                    Weather::CutAfter(bytes_left) if answers => {
                        let rest = left.unwrap_or(bytes_left);
                        if length as u64 > rest {
                            self.deeds.cut.fetch_add(1, Ordering::Relaxed);
                            return;
                        }
                        left = Some(rest - length as u64);
                    }
                    Weather::CutAfter(_) => {}
                }
                if chunks.send((at, bytes)).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = deliver => {}
            () = collect => {}
        }
    }
}
