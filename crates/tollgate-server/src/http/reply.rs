//! Converts answers and problems to HTTP. The statuses of answers are chosen only here, and those of problems in
//! `problem`.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;
use tollgate::engine::Settled;

use super::handler::{CompatAnswer, CompatBody, HttpAnswer};
use super::root::root;
use crate::problem::{Problem, problem_details, response};
use crate::telemetry::METRICS_TYPE;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

const METRICS: HeaderValue = HeaderValue::from_static(METRICS_TYPE);

/// The OpenAPI description of the interface. A test drives a server by it.
const OPENAPI: &str = include_str!("openapi.json");

/// A settlement as JSON, with its fields in this order.
#[derive(Serialize)]
struct Settlement {
    refunded: u64,
    charged: u64,
    unpaid: u64,
}

/// The response to a request.
pub(super) fn reply(answered: Result<HttpAnswer, Problem>) -> Response<Full<Bytes>> {
    match answered {
        Ok(HttpAnswer::Healthy) => document(&json!({ "status": "ok" })),
        Ok(HttpAnswer::Metrics(text)) => response(StatusCode::OK, Some(METRICS), text.into_bytes()),
        Ok(HttpAnswer::Root(form)) => root(form),
        Ok(HttpAnswer::OpenApi) => response(StatusCode::OK, Some(JSON), OPENAPI.as_bytes()),
        Ok(HttpAnswer::Ready { is_ready, report }) => {
            let mut response = document(&report);
            if !is_ready {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            response
        }
        Ok(HttpAnswer::Decision(text)) => response(StatusCode::OK, Some(JSON), text),
        Ok(HttpAnswer::Verified(verified)) => verified.into_response(),
        Ok(HttpAnswer::Settled(Settled { refunded, charged, unpaid, .. })) => {
            document(&Settlement { refunded, charged, unpaid })
        }
        Ok(HttpAnswer::Done) => response(StatusCode::NO_CONTENT, None, Vec::new()),
        Ok(HttpAnswer::Compat(compat)) => compat_reply(compat),
        Err(problem) => problem_details(&problem),
    }
}

fn document(document: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_vec(document) {
        Ok(text) => response(StatusCode::OK, Some(JSON), text),
        // Text and numbers always have a form in JSON. With this arm a mistake costs one answer and not the process.
        Err(_) => response(StatusCode::INTERNAL_SERVER_ERROR, None, Vec::new()),
    }
}

fn compat_reply(compat: CompatAnswer) -> Response<Full<Bytes>> {
    let status = StatusCode::from_u16(compat.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = match compat.body {
        CompatBody::Json(document) => response(status, Some(JSON), document.to_string().into_bytes()),
        CompatBody::Text(text) => response(status, Some(TEXT), text),
    };
    for (name, value) in compat.headers {
        // Names and values are built here from digits and printable letters. One that cannot be sent is left out.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
