//! The commands that operate a server, towards one that speaks TLS: whom they trust, what they show, and what they say when either is
//! wrong.

use std::process::{Command, Output};
use std::time::Duration;

use tollgate_testkit::{Scratch, rest};

use crate::admin::{POLICY, TOKEN};
use crate::pki::{Pair, TestCa};
use crate::program::{Server, stderr, stdout, tollgate};
use tollgate_testkit::tls::Client;

/// The certificates of a test, on disk.
struct Files {
    scratch: Scratch,
    authority: TestCa,
    client: Pair,
}

impl Files {
    fn new() -> Self {
        let (ours, other) = (TestCa::new("ours"), TestCa::new("other"));
        let (server, client, stranger) = (ours.server(), ours.client(), other.client());
        let scratch = Scratch::new();
        for (name, text) in [
            ("ca.pem", &ours.pem),
            ("other-ca.pem", &other.pem),
            ("server.pem", &server.certificate),
            ("server-key.pem", &server.key),
            ("client.pem", &client.certificate),
            ("client-key.pem", &client.key),
            ("stranger.pem", &stranger.certificate),
            ("stranger-key.pem", &stranger.key),
            ("policy.yaml", &POLICY.to_owned()),
        ] {
            scratch.replace(name, text);
        }
        Self { scratch, authority: ours, client }
    }

    /// A server with a certificate, and more arguments.
    fn serve(&self, more: &str) -> Server {
        let given = "serve --policy policy.yaml --tls-cert server.pem --tls-key server-key.pem";
        Server::spawn(self.tollgate(&format!("{given} {more}")), "")
    }

    /// A command in the directory of the files, whose names are relative to it.
    fn tollgate(&self, words: &str) -> Command {
        let mut command = tollgate(&words.split_whitespace().collect::<Vec<_>>());
        command.current_dir(self.scratch.path("")).env("TOLLGATE_ADMIN_TOKEN", TOKEN);
        command
    }

    /// The output of a command that succeeds, or its error.
    fn call(&self, url: &str, words: &str) -> Result<String, String> {
        let output = self.tollgate(words).env("TOLLGATE_SERVER", url).output().unwrap();
        match output.status.code() {
            // 1 is an answer too: such a request is denied.
            Some(0 | 1) => Ok(stdout(&output)),
            Some(2) => Err(stderr(&output)),
            status => panic!("{words}: {status:?} {}", stderr(&output)),
        }
    }
}

/// Every command works inside TLS, with a certificate where the server asks for one, by its address or its name.
#[test]
fn every_command_speaks_tls() {
    let files = Files::new();
    let mutual = files.serve("--http 127.0.0.1:0 --tls-client-ca ca.pem");
    let (url, name) =
        (format!("https://{}", mutual.address), format!("https://localhost:{}", mutual.address.port()));
    let shown = "--ca ca.pem --cert client.pem --key client-key.pem";
    let commands = [
        ("get api_key=k", "5 of 5"),
        ("explain api_key=k", "per-key: passes"),
        ("reset api_key=k", "no counter existed"),
        ("block api_key=k --for 10m", "is blocked until"),
        ("get api_key=k", "denied: blocked by an operator"),
        ("unblock api_key=k", "unblocked"),
        ("kill per-key --for 10m", "off until"),
        ("shadow per-key --for 10m", "shadow until"),
        ("percent per-key 50 --for 10m", "enforced for 50 %"),
        ("limits", "50 %"),
        ("restore per-key", "the policy holds again"),
        ("reload", ""),
        ("top --once", "no key was counted in the last two minutes"),
        ("audit", "block"),
    ];
    for url in [&url, &name] {
        for (words, expected) in commands {
            let printed = files.call(url, &format!("{words} {shown}"));
            assert!(
                printed.as_ref().is_ok_and(|printed| printed.contains(expected)),
                "{words} at {url}: {printed:?}"
            );
        }
    }
    let printed = files.call(&url, &format!("policy diff policy.yaml --live --for 1s {shown}")).unwrap();
    assert!(printed.contains("0 of 0 decisions change"), "{printed}");
}

