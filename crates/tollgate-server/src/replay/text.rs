//! The report for a terminal, or a file: first the answer, then each limit, then who would notice.

use tollgate_sim::replay::{
    Changed, Clients, Comparison, InputReport, LimitReport, MemoryUse, Range, Report, SizeReport, Totals,
    TouchedKey, percent,
};

use crate::console::{Console, Style};
use crate::operate::{cell, table};
use crate::text::{counted, plain};
use crate::time_text::people;

/// Days from Monday.
pub(super) const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// Letters from few to many denials, for the week.
const SHADES: [char; 5] = ['.', '-', '+', '*', '#'];

/// Prints the report.
pub(super) fn show(report: &Report, (policy, against): (&str, Option<&str>), console: &mut Console) {
    show_input(report, console);
    show_totals(&report.totals, policy, report.clients, console);
    show_limits(report, console);
    for limit in &report.limits {
        show_limit(limit, report.limits.len(), console);
    }
    show_top(&report.top, console);
    show_week(report, console);
    show_rest(report, against, console);
}

/// Prints rows under their titles.
fn show_table(titles: &[&str], rows: &[Vec<String>], console: &mut Console) {
    for (index, line) in table(titles, rows, &[], console.cut()).into_iter().enumerate() {
        let line = if index == 0 { console.painted(&line, Style::Title) } else { line };
        console.line(line);
    }
}

fn show_input(report: &Report, console: &mut Console) {
    let input = &report.input;
    for file in &input.files {
        console.line(format_args!("{}: {}, {}", plain(&file.name), file.format, many(file.lines, "line")));
    }
    for damage in &input.damage {
        console.line(console.painted(&format!("damaged: {damage}"), Style::Bad));
    }
    for (count, what, examples) in [
        (input.bad_lines, "could not be read", &input.bad_examples),
        (input.undecidable, "not accepted by any server as a request", &input.undecidable_examples),
    ] {
        if count > 0 {
            console.line(format_args!("{} {what}:", many(count, "line")));
            examples.iter().for_each(|example| console.line(format_args!("  {}", plain(example))));
        }
    }
}

fn show_totals(totals: &Totals, policy: &str, clients: &str, console: &mut Console) {
    console.line(format_args!(
        "{} of {}, {} to {} ({})",
        many(totals.requests, "request"),
        many(totals.clients, "client"),
        totals.from,
        totals.to,
        people(totals.seconds.saturating_mul(1_000))
    ));
    console.line("");
    let style = if totals.denied == 0 { Style::Good } else { Style::Bad };
    let answer = format!("{} {}", plain(policy), verdict(totals));
    console.line(console.painted(&answer, style));
    if let Some(without) = &totals.without_refused {
        console.line(format_args!(
            "without the {} that were refused already: {} of {} ({} %), {}",
            totals.already_refused,
            without.denied,
            without.requests,
            share(without.denied_percent),
            many(without.clients_touched, "client")
        ));
    }
    for fact in facts(totals, clients) {
        console.line(fact);
    }
}

/// The answer.
pub(super) fn verdict(totals: &Totals) -> String {
    let Totals { decisions, clients, clients_touched, .. } = *totals;
    format!(
        "would have denied {} of {} ({} %{}), and touched {} of {} ({} %{})",
        ranged(totals.denied, totals.denied_range),
        many(decisions, "request"),
        ranged_share(totals.denied, totals.denied_range, decisions),
        if totals.is_range_estimated { ", an estimate" } else { "" },
        ranged(clients_touched, totals.clients_touched_range),
        many(clients, "client"),
        ranged_share(clients_touched, totals.clients_touched_range, clients),
        if totals.is_clients_range_estimated { ", an estimate" } else { "" }
    )
}

/// The remark on a limit whose bounds are not proven.
pub(super) const ESTIMATED: &str = "its denials and touched keys are an estimate, which a note explains";

