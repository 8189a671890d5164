//! The credential of a request. Its spellings become one identity, or the request is refused: otherwise limits would count
//! one credential, and the service might serve another.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName};

use super::Unreadable;
use super::cookie::cookie;
use super::query::{self, Query};
use super::source::single;
use super::token::one_spelling;
use crate::spelling::plain;

/// Most locations of credentials in a config.
pub const LOCATIONS_MAX: usize = 8;

const BEARER: &str = "bearer";
const BASIC: &str = "basic";

/// Where clients send their credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialLocation {
    /// A header.
    Header(HeaderName),
    /// `Authorization: Bearer …`, or the token alone.
    Bearer,
    /// `Authorization: Basic …`: the name and the password with a colon between them, or the name alone if the password is
    /// empty.
    Basic,
    /// A cookie.
    Cookie(String),
    /// A parameter of the query.
    Query(String),
}

impl CredentialLocation {
    /// Its name in messages.
    fn name(&self) -> String {
        match self {
            CredentialLocation::Header(name) => name.to_string(),
            CredentialLocation::Bearer | CredentialLocation::Basic => AUTHORIZATION.to_string(),
            CredentialLocation::Cookie(name) => format!("cookie {name}"),
            CredentialLocation::Query(name) => format!("query parameter {name}"),
        }
    }

    fn read<'s>(&self, headers: &'s HeaderMap, query: Query<'s>) -> Result<Option<Cow<'s, str>>, Unreadable> {
        let found = match self {
            CredentialLocation::Header(name) => single(headers, name)?.map(Cow::Borrowed),
            CredentialLocation::Bearer => authorization(headers, BEARER)?.map(Cow::Borrowed),
            CredentialLocation::Basic => basic(headers)?.map(Cow::Owned),
            CredentialLocation::Cookie(name) => cookie(headers, name)?,
            CredentialLocation::Query(name) => query::attribute(query, name)?,
        };
        let found = found.filter(|credential| !credential.is_empty());
        if let Some(credential) = &found {
            one_spelling(|| self.name(), credential)?;
        }
        Ok(found)
    }
}

/// The locations where the service looks for the credential of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials(Vec<CredentialLocation>);

impl Default for Credentials {
    /// `X-API-Key` and the bearer token.
    fn default() -> Self {
        Self(vec![
            CredentialLocation::Header(HeaderName::from_static("x-api-key")),
            CredentialLocation::Bearer,
        ])
    }
}

impl Credentials {
    /// Uses these locations, in any order; an empty list is for a service without credentials.
    #[must_use]
    pub const fn new(locations: Vec<CredentialLocation>) -> Self {
        Self(locations)
    }

    /// Whether it reads a header as which servers may read another field.
    pub(super) fn reads(&self, meant: &str, field: &HeaderName) -> bool {
        self.0.iter().any(
            |location| matches!(location, CredentialLocation::Header(name) if name != field && plain(name.as_str()) == meant),
        )
    }

    /// The credential of a request, if it has one.
    ///
    /// # Errors
    /// It has two different ones. Which of them the service reads is not known.
    pub(super) fn read<'s>(
        &self,
        headers: &'s HeaderMap,
        query: Query<'s>,
    ) -> Result<Option<Cow<'s, str>>, Unreadable> {
        let mut found: Option<(&CredentialLocation, Cow<'s, str>)> = None;
        for location in &self.0 {
            let Some(credential) = location.read(headers, query)? else { continue };
            match &found {
                Some((first, known)) if *known != credential => return Err(two(first, location)),
                Some(_) => {}
                None => found = Some((location, credential)),
            }
        }
        Ok(found.map(|(_, credential)| credential))
    }
}

fn two(first: &CredentialLocation, second: &CredentialLocation) -> Unreadable {
    let (first, second) = (first.name(), second.name());
    Unreadable(format!(
        "credentials: {first} and {second} hold different ones; send one, or name in `credentials` of the config the one that the service reads"
    ))
}

