//! Limitador's own interface: `/check`, `/report`, `/check_and_report`, `/limits/{namespace}`, `/counters/{namespace}`
//! and `/status`. It answers while a Limitador configuration is active.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::policy::source::Cel;
use tollgate::store::Store;
use tollgate_compat::limitador::decide::{Action, Asked, headers};
use tollgate_compat::limitador::{LimitadorConfig, LimitadorLimit};
use tollgate_compat::{self as compat, ActiveConfig};
use tollgate_tower::unique_json::UniqueValue;

use super::handler::{CompatAnswer, CompatBody, HttpAnswer};
use crate::json_error;
use crate::problem::{Kind, Problem};
use crate::reload::Reloader;
use crate::service::Service;
use crate::service::compat::{CompatOutcome, decide_limitador};
use crate::time_text::rfc3339;
use tollgate_tower::attributes::path::escaped;

/// Limitador's text for a refusal.
const REFUSED: &str = "Too many requests";

/// A request in Limitador's format.
#[derive(Deserialize)]
struct LimitadorBody {
    namespace: String,
    values: BTreeMap<String, String>,
    delta: u64,
    response_headers: Option<String>,
}

/// Checks, reports, or both.
pub(super) async fn answer<S: Store>(
    service: &Service<S>,
    action: Action,
    body: &[u8],
) -> Result<HttpAnswer, Problem> {
    let compat = active_limitador(service)?;
    let body: Result<LimitadorBody, _> =
        serde_json::from_slice(body).and_then(|UniqueValue(body)| serde_json::from_value(body));
    let body = body.map_err(|error| {
        let accepted = r#"{"namespace": "shop", "values": {"user": "u1"}, "delta": 1}"#;
        Problem::invalid(json_error::explained(&error, &accepted))
    })?;
    let entries: Vec<(String, String)> = body.values.into_iter().collect();
    let asked = Asked { namespace: &body.namespace, descriptors: vec![&entries], delta: body.delta, action };
    let ruled = decide_limitador(service, &compat, &asked, service.now()).await;
    let (is_limited, loads) = match ruled.ok_or_else(|| absent(Some(&compat)))? {
        CompatOutcome::Blocked => (true, Vec::new()),
        CompatOutcome::Decided { is_refused, limits } => (is_refused, limits.loads),
    };
    let shows = action == Action::CheckAndReport
        && body.response_headers.is_some_and(|version| version.eq_ignore_ascii_case("DraftVersion03"));
    let headers = if shows { headers(&loads) } else { Vec::new() };
    let body = match action {
        Action::Check if is_limited => CompatBody::Text(REFUSED),
        _ => CompatBody::default(),
    };
    Ok(HttpAnswer::Compat(CompatAnswer { status: if is_limited { 429 } else { 200 }, headers, body }))
}

/// Since when the configuration is active.
pub(super) fn status<S: Store>(service: &Service<S>, reloader: &Reloader) -> Result<HttpAnswer, Problem> {
    let compat = active_limitador(service)?;
    let shown = |at| rfc3339(at, service.engine.maintenance().wall());
    let failed_at = reloader.status().error.as_ref().map(|failure| failure.at);
    Ok(CompatAnswer::document(json!({
        "started_at": shown(service.started_at),
        "config_applied_at": shown(compat.applied_at),
        "config_version": compat.version,
        "config_err_since": failed_at.map(shown),
    })))
}

/// The limits of a namespace.
pub(super) fn limits<S: Store>(service: &Service<S>, path: &str) -> Result<HttpAnswer, Problem> {
    let compat = active_limitador(service)?;
    let limits = limits_of(&compat, path, "/limits/")?;
    Ok(CompatAnswer::document(limits.iter().map(limit).collect()))
}

/// The live counters of a namespace, as far as they are known.
pub(super) async fn counters<S: Store>(service: &Service<S>, path: &str) -> Result<HttpAnswer, Problem> {
    let compat = active_limitador(service)?;
    let now = service.now();
    let mut counters = Vec::new();
    for limit in limits_of(&compat, path, "/counters/")? {
        for listed in compat.listed(limit, &service.engine, now).await {
            let values: serde_json::Map<String, Value> = listed
                .values
                .into_iter()
                .map(|(name, value)| (name, value.map_or(Value::Null, Value::String)))
                .collect();
            counters.push(json!({
                "limit": self::limit(limit),
                "set_variables": values,
                "remaining": listed.remaining,
                "expires_in_seconds": listed.expires_after.ceil_seconds(),
            }));
        }
    }
    Ok(CompatAnswer::document(counters.into()))
}

fn active_limitador<S: Store>(service: &Service<S>) -> Result<Arc<ActiveConfig>, Problem> {
    let compat = service.compat();
    match compat {
        Some(compat) if config(&compat).is_some() => Ok(compat),
        other => Err(absent(other.as_deref())),
    }
}

fn config(compat: &ActiveConfig) -> Option<&LimitadorConfig> {
    match &*compat.rules {
        compat::CompatConfig::Limitador(config) => Some(config),
        compat::CompatConfig::Envoy(_) => None,
    }
}

fn absent(compat: Option<&ActiveConfig>) -> Problem {
    let (format, way) = match compat {
        Some(compat) => (compat.rules.format().name(), "POST /json"),
        None => (compat::Format::Native.name(), "POST /v1/check"),
    };
    Problem::new(
        Kind::WrongFormat,
        format!("this path answers for Limitador limits, and the active policy is a {format}: ask {way}"),
    )
}

/// The limits of the namespace at the end of a path.
fn limits_of<'f>(
    compat: &'f ActiveConfig,
    path: &str,
    prefix: &str,
) -> Result<&'f [LimitadorLimit], Problem> {
    let encoded = path.strip_prefix(prefix).unwrap_or_default();
    let name = decoded(encoded).ok_or_else(|| {
        Problem::invalid("the namespace is not UTF-8 once decoded, or has a % without two hexadecimal digits")
    })?;
    let limits = config(compat).and_then(|config| config.namespace(&name));
    limits.ok_or_else(|| Problem::new(Kind::NotFound, format!("no limit has the namespace {name}")))
}

/// Percent-decodes a path segment.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' { escaped(rest.next()?, rest.next()?)? } else { byte });
    }
    String::from_utf8(bytes).ok()
}

fn limit(limit: &LimitadorLimit) -> Value {
    let sources = |expressions: &[Cel]| -> Vec<String> {
        expressions.iter().map(|expression| expression.source().to_owned()).collect()
    };
    json!({
        "id": limit.id,
        "namespace": limit.namespace,
        "max_value": limit.max_value,
        "seconds": limit.seconds,
        "name": limit.name,
        "conditions": sources(&limit.conditions),
        "variables": sources(&limit.variables),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A namespace may contain any character, escaped by two hexadecimal digits.
    #[test]
    fn namespaces_are_decoded() {
        assert_eq!(decoded("a%2Fb%c3%a9").as_deref(), Some("a/bé"));
        for wrong in ["%", "%4", "%zz", "%+1", "%ff"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }
}
