//! How nodes recognise each other. A node signs its questions with a key that it derives from the token of the operator
//! who asks, and the token itself never leaves it. A signature names the node that is asked and its address. So a
//! server at another address learns no token, cannot pass the question on, and cannot answer it.

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use ring::digest::{SHA256, digest};
use ring::hmac::{self, HMAC_SHA256};
use subtle::ConstantTimeEq;
use tollgate::Timestamp;

/// The header by which an answer proves that its node knows the token.
pub(crate) const PROOF_HEADER: &str = "tollgate-node-proof";
/// The scheme of the header `Authorization` of a question.
const SCHEME: &str = "Tollgate-Node";
/// By how many seconds the clocks of two nodes may differ. A question that was overheard can be repeated until then.
const CLOCK_SECONDS_MAX: u64 = 300;

/// How long a digest is in hexadecimal digits.
const DIGEST_CHARS: usize = 64;

/// The key of a token, by which nodes that know the token recognise each other. It has no `Debug`.
#[derive(Clone)]
pub(crate) struct NodeKey(hmac::Key);

impl NodeKey {
    /// The key of a token. The token cannot be computed from it.
    pub(crate) fn of(token: &str) -> Self {
        let token = hmac::Key::new(HMAC_SHA256, token.as_bytes());
        let derived = hmac::sign(&token, b"tollgate: nodes of a fleet");
        Self(hmac::Key::new(HMAC_SHA256, derived.as_ref()))
    }

    /// The signature of these parts, each with its length, so that no other parts have the same one.
    fn sign(&self, parts: &[&str]) -> String {
        let mut signing = hmac::Context::with_key(&self.0);
        for part in parts {
            signing.update(&(part.len() as u64).to_le_bytes());
            signing.update(part.as_bytes());
        }
        hex(signing.sign().as_ref())
    }
}

/// The node that is asked, and for what.
#[derive(Clone, Copy)]
pub(crate) struct AskedFor<'a> {
    /// The id of the node.
    pub(crate) node: &'a str,
    /// The URL of its admin interface.
    pub(crate) admin: &'a str,
    pub(crate) method: &'a str,
    /// The path and the query.
    pub(crate) path: &'a str,
}

/// A question with its signature, as the header `Authorization` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeSignature {
    /// When it was asked, in seconds since 1970 by the clock of the node that asks.
    at: u64,
    /// The SHA-256 of its body.
    body: String,
    signature: String,
}

impl NodeSignature {
    pub(crate) fn new(key: &NodeKey, asked: AskedFor<'_>, body: &[u8], now: Timestamp) -> Self {
        let (at, body) = (seconds(now), hash(body));
        let signature = signature(key, asked, at, &body);
        Self { at, body, signature }
    }

    /// The value of the header `Authorization`.
    pub(crate) fn header(&self) -> String {
        let Self { at, body, signature } = self;
        format!("{SCHEME} {at} {body} {signature}")
    }

    /// Reads the header. `None` if a node did not send it.
    pub(crate) fn read(headers: &HeaderMap) -> Option<Self> {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (given.next(), given.next()) else { return None };
        let mut words = value.to_str().ok()?.split(' ');
        let (scheme, at, body, signature) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let is_digest = |word: &str| word.len() == DIGEST_CHARS;
        let is_whole = scheme == SCHEME && words.next().is_none() && is_digest(body) && is_digest(signature);
        is_whole.then_some(Self {
            at: at.parse().ok()?,
            body: body.to_owned(),
            signature: signature.to_owned(),
        })
    }

    /// Whether a node that knows the token of this key asked for this.
    pub(crate) fn is_signed(&self, key: &NodeKey, asked: AskedFor<'_>) -> bool {
        is_same(&self.signature, &signature(key, asked, self.at, &self.body))
    }

    /// Whether it has this body.
    pub(crate) fn has_body(&self, body: &[u8]) -> bool {
        self.body == hash(body)
    }

    /// Checks that it was asked just now.
    ///
    /// # Errors
    /// When the clocks of the two nodes differ too much.
    pub(crate) fn is_new(&self, now: Timestamp) -> Result<(), String> {
        let now = seconds(now);
        let apart = now.abs_diff(self.at);
        if apart <= CLOCK_SECONDS_MAX {
            return Ok(());
        }
        let side = if self.at > now { "ahead of" } else { "behind" };
        Err(format!(
            "the clock of the node that asks is {apart} s {side} that of the node that is asked, and at most \
             {CLOCK_SECONDS_MAX} s are accepted: set the clocks, for example with NTP"
        ))
    }

