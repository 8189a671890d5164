//! Servers that answer without deciding: the most that a wire can do here. They answer the same bytes as Tollgate does.

use std::convert::Infallible;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::HeaderValue as HeaderField;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Duration;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tonic::{Request as Call, Response as Reply, Status};

use crate::Failure;

/// An answer of `/v1/check`, as long as the real one.
const ANSWER: &str = r#"{"allowed":true,"verdict":"allow","limits":[{"name":"per-key","allowed":true,"limit":200,"remaining":199,"reset_after_ms":10,"source":"exact","mode":"enforce"}],"headers":{"RateLimit-Policy":"\"per-key\";q=100;w=1;burst=200","RateLimit":"\"per-key\";r=199;t=1","X-RateLimit-Limit":"200","X-RateLimit-Remaining":"199","X-RateLimit-Reset":"1700000001"}}"#;

/// Reads each request whole, as a server must, and answers the same.
pub(crate) async fn http(address: &str) -> Result<(), Failure> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let answer = service_fn(|request: Request<Incoming>| async {
                let _ = request.into_body().collect().await;
                let mut response = Response::new(Full::new(Bytes::from_static(ANSWER.as_bytes())));
                let headers = response.headers_mut();
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                Ok::<_, Infallible>(response)
            });
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

struct Same;

#[tonic::async_trait]
impl RateLimitService for Same {
    async fn should_rate_limit(&self, _: Call<RateLimitRequest>) -> Result<Reply<RateLimitResponse>, Status> {
        let limit = RateLimit { name: "per-key".to_owned(), requests_per_unit: 100, unit: 1 };
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(limit),
            limit_remaining: 199,
            duration_until_reset: Some(Duration { seconds: 1, nanos: 0 }),
            ..Default::default()
        };
        let header = |key: &str, value: &str| HeaderField {
            key: key.to_owned(),
            value: value.to_owned(),
            raw_value: Vec::new(),
        };
        let answer = RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![status],
            response_headers_to_add: vec![
                header("RateLimit-Policy", "\"per-key\";q=200;w=2"),
                header("RateLimit", "\"per-key\";r=199;t=2"),
            ],
            ..Default::default()
        };
        Ok(Reply::new(answer))
    }
}

/// Tonic's own server, which answers the same to every call.
pub(crate) async fn grpc(address: &str) -> Result<(), Failure> {
    tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .add_service(RateLimitServiceServer::new(Same))
        .serve(address.parse()?)
        .await?;
    Ok(())
}
