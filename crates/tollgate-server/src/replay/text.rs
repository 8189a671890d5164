//! The report for a terminal, or a file: first the answer, then each limit, then who would notice.

use tollgate_sim::replay::{Clients, LimitReport, Range, Report, Totals, TouchedKey, percent};

use crate::console::{Console, Style};
use crate::operate::{cell, table};
use crate::text::plain;
use crate::time_text::people;

/// Days from Monday.
pub(super) const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// Letters from few to many denials, for the week.
const SHADES: [char; 5] = ['.', '-', '+', '*', '#'];

/// Prints the report.
pub(super) fn show(report: &Report, policy: &str, console: &mut Console) {
    show_input(report, console);
    show_totals(&report.totals, policy, report.clients, console);
    show_limits(report, console);
    for limit in &report.limits {
        show_limit(limit, report.limits.len(), console);
    }
    show_top(&report.top, console);
    show_week(report, console);
    show_rest(report, console);
}

/// Prints rows under their titles.
fn show_table(titles: &[&str], rows: &[Vec<String>], console: &mut Console) {
    for (index, line) in table(titles, rows, console.cut()).into_iter().enumerate() {
        let line = if index == 0 { console.painted(&line, Style::Title) } else { line };
        console.line(line);
    }
}

fn show_input(report: &Report, console: &mut Console) {
    let input = &report.input;
    for file in &input.files {
        console.line(format_args!("{}: {}, {} lines", plain(&file.name), file.format, file.lines));
    }
    for damage in &input.damage {
        console.line(console.painted(&format!("damaged: {damage}"), Style::Bad));
    }
    for (count, what, examples) in [
        (input.bad_lines, "lines could not be read", &input.bad_examples),
        (input.undecidable, "lines are no requests that a server accepts", &input.undecidable_examples),
    ] {
        if count > 0 {
            console.line(format_args!("{count} {what}:"));
            examples.iter().for_each(|example| console.line(format_args!("  {}", plain(example))));
        }
    }
}

fn show_totals(totals: &Totals, policy: &str, clients: &str, console: &mut Console) {
    console.line(format_args!(
        "{} requests of {} clients, {} to {} ({})",
        totals.requests,
        totals.clients,
        totals.from,
        totals.to,
        people(totals.seconds.saturating_mul(1_000))
    ));
    console.line("");
    let style = if totals.denied == 0 { Style::Good } else { Style::Bad };
    let answer = format!(
        "{} would have denied {} of {} requests ({}), and touched {} of {} clients ({} %)",
        plain(policy),
        ranged(totals.denied, totals.denied_range),
        totals.decisions,
        ranged_share(totals),
        totals.clients_touched,
        totals.clients,
        share(totals.clients_touched_percent)
    );
    console.line(console.painted(&answer, style));
    if let Some(without) = &totals.without_refused {
        console.line(format_args!(
            "without the {} that were refused already: {} of {} ({} %), {} clients",
            totals.already_refused,
            without.denied,
            without.requests,
            share(without.denied_percent),
            without.clients_touched
        ));
    }
    if clients != Clients::Gone.name() {
        console.line(format_args!(
            "{} came back, {} of them passed, {} still waited at the end",
            totals.retries, totals.retries_allowed, totals.still_waiting
        ));
    }
    for (count, what) in [(totals.unlimited, "met no limit"), (totals.faults, "were wrong themselves")] {
        if count > 0 {
            console.line(format_args!("{count} requests {what}"));
        }
    }
}

/// The share of denied requests, as a range where their number is one.
pub(super) fn ranged_share(totals: &Totals) -> String {
    let part = |denied: u64| share(percent(denied, totals.decisions));
    match totals.denied_range.filter(|range| range.low < range.high) {
        Some(range) => format!("{} to {} %", part(range.low), part(range.high)),
        None => format!("{} %", share(totals.denied_percent)),
    }
}

/// The assumption about the other limits where one has another size.
pub(super) const OTHERS_AS_THEY_WERE: &str =
    "the other limits decide as they did, so a request that one of them denies charges nothing here";

fn show_limits(report: &Report, console: &mut Console) {
    console.line("");
    let titles =
        ["LIMIT", "REQUESTS", "DENIED", "%", "KEYS", "TOUCHED", "%", "MEDIAN", "P99", "WORST MINUTE"];
    let row = |limit: &LimitReport| {
        let minute = limit.worst_minute.as_ref();
        let minute =
            minute.map_or_else(|| "-".to_owned(), |minute| format!("{} ({})", minute.at, minute.denied));
        let name = if limit.is_shadow { format!("{} (shadow)", limit.name) } else { limit.name.clone() };
        let time = |millis: u64| if limit.touched == 0 { "-".to_owned() } else { people(millis) };
        vec![
            cell(&name),
            limit.requests.to_string(),
            ranged(limit.denied, limit.denied_range),
            share(limit.denied_percent),
            limit.keys.to_string(),
            ranged(limit.touched, limit.touched_range),
            share(limit.touched_percent),
            time(limit.denied_for_ms.median),
            time(limit.denied_for_ms.p99),
            minute,
        ]
    };
    let rows: Vec<Vec<String>> = report.limits.iter().map(row).collect();
    show_table(&titles, &rows, console);
}

