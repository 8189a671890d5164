//! Operations that are known by their hash: the allow-list of a service that serves only its own clients.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;

use super::Unpriced;

/// The forms in which tools write lists of operations.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Texts(Vec<String>),
    /// Apollo's manifest.
    Manifest {
        operations: Vec<Operation>,
    },
    /// Relay's.
    ByHash(BTreeMap<String, String>),
}

#[derive(Deserialize)]
struct Operation {
    id: String,
    body: String,
}

/// Known operations, by the SHA-256 of their text.
#[derive(Clone, Debug, Default)]
pub struct Persisted {
    texts: Arc<HashMap<String, String>>,
    is_closed: bool,
}

impl Persisted {
    /// These operations, beside any other that is sent as text.
    pub fn new<'t>(texts: impl IntoIterator<Item = &'t str>) -> Self {
        let texts = texts.into_iter().map(|text| (hash(text), text.to_owned()));
        Self { texts: Arc::new(texts.collect()), is_closed: false }
    }

    /// The operations of a file: a JSON list of texts, an object of texts by their SHA-256, or a manifest as Apollo's tools write it.
    ///
    /// # Errors
    /// When it is none of these, or an operation is named by anything but the SHA-256 of its text.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        let written = serde_json::from_slice(json).map_err(|_| {
            "accepted: a JSON list of texts, an object of texts by their SHA-256, or {\"operations\": [{\"id\", \"body\"}]}"
        })?;
        let named: Vec<(String, String)> = match written {
            Written::Texts(texts) => return Ok(Self::new(texts.iter().map(String::as_str))),
            Written::Manifest { operations } => {
                operations.into_iter().map(|operation| (operation.id, operation.body)).collect()
            }
            Written::ByHash(texts) => texts.into_iter().collect(),
        };
        if let Some((name, text)) = named.iter().find(|(name, text)| name.to_ascii_lowercase() != hash(text))
        {
            return Err(format!("{name:.64}: not the SHA-256 of its text, which is {}", hash(text)));
        }
        Ok(Self::new(named.iter().map(|(_, text)| text.as_str())))
    }

    /// How many operations are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// These, and no other.
    #[must_use]
    pub fn only(self) -> Self {
        Self { is_closed: true, ..self }
    }

    /// The text of a request: the one that it sends, or the one that its hash names.
    pub(super) fn text<'r>(
        &'r self,
        text: Option<&'r str>,
        named: Option<&str>,
    ) -> Result<&'r str, Unpriced> {
        let named = named.map(str::to_ascii_lowercase);
        let known = |hash: &str| self.texts.get(hash).map(String::as_str);
        match (text, named) {
            (None, None) => {
                Err(Unpriced::new("BAD_REQUEST", "query: missing; send a text or the hash of a known one"))
            }
            (None, Some(named)) => known(&named).ok_or_else(|| {
                Unpriced::new(
                    "PERSISTED_QUERY_NOT_FOUND",
                    "no operation of that hash is known; send its text",
                )
            }),
            (Some(text), named) => {
                let own = (named.is_some() || self.is_closed).then(|| hash(text));
                if named.is_some() && named != own {
                    return Err(Unpriced::new("BAD_REQUEST", "sha256Hash: is not the hash of the query"));
                }
                match own {
                    Some(own) if self.is_closed => known(&own).ok_or_else(|| {
                        Unpriced::new(
                            "PERSISTED_QUERY_ONLY",
                            "only operations that are known in advance are accepted",
                        )
                    }),
                    _ => Ok(text),
                }
            }
        }
    }
}

fn hash(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is sent, what runs is what was priced.
    #[test]
    fn known_operations() {
        let open = Persisted::new(["{ a }"]);
        let named = hash("{ a }");
        assert_eq!(open.text(None, Some(&named)), Ok("{ a }"));
        assert_eq!(open.text(None, Some(&named.to_uppercase())), Ok("{ a }"));
        assert_eq!(open.text(Some("{ b }"), None), Ok("{ b }"));
        assert_eq!(open.text(Some("{ b }"), Some(&named)).unwrap_err().code, "BAD_REQUEST");
        assert_eq!(open.text(None, Some("00")).unwrap_err().code, "PERSISTED_QUERY_NOT_FOUND");
        assert_eq!(open.text(None, None).unwrap_err().code, "BAD_REQUEST");
        let closed = open.only();
        assert_eq!(closed.text(Some("{ a }"), None), Ok("{ a }"));
        assert_eq!(closed.text(Some("{ b }"), None).unwrap_err().code, "PERSISTED_QUERY_ONLY");
    }

    /// What tools write is read, and what no client could ask for is told.
    #[test]
    fn files() {
        let named = hash("{ a }");
        let manifest = format!(
            r#"{{"format":"apollo-persisted-query-manifest","version":1,"operations":[{{"id":"{named}","body":"{{ a }}"}}]}}"#
        );
        for json in [r#"["{ a }"]"#.to_owned(), format!(r#"{{"{named}":"{{ a }}"}}"#), manifest] {
            assert_eq!(
                Persisted::read(json.as_bytes()).unwrap().text(None, Some(&named)),
                Ok("{ a }"),
                "{json}"
            );
        }
        assert!(
            Persisted::read(br#"{"0cc175b9":"{ a }"}"#).unwrap_err().starts_with("0cc175b9: not the SHA-256")
        );
        for json in ["", "[1]", r#"{"operations":[{"id":"x"}]}"#] {
            assert!(
                Persisted::read(json.as_bytes()).unwrap_err().starts_with("accepted: a JSON list"),
                "{json}"
            );
        }
    }
}