/// The token after a scheme in `Authorization`, with any white space between them.
fn authorization<'h>(headers: &'h HeaderMap, scheme: &str) -> Result<Option<&'h str>, Unreadable> {
    const WHITE: [char; 2] = [' ', '\t'];
    let Some(value) = single(headers, &AUTHORIZATION)? else { return Ok(None) };
    let token = match value.split_once(WHITE) {
        Some((given, rest)) if given.eq_ignore_ascii_case(scheme) => rest.trim_matches(WHITE),
        // Services that cut `Bearer` off where it is take a token without a scheme for the same credential.
        None if scheme == BEARER => without_scheme(value)?,
        _ => return Ok(None),
    };
    // Servers differ in how they read a quoted token, two tokens, or a comma.
    let is_plain = token.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b'\\'));
    if !is_plain {
        let what = "accepted: one token after the scheme, without quotes, commas, spaces and characters beyond ASCII";
        return Err(Unreadable(format!("authorization: {what}")));
    }
    Ok(Some(token).filter(|token| !token.is_empty()))
}

/// The token of an `Authorization` that is one word. A scheme alone has none, and one that is joined to its token is read differently.
fn without_scheme(word: &str) -> Result<&str, Unreadable> {
    for scheme in [BEARER, BASIC] {
        let rest = word.get(scheme.len()..).filter(|_| word.to_ascii_lowercase().starts_with(scheme));
        match rest {
            Some("") => return Ok(""),
            Some(_) => {
                let what = "no space between the scheme and the token; accepted: Bearer TOKEN";
                return Err(Unreadable(format!("authorization: {what}")));
            }
            None => {}
        }
    }
    Ok(word)
}

/// The bearer token.
pub(super) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Unreadable> {
    let token = authorization(headers, BEARER)?;
    if let Some(token) = token {
        one_spelling(|| AUTHORIZATION.to_string(), token)?;
    }
    Ok(token)
}

