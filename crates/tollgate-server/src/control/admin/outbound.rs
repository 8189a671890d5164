//! The providers of the outbound proxy: their frozen buckets, and the end of a freeze.

use serde::Serialize;
use tollgate_outbound::{BucketReport, FreezeCause};

use super::act::{Act, AdminAnswer};
use super::form::ThawForm;
use super::view::Instant;
use crate::outbound::OutboundProxy;
use crate::problem::{AdminProblem, Problem};
use crate::text::{counted, unknown_name};

/// All providers.
#[derive(Serialize)]
struct ProvidersView<'a> {
    providers: Vec<ProviderView<'a>>,
}

#[derive(Serialize)]
struct ProviderView<'a> {
    provider: &'a str,
    url: String,
    frozen: Vec<FrozenView>,
}

/// The end of freezes.
#[derive(Serialize)]
struct ThawedView<'a> {
    provider: &'a str,
    thawed: Vec<FrozenView>,
}

/// A frozen bucket.
#[derive(Serialize)]
struct FrozenView {
    bucket: String,
    /// The kind of limit, or that the API fails.
    kind: &'static str,
    until: Instant,
    waiting: usize,
    /// When the API said how long to wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    stated_at: Option<Instant>,
    /// The wait that it asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

/// Lists the providers.
pub(super) fn list(act: &Act<'_>) -> Result<AdminAnswer, Problem> {
    let each = proxy(act)?.providers().iter().map(|provider| ProviderView {
        provider: &provider.plan.name,
        url: format!("{}{}", provider.plan.origin, provider.plan.base),
        frozen: shown(act, provider.freezes()),
    });
    let mut providers: Vec<ProviderView<'_>> = each.collect();
    providers.sort_by_key(|view| view.provider);
    AdminAnswer::json(&ProvidersView { providers })
}

/// Ends the freezes of a provider.
pub(super) fn thaw(act: &Act<'_>, form: &ThawForm) -> Result<AdminAnswer, Problem> {
    let (proxy, name) = (proxy(act)?, form.provider.as_str());
    let Some(provider) = proxy.providers().iter().find(|provider| provider.plan.name == name) else {
        let known: Vec<&str> = proxy.providers().iter().map(|provider| provider.plan.name.as_str()).collect();
        let detail = unknown_name(&format!("there is no provider {name:?}"), name, &known);
        return Err(Problem::of_admin(AdminProblem::Unknown, detail));
    };
    let thawed = shown(act, provider.thaw());
    act.audit(name, &format!("{} thawed", counted(thawed.len(), "bucket")));
    AdminAnswer::json(&ThawedView { provider: &provider.plan.name, thawed })
}

fn proxy<'a>(act: &Act<'a>) -> Result<&'a OutboundProxy, Problem> {
    act.control.outbound.get().map(|proxy| &**proxy).ok_or_else(|| {
        let detail = "the server calls no APIs; `outbound:` in its config names some";
        Problem::of_admin(AdminProblem::Unknown, detail)
    })
}

fn shown(act: &Act<'_>, buckets: Vec<BucketReport>) -> Vec<FrozenView> {
    let each = buckets.into_iter().filter_map(|bucket| {
        let freeze = bucket.frozen?;
        Some(FrozenView {
            bucket: bucket.name,
            kind: match freeze.cause {
                FreezeCause::Throttled(kind) => kind.name(),
                FreezeCause::Failing(_) => "failing",
            },
            until: act.shown(freeze.until),
            waiting: bucket.waiting,
            stated_at: freeze.statement.map(|statement| act.shown(statement.at)),
            retry_after_ms: freeze.statement.map(|statement| statement.wait.ceil_millis()),
        })
    });
    each.collect()
}