/// Further facts about all requests together.
pub(super) fn facts(totals: &Totals, clients: &str) -> Vec<String> {
    let mut facts = Vec::new();
    if clients != Clients::Gone.name() {
        facts.push(format!(
            "{} came back, {} of them passed, {} still waited at the end",
            totals.retries, totals.retries_allowed, totals.still_waiting
        ));
    }
    for (count, what) in
        [(totals.unlimited, "met no limit"), (totals.faults, "had a cost that cannot be counted")]
    {
        if count > 0 {
            facts.push(format!("{} {what}", many(count, "request")));
        }
    }
    facts
}

/// A number of things.
pub(crate) fn many(number: u64, what: &str) -> String {
    counted(usize::try_from(number).unwrap_or(usize::MAX), what)
}

/// A share in per cent, or the two that it is between.
pub(super) fn ranged_share(part: u64, range: Option<Range>, whole: u64) -> String {
    let shown = |part: u64| share(percent(part, whole));
    match range.map(|Range { low, high }| [shown(low), shown(high)]).filter(|[low, high]| low != high) {
        Some([low, high]) => format!("{low} to {high}"),
        None => shown(part),
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
            ranged_share(limit.denied, limit.denied_range, limit.requests),
            limit.keys.to_string(),
            ranged(limit.touched, limit.touched_range),
            ranged_share(limit.touched, limit.touched_range, limit.keys),
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
    if let Some(burst) = burst_for_none(limit) {
        console.line(format_args!("  {burst}"));
    }
    if limit.is_range_estimated {
        console.line(format_args!("  {ESTIMATED}"));
    }
    if limit.delayed > 0 {
        console.line(format_args!("  {}", delayed(limit)));
    }
    if let Some(worst) = &limit.worst_key {
        console.line(format_args!("  {}", worst_client(worst)));
    }
    if limit.sizes.is_empty() {
        return;
    }
    let titles = ["  IF IT WERE", "QUOTA", "DENIED", "%", "TOUCHED", "%"];
    let row = |size: &SizeReport| {
        vec![
            format!("  x{}", size.times),
            size.quota.clone(),
            ranged(size.denied, size.denied_range),
            ranged_share(size.denied, size.denied_range, limit.requests),
            ranged(size.touched, size.touched_range),
            ranged_share(size.touched, size.touched_range, limit.keys),
        ]
    };
    let rows: Vec<Vec<String>> = limit.sizes.iter().map(row).collect();
    show_table(&titles, &rows, console);
    if limits > 1 {
        console.line(format_args!("  ({OTHERS_AS_THEY_WERE})"));
    }
}

/// The burst that would have denied no request; where stamps are whole seconds, also the one that would have been too small.
pub(super) fn burst_for_none(limit: &LimitReport) -> Option<String> {
    let burst = limit.burst_for_none?;
    // There is no burst below one.
    let few = limit.burst_for_none_range.filter(|range| range.low > 1 && range.low < burst);
    let few = few.map_or_else(String::new, |range| format!(", and one below {} at least one", range.low));
    Some(format!("a burst of {burst} would have denied no request at this rate{few}"))
}

/// Requests that the queue of a leaky bucket would delay.
pub(super) fn delayed(limit: &LimitReport) -> String {
    format!("{} would have waited in its queue, and then passed", many(limit.delayed, "request"))
}

/// The key that a limit would deny most.
pub(super) fn worst_client(key: &TouchedKey) -> String {
    format!(
        "denied most: {}, {} of its {} requests, {} % of the denials of this limit",
        cell(&key.key),
        key.denied,
        key.requests,
        share(key.share_percent)
    )
}

/// Prints the keys with the most denials.
fn show_top(top: &[TouchedKey], console: &mut Console) {
    if top.is_empty() {
        return;
    }
    console.line("");
    let titles =
        ["WHO WOULD NOTICE", "LIMIT", "REQUESTS", "DENIED", "SHARE", "FOR, IN ALL", "ROUTE", "USER AGENT"];
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

/// Prints whose decisions another policy changes.
fn show_changed(title: &str, changed: &Changed, console: &mut Console) {
    if changed.requests == 0 {
        return;
    }
    console.line("");
    let titles = [title, "LIMIT", "REQUESTS", "SHARE", "DENIED BEFORE", "ROUTE", "USER AGENT"];
    let text = |text: &Option<String>| text.as_deref().map_or_else(|| "-".to_owned(), cell);
    let row = |key: &TouchedKey| {
        vec![
            cell(&key.key),
            cell(&key.limit),
            key.denied.to_string(),
            format!("{} %", share(key.share_percent)),
            denied_before(key).to_owned(),
            text(&key.route),
            text(&key.user_agent),
        ]
    };
    let rows: Vec<Vec<String>> = changed.top.iter().map(row).collect();
    show_table(&titles, &rows, console);
    if let Some(more) = more_keys(changed) {
        console.line(more);
    }
}

/// Whether the first policy denied a key, too.
pub(super) const fn denied_before(key: &TouchedKey) -> &'static str {
    match key.is_first_denial {
        Some(true) => "no",
        _ => "yes",
    }
}

/// How many keys a table does not show.
pub(super) fn more_keys(changed: &Changed) -> Option<String> {
    let more = changed.clients.saturating_sub(changed.top.len() as u64);
    (more > 0).then(|| format!("and {more} more, which are not shown"))
}

/// The denials of the other policy.
pub(super) fn candidate(name: &str, against: &Comparison, decisions: u64) -> String {
    let each = against.by_limit.iter().map(|(limit, denied)| format!("{limit} {denied}"));
    let by_limit = if against.by_limit.len() > 1 {
        format!(": {}", each.collect::<Vec<String>>().join(", "))
    } else {
        String::new()
    };
    format!(
        "{name} would have denied {} of {} ({} %){by_limit}{}",
        against.denied,
        many(decisions, "request"),
        share(against.denied_percent),
        if against.is_estimated { "; an estimate" } else { "" }
    )
}

/// Prints when denials happen, a letter for each hour.
fn show_week(report: &Report, console: &mut Console) {
    let worst = report.week.denied.iter().flatten().copied().max().unwrap_or_default();
    if worst == 0 {
        return;
    }
    console.line("");
    console.line(format_args!(
        "denials by hour, in UTC, . few to # {worst}; days without requests are left out"
    ));
    console.line("     0  3  6  9  12 15 18 21");
    for ((day, denied), requests) in DAYS.iter().zip(&report.week.denied).zip(&report.week.requests) {
        if requests.iter().all(|requests| *requests == 0) {
            continue;
        }
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

fn show_rest(report: &Report, against: Option<&str>, console: &mut Console) {
    console.line("");
    for overlap in &report.overlaps {
        let [one, other] = &overlap.limits;
        console.line(format_args!("{one} and {other} denied {} together", many(overlap.denied, "request")));
    }
    for cost in costs(report) {
        console.line(cost);
    }
    if let Some((name, against)) = against.zip(report.against.as_ref()) {
        console.line("");
        console.line(plain(&against.sentence));
        console.line(plain(&candidate(name, against, report.totals.decisions)));
        show_changed("NEWLY DENIED", &against.newly_denied, console);
        show_changed("FREED", &against.freed, console);
        console.line("");
    }
    console.line(format_args!("assumed: {}", report.clients_meaning));
    for note in &report.notes {
        console.line(format_args!("note: {note}"));
    }
}

/// The cost of counting in a shared store, and of the replay itself.
pub(super) fn costs(report: &Report) -> [String; 3] {
    let Report {
        input: InputReport { reorder_window_ms, .. },
        store,
        memory: MemoryUse { keys, bytes_per_key },
        ..
    } = report;
    [
        format!(
            "a shared store would have answered {}, or about {} with leases on one node ({})",
            many(store.calls, "call"),
            store.calls_with_leases,
            many(store.leases, "lease")
        ),
        format!("lines were put in the order of arrival within {}", people(*reorder_window_ms)),
        format!("the replay took {bytes_per_key} bytes for each of {}", many(*keys, "key")),
    ]
}

/// A number, or the two that it is between.
pub(crate) fn ranged(number: u64, range: Option<Range>) -> String {
    match range {
        Some(Range { low, high }) if low < high => format!("{low} to {high}"),
        _ => number.to_string(),
    }
}

/// A share in per cent with two digits; one that is not 0 is not shown as 0.
pub(crate) fn share(percent: f64) -> String {
    if percent > 0.0 && percent < 0.01 { "<0.01".to_owned() } else { format!("{percent:.2}") }
}
