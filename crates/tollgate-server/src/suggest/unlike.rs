//! The few keys that are unlike the others: which they are, who would notice the limit that is made without them, and the
//! limit that leaves them alone, too.

use serde_json::{Value, json};
use tollgate_sim::replay::{Report, TouchedKey, percent};
use tollgate_sim::suggest::{Frontier, MadeFor, Suggestion, UNLIKE_FACTOR};

use super::wording::{limit_text, made_for, names, rate_text};
use crate::cli::SuggestArguments;
use crate::operate::{cell, table};
use crate::replay::{many, ranged, share};

/// Before the table: which keys are left out of it, and how far they are from the others.
pub(super) fn sentences(
    frontier: &Frontier,
    suggestion: Option<&Suggestion>,
    arguments: &SuggestArguments,
) -> Vec<String> {
    let is_of_others = |suggestion: &&Suggestion| suggestion.made_for == MadeFor::Others;
    let Some(index) = suggestion.filter(is_of_others).map(|suggestion| suggestion.index) else {
        return Vec::new();
    };
    let at = |bursts: &[u64]| bursts.get(index).copied().unwrap_or_default();
    let (unlike, rate) = (&frontier.unlike, frontier.points.get(index).map(|point| point.rate));
    let (verb, each) = if unlike.keys == 1 { ("is", "it") } else { ("are", "each of them") };
    vec![
        format!("{} of {} keys {verb} unlike the others: {}.", unlike.keys, frontier.keys, names(unlike)),
        format!(
            "At {} {each} needs a burst of {} or more, and each other key one of {} at most.",
            rate.map(|rate| rate_text(rate, arguments.period)).unwrap_or_default(),
            at(&unlike.least),
            at(&unlike.most_of_others)
        ),
    ]
}

/// After the suggestion: who would notice it, and the second choice. With a wanted share, which limit the others need.
pub(super) fn choices(
    frontier: &Frontier,
    (suggestion, replayed): (Option<&Suggestion>, Option<&Report>),
    arguments: &SuggestArguments,
) -> Vec<String> {
    match suggestion.filter(|suggestion| suggestion.made_for == MadeFor::Others) {
        Some(suggestion) if !super::is_suggested(suggestion, arguments) => Vec::new(),
        Some(suggestion) => {
            let mut lines = vec![String::new()];
            lines.extend(noticed(&limit_text(suggestion, arguments.period), replayed));
            lines.push(second_choice(frontier, arguments));
            lines
        }
        None => remark(frontier, suggestion, arguments).into_iter().collect(),
    }
}

/// The keys that a limit would have denied, as a table.
fn noticed(limit: &str, replayed: Option<&Report>) -> Vec<String> {
    let Some((report, of_limit)) = replayed.and_then(|report| Some((report, report.limits.first()?))) else {
        return vec![format!(
            "Who would notice {limit}: give the log as a file, which can be read again, to see how often these keys would \
             be denied."
        )];
    };
    let is_estimated = is_estimated(report);
    let mut lines = vec![format!(
        "Who would notice {limit}: {} of {}, by a replay of the log{}",
        ranged(of_limit.touched, of_limit.touched_range),
        many(of_limit.keys, "key"),
        if is_estimated { "; the counts are an estimate, because stamps are whole seconds" } else { "" }
    )];
    let row = |key: &TouchedKey| {
        let denied = share(percent(key.denied, key.requests));
        vec![cell(&key.key), key.requests.to_string(), key.denied.to_string(), denied]
    };
    let rows: Vec<Vec<String>> = report.top.iter().map(row).collect();
    if !rows.is_empty() {
        let titles = ["  KEY", "REQUESTS", "DENIED", "%"];
        let rows: Vec<Vec<String>> = rows
            .into_iter()
            .map(|mut row| {
                row[0].insert_str(0, "  ");
                row
            })
            .collect();
        lines.extend(table(&titles, &rows, &[], None));
    }
    let more = of_limit.touched.saturating_sub(report.top.len() as u64);
    if more > 0 {
        lines.push(format!("  and {more} more, each of which would be denied less often"));
    }
    lines
}

