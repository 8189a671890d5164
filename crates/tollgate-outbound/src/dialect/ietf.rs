//! The `RateLimit` fields of the IETF drafts: the structured lists of drafts 08 to 11 and of the editors' branch after
//! them, and the dictionary of draft 07.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parser};
use tollgate::Ticks;

use super::COUNT_MAX;
use super::WAIT_MAX;
use super::fields::Fields;
use crate::signal::{Window, WindowUnit};

/// The window of a server that has no name for it.
pub(super) const UNNAMED: &str = "requests";

pub(super) fn windows(fields: &Fields<'_>) -> Vec<Window> {
    let policies = items(fields.list("ratelimit-policy"));
    let Some(field) = fields.list("ratelimit") else { return Vec::new() };
    let listed = items(Some(field.clone()));
    let named: Vec<Window> = listed.iter().filter_map(|item| window(item, &policies)).collect();
    if listed.is_empty() { dictionary(&field, &policies).into_iter().collect() } else { named }
}

/// The partition that the response was counted in, if it names exactly one.
pub(super) fn partition(fields: &Fields<'_>) -> Option<String> {
    let items = items(fields.list("ratelimit"));
    let mut partitions = items.iter().filter_map(|item| match item.params.get("pk")? {
        BareItem::ByteSequence(key) => Some(format!("{}:{}", name(item)?, URL_SAFE_NO_PAD.encode(key))),
        _ => None,
    });
    let first = partitions.next()?;
    partitions.all(|other| other == first).then_some(first)
}

/// The periods of quotas without a name, as drafts 03 to 07 list them: `100;w=60, 5000;w=3600`.
pub(super) fn period_of(limit: u64, policies: &str) -> Option<Ticks> {
    unnamed_period(limit, &items(Some(policies.to_owned())))
}

fn unnamed_period(limit: u64, policies: &[Item]) -> Option<Ticks> {
    let is_it = |policy: &&Item| integer(&policy.bare_item) == Some(limit);
    policies.iter().filter(is_it).find_map(|policy| wait(policy, "w"))
}

/// The items of a list. A list with a malformed item is no list.
fn items(field: Option<String>) -> Vec<Item> {
    let list: List = field.and_then(|field| Parser::new(&field).parse().ok()).unwrap_or_default();
    let item = |entry| match entry {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    };
    list.into_iter().filter_map(item).collect()
}

/// A window of drafts 08 and later, with the policy of the same name.
fn window(item: &Item, policies: &[Item]) -> Option<Window> {
    let name = name(item)?;
    // The editors' branch writes `a` and `w` for what was `r` and `t`.
    let remaining = parameter(item, "r").or_else(|| parameter(item, "a"))?;
    let mut of_policy = policies.iter().filter(|policy| self::name(policy) == Some(name));
    let policy = of_policy.clone().find(|policy| policy.params.get("pk") == item.params.get("pk"));
    let policy = policy.or_else(|| of_policy.next());
    Some(Window {
        limit: policy.and_then(|policy| parameter(policy, "q")),
        remaining: Some(remaining),
        resets_in: wait(item, "t").or_else(|| wait(item, "w")),
        period: policy.and_then(|policy| wait(policy, "w")),
        ..Window::named(name, policy.map_or(WindowUnit::Requests, unit))
    })
}

/// The window of draft 07: `limit=100, remaining=20, reset=12`.
fn dictionary(field: &str, policies: &[Item]) -> Option<Window> {
    let members: Dictionary = Parser::new(field).parse().ok()?;
    let number = |name: &str| match members.get(name)? {
        ListEntry::Item(item) => integer(&item.bare_item),
        ListEntry::InnerList(_) => None,
    };
    let limit = number("limit");
    Some(Window {
        limit,
        remaining: Some(number("remaining")?),
        resets_in: number("reset").map(capped),
        period: limit.and_then(|limit| unnamed_period(limit, policies)),
        ..Window::named(UNNAMED, WindowUnit::Requests)
    })
}

fn name(item: &Item) -> Option<&str> {
    match &item.bare_item {
        BareItem::String(name) => Some(name.as_str()),
        _ => None,
    }
}

fn unit(policy: &Item) -> WindowUnit {
    match policy.params.get("qu") {
        None => WindowUnit::Requests,
        Some(BareItem::String(unit)) => match unit.as_str() {
            "requests" | "request" => WindowUnit::Requests,
            "concurrent-requests" => WindowUnit::Concurrent,
            _ => WindowUnit::Cost,
        },
        Some(_) => WindowUnit::Cost,
    }
}

fn integer(item: &BareItem) -> Option<u64> {
    match item {
        BareItem::Integer(number) => {
            u64::try_from(i64::from(*number)).ok().map(|number| number.min(COUNT_MAX))
        }
        _ => None,
    }
}

fn parameter(item: &Item, key: &str) -> Option<u64> {
    item.params.get(key).and_then(integer)
}

fn wait(item: &Item, key: &str) -> Option<Ticks> {
    parameter(item, key).map(capped)
}

fn capped(seconds: u64) -> Ticks {
    Ticks::from_secs(seconds).min(WAIT_MAX)
}
