//! Checks of the attributes that an operator names: whether requests can have them, and in this spelling.

use std::collections::{BTreeMap, BTreeSet};

use tollgate::policy::By;
use tollgate::policy::source::nearest;
use tollgate::{CheckRequest, CredentialDigest};
use tollgate_tower::attributes::BUILT_IN;

use super::wording::texts;
use crate::problem::Problem;
use crate::service::throttle::ThrottledKey;
use crate::service::{Service, throttle};
use crate::text;

/// Maximum number of attributes that a doubt lists.
const LISTED_MAX: usize = 20;

/// Refuses attributes that no request has: a block of them would deny nothing. The rules of other programs have
/// their own names.
pub(super) fn nameable(service: &Service, given: &[(&str, tollgate::Value<'_>)]) -> Result<(), Problem> {
    let policy = service.engine.policy();
    // Calls that carry their limit have attributes that no policy declares.
    let named = given.iter().filter(|(name, _)| !throttle::ATTRIBUTES.contains(name));
    for (name, value) in named.filter(|_| service.compat().is_none()) {
        if let Some(problem) = policy.attribute_problem(name) {
            return Err(Problem::invalid(problem.to_string()));
        }
        if *name == "domain" && !is_known(service, name) {
            return Err(Problem::invalid(
                "domain: the domain of Envoy's requests is no attribute under a policy of Tollgate's own, so this would block nothing; \
                 accepted: an attribute that the requests have".to_owned(),
            ));
        }
        let tollgate::Value::Text(text) = value else { continue };
        if service.identity.credentials().contains(name) {
            // A credential may look like anything, so it is not echoed. Its digest can always be named.
            if text.is_empty() || text.starts_with('!') || text.contains(['*', '|']) {
                return Err(Problem::invalid(format!(
                    "{name}: a credential is known by its hash, so no pattern can match it; accepted: its whole text, or sha256:..."
                )));
            }
        } else if let Some(problem) = policy.single_problem(name, text) {
            return Err(Problem::invalid(format!("{name}: {problem}")));
        }
    }
    Ok(())
}

/// Doubts about the names: neither a limit nor any HTTP request is known to have one of them.
pub(super) fn doubt(service: &Service, given: &[(&str, tollgate::Value<'_>)]) -> Option<String> {
    let mut unknown = given.iter().map(|(name, _)| *name).filter(|name| !is_known(service, name));
    let name = unknown.next().filter(|_| service.compat().is_none())?;
    let policy = service.engine.policy();
    let used: BTreeSet<&str> =
        policy.limits().iter().flat_map(|limit| limit.by().iter().map(By::name)).collect();
    let mapped = service.reader.mapped.iter().map(|mapped| mapped.name.as_str());
    let meant = nearest(name, used.iter().copied().chain(mapped).chain(BUILT_IN));
    let cure = match meant {
        Some(meant) => format!("; did you mean {meant}?"),
        None if used.is_empty() || used.len() > LISTED_MAX => String::new(),
        None => format!("; limits count by {}", Vec::from_iter(used).join(", ")),
    };
    Some(format!("no limit uses {}{cure}", text::shown(name)))
}

/// Doubts about the key of a command that carries its limit, where no limit reads such an attribute and no command has
/// counted the key: probably another attribute is meant.
pub(super) fn throttle_doubt(
    service: &Service,
    given: &[(&str, tollgate::Value<'_>)],
    throttled: &ThrottledKey,
) -> Option<String> {
    if throttled.is_call || !throttled.counted.is_empty() || service.compat().is_some() {
        return None;
    }
    let policy = service.engine.policy();
    let is_unread = |name: &str| !policy.names(name) && !policy.declares(name);
    let (name, _) = given.iter().find(|(name, _)| throttle::ATTRIBUTES.contains(name) && is_unread(name))?;
    let mut used = policy.limits().iter().flat_map(|limit| limit.by().iter().map(By::name));
    let meant = used.find(|used| used.ends_with(&format!("_{name}")));
    let cure = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
    Some(format!("no limit uses {name}, and no CL.THROTTLE or THROTTLE has counted this key{cure}"))
}

/// The attributes that a limit reads, or that requests are known to have.
pub(super) fn known_attributes(service: &Service) -> BTreeSet<String> {
    let policy = service.engine.policy();
    let reader = &service.reader;
    let mapped = reader.mapped.iter().map(|mapped| mapped.name.as_str());
    let callers = reader.callers.as_ref().map(|callers| callers.now());
    let given = callers.iter().flat_map(|callers| callers.names());
    let names = policy.attributes_used().chain(policy.attributes_declared()).chain(mapped);
    names.chain(given).chain(BUILT_IN).chain(throttle::ATTRIBUTES).map(str::to_owned).collect()
}

/// The digests of the credentials that were given as they are, by attribute.
pub(super) fn digests(
    service: &Service,
    given: &[(&str, tollgate::Value<'_>)],
    request: &CheckRequest<'_>,
) -> BTreeMap<String, String> {
    let mut digests = BTreeMap::new();
    for (name, value) in texts(request) {
        let is_given = given.contains(&(name, tollgate::Value::Text(&value)));
        if service.identity.credentials().contains(name) && !is_given {
            digests.insert(name.to_owned(), value);
        }
    }
    digests
}

/// Whether a limit reads an attribute, or requests are known to have it.
fn is_known(service: &Service, name: &str) -> bool {
    let policy = service.engine.policy();
    policy.names(name)
        || policy.declares(name)
        || throttle::ATTRIBUTES.contains(&name)
        || BUILT_IN.contains(&name)
        || service.reader.mapped.iter().any(|mapped| mapped.name == name)
        || service.reader.callers.as_ref().is_some_and(|callers| callers.gives(name))
}

/// Refuses a pattern where a single value is needed, and a text where an address is: no counter belongs to a pattern.
pub(super) fn single(service: &Service, request: &CheckRequest<'_>) -> Result<(), Problem> {
    let policy = service.engine.policy();
    if let Some(problem) = policy.address_problem(request) {
        return Err(Problem::invalid(problem.to_string()));
    }
    let named = texts(request);
    match named.iter().find(|(name, value)| policy.is_pattern(name, value)) {
        None => Ok(()),
        Some((name, value)) => Err(Problem::invalid(format!(
            "{name}: {value} is a pattern, and a request has one {name}; accepted: the {name} of a request"
        ))),
    }
}

/// Refuses a value that is nearly spelled right: no request has it, so the answer would be about no request.
pub(super) fn spelled_rightly(
    service: &Service,
    given: &[(&str, tollgate::Value<'_>)],
) -> Result<(), Problem> {
    for (name, value) in given {
        let tollgate::Value::Text(text) = value else { continue };
        if service.identity.credentials().contains(name) && CredentialDigest::is_spoilt(text) {
            return Err(Problem::invalid(format!("{name}: {}", CredentialDigest::SPOILT)));
        }
        if let Some(command) = throttle::misspelt_command(name, text) {
            return Err(Problem::invalid(format!(
                "{name}: requests have it as {command}; accepted: {command}"
            )));
        }
    }
    Ok(())
}
