//! One credential on every way in.

use std::process::Command;

use serde_json::json;

use crate::admin::{TOKEN, operate, status};
use crate::gateway_upstream::{Gateway, Upstream};
use crate::program::{Server, stderr, stdout, tollgate};
use crate::rls::{self, Client};

/// A gateway with an admin token before an upstream.
pub fn gateway(upstream: &Upstream, policy: &str, more: &[&str]) -> Gateway {
    let address = format!("http://{}", upstream.address);
    let always = [
        "serve",
        "--http",
        "127.0.0.1:0",
        "--gateway",
        "127.0.0.1:0",
        "--policy",
        "-",
        "--upstream",
        &address,
    ];
    Gateway::of(Server::spawn(command(&[&always, more].concat()), policy))
}

pub fn command(arguments: &[&str]) -> Command {
    let mut command = tollgate(arguments);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN).env("TOLLGATE_LOG", "debug");
    command
}

/// The output of a command on both streams; it must succeed.
pub fn success_of(server: &Server, words: &str) -> String {
    let output = operate(server, &words.split(' ').collect::<Vec<_>>()).output().unwrap();
    let text = stdout(&output) + &stderr(&output);
    assert_eq!(output.status.code(), Some(status(words, &text)), "{words}: {text}");
    text
}

pub fn key(credential: &str) -> String {
    format!("X-API-Key: {credential}\r\n")
}

/// Asks once on every way in that takes attributes or requests; tells what each answered.
pub fn ask_everywhere(gateway: &Gateway, credential: &str) -> String {
    let server = &gateway.server;
    let body = json!({"attributes": {"api_key": credential}}).to_string();
    let mut answers = vec![gateway.get("/", &key(credential)).status.to_string()];
    let held = format!("GET /v1/authz HTTP/1.1\r\nHost: a\r\nX-Forwarded-Uri: /\r\n{}\r\n", key(credential));
    answers.push(server.exchange(held.as_bytes()).status.to_string());
    for (path, body) in [
        ("/v1/check", body.clone()),
        ("/v1/check/batch", format!("[{body}]")),
        ("/v1/reservations", body),
        (
            "/json",
            json!({"domain": "d", "descriptors": [{"entries": [{"key": "api_key", "value": credential}]}]})
                .to_string(),
        ),
    ] {
        let answer = server.send("POST", path, &body);
        answers.push(format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body)));
    }
    answers.push(server.resp_exchange(format!("TG.CHECK api_key {credential}\r\nQUIT\r\n").as_bytes()));
    let rls = Client::new(server.grpc.unwrap());
    answers.push(rls::shown(&rls.ask(rls::question("d", 1, &format!("api_key={credential}"))).unwrap()));
    answers.join("\n")
}

/// Ways in of [`ask_everywhere`].
pub const WAYS: usize = 8;
