//! Signed tokens as credentials: JWTs, and sessions that frameworks sign in the same form. Many verifiers decode base64
//! loosely or ignore unknown segments, so they accept many spellings of one token. Only the issued spelling is accepted
//! here.

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD, URL_SAFE_NO_PAD};
use serde::de::IgnoredAny;

use super::Unreadable;

/// Segments of a signed JWT.
const SIGNED: usize = 3;
/// Segments of an encrypted JWT.
const ENCRYPTED: usize = 5;

/// Base64url as loose verifiers decode it.
const LOOSE: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// Refuses a credential that a verifier may take for another one: a respelled token, or one with white space around it.
///
/// # Errors
/// The credential is refused. The message says where it was found, and does not show it.
pub(super) fn one_spelling(location: impl FnOnce() -> String, credential: &str) -> Result<(), Unreadable> {
    // JavaScript trims the byte order mark as well.
    let is_white = |c: char| c.is_whitespace() || c == '\u{feff}';
    if credential.trim_matches(is_white) != credential || credential.contains(char::is_control) {
        let what = "accepted: a credential without control characters and white space around it";
        return Err(Unreadable(format!("{}: {what}", location())));
    }
    // Some services expect a scheme or a user name before the token.
    let behind = credential.split_once([' ', '\t', ':']).map_or("", |(_, rest)| rest.trim_start());
    if is_respelled(credential) || is_respelled(behind) {
        let what = "the token is not in the one spelling that base64url has; send it as it was issued";
        return Err(Unreadable(format!("{}: {what}", location())));
    }
    Ok(())
}

/// Whether this is a token with padding, with characters outside of base64url, with unused bits set in the last character
/// of a segment, or with additional segments.
fn is_respelled(token: &str) -> bool {
    // Base64 of a JSON object or of zlib data begins like this. Loose decoders skip unknown characters.
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
        // The session of a framework: its signature covers the text of all other segments.
        return !is_signed_strictly;
    }
    let is_encrypted = segments == ENCRYPTED && header.contains_key("enc");
    !(is_encrypted && token.split('.').all(is_strict))
}

/// Whether some base64 decoder accepts a character.
const fn is_base64(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '+' | '/')
}

/// The JSON object in a segment, decoded loosely.
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

    /// The story: PyJWT drops characters outside of base64url, and other verifiers ignore padding, unused bits and a fourth
    /// segment. Each such spelling of one token got a new quota.
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

    /// A token with five segments is accepted only if its header says that it is encrypted.
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

    /// Flask and Starlette sign sessions in the same form, and decode the signature loosely. The signed part may have padding.
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

    /// A credential that is not a signed token is used as it is, with any characters.
    #[test]
    fn other_credentials_are_used_as_they_are() {
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