/// Whether the counts of single keys depend on when in its second each request came.
fn is_estimated(report: &Report) -> bool {
    report.input.whole_seconds > 0
}

/// The limit that leaves all keys alone.
pub(super) fn second_choice(frontier: &Frontier, arguments: &SuggestArguments) -> String {
    let (these, are) = match frontier.unlike.keys {
        1 => ("it".to_owned(), "is"),
        keys => (format!("these {keys}"), "are"),
    };
    match frontier.suggest_for(MadeFor::All, arguments.headroom) {
        Some(all) => format!(
            "If {these} {are} no abuse, set {} instead: it would have denied no request of any key.",
            limit_text(&all, arguments.period)
        ),
        None => format!(
            "No rate that was tried returns the burst of {these} within one period, so there is no limit to leave {these} \
             alone, too: see \"all keys\" above."
        ),
    }
}

/// How much less the others need, if a share was wanted with which the few decide.
pub(super) fn remark(
    frontier: &Frontier,
    suggestion: Option<&Suggestion>,
    arguments: &SuggestArguments,
) -> Option<String> {
    let others = of_others(frontier, suggestion, arguments)?;
    let keys = frontier.unlike.keys;
    let (count, verb) = if keys == 1 { ("A key is", "is") } else { ("A few keys are", "are") };
    Some(format!(
        "{count} unlike the others: {} need no more than {}. If the other {keys} {verb} abuse, leave --untouched out: {}.",
        made_for(frontier, MadeFor::Others),
        limit_text(&others, arguments.period),
        names(&frontier.unlike)
    ))
}

/// The limit for the others, if the few that are unlike them decide the suggestion.
pub(super) fn of_others(
    frontier: &Frontier,
    suggestion: Option<&Suggestion>,
    arguments: &SuggestArguments,
) -> Option<Suggestion> {
    if frontier.unlike.keys == 0 || frontier.made_for() == MadeFor::Others {
        return None;
    }
    let others = frontier.suggest_for(MadeFor::Others, arguments.headroom)?;
    let is_much_lower = |wanted: &Suggestion| others.rate.units() * UNLIKE_FACTOR <= wanted.rate.units();
    suggestion.is_none_or(is_much_lower).then_some(others)
}

/// The keys that are unlike the others, as JSON; null if none are.
pub(super) fn json_of(frontier: &Frontier, replayed: Option<&Report>, arguments: &SuggestArguments) -> Value {
    if frontier.unlike.keys == 0 {
        return Value::Null;
    }
    let limit = |made_for: MadeFor| {
        let suggestion = frontier.suggest_for(made_for, arguments.headroom)?;
        Some(json!({ "rate": rate_text(suggestion.rate, arguments.period), "burst": suggestion.burst }))
    };
    let key = |key: &TouchedKey| {
        json!({
            "key": key.key, "requests": key.requests, "denied": key.denied,
            "denied_percent": percent(key.denied, key.requests),
        })
    };
    let replayed = replayed.filter(|_| frontier.made_for() == MadeFor::Others);
    let noticed = replayed.and_then(|report| {
        let of_limit = report.limits.first()?;
        Some(json!({
            "keys": of_limit.touched, "keys_range": of_limit.touched_range, "is_estimated": is_estimated(report),
            "denied_most": report.top.iter().map(key).collect::<Vec<Value>>(),
        }))
    });
    json!({
        "keys": frontier.unlike.keys,
        "keys_named": frontier.unlike.names.iter().map(|name| super::wording::values(name)).collect::<Vec<String>>(),
        "limit_of_others": limit(MadeFor::Others), "limit_of_all": limit(MadeFor::All), "noticed": noticed,
    })
}
