//! Envoy's questions and answers as short text, for tables, and a client that asks them.
//!
//! A question is its descriptors, between `|`. A descriptor has entries (`api_key=k1`), hits (`+3`, of which `+0` only looks),
//! hits to give back (`-3`) and a limit that it brings along (`@10/HOUR`). An answer is the overall code, and each status with
//! its limit, what is left, and the minutes, begun ones whole, until more is.

use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::UInt64Value;
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// The question that the text says, of cost `hits`.
pub fn question(domain: &str, hits: u32, descriptors: &str) -> RateLimitRequest {
    let descriptors = descriptors.split('|').map(descriptor).collect();
    RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: hits }
}

fn descriptor(text: &str) -> RateLimitDescriptor {
    let mut made = RateLimitDescriptor::default();
    let hits = |text: &str| Some(UInt64Value { value: text.parse().unwrap() });
    for word in text.split_whitespace() {
        if let Some(limit) = word.strip_prefix('@') {
            let (units, unit) = limit.split_once('/').unwrap();
            let unit = i32::from(RateLimitUnit::from_str_name(unit).unwrap());
            made.limit = Some(RateLimitOverride { requests_per_unit: units.parse().unwrap(), unit });
        } else if let Some(taken) = word.strip_prefix('+') {
            made.hits_addend = hits(taken);
        } else if let Some(given) = word.strip_prefix('-') {
            (made.hits_addend, made.is_negative_hits) = (hits(given), true);
        } else {
            let (key, value) = word.split_once('=').unwrap();
            made.entries.push(Entry { key: key.to_owned(), value: value.to_owned() });
        }
    }
    made
}

/// The answer as text.
pub fn shown(response: &RateLimitResponse) -> String {
    let statuses: Vec<String> = response.statuses.iter().map(status).collect();
    format!("{}: {}", code(response.overall_code), statuses.join(" | "))
}

fn status(status: &DescriptorStatus) -> String {
    let mut text = code(status.code).to_owned();
    if let Some(limit) = &status.current_limit {
        let unit = Unit::try_from(limit.unit).unwrap().as_str_name();
        text +=
            &format!(" {} {}/{unit} left {}", limit.name, limit.requests_per_unit, status.limit_remaining);
    } else {
        assert_eq!(status.limit_remaining, 0, "what is left of no limit");
    }
    if let Some(reset) = &status.duration_until_reset {
        assert_eq!(reset.nanos, 0, "Envoy reads whole seconds only");
        text += &format!(" in {}", u64::try_from(reset.seconds).unwrap().div_ceil(60));
    }
    text
}

fn code(code: i32) -> &'static str {
    match Code::try_from(code).unwrap() {
        Code::Ok => "OK",
        Code::OverLimit => "OVER",
        Code::Unknown => "UNKNOWN",
    }
}

/// A client with one connection.
pub struct Client {
    runtime: Runtime,
    pub channel: Channel,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let endpoint = endpoint.timeout(Duration::from_secs(30));
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        Self { runtime, channel }
    }

    pub fn ask(&self, question: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        self.wait(client.should_rate_limit(question)).map(tonic::Response::into_inner)
    }

    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}
