//! The token: who may ask, and what a stranger learns.

use tollgate_testkit::Scratch;

use crate::program::{SLOW_POLICY, Server, stderr, tollgate};
use crate::raw_http::request;

const TOKEN: &str = "6f1ed002ab5595859014ebf0951522d9";
const QUESTION: &[u8] = br#"{"attributes":{"api_key":"k"}}"#;

/// With a token, every path but the health checks wants it; a stranger learns nothing and uses up nothing.
#[test]
fn a_token_is_wanted() {
    let scratch = Scratch::new();
    scratch.replace("token", &format!("{TOKEN}\n"));
    let token = scratch.text("token");
    let arguments = ["serve", "--http", "0.0.0.0:0", "--policy", "-", "--auth-token-file", &token];
    let server = Server::start_with(&arguments, SLOW_POLICY);
    assert!(server.banner.contains("without TLS the token can be read"), "{}", server.banner);
    let ask = |path: &str, header: &str| {
        server.exchange(&request(
            "POST",
            path,
            &format!("Content-Type: application/json\r\n{header}"),
            QUESTION,
        ))
    };
    let wrong = TOKEN.replace('6', "7");
    for header in
        ["", &format!("Authorization: Bearer {wrong}\r\n"), &format!("X-Tollgate-Token: {wrong}\r\n")]
    {
        for path in ["/v1/check", "/v1/check/batch", "/v1/reservations", "/v1/nothing", "/"] {
            let refused = ask(path, header);
            assert!(refused.problem(401).contains("Authorization: Bearer"), "{path}");
            assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
        }
    }
    let allowed = ask("/v1/check", &format!("Authorization: Bearer {TOKEN}\r\n"));
    assert_eq!((allowed.status, &allowed.json()["limits"][0]["remaining"]), (200, &4.into()));
    assert_eq!(ask("/v1/check", &format!("X-Tollgate-Token: {TOKEN}\r\n")).status, 200);

    assert_eq!(server.send("GET", "/healthz", "").status, 200);
    let stranger = server.ready();
    assert_eq!(stranger, serde_json::json!({"status": "ok"}));
    let known =
        server.exchange(&request("GET", "/readyz", &format!("Authorization: Bearer {TOKEN}\r\n"), b""));
    assert_eq!(known.json()["policy"]["name"], "<stdin>");
}

/// The token may come from the environment; one that anybody could guess is refused, and not repeated.
#[test]
fn a_token_from_the_environment() {
    let arguments = ["serve", "--http", "127.0.0.1:0", "--policy", "-"];
    let mut command = tollgate(&arguments);
    command.env("TOLLGATE_AUTH_TOKEN", TOKEN);
    let server = Server::spawn(command, SLOW_POLICY);
    assert_eq!(server.send("POST", "/v1/check", "{}").status, 401);
    assert!(server.banner.contains("Authorization: Bearer $TOKEN"), "{}", server.banner);
    assert!(!server.banner.contains(TOKEN));

    let output = tollgate(&arguments).env("TOLLGATE_AUTH_TOKEN", "hunter2").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    assert!(message.contains("TOLLGATE_AUTH_TOKEN: not a token"), "{message}");
    assert!(!message.contains("hunter2"));
}
