//! The load generator, against the real server.

use crate::program::{SLOW_POLICY, Server, run, stderr, stdout};

fn measured(server: &Server, more: &[&str]) -> serde_json::Value {
    let is_grpc = more.contains(&"grpc");
    let address = if is_grpc { server.grpc.unwrap() } else { server.address }.to_string();
    let mut arguments = vec!["bench", "--to", &address, "--json", "--duration", "300ms", "--warmup", "0s"];
    arguments.extend(["--connections", "4"]);
    arguments.extend(more);
    let output = run(&arguments, b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap()
}

/// One key is allowed as often as its limit says, whatever the load, and every decision is counted.
#[test]
fn what_was_allowed_is_counted() {
    let server = Server::start(SLOW_POLICY);
    let closed = measured(&server, &["--keys", "1"]);
    assert_eq!((&closed["allowed"], &closed["errors"]), (&5.into(), &0.into()));
    assert!(closed["decisions"].as_u64().unwrap() > 5, "{closed}");
    assert!(closed["p50_us"].as_u64().unwrap() <= closed["max_us"].as_u64().unwrap());
    let batch = measured(&server, &["--wire", "batch", "--batch", "7"]);
    assert!(batch["decisions"].as_u64().unwrap().is_multiple_of(7), "{batch}");
}

/// The same over gRPC, with one call at a time and with many.
#[test]
fn what_was_allowed_over_grpc_is_counted() {
    for pipeline in ["1", "16"] {
        let arguments = ["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--policy", "-"];
        let server = Server::start_with(&arguments, SLOW_POLICY);
        let closed = measured(&server, &["--wire", "grpc", "--keys", "1", "--pipeline", pipeline]);
        assert_eq!((&closed["allowed"], &closed["errors"]), (&5.into(), &0.into()), "{closed}");
        assert!(closed["decisions"].as_u64().unwrap() > 5, "{closed}");
        let open = measured(&server, &["--wire", "grpc", "--rate", "200"]);
        let decisions = open["decisions"].as_u64().unwrap();
        assert!((1..=61).contains(&decisions), "{open}");
        assert_eq!((&open["allowed"], &open["errors"]), (&open["decisions"], &0.into()), "{open}");
    }
}

/// An open loop asks as often as it was told to, no more.
#[test]
fn an_open_loop_keeps_its_rate() {
    let server = Server::start(SLOW_POLICY);
    let open = measured(&server, &["--rate", "200"]);
    assert!(open["decisions"].as_u64().unwrap() <= 61, "{open}");
    assert_eq!(open["offered_per_second"], 200);
}

/// Nobody else's machine is put under load by mistake, and a server that is not there is told so.
#[test]
fn mistakes_are_told() {
    let remote = run(&["bench", "--to", "192.0.2.1:80"], b"");
    assert_eq!(remote.status.code(), Some(1));
    assert!(stderr(&remote).contains("--remote"), "{}", stderr(&remote));
    let server = Server::start(SLOW_POLICY);
    let wrong = run(&["bench", "--to", &server.address.to_string(), "--wire", "grpc"], b"");
    assert_eq!(wrong.status.code(), Some(1));
    assert!(stderr(&wrong).contains("is the wire the right one"), "{}", stderr(&wrong));
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let absent = run(&["bench", "--to", &nobody.to_string(), "--duration", "1s"], b"");
    assert_eq!(absent.status.code(), Some(1));
    assert!(stderr(&absent).contains("start the server first"), "{}", stderr(&absent));
}
