//! Servers with fields of their own: Riot Games and Shopify.

use tollgate::Ticks;

use super::fields::Fields;
use super::{WAIT_MAX, WINDOWS_MAX, ietf, value};
use crate::signal::{Window, WindowUnit};

/// In how many seconds a full bucket of Shopify leaks empty: 40 at 2 a second, 400 at 20 a second.
const SHOPIFY_DRAIN_SECONDS: u64 = 20;

pub(super) fn windows(fields: &Fields<'_>) -> Vec<Window> {
    let mut windows = riot(fields, "app", "x-app-rate-limit", "x-app-rate-limit-count");
    windows.extend(riot(fields, "method", "x-method-rate-limit", "x-method-rate-limit-count"));
    windows.extend(shopify(fields));
    windows
}

/// Several windows in one field: `X-App-Rate-Limit: 20:1,100:120` and `X-App-Rate-Limit-Count: 1:1,87:120`. They are
/// named `app-1s` and `app-120s`.
fn riot(fields: &Fields<'_>, kind: &str, limits: &str, counts: &str) -> Vec<Window> {
    let (Some(limits), Some(counts)) = (fields.list(limits), fields.list(counts)) else { return Vec::new() };
    let counts: Vec<(u64, u64)> = pairs(&counts).collect();
    let window = |(limit, seconds): (u64, u64)| {
        let (count, _) = counts.iter().find(|(_, period)| *period == seconds)?;
        let period = Ticks::from_secs(seconds).min(WAIT_MAX);
        Some(Window {
            limit: Some(limit),
            remaining: Some(limit.saturating_sub(*count)),
            // A window begins with its first call.
            resets_in: (*count == 1).then_some(period),
            period: Some(period),
            ..Window::named(format!("{kind}-{seconds}s"), WindowUnit::Requests)
        })
    };
    pairs(&limits).filter_map(window).take(WINDOWS_MAX / 2).collect()
}

fn pairs(list: &str) -> impl Iterator<Item = (u64, u64)> {
    list.split(',').filter_map(|pair| {
        let (count, seconds) = pair.trim().split_once(':')?;
        Some((value::count(count)?, value::count(seconds).filter(|seconds| *seconds > 0)?))
    })
}

/// The leaky bucket of Shopify's REST API: `X-Shopify-Shop-Api-Call-Limit: 32/40`.
fn shopify(fields: &Fields<'_>) -> Option<Window> {
    let (used, limit) = fields.text("x-shopify-shop-api-call-limit")?.split_once('/')?;
    let (used, limit) = (value::count(used)?, value::count(limit).filter(|limit| *limit > 0)?);
    let used = used.min(limit);
    let drain = u128::from(used) * u128::from(SHOPIFY_DRAIN_SECONDS) * 1_000_000;
    let drain = drain.div_ceil(u128::from(limit));
    Some(Window {
        limit: Some(limit),
        remaining: Some(limit - used),
        resets_in: u64::try_from(drain).ok().map(Ticks::from_micros),
        ..Window::named(ietf::UNNAMED, WindowUnit::Requests)
    })
}
