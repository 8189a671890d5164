//! The one form in which credentials are compared, counted and shown: `sha256:` and the first half of the SHA-256 in
//! hexadecimal digits. It is the same on every node and after every restart. The text of a credential is hashed where
//! it arrives and never stored.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use sha2::{Digest, Sha256};

use crate::address::{IPV6_PREFIX_DEFAULT, Network, canonical, client};

/// The attribute that holds the credential of a request, by default.
pub const CREDENTIAL: &str = "api_key";
/// The prefix of every digest.
const PREFIX: &str = "sha256:";
/// Hexadecimal digits that are kept: 128 bits.
const DIGITS: usize = 32;
/// Hexadecimal digits of a whole SHA-256, as `sha256sum` prints it.
const WHOLE_DIGITS: usize = 64;
const TEXT_BYTES: usize = PREFIX.len() + DIGITS;
/// Signatures that can be written in two ways: their characters in base64url, and how many of these belong to the first
/// of their two numbers alone. They are those of P-256 and Ed25519, P-384, Ed448 and P-521.
const TWINS: [(usize, usize); 4] = [(86, 42), (128, 64), (152, 76), (176, 88)];

/// The digest that replaces a credential.
///
/// ```
/// use tollgate::CredentialDigest;
/// let digest = CredentialDigest::of("k1");
/// assert_eq!(digest.as_str(), "sha256:6ab9f1eb8f7d3388f4f9d586f66e99fd");
/// // Operators and policies may give either; a client's own text is always hashed.
/// assert_eq!(CredentialDigest::of_value("k1"), digest);
/// assert_eq!(CredentialDigest::of_value(digest.as_str()), digest);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CredentialDigest([u8; TEXT_BYTES]);

impl CredentialDigest {
    /// The message about a value that [begins as a digest and is none](Self::is_spoilt).
    pub const SPOILT: &str = "begins as a digest and is none; accepted: sha256: and the 64 hexadecimal digits that sha256sum prints, or the first 32 of them";

    /// The digest of a credential's text, whatever that looks like.
    #[must_use]
    pub fn of(credential: &str) -> Self {
        let hash = Sha256::digest(Self::hashed_part(credential).as_bytes());
        let mut digits = [0; DIGITS];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(hash) {
            pair.copy_from_slice(&[hex(byte >> 4), hex(byte & 15)]);
        }
        Self::from_digits(digits)
    }

    /// The part of a credential that is hashed: all of it, except for a JWT with a signature of two numbers, as ES256
    /// makes them. The holder of such a token can write the second number in another way that verifiers accept, so it
    /// does not identify the sender. The first number does: it is at least 252 bits that only the token has, so a
    /// stranger cannot name the token.
    #[must_use]
    pub fn hashed_part(credential: &str) -> &str {
        // Base64 of a JSON object begins with an `e`.
        let Some((signed, signature)) = credential.rsplit_once('.').filter(|_| credential.starts_with('e'))
        else {
            return credential;
        };
        let twin = TWINS.iter().find(|(whole, _)| *whole == signature.len());
        let is_token = || {
            let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            signed.matches('.').count() == 1 && signature.bytes().all(is_base64)
        };
        let kept = twin.filter(|_| is_token()).map(|(_, first)| signed.len() + 1 + first);
        kept.and_then(|kept| credential.get(..kept)).unwrap_or(credential)
    }

    /// The digest of a value: the value itself if it is a digest already, otherwise its hash.
    #[must_use]
    pub fn of_value(value: &str) -> Self {
        Self::parse(value).unwrap_or_else(|| Self::of(value))
    }

