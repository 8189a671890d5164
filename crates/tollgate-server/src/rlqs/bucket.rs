//! Converts a bucket of Envoy into a request to the policy: the bucket's entries become attributes, like those of a
//! descriptor.

use tollgate::{CheckRequest, RequestError, Value};

use super::message::BucketId;
use crate::identity::{AttributeOrigin, Identified, Identity};

/// A bucket and the domain it came from.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// The id as Envoy wrote it.
    pub(super) id: BucketId,
    pub(super) domain: String,
    /// Names and values, sorted by name. Each name occurs once.
    pairs: Vec<(String, String)>,
}

/// Why a bucket is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// Envoy's configuration is wrong.
    Invalid(&'static str),
    /// A client's value is not UTF-8. It cannot be sent back to Envoy, which reads only text.
    NoText,
}

impl Bucket {
    pub(crate) fn new(id: Option<BucketId>, domain: &str) -> Result<Self, Unusable> {
        let Some(id) = id.filter(|id| !id.entries.is_empty()) else {
            return Err(Unusable::Invalid("bucket_id: it is empty; send at least one key with its value"));
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| Unusable::NoText);
        let mut pairs = Vec::with_capacity(id.entries.len());
        for entry in &id.entries {
            if entry.key.is_empty() {
                return Err(Unusable::Invalid("bucket_id: a key is empty; name each of them"));
            }
            pairs.push((text(&entry.key)?, text(&entry.value)?));
        }
        // If a name occurs twice, the last entry wins, as in any protobuf map.
        pairs.reverse();
        pairs.sort_by(|one, other| one.0.cmp(&other.0));
        pairs.dedup_by(|one, other| one.0 == other.0);
        Ok(Self { id, domain: domain.to_owned(), pairs })
    }

    /// The identity of the bucket. It does not depend on the order of the entries.
    pub(super) fn identity(&self) -> (&str, &[(String, String)]) {
        (&self.domain, &self.pairs)
    }

    /// Identifies the caller that the bucket is about. Envoy passes on what clients send.
    pub(super) fn known(&self, identity: &Identity) -> Identified {
        identity.identify(self.pairs(), AttributeOrigin::Client)
    }

    /// The request to evaluate against the policy.
    pub(super) fn request<'r>(&'r self, known: &'r Identified) -> Result<CheckRequest<'r>, RequestError> {
        known.request(self.pairs())
    }

    /// The names of its attributes.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|(name, _)| name.as_str())
    }

    fn pairs(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.pairs.iter().map(|(name, value)| (name.as_str(), Value::Text(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rlqs::message::BucketEntry;

    fn id(pairs: &[(&str, &[u8])]) -> Option<BucketId> {
        let entry = |(key, value): &(&str, &[u8])| BucketEntry {
            key: key.as_bytes().to_vec(),
            value: value.to_vec(),
        };
        Some(BucketId { entries: pairs.iter().map(entry).collect() })
    }

    /// The order of entries has no meaning, and the last entry of a name wins.
    #[test]
    fn a_bucket_is_a_map() {
        let one = Bucket::new(id(&[("b", b"2"), ("a", b"0"), ("a", b"1")]), "api").unwrap();
        let other = Bucket::new(id(&[("a", b"1"), ("b", b"2")]), "api").unwrap();
        assert_eq!(one.identity(), other.identity());
        let known = Identified::default();
        let request = one.request(&known).unwrap();
        let attributes: Vec<(&str, String)> =
            request.attributes().iter().map(|one| (one.name, format!("{:?}", one.value))).collect();
        assert_eq!(attributes, [("a", "Text(\"1\")".to_owned()), ("b", "Text(\"2\")".to_owned())]);
    }

    /// Errors of the configuration are reported apart from bad values sent by a client.
    #[test]
    fn an_invalid_bucket_is_reported() {
        assert!(matches!(Bucket::new(None, "api"), Err(Unusable::Invalid(_))));
        assert!(matches!(Bucket::new(id(&[]), "api"), Err(Unusable::Invalid(_))));
        assert!(matches!(Bucket::new(id(&[("", b"x")]), "api"), Err(Unusable::Invalid(_))));
        assert_eq!(Bucket::new(id(&[("a", b"\xff")]), "api").unwrap_err(), Unusable::NoText);
        assert!(Bucket::new(id(&[("a", b"")]), "api").unwrap().request(&Identified::default()).is_ok());
    }
}
