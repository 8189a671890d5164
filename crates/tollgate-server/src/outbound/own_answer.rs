//! The answers of the proxy itself: why a call did not leave, which bucket refuses it, by whose numbers, and until when. The
//! members of problem details, and beside them those in which the clients of APIs look for a message.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use tollgate::time::WallOffset;
use tollgate::{Ticks, Timestamp};
use tollgate_gateway::ClientFailure;
use tollgate_outbound::{Basis, CallError, Refusal};

use crate::time_text::rfc3339;

/// Tells clients of APIs not to send the call again: the proxy has waited and retried as far as that helps.
pub(super) const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The kind of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerKind {
    /// The request itself is wrong.
    Invalid,
    /// No provider has such a path.
    NoProvider,
    /// The call would wait longer than it may.
    TooLate,
    /// Too many calls wait.
    QueueFull,
    /// The quota is used up for long.
    Exhausted,
    /// The provider fails, and is left alone for a while.
    CircuitOpen,
    /// It costs more than a limit ever admits.
    Never,
    /// The policy denies it.
    Forbidden,
    /// There was no connection, or it broke.
    Failed,
    /// No answer came in time.
    Late,
}

impl AnswerKind {
    const fn status(self) -> StatusCode {
        match self {
            Self::Invalid | Self::Never => StatusCode::BAD_REQUEST,
            Self::NoProvider => StatusCode::NOT_FOUND,
            Self::TooLate | Self::QueueFull | Self::Exhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::CircuitOpen => StatusCode::SERVICE_UNAVAILABLE,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Failed => StatusCode::BAD_GATEWAY,
            Self::Late => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// A stable name.
    const fn code(self) -> &'static str {
        match self {
            Self::Invalid => "invalid-request",
            Self::NoProvider => "no-provider",
            Self::TooLate => "call-too-late",
            Self::QueueFull => "call-queue-full",
            Self::Exhausted => "call-quota-exhausted",
            Self::CircuitOpen => "call-circuit-open",
            Self::Never => "cost-exceeds-capacity",
            Self::Forbidden => "denied-by-policy",
            Self::Failed => "call-failed",
            Self::Late => "call-unanswered",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Invalid => "The request is not valid",
            Self::NoProvider => "No provider has this path",
            Self::TooLate => "The call would wait longer than it may",
            Self::QueueFull => "Too many calls wait",
            Self::Exhausted => "The quota of the provider is used up",
            Self::CircuitOpen => "The provider fails",
            Self::Never => "The call costs more than can ever be admitted at once",
            Self::Forbidden => "The call is denied by policy",
            Self::Failed => "The provider gave no answer",
            Self::Late => "The provider gave no answer in time",
        }
    }

    /// The type of an error as OpenAI and Anthropic name it.
    const fn api_type(self) -> &'static str {
        match self {
            Self::TooLate | Self::QueueFull | Self::Exhausted => "rate_limit_error",
            Self::Invalid | Self::NoProvider | Self::Never => "invalid_request_error",
            Self::Forbidden => "permission_error",
            Self::CircuitOpen | Self::Failed | Self::Late => "api_error",
        }
    }
}

/// One answer.
#[derive(Debug)]
pub(super) struct OwnAnswer<'a> {
    pub(super) kind: AnswerKind,
    pub(super) detail: String,
    pub(super) provider: Option<&'a str>,
    pub(super) refusal: Option<&'a Refusal>,
    pub(super) now: Timestamp,
}

#[derive(Serialize)]
struct AnswerBody<'a> {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    numbers: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// Where the clients of GitHub look for a message.
    message: &'a str,
    /// Where those of OpenAI and Anthropic do.
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    r#type: &'static str,
    code: &'static str,
    message: &'a str,
}

impl<'a> OwnAnswer<'a> {
    /// The answer to a call that the provider has not answered.
    pub(super) fn of(error: &'a CallError, provider: &'a str, now: Timestamp) -> Self {
        let kind = match error {
            CallError::Refused { refusal, .. } => of_refusal(refusal),
            CallError::DeadlineExceeded => AnswerKind::Late,
            CallError::Failed(error) => match error.downcast_ref() {
                Some(ClientFailure::Late(_)) => AnswerKind::Late,
                _ => AnswerKind::Failed,
            },
            _ => AnswerKind::Failed,
        };
        Self { kind, detail: error.to_string(), provider: Some(provider), refusal: error.refusal(), now }
    }

    /// The answer to a request that is no call.
    pub(super) fn wrong(kind: AnswerKind, detail: impl Into<String>) -> Self {
        // Without a refusal there is no instant to compare it with.
        Self { kind, detail: detail.into(), provider: None, refusal: None, now: Timestamp::default() }
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let until = self.refusal.and_then(Refusal::until);
        let wait = until.map(|until| until.since(self.now));
        let body = AnswerBody {
            r#type: format!("urn:tollgate:problem:{}", self.kind.code()),
            title: self.kind.title(),
            status: self.kind.status().as_u16(),
            detail: &self.detail,
            provider: self.provider,
            bucket: self.refusal.and_then(Refusal::bucket),
            numbers: self.refusal.map(numbers),
            until: until.map(|until| rfc3339(until, WallOffset::NONE)),
            retry_after_ms: wait.map(Ticks::ceil_millis),
            message: &self.detail,
            error: ErrorBody { r#type: self.kind.api_type(), code: self.kind.code(), message: &self.detail },
        };
        // Text and numbers always have a form in JSON.
        let text = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = self.kind.status();
        let headers = response.headers_mut();
        // Not the type of problem details: some clients read the message of no other type than this.
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        if let Some(wait) = wait {
            headers.insert(RETRY_AFTER, HeaderValue::from(wait.ceil_seconds().max(1)));
        }
        response
    }
}

const fn of_refusal(refusal: &Refusal) -> AnswerKind {
    match refusal {
        Refusal::TooLate { .. } => AnswerKind::TooLate,
        Refusal::QueueFull { .. } => AnswerKind::QueueFull,
        Refusal::Exhausted { .. } => AnswerKind::Exhausted,
        Refusal::CircuitOpen { .. } => AnswerKind::CircuitOpen,
        Refusal::Never { .. } => AnswerKind::Never,
        Refusal::Forbidden { .. } => AnswerKind::Forbidden,
        _ => AnswerKind::Invalid,
    }
}

/// Whose numbers refuse the call.
fn numbers(refusal: &Refusal) -> &'static str {
    if refusal.basis() == Some(Basis::Server) { "server" } else { "policy" }
}
