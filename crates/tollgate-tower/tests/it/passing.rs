//! Which requests pass, which are refused, and the headers of both.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tollgate::headers::{Exposure, HeaderPolicy};
use tollgate_tower::attributes::source::{Source, from_extensions, header, header_of_client};
use tower::{Layer, service_fn};

use crate::limited::{World, ask, from, hello};

const PER_IP: &str = "  - {name: per-ip, by: [ip], rate: 2/s}";

fn open() -> HeaderPolicy {
    HeaderPolicy { anonymous: Exposure::Full, ..HeaderPolicy::default() }
}

/// A refusal says why and when to retry, and a retry at that instant passes.
#[tokio::test]
async fn clones_share_one_limit() {
    let world = World::new(PER_IP);
    let service = world.layer().layer(service_fn(hello));
    let (first, second) = (service.clone(), service);
    let passed = ask(&first, from("203.0.113.7", "/")).await;
    assert_eq!((passed.status, passed.body.as_str()), (200, "hello"));
    assert_eq!(passed.header("x-ratelimit-remaining"), Some("1"));
    assert_eq!(ask(&second, from("203.0.113.7", "/")).await.status, 200);
    let refused = ask(&first, from("203.0.113.7", "/")).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert!(refused.header("retry-after").is_some_and(|seconds| seconds.parse::<u64>().unwrap() >= 1));
    let problem: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!(problem["violated-policies"][0], "per-ip");
    assert_eq!(ask(&second, from("203.0.113.8", "/")).await.status, 200);
    world.time.advance(Duration::from_millis(problem["retry-after-ms"].as_u64().unwrap()));
    assert_eq!(ask(&first, from("203.0.113.7", "/")).await.status, 200);
}

/// The story: a method in lower case passed a limit on `POST`. Now it is refused if a limit uses the method.
#[tokio::test]
async fn methods_have_one_spelling() {
    let world = World::new("  - {name: writes, when: {method: POST, path: /login}, by: [ip], rate: 1/h}");
    let service = world.layer().layer(service_fn(hello));
    let status = async |method: &str, path: &str| {
        let mut request = from("203.0.113.7", path);
        *request.method_mut() = method.parse().unwrap();
        ask(&service, request).await
    };
    assert_eq!(status("POST", "/login").await.status, 200);
    for method in ["post", "Post", "pOST"] {
        let refused = status(method, "/login").await;
        assert_eq!(refused.status, 400, "{method}");
        assert!(refused.body.contains("method: it has small letters"), "{}", refused.body);
    }
    for path in ["/login", "/login.json", "/login%2ejson", "/LOGIN/"] {
        assert_eq!(status("POST", path).await.status, 429, "{path}");
    }
    assert_eq!(status("PURGE", "/login").await.status, 200);
}

/// With `anonymous: retry-after`, an anonymous caller sees when to retry, and no numbers.
#[tokio::test]
async fn anonymous_callers_see_no_quotas() {
    let world = World::new(PER_IP);
    let hidden = HeaderPolicy { anonymous: Exposure::RetryAfter, ..HeaderPolicy::default() };
    let layer =
        world.layer().headers(hidden).authenticated(|request| request.headers.contains_key("x-known"));
    let service = layer.layer(service_fn(hello));
    let stranger = ask(&service, from("203.0.113.7", "/")).await;
    assert_eq!(stranger.header("x-ratelimit-remaining"), None);
    let mut request = from("203.0.113.7", "/");
    request.headers_mut().insert("x-known", "yes".parse().unwrap());
    assert_eq!(ask(&service, request).await.header("x-ratelimit-remaining"), Some("0"));
    let refused = ask(&service, from("203.0.113.7", "/")).await;
    assert!(refused.header("retry-after").is_some());
    assert!(!refused.body.contains("per-ip"), "{}", refused.body);
}

/// Without a peer address, all callers count as one client, and none is refused for it.
#[tokio::test]
async fn requests_without_an_address_count_as_one_client() {
    let world = World::new(PER_IP);
    let service = world.layer().layer(service_fn(hello));
    let request = || Request::get("/").body(Full::default()).unwrap();
    let statuses =
        [ask(&service, request()).await, ask(&service, request()).await, ask(&service, request()).await];
    assert_eq!(statuses.map(|got| got.status), [200, 200, 429]);
}