/// The name and the password of `Basic`, in their normalised spelling.
fn basic(headers: &HeaderMap) -> Result<Option<String>, Unreadable> {
    let Some(token) = authorization(headers, BASIC)? else { return Ok(None) };
    let decoded = STANDARD.decode(token).or_else(|_| STANDARD_NO_PAD.decode(token)).ok();
    let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    let Some(text) = text else {
        return Err(Unreadable("authorization: accepted after Basic is base64 of text in UTF-8".to_owned()));
    };
    Ok(Some(text.strip_suffix(':').unwrap_or(&text).to_owned()))
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use http::HeaderValue;

    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        lines.iter().map(line).collect()
    }

    fn read(
        locations: &[CredentialLocation],
        lines: &[(&'static str, &str)],
        query: &str,
    ) -> Result<Option<String>, String> {
        let credentials =
            if locations.is_empty() { Credentials::default() } else { Credentials::new(locations.to_vec()) };
        let headers = headers(lines);
        credentials
            .read(&headers, Query::of(None, query))
            .map(|found| found.map(Cow::into_owned))
            .map_err(|error| error.to_string())
    }

    /// A request has a key or a token. Two equal ones count as one, and two different ones are refused.
    #[test]
    fn a_request_has_one_credential() {
        let some = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(read(&[], &[("x-api-key", " k1 ")], ""), some("k1"));
        assert_eq!(read(&[], &[("x-api-key", ""), ("authorization", "bearer  t1")], ""), some("t1"));
        assert_eq!(read(&[], &[("x-api-key", "t1"), ("authorization", "Bearer t1")], ""), some("t1"));
        assert_eq!(read(&[], &[("authorization", "Basic abc")], ""), Ok(None));
        assert_eq!(read(&[], &[], ""), Ok(None));
        assert!(read(&[], &[("x-api-key", "a"), ("x-api-key", "a")], "").is_err());
        let two = read(&[], &[("x-api-key", "s3cret"), ("authorization", "Bearer t0ken")], "").unwrap_err();
        assert!(two.contains("x-api-key and authorization") && two.contains("`credentials`"), "{two}");
        assert!(!two.contains("s3cret") && !two.contains("t0ken"), "{two}");
        // The config says which one the service reads. The other one is ignored.
        let only = [CredentialLocation::Bearer];
        assert_eq!(read(&only, &[("x-api-key", "random"), ("authorization", "Bearer t1")], ""), some("t1"));
    }

    /// Every spelling that all servers accept gives the token, and every other one is refused.
    #[test]
    fn bearer_tokens_have_one_spelling() {
        let read = |value: &str| read(&[CredentialLocation::Bearer], &[("authorization", value)], "");
        for spelled in ["Bearer tok", "bEaReR\ttok", "Bearer \t tok", " bearer tok ", "BEARER\t\ttok\t"] {
            assert_eq!(read(spelled), Ok(Some("tok".to_owned())), "{spelled:?}");
        }
        for refused in [
            "Bearer tok tok",
            "Bearer \"tok\"",
            "Bearer tok, Basic abc",
            "Bearer t\u{e9}",
            "Bearer a\\b",
            "Bearer\ta\tb",
            "Bearertok",
            "bearer:tok",
            "Basictok",
            "a,b",
        ] {
            assert!(read(refused).is_err(), "{refused:?}");
        }
        for none in ["Bearer", "Bearer ", "Basic", "", "Negotiate tok", "\"Bearer\" tok"] {
            assert_eq!(read(none), Ok(None), "{none:?}");
        }
    }

    /// `Authorization: tok` had no identity, so a client of a service that cuts `Bearer` off if it is there met no limit by its key. It is
    /// the token, where bearer tokens are read.
    #[test]
    fn a_token_without_a_scheme_is_the_token() {
        let tok = Ok(Some("tok".to_owned()));
        assert_eq!(read(&[CredentialLocation::Bearer], &[("authorization", " tok ")], ""), tok);
        assert_eq!(read(&[], &[("authorization", "tok")], ""), tok);
        assert!(read(&[], &[("authorization", "tok"), ("x-api-key", "other")], "").is_err());
        assert!(
            read(&[], &[("authorization", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.AAECAw==")], "").is_err()
        );
        assert_eq!(read(&[CredentialLocation::Basic], &[("authorization", "tok")], ""), Ok(None));
    }

    /// The story: only the spelling of a JWT after `Bearer` was checked. In another header, a cookie or a parameter, each
    /// character that verifiers skip made a new identity of the same token.
    #[test]
    fn jwts_have_one_spelling_in_every_location() {
        let token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.AAECAw";
        let header = CredentialLocation::Header(HeaderName::from_static("x-access-token"));
        let (cookie, parameter) =
            (CredentialLocation::Cookie("jwt".to_owned()), CredentialLocation::Query("key".to_owned()));
        let everywhere = |token: &str| {
            let basic = format!("Basic {}", STANDARD.encode(format!("{token}:")));
            [
                read(from_ref(&header), &[("x-access-token", token)], ""),
                read(&[], &[("x-api-key", token)], ""),
                read(&[CredentialLocation::Bearer], &[("authorization", &format!("Bearer {token}"))], ""),
                read(&[CredentialLocation::Basic], &[("authorization", &basic)], ""),
                read(from_ref(&cookie), &[("cookie", &format!("a=1; jwt={token}"))], ""),
                read(from_ref(&parameter), &[], &format!("key={token}")),
            ]
        };
        for read in everywhere(token) {
            assert_eq!(read, Ok(Some(token.to_owned())));
        }
        let ends = ["==", "~~~~", ".x1", "."];
        let respelled = ends.map(|end| format!("{token}{end}"));
        for token in
            respelled.into_iter().chain([token.replace("AAECAw", "AAECAx"), token.replace("In0.", "In1.")])
        {
            for read in everywhere(&token) {
                let message = read.unwrap_err();
                assert!(message.contains("one spelling") && !message.contains("eyJ"), "{message}");
            }
        }
        // A token that is not a JWT is used as it is, but may not have white space around it.
        assert_eq!(
            read(&[CredentialLocation::Bearer], &[("authorization", "Bearer a.b.c=")], ""),
            Ok(Some("a.b.c=".to_owned()))
        );
        assert!(read(&[parameter], &[], "key=%20k1").is_err());
    }

    /// Padding does not change the identity, and a key without a password is the key.
    #[test]
    fn basic_credentials_have_one_spelling() {
        let read = |value: &str| {
            read(&[CredentialLocation::Bearer, CredentialLocation::Basic], &[("authorization", value)], "")
        };
        assert_eq!(read("Basic dXNlcjpwYXNz"), Ok(Some("user:pass".to_owned())));
        assert_eq!(read("basic\tc2tfMTo="), Ok(Some("sk_1".to_owned())));
        assert_eq!(read("basic c2tfMTo"), Ok(Some("sk_1".to_owned())));
        assert!(read("Basic !!!").is_err());
        assert_eq!(
            super::tests::read(&[CredentialLocation::Query("key".to_owned())], &[], "a=1&key=%6b1"),
            Ok(Some("k1".to_owned()))
        );
    }
}
