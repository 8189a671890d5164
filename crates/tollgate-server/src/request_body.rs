//! Reads the body of a request: bounded in size and time, with a JSON content type.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE};
use hyper::{HeaderMap, Request};

use crate::lazy_timeout::lazy_timeout;
use crate::problem::{Kind, Problem};

/// Maximum size of the body of one request.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 10;
/// Maximum size of the body of a batch.
pub(crate) const BATCH_BYTES_MAX: usize = 1 << 20;
/// How much of an oversized body is still read, so that its sender gets to read the answer.
const SURPLUS_BYTES_MAX: usize = 1 << 20;
/// Timeout for the arrival of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the whole body.
///
/// # Errors
/// When it is larger than `limit`, too slow, incomplete, or not JSON by its headers.
pub(crate) fn read(request: Request<Incoming>, limit: usize) -> impl Future<Output = Result<Bytes, Problem>> {
    let accepted = is_json(request.headers());
    let bytes = read_any(request, limit);
    async move {
        accepted?;
        bytes.await
    }
}

/// Reads the whole body, with any content type.
///
/// # Errors
/// When it is larger than `limit`, too slow, or incomplete.
pub(crate) fn read_any(
    request: Request<Incoming>,
    limit: usize,
) -> impl Future<Output = Result<Bytes, Problem>> {
    // The head is dropped before anything waits for the body.
    let body = request.into_body();
    async move {
        lazy_timeout(BODY_TIMEOUT, collect(body, limit)).await.unwrap_or_else(|| {
            let seconds = BODY_TIMEOUT.as_secs();
            Err(Problem::new(Kind::BodyTooSlow, format!("the body must arrive within {seconds} seconds")))
        })
    }
}

async fn collect(body: Incoming, limit: usize) -> Result<Bytes, Problem> {
    let too_large = || Problem::new(Kind::BodyTooLarge, format!("the body may have at most {limit} bytes"));
    let bound = limit.saturating_add(SURPLUS_BYTES_MAX);
    if body.size_hint().lower() > u64::try_from(bound).unwrap_or(u64::MAX) {
        return Err(too_large());
    }
    let mut body = Limited::new(body, bound);
    let mut bytes = Vec::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) if error.is::<http_body_util::LengthLimitError>() => return Err(too_large()),
            Err(_) => {
                return Err(Problem::new(Kind::BodyCutOff, "the connection ended inside the body"));
            }
        };
        let Ok(chunk) = frame.into_data() else { continue }; // Trailers mean nothing here.
        length += chunk.len();
        if length <= limit {
            // Usually the body is one frame, which is used without a copy.
            if bytes.is_empty() && body.is_end_stream() {
                return Ok(chunk);
            }
            bytes.extend_from_slice(&chunk);
        }
    }
    if length > limit { Err(too_large()) } else { Ok(bytes.into()) }
}

/// Whether the content type is JSON or missing.
fn is_json(headers: &HeaderMap) -> Result<(), Problem> {
    let unsupported = |detail: &str| Err(Problem::new(Kind::UnsupportedMediaType, detail));
    if let Some(kind) = headers.get(CONTENT_TYPE) {
        let kind = kind.to_str().unwrap_or_default();
        let essence = kind.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            return unsupported("send Content-Type: application/json, or none");
        }
    }
    match headers.get(CONTENT_ENCODING) {
        Some(coding) if !coding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            unsupported("send the body as it is: no Content-Encoding is accepted")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JSON may have parameters, and the type may be missing. Any other type, and any content encoding, is refused.
    #[test]
    fn content_types() {
        let with = |name, value: &str| HeaderMap::from_iter([(name, value.parse().unwrap())]);
        assert!(is_json(&HeaderMap::new()).is_ok());
        assert!(is_json(&with(CONTENT_TYPE, "Application/JSON; charset=utf-8")).is_ok());
        for wrong in ["text/plain", "application/jsonx", "application/x-www-form-urlencoded", ""] {
            assert!(is_json(&with(CONTENT_TYPE, wrong)).is_err(), "{wrong}");
        }
        assert!(is_json(&with(CONTENT_ENCODING, "gzip")).is_err());
        assert!(is_json(&with(CONTENT_ENCODING, "identity")).is_ok());
    }
}