/// The views show inside TLS what is decided while they are open.
#[test]
fn views_come_through_tls() {
    let files = Files::new();
    let mutual = files.serve("--http 127.0.0.1:0 --tls-client-ca ca.pem");
    let url = format!("https://{}", mutual.address);
    let mut tail = files.tollgate("tail --once --ca ca.pem --cert client.pem --key client-key.pem");
    let mut tail = tail.env("TOLLGATE_SERVER", &url).spawn().unwrap();
    let mut asker = Client::showing(&files.authority, &files.client).connect(&mutual);
    while tail.try_wait().unwrap().is_none() {
        let (status, _) = asker.ask("POST", "/v1/check", r#"{"attributes":{"api_key":"k"}}"#).unwrap();
        assert!([200, 429].contains(&status), "{status}");
        rest(Duration::from_millis(20));
    }
    let seen: Output = tail.wait_with_output().unwrap();
    assert!(
        stdout(&seen).contains("DENY")
            && stdout(&seen).contains("api_key=sha256:8254c329a92850f6d539dd376f4816ee"),
        "{}",
        stderr(&seen)
    );
    let top = files.call(&url, "top --once --ca ca.pem --cert client.pem --key client-key.pem").unwrap();
    assert!(top.lines().any(|line| line.starts_with("per-key") && line.contains("api_key=sha256:")), "{top}");
}

/// Without a certificate of clients the authority is enough, and it may be said in the environment.
#[test]
fn the_environment_names_trusted_proxies() {
    let files = Files::new();
    let server = files.serve("--http 127.0.0.1:0");
    let mut command = files.tollgate("get api_key=k");
    command.env("TOLLGATE_SERVER", format!("https://{}", server.address)).env("TOLLGATE_CA", "ca.pem");
    let output = command.output().unwrap();
    assert!(stdout(&output).contains("5 of 5"), "{}", stderr(&output));
}

/// The token is not sent to a server that cannot be trusted; each failure says its cause and its cure, and nothing changes on the server.
#[test]
fn an_untrusted_proxy_is_logged() {
    let files = Files::new();
    let mutual = files.serve("--http 0.0.0.0:0 --tls-client-ca ca.pem");
    let port = mutual.address.port();
    let url = format!("https://127.0.0.1:{port}");
    let shown = "--cert client.pem --key client-key.pem";
    let plain = crate::admin::server(POLICY);
    for (url, words, expected) in [
        (url.clone(), String::new(), "--ca FILE or TOLLGATE_CA"),
        (url.clone(), "--ca absent.pem".to_owned(), "absent.pem: "),
        (url.clone(), "--ca client-key.pem".to_owned(), "accepted: certificates in PEM"),
        (url.clone(), format!("--ca other-ca.pem {shown}"), "no authority in --ca FILE has signed"),
        (url.clone(), "--ca ca.pem".to_owned(), "show one with --cert FILE and --key FILE"),
        (url.clone(), "--ca ca.pem --cert client.pem".to_owned(), "--key FILE is missing"),
        (url.clone(), "--ca ca.pem --cert client.pem --key server-key.pem".to_owned(), "are not a pair"),
        (
            url,
            "--ca ca.pem --cert stranger.pem --key stranger-key.pem".to_owned(),
            "the certificate of --cert FILE",
        ),
        (
            format!("https://127.0.0.2:{port}"),
            format!("--ca ca.pem {shown}"),
            "by a name that its certificate has",
        ),
        (format!("http://127.0.0.1:{port}"), String::new(), "say https://"),
        (format!("http://127.0.0.1:{port}"), "--ca ca.pem".to_owned(), "mean nothing without TLS"),
        (format!("https://{}", plain.address), "--ca ca.pem".to_owned(), "try http://"),
    ] {
        let refused = files.call(&url, &format!("block api_key=k --for 10m {words}")).unwrap_err();

        assert!(refused.contains(expected) && !refused.contains(TOKEN), "{url} {words}: {refused}");
    }
    let limits =
        files.call(&format!("https://127.0.0.1:{port}"), &format!("limits --json --ca ca.pem {shown}"));
    assert!(limits.as_ref().is_ok_and(|limits| limits.contains(r#""blocks":[]"#)), "{limits:?}");
}
