//! The operations of a GraphQL request over HTTP: one or several in JSON, a bare text, or a query string.

use std::borrow::Cow;

use http::Method;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, UPGRADE};
use http::request::Parts;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value as Json};

use super::GraphqlProblem;
use super::cost::{CostModel, OperationCost};
use super::persisted::Persisted;
use crate::attributes::query::parameter;
use crate::spelling::parameter::{form_text, is_read_as, of_path, pieces};
use crate::unique_json::UniqueJson;

/// The parameters of an operation in the query string.
const PARAMETERS: [&str; 4] = ["query", "operationName", "variables", "extensions"];

/// The name of the hash in the extensions.
const PERSISTED: &str = "persistedQuery";
/// Parameters by which some servers find persisted operations, in lower case.
const OTHER_IDS: [&str; 7] = ["id", "documentid", "document_id", "docid", "doc_id", "queryid", "query_id"];

/// One operation in JSON. Unknown fields are refused: some servers ignore case, or read the operation from another field.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct GraphqlRequest<'q> {
    #[serde(default, borrow)]
    query: Option<Cow<'q, str>>,
    #[serde(default, borrow, rename = "operationName")]
    operation: Option<Cow<'q, str>>,
    #[serde(default)]
    variables: Option<UniqueJson>,
    #[serde(default)]
    extensions: Option<Extensions>,
}

/// The extensions of an operation. Unknown ones are ignored.
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
        let UniqueJson(mut all) = UniqueJson::deserialize(from)?;
        let persisted = all.remove(PERSISTED).filter(|named| !named.is_null());
        if let Some(name) = all.keys().find(|name| name.eq_ignore_ascii_case(PERSISTED)) {
            return Err(D::Error::custom(format!("{name:.64}: another spelling; accepted: {PERSISTED}")));
        }
        let persisted = persisted.map(serde_json::from_value).transpose().map_err(D::Error::custom)?;
        Ok(Self { persisted })
    }
}

/// Computes the cost of a request. A request that servers may read differently is refused: the operation that runs must be
/// the one whose cost was computed.
pub(super) fn cost(
    parts: &Parts,
    body: &[u8],
    model: &CostModel,
    persisted: &Persisted,
) -> Result<OperationCost, GraphqlProblem> {
    let bad = |message: &str| GraphqlProblem::new("BAD_REQUEST", message);
    let asked = parts.uri.query().unwrap_or_default();
    if let Some(name) = ambiguous(asked).or_else(|| part_in_path(parts.uri.path())) {
        let message = format!(
            "{name:.64}: some servers would look for an operation there; accepted: {}",
            PARAMETERS.join(", ")
        );
        return Err(GraphqlProblem::new("BAD_REQUEST", message));
    }
    if parts.method == Method::GET || parts.method == Method::HEAD {
        if !body.is_empty() {
            return Err(bad("body: the operation is in the query string; accepted: no body beside it"));
        }
        return of_query(asked, model, persisted);
    }
    for name in PARAMETERS {
        if !matches!(parameter(asked, name), Ok(None)) {
            let message = format!("{name}: in the query string and in a body; accepted: one of them");
            return Err(GraphqlProblem::new("BAD_REQUEST", message));
        }
    }
    match media_type(parts)?.as_str() {
        "application/json" | "application/graphql+json" => of_json(body, model, persisted),
        "application/graphql" => {
            let text = std::str::from_utf8(body).map_err(|_| bad("body: not text in UTF-8"))?;
            one(
                &GraphqlRequest { query: Some(Cow::Borrowed(text)), ..GraphqlRequest::default() },
                model,
                persisted,
            )
        }
        _ => Err(bad("content-type: no GraphQL; accepted: application/json and application/graphql")),
    }
}

/// A name behind a semicolon of the path that Fastify takes for a part of an operation.
fn part_in_path(path: &str) -> Option<Cow<'_, str>> {
    let is_part = |name: &str| PARAMETERS.iter().chain(&OTHER_IDS).any(|known| is_read_as(name, known));
    pieces(of_path(path)).find_map(|piece| form_text(piece.name).filter(|name| is_part(name)))
}

/// A name in a query string that some servers take for a parameter of an operation, although it is none of the four: in
/// another case, with a path into it (`variables[n]`), after a semicolon, or an id of an operation.
fn ambiguous(asked: &str) -> Option<Cow<'_, str>> {
    let is_ambiguous = |name: &str, is_first: bool| {
        let stem = name.trim().split(['[', '.']).next().unwrap_or_default().trim_end().to_ascii_lowercase();
        let is_part = PARAMETERS.iter().any(|known| known.eq_ignore_ascii_case(&stem));
        OTHER_IDS.contains(&stem.as_str()) || is_part && !(is_first && PARAMETERS.contains(&name))
    };
    asked.split('&').find_map(|pair| {
        let mut pieces = pair.split(';').enumerate();
        pieces.find_map(|(index, piece)| {
            let name = match piece.split_once('=') {
                Some((name, _)) => name,
                // After a semicolon, a piece without `=` is usually the rest of a value.
                None => Some(piece).filter(|_| index == 0)?,
            };
            form_text(name).filter(|name| is_ambiguous(name, index == 0))
        })
    })
}

