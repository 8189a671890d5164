//! Signed tokens as credentials: JWTs, and the sessions that frameworks sign in the same form. Many verifiers decode base64 loosely, or
//! ignore segments that they do not know, so one token has many spellings that they accept. Only the one in which it was issued passes.

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD, URL_SAFE_NO_PAD};
use serde::de::IgnoredAny;

use super::Unreadable;

/// Segments of a signed JWT, and of one that is encrypted.
const SIGNED: usize = 3;
const ENCRYPTED: usize = 5;

/// Base64url as loose verifiers read it.
const LOOSE: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// Refuses a credential that a verifier may take for another one: a respelled token, or one with white space around it.
///
/// # Errors
/// When it is one of these; the message says where it was found, and nothing of the credential.
pub(super) fn one_spelling(place: impl FnOnce() -> String, credential: &str) -> Result<(), Unreadable> {
    // JavaScript trims the mark of byte order, too.
    let is_white = |c: char| c.is_whitespace() || c == '\u{feff}';
    if credential.trim_matches(is_white) != credential || credential.contains(char::is_control) {
        let what = "accepted is a credential without control characters and white space around it";
        return Err(Unreadable(format!("{}: {what}", place())));
    }
    // Some services want a scheme or a user's name before it.
    let behind = credential.split_once([' ', '\t', ':']).map_or("", |(_, rest)| rest.trim_start());
    if is_respelled(credential) || is_respelled(behind) {
        let what = "the token is not in the one spelling that base64url has; send it as it was issued";
        return Err(Unreadable(format!("{}: {what}", place())));
    }
    Ok(())
}

/// Whether this is a token with padding, characters that are none of base64url, bits in its last characters that no byte has, or more
/// segments than it was issued with.
fn is_respelled(token: &str) -> bool {
    // Base64 of an object in JSON, or of what zlib compressed, begins so; loose decoders skip what they do not know.
    let mut known = token.chars().filter(|c| is_base64(*c) || *c == '.');
    let is_compressed = match known.next() {
        Some('.') if known.next() == Some('e') => true,
        Some('e') => false,
        _ => return false,
    };
    let segments = token.split('.').count();
    let is_strict = |segment: &str| URL_SAFE_NO_PAD.decode(segment).is_ok();
    if segments < 2 || (segments == SIGNED && token.split('.').all(is_strict)) {
        return false;
    }
    let is_signed_strictly = token.rsplit('.').next().is_some_and(is_strict);
    if is_compressed {
        return !is_signed_strictly;
    }
    let Some(header) = token.split('.').next().and_then(object) else { return false };
    if !header.contains_key("alg") {
        // The session of a framework: all but its last segment is signed as it is written.
        return !is_signed_strictly;
    }
    let is_encrypted = segments == ENCRYPTED && header.contains_key("enc");
    !(is_encrypted && token.split('.').all(is_strict))
}

/// Whether some decoder of base64 reads a character as one of its own.
const fn is_base64(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '+' | '/')
}

/// What is in a segment that is an object in JSON, however it is spelled.
fn object(segment: &str) -> Option<BTreeMap<String, IgnoredAny>> {
    let in_url = |c| match c {
        '+' => '-',
        '/' => '_',
        other => other,
    };
    let plain: String = segment.chars().filter(|c| is_base64(*c)).map(in_url).collect();
    serde_json::from_slice(&LOOSE.decode(plain).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(credential: &str) -> bool {
        let read = one_spelling(|| "header x".to_owned(), credential);
        if let Err(error) = &read {
            let message = error.to_string();
            assert!(message.starts_with("header x: ") && !message.contains(credential), "{message}");
        }
        read.is_ok()
    }

    fn base64(text: &str) -> String {
        URL_SAFE_NO_PAD.encode(text)
    }

    /// The story: PyJWT drops characters that are none of base64url, other verifiers ignore padding, spare bits and a fourth segment. Each
    /// such spelling of one token was a fresh quota.
    #[test]
    fn respelled_tokens_are_refused() {
        let (header, payload) = (base64("{\"alg\":\"HS256\"}"), base64("{\"sub\":\"1\"}"));
        let token = format!("{header}.{payload}.AAECAw");
        assert!(passes(&token));
        let spaced = base64("{ \"typ\": \"JWT\",\n\"alg\": \"HS256\" }");
        assert!(passes(&format!("{spaced}.{payload}.AAECAw")));
        assert!(!passes(&format!("{spaced}.{payload}.AAECAw=")));
        for end in [
            "=",
            "==",
            "~~~~",
            "~~~~~~~~",
            "!",
            ".",
            ".x1",
            ".x1.x2",
            "..",
            "%3D",
            " x",
            "\u{e9}",
            ":",
            "@",
            ".AAAA.AAAA",
        ] {
            assert!(!passes(&format!("{token}{end}")), "{end:?}");
            for before in ["Bearer ", "bearer  ", "JWT ", "token:"] {
                assert!(passes(&format!("{before}{token}")), "{before:?}");
                assert!(!passes(&format!("{before}{token}{end}")), "{before:?} {end:?}");
            }
        }
        for before in ["~", "=", "%"] {
            assert!(!passes(&format!("{before}{token}")), "{before:?}");
        }
        for respelled in [
            token.replace("AAECAw", "AAECAx"),
            token.replace("AAECAw", "AA+/Aw"),
            token.replace("AAECAw", "AA~ECAw"),
            format!("{header}~.{payload}.AAECAw"),
            format!("{header}.{payload}"),
        ] {
            assert!(!passes(&respelled), "{respelled}");
        }
    }

    /// Five segments are those of a token that is encrypted, and says so.
    #[test]
    fn encrypted_tokens_have_five_segments() {
        let header = base64("{\"alg\":\"dir\",\"enc\":\"A256GCM\"}");
        let token = format!("{header}..AAAA.BBBB.CCCC");
        assert!(passes(&token));
        for respelled in [
            format!("{token}="),
            format!("{token}.x"),
            format!("{header}..AAAA.BBBB"),
            token.replace("AAAA", "AA~AA"),
        ] {
            assert!(!passes(&respelled), "{respelled}");
        }
    }

    /// Flask and Starlette sign sessions in the same form, and decode their signature as loosely. What they sign may have padding.
    #[test]
    fn signed_sessions_have_one_signature() {
        let session = base64("{\"user\": 7}");
        for issued in [
            format!("{session}.ZabcQA.AAECAw"),
            format!("{session}==.ZabcQA.AAECAw"),
            ".eJyrVg.ZabcQA.AAECAw".to_owned(),
        ] {
            assert!(passes(&issued), "{issued}");
            for end in ["=", "~~~~", "!"] {
                assert!(!passes(&format!("{issued}{end}")), "{issued}{end}");
            }
        }
    }

    /// What is no token of these is a credential as it is, whatever characters it has.
    #[test]
    fn other_credentials_are_as_they_are() {
        for credential in [
            "k1",
            "a.b.c=",
            "e",
            "e.x!",
            "ey",
            "ex_live.abc~def!",
            "eyJ",
            "eyJhbGciOiJ.x~.y=",
            "s:abc.sig=",
            "user:pass",
            "~",
            ".",
            ".a.b~",
            "100%",
        ] {
            assert!(passes(credential), "{credential}");
        }
        for credential in [" k1", "k1\u{a0}", "\u{feff}k1", "k1\n", "k\u{0}1"] {
            assert!(!passes(credential), "{credential:?}");
        }
    }
}
