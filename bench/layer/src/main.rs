//! Counts the instructions that a layer adds to one request, with callgrind: Tollgate's beside tower_governor's, each around the same
//! service that does nothing. N and then 2N requests; the difference divided by N is free of what comes before and after, and less
//! what the bare service takes it is the layer's own.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response};
use tollgate::headers::{Dialect, Dialects, Exposure, HeaderPolicy};
use tollgate::{Engine, Policy};
use tollgate_tower::RateLimitLayer;
use tower::{Layer, Service, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;

/// Whatever went wrong.
type Failure = Box<dyn std::error::Error>;

/// Addresses that ask.
const ADDRESSES: u32 = 1_024;
/// N.
const REQUESTS: usize = 1 << 14;
/// How many requests are made before they are asked about: one, so that memory is freed and taken again as a server does it. Of many
/// at once the allocator tidies up whenever it likes, which is no layer's doing and takes hundreds of instructions a request.
const BATCH: usize = 1;

/// The measured cases: each case of Tollgate's, and the peer's that it stands beside. The peer sends a quota in two headers, what it is and
/// what is left. Tollgate sends two as well where only the IETF's are chosen, and seven by default.
const CASES: [(&str, &str, &str); 6] = [
    ("admitted", "tollgate", "governor"),
    ("admitted, quota in two headers", "tollgate-headers", "governor-headers"),
    ("admitted, quota in two headers; Tollgate's in seven", "tollgate-seven-headers", "governor-headers"),
    ("denied", "tollgate-denied", "governor-denied"),
    ("denied, quota in two headers", "tollgate-denied-headers", "governor-denied-headers"),
    (
        "denied, quota in two headers; Tollgate's in seven",
        "tollgate-denied-seven-headers",
        "governor-denied-headers",
    ),
];

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [name, requests] = arguments.as_slice() {
        return run(name, requests.parse()?);
    }
    let mut counts: HashMap<&str, u64> = HashMap::new();
    let all = CASES.iter().flat_map(|&(_, own, other)| [own, other]);
    for name in std::iter::once("bare").chain(all) {
        if !counts.contains_key(name) {
            eprintln!("{name}: running twice under callgrind");
            let (once, twice) = (callgrind(name, REQUESTS)?, callgrind(name, 2 * REQUESTS)?);
            counts.insert(name, twice.saturating_sub(once) / REQUESTS as u64);
        }
    }
    let bare = counts["bare"];
    println!("A bare service takes {bare} instructions a request; each layer adds:\n");
    println!(
        "| one request by its address | tollgate-tower | tower_governor | ratio |\n|---|---:|---:|---:|"
    );
    for (case, own, other) in CASES {
        let [own, other] = [own, other].map(|name| counts[name].saturating_sub(bare).max(1));
        let ratio = other as f64 / own as f64;
        println!("| {case} | {own} | {other} | {ratio:.2} |");
    }
    Ok(())
}

async fn nothing(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::empty()))
}

/// The part that runs under callgrind.
fn run(name: &str, requests: usize) -> Result<(), Failure> {
    let (is_denied, with_quota) = (name.contains("denied"), name.contains("headers"));
    let expected = if is_denied { 429 } else { 200 };
    if name == "bare" {
        return counted(service_fn(nothing), requests, expected);
    }
    if name.starts_with("tollgate") {
        let rate = if is_denied { "1/day" } else { "1000000/s" };
        let file = format!("limits: [{{name: per-ip, by: [ip], rate: {rate}}}]");
        let policy = Policy::compile("bench", file.as_bytes())?;
        let anonymous = if with_quota { Exposure::Full } else { Exposure::RetryAfter };
        let dialects =
            if name.contains("seven") { Dialects::default() } else { Dialects::new([Dialect::Ietf11])? };
        let layer = RateLimitLayer::new(Engine::builder().policy(policy).build()).headers(HeaderPolicy {
            anonymous,
            dialects,
            ..HeaderPolicy::default()
        });
        return counted(layer.layer(service_fn(nothing)), requests, expected);
    }
    let mut config = GovernorConfigBuilder::default();
    if is_denied {
        config.per_second(86_400).burst_size(1);
    } else {
        config.per_nanosecond(1_000).burst_size(1_000_000);
    }
    let mut config = config.key_extractor(PeerIpKeyExtractor);
    if with_quota {
        let config = config.use_headers().finish().ok_or("no configuration")?;
        return counted(GovernorLayer::new(config).layer(service_fn(nothing)), requests, expected);
    }
    let config = config.finish().ok_or("no configuration")?;
    counted(GovernorLayer::new(config).layer(service_fn(nothing)), requests, expected)
}

/// Asks so many times. The first request of each address comes before, so that all are known.
fn counted<S, B>(mut service: S, requests: usize, expected: u16) -> Result<(), Failure>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    for number in 0..ADDRESSES {
        answered(&mut service, request(number))?;
    }
    for start in (0..requests).step_by(BATCH) {
        let numbers = start..requests.min(start + BATCH);
        let made: Vec<Request<Body>> = numbers.map(|number| request(number as u32 % ADDRESSES)).collect();
        let statuses = measured(&mut service, made)?;
        if statuses.iter().any(|&status| status != expected) {
            return Err("somebody was answered otherwise than expected".into());
        }
    }
    Ok(())
}

/// Callgrind counts while this runs, and knows it by its name.
#[inline(never)]
fn measured<S, B>(service: &mut S, requests: Vec<Request<Body>>) -> Result<Vec<u16>, Failure>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    requests.into_iter().map(|request| answered(service, request)).collect()
}

fn answered<S, B>(service: &mut S, request: Request<Body>) -> Result<u16, Failure>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let mut context = Context::from_waker(Waker::noop());
    let mut response = pin!(service.call(request));
    match response.as_mut().poll(&mut context) {
        Poll::Ready(Ok(response)) => Ok(response.status().as_u16()),
        Poll::Ready(Err(never)) => match never {},
        Poll::Pending => Err("the service waits".into()),
    }
}

fn request(number: u32) -> Request<Body> {
    let address = IpAddr::V4(Ipv4Addr::from(0x0A00_0000 + number));
    let request = Request::get("/v1/orders/1234567?expand=lines")
        .header("host", "api.example.com")
        .header("accept", "application/json")
        .header("user-agent", "client/1.0")
        .header("accept-encoding", "gzip")
        .extension(ConnectInfo(SocketAddr::new(address, 40_000)))
        .body(Body::empty());
    request.unwrap_or_default()
}

/// The instructions of the part that counts.
fn callgrind(name: &str, requests: usize) -> Result<u64, Failure> {
    let output = std::env::temp_dir().join(format!("tollgate-layers-{}", std::process::id()));
    let done = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*measured*"])
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(std::env::current_exe()?)
        .args([name, &requests.to_string()])
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("valgrind: {error}; install it, on Debian with apt-get install valgrind"))?;
    let counted = std::fs::read_to_string(&output);
    let _ = std::fs::remove_file(&output);
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned().into());
    }
    let counted = counted?;
    let line =
        counted.lines().find_map(|line| line.strip_prefix("summary: ").or(line.strip_prefix("totals: ")));
    Ok(line.ok_or("callgrind printed no total")?.trim().parse()?)
}