fn show_limit(limit: &LimitReport, limits: usize, console: &mut Console) {
    if limit.requests == 0 {
        return;
    }
    console.line("");
    console.line(plain(&limit.sentence));
    if let Some(peaks) = &limit.peaks {
        let window =
            peaks.window_ms.map_or_else(|| "in flight".to_owned(), |millis| format!("in {}", people(millis)));
        let knee = peaks.knee.map_or_else(String::new, |knee| format!("; the curve bends at {knee}"));
        console.line(format_args!(
            "  peaks of keys {window}: half up to {}, 90 % {}, 95 % {}, 99 % {}, 99.9 % {}, highest {}{knee}",
            peaks.p50, peaks.p90, peaks.p95, peaks.p99, peaks.p99_9, peaks.max
        ));
    }
    if let Some(burst) = limit.burst_for_none {
        console.line(format_args!("  a burst of {burst} would have denied no request at this rate"));
    }
    if let Some(worst) = &limit.worst_key {
        console.line(format_args!("  {}", worst_client(worst)));
    }
    if limit.sizes.is_empty() {
        return;
    }
    let titles = ["  IF IT WERE", "QUOTA", "DENIED", "%", "TOUCHED", "%"];
    let rows: Vec<Vec<String>> = limit
        .sizes
        .iter()
        .map(|size| {
            vec![
                format!("  x{}", size.times),
                size.quota.clone(),
                size.denied.to_string(),
                share(size.denied_percent),
                size.touched.to_string(),
                share(size.touched_percent),
            ]
        })
        .collect();
    show_table(&titles, &rows, console);
    if limits > 1 {
        console.line(format_args!("  ({OTHERS_AS_THEY_WERE})"));
    }
}

/// The key that a limit would deny most.
pub(super) fn worst_client(key: &TouchedKey) -> String {
    format!(
        "denied most: {}, {} of its {} requests, {} % of all denials",
        cell(&key.key),
        key.denied,
        key.requests,
        share(key.share_percent)
    )
}

/// Prints the keys with the most denials.
pub(super) fn show_top(top: &[TouchedKey], console: &mut Console) {
    if top.is_empty() {
        return;
    }
    console.line("");
    let titles = ["WHO WOULD NOTICE", "LIMIT", "REQUESTS", "DENIED", "SHARE", "FOR", "ROUTE", "USER AGENT"];
    let text = |text: &Option<String>| text.as_deref().map_or_else(|| "-".to_owned(), cell);
    let rows: Vec<Vec<String>> = top
        .iter()
        .map(|key| {
            vec![
                cell(&key.key),
                cell(&key.limit),
                key.requests.to_string(),
                key.denied.to_string(),
                format!("{} %", share(key.share_percent)),
                people(key.denied_for_ms),
                text(&key.route),
                text(&key.user_agent),
            ]
        })
        .collect();
    show_table(&titles, &rows, console);
}

/// Prints when denials happen, a letter for each hour.
fn show_week(report: &Report, console: &mut Console) {
    let worst = report.week.denied.iter().flatten().copied().max().unwrap_or_default();
    if worst == 0 {
        return;
    }
    console.line("");
    console.line(format_args!("denials by hour, in UTC, . few to # {worst}"));
    console.line("     0  3  6  9  12 15 18 21");
    for ((day, denied), requests) in DAYS.iter().zip(&report.week.denied).zip(&report.week.requests) {
        let hours: String =
            denied.iter().zip(requests).map(|(denied, requests)| shade(*denied, *requests, worst)).collect();
        console.line(format_args!("{day}  {hours}").to_string().trim_end());
    }
}

fn shade(denied: u64, requests: u64, worst: u64) -> char {
    match (denied, requests) {
        (0, _) => ' ',
        _ => {
            let step = u128::from(denied) * (SHADES.len() as u128 - 1) / u128::from(worst.max(1));
            usize::try_from(step).ok().and_then(|step| SHADES.get(step)).copied().unwrap_or('#')
        }
    }
}

fn show_rest(report: &Report, console: &mut Console) {
    console.line("");
    for overlap in &report.overlaps {
        let [one, other] = &overlap.limits;
        console.line(format_args!("{one} and {other} denied {} requests together", overlap.denied));
    }
    let store = &report.store;
    console.line(format_args!(
        "a shared store would have answered {} calls, or about {} with leases on one node ({} leases)",
        store.calls, store.calls_with_leases, store.leases
    ));
    if let Some(against) = &report.against {
        console.line("");
        console.line(plain(&against.sentence));
        show_top(&against.newly_denied.top, console);
    }
    console.line(format_args!("assumed: {}", report.clients_meaning));
    for note in &report.notes {
        console.line(format_args!("note: {note}"));
    }
}

/// A number, or the two that it is between.
pub(super) fn ranged(number: u64, range: Option<Range>) -> String {
    match range {
        Some(Range { low, high }) if low < high => format!("{low} to {high}"),
        _ => number.to_string(),
    }
}

/// A share in per cent with two digits; one that is not 0 is not shown as 0.
pub(super) fn share(percent: f64) -> String {
    if percent > 0.0 && percent < 0.01 { "<0.01".to_owned() } else { format!("{percent:.2}") }
}