    /// Reads `sha256:` with 32 hexadecimal digits, or with all 64, in either case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?.as_bytes();
        let is_digest =
            matches!(digits.len(), DIGITS | WHOLE_DIGITS) && digits.iter().all(u8::is_ascii_hexdigit);
        let first = digits.first_chunk().filter(|_| is_digest)?;
        Some(Self::from_digits(first.map(|digit| digit.to_ascii_lowercase())))
    }

    /// Whether a value begins as a digest and is none, so that it is hardly meant as a credential: a digit is missing,
    /// or the prefix is in capitals.
    #[must_use]
    pub fn is_spoilt(value: &str) -> bool {
        let begins = value.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX));
        begins && Self::parse(value).is_none()
    }

    fn from_digits(digits: [u8; DIGITS]) -> Self {
        let mut text = [0; TEXT_BYTES];
        let (prefix, rest) = text.split_at_mut(PREFIX.len());
        prefix.copy_from_slice(PREFIX.as_bytes());
        rest.copy_from_slice(&digits);
        Self(text)
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // It is ASCII by construction.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// A hexadecimal digit.
const fn hex(digit: u8) -> u8 {
    b"0123456789abcdef"[(digit & 15) as usize]
}

impl fmt::Display for CredentialDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for CredentialDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The names of the attributes whose values are credentials: [`CREDENTIAL`], and those that a program adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialAttributes {
    names: BTreeSet<String>,
    /// Attributes that hold the address of a client that has no credential.
    addressed: BTreeSet<String>,
    /// How many leading bits of an IPv6 address they hold.
    ipv6_prefix: u8,
}

impl Default for CredentialAttributes {
    fn default() -> Self {
        let names = BTreeSet::from([CREDENTIAL.to_owned()]);
        Self { names, addressed: BTreeSet::new(), ipv6_prefix: IPV6_PREFIX_DEFAULT }
    }
}

impl CredentialAttributes {
    /// [`CREDENTIAL`] and these.
    #[must_use]
    pub fn with<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let mut all = Self::default();
        all.names.extend(names.into_iter().map(str::to_owned));
        all
    }

    /// Adds attributes that hold the address of a client without a credential, IPv6 by this many leading bits.
    #[must_use]
    pub fn or_addresses<'n>(mut self, of: impl IntoIterator<Item = &'n str>, ipv6_prefix: u8) -> Self {
        self.addressed.extend(of.into_iter().map(str::to_owned));
        self.ipv6_prefix = ipv6_prefix;
        self
    }

    /// Whether an attribute of this name is a credential.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Whether a value is the address of a client that has no credential.
    pub(crate) fn is_address(&self, name: &str, value: &str) -> bool {
        self.may_be_address(name) && Network::given(value).is_some()
    }

    /// Whether an attribute may hold the address of a client that has no credential.
    pub(crate) fn may_be_address(&self, name: &str) -> bool {
        self.addressed.contains(name)
    }

    /// The canonical spelling of an address in such an attribute, where the value is spelled differently.
    #[must_use]
    pub fn client(&self, name: &str, value: &str) -> Option<String> {
        let address = client(value).filter(|_| self.may_be_address(name))?;
        let one = match canonical(address) {
            IpAddr::V4(address) => address.to_string(),
            whole @ IpAddr::V6(_) => Network::of(whole, self.ipv6_prefix).to_string(),
        };
        (one != value).then_some(one)
    }

    /// The form of a value that a policy stores: its digest, or an address as it is.
    pub(crate) fn kept(&self, name: &str, value: &str) -> String {
        if self.is_address(name, value) {
            value.to_owned()
        } else {
            CredentialDigest::of_value(value).to_string()
        }
    }

    /// Their names.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digits are those that `sha256sum` prints, so that an operator can make a digest without Tollgate.
    #[test]
    fn digests_are_those_of_sha256sum() {
        assert_eq!(CredentialDigest::of("abc").as_str(), "sha256:ba7816bf8f01cfea414140de5dae2223");
        assert_eq!(CredentialDigest::of("").as_str(), "sha256:e3b0c44298fc1c149afbf4c8996fb924");
        let whole = "sha256:BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD";
        assert_eq!(CredentialDigest::parse(whole), Some(CredentialDigest::of("abc")));
    }

    /// The story: a digest that lost a digit, or has its prefix in capitals, was hashed as if it were a credential: a
    /// block of it matched no request.
    #[test]
    fn spoilt_digests_are_known() {
        let digest = CredentialDigest::of("k1").to_string();
        for wrong in [
            "sha256:6ab9",
            "sha256:",
            &digest[..38],
            &digest.to_uppercase(),
            &format!("{digest}0"),
            "Sha256:x",
        ] {
            assert!(CredentialDigest::is_spoilt(wrong), "{wrong}");
        }
        for right in ["k1", "sha256", "", &digest, &format!("{digest}{}", "0".repeat(32))] {
            assert!(!CredentialDigest::is_spoilt(right), "{right}");
        }
    }

    /// The story: ES256 accepts the signatures (r, s) and (r, n - s), so one token was two identities with a quota
    /// each. The part that differs between the two is not hashed. Tokens that differ in anything else are different
    /// credentials, and other texts are hashed as they are.
    #[test]
    fn twins_of_a_signature_are_one_credential() {
        let token =
            |first: &str, second: &str| format!("eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn0.{first}{second}");
        for (whole, first) in TWINS {
            let (one, two, rest) = ("r".repeat(first), "q".repeat(first), whole - first);
            let digest = CredentialDigest::of(&token(&one, &"s".repeat(rest)));
            assert_eq!(digest, CredentialDigest::of(&token(&one, &"t".repeat(rest))), "{whole}");
            assert_ne!(digest, CredentialDigest::of(&token(&two, &"s".repeat(rest))), "{whole}");
            let other = token(&one, &"s".repeat(rest)).replace("iJhIn0", "iJiIn0");
            assert_ne!(digest, CredentialDigest::of(&other), "{whole}");
        }
        let odd = [
            token(&"r".repeat(43), ""),
            token(&"r".repeat(42), &"~".repeat(44)),
            token("x.", &"r".repeat(86)),
            format!("key.a.{}", "r".repeat(86)),
            format!("e.{}", "r".repeat(86)),
        ];
        for text in odd {
            assert_eq!(CredentialDigest::hashed_part(&text), text);
        }
    }

    /// A text that only looks like a digest is a credential.
    #[test]
    fn other_texts_are_hashed() {
        for text in [
            "sha256:",
            "sha256:ba78",
            "ba7816bf8f01cfea414140de5dae2223",
            "SHA256:ba7816bf8f01cfea414140de5dae2223",
        ] {
            assert_eq!(CredentialDigest::parse(text), None, "{text}");
            assert_eq!(CredentialDigest::of_value(text), CredentialDigest::of(text));
        }
    }
}
