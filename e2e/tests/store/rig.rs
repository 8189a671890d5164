//! Tests of the rig itself: servers start, answer, and are gone when the test ends, however it ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::cluster::{Cluster, SLOTS};
use crate::proxy::{Network, Proxy};
use crate::sentinel::SentinelSetup;
use crate::server::{Plan, Program, Server};
use tollgate_testkit::until;

fn is_reachable(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// A server is killed when its owner is dropped, also by a panic.
#[test]
fn server_does_not_outlive_its_test() {
    let server = Server::redis();
    let port = server.port;
    assert!(is_reachable(port));
    let panicked = std::thread::spawn(move || {
        let _owned = server;
        std::panic::resume_unwind(Box::new("as a failing test does"));
    });
    assert!(panicked.join().is_err());
    assert!(!is_reachable(port));
}

/// A killed server has lost its keys and comes back on the same port.
#[test]
fn killed_server_comes_back_empty() {
    let mut server = Server::redis();
    server.tell(&["SET", "key", "value"]);
    assert_eq!(server.lives(), [("key".to_owned(), -1)]);
    server.kill();
    assert!(!is_reachable(server.port));
    server.restart();
    assert!(server.lives().is_empty());
    assert_eq!(server.calls("set"), (0, 0));
}

/// Six nodes own all slots; a planned failover changes the primary; slots move.
#[test]
fn cluster_is_complete() {
    let cluster = Cluster::calm(Program::Redis);
    let primary = cluster.primary_of(0);
    let replica = cluster.replica_of(primary);
    cluster.servers[replica].tell(&["CLUSTER", "FAILOVER"]);
    until("the replica takes over", || (cluster.primary_of(0) == replica).then_some(()));
    let other = cluster.primary_of(SLOTS - 1);
    cluster.reshard(10, replica, other);
    until("the slots have moved", || {
        let owned = cluster.nodes().into_iter().find(|node| node.port == cluster.servers[other].port)?;
        (owned.slots.len() == 2).then_some(())
    });
}

/// Sentinels replace a dead primary.
#[test]
fn sentinels_replace_a_dead_primary() {
    let mut watched = SentinelSetup::start();
    assert_eq!(watched.primary(), watched.servers[0].port);
    watched.servers[0].kill();
    until("the replica is promoted", || (watched.primary() == watched.servers[1].port).then_some(()));
}

/// TLS requires a client certificate.
#[test]
fn tls_requires_a_certificate() {
    let server = Plan::new(Program::Redis).tls().start();
    let (port, [authority, certificate, key]) = server.tls();
    let port = port.to_string();
    let with = ["-p", &port, "--tls", "--cacert", &authority, "--cert", &certificate, "--key", &key, "PING"];
    assert_eq!(crate::cluster::cli(&with).trim(), "PONG");
    let without = ["-p", &port, "--tls", "--cacert", &authority, "PING"];
    let output = std::process::Command::new("redis-cli").args(without).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("PONG"));
}

/// Valkey runs, and its clock can be moved.
#[test]
fn valkey_clock_steps() {
    let server = Plan::new(Program::Valkey).wrong_clock().start();
    assert_eq!(server.info("server_name").unwrap(), "valkey");
    let before = server.time();
    for hours in [1, -1, 0] {
        server.step_clock(hours * 3_600);
        let passed = server.time().checked_signed_diff(before).unwrap() - hours * 3_600_000_000;
        assert!((0..20_000_000).contains(&passed), "{hours} h, and {passed} µs");
    }
}

/// Each state of the proxy has its effect and is counted.
#[test]
fn proxy_states_have_their_effect() {
    let server = Server::redis();
    let proxy = Proxy::before(server.port);
    let client = redis::Client::open(proxy.url()).unwrap();
    let connect = || {
        let connection = client.get_connection_with_timeout(Duration::from_millis(300))?;
        connection.set_read_timeout(Some(Duration::from_millis(300)))?;
        Ok::<_, redis::RedisError>(connection)
    };
    let ping = |connection: &mut redis::Connection| redis::cmd("PING").query::<String>(connection);

    let mut connection = connect().unwrap();
    ping(&mut connection).unwrap();
    proxy.set(Network::Slow(Duration::from_millis(20)));
    ping(&mut connection).unwrap();
    assert!(proxy.counts.delayed.load(Ordering::Relaxed) >= 2);
    proxy.set(Network::HalfOpen);
    assert!(ping(&mut connection).unwrap_err().is_timeout());
    assert!(proxy.counts.swallowed_bytes.load(Ordering::Relaxed) > 0);
    proxy.set(Network::CutAfter(3));
    let cut = until("a connection is cut", || connect().and_then(|mut fresh| ping(&mut fresh)).err());
    assert!(!cut.is_timeout(), "{cut}");
    assert!(proxy.counts.cut.load(Ordering::Relaxed) > 0);
    proxy.set(Network::Refuse);
    until("connections are refused", || connect().err().filter(|error| error.is_connection_refusal()));
    proxy.set(Network::Fair);
    until("the network is fair again", || connect().and_then(|mut fresh| ping(&mut fresh)).ok());
}
