//! What a GraphQL request asks for, in all forms that HTTP gives it: JSON, one operation or several, a bare text, or a query string.

use std::borrow::Cow;

use http::Method;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, UPGRADE};
use http::request::Parts;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value as Json};

use super::Unpriced;
use super::once::Once;
use super::persisted::Persisted;
use super::price::{Price, Pricing};
use crate::attributes::query::parameter;
use crate::spelling::parameter::form_text;

/// What an operation is made of in the query string.
const PARAMETERS: [&str; 4] = ["query", "operationName", "variables", "extensions"];

/// The name of a hash in the extensions.
const PERSISTED: &str = "persistedQuery";
/// Where some servers look for an operation that they know by another name than its hash; in small letters.
const ELSEWHERE: [&str; 7] = ["id", "documentid", "document_id", "docid", "doc_id", "queryid", "query_id"];

/// One operation as it is sent. It has nothing beside: some servers read names in any case, or an operation under another name.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question<'q> {
    #[serde(default, borrow)]
    query: Option<Cow<'q, str>>,
    #[serde(default, borrow, rename = "operationName")]
    operation: Option<Cow<'q, str>>,
    #[serde(default)]
    variables: Option<Once>,
    #[serde(default)]
    extensions: Option<Extensions>,
}

/// What is beside an operation. It may hold what nobody here knows.
#[derive(Debug, Default)]
struct Extensions {
    persisted: Option<ByHash>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ByHash {
    #[serde(default, rename = "version")]
    _version: Option<Json>,
    #[serde(rename = "sha256Hash")]
    hash: String,
}

impl<'d> Deserialize<'d> for Extensions {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        let Once(mut all) = Once::deserialize(from)?;
        let persisted = all.remove(PERSISTED).filter(|named| !named.is_null());
        if let Some(name) = all.keys().find(|name| name.eq_ignore_ascii_case(PERSISTED)) {
            return Err(D::Error::custom(format!("{name:.64}: another spelling; accepted: {PERSISTED}")));
        }
        let persisted = persisted.map(serde_json::from_value).transpose().map_err(D::Error::custom)?;
        Ok(Self { persisted })
    }
}

/// The price of a request. What servers read in more than one place, or in more than one way, has none: what runs must be what was priced.
pub(super) fn price(
    parts: &Parts,
    body: &[u8],
    pricing: &Pricing,
    persisted: &Persisted,
) -> Result<Price, Unpriced> {
    let bad = |message: &str| Unpriced::new("BAD_REQUEST", message);
    let asked = parts.uri.query().unwrap_or_default();
    if let Some(name) = ambiguous(asked) {
        let message = format!(
            "{name:.64}: some servers would look for an operation there; accepted: {}",
            PARAMETERS.join(", ")
        );
        return Err(Unpriced::new("BAD_REQUEST", message));
    }
    if parts.method == Method::GET || parts.method == Method::HEAD {
        if !body.is_empty() {
            return Err(bad("body: the operation is in the query string; accepted: no body beside it"));
        }
        return of_query(asked, pricing, persisted);
    }
    for name in PARAMETERS {
        if !matches!(parameter(asked, name), Ok(None)) {
            let message = format!("{name}: in the query string and in a body; accepted: one of them");
            return Err(Unpriced::new("BAD_REQUEST", message));
        }
    }
    match media_type(parts)?.as_str() {
        "application/json" | "application/graphql+json" => of_json(body, pricing, persisted),
        "application/graphql" => {
            let text = std::str::from_utf8(body).map_err(|_| bad("body: not text in UTF-8"))?;
            one(&Question { query: Some(Cow::Borrowed(text)), ..Question::default() }, pricing, persisted)
        }
        _ => Err(bad("content-type: no GraphQL; accepted: application/json and application/graphql")),
    }
}

/// A name in a query string that some servers take for a part of an operation, though it is none of the four: in other letters, with a
/// path into it (`variables[n]`), behind a semicolon, or one by which they know operations.
fn ambiguous(asked: &str) -> Option<Cow<'_, str>> {
    let is_ambiguous = |name: &str, is_first: bool| {
        let stem = name.trim().split(['[', '.']).next().unwrap_or_default().trim_end().to_ascii_lowercase();
        let is_part = PARAMETERS.iter().any(|known| known.eq_ignore_ascii_case(&stem));
        ELSEWHERE.contains(&stem.as_str()) || is_part && !(is_first && PARAMETERS.contains(&name))
    };
    asked.split('&').find_map(|pair| {
        let mut pieces = pair.split(';').enumerate();
        pieces.find_map(|(place, piece)| {
            let name = match piece.split_once('=') {
                Some((name, _)) => name,
                // Behind a semicolon there is more often the rest of a value.
                None => Some(piece).filter(|_| place == 0)?,
            };
            form_text(name).filter(|name| is_ambiguous(name, place == 0))
        })
    })
}