/// A client's own headers change nothing. Those of a trusted proxy name the client.
#[tokio::test]
async fn only_trusted_proxies_name_the_client() {
    let forwarded = |peer: &str, by: &str| {
        let mut request = from(peer, "/");
        request.headers_mut().insert("x-forwarded-for", by.parse().unwrap());
        request
    };
    let world = World::new(PER_IP);
    let service = world.layer().layer(service_fn(hello));
    for (number, status) in [200, 200, 429].into_iter().enumerate() {
        let forged = format!("198.51.100.{number}");
        assert_eq!(ask(&service, forwarded("203.0.113.7", &forged)).await.status, status);
    }
    let service = world.layer().behind(["10.0.0.0/8"]).unwrap().layer(service_fn(hello));
    for (number, status) in [200, 200, 429].into_iter().enumerate() {
        let forged = format!("192.0.2.{number}, 198.51.100.9");
        assert_eq!(ask(&service, forwarded("10.1.1.1", &forged)).await.status, status);
    }
    assert_eq!(ask(&service, forwarded("10.1.1.1", "198.51.100.10")).await.status, 200);
    assert!(world.layer().behind(["10.0.0.1/8"]).is_err_and(|error| error.to_string().contains("accepted")));
}

/// The tenant comes from the extensions, else from a header of the proxy, else it is the address.
#[tokio::test]
async fn sources_fall_back_to_the_next() {
    #[derive(Clone)]
    struct Tenant(&'static str);
    let world = World::new("  - {name: per-tenant, by: [tenant], rate: 1/h}");
    let tenant =
        from_extensions(|extensions, _| extensions.get::<Tenant>().map(|tenant| tenant.0.to_owned()));
    let tenant = tenant.or(header("x-tenant").unwrap()).or(Source::Client);
    let layer = world.layer().behind(["10.0.0.1"]).unwrap().attribute("tenant", tenant);
    let service = layer.layer(service_fn(hello));
    let mut known = from("203.0.113.7", "/");
    known.extensions_mut().insert(Tenant("acme"));
    assert_eq!(ask(&service, known).await.status, 200);
    assert_eq!(world.remaining(&[("tenant", "acme")]), 0);
    let with_tenant = |peer: &str| {
        let mut request = from(peer, "/");
        request.headers_mut().insert("x-tenant", "globex".parse().unwrap());
        request
    };
    assert_eq!(ask(&service, with_tenant("10.0.0.1")).await.status, 200);
    assert_eq!(world.remaining(&[("tenant", "globex")]), 0);
    assert_eq!(
        ask(&service, with_tenant("203.0.113.7")).await.status,
        200,
        "the header of an untrusted peer is not read"
    );
    assert_eq!(world.remaining(&[("tenant", "203.0.113.7")]), 0);
}

/// A skipped request does not count, and a request with a higher cost counts for more.
#[tokio::test]
async fn skipped_requests_are_free_and_costs_count() {
    let world = World::new("  - {name: per-key, by: [api_key], rate: 10/h}");
    let layer = world
        .layer()
        .attribute("api_key", header_of_client("x-key").unwrap())
        .skip(|request| request.uri.path() == "/healthz")
        .cost(|request| if request.uri.path() == "/export" { 4 } else { 1 });
    let service = layer.layer(service_fn(hello));
    let mut statuses = Vec::new();
    for path in ["/healthz", "/export", "/export", "/export", "/healthz", "/a", "/a", "/a"] {
        let mut request = from("203.0.113.7", path);
        request.headers_mut().insert("x-key", "k".parse().unwrap());
        statuses.push(ask(&service, request).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 200, 200, 200, 429]);
}

/// An ambiguous path, or two keys, are refused before any limit is charged.
#[tokio::test]
async fn ambiguous_requests_are_refused() {
    let world = World::new(
        "  - {name: per-ip, by: [ip], rate: 2/s}\n  - {name: orders, when: {path: /orders}, by: [api_key], rate: 1/s}",
    );
    let service = world.layer().layer(service_fn(hello));
    let refused = ask(&service, from("203.0.113.7", "/a%2fb")).await;
    assert_eq!(refused.status, 400);
    let problem: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    assert!(problem["detail"].as_str().unwrap().contains("escaped slash"), "{problem}");
    let mut twice = from("203.0.113.7", "/");
    for key in ["a", "b"] {
        twice.headers_mut().append("x-api-key", key.parse().unwrap());
    }
    assert_eq!(ask(&service, twice).await.status, 400);
    assert_eq!(world.remaining(&[("ip", "203.0.113.7")]), 2);
}

/// An attribute that no limit uses is not read, so it cannot fail, until a limit or a block uses it.
#[tokio::test]
async fn only_needed_attributes_are_read() {
    let world = World::new(PER_IP);
    let service = world.layer().layer(service_fn(hello));
    assert_eq!(ask(&service, from("203.0.113.7", "/a%2fb")).await.status, 200);
    let blocked = tollgate::CheckRequest::new().with("path", "/b").unwrap();
    let until = world.time.now() + tollgate::Ticks::from_secs(9);
    world.engine.operator().block(&blocked, until, world.time.now()).unwrap();
    assert_eq!(ask(&service, from("203.0.113.8", "/b")).await.status, 429);
    assert_eq!(ask(&service, from("203.0.113.8", "/a%2fb")).await.status, 400);
    let policy =
        tollgate::Policy::compile("p", b"limits: [{name: by-method, by: [method], rate: 1/h}]").unwrap();
    world.engine.swap(policy, world.time.now()).unwrap();
    assert_eq!(ask(&service, from("203.0.113.9", "/")).await.status, 200);
    assert_eq!(ask(&service, from("203.0.113.10", "/")).await.status, 429);
}

/// A custom refusal keeps the headers that say when to retry.
#[tokio::test]
async fn custom_refusals_keep_the_retry_headers() {
    let world = World::new("  - {name: per-ip, by: [ip], rate: 1/min}");
    let layer = world.layer().headers(open()).refuse_with(|refused| {
        let text = format!("slow down: {}", refused.decision.cause_name().unwrap());
        let response = Response::builder().header("content-type", "text/plain");
        Some(response.body(text.into()).unwrap()).filter(|_| refused.request.uri.path() != "/plain")
    });
    let service = layer.layer(service_fn(hello));
    ask(&service, from("203.0.113.7", "/")).await;
    let refused = ask(&service, from("203.0.113.7", "/")).await;
    assert_eq!((refused.status, refused.body.as_str()), (429, "slow down: per-ip"));
    assert_eq!(refused.header("content-type"), Some("text/plain"));
    assert!(refused.header("retry-after").is_some() && refused.header("ratelimit").is_some());
    let usual = ask(&service, from("203.0.113.7", "/plain")).await;
    assert_eq!(usual.header("content-type"), Some("application/problem+json"));
}

/// The headers of the service stay, and a redirect shows no quota.
#[tokio::test]
async fn headers_of_the_service_stay() {
    let world = World::new("  - {name: per-ip, by: [ip], rate: 9/min}");
    let upstream = service_fn(|request: Request<Full<bytes::Bytes>>| async move {
        let response =
            Response::builder().header("ratelimit", "\"own\";r=1").header("x-ratelimit-limit", "1");
        let status = if request.uri().path() == "/old" { StatusCode::FOUND } else { StatusCode::OK };
        Ok::<_, std::convert::Infallible>(response.status(status).body(Full::from("")).unwrap())
    });
    let service = world.layer().headers(open()).layer(upstream);
    let got = ask(&service, from("203.0.113.7", "/")).await;
    let lists: Vec<_> =
        got.headers.get_all("ratelimit").iter().map(|value| value.to_str().unwrap()).collect();
    assert_eq!(lists.len(), 2);
    assert!(lists[0].starts_with("\"own\"") && lists[1].starts_with("\"per-ip\""), "{lists:?}");
    assert_eq!(got.header("x-ratelimit-limit"), Some("1"));
    let mixed: Vec<_> = got.headers.keys().filter(|name| name.as_str().starts_with("x-ratelimit-")).collect();
    assert_eq!(mixed, ["x-ratelimit-limit"], "all of a family or none");
    assert!(got.headers.contains_key("ratelimit-policy"));
    let redirect = ask(&service, from("203.0.113.7", "/old")).await;
    assert_eq!(redirect.headers.get_all("ratelimit").iter().count(), 1);
    assert_eq!(redirect.header("ratelimit-policy"), None);
}

/// A refused gRPC call gets a status and a retry delay, and no body.
#[tokio::test]
async fn calls_are_refused_with_a_grpc_status() {
    let world = World::new("  - {name: per-ip, by: [ip], rate: 1/min}");
    let service = world.layer().headers(open()).layer(service_fn(hello));
    let call = || {
        let mut request = from("203.0.113.7", "/pkg.Service/Method");
        request.headers_mut().insert("content-type", "application/grpc+proto".parse().unwrap());
        request
    };
    assert_eq!(ask(&service, call()).await.status, 200);
    let refused = ask(&service, call()).await;
    assert_eq!((refused.status, refused.body.as_str()), (200, ""));
    assert_eq!(refused.header("content-type"), Some("application/grpc"));
    assert_eq!(refused.header("grpc-status"), Some("8"));
    assert_eq!(refused.header("grpc-message"), Some("quota exceeded"));
    assert_eq!(refused.header("grpc-retry-pushback-ms"), Some("60000"));
    let details = refused.header("grpc-status-details-bin").unwrap();
    // RetryInfo with a delay of 60 s, as protobuf writes it: type and value in base64.
    assert!(details.len() > 80, "{details}");
}