/// Whether a request upgrades to another protocol, such as WebSocket, whose messages the layer does not see. An upgrade to
/// HTTP/2 is accepted, because the server may ignore it.
pub(super) fn is_other_protocol(parts: &Parts) -> bool {
    let is_http = |name: &str| {
        let name = name.trim().to_ascii_lowercase();
        name.is_empty() || name.starts_with("h2") || name.starts_with("http")
    };
    let is_other = |line: &HeaderValue| line.to_str().map_or(true, |line| !line.split(',').all(is_http));
    parts.method == Method::CONNECT || parts.headers.get_all(UPGRADE).iter().any(is_other)
}

/// The media type of a body, in lower case. It must be given once, and the body must be plain UTF-8.
fn media_type(parts: &Parts) -> Result<String, GraphqlProblem> {
    let bad = |message: &str| GraphqlProblem::new("BAD_REQUEST", message);
    let codings = parts.headers.get_all(CONTENT_ENCODING).iter();
    if codings.into_iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(bad("content-encoding: an encoded body has no cost; accepted: none"));
    }
    let mut lines = parts.headers.get_all(CONTENT_TYPE).iter();
    let line = lines.next().and_then(|line| line.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
    if lines.next().is_some() {
        return Err(bad("content-type: given more than once; accepted: once"));
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

fn of_json(body: &[u8], model: &CostModel, persisted: &Persisted) -> Result<OperationCost, GraphqlProblem> {
    let bad = |error: serde_json::Error| {
        GraphqlProblem::new("BAD_REQUEST", format!("body: no GraphQL request: {error}"))
    };
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'[') {
        return one(&serde_json::from_slice(body).map_err(bad)?, model, persisted);
    }
    let several: Vec<GraphqlRequest<'_>> = serde_json::from_slice(body).map_err(bad)?;
    let most = model.caps.operations;
    if several.is_empty() || several.len() > most {
        let message = format!("{} operations in one request; accepted: 1 to {most}", several.len());
        return Err(GraphqlProblem::new("BAD_REQUEST", message));
    }
    let costs = several.iter().map(|request| one(request, model, persisted));
    Ok(OperationCost::sum(costs.collect::<Result<Vec<_>, _>>()?))
}

fn of_query(text: &str, model: &CostModel, persisted: &Persisted) -> Result<OperationCost, GraphqlProblem> {
    let read = |name| parameter(text, name).map_err(|problem| GraphqlProblem::new("BAD_REQUEST", problem.0));
    let bad = |name: &str| GraphqlProblem::new("BAD_REQUEST", format!("{name}: no JSON object"));
    let variables = match read("variables")? {
        Some(json) => Some(serde_json::from_str(&json).map_err(|_| bad("variables"))?),
        None => None,
    };
    let extensions = match read("extensions")? {
        Some(json) => Some(serde_json::from_str(&json).map_err(|_| bad("extensions"))?),
        None => None,
    };
    let request =
        GraphqlRequest { query: read("query")?, operation: read("operationName")?, variables, extensions };
    one(&request, model, persisted)
}

fn one(
    request: &GraphqlRequest<'_>,
    model: &CostModel,
    persisted: &Persisted,
) -> Result<OperationCost, GraphqlProblem> {
    let named = request.extensions.as_ref().and_then(|extensions| extensions.persisted.as_ref());
    let text = persisted.text(request.query.as_deref(), named.map(|named| named.hash.as_str()))?;
    let none = Map::new();
    let variables = request.variables.as_ref().map_or(&none, |UniqueJson(variables)| variables);
    model.cost(text, request.operation.as_deref().filter(|name| !name.is_empty()), variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fastify 4 reads what follows a semicolon of the path as the query: an operation there ran without its price.
    #[test]
    fn operations_in_the_path_are_found() {
        for path in ["/;query=x", "/;a=1&query=x", "/;a;QUERY=x", "/;variables[n]=1", "/;id=3", "/;%71uery=x"]
        {
            assert!(part_in_path(path).is_some(), "{path}");
        }
        for path in ["/query=x", "/;v=1", "/;a=query", "/;jsessionid=1"] {
            assert_eq!(part_in_path(path), None, "{path}");
        }
    }
}
