//! Persisted operations, which clients send by their hash. They can be the allow-list of a service.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;

use super::GraphqlProblem;

/// The file formats of tools.
#[derive(Deserialize)]
#[serde(untagged)]
enum OperationFile {
    Texts(Vec<String>),
    /// Apollo's manifest.
    Manifest {
        operations: Vec<Operation>,
    },
    /// Relay's map of hashes to texts.
    ByHash(BTreeMap<String, String>),
}

#[derive(Deserialize)]
struct Operation {
    id: String,
    body: String,
}

/// Persisted operations, by the SHA-256 of their text.
#[derive(Clone, Debug, Default)]
pub struct Persisted {
    texts: Arc<HashMap<String, String>>,
    is_closed: bool,
}

impl Persisted {
    /// Accepts these operations by their hash, and every other one as text.
    pub fn new<'t>(texts: impl IntoIterator<Item = &'t str>) -> Self {
        let texts = texts.into_iter().map(|text| (hash(text), text.to_owned()));
        Self { texts: Arc::new(texts.collect()), is_closed: false }
    }

    /// Reads the operations of a file: a JSON list of texts, an object of texts by their SHA-256, or an Apollo manifest.
    ///
    /// # Errors
    /// The file has another format, or the id of an operation is not the SHA-256 of its text.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        let written = serde_json::from_slice(json).map_err(|_| {
            "accepted: a JSON list of texts, an object of texts by their SHA-256, or {\"operations\": [{\"id\", \"body\"}]}"
        })?;
        let named: Vec<(String, String)> = match written {
            OperationFile::Texts(texts) => return Ok(Self::new(texts.iter().map(String::as_str))),
            OperationFile::Manifest { operations } => {
                operations.into_iter().map(|operation| (operation.id, operation.body)).collect()
            }
            OperationFile::ByHash(texts) => texts.into_iter().collect(),
        };
        if let Some((name, text)) = named.iter().find(|(name, text)| name.to_ascii_lowercase() != hash(text))
        {
            return Err(format!("{name:.64}: not the SHA-256 of its text, which is {}", hash(text)));
        }
        Ok(Self::new(named.iter().map(|(_, text)| text.as_str())))
    }

    /// The number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Accepts no other operations.
    #[must_use]
    pub fn only(self) -> Self {
        Self { is_closed: true, ..self }
    }

    /// The text of an operation: the one in the request, or the one with the hash in the request.
    pub(super) fn text<'r>(
        &'r self,
        text: Option<&'r str>,
        named: Option<&str>,
    ) -> Result<&'r str, GraphqlProblem> {
        let named = named.map(str::to_ascii_lowercase);
        let known = |hash: &str| self.texts.get(hash).map(String::as_str);
        match (text, named) {
            (None, None) => Err(GraphqlProblem::new(
                "BAD_REQUEST",
                "query: missing; send a text or the hash of a known one",
            )),
            (None, Some(named)) => known(&named).ok_or_else(|| {
                GraphqlProblem::new(
                    "PERSISTED_QUERY_NOT_FOUND",
                    "no operation of that hash is known; send its text",
                )
            }),
            (Some(text), named) => {
                let own = (named.is_some() || self.is_closed).then(|| hash(text));
                if named.is_some() && named != own {
                    return Err(GraphqlProblem::new(
                        "BAD_REQUEST",
                        "sha256Hash: is not the hash of the query",
                    ));
                }
                match own {
                    Some(own) if self.is_closed => known(&own).ok_or_else(|| {
                        GraphqlProblem::new(
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

    /// The operation that runs is the one whose cost was computed.
    #[test]
    fn operations_are_found_by_their_hash() {
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

    /// The files of Apollo's and Relay's tools are accepted. An id that no client could send is an error.
    #[test]
    fn files_of_tools_are_read() {
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
