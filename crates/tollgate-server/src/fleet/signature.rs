//! How nodes recognise each other, and prove what they say. A node signs its questions with a key that it derives from
//! the token of the operator who asks, and the token itself never leaves it. A question is for one node at one address,
//! and good once. An answer proves its status and its body. `docs/design/fleet.md` has the form of both.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use ring::digest::{SHA256, digest};
use ring::hmac::{self, HMAC_SHA256};
use subtle::ConstantTimeEq;
use tollgate::Timestamp;

/// The header by which an answer proves that its node knows the token, and that nothing was changed on the way.
pub(crate) const PROOF_HEADER: &str = "tollgate-node-proof";
/// The scheme of the header `Authorization` of a question, and how those of other versions begin.
const SCHEME: &str = "Tollgate-Node-2";
const SCHEMES: &str = "Tollgate-Node";
/// By how many seconds the clocks of two nodes may differ.
const CLOCK_SECONDS_MAX: u64 = 300;
/// Maximum number of questions that a node remembers, so that it answers none twice.
const SEEN_MAX: usize = 65_536;

/// How long a digest and a nonce are in hexadecimal digits.
const DIGEST_CHARS: usize = 64;
const NONCE_CHARS: usize = 32;
/// Maximum number of digits of an instant in seconds.
const SECONDS_CHARS_MAX: usize = 20;

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
    fn sign(&self, parts: &[&[u8]]) -> String {
        let mut signing = hmac::Context::with_key(&self.0);
        for part in parts {
            signing.update(&(part.len() as u64).to_le_bytes());
            signing.update(part);
        }
        hex(signing.sign().as_ref())
    }
}

/// A random number that makes a question unlike any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nonce(u128);

impl Nonce {
    /// # Errors
    /// When the system has no random bytes.
    pub(crate) fn random() -> Result<Self, String> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| "the system gives no random numbers".to_owned())?;
        Ok(Self(u128::from_le_bytes(bytes)))
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

/// A question of a node that signs in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OtherVersion;

/// A question with its signature, as the header `Authorization` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeSignature {
    /// When it was asked, in seconds since 1970 by the clock of the node that asks.
    at: u64,
    nonce: Nonce,
    /// The SHA-256 of its body.
    body: String,
    signature: String,
}

impl NodeSignature {
    pub(crate) fn new(key: &NodeKey, asked: AskedFor<'_>, body: &[u8], nonce: Nonce, now: Timestamp) -> Self {
        let unsigned = Self { at: seconds(now), nonce, body: hash(body), signature: String::new() };
        Self { signature: unsigned.signed(key, asked), ..unsigned }
    }

    /// The value of the header `Authorization`.
    pub(crate) fn header(&self) -> String {
        let Self { at, nonce: Nonce(nonce), body, signature } = self;
        format!("{SCHEME} {at} {nonce:032x} {body} {signature}")
    }

    /// Reads the header. `None` if a node did not send it. Nothing is computed from words of the wrong length.
    pub(crate) fn read(headers: &HeaderMap) -> Option<Result<Self, OtherVersion>> {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (given.next(), given.next()) else { return None };
        let mut words = value.to_str().ok()?.split(' ');
        let scheme = words.next()?;
        if scheme != SCHEME {
            return scheme.starts_with(SCHEMES).then_some(Err(OtherVersion));
        }
        let (at, nonce, body, signature) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let is_hex = |word: &str, chars| word.len() == chars && word.bytes().all(|b| b.is_ascii_hexdigit());
        let is_whole = words.next().is_none()
            && at.len() <= SECONDS_CHARS_MAX
            && is_hex(nonce, NONCE_CHARS)
            && is_hex(body, DIGEST_CHARS)
            && is_hex(signature, DIGEST_CHARS);
        if !is_whole {
            return None;
        }
        Some(Ok(Self {
            at: at.parse().ok()?,
            nonce: Nonce(u128::from_str_radix(nonce, 16).ok()?),
            body: body.to_owned(),
            signature: signature.to_owned(),
        }))
    }

    fn signed(&self, key: &NodeKey, asked: AskedFor<'_>) -> String {
        let AskedFor { node, admin, method, path } = asked;
        let (at, nonce) = (self.at.to_string(), format!("{:032x}", self.nonce.0));
        let parts = ["question 2", node, admin, method, path, &at, &nonce, &self.body];
        key.sign(&parts.map(str::as_bytes))
    }

    /// Whether a node that knows the token of this key asked for this.
    pub(crate) fn is_signed(&self, key: &NodeKey, asked: AskedFor<'_>) -> bool {
        is_same(&self.signature, &self.signed(key, asked))
    }

