//! The bytes of a request, for each protocol, with a key written into them.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::envoy_api::{DescriptorEntry, RateLimitDescriptor, RateLimitRequest, ResponseCode};

/// How requests and answers are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 with keep-alive.
    Http,
    /// RESP.
    Resp,
    /// Unary calls of gRPC.
    Grpc,
}

/// The request that is sent over and over.
#[derive(Clone, Debug)]
pub enum Question {
    /// A request over HTTP; `{key}` in its body is replaced.
    Http {
        /// The path.
        path: String,
        /// The body, JSON.
        body: String,
        /// How many decisions one request asks for.
        decisions: u64,
    },
    /// A batch of checks over HTTP, each with its own key.
    Batch {
        /// The attribute that holds the key.
        attribute: String,
        /// How many checks.
        size: usize,
    },
    /// A command over RESP; `{key}` in its words is replaced.
    Resp {
        /// Its words.
        words: Vec<String>,
    },
    /// Envoy's rate-limit request.
    Rls {
        /// The domain.
        domain: String,
        /// The descriptor entry that holds the key.
        attribute: String,
    },
    /// A unary call with a message that holds the key in its first field, as text, followed by these bytes. The first
    /// field of its answer says whether it allows.
    Grpc {
        /// `/package.Service/Method`.
        path: String,
        /// The rest of the message, encoded.
        rest: Bytes,
    },
}

impl Question {
    /// Its protocol.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        match self {
            Question::Http { .. } | Question::Batch { .. } => Protocol::Http,
            Question::Resp { .. } => Protocol::Resp,
            Question::Rls { .. } | Question::Grpc { .. } => Protocol::Grpc,
        }
    }

    /// How many decisions one request asks for.
    #[must_use]
    pub fn decisions(&self) -> u64 {
        match self {
            Question::Http { decisions, .. } => *decisions,
            Question::Batch { size, .. } => *size as u64,
            _ => 1,
        }
    }

    /// The path of a call.
    #[must_use]
    pub fn grpc_path(&self) -> &str {
        match self {
            Question::Grpc { path, .. } => path,
            _ => "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        }
    }

    /// Reads a decision from the number in the first field of a call's answer: whether it allows, if it is a decision
    /// at all.
    pub(super) const fn verdict(&self) -> fn(u64) -> Option<bool> {
        match self {
            // Other services have a flag in that field, which is absent when it is not set.
            Question::Grpc { .. } => |allowed| match allowed {
                0 | 1 => Some(allowed == 1),
                _ => None,
            },
            _ => |code| match i32::try_from(code).ok().and_then(|code| ResponseCode::try_from(code).ok()) {
                Some(ResponseCode::Ok) => Some(true),
                Some(ResponseCode::OverLimit) => Some(false),
                Some(ResponseCode::Unknown) | None => None,
            },
        }
    }

    /// Writes one request: for HTTP and RESP with its framing, for gRPC the message alone.
    pub fn write(&self, out: &mut BytesMut, mut key: impl FnMut() -> u64) {
        match self {
            Question::Http { path, body, .. } => {
                let name = name(key());
                http(out, path, body.replace("{key}", &name).as_bytes());
            }
            Question::Batch { attribute, size } => {
                let mut body = Vec::with_capacity(64 * size);
                for index in 0..*size {
                    body.put_u8(if index == 0 { b'[' } else { b',' });
                    body.put_slice(
                        format!("{{\"attributes\":{{\"{attribute}\":\"{}\"}}}}", name(key())).as_bytes(),
                    );
                }
                body.put_u8(b']');
                http(out, "/v1/check/batch", &body);
            }
            Question::Resp { words } => {
                let name = name(key());
                out.put_slice(format!("*{}\r\n", words.len()).as_bytes());
                for word in words {
                    let word = if word == "{key}" { &name } else { word };
                    out.put_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
                }
            }
            Question::Rls { domain, attribute } => {
                let entry = DescriptorEntry { key: attribute.clone(), value: name(key()) };
                let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
                let message = RateLimitRequest {
                    domain: domain.clone(),
                    descriptors: vec![descriptor],
                    hits_addend: 1,
                };
                // A growable buffer cannot be too small.
                let _ = message.encode(out);
            }
            Question::Grpc { rest, .. } => {
                let name = name(key());
                out.put_u8(0x0a);
                out.put_u8(u8::try_from(name.len()).unwrap_or(0));
                out.put_slice(name.as_bytes());
                out.put_slice(rest);
            }
        }
    }
}

/// A key that looks like a user's.
fn name(number: u64) -> String {
    format!("user-{number:07}")
}

fn http(out: &mut BytesMut, path: &str, body: &[u8]) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    out.put_slice(head.as_bytes());
    out.put_slice(body);
}
