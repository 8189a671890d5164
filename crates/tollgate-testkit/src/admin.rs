//! A server with an admin token, and the commands of its operator.

use std::process::Command;

use serde_json::Value;

use crate::http::{Response, request};
use crate::program::{Server, stderr, stdout, tollgate};

pub const TOKEN: &str = "a-token-for-tests-0123456789";
pub const POLICY: &str = "limits: [{name: per-key, by: [api_key], rate: 5/h}, {name: all, rate: 1000/h}]";

/// A server with one token.
pub fn server(policy: &str) -> Server {
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "-"]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    Server::spawn(command, policy)
}

pub fn ask(server: &Server, token: &str, method: &str, path: &str, body: &str) -> Response {
    let headers = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
    let bytes = request(method, path, &headers, body.as_bytes());
    server.exchange(
        &String::from_utf8(bytes).unwrap().replacen("Host: test", "Host: localhost", 1).into_bytes(),
    )
}

pub fn operate(server: &Server, arguments: &[&str]) -> Command {
    let mut command = tollgate(arguments);
    command.env("TOLLGATE_SERVER", format!("http://{}", server.address)).env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    command
}

/// The output of a command on both streams, and its exit status.
pub fn output_of(server: &Server, words: &str) -> (Option<i32>, String) {
    let output = operate(server, &words.split(' ').collect::<Vec<_>>()).output().unwrap();
    (output.status.code(), stdout(&output) + &stderr(&output))
}

#[track_caller]
pub fn says(server: &Server, words: &str, expected: &[&str]) {
    let (code, text) = output_of(server, words);
    assert_eq!(code, Some(status(words, &text)), "{words}: {text}");
    for expected in expected {
        assert!(text.contains(expected), "{words}: {expected:?} is not in {text}");
    }
}

/// The status of a command that worked: `get` and `explain` answer 1 when such a request is denied, and `reset` when there
/// was no counter.
pub fn status(words: &str, printed: &str) -> i32 {
    let is_question = words.starts_with("get ") || words.starts_with("explain ");
    let is_denied = printed.contains("is denied now") || printed.contains("{\"allowed\":false");
    let is_void = ["no counter existed", "nothing was reset", "\"counters\":0,"];
    let is_void = words.starts_with("reset ") && is_void.iter().any(|text| printed.contains(text));
    i32::from(is_question && is_denied || is_void)
}

pub fn shown(server: &Server, words: &str) -> Value {
    let (_, text) = output_of(server, &format!("{words} --json"));
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{words}: {text}"))
}
