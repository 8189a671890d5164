//! The gRPC wire itself: bytes that are no message, bounds, health, and how connections end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::program::{SLOW_POLICY, Server, run, stderr};
use crate::rls::{Client, question, shown};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Sends any bytes as a message.
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, bytes: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining())))
    }
}

fn send(client: &Client, path: &'static str, bytes: Vec<u8>) -> Result<RateLimitResponse, Status> {
    client.wait(async {
        let mut grpc = tonic::client::Grpc::new(client.channel.clone());
        grpc.ready().await.unwrap();
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
        let answer = grpc.unary(Request::new(Bytes::from(bytes)), path, Raw).await?;
        Ok(RateLimitResponse::decode(answer.into_inner()).unwrap())
    })
}

/// Envoy passes on what its clients send, such as header values that are not UTF-8, and lets pass what is answered with an
/// error. So bytes that cannot be read, or are too many to be read, are over the limit.
#[test]
fn bytes_that_are_no_message_are_over_the_limit() {
    let server = Server::start(SLOW_POLICY);
    let client = Client::new(server.grpc.unwrap());
    let good = question("api", 0, "api_key=secret").encode_to_vec();
    let at = good.windows(6).position(|window| window == b"secret").unwrap();
    let mut not_utf8 = good.clone();
    not_utf8[at] = 0xff;
    let large = question("api", 0, &format!("api_key={}", "x".repeat(300 << 10))).encode_to_vec();
    for bytes in [not_utf8, good[..good.len() - 1].to_vec(), vec![0xff; 64], large] {
        assert_eq!(shown(&send(&client, METHOD, bytes).unwrap()), "OVER: ");
    }
    assert_eq!(shown(&send(&client, METHOD, good).unwrap()), "OK: OK per-key 5/HOUR left 4 in 12");
    assert_eq!(server.metric("tollgate_decisions_total{outcome=\"fault\",wire=\"rls\"}"), 4);
    assert_eq!(server.decisions("rls"), 5);
}

/// Other methods are not there, and say which are.
#[test]
fn other_methods_are_not_there() {
    let server = Server::start(SLOW_POLICY);
    let client = Client::new(server.grpc.unwrap());
    let error = send(&client, "/envoy.service.ratelimit.v3.RateLimitService/Other", Vec::new()).unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(error.message().contains("ShouldRateLimit"), "{}", error.message());
}

/// gRPC's own health check answers for the server and for the service.
#[test]
fn health_is_reported() {
    let server = Server::start(SLOW_POLICY);
    let client = Client::new(server.grpc.unwrap());
    let check = |service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        client
            .wait(HealthClient::new(client.channel.clone()).check(request))
            .map(|answer| answer.into_inner().status)
    };
    let quotas = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService";
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService", quotas] {
        assert_eq!(check(service).unwrap(), i32::from(ServingStatus::Serving), "{service}");
    }
    assert_eq!(check("other").unwrap_err().code(), Code::NotFound);
}

/// A stopping server closes connections at rest, of those that were never used, and of those that watch its
/// health, and reports that first.
#[test]
fn stopping_does_not_wait_for_watchers() {
    let mut server = Server::start(SLOW_POLICY);
    let address = server.grpc.unwrap();
    let unused = TcpStream::connect(address).unwrap();
    let client = Client::new(address);
    assert_eq!(
        shown(&client.ask(question("api", 0, "api_key=k")).unwrap()),
        "OK: OK per-key 5/HOUR left 4 in 12"
    );
    let mut watched = client
        .wait(HealthClient::new(client.channel.clone()).watch(HealthCheckRequest::default()))
        .unwrap()
        .into_inner();
    let next = client.wait(watched.message()).unwrap().unwrap();
    assert_eq!(next.status, i32::from(ServingStatus::Serving));

    server.signal("-TERM");
    let next = client.wait(watched.message()).unwrap().unwrap();
    assert_eq!(next.status, i32::from(ServingStatus::NotServing));
    server.await_log("\"stopped\""); // And not that connections were cut.
    assert_eq!(server.wait().code(), Some(0));
    drop(unused);
}

/// A call that has begun when the server begins to stop is answered, and then its connection gets GOAWAY.
#[test]
fn a_call_in_flight_is_answered() {
    let mut server = Server::start(SLOW_POLICY);
    let mut stream = TcpStream::connect(server.grpc.unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // HTTP/2 by hand: the preface, settings, and the head of a call whose message is yet to come.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    stream.write_all(&frame(HEADERS, END_HEADERS, 1, &head())).unwrap();
    let ping = stream.write_all(&frame(PING, 0, 0, &[7; 8]));
    ping.unwrap();
    // Its acknowledgement says that the head was read.
    while !matches!(read_frame(&mut stream), (PING, ACK, 0, _)) {}

    server.signal("-TERM");
    server.await_log("stopping");
    // The goodbye comes with a ping, whose answer says that no call is on its way any more.
    loop {
        if let (PING, 0, 0, payload) = read_frame(&mut stream) {
            stream.write_all(&frame(PING, ACK, 0, &payload)).unwrap();
            break;
        }
    }
    let message = question("api", 0, "api_key=k").encode_to_vec();
    let mut body = vec![0];
    body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    body.extend(message);
    stream.write_all(&frame(DATA, END_STREAM, 1, &body)).unwrap();
    let answer = loop {
        if let (DATA, _, 1, payload) = read_frame(&mut stream) {
            break payload;
        }
    };
    let answer = RateLimitResponse::decode(&answer[5..]).unwrap();
    assert_eq!(shown(&answer), "OK: OK per-key 5/HOUR left 4 in 12");
    stream.read_to_end(&mut Vec::new()).unwrap();
    server.await_log("\"stopped\""); // And not that connections were cut.
    assert_eq!(server.wait().code(), Some(0));
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn read_frame(stream: &mut TcpStream) -> (u8, u8, u32, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload).unwrap();
    (head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload)
}

/// The head of a call, as literal fields.
fn head() -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", METHOD),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// Without gRPC the server has no listener for it; its address is refused with the flag that chose it.
#[test]
fn grpc_can_be_off_or_in_use() {
    let server = Server::start_with(
        &["serve", "--http", "127.0.0.1:0", "--grpc", "off", "--policy", "-"],
        SLOW_POLICY,
    );
    assert_eq!(server.grpc, None);
    assert!(server.banner.contains("gRPC    off"), "{}", server.banner);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["serve", "--http", "127.0.0.1:0", "--grpc", &address], b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--grpc 127.0.0.1:0"), "{}", stderr(&output));
}
