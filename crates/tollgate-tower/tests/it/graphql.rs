//! GraphQL requests through both layers: hard caps, limits in points, and settled costs.

use std::convert::Infallible;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tollgate_tower::graphql::{CostModel, GraphqlLayer, OperationCost, Persisted, points};
use tower::{Layer, ServiceExt, service_fn};

use crate::limited::World;

/// Answers with the cost and the body of the request. A cost in the text is repeated in a header.
async fn upstream(request: Request<Body>) -> Result<Response<Full<Bytes>>, Infallible> {
    let cost = request.extensions().get::<OperationCost>().copied();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut response =
        Response::new(Full::from(format!("{} {}", cost.map_or(0, |cost| cost.points), body.len())));
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

/// Every form of an operation has the same cost, and the body arrives unchanged.
#[tokio::test]
async fn every_form_of_an_operation_has_its_cost() {
    let layer = || GraphqlLayer::new(CostModel::default());
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

/// The story: the layer compared the path byte by byte, so `/GraphQL` or `/graphql/` passed without a cost, and an axum
/// fallback or a proxy served it. Now the layer compares paths as the gateway does.
#[tokio::test]
async fn every_spelling_of_the_path_has_its_cost() {
    let json = r#"{"query":"{ posts(first: 9) { id } }"}"#;
    let ask = async |layer: GraphqlLayer, path: &str| {
        let request = Request::post(path).header("content-type", "application/json");
        asked(layer, request.body(Body::from(json)).unwrap()).await.1
    };
    let (with_cost, free) = (format!("10 {}", json.len()), format!("0 {}", json.len()));
    let layer = || GraphqlLayer::new(CostModel::default());
    for path in
        ["/graphql/", "/GraphQL", "//graphql", "/x/../graphql", "/%67raphql", "/graphql;v=1", "/graphql.json"]
    {
        assert_eq!(ask(layer(), path).await, with_cost, "{path}");
    }
    assert_eq!(ask(layer(), "/graphqlx").await, free);
    for (path, expected) in [("/API/query/", &with_cost), ("/api/query", &with_cost), ("/graphql", &free)] {
        assert_eq!(&ask(layer().at("/api/query"), path).await, expected, "{path}");
    }
}

/// An operation beyond a cap, an unreadable or an unknown one is refused. The error says what would be accepted.
#[tokio::test]
async fn invalid_operations_are_refused() {
    let layer = || GraphqlLayer::new(CostModel::default()).body_at_most(200);
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

/// A request that servers may read differently is refused, because an expensive operation could run at the cost of a cheap
/// one. A preflight passes.
#[tokio::test]
async fn ambiguous_requests_are_refused() {
    let layer = || GraphqlLayer::new(CostModel::default());
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
        // Go servers ignore the case of names, and servers with trusted documents find operations by an id.
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

/// The layer would see only the first message of a WebSocket. Some clients offer HTTP/2 with every request, which is
/// accepted.
#[tokio::test]
async fn other_protocols_are_refused() {
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
    let layer = || GraphqlLayer::new(CostModel::default());
    for (method, upgrade) in
        [("GET", "websocket"), ("GET", "h2c, WebSocket"), ("OPTIONS", "echo"), ("CONNECT", "h2c")]
    {
        let (status, body) = asked(layer(), with(method, upgrade)).await;
        assert!(status == 400 && body.contains("upgrade:"), "{method} {upgrade}: {status} {body}");
    }
    assert_eq!(asked(layer(), with("GET", "h2c")).await.0, 200);
}

/// An allow-list accepts its operations by text or by hash, and no others.
#[tokio::test]
async fn an_allow_list_accepts_only_its_operations() {
    let layer = || GraphqlLayer::new(CostModel::default()).persisted(Persisted::new(["{ a { b } }"]).only());
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

/// An expensive operation takes many points, and the cost that the service states is settled.
#[tokio::test]
async fn points_are_limited_and_settled() {
    let world = World::new("  - {name: points, rate: 100/h}");
    let limits = world.layer().cost(points).cost_from("x-graphql-cost").unwrap();
    let service = GraphqlLayer::new(CostModel::default()).layer(limits.layer(service_fn(upstream)));
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
