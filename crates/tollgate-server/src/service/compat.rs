//! Decisions by the rules of another program's configuration. Every protocol reaches those rules through this module,
//! so operator overrides apply there too, and every decision is counted once.

use std::sync::Arc;

use tollgate::store::Store;
use tollgate::{Block, LimitOverride, Timestamp};
use tollgate_compat::limitador::decide::{Action, Asked, LimitadorDecision as Limits};
use tollgate_compat::{ActiveConfig, Answered, Options};

use super::Service;
use crate::protocol::Protocol;
use crate::rls::{Answer, Code, Refusal, RlsRequest, Status};
use crate::telemetry::{Key, RuleVerdict, Stopwatch};

/// The attribute by which a block may name a domain or a namespace.
const DOMAIN: &str = "domain";

/// The result of Limitador's rules, after blocks and overrides.
pub(crate) enum CompatOutcome<'c> {
    /// An operator blocks the request; nothing was counted.
    Blocked,
    /// The limits were evaluated.
    Decided {
        /// Whether the request is refused. Always false in shadow.
        is_refused: bool,
        limits: Limits<'c>,
    },
}

/// Answers a validated request of Envoy by compat rules.
pub(crate) async fn answer<S: Store>(
    service: &Service<S>,
    compat: &ActiveConfig,
    rls_request: &RlsRequest,
    protocol: Protocol,
    now: Timestamp,
) -> Answer {
    let watch = Stopwatch::start();
    // A request that only gives hits back does not ask for admission.
    let asks = rls_request.descriptors.iter().any(|descriptor| !descriptor.is_negative_hits);
    let descriptors = rls_request.descriptors.iter().map(|descriptor| descriptor.entries.as_slice());
    let block = if asks { blocking(service, &rls_request.domain, descriptors, now) } else { None };
    let Answered { answer, rules } = match &block {
        Some(block) => Answered { answer: refused(rls_request, block, now), rules: Vec::new() },
        None => compat.answer(rls_request, &service.engine, &options_at(service, now), now).await,
    };
    if asks {
        let keys = keys(rls_request, &answer);
        let is_allowed = answer.overall == Code::Ok;
        let retry_after = answer.retry_after().filter(|_| !is_allowed);
        let is_blocked = block.is_some();
        let limit = cause(block.as_deref(), &keys);
        let verdict = RuleVerdict { is_allowed, is_blocked, limit, retry_after, keys: &keys, rules: &rules };
        service.meter.record_compat(&verdict, protocol, now);
        service.meter.took(protocol, watch.elapsed());
    }
    answer
}

/// Decides by Limitador's rules. `None` if another configuration is active.
pub(crate) async fn decide_limitador<'c, S: Store>(
    service: &Service<S>,
    compat: &'c ActiveConfig,
    asked: &Asked<'_>,
    now: Timestamp,
) -> Option<CompatOutcome<'c>> {
    let watch = Stopwatch::start();
    // A report is about a request that has already happened, so it cannot be refused.
    let is_report = asked.action == Action::Report;
    let descriptors = asked.descriptors.iter().copied();
    let block = if is_report { None } else { blocking(service, asked.namespace, descriptors, now) };
    let limits = match &block {
        Some(_) => None,
        None => Some(compat.decide(asked, &service.engine, now).await?),
    };
    let is_limited = limits.as_ref().is_none_or(|limits| limits.is_limited);
    let is_refused = is_limited && (block.is_some() || !options_at(service, now).is_shadow);
    if !is_report {
        let tightest = limits.as_ref().and_then(|limits| limits.loads.first());
        let key = tightest.map(|load| Key {
            limit: load.limit.name.as_deref().unwrap_or(asked.namespace),
            attributes: asked.descriptors.first().copied().unwrap_or_default(),
            is_denied: load.is_over,
            is_counted: true,
        });
        let unmet = asked.descriptors.first().map(|attributes| Key::unmet(attributes));
        let keys: Vec<Key<'_>> = key.or(unmet).into_iter().collect();
        let until_reset = tightest.map(|load| load.resets_after);
        let until_end = block.as_ref().map(|block| block.until().since(now));
        let retry_after = until_end.or(until_reset).filter(|_| is_refused);
        let is_blocked = block.is_some();
        let limit = cause(block.as_deref(), &keys);
        let rules = limits.as_ref().map(|limits| limits.rules(&options_at(service, now))).unwrap_or_default();
        let verdict = RuleVerdict {
            is_allowed: !is_refused,
            is_blocked,
            limit,
            retry_after,
            keys: &keys,
            rules: &rules,
        };
        service.meter.record_compat(&verdict, Protocol::Limitador, now);
        service.meter.took(Protocol::Limitador, watch.elapsed());
    }
    Some(limits.map_or(CompatOutcome::Blocked, |limits| CompatOutcome::Decided { is_refused, limits }))
}

