//! Which limit refused a call, from an answer in Envoy's protocol: the name in its metadata, or else that of a
//! descriptor that is over its limit. Nothing else of the answer is read.

use prost::encoding::{WireType, decode_key, decode_varint};

use crate::request::CODE_OVER_LIMIT;

/// Field numbers of `RateLimitResponse`, `DescriptorStatus`, `RateLimit` and of protobuf's `Struct`.
const STATUSES: u32 = 2;
const METADATA: u32 = 6;
const CODE: u32 = 1;
const CURRENT_LIMIT: u32 = 2;
const NAME: u32 = 3;
const ENTRIES: u32 = 1;
const ENTRY_KEY: u32 = 1;
const ENTRY_VALUE: u32 = 2;
const STRING_VALUE: u32 = 3;
/// The metadata entry that names the limit.
const CAUSE: &[u8] = b"cause";
/// The metadata entry that is present if a counter is not the key's own, because the server's memory is full.
const SOURCE: &[u8] = b"source";

/// The name of the limit that refused a call; `None` if the answer has none.
pub(super) fn cause(message: &[u8]) -> Option<&[u8]> {
    entry(message, CAUSE).or_else(|| over(message)).filter(|name| !name.is_empty())
}

/// Whether an answer comes from a counter that keys share.
pub(super) fn is_shared(message: &[u8]) -> bool {
    entry(message, SOURCE).is_some()
}

/// A text in the metadata.
fn entry<'m>(message: &'m [u8], name: &[u8]) -> Option<&'m [u8]> {
    let entries = texts(message, METADATA).flat_map(|metadata| texts(metadata, ENTRIES));
    let mut named = entries.filter(|entry| texts(entry, ENTRY_KEY).next() == Some(name));
    texts(texts(named.next()?, ENTRY_VALUE).next()?, STRING_VALUE).next()
}

/// The limit of the first descriptor that is over its own.
fn over(message: &[u8]) -> Option<&[u8]> {
    let is_over = |status: &&[u8]| {
        ProtoFields(status)
            .any(|(field, value)| field == CODE && value == ProtoValue::Number(CODE_OVER_LIMIT))
    };
    let mut limits = texts(message, STATUSES).filter(is_over).flat_map(|status| texts(status, CURRENT_LIMIT));
    limits.find_map(|limit| texts(limit, NAME).next())
}

/// The fields of a message with this number that are texts or messages.
fn texts(message: &[u8], wanted: u32) -> impl Iterator<Item = &[u8]> {
    ProtoFields(message).filter_map(move |(field, part)| match part {
        ProtoValue::Text(text) if field == wanted => Some(text),
        _ => None,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProtoValue<'m> {
    Number(u64),
    Text(&'m [u8]),
    Other,
}

/// The fields of a message, one after the other. The iterator ends at a field that it cannot read.
struct ProtoFields<'m>(&'m [u8]);

impl<'m> ProtoFields<'m> {
    fn take(&mut self, bytes: usize) -> Option<&'m [u8]> {
        let (taken, after) = self.0.split_at_checked(bytes)?;
        self.0 = after;
        Some(taken)
    }
}

impl<'m> Iterator for ProtoFields<'m> {
    type Item = (u32, ProtoValue<'m>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let (field, field_type) = decode_key(&mut self.0).ok()?;
        let part = match field_type {
            WireType::Varint => ProtoValue::Number(decode_varint(&mut self.0).ok()?),
            WireType::SixtyFourBit => self.take(8).map(|_| ProtoValue::Other)?,
            WireType::ThirtyTwoBit => self.take(4).map(|_| ProtoValue::Other)?,
            WireType::LengthDelimited => {
                let bytes = decode_varint(&mut self.0).ok()?;
                ProtoValue::Text(self.take(usize::try_from(bytes).ok()?)?)
            }
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        Some((field, part))
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
    use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
        Code, DescriptorStatus, RateLimit,
    };
    use envoy_types::pb::google::protobuf::value::Kind;
    use envoy_types::pb::google::protobuf::{Struct, Value};
    use prost::Message;

    use super::*;

    fn status(code: Code, name: &str) -> DescriptorStatus {
        let limit = RateLimit { name: name.to_owned(), requests_per_unit: 5, ..RateLimit::default() };
        DescriptorStatus { code: code.into(), current_limit: Some(limit), ..DescriptorStatus::default() }
    }

    /// The bug: a gRPC load reported "denied by limits that the answers do not name", though every answer named its
    /// limit.
    #[test]
    fn the_limit_is_named_by_the_metadata_or_the_status() {
        let statuses = vec![status(Code::Ok, "per-address"), status(Code::OverLimit, "per-key")];
        let mut answer = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses,
            ..RateLimitResponse::default()
        };
        assert_eq!(cause(&answer.encode_to_vec()), Some(&b"per-key"[..]));
        let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
        let fields = [("reason".to_owned(), text("x")), ("cause".to_owned(), text("operator-block"))];
        answer.dynamic_metadata = Some(Struct { fields: fields.into() });
        let message = answer.encode_to_vec();
        assert_eq!(cause(&message), Some(&b"operator-block"[..]));
        assert!(!is_shared(&message));
        answer.dynamic_metadata = Some(Struct { fields: [("source".to_owned(), text("overflow"))].into() });
        assert!(is_shared(&answer.encode_to_vec()));
        for end in 0..message.len() {
            cause(&message[..end]); // Whatever is cut off is not read, and nothing breaks.
        }
        answer.dynamic_metadata = None;
        answer.statuses = vec![status(Code::OverLimit, ""), status(Code::Ok, "passed")];
        assert_eq!(cause(&answer.encode_to_vec()), None);
        assert_eq!(cause(b""), None);
        assert_eq!(cause(&[0x08, 2, 0x13]), None);
    }
}
