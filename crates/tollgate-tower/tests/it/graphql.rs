//! GraphQL requests through both layers: priced, capped, limited by points, and settled at what the service says.

use std::convert::Infallible;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tollgate_tower::graphql::{GraphqlLayer, Persisted, Price, Pricing, points};
use tower::{Layer, ServiceExt, service_fn};

use crate::limited::World;

/// Tells what it got: the price and the body. A cost that the text names is told in a header.
async fn upstream(request: Request<Body>) -> Result<Response<Full<Bytes>>, Infallible> {
    let price = request.extensions().get::<Price>().copied();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut response =
        Response::new(Full::from(format!("{} {}", price.map_or(0, |price| price.points), body.len())));
    if body.windows(5).any(|part| part == b"cheap") {
        response.headers_mut().insert("x-graphql-cost", "2".parse().unwrap());
    }
    Ok(response)
}

async fn asked(layer: GraphqlLayer, request: Request<Body>) -> (u16, String) {
    let response = layer.layer(service_fn(upstream)).oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    (status, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
}

fn post(body: &str) -> Request<Body> {
    Request::post("/graphql")
        .header("content-type", "application/json")
        .body(Body::from(body.to_owned()))
        .unwrap()
}

/// Every way to send an operation has the same price, and the body arrives as it was sent.
#[tokio::test]
async fn every_form_is_priced() {
    let layer = || GraphqlLayer::new(Pricing::default());
    let json = r#"{"query":"query($n: Int) { posts(first: $n) { id } }","variables":{"n":9}}"#;
    assert_eq!(asked(layer(), post(json)).await, (200, format!("10 {}", json.len())));
    let batch = format!("[{json},{json}]");
    assert_eq!(asked(layer(), post(&batch)).await, (200, format!("20 {}", batch.len())));
    let get = "/graphql?query=query(%24n:Int)%7Bposts(first:%24n)%7Bid%7D%7D&variables=%7B%22n%22:9%7D";
    assert_eq!(
        asked(layer(), Request::get(get).body(Body::empty()).unwrap()).await,
        (200, "10 0".to_owned())
    );
    let bare = Request::post("/graphql")
        .header("content-type", "application/graphql")
        .body(Body::from("{ a }"))
        .unwrap();
    assert_eq!(asked(layer(), bare).await, (200, "1 5".to_owned()));
    let other = Request::post("/upload").body(Body::from("anything")).unwrap();
    assert_eq!(asked(layer(), other).await, (200, "0 8".to_owned()));
}

/// The story: the layer compared the path byte by byte, so `/GraphQL` or `/graphql/` passed without a price, and an axum fallback or a
/// proxy behind served it all the same. The rule is the gateway's.
#[tokio::test]
async fn no_spelling_of_the_path_gets_around_the_price() {
    let json = r#"{"query":"{ posts(first: 9) { id } }"}"#;
    let ask = async |layer: GraphqlLayer, path: &str| {
        let request = Request::post(path).header("content-type", "application/json");
        asked(layer, request.body(Body::from(json)).unwrap()).await.1
    };
    let (priced, free) = (format!("10 {}", json.len()), format!("0 {}", json.len()));
    let layer = || GraphqlLayer::new(Pricing::default());
    for path in
        ["/graphql/", "/GraphQL", "//graphql", "/x/../graphql", "/%67raphql", "/graphql;v=1", "/graphql.json"]
    {
        assert_eq!(ask(layer(), path).await, priced, "{path}");
    }
    assert_eq!(ask(layer(), "/graphqlx").await, free);
    for (path, expected) in [("/API/query/", &priced), ("/api/query", &priced), ("/graphql", &free)] {
        assert_eq!(&ask(layer().at("/api/query"), path).await, expected, "{path}");
    }
}

/// What is beyond a cap, unreadable or unknown goes no further, and says what would be accepted.
#[tokio::test]
async fn hard_caps_come_first() {
    let layer = || GraphqlLayer::new(Pricing::default()).body_at_most(200);
    let refused = async |request| {
        let (status, body) = asked(layer(), request).await;
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        (status, body["errors"][0]["extensions"]["code"].as_str().unwrap().to_owned())
    };
    let large = format!(r#"{{"query":"{{ a {} }}"}}"#, "b ".repeat(200));
    assert_eq!(refused(post(&large)).await, (413, "PAYLOAD_TOO_LARGE".to_owned()));
    assert_eq!(
        refused(post(r#"{"query":"{ a(first: 1000000) { b } }"}"#)).await,
        (400, "GRAPHQL_TOO_COMPLEX".to_owned())
    );
    assert_eq!(refused(post(r#"{"query":"{ a"}"#)).await, (400, "GRAPHQL_PARSE_FAILED".to_owned()));
    assert_eq!(refused(post("{}")).await, (400, "BAD_REQUEST".to_owned()));
    assert_eq!(refused(post("[]")).await, (400, "BAD_REQUEST".to_owned()));
    let form = Request::post("/graphql")
        .header("content-type", "multipart/form-data")
        .body(Body::from("x"))
        .unwrap();
    assert_eq!(refused(form).await, (400, "BAD_REQUEST".to_owned()));
}

/// What servers read in two places or in two ways is refused, so that nobody is shown a cheap operation while a dear one runs. What a
/// browser asks by itself passes.
#[tokio::test]
async fn one_reading() {
    let layer = || GraphqlLayer::new(Pricing::default());
    let json = r#"{"query":"{ a }"}"#;
    let with = |target: &str, fields: &[(&str, &str)], body: &str| {
        let mut request = Request::post(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(Body::from(body.to_owned())).unwrap()
    };
    let kind = ("content-type", "application/json");
    assert_eq!(asked(layer(), with("/graphql?x=1", &[kind], json)).await.0, 200);
    let beside = r#"{"query":"{ a }","operationName":null,"variables":null,"extensions":{"trace":{"id":1}}}"#;
    assert_eq!(asked(layer(), with("/graphql", &[kind], beside)).await.0, 200);
    let utf8 = ("content-type", "application/json; Charset=\"UTF-8\"");
    assert_eq!(asked(layer(), with("/graphql", &[utf8], json)).await.0, 200);
    let twice = [
        with("/graphql?query=%7Ba%7D", &[kind], json),
        with("/graphql?%71uery", &[kind], json),
        with("/graphql?variables=%7B%7D", &[kind], json),
        with("/graphql", &[kind, ("content-type", "application/graphql")], json),
        with("/graphql", &[("content-type", "application/json; charset=utf-7")], json),
        with("/graphql", &[kind, ("content-encoding", "gzip")], json),
        with("/graphql", &[kind], r#"{"query":"{ a }","query":"{ b }"}"#),
        // Servers in Go read names in any case, and those of trusted documents know operations by an id.
        with("/graphql", &[kind], r#"{"query":"{ a }","Query":"{ b { c } }"}"#),
        with("/graphql", &[kind], r#"{"query":"{ a }","documentId":"x"}"#),
        with("/graphql", &[kind], r#"[{"query":"{ a }","id":"x"}]"#),
        with("/graphql", &[kind], r#"{"query":"{ a }","variables":{"n":1000,"n":1}}"#),
        with("/graphql", &[kind], r#"{"query":"{ a }","variables":{"page":{"n":1000,"n":1}}}"#),
        with("/graphql", &[kind], r#"{"query":"{ a }","extensions":{"PersistedQuery":{"sha256Hash":"x"}}}"#),
        with("/graphql?Query=%7Bb%7D", &[kind], json),
        with("/graphql?documentId=x", &[kind], json),
        Request::get("/graphql?query=%7Ba%7D&QUERY=%7Bb%7D").body(Body::empty()).unwrap(),
        Request::get("/graphql?query=%7Ba%7D&doc_id=1").body(Body::empty()).unwrap(),
        Request::get("/graphql?query=%7Ba%7D&variables%5Bn%5D=1000").body(Body::empty()).unwrap(),
        Request::get("/graphql?query=%7Ba%7D&x=1;query=%7Bb%7D").body(Body::empty()).unwrap(),
        Request::get("/graphql?query=%7Ba%7D&variables=%7B%22n%22:9,%22n%22:1%7D")
            .body(Body::empty())
            .unwrap(),
        Request::get("/graphql?query=%7Ba%7D").body(Body::from(r#"{"variables":{}}"#)).unwrap(),
        Request::get("/graphql?query=%7Ba%7D&query=%7Bb%7D").body(Body::empty()).unwrap(),
    ];
    for request in twice {
        let shown = format!("{request:?}");
        let (status, body) = asked(layer(), request).await;
        assert!(status == 400 && body.contains("BAD_REQUEST"), "{shown}: {status} {body}");
    }
    let preflight = Request::options("/graphql").header("access-control-request-method", "POST");
    assert_eq!(asked(layer(), preflight.body(Body::empty()).unwrap()).await, (200, "0 0".to_owned()));
}

/// A WebSocket would pass every price but the first, whatever it asks for at its beginning. HTTP/2 is offered by some clients with every
/// request, and means nothing else.
#[tokio::test]
async fn no_other_protocol() {
    let with = |method: &str, upgrade: &str| {
        Request::builder()
            .method(method)
            .uri("/graphql?query=%7Ba%7D")
            .header("connection", "upgrade")
            .header("upgrade", upgrade)
            .header("access-control-request-method", "POST")
            .body(Body::empty())
            .unwrap()
    };
    let layer = || GraphqlLayer::new(Pricing::default());
    for (method, upgrade) in
        [("GET", "websocket"), ("GET", "h2c, WebSocket"), ("OPTIONS", "echo"), ("CONNECT", "h2c")]
    {
        let (status, body) = asked(layer(), with(method, upgrade)).await;
        assert!(status == 400 && body.contains("upgrade:"), "{method} {upgrade}: {status} {body}");
    }
    assert_eq!(asked(layer(), with("GET", "h2c")).await.0, 200);
}

/// An allow-list lets known operations pass, by text or by hash, and no others.
#[tokio::test]
async fn only_known_operations() {
    let layer = || GraphqlLayer::new(Pricing::default()).persisted(Persisted::new(["{ a { b } }"]).only());
    assert_eq!(asked(layer(), post(r#"{"query":"{ a { b } }"}"#)).await.0, 200);
    let (status, body) = asked(layer(), post(r#"{"query":"{ a { b c } }"}"#)).await;
    assert!(status == 400 && body.contains("PERSISTED_QUERY_ONLY"), "{status} {body}");
    // `printf '{ a { b } }' | sha256sum`
    let hash = "057a0d9f30d847c3d33351f28634e4c04330f51e670903fc35112a17dcc4b2a4";
    let by_hash = |hash: &str| {
        post(&format!(r#"{{"extensions":{{"persistedQuery":{{"version":1,"sha256Hash":"{hash}"}}}}}}"#))
    };
    assert_eq!(asked(layer(), by_hash(hash)).await.0, 200);
    let (status, body) = asked(layer(), by_hash("00")).await;
    assert!(status == 400 && body.contains("PERSISTED_QUERY_NOT_FOUND"), "{status} {body}");
}

/// A limit of points: a dear operation takes many, and what the service says that it cost is what it costs.
#[tokio::test]
async fn points_are_limited_and_settled() {
    let world = World::new("  - {name: points, rate: 100/h}");
    let limits = world.layer().cost(points).cost_from("x-graphql-cost").unwrap();
    let service = GraphqlLayer::new(Pricing::default()).layer(limits.layer(service_fn(upstream)));
    let ask = async |query: &str| {
        let request = post(&format!(r#"{{"query":"{query}"}}"#));
        service.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!(ask("{ posts(first: 49) { id } }").await, 200);
    assert_eq!(world.remaining(&[]), 50);
    assert_eq!(ask("{ cheap(first: 39) { id } }").await, 200);
    assert_eq!(world.remaining(&[]), 48, "charged 40, and settled at 2");
    assert_eq!(ask("{ posts(first: 48) { id } }").await, 429);
    assert_eq!(ask("{ posts(first: 47) { id } }").await, 200);
    assert_eq!(ask("{ id }").await, 429);
}
