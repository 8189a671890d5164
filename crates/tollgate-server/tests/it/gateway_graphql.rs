//! GraphQL at the gateway: priced before the limits are asked, refused by caps, settled by what the upstream says, and sent on byte for byte.

use std::io::{BufReader, Write};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::gateway_upstream::{Gateway, Upstream};
use crate::program::{run, stderr};
use crate::proxy::Folder;
use crate::raw_http::Response;

const POLICY: &str = "limits: [{name: points, by: [api_key], rate: 100/h}]";

/// A gateway with this section at all paths of an upstream, and the folder that its files are in.
fn with(upstream: &Upstream, graphql: &str) -> (Gateway, Folder) {
    let folder = Folder::new("gateway-graphql");
    let known = folder.write("known.json", r#"["{ known { id } }"]"#).display().to_string();
    let graphql = graphql.replace("KNOWN", &known);
    let text = format!(
        "routes:\n  - upstreams: ['http://{address}']\n    graphql: {graphql}\n  - path: /plain\n    upstreams: ['http://{address}']\n",
        address = upstream.address
    );
    let config = folder.write("config.yaml", &text).display().to_string();
    // A client that a trusted proxy vouches for sees what is left.
    (Gateway::with(&["--config", &config, "--trusted-proxy", "127.0.0.0/8"], POLICY), folder)
}

fn post(gateway: &Gateway, path: &str, body: &str) -> Response {
    let length = body.len();
    gateway.exchange(&format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nX-API-Key: k\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    ))
}

/// The remaining units of the limit, from an answer.
fn left(response: &Response) -> u64 {
    let reported = response.header("ratelimit").unwrap_or_else(|| panic!("{:?}", response.headers));
    let left = reported.split(";r=").nth(1).unwrap().split(';').next().unwrap();
    left.parse().unwrap()
}

/// The code of a refusal.
fn code(response: &Response) -> (u16, String) {
    let code = response.json()["errors"][0]["extensions"]["code"].as_str().unwrap_or_default().to_owned();
    (response.status, code)
}

/// A size inside of an argument once cost one entry, so that `page: {first: 100000}` was cheap. It counts wherever it stands.
#[test]
fn sizes_inside_of_arguments_are_charged() {
    let upstream = Upstream::start();
    let (gateway, _folder) = with(&upstream, "{path: /echo}");
    let variables =
        r#"{"query":"query($p: Page) { posts(page: $p) { id } }","variables":{"p":{"by":[{"first":30}]}}}"#;
    assert_eq!(left(&post(&gateway, "/echo", variables)), 100 - 31);
    let written = r#"{"query":"{ posts(page: {first: 40}) { id } }"}"#;
    assert_eq!(left(&post(&gateway, "/echo", written)), 100 - 31 - 41);
    let default = r#"{"query":"query($p: Page = {first: 20}) { posts(page: $p) { id } }"}"#;
    assert_eq!(left(&post(&gateway, "/echo", default)), 100 - 31 - 41 - 21);
    assert_eq!(upstream.seen().len(), 3);
    let large = r#"{"query":"{ posts(page: {first: 100000}) { id } }"}"#;
    assert_eq!(code(&post(&gateway, "/echo", large)), (400, "GRAPHQL_TOO_COMPLEX".to_owned()));
    let hidden = r#"{"query":"{ posts(page: {first: \"100000\"}) { id } }"}"#;
    assert_eq!(code(&post(&gateway, "/echo", hidden)), (400, "BAD_USER_INPUT".to_owned()));
    assert_eq!(upstream.seen().len(), 0);
}