    /// Whether it has this body.
    pub(crate) fn has_body(&self, body: &[u8]) -> bool {
        self.body == hash(body)
    }

    /// Checks that it was asked just now.
    fn is_new(&self, now: Timestamp) -> Result<(), String> {
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

    /// The value of the header [`PROOF_HEADER`] of an answer with this status and this body. It covers the nonce, which is
    /// part of the signature.
    pub(crate) fn proof(&self, key: &NodeKey, status: u16, body: &[u8]) -> String {
        let parts = ["answer 2", &self.signature, &status.to_string(), &hash(body)];
        key.sign(&parts.map(str::as_bytes))
    }

    /// The value of that header for an answer whose lines have proofs of their own; see [`StreamProofs`].
    pub(crate) fn proof_of_lines(&self, key: &NodeKey) -> String {
        key.sign(&[b"lines 2", self.signature.as_bytes()])
    }

    /// Whether an answer comes from a node that knows the token, with this status and this body.
    pub(crate) fn is_answered(&self, key: &NodeKey, headers: &HeaderMap, status: u16, body: &[u8]) -> bool {
        has_proof(headers, &self.proof(key, status, body))
    }

    /// Whether an answer in lines comes from a node that knows the token.
    pub(crate) fn is_answered_in_lines(&self, key: &NodeKey, headers: &HeaderMap) -> bool {
        has_proof(headers, &self.proof_of_lines(key))
    }
}

fn has_proof(headers: &HeaderMap, expected: &str) -> bool {
    let mut given = headers.get_all(PROOF_HEADER).iter();
    let (Some(proof), None) = (given.next(), given.next()) else { return false };
    proof.to_str().is_ok_and(|proof| is_same(proof, expected))
}

/// The proofs of an answer in lines, one after the other. Each covers the number of its line, so that none can be left
/// out, repeated or changed.
pub(crate) struct StreamProofs {
    key: NodeKey,
    question: String,
    next: u64,
}

impl StreamProofs {
    pub(crate) fn new(key: NodeKey, question: &NodeSignature) -> Self {
        Self { key, question: question.signature.clone(), next: 0 }
    }

    fn of_next(&mut self, line: &[u8]) -> String {
        let number = self.next.to_string();
        self.next += 1;
        self.key.sign(&[b"line 2", self.question.as_bytes(), number.as_bytes(), line])
    }

    /// The next line, with its proof before it.
    pub(crate) fn proven(&mut self, line: &[u8]) -> Bytes {
        [self.of_next(line).as_bytes(), b" ", line].concat().into()
    }

    /// The next line without its proof. `None` if the proof is not that of this line.
    pub(crate) fn checked<'l>(&mut self, line: &'l [u8]) -> Option<&'l [u8]> {
        let (proof, rest) = line.split_at_checked(DIGEST_CHARS)?;
        let line = rest.strip_prefix(b" ")?;
        let is_proven: bool = proof.ct_eq(self.of_next(line).as_bytes()).into();
        is_proven.then_some(line)
    }
}

/// The questions that a node has answered, for as long as their instants are accepted.
#[derive(Default)]
pub(crate) struct SeenNonces(Mutex<SeenByTime>);

#[derive(Default)]
struct SeenByTime {
    nonces: BTreeSet<(u64, Nonce)>,
    /// Questions of this second and before may have been forgotten.
    forgotten_until: Option<u64>,
}

impl SeenNonces {
    /// Checks that a signed question was asked just now and not answered before, and remembers it. If more are asked than
    /// can be remembered, the oldest is forgotten, and a question that is as old is accepted no more.
    ///
    /// # Errors
    /// Why the question is not accepted.
    pub(crate) fn accept(&self, question: &NodeSignature, now: Timestamp) -> Result<(), String> {
        question.is_new(now)?;
        // A panicking thread cannot leave the set half changed: each statement leaves it consistent.
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = seconds(now).saturating_sub(CLOCK_SECONDS_MAX);
        while seen.nonces.first().is_some_and(|(at, _)| *at < oldest) {
            seen.nonces.pop_first();
        }
        if seen.forgotten_until.is_some_and(|until| question.at <= until) {
            return Err("too many questions were asked: it is too old among them; ask again".to_owned());
        }
        if !seen.nonces.insert((question.at, question.nonce)) {
            return Err(
                "this question was answered before: a program between the nodes has repeated it".to_owned()
            );
        }
        if seen.nonces.len() > SEEN_MAX
            && let Some((at, _)) = seen.nonces.pop_first()
        {
            seen.forgotten_until = seen.forgotten_until.max(Some(at));
        }
        Ok(())
    }
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
mod tests;
