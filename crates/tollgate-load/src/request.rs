//! The bytes of a request, for each protocol, with a key written into them.

use std::net::Ipv4Addr;

use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{WireType, encode_key, encode_varint, uint32};

/// `RateLimitResponse.Code.OK` of Envoy's API.
const CODE_OK: u64 = 1;
/// `RateLimitResponse.Code.OVER_LIMIT`.
pub(crate) const CODE_OVER_LIMIT: u64 = 2;

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
pub enum LoadRequest {
    /// A request over HTTP; the [placeholder](key_placeholder) of the key in its body is replaced.
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
    /// A command over RESP; a word that is the [placeholder](key_placeholder) of the key is replaced.
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

impl LoadRequest {
    /// Its protocol.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        match self {
            LoadRequest::Http { .. } | LoadRequest::Batch { .. } => Protocol::Http,
            LoadRequest::Resp { .. } => Protocol::Resp,
            LoadRequest::Rls { .. } | LoadRequest::Grpc { .. } => Protocol::Grpc,
        }
    }

    /// How many decisions one request asks for.
    #[must_use]
    pub fn decisions(&self) -> u64 {
        match self {
            LoadRequest::Http { decisions, .. } => *decisions,
            LoadRequest::Batch { size, .. } => *size as u64,
            _ => 1,
        }
    }

    /// The path of a call.
    #[must_use]
    pub fn grpc_path(&self) -> &str {
        match self {
            LoadRequest::Grpc { path, .. } => path,
            _ => "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        }
    }

    /// Reads a decision from the number in the first field of a call's answer: whether it allows, if it is a decision
    /// at all.
    pub(crate) const fn verdict(&self) -> fn(u64) -> Option<bool> {
        match self {
            // Other services have a flag in that field, which is absent when it is not set.
            LoadRequest::Grpc { .. } => |allowed| match allowed {
                0 | 1 => Some(allowed == 1),
                _ => None,
            },
            _ => |code| match code {
                CODE_OK => Some(true),
                CODE_OVER_LIMIT => Some(false),
                _ => None,
            },
        }
    }

    /// Writes one request: for HTTP and RESP with its framing, for gRPC the message alone.
    pub fn write(&self, out: &mut BytesMut, mut key: impl FnMut() -> u64) {
        match self {
            LoadRequest::Http { path, body, .. } => {
                http(out, path, filled(body, key()).as_bytes());
            }
            LoadRequest::Batch { attribute, size } => {
                let mut body = Vec::with_capacity(64 * size);
                for index in 0..*size {
                    body.put_u8(if index == 0 { b'[' } else { b',' });
                    let text = filled(key_placeholder(attribute), key());
                    body.put_slice(format!("{{\"attributes\":{{\"{attribute}\":\"{text}\"}}}}").as_bytes());
                }
                body.put_u8(b']');
                http(out, "/v1/check/batch", &body);
            }
            LoadRequest::Resp { words } => {
                let number = key();
                out.put_slice(format!("*{}\r\n", words.len()).as_bytes());
                for word in words {
                    let word =
                        if [NAME, ADDRESS].contains(&word.as_str()) { &filled(word, number) } else { word };
                    out.put_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
                }
            }
            LoadRequest::Rls { domain, attribute } => {
                rate_limit_request(out, domain, attribute, &filled(key_placeholder(attribute), key()));
            }
            LoadRequest::Grpc { rest, .. } => {
                let name = name(key());
                out.put_u8(0x0a);
                out.put_u8(u8::try_from(name.len()).unwrap_or(0));
                out.put_slice(name.as_bytes());
                out.put_slice(rest);
            }
        }
    }
}

/// Writes `envoy.service.ratelimit.v3.RateLimitRequest` with one descriptor of one entry and a `hits_addend` of 1.
fn rate_limit_request(out: &mut BytesMut, domain: &str, attribute: &str, value: &str) {
    let mut entry = BytesMut::new();
    put_field(&mut entry, 1, attribute.as_bytes());
    put_field(&mut entry, 2, value.as_bytes());
    let mut descriptor = BytesMut::new();
    put_field(&mut descriptor, 1, &entry);
    put_field(out, 1, domain.as_bytes());
    put_field(out, 2, &descriptor);
    uint32::encode(3, &1, out);
}

/// Writes a text or a message as a field.
fn put_field(out: &mut BytesMut, tag: u32, bytes: &[u8]) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.put_slice(bytes);
}

/// Stands for the name of a key.
const NAME: &str = "{key}";
/// Stands for the address of a key.
const ADDRESS: &str = "{address}";
/// The first address of keys, in a network for private use that has more addresses than there are keys.
const ADDRESS_FIRST: u32 = 0x0a00_0000;

/// The placeholder for the values of an attribute: `{address}` where servers accept addresses only, else `{key}`.
#[must_use]
pub fn key_placeholder(attribute: &str) -> &'static str {
    let is_address = ["ip", "remote_address", "masked_remote_address"].contains(&attribute)
        || ["_ip", "-ip"].iter().any(|end| attribute.ends_with(end));
    if is_address { ADDRESS } else { NAME }
}

fn filled(text: &str, number: u64) -> String {
    let address = || Ipv4Addr::from(ADDRESS_FIRST | u32::try_from(number).unwrap_or_default());
    let named = text.replace(NAME, &name(number));
    if named.contains(ADDRESS) { named.replace(ADDRESS, &address().to_string()) } else { named }
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

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as envoy_common;
    use envoy_types::pb::envoy::service::ratelimit::v3 as envoy;
    use prost::Message;

    use super::*;

    /// The story: a server refuses texts that are no addresses as values of `ip`, and all keys were such texts.
    #[test]
    fn keys_of_an_address_are_addresses() {
        let written = |request: LoadRequest| {
            let mut out = BytesMut::new();
            request.write(&mut out, || 258);
            String::from_utf8_lossy(&out).into_owned()
        };
        for (attribute, expected) in [("ip", "10.0.1.2"), ("client_ip", "10.0.1.2"), ("tip", "user-0000258")]
        {
            let placeholder = key_placeholder(attribute);
            let words = [attribute, placeholder].map(str::to_owned).to_vec();
            for request in [
                LoadRequest::Http { path: "/".to_owned(), body: placeholder.to_owned(), decisions: 1 },
                LoadRequest::Batch { attribute: attribute.to_owned(), size: 2 },
                LoadRequest::Resp { words },
                LoadRequest::Rls { domain: "d".to_owned(), attribute: attribute.to_owned() },
            ] {
                let text = written(request);
                assert!(text.contains(expected), "{text}");
            }
        }
    }

    /// The request is, byte for byte, what Envoy's own types write; and the codes are Envoy's.
    #[test]
    fn rls_requests_are_envoys() {
        let question = LoadRequest::Rls { domain: "bench".to_owned(), attribute: "api_key".to_owned() };
        let mut ours = BytesMut::new();
        question.write(&mut ours, || 7);
        let entry = envoy_common::rate_limit_descriptor::Entry {
            key: "api_key".to_owned(),
            value: "user-0000007".to_owned(),
        };
        let descriptor = envoy_common::RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        let theirs = envoy::RateLimitRequest {
            domain: "bench".to_owned(),
            descriptors: vec![descriptor],
            hits_addend: 1,
        };
        assert_eq!(ours, theirs.encode_to_vec());
        let codes = [envoy::rate_limit_response::Code::Ok, envoy::rate_limit_response::Code::OverLimit];
        let codes = codes.map(|code| question.verdict()(u64::try_from(i32::from(code)).unwrap()));
        assert_eq!(codes, [Some(true), Some(false)]);
    }
}
