//! A TCP proxy on loopback that delays, drops, cuts or refuses on command, and counts what it did.

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

use tollgate_testkit::free_port;

/// Bytes that one read takes.
const CHUNK_BYTES: usize = 16 << 10;
/// Chunks in flight in one direction of one connection.
const CHUNKS_MAX: usize = 1_024;

/// The state of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    Fair,
    /// Every byte arrives this much later, in either direction.
    Slow(Duration),
    /// Connections stay open, also new ones, but nothing arrives.
    HalfOpen,
    /// Like `HalfOpen`, but only for clients from this address.
    HalfOpenFor(Ipv4Addr),
    /// A connection closes after this many more bytes of replies.
    CutAfter(u64),
    /// Connections are refused, and existing ones closed.
    Refuse,
}

/// Counts of what the proxy did.
#[derive(Debug, Default)]
pub(crate) struct ProxyCounts {
    pub(crate) connections: AtomicU64,
    pub(crate) delayed: AtomicU64,
    pub(crate) swallowed_bytes: AtomicU64,
    pub(crate) cut: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    pub(crate) counts: Arc<ProxyCounts>,
    network: watch::Sender<Network>,
    /// Its tasks are aborted with it.
    _runtime: Runtime,
}

#[derive(Clone)]
struct Box {
    to: u16,
    /// The client address of a connection.
    caller: IpAddr,
    counts: Arc<ProxyCounts>,
    network: watch::Receiver<Network>,
}

impl Proxy {
    /// Starts a proxy to a port, without faults.
    pub(crate) fn before(to: u16) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (network, receiver) = watch::channel(Network::Fair);
        let (port, counts) = (free_port(), Arc::new(ProxyCounts::default()));
        let caller = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let inside = Box { to, caller, counts: Arc::clone(&counts), network: receiver };
        let listener = runtime.block_on(listen(port));
        runtime.spawn(inside.accept(port, listener));
        Self { port, counts, network, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets the state of the network.
    pub(crate) fn set(&self, network: Network) {
        self.network.send_replace(network);
    }
}

async fn listen(port: u16) -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.unwrap()
}

impl Box {
    /// Whether this connection's data is dropped.
    fn swallows(&self, network: Network) -> bool {
        match network {
            Network::HalfOpen => true,
            Network::HalfOpenFor(caller) => IpAddr::V4(caller) == self.caller,
            _ => false,
        }
    }

    async fn accept(mut self, port: u16, listener: TcpListener) {
        let mut listening = Some(listener);
        loop {
            if *self.network.borrow_and_update() == Network::Refuse {
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
                changed = self.network.changed() => if changed.is_err() { return },
                Ok((stream, caller)) = incoming => {
                    self.counts.connections.fetch_add(1, Ordering::Relaxed);
                    tokio::spawn(Self { caller: caller.ip(), ..self.clone() }.carry(stream));
                }
            }
        }
    }

    /// Serves one connection until either side or the network ends it.
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

    /// Returns when a change of the network closes the connection.
    async fn storm(&self) {
        let mut network = self.network.clone();
        let mut swallowing = false;
        loop {
            match *network.borrow_and_update() {
                Network::Refuse => return,
                network if self.swallows(network) => swallowing = true,
                // A stream with missing bytes cannot be resumed.
                _ if swallowing => return,
                _ => {}
            }
            if network.changed().await.is_err() {
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
                let network = *self.network.borrow();
                match network {
                    _ if self.swallows(network) => {
                        self.counts.swallowed_bytes.fetch_add(length as u64, Ordering::Relaxed);
                        continue;
                    }
                    Network::Fair | Network::Refuse | Network::HalfOpen | Network::HalfOpenFor(_) => {
                        left = None
                    }
                    Network::Slow(by) => {
                        self.counts.delayed.fetch_add(1, Ordering::Relaxed);
                        at += by;
                    }
                    Network::CutAfter(bytes_left) if answers => {
                        let rest = left.unwrap_or(bytes_left);
                        if length as u64 > rest {
                            self.counts.cut.fetch_add(1, Ordering::Relaxed);
                            return;
                        }
                        left = Some(rest - length as u64);
                    }
                    Network::CutAfter(_) => {}
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
