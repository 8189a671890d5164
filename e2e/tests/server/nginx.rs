//! The real nginx with `deploy/nginx/tollgate.conf`.

use crate::admin;
use crate::program::Server;
use crate::proxy::{App, Folder, Proxy, free_port};

const POLICY: &str = "limits:
  - {name: per-key, by: [api_key], rate: 5/h}
  - {name: login, when: {path: /login}, by: [ip], rate: 3/h}
  - {name: whales, when: {path: /whale}, by: [ip], rate: 1/h, cost: tokens}
";

/// nginx with the recipe, its three addresses changed.
pub(crate) fn nginx(tollgate: &str, app: &App) -> (Proxy, Folder) {
    let (folder, port) = (Folder::new("nginx"), free_port());
    let replacements = [
        ("127.0.0.1:8080", tollgate.to_owned()),
        ("127.0.0.1:3000", format!("127.0.0.1:{}", app.port)),
        ("127.0.0.1:8000", format!("127.0.0.1:{port}")),
    ];
    let recipe = folder.adapt("deploy/nginx/tollgate.conf", "tollgate.conf", &replacements);
    let proxy = Proxy::nginx(&folder, port, &format!("include {};", recipe.display()));
    (proxy, folder)
}

/// Exactly so many requests pass as the limit has, whatever their number, and the client sees why the others do not.
#[test]
fn exactly_the_limit_passes() {
    let (server, app) = (Server::start(POLICY), App::start());
    let (nginx, folder) = nginx(&server.address.to_string(), &app);
    let answers: Vec<_> = (0..9).map(|_| nginx.get("/x", "X-API-Key: k1\r\n")).collect();
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429, 429]);
    assert_eq!(app.seen(), 5);
    let first = &answers[0];
    assert_eq!(first.body, b"hello");
    assert_eq!(first.header("ratelimit-policy"), Some("\"per-key\";q=5;w=3600"));
    assert!(first.header("ratelimit").unwrap().starts_with("\"per-key\";r=4;t="));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("4"));
    assert_eq!(first.header("x-ratelimit-used"), Some("1"));
    assert_eq!(first.header("x-ratelimit-resource"), Some("per-key"));
    assert_eq!((first.header("retry-after"), first.header("cache-control")), (None, None));
    let denied = &answers[5];
    assert!(denied.header("retry-after").unwrap().parse::<u64>().unwrap() >= 720);
    assert!(denied.header("ratelimit").unwrap().starts_with("\"per-key\";r=0;t="));
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.json()["status"], 429);
    // Another key, and the same one as a bearer token.
    assert_eq!(nginx.get("/x", "X-API-Key: k2\r\n").status, 200);
    assert_eq!(nginx.get("/x", "Authorization: Bearer k1\r\n").status, 429);
    let errors = std::fs::read_to_string(folder.0.join("error.log")).unwrap();
    assert!(!errors.contains("unexpected status"), "{errors}");
}

/// A client behind nginx once got 429 and `quota-exceeded` where the policy says `deny`, and where an operator had blocked it: it
/// came back again and again. It gets the status and the reason that Tollgate means.
#[test]
fn denied_and_blocked_clients_get_the_reason() {
    assert_reasons_reach_clients(nginx);
}

/// Denied and blocked clients get the status, the reason and the time to retry that Tollgate means, through this proxy.
pub(crate) fn assert_reasons_reach_clients(start: fn(&str, &App) -> (Proxy, Folder)) {
    let policy = "limits:
  - {name: per-key, by: [api_key], rate: 5/h}
  - {name: exports, when: {path: /export}, by: [ip], rate: deny}
";
    let (server, app) = (admin::server(policy), App::start());
    let (proxy, _folder) = start(&server.address.to_string(), &app);
    let forbidden = proxy.get("/export", "");
    assert_eq!((forbidden.status, forbidden.header("retry-after")), (403, None));
    assert_eq!(forbidden.header("content-type"), Some("application/problem+json"));
    let problem = forbidden.json();
    assert_eq!((&problem["cause"], &problem["retryable"]), (&"exports".into(), &false.into()));
    admin::says(&server, "block api_key=k1 --for 1h", &["is blocked until"]);
    let blocked = proxy.get("/x", "X-API-Key: k1\r\nAccept: text/html\r\n");
    assert_eq!((blocked.status, &blocked.json()["reason"]), (429, &"operator-block".into()));
    assert!(blocked.header("retry-after").unwrap().parse::<u64>().unwrap() > 3_000);
    assert_eq!(proxy.get("/x", "X-API-Key: k2\r\n").status, 200);
    assert_eq!(app.seen(), 1);
}

/// Methods, bodies and paths arrive as they were sent, and nothing that a client adds is believed.
#[test]
fn clients_cannot_forge_through_nginx() {
    let (server, app) = (Server::start(POLICY), App::start());
    let (nginx, _folder) = nginx(&server.address.to_string(), &app);
    let forged = |n: u32| {
        format!(
            "X-Forwarded-For: 203.0.113.{n}\r\nX-Original-URI: /other\r\nX-Forwarded-Uri: /other\r\nX-Forwarded-Method: PUT\r\n"
        )
    };
    let spellings = ["/login", "//login", "/%6cogin", "/login?x=1"];
    let statuses: Vec<u16> =
        (0..).zip(spellings).map(|(n, path)| nginx.get(path, &forged(n)).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    let post = "POST /x HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";
    assert_eq!(nginx.send(post).status, 200);
    // What Tollgate refuses for other reasons is refused with its status, and never passes.
    let before = app.seen();
    assert_eq!(nginx.get("/a%2fb", "").status, 400);
    assert_eq!(nginx.get("/whale", "").status, 400);
    let key = "k".repeat(7_000);
    let large = format!("X-API-Key: {key}\r\nAuthorization: Bearer {key}\r\nX-Large: {key}\r\n");
    let large = nginx.get(&format!("/{key}"), &large);
    assert!((400..=503).contains(&large.status), "{}", large.status);
    assert_eq!(app.seen(), before);
}

/// Without Tollgate, `/` is open and `/login` is closed, as the recipe says.
#[test]
fn tollgate_is_down() {
    let app = App::start();
    let (nginx, _folder) = nginx(&format!("127.0.0.1:{}", free_port()), &app);
    let open = nginx.get("/x", "X-API-Key: k1\r\n");
    assert_eq!(
        (open.status, open.body.as_slice(), open.header("ratelimit")),
        (200, b"hello".as_slice(), None)
    );
    let post = "POST /x HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";
    assert_eq!(nginx.send(post).status, 200);
    assert_eq!(app.seen(), 2);
    assert_eq!(nginx.get("/login", "").status, 503);
    assert_eq!(app.seen(), 2);
}
