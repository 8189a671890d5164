//! Tunnels while the server stops.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::{mpsc as steps, watch};
use tollgate::{Clock, Engine, MemoryStore, Policy};
use tollgate_gateway::{RequestSettings, RoutePlan, connection};

use super::build;
use crate::listen::{self, FdBudget, Handshake};
use crate::service::Service;
use crate::store::Stores;
use crate::tls::AlpnProtocol;

/// An upstream that accepts one upgrade, and echoes all bytes until their end.
fn echoing() -> (SocketAddr, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
        assert!(lines.by_ref().any(|line| line.is_empty()));
        stream
            .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
            .unwrap();
        let mut part = [0; 64];
        while let Ok(read @ 1..) = stream.read(&mut part) {
            let _ = stream.write_all(&part[..read]);
        }
    });
    (address, thread)
}

/// Runs a gateway on a paused clock, and stops it when the client sends a signal. Returns how many connections it
/// cut off, and how long after the stop signal.
async fn stopping(
    upstream: SocketAddr,
    address: mpsc::Sender<SocketAddr>,
    mut steps_done: steps::UnboundedReceiver<()>,
) -> (usize, Duration) {
    let policy = Policy::compile("test", b"limits: []").unwrap();
    let clock = Clock::precise();
    let store = Stores::Memory(MemoryStore::new(1 << 20, clock.now()));
    let engine = Engine::builder().policy(policy).store(store).build();
    let service = Arc::new(Service::new(engine, clock.clone()));
    let route = RoutePlan::of_flag(&format!("http://{upstream}").parse().unwrap());
    let (budget, upstreams) = FdBudget::new(1, listen::GatewayListener::Present);
    let gateway = build(&[route], RequestSettings::default(), &service, &upstreams).unwrap();
    let listener = listen::bind("127.0.0.1:0".parse().unwrap(), "--gateway").await.unwrap();
    address.send(listener.local_addr().unwrap()).unwrap();
    let (stop, stopped) = watch::channel(false);
    let limit = budget.public_connection_limit(RequestSettings::default().bound());
    let serving = tokio::spawn(listen::serve(
        listener,
        limit,
        Handshake::new(None, AlpnProtocol::Both),
        clock,
        stopped,
        move |stream, stop| connection(stream, Arc::clone(&gateway), stop),
    ));
    steps_done.recv().await.unwrap();
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    stop.send(true).unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await; // All tasks see it before time moves on.
    tokio::time::advance(Duration::from_secs(10)).await;
    // The client checks that the tunnel still carries bytes, in the real time that sockets need.
    tokio::time::resume();
    address.send(upstream).unwrap();
    steps_done.recv().await.unwrap();
    assert!(!serving.is_finished());
    tokio::time::pause();
    (serving.await.unwrap(), begun.elapsed())
}

/// A server that stops keeps a tunnel for 15 seconds, no less, and then cuts it off.
#[test]
fn a_stop_cuts_tunnels_off_in_time() {
    let (upstream, echo) = echoing();
    let (tell, steps_done) = steps::unbounded_channel();
    let (address, addresses) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(stopping(upstream, address, steps_done))
        // The runtime ends here, as the program would, and closes every connection.
    });
    let mut client = TcpStream::connect(addresses.recv().unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").unwrap();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
    }
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut echoed = |text: &[u8; 4]| {
        client.write_all(text).unwrap();
        let mut back = [0; 4];
        reader.read_exact(&mut back).unwrap();
        assert_eq!(&back, text);
    };
    echoed(b"ping");
    tell.send(()).unwrap();
    addresses.recv().unwrap(); // Ten seconds have passed.
    echoed(b"pong");
    tell.send(()).unwrap();
    let (cut, after) = server.join().unwrap();
    assert_eq!(cut, 1);
    assert!((Duration::from_secs(15)..Duration::from_secs(16)).contains(&after), "{after:?}");
    assert!(matches!(reader.read(&mut [0; 8]), Ok(0) | Err(_)), "nothing comes after the cut");
    echo.join().unwrap();
}