/// The longest block that matches the combined descriptors of a request and its domain.
fn blocking<'q, S: Store>(
    service: &Service<S>,
    domain: &str,
    descriptors: impl Iterator<Item = &'q [(String, String)]>,
    now: Timestamp,
) -> Option<Arc<Block>> {
    let entries: Vec<(&str, &str)> =
        descriptors.flatten().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    // Blocks name credentials by their digests, but these rules see the plain values.
    let digests: Vec<_> = entries.iter().map(|(name, value)| service.identity.sealed(name, value)).collect();
    let sealed = entries.iter().zip(&digests);
    let sealed = sealed
        .map(|((name, value), digest)| (*name, digest.as_ref().map_or(*value, |digest| digest.as_str())));
    let pairs: Vec<(&str, &str)> = sealed.chain([(DOMAIN, domain)]).collect();
    service.engine.operator().blocked(&pairs, now)
}

/// The configured options, with the operator's override of all limits applied. Compat rules have no keys to
/// sample, so a percentage is ignored and they decide about all requests.
fn options_at<S: Store>(service: &Service<S>, now: Timestamp) -> Options {
    let is_mild = matches!(
        service.engine.operator().overrides(now).of_all(),
        Some(LimitOverride::Off | LimitOverride::Shadow)
    );
    Options { is_shadow: service.compat_options.is_shadow || is_mild, ..service.compat_options }
}

/// The answer to a request that an operator blocks.
fn refused(rls_request: &RlsRequest, block: &Block, now: Timestamp) -> Answer {
    let until_reset = Some(block.until().since(now));
    let mut answer = Answer::blank(Code::OverLimit, rls_request.descriptors.len());
    answer.refusal = Some(Refusal {
        cause: Block::NAME.to_owned(),
        reason: Block::NAME.to_owned(),
        detail: Some(block.to_string()),
    });
    answer.statuses.iter_mut().for_each(|status| status.until_reset = until_reset);
    answer
}

/// The key by which each descriptor is counted, if a limit applies to it.
fn keys<'q>(rls_request: &'q RlsRequest, answer: &'q Answer) -> Vec<Key<'q>> {
    let key = |(entries, status): (&'q [(String, String)], &'q Status)| match &status.current_limit {
        Some(limit) => Key {
            limit: if limit.name.is_empty() { &rls_request.domain } else { &limit.name },
            attributes: entries,
            is_denied: status.code == Code::OverLimit,
            is_counted: true,
        },
        None => Key::unmet(entries),
    };
    let entries = rls_request.descriptors.iter().map(|descriptor| descriptor.entries.as_slice());
    entries.zip(&answer.statuses).map(key).collect()
}

/// The name of the cause: the block, a limit that denies, or a limit that was evaluated.
fn cause<'k>(block: Option<&Block>, keys: &[Key<'k>]) -> &'k str {
    if block.is_some() {
        return Block::NAME;
    }
    let counted = || keys.iter().filter(|key| key.is_counted);
    counted().find(|key| key.is_denied).or_else(|| counted().next()).map_or("", |key| key.limit)
}

#[cfg(test)]
mod tests;
