//! Traces of the real program, taken by an OTLP collector in this process and read field by field.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::runtime::Runtime;

use crate::program::{SLOW_POLICY, Server};
use crate::raw_http::request;
use crate::rls::{Client, question};

const WAIT: Duration = Duration::from_secs(20);
const CHECK: &str = r#"{"attributes":{"api_key":"secret-value"}}"#;

/// A collector on a free port. It ends with the test.
struct Collector {
    _runtime: Runtime,
    address: SocketAddr,
    received: Receiver<ExportTraceServiceRequest>,
}

struct Sink(Sender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Sink {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let _ = self.0.send(request.into_inner());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let (sender, received) = channel();
        let incoming = runtime.block_on(async {
            tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap()
        });
        let address = incoming.local_addr().unwrap();
        let service = TraceServiceServer::new(Sink(sender));
        runtime.spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        Self { _runtime: runtime, address, received }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next spans, after a look at who sent them.
    fn spans(&self) -> Vec<Span> {
        let request = self.received.recv_timeout(WAIT).expect("spans arrive");
        let mut spans = Vec::new();
        for resource in request.resource_spans {
            let of = resource.resource.expect("there is a resource");
            assert_eq!(text(&of.attributes, "service.name"), Some("tollgate"));
            assert_eq!(text(&of.attributes, "service.version"), Some(env!("CARGO_PKG_VERSION")));
            spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
        spans
    }

    /// At least so many spans.
    fn gather(&self, count: usize) -> Vec<Span> {
        let mut spans = Vec::new();
        while spans.len() < count {
            spans.extend(self.spans());
        }
        spans
    }
}

fn value<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a Value> {
    let attribute = attributes.iter().find(|attribute| attribute.key == name)?;
    attribute.value.as_ref().and_then(|AnyValue { value }| value.as_ref())
}

fn text<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a str> {
    match value(attributes, name)? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn serve(collector: &str, share: &str) -> Server {
    serve_by(SLOW_POLICY, collector, share)
}

fn serve_by(policy: &str, collector: &str, share: &str) -> Server {
    let arguments =
        ["serve", "--http", "127.0.0.1:0", "--policy", "-", "--otlp", collector, "--otlp-sample", share];
    Server::start_with(&arguments, policy)
}

/// With a share of one every decision arrives, says what was decided, and nothing of what the request said.
#[test]
fn decisions_arrive_as_spans() {
    let collector = Collector::start();
    let server = serve(&collector.url(), "1");
    for _ in 0..6 {
        server.send("POST", "/v1/check", CHECK);
    }
    let spans = collector.gather(6);
    assert_eq!(spans.len(), 6);
    let allowed =
        spans.iter().filter(|span| text(&span.attributes, "tollgate.verdict") == Some("allow")).count();
    assert_eq!(allowed, 5);
    for span in &spans {
        assert_eq!((span.name.as_str(), span.trace_id.len(), span.span_id.len()), ("tollgate.check", 16, 8));
        assert!(span.parent_span_id.is_empty());
        assert_eq!(text(&span.attributes, "tollgate.wire"), Some("http"));
        assert_eq!(text(&span.attributes, "tollgate.limit"), Some("per-key"));
        assert_eq!(text(&span.attributes, "tollgate.source"), Some("exact"));
        assert!(span.start_time_unix_nano > 0 && span.end_time_unix_nano >= span.start_time_unix_nano);
        assert!(!format!("{span:?}").contains("secret-value"));
    }
    let denied = spans.iter().find(|span| value(&span.attributes, "tollgate.retry_after_ms").is_some());
    assert_eq!(text(&denied.unwrap().attributes, "tollgate.verdict"), Some("deny"));
    let ids: std::collections::HashSet<_> =
        spans.iter().map(|span| (&span.trace_id, &span.span_id)).collect();
    assert_eq!(ids.len(), 6);
    assert_eq!(server.metric(r#"tollgate_trace_spans_total{result="dropped"}"#), 0);
}

/// A request that belongs to a trace gets a span in it; one whose caller does not keep its trace gets none.
#[test]
fn a_callers_trace_is_continued() {
    let collector = Collector::start();
    let server = serve(&collector.url(), "0");
    let ask = |flags: &str| {
        let header = format!("traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}\r\n");
        let headers = format!("{header}Content-Type: application/json\r\n");
        server.exchange(&request("POST", "/v1/check", &headers, CHECK.as_bytes()))
    };
    assert_eq!(ask("00").status, 200);
    assert_eq!(ask("01").status, 200);
    let spans = collector.gather(1);
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0].trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
    assert_eq!(spans[0].parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
}

/// The same over gRPC, where the header is metadata.
#[test]
fn a_trace_is_continued_over_grpc() {
    let collector = Collector::start();
    let server = serve(&collector.url(), "0");
    let client = Client::new(server.grpc.unwrap());
    let mut request = tonic::Request::new(question("any", 0, "api_key=k"));
    let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    request.metadata_mut().insert("traceparent", header.parse().unwrap());
    let mut service = RateLimitServiceClient::new(client.channel.clone());
    client.wait(service.should_rate_limit(request)).unwrap();
    let spans = collector.gather(1);
    assert_eq!(spans[0].trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
    assert_eq!(text(&spans[0].attributes, "tollgate.wire"), Some("rls"));
}

/// Decisions by other people's rules make spans, too, and say no more of the request.
#[test]
fn compat_decisions_arrive_as_spans() {
    let envoy =
        "domain: d\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1, name: once}}]";
    let limitador = "- {namespace: d, max_value: 1, seconds: 86400, name: once, conditions: [], variables: [\"descriptors[0]['user']\"]}";
    for policy in [envoy, limitador] {
        let collector = Collector::start();
        let server = serve_by(policy, &collector.url(), "1");
        let client = Client::new(server.grpc.unwrap());
        for _ in 0..2 {
            client.ask(question("d", 0, "user=secret-value")).unwrap();
        }
        let spans = collector.gather(2);
        let of = |span: &Span, name: &str| text(&span.attributes, name).map(str::to_owned);
        let mut verdicts: Vec<_> = spans.iter().map(|span| of(span, "tollgate.verdict").unwrap()).collect();
        verdicts.sort();
        assert_eq!(verdicts, ["allow", "deny"]);
        for span in &spans {
            assert_eq!(of(span, "tollgate.limit").as_deref(), Some("once"));
            assert_eq!(of(span, "tollgate.wire").as_deref(), Some("rls"));
            assert_eq!(of(span, "tollgate.source").as_deref(), Some("exact"));
            assert!(!format!("{span:?}").contains("secret-value"));
        }
    }
}

/// A stopping server sends its pending spans before it ends.
#[test]
fn the_last_spans_are_sent() {
    let collector = Collector::start();
    let mut server = serve(&collector.url(), "1");
    server.send("POST", "/v1/check", CHECK);
    server.signal("-TERM");
    assert!(server.wait().success());
    assert_eq!(collector.gather(1).len(), 1);
}

/// A collector that is not there costs spans, which are counted; decisions are answered, and the log says so once in a while.
#[test]
fn without_a_collector_decisions_are_made() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", unused.local_addr().unwrap());
    drop(unused);
    let mut server = serve(&url, "1");
    for _ in 0..5 {
        assert_eq!(server.send("POST", "/v1/check", CHECK).json()["allowed"], true);
    }
    server.await_log("spans could not be sent");
    assert!(server.metric(r#"tollgate_trace_spans_total{result="failed"}"#) > 0);
    assert_eq!(server.metric(r#"tollgate_trace_spans_total{result="exported"}"#), 0);
}

/// A wrong address is an error at the start, with what would be accepted.
#[test]
fn a_wrong_address_is_reported() {
    let output = crate::program::run(&["serve", "--http", "127.0.0.1:0", "--otlp", "collector:4317"], b"");
    assert!(!output.status.success());
    assert!(crate::program::stderr(&output).contains("accepted: http://HOST:4317"), "{output:?}");
}
