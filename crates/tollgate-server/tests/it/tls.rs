//! TLS, with a real client: who is let in, what is reloaded, and how long a handshake may take.

use std::io::{ErrorKind, Read, Write};

use tokio_rustls::rustls::SupportedProtocolVersion;
use tokio_rustls::rustls::version::TLS12;
use tollgate_testkit::{Scratch, until};

use crate::connection_limits::is_open;
use crate::pki::{Pair, TestCa};
use crate::program::{SLOW_POLICY, Server, run, stderr};
use tollgate_testkit::tls::Client;

const ONLY_12: &[&SupportedProtocolVersion] = &[&TLS12];
const QUESTION: &str = r#"{"attributes":{"api_key":"k"}}"#;

fn write(scratch: &Scratch, pair: &Pair) {
    scratch.replace("key.pem", &pair.key);
    scratch.replace("cert.pem", &pair.certificate);
}

/// A server with the certificate in `scratch`, and more arguments.
fn serve(scratch: &Scratch, more: &[&str]) -> Server {
    let (certificate, key) = (scratch.text("cert.pem"), scratch.text("key.pem"));
    let arguments = ["serve", "--policy", "-", "--tls-cert", &certificate, "--tls-key", &key];
    let mut arguments = arguments.to_vec();
    if !more.contains(&"--http") {
        arguments.extend(["--http", "127.0.0.1:0"]);
    }
    arguments.extend(more);
    Server::start_with(&arguments, SLOW_POLICY)
}

/// A client that trusts the CA is answered, in HTTP/1.1, which is agreed on; one that trusts another CA refuses the server.
#[test]
fn a_server_shows_its_certificate() {
    let (authority, other) = (TestCa::new("ours"), TestCa::new("other"));
    let scratch = Scratch::new();
    write(&scratch, &authority.server());
    let server = serve(&scratch, &[]);
    for shown in ["HTTP    https://", "RESP    rediss://", "admin   https://"] {
        assert!(server.banner.contains(shown), "{}", server.banner);
    }
    let mut connection =
        Client { protocols: &[b"h2", b"http/1.1"], ..Client::trusting(&authority) }.connect(&server);
    for remaining in [4, 3] {
        let (status, body) = connection.ask("POST", "/v1/check", QUESTION).unwrap();
        assert!(status == 200 && body.contains(&format!("\"remaining\":{remaining}")), "{body}");
    }
    assert_eq!(connection.protocol(), Some(&b"http/1.1"[..]));
    let mut unnamed = Client::trusting(&authority).connect(&server);
    assert_eq!(unnamed.ask("GET", "/healthz", "").unwrap().0, 200);
    let refused = Client::trusting(&other).connect(&server).ask("GET", "/healthz", "").unwrap_err();
    assert!(refused.to_string().contains("UnknownIssuer"), "{refused}");
    let foreign = Client { protocols: &[b"h2"], ..Client::trusting(&authority) };
    assert!(foreign.connect(&server).ask("GET", "/healthz", "").is_err());
}

/// With an authority for clients, only whom it signed is answered; that is proof enough to listen everywhere.
#[test]
fn a_client_needs_a_certificate() {
    let (authority, other) = (TestCa::new("ours"), TestCa::new("other"));
    let scratch = Scratch::new();
    write(&scratch, &authority.server());
    scratch.replace("clients.pem", &authority.pem);
    let server = serve(&scratch, &["--http", "0.0.0.0:0", "--tls-client-ca", &scratch.text("clients.pem")]);
    assert!(!server.banner.contains("warning"), "{}", server.banner);
    let (ours, others, wrong) = (authority.client(), other.client(), authority.server());
    let ask = |client: Client<'_>| client.connect(&server).ask("POST", "/v1/check", QUESTION);
    assert_eq!(ask(Client::showing(&authority, &ours)).unwrap().0, 200);
    assert!(ask(Client::trusting(&authority)).is_err(), "without a certificate");
    assert!(ask(Client::showing(&authority, &others)).is_err(), "of another authority");
    assert!(ask(Client::showing(&authority, &wrong)).is_err(), "not for clients");
    let looked =
        Client::showing(&authority, &ours).connect(&server).ask("POST", "/v1/check", QUESTION).unwrap();
    assert!(looked.1.contains("\"remaining\":3"), "the others were not counted: {}", looked.1);
}