/// Points are charged, whichever way an operation is sent; the upstream gets what was sent. What is no GraphQL costs 1 and is not read.
#[test]
fn points_are_charged() {
    let upstream = Upstream::start();
    let (gateway, _folder) =
        with(&upstream, "{path: [/echo, /cost], weights: {search: 20}, lists: {tags: 5}}");
    // Odd spaces and escapes: the gateway does not rewrite it.
    let body = "{ \"query\" : \"query($n: Int) { posts(first: $n) { id } }\",\t\"variables\":{\"n\":9}, \"extensions\":{\"x\":\"\\u00e9\"} }\n";
    let answer = post(&gateway, "/cost/1", body);
    assert_eq!(
        (answer.status, String::from_utf8_lossy(&answer.body).as_ref(), left(&answer)),
        (200, body, 90)
    );
    let seen = upstream.only();
    assert_eq!(seen.header("content-length"), body.len().to_string());
    // A batch costs the sum of its operations, in chunks as well.
    let batch = r#"[{"query":"{ search }"},{"query":"{ tags { name } }"}]"#;
    let chunks: String = batch
        .as_bytes()
        .chunks(7)
        .map(|part| format!("{:x}\r\n{}\r\n", part.len(), String::from_utf8_lossy(part)))
        .collect();
    let answer = gateway.exchange(&format!(
        "POST /Echo/ HTTP/1.1\r\nHost: a\r\nX-API-Key: k\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
    ));
    assert_eq!((answer.status, left(&answer)), (200, 64), "another spelling of the path is no other price");
    assert_eq!(upstream.only().header("content-length"), batch.len().to_string());
    let get = "/echo?query=%7Bposts(first:3)%7Bid%7D%7D";
    let answer = gateway.get(get, "X-API-Key: k\r\n");
    assert_eq!((answer.status, left(&answer)), (200, 60));
    assert_eq!(upstream.only().line, format!("GET {get}"));
    // What a browser asks by itself, other paths, and another route.
    let preflight = "OPTIONS /echo HTTP/1.1\r\nHost: a\r\nX-API-Key: k\r\nOrigin: http://b\r\nAccess-Control-Request-Method: POST\r\n\r\n";
    assert_eq!(gateway.exchange(preflight).status, 200);
    assert_eq!(left(&post(&gateway, "/other", "no GraphQL")), 58);
    assert_eq!(left(&post(&gateway, "/plain/echo", "no GraphQL")), 57);
    // More than is left: the upstream never sees it, and it costs nothing.
    upstream.seen();
    let answer = post(&gateway, "/echo", r#"{"query":"{ posts(first: 57) { id } }"}"#);
    assert_eq!((answer.status, answer.json()["violated-policies"][0].as_str()), (429, Some("points")));
    let after = left(&gateway.get("/x", "X-API-Key: k\r\n"));
    assert_eq!((upstream.count(), after), (1, 56));
}

/// Caps come before the limiter: a refused operation costs nothing, reaches no upstream, and the error says what would be accepted.
#[test]
fn caps_come_first() {
    let upstream = Upstream::start();
    let caps =
        "{path: /echo, body_bytes: 1024, caps: {depth: 3, fields: 5, aliases: 1, points: 50, operations: 2}}";
    let (gateway, _folder) = with(&upstream, caps);
    let large = format!(r#"{{"query":"{{ a }}","operationName":"{}"}}"#, "y".repeat(1_024));
    let refused = [
        (r#"{"query":"{ a { b { c { d } } } }"}"#, 400, "GRAPHQL_TOO_COMPLEX"),
        (r#"{"query":"{ a b c d e f }"}"#, 400, "GRAPHQL_TOO_COMPLEX"),
        (r#"{"query":"{ x: a y: a }"}"#, 400, "GRAPHQL_TOO_COMPLEX"),
        (r#"{"query":"{ a(first: 50) { b } }"}"#, 400, "GRAPHQL_TOO_COMPLEX"),
        (r#"[{"query":"{ a }"},{"query":"{ a }"},{"query":"{ a }"}]"#, 400, "BAD_REQUEST"),
        (r#"{"query":"{ a"}"#, 400, "GRAPHQL_PARSE_FAILED"),
        ("a=b", 400, "BAD_REQUEST"),
        (r#"{"query":"{ a }","Query":"{ a { b { c { d } } } }","documentId":"x"}"#, 400, "BAD_REQUEST"),
        (
            r#"{"query":"query($n: Int) { a(first: $n) { b } }","variables":{"n":1000,"n":1}}"#,
            400,
            "BAD_REQUEST",
        ),
        (large.as_str(), 413, "PAYLOAD_TOO_LARGE"),
    ];
    for (body, status, expected) in refused {
        assert_eq!(code(&post(&gateway, "/echo", body)), (status, expected.to_owned()), "{body:.60}");
    }
    let deep = post(&gateway, "/echo", refused[0].0);
    assert!(deep.json()["errors"][0]["message"].as_str().unwrap().contains("accepted: at most 3"));
    // One that does not say how large it is is read no further than it may be.
    let mut stream = gateway.connect();
    let head = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(format!("{head}800\r\n{}\r\n", "x".repeat(0x800)).as_bytes()).unwrap();
    assert_eq!(Response::read(&mut BufReader::new(&stream)).status, 413);
    // A WebSocket would pass every price but the first.
    let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    for target in ["/echo", "/echo?query=%7Ba%7D"] {
        assert_eq!(code(&gateway.get(target, upgrade)), (400, "BAD_REQUEST".to_owned()), "{target}");
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(left(&gateway.get("/x", "X-API-Key: k\r\n")), 99);
    // A client that expects 100 gets the answer before it sends anything.
    let asks = format!(
        "{}Content-Length: 4096\r\nExpect: 100-continue\r\n\r\n",
        head.replace("Transfer-Encoding: chunked\r\n\r\n", "")
    );
    assert_eq!(gateway.exchange(&asks).status, 413);
    // Any other body is asked for before the limits are, since it says what it costs.
    let asks = asks.replace("4096", "16");
    assert_eq!(gateway.exchange(&asks).status, 100);
}

/// Servers that forgive much take many spellings for one path. None gets around the caps, neither where a route of everything else leads
/// to the same service, which these spellings take, nor where several paths of one route are priced.
#[test]
fn no_spelling_gets_around() {
    let upstream = Upstream::start();
    let folder = Folder::new("gateway-graphql-spellings");
    let start = |text: &str| {
        let text = text.replace("UPSTREAM", &format!("http://{}", upstream.address));
        let config = folder.write("config.yaml", &text).display().to_string();
        Gateway::with(&["--config", &config, "--trusted-proxy", "127.0.0.0/8"], POLICY)
    };
    let deep = r#"{"query":"{ a { b { c { d } } } }"}"#;
    let two = start(
        "routes:\n  - {name: rest, upstreams: [UPSTREAM]}\n  - {name: gql, path: /API/graphql, upstreams: [UPSTREAM], graphql: {path: /API/graphql, caps: {depth: 3}}}\n",
    );
    for path in [
        "/API/graphql",
        "/api/GraphQL",
        "/API/graphql;x",
        "/API/graphql.",
        "/api;x/graphql/",
        "/API/graphql.json",
    ] {
        assert_eq!(code(&post(&two, path, deep)), (400, "GRAPHQL_TOO_COMPLEX".to_owned()), "{path}");
    }
    // A path of its own for everything else, and the price where the caps are kept.
    assert_eq!(left(&post(&two, "/API/graphqlx", deep)), 99);
    assert_eq!(left(&post(&two, "/api/graphql", r#"{"query":"{ a(first: 9) { b } }"}"#)), 89);
    let one = start(
        "routes: [{upstreams: [UPSTREAM], graphql: {path: [/graphql, /api/graphql], caps: {depth: 3}}}]",
    );
    for path in
        ["/api/graphql", "/api;x/graphql", "/api./graphql", "/api%20/graphql", "/graphql.", "/Graphql"]
    {
        assert_eq!(code(&post(&one, path, deep)), (400, "GRAPHQL_TOO_COMPLEX".to_owned()), "{path}");
    }
    assert_eq!(upstream.count(), 2);
}

/// Bodies that are announced and never come take no room: 270 of them once shut GraphQL for everybody, for as long as a client may be slow.
#[test]
fn bodies_that_never_come() {
    let upstream = Upstream::start();
    let (gateway, _folder) = with(&upstream, "{path: /echo, body_bytes: 1048576}");
    let head = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1048576\r\n\r\n{";
    let idle: Vec<_> = (0..270)
        .map(|_| {
            let mut stream = gateway.connect();
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    for _ in 0..3 {
        assert_eq!(post(&gateway, "/echo", r#"{"query":"{ a }"}"#).status, 200);
    }
    drop(idle);
}

/// The upstream's report of an operation's cost replaces the estimate; without a report the estimate stays.
#[test]
fn the_upstream_settles() {
    let upstream = Upstream::start();
    let (gateway, _folder) = with(&upstream, "{path: [/cost, /echo], cost_from: X-GraphQL-Cost}");
    let dear = r#"{"query":"{ posts(first: 39) { id } }"}"#;
    assert_eq!(post(&gateway, "/cost/3", dear).status, 200);
    let now = || left(&gateway.get("/x", "X-API-Key: k\r\n"));
    assert_eq!(now(), 96, "charged 40, settled at 3");
    assert_eq!(post(&gateway, "/cost/45", dear).status, 200);
    assert_eq!(now(), 50, "charged 40, settled at 45");
    assert_eq!(post(&gateway, "/echo", dear).status, 200);
    assert_eq!(now(), 9, "charged 40");
    assert_eq!(post(&gateway, "/cost/1", dear).status, 429);
    assert_eq!(post(&gateway, "/cost/nonsense", r#"{"query":"{ a }"}"#).status, 200);
    assert_eq!(now(), 7);
}

/// An allow-list: known operations by text or by hash, and no others, unless the list is an open one.
#[test]
fn only_known_operations() {
    let upstream = Upstream::start();
    let (gateway, _folder) = with(&upstream, "{path: /echo, persisted: {file: KNOWN}}");
    assert_eq!(post(&gateway, "/echo", r#"{"query":"{ known { id } }"}"#).status, 200);
    // `printf '{ known { id } }' | sha256sum`
    let known = "5527ac2a3844a241e301979ae07975311541e381a4b0396e7a87384af18ad1a9";
    let by_hash = |hash: &str| {
        format!(r#"{{"extensions":{{"persistedQuery":{{"version":1,"sha256Hash":"{hash}"}}}}}}"#)
    };
    assert_eq!(left(&post(&gateway, "/echo", &by_hash(known))), 96);
    let other = post(&gateway, "/echo", r#"{"query":"{ known { id name } }"}"#);
    assert_eq!(code(&other), (400, "PERSISTED_QUERY_ONLY".to_owned()));
    assert_eq!(code(&post(&gateway, "/echo", &by_hash("00"))), (400, "PERSISTED_QUERY_NOT_FOUND".to_owned()));
    assert_eq!(upstream.seen().len(), 2);
    let (open, _folder) = with(&upstream, "{path: /echo, persisted: {file: KNOWN, only: false}}");
    assert_eq!(post(&open, "/echo", r#"{"query":"{ other }"}"#).status, 200);
    assert_eq!(post(&open, "/echo", &by_hash(known)).status, 200);
}

/// The same over HTTP/2; and whom there is no capacity for gets all of its points back.
#[test]
fn h2_and_shedding() {
    let upstream = Upstream::start();
    let folder = Folder::new("gateway-graphql-h2");
    let text = format!(
        "routes: [{{upstreams: ['http://{}'], graphql: {{path: /echo}}}}]\noverload: {{concurrency: {{min: 1, initial: 1, max: 1}}}}",
        upstream.address
    );
    let config = folder.write("config.yaml", &text).display().to_string();
    let gateway = Gateway::with(&["--config", &config], POLICY);
    upstream.run(async {
        let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let ask = async |query: &str| {
            let request = Request::post("http://a/echo")
                .header("content-type", "application/json")
                .header("x-api-key", "k")
                .body(Full::<Bytes>::from(format!(r#"{{"query":"{query}"}}"#)))
                .unwrap();
            let response = sender.clone().send_request(request).await.unwrap();
            let status = response.status().as_u16();
            (status, response.into_body().collect().await.unwrap().to_bytes())
        };
        let (status, body) = ask("{ a(first: 9) { b } }").await;
        assert_eq!((status, &body[..]), (200, &br#"{"query":"{ a(first: 9) { b } }"}"#[..]));
        // The only place is taken.
        let mut other = sender.clone();
        let hanging = Request::get("http://a/hang").body(Full::default()).unwrap();
        let _hanging = tokio::spawn(async move { drop(other.send_request(hanging).await) });
        while upstream.count() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for _ in 0..20 {
            assert_eq!(ask("{ a(first: 49) { b } }").await.0, 503);
        }
        assert_eq!(ask("{ a(first: 95) { b } }").await.0, 429);
    });
}

/// Wrong sections stop the start, with every problem and what would be accepted; so do files of operations that are none.
#[test]
fn wrong_sections_stop_the_start() {
    let folder = Folder::new("gateway-graphql-wrong");
    let start = |graphql: &str| {
        let text = format!("routes: [{{path: /api, upstreams: ['http://127.0.0.1:9'], graphql: {graphql}}}]");
        let config = folder.write("config.yaml", &text).display().to_string();
        let output =
            run(&["serve", "--http", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--config", &config], b"");
        assert!(!output.status.success(), "{graphql}");
        stderr(&output)
    };
    let reported = start("{path: /graphql, caps: {depth: 0}, weights: {'a-b': 1}}");
    for expected in [
        "routes[0].graphql.caps.depth: 0 is not accepted; accepted: 1 to 100",
        "routes[0].graphql.weights: \"a-b\" is no name in GraphQL",
        "routes[0].graphql.path: \"/graphql\" is none of this route's",
    ] {
        assert!(reported.contains(expected), "{reported}");
    }
    assert!(start("{path: /api, depth: 3}").contains("depth"));
    for (file, expected) in [
        ("{}", "no operation is in it"),
        ("[1]", "accepted: a JSON list of texts"),
        (r#"{"abc": "{ a }"}"#, "abc: not the SHA-256 of its text"),
    ] {
        let path = folder.write("known.json", file).display().to_string();
        let reported = start(&format!("{{path: /api, persisted: {{file: {path}}}}}"));
        assert!(reported.contains("graphql.persisted.file") && reported.contains(expected), "{reported}");
    }
    assert!(start("{path: /api, persisted: {file: /nowhere.json}}").contains("no such file; check the path"));
}