    /// The value of the header [`PROOF_HEADER`] of an answer.
    pub(crate) fn proof(&self, key: &NodeKey) -> String {
        key.sign(&["answer", &self.signature])
    }

    /// Whether the answer with these headers comes from a node that knows the token.
    pub(crate) fn is_answered(&self, key: &NodeKey, headers: &HeaderMap) -> bool {
        let proof = headers.get(PROOF_HEADER).and_then(|proof| proof.to_str().ok());
        proof.is_some_and(|proof| is_same(proof, &self.proof(key)))
    }
}

fn signature(key: &NodeKey, asked: AskedFor<'_>, at: u64, body: &str) -> String {
    let AskedFor { node, admin, method, path } = asked;
    let at = at.to_string();
    key.sign(&["question", node, admin, method, path, &at, body])
}

fn is_same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

fn seconds(at: Timestamp) -> u64 {
    at.unix_micros() / 1_000_000
}

fn hash(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
    const ASKED: AskedFor<'_> =
        AskedFor { node: "b", admin: "http://b:8080", method: "POST", path: "/admin/v1/get?limit=1" };

    fn header(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    /// A question is recognised by nodes with the same token, and no part of it can be replaced.
    #[test]
    fn a_question_is_for_one_node() {
        let (key, other) = (NodeKey::of("0123456789abcdef"), NodeKey::of("0123456789abcdeF"));
        let asked = NodeSignature::new(&key, ASKED, b"{}", NOW);
        assert!(!asked.header().contains("0123456789abcdef"));
        let read = NodeSignature::read(&header(AUTHORIZATION, &asked.header())).unwrap();
        assert_eq!(read, asked);
        assert!(read.is_signed(&key, ASKED) && read.has_body(b"{}") && !read.has_body(b"{ }"));
        assert!(!read.is_signed(&other, ASKED), "another token");
        for replaced in [
            AskedFor { node: "c", ..ASKED },
            AskedFor { admin: "http://elsewhere:8080", ..ASKED },
            AskedFor { method: "GET", ..ASKED },
            AskedFor { path: "/admin/v1/audit", ..ASKED },
            AskedFor { node: "bh", admin: "ttp://b:8080", ..ASKED },
        ] {
            assert!(!read.is_signed(&key, replaced));
        }
        assert!(!NodeSignature { at: read.at + 1, ..read.clone() }.is_signed(&key, ASKED));
        assert!(!NodeSignature { body: hash(b"other"), ..read }.is_signed(&key, ASKED));
        for no_question in
            ["Bearer 1 2 3", "Tollgate-Node 1 2", "Tollgate-Node 1 2 3 4", "Tollgate-Node x 2 3"]
        {
            assert_eq!(NodeSignature::read(&header(AUTHORIZATION, no_question)), None, "{no_question}");
        }
    }

    /// Only a node with the token can answer, and the answer to one question is none to another.
    #[test]
    fn an_answer_is_to_one_question() {
        let (key, other) = (NodeKey::of("0123456789abcdef"), NodeKey::of("0123456789abcdeF"));
        let asked = NodeSignature::new(&key, ASKED, b"{}", NOW);
        let proof = |of: &NodeKey| header(HeaderName::from_static(PROOF_HEADER), &asked.proof(of));
        assert!(asked.is_answered(&key, &proof(&key)));
        assert!(!asked.is_answered(&key, &proof(&other)) && !asked.is_answered(&key, &HeaderMap::new()));
        let next = NodeSignature::new(&key, ASKED, b"", NOW);
        assert!(!next.is_answered(&key, &proof(&key)));
    }

    /// A question from too long ago, or from too far ahead, is refused with the reason.
    #[test]
    fn old_questions_are_refused() {
        let asked = NodeSignature::new(&NodeKey::of("0123456789abcdef"), ASKED, b"", NOW);
        let at = |seconds: u64| Timestamp::from_unix_seconds(seconds);
        assert_eq!(asked.is_new(at(1_700_000_300)).and(asked.is_new(at(1_699_999_700))), Ok(()));
        assert!(asked.is_new(at(1_700_000_301)).unwrap_err().contains("301 s behind"));
        assert!(asked.is_new(at(1_699_999_699)).unwrap_err().contains("301 s ahead of"));
    }
}