/// A renewed certificate is used for the next connection, while an open connection goes on; a bad pair changes nothing but
/// what `/readyz` says.
#[test]
fn a_certificate_is_renewed() {
    let authority = TestCa::new("ours");
    let scratch = Scratch::new();
    write(&scratch, &authority.server());
    let mut server = serve(&scratch, &[]);
    let connect = || {
        let mut connection = Client::trusting(&authority).connect(&server);
        assert_eq!(connection.ask("GET", "/healthz", "").unwrap().0, 200);
        connection
    };
    let mut open = connect();
    let first = open.certificate();
    write(&scratch, &authority.server());
    let second = until("the new certificate", || {
        let shown = connect().certificate();
        (shown != first).then_some(shown)
    });
    assert_eq!(open.ask("POST", "/v1/check", QUESTION).unwrap().0, 200);
    assert_eq!(open.certificate(), first);

    scratch.replace("key.pem", &authority.server().key); // Not the key of this certificate.
    let degraded = until("the bad pair", || {
        let (status, body) = open.ask("GET", "/readyz", "").unwrap();
        assert_eq!(status, 200);
        body.contains("degraded").then_some(body)
    });
    assert!(degraded.contains("are not a pair"), "{degraded}");
    assert_eq!(connect().certificate(), second);
    write(&scratch, &authority.server());
    until("the good pair", || (connect().certificate() != second).then_some(()));
    assert!(open.ask("GET", "/readyz", "").unwrap().1.contains(r#""status":"ok""#));
    drop(open);
    server.await_log("the certificates were not reloaded");
}

/// After a CA is removed, no client of it gets in any more, not even one that was in before.
#[test]
fn an_authority_is_taken_away() {
    let (authority, other) = (TestCa::new("ours"), TestCa::new("other"));
    let scratch = Scratch::new();
    write(&scratch, &authority.server());
    scratch.replace("clients.pem", &authority.pem);
    let server = serve(&scratch, &["--tls-client-ca", &scratch.text("clients.pem")]);
    let pair = authority.client();
    let ask = || Client::showing(&authority, &pair).connect(&server).ask("GET", "/healthz", "");
    assert_eq!(ask().unwrap().0, 200);
    scratch.replace("clients.pem", &other.pem);
    until("the refusal", || ask().err());
}

/// A client that does not speak TLS, or never finishes its handshake, is disconnected; others are answered meanwhile.
#[test]
fn strangers_and_sleepers_are_given_up() {
    let authority = TestCa::new("ours");
    let scratch = Scratch::new();
    write(&scratch, &authority.server());
    let server = serve(&scratch, &[]);
    let mut sleepers: Vec<_> = (0..100).map(|_| server.connect()).collect();
    for sleeper in &mut sleepers {
        sleeper.write_all(&[22, 3, 1, 2, 0, 1]).unwrap(); // The beginning of a handshake.
    }
    let mut plain = server.connect();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer); // An alert, and the end, however the system tells it.
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert_eq!(Client::trusting(&authority).connect(&server).ask("GET", "/healthz", "").unwrap().0, 200);
    // Neither of them had to wait until those who came before had timed out.
    assert!(sleepers.iter().all(is_open), "a sleeper was disconnected first");
    for mut sleeper in sleepers {
        sleeper.set_nonblocking(false).unwrap();
        let mut answer = Vec::new();
        let end = sleeper.read_to_end(&mut answer);
        let is_stuck = end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock); // The client's own timeout.
        assert!(answer.len() < 10 && !is_stuck, "{answer:?}");
    }
}

/// TLS 1.2 is spoken only with those whom the operator still has.
#[test]
fn the_oldest_version_is_chosen() {
    let authority = TestCa::new("ours");
    let scratch = Scratch::new();
    write(&scratch, &authority.server());
    let old = Client { versions: ONLY_12, ..Client::trusting(&authority) };
    let server = serve(&scratch, &[]);
    assert!(old.connect(&server).ask("GET", "/healthz", "").is_err());
    let server = serve(&scratch, &["--tls-min-version", "1.2"]);
    assert_eq!(old.connect(&server).ask("GET", "/healthz", "").unwrap().0, 200);
}

/// A stopping server ends well, even if TLS handshakes hang.
#[test]
fn the_end_does_not_wait_for_handshakes() {
    let authority = TestCa::new("ours");
    let scratch = Scratch::new();
    write(&scratch, &authority.server());
    let mut server = serve(&scratch, &[]);
    let mut open = Client::trusting(&authority).connect(&server);
    assert_eq!(open.ask("GET", "/healthz", "").unwrap().0, 200);
    let _sleeper = server.connect();
    server.signal("-TERM");
    server.await_log("stopped");
    assert_eq!(server.wait().code(), Some(0));
}

/// Certificates that are none, or do not fit, are refused at the start, with the file and what would be accepted.
#[test]
fn refused_starts() {
    let authority = TestCa::new("ours");
    let scratch = Scratch::new();
    write(&scratch, &authority.server());
    scratch.replace("other-key.pem", &authority.server().key);
    scratch.replace("empty.pem", "");
    let path = |name: &str| scratch.text(name);
    for (certificate, key, status, expected) in [
        ("cert.pem", "other-key.pem", 2, "are not a pair"),
        ("none.pem", "key.pem", 2, "none.pem"),
        ("empty.pem", "key.pem", 2, "accepted: certificates in PEM"),
        ("cert.pem", "cert.pem", 2, "accepted: a private key in PEM"),
    ] {
        let output = run(
            &["serve", "--http", "127.0.0.1:0", "--tls-cert", &path(certificate), "--tls-key", &path(key)],
            b"",
        );
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    let output = run(&["serve", "--tls-cert", &path("cert.pem")], b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--tls-key"), "{}", stderr(&output));
    let output = run(
        &["serve", "--http", "0.0.0.0:0", "--tls-cert", &path("cert.pem"), "--tls-key", &path("key.pem")],
        b"",
    );
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--tls-client-ca"), "{}", stderr(&output));
}