/// Whether a request asks for another protocol, such as WebSocket, whose messages nobody would price. HTTP/2 is none: who is asked for
/// it may go on as before.
pub(super) fn is_other_protocol(parts: &Parts) -> bool {
    let is_http = |name: &str| {
        let name = name.trim().to_ascii_lowercase();
        name.is_empty() || name.starts_with("h2") || name.starts_with("http")
    };
    let is_other = |line: &HeaderValue| line.to_str().map_or(true, |line| !line.split(',').all(is_http));
    parts.method == Method::CONNECT || parts.headers.get_all(UPGRADE).iter().any(is_other)
}

/// What a body is, in small letters. It is told once, and the body is text in UTF-8 as it is.
fn media_type(parts: &Parts) -> Result<String, Unpriced> {
    let bad = |message: &str| Unpriced::new("BAD_REQUEST", message);
    let codings = parts.headers.get_all(CONTENT_ENCODING).iter();
    if codings.into_iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(bad("content-encoding: a body has no price that cannot be read; accepted: none"));
    }
    let mut lines = parts.headers.get_all(CONTENT_TYPE).iter();
    let line = lines.next().and_then(|line| line.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
    if lines.next().is_some() {
        return Err(bad("content-type: told more than once; accepted: once"));
    }
    let mut words = line.split(';').map(str::trim);
    let kind = words.next().unwrap_or_default().to_owned();
    let is_accepted = |word: &str| match word.strip_prefix("charset") {
        None => true,
        Some(rest) => matches!(rest, "=utf-8" | "=utf8" | "=\"utf-8\"" | "=\"utf8\""),
    };
    match words.all(is_accepted) {
        true => Ok(kind),
        false => Err(bad("content-type: another charset; accepted: utf-8")),
    }
}

fn of_json(body: &[u8], pricing: &Pricing, persisted: &Persisted) -> Result<Price, Unpriced> {
    let bad =
        |error: serde_json::Error| Unpriced::new("BAD_REQUEST", format!("body: no GraphQL request: {error}"));
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'[') {
        return one(&serde_json::from_slice(body).map_err(bad)?, pricing, persisted);
    }
    let several: Vec<Question<'_>> = serde_json::from_slice(body).map_err(bad)?;
    let most = pricing.caps.operations;
    if several.is_empty() || several.len() > most {
        let message = format!("{} operations in one request; accepted: 1 to {most}", several.len());
        return Err(Unpriced::new("BAD_REQUEST", message));
    }
    let prices = several.iter().map(|question| one(question, pricing, persisted));
    Ok(Price::sum(prices.collect::<Result<Vec<_>, _>>()?))
}

fn of_query(text: &str, pricing: &Pricing, persisted: &Persisted) -> Result<Price, Unpriced> {
    let read = |name| parameter(text, name).map_err(|problem| Unpriced::new("BAD_REQUEST", problem.0));
    let bad = |name: &str| Unpriced::new("BAD_REQUEST", format!("{name}: no JSON object"));
    let variables = match read("variables")? {
        Some(json) => Some(serde_json::from_str(&json).map_err(|_| bad("variables"))?),
        None => None,
    };
    let extensions = match read("extensions")? {
        Some(json) => Some(serde_json::from_str(&json).map_err(|_| bad("extensions"))?),
        None => None,
    };
    let question =
        Question { query: read("query")?, operation: read("operationName")?, variables, extensions };
    one(&question, pricing, persisted)
}

fn one(question: &Question<'_>, pricing: &Pricing, persisted: &Persisted) -> Result<Price, Unpriced> {
    let named = question.extensions.as_ref().and_then(|extensions| extensions.persisted.as_ref());
    let text = persisted.text(question.query.as_deref(), named.map(|named| named.hash.as_str()))?;
    let none = Map::new();
    let variables = question.variables.as_ref().map_or(&none, |Once(variables)| variables);
    pricing.price(text, question.operation.as_deref().filter(|name| !name.is_empty()), variables)
}
