//! Dialects with one field for each number: `X-RateLimit-Limit`, `RateLimit-Remaining`,
//! `X-RateLimit-Reset-Tokens`, `Anthropic-RateLimit-Requests-Limit`. A word beside the number names the window.

use std::collections::BTreeMap;

use tollgate::Ticks;

use super::fields::Fields;
use super::{WINDOWS_MAX, ietf, value};
use crate::signal::{Window, WindowUnit};

/// How the fields begin. Anthropic's `anthropic-priority-` is none: what is above that capacity goes at the standard tier.
const PREFIXES: [&str; 5] =
    ["anthropic-ratelimit-", "x-ratelimit-", "x-rate-limit-", "ratelimit-", "rate-limit-"];

/// Which number a field has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Number {
    Limit,
    Remaining,
    Reset,
    ResetAfter,
}

const WORDS: [(&str, Number); 6] = [
    ("reset-after", Number::ResetAfter),
    ("limit", Number::Limit),
    ("remaining", Number::Remaining),
    ("resettime", Number::Reset),
    ("reset-time", Number::Reset),
    ("reset", Number::Reset),
];

pub(super) fn windows(fields: &Fields<'_>) -> Vec<Window> {
    let mut windows: BTreeMap<String, Window> = BTreeMap::new();
    for (field, text) in fields.all() {
        let Some((name, number)) = meaning(field) else { continue };
        if windows.len() >= WINDOWS_MAX && !windows.contains_key(&name) {
            continue;
        }
        let window = windows.entry(name).or_insert_with_key(|name| named(name, fields));
        take(window, number, text, fields);
    }
    if let Some(limit) = fields.count("x-rate-limit")
        && let Some(window) = windows.get_mut(ietf::UNNAMED)
    {
        window.limit.get_or_insert(limit); // Zendesk
    }
    let unnamed_reset = windows.get(ietf::UNNAMED).and_then(|window| window.resets_in);
    let one_named = windows.values().filter(|window| window.remaining.is_some()).count() == 1;
    for window in windows.values_mut().filter(|_| one_named) {
        window.resets_in = window.resets_in.or(unnamed_reset); // Kong names the numbers, but not the reset.
    }
    windows.into_values().collect()
}

/// A window of which only its name is known, with what that says.
fn named(name: &str, fields: &Fields<'_>) -> Window {
    let unit = if name.contains("token") {
        WindowUnit::Cost
    } else if name.contains("concurren") {
        WindowUnit::Concurrent
    } else {
        WindowUnit::Requests
    };
    let mut window = Window { period: period(name), ..Window::named(name, unit) };
    if let Some(resource) = fields.text("x-ratelimit-resource").filter(|_| name == ietf::UNNAMED) {
        if resource == "graphql" {
            window.unit = WindowUnit::Cost; // Points.
        }
        window.period = match resource {
            "core" | "graphql" => Some(Ticks::from_secs(3_600)),
            "search" | "code_search" => Some(Ticks::from_secs(60)),
            _ => None,
        };
    }
    window
}

/// The period that Kong and others name a window after.
fn period(name: &str) -> Option<Ticks> {
    let seconds = match name {
        "second" => 1,
        "minute" => 60,
        "hour" | "hourly" => 3_600,
        "day" | "daily" => 86_400,
        _ => return None,
    };
    Some(Ticks::from_secs(seconds))
}

/// The window that a field is about, and which of its numbers it has.
fn meaning(field: &str) -> Option<(String, Number)> {
    let rest = PREFIXES.iter().find_map(|start| field.strip_prefix(start))?;
    let (name, number) = WORDS.iter().find_map(|(word, number)| {
        if rest == *word {
            return Some((ietf::UNNAMED, *number));
        }
        let before = rest.strip_prefix(word).and_then(|name| name.strip_prefix('-'));
        let after = || rest.strip_suffix(word).and_then(|name| name.strip_suffix('-'));
        before.or_else(after).map(|name| (name, *number))
    })?;
    Some((name.replace('_', "-"), number))
}

fn take(window: &mut Window, number: Number, text: &str, fields: &Fields<'_>) {
    match number {
        Number::Limit => {
            // Drafts 03 to 06 list the quotas behind the limit: `100, 100;w=60, 5000;w=3600`.
            let (first, policies) = text.split_once([',', ';']).map_or((text, None), |(a, b)| (a, Some(b)));
            let Some(limit) = value::count(first.trim()) else { return };
            window.limit = Some(limit);
            let listed = policies.map(|_| text.to_owned()).or_else(|| fields.list("ratelimit-policy"));
            let listed = listed.or_else(|| fields.list("x-ratelimit-policy"));
            let period = listed.and_then(|policies| ietf::period_of(limit, &policies));
            window.period = window.period.or(period);
        }
        Number::Remaining => window.remaining = value::count(text),
        Number::ResetAfter => window.resets_in = value::seconds(text).or(window.resets_in),
        // Discord sends both, and the duration is exact.
        Number::Reset if fields.has("x-ratelimit-reset-after") => {}
        Number::Reset => {
            window.resets_in = window.resets_in.or_else(|| value::reset(text, fields.server_now))
        }
    }
}
