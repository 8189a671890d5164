//! The report as one HTML file: inline style and SVG, no scripts, nothing loaded. It follows the reader's light or dark
//! theme and prints well. Everything that a client could have chosen is escaped.

use std::fmt::Write;

use tollgate_sim::replay::{Bar, Changed, LimitReport, Peaks, Report, TouchedKey, Week};

use super::text::{
    DAYS, ESTIMATED, OTHERS_AS_THEY_WERE, burst_for_none, candidate, costs, delayed, denied_before, facts,
    many, more_keys, ranged, ranged_share, share, verdict, worst_client,
};
use crate::text::plain;
use crate::time_text::people;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6570;--line:#d8dee4;--paper:#fff;--bar:#2f6fb0;--bad:#b3261e;\
--good:#1a7f37}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa5b1;--line:#30363d;--paper:#0d1117;--bar:#6cb0f5;\
--bad:#ff7b72;--good:#56d364}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:70rem;margin:2rem auto;\
padding:0 1rem}\
h1{font-size:1.5rem;margin:0}h2{font-size:1.2rem;margin:2rem 0 .5rem}h3{font-size:1rem;margin:1.2rem 0 .3rem}\
p{margin:.4rem 0}.soft,caption{color:var(--soft)}.verdict{font-size:1.15rem;font-weight:600}\
.bad{color:var(--bad)}.good{color:var(--good)}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\
caption{text-align:left}\
th,td{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}\
td.n,th.n{text-align:right;white-space:nowrap;padding-right:1rem}td.t{overflow-wrap:anywhere;min-width:8rem;max-width:22rem}\
td.m{white-space:nowrap}tr.here td{font-weight:600}\
svg{max-width:100%;height:auto;display:block}svg text{fill:var(--soft);font:11px system-ui,sans-serif}\
.bar{fill:var(--bar)}.over{fill:var(--bad)}.swatch{display:inline-block;width:.7em;height:.7em;margin-right:.3em}\
.mark{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:4 3}.knee{stroke:var(--soft);stroke-dasharray:1 3}\
svg .count{paint-order:stroke;stroke:var(--paper);stroke-width:3px}\
.cell{fill:var(--bad)}.empty{fill:var(--line)}\
@media print{:root{font-size:12px;--ink:#000;--soft:#444;--line:#bbb;--paper:#fff;--bar:#2f6fb0;--bad:#b3261e;--good:#1a7f37}\
body{margin:0;max-width:none;padding:0;font-size:11px}.wide{overflow:visible}td.t{min-width:0}\
h2,h3,h2+p,h3+p,caption{break-after:avoid}tr,svg{break-inside:avoid}}";

/// The height of a chart, in its own units.
const HEIGHT: u64 = 120;
/// The width of one bar with its gap.
const STEP: u64 = 34;

/// The subject of a page.
pub(crate) struct PageTitle<'t> {
    /// The name of the policy.
    pub(crate) policy: &'t str,
    /// The name of the other policy.
    pub(crate) against: Option<&'t str>,
    /// The policy is a limit that was found in the log.
    pub(crate) suggested: Option<SuggestedLimit<'t>>,
}

/// A limit that was found in the log.
pub(crate) struct SuggestedLimit<'t> {
    /// The limit: `8/min, burst 5`.
    pub(crate) limit: String,
    /// Its policy, as a file.
    pub(crate) policy: &'t str,
    /// Remarks about it.
    pub(crate) remarks: &'t [String],
}

/// The whole page.
pub(crate) fn page(report: &Report, title: &PageTitle<'_>) -> String {
    let PageTitle { policy, against, .. } = *title;
    let mut page = String::with_capacity(64 << 10);
    page.push_str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
    page.push_str(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n",
    );
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    let name = match &title.suggested {
        Some(suggested) => format!("Set this limit: {}", suggested.limit),
        None => format!("{policy} replayed"),
    };
    put(
        &mut page,
        format_args!("<title>{}</title>\n<style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n", safe(&name)),
    );
    if let Some(suggested) = &title.suggested {
        set_this(&mut page, report, suggested);
    }
    head(&mut page, report, title);
    if let Some((against, comparison)) = against.zip(report.against.as_ref()) {
        put(
            &mut page,
            format_args!(
                "<h2>With {} instead</h2>\n<p class=\"verdict\">{}</p>\n<p>{}.</p>\n",
                safe(against),
                safe(&comparison.sentence),
                safe(&candidate(against, comparison, report.totals.decisions))
            ),
        );
        changed(&mut page, "Newly denied", &comparison.newly_denied);
        changed(&mut page, "Freed", &comparison.freed);
    }
    limits(&mut page, &report.limits);
    if !report.top.is_empty() {
        page.push_str("<h2>Who would notice</h2>\n");
        keys(&mut page, &report.top);
    }
    week(&mut page, &report.week);
    let others = if report.limits.len() > 1 { format!(": {OTHERS_AS_THEY_WERE}") } else { String::new() };
    report.limits.iter().filter(|limit| limit.requests > 0).for_each(|limit| one(&mut page, limit, &others));
    rest(&mut page, report);
    page.push_str("</body></html>\n");
    page
}

/// Appends text. Writing to a string cannot fail.
fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = page.write_fmt(text);
}

/// A text that is only text in HTML. Control characters and characters that change the direction are shown escaped.
fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in plain(text).chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            _ => safe.push(character),
        }
    }
    safe
}

/// The suggested limit: how many keys it leaves alone, and its policy.
fn set_this(page: &mut String, report: &Report, suggested: &SuggestedLimit<'_>) {
    if let [limit] = &report.limits[..] {
        let touched = limit.touched_range.map_or(limit.touched, |range| range.high);
        let untouched = limit.keys.saturating_sub(touched);
        let of = many(limit.keys, "key");
        let estimate = if limit.is_range_estimated { ", an estimate" } else { "" };
        put(page, format_args!("<p class=\"verdict good\">{untouched} of {of} untouched{estimate}.</p>\n"));
    }
    for remark in suggested.remarks {
        put(page, format_args!("<p>{}</p>\n", safe(remark)));
    }
    page.push_str("<pre>");
    suggested.policy.lines().for_each(|line| put(page, format_args!("{}\n", safe(line))));
    page.push_str("</pre>\n<h2>The log through this limit</h2>\n");
}

/// The answer, and the requests that it is about.
fn head(page: &mut String, report: &Report, title: &PageTitle<'_>) {
    let totals = &report.totals;
    if let [limit] = &report.limits[..] {
        put(page, format_args!("<p>{}</p>\n", safe(&limit.sentence)));
    }
    page.push_str("<p class=\"soft\">");
    put(
        page,
        format_args!(
            "{} of {}, {} to {} ({}); assumed: {}</p>\n",
            many(totals.requests, "request"),
            many(totals.clients, "client"),
            totals.from,
            totals.to,
            people(totals.seconds.saturating_mul(1_000)),
            report.clients_meaning
        ),
    );
    for damage in &report.input.damage {
        put(page, format_args!("<p class=\"bad\">Damaged: {}.</p>\n", safe(damage)));
    }
    // A suggested limit is made to deny these requests.
    let class = match totals.denied {
        0 => " good",
        _ if title.suggested.is_some() => "",
        _ => " bad",
    };
    put(page, format_args!("<p class=\"verdict{class}\">It {}.</p>\n", verdict(totals)));
    if let Some(without) = &totals.without_refused {
        put(
            page,
            format_args!(
                "<p>Without the {} requests that were refused already: {} of {} ({} %), {} clients.</p>\n",
                totals.already_refused,
                without.denied,
                without.requests,
                share(without.denied_percent),
                without.clients_touched
            ),
        );
    }
    facts(totals, report.clients).iter().for_each(|fact| put(page, format_args!("<p>{fact}.</p>\n")));
}

fn limits(page: &mut String, limits: &[LimitReport]) {
    page.push_str("<h2>Limits</h2>\n<div class=\"wide\"><table><tr><th>limit</th><th class=\"n\">requests</th><th class=\"n\">denied</th><th class=\"n\">%</th><th class=\"n\">keys</th><th class=\"n\">touched</th><th class=\"n\">%</th><th class=\"n\">denied for (median)</th><th class=\"n\">p99</th><th>worst minute</th></tr>\n");
    for limit in limits {
        let minute = limit.worst_minute.as_ref();
        let minute =
            minute.map_or_else(|| "–".to_owned(), |minute| format!("{} ({})", minute.at, minute.denied));
        let shadow = if limit.is_shadow { " (shadow)" } else { "" };
        put(
            page,
            format_args!(
                "<tr><td class=\"m\">{}{shadow}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"m\">{minute}</td></tr>\n",
                safe(&limit.name),
                limit.requests,
                ranged(limit.denied, limit.denied_range),
                ranged_share(limit.denied, limit.denied_range, limit.requests),
                limit.keys,
                ranged(limit.touched, limit.touched_range),
                ranged_share(limit.touched, limit.touched_range, limit.keys),
                people(limit.denied_for_ms.median),
                people(limit.denied_for_ms.p99),
            ),
        );
    }
    page.push_str("</table></div>\n");
}

/// The keys that limits would deny most.
fn keys(page: &mut String, keys: &[TouchedKey]) {
    page.push_str("<div class=\"wide\"><table><tr><th>key</th><th>limit</th><th class=\"n\">requests</th><th class=\"n\">denied</th><th class=\"n\">of the limit's denials</th><th class=\"n\">denied for, in all</th><th>route</th><th>user agent</th></tr>\n");
    for key in keys {
        let numbers = [
            key.requests.to_string(),
            key.denied.to_string(),
            format!("{} %", share(key.share_percent)),
            people(key.denied_for_ms),
        ];
        key_row(page, key, &numbers);
    }
    page.push_str("</table></div>\n");
}

/// The keys whose decisions another policy changes.
fn changed_keys(page: &mut String, keys: &[TouchedKey]) {
    page.push_str("<div class=\"wide\"><table><tr><th>key</th><th>limit</th><th class=\"n\">requests</th><th class=\"n\">share</th><th class=\"n\">denied before</th><th>route</th><th>user agent</th></tr>\n");
    for key in keys {
        let share = format!("{} %", share(key.share_percent));
        key_row(page, key, &[key.denied.to_string(), share, denied_before(key).to_owned()]);
    }
    page.push_str("</table></div>\n");
}

fn key_row(page: &mut String, key: &TouchedKey, numbers: &[String]) {
    let text = |text: &Option<String>| text.as_deref().map_or_else(|| "–".to_owned(), safe);
    put(
        page,
        format_args!("<tr><td class=\"t\">{}</td><td class=\"m\">{}</td>", safe(&key.key), safe(&key.limit)),
    );
    numbers.iter().for_each(|number| put(page, format_args!("<td class=\"n\">{number}</td>")));
    let (route, agent) = (text(&key.route), text(&key.user_agent));
    put(page, format_args!("<td class=\"t\">{route}</td><td class=\"t\">{agent}</td></tr>\n"));
}

fn changed(page: &mut String, title: &str, changed: &Changed) {
    if changed.requests == 0 {
        return;
    }
    put(
        page,
        format_args!(
            "<h3>{title}: {} ({} %) of {}</h3>\n",
            many(changed.requests, "request"),
            share(changed.percent),
            many(changed.clients, "client")
        ),
    );
    let listed = |pairs: &[(String, u64)]| {
        let each: Vec<String> =
            pairs.iter().take(5).map(|(name, count)| format!("{} ({count})", safe(name))).collect();
        each.join(", ")
    };
    put(
        page,
        format_args!(
            "<p>By limit: {}. By route: {}.</p>\n",
            listed(&changed.by_limit),
            listed(&changed.by_route)
        ),
    );
    changed_keys(page, &changed.top);
    if let Some(more) = more_keys(changed) {
        put(page, format_args!("<p class=\"soft\">{more}.</p>\n"));
    }
}

/// One limit: at other sizes, and how its keys differ.
fn one(page: &mut String, limit: &LimitReport, others: &str) {
    put(page, format_args!("<h2>{}</h2>\n<p>{}</p>\n", safe(&limit.name), safe(&limit.sentence)));
    if let Some(burst) = burst_for_none(limit) {
        put(page, format_args!("<p>{burst}.</p>\n"));
    }
    if limit.is_range_estimated {
        put(page, format_args!("<p>In this log {ESTIMATED}.</p>\n"));
    }
    if limit.delayed > 0 {
        put(page, format_args!("<p>{}.</p>\n", delayed(limit)));
    }
    if let Some(worst) = &limit.worst_key {
        put(page, format_args!("<p>Would be {}.</p>\n", safe(&worst_client(worst))));
    }
    if !limit.sizes.is_empty() {
        put(
            page,
            format_args!(
                "<div class=\"wide\"><table><caption>If the limit had another size{others}</caption>"
            ),
        );
        page.push_str("<tr><th>size</th><th>quota</th><th class=\"n\">denied</th><th class=\"n\">%</th><th class=\"n\">keys touched</th><th class=\"n\">%</th></tr>\n");
        for size in &limit.sizes {
            let class = if size.times == "1" { " class=\"here\"" } else { "" };
            put(
                page,
                format_args!(
                    "<tr{class}><td>×{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
                    size.times,
                    safe(&size.quota),
                    ranged(size.denied, size.denied_range),
                    ranged_share(size.denied, size.denied_range, limit.requests),
                    ranged(size.touched, size.touched_range),
                    ranged_share(size.touched, size.touched_range, limit.keys)
                ),
            );
        }
        page.push_str("</table></div>\n");
    }
    if let Some(peaks) = &limit.peaks {
        chart(page, peaks);
    }
}

/// The meaning of the colours of a chart.
const LEGEND: &str = "<p class=\"soft\"><svg class=\"swatch\" viewBox=\"0 0 1 1\" role=\"presentation\"><rect class=\"bar\" width=\"1\" height=\"1\"/></svg>keys \
     that would not have been denied, <svg class=\"swatch\" viewBox=\"0 0 1 1\" role=\"presentation\"><rect class=\"over\" width=\"1\" height=\"1\"/></svg>keys \
     that would have been denied a request; below, the highest peak of a row</p>\n";

/// How many keys have which peak, both axes logarithmic, with the limit and the knee.
fn chart(page: &mut String, peaks: &Peaks) {
    let window =
        peaks.window_ms.map_or_else(|| "in flight".to_owned(), |millis| format!("in {}", people(millis)));
    let knee = peaks.knee.map_or_else(String::new, |knee| format!(", the curve bends at {knee}"));
    put(
        page,
        format_args!(
            "<h3>Peaks of keys {window}</h3>\n<p>Half up to {}, 90 % {}, 95 % {}, 99 % {}, 99.9 % {}, highest {}{knee}. The limit is {}.</p>\n",
            peaks.p50, peaks.p90, peaks.p95, peaks.p99, peaks.p99_9, peaks.max, peaks.limit
        ),
    );
    let width = (STEP * peaks.histogram.len() as u64 + 10).max(2 * STEP);
    let most = peaks.histogram.iter().map(|bar| bar.keys).max().unwrap_or(1);
    page.push_str(LEGEND);
    put(
        page,
        format_args!(
            "<svg viewBox=\"0 0 {width} {}\" width=\"{width}\" role=\"img\" aria-label=\"keys by peak\">",
            HEIGHT + 58
        ),
    );
    let rows = peaks.histogram.iter().enumerate();
    let rows: Vec<PlacedBar<'_>> = rows
        .map(|(index, bar)| PlacedBar {
            bar,
            x: STEP * index as u64 + 5,
            height: HEIGHT * steps(bar.keys) / steps(most).max(1),
        })
        .collect();
    rows.iter().for_each(|row| row.write_bars(page));
    // Each name has its own line, so that names of neighbors do not touch.
    let marks = [(Some(peaks.limit), "limit", 40), (peaks.knee, "knee", 54)];
    for (value, name, below) in marks {
        let Some(x) = value.and_then(|value| place(value, &peaks.histogram)) else { continue };
        put(
            page,
            format_args!(
                "<line class=\"mark {name}\" x1=\"{x}\" x2=\"{x}\" y1=\"12\" y2=\"{}\"/><text x=\"{x}\" y=\"{}\" text-anchor=\"end\">{name}</text>",
                HEIGHT + 14,
                HEIGHT + below
            ),
        );
    }
    for row in &rows {
        row.write_numbers(page);
    }
    page.push_str("</svg>\n");
}

/// A row of the histogram, drawn as a bar.
struct PlacedBar<'p> {
    bar: &'p Bar,
    x: u64,
    height: u64,
}

impl PlacedBar<'_> {
    /// Its keys, and in front of them those that would have been denied.
    fn write_bars(&self, page: &mut String) {
        let PlacedBar { bar, x, height } = *self;
        let denied =
            if bar.touched == 0 { String::new() } else { format!(", {} of them denied", bar.touched) };
        put(page, format_args!("<g><title>{} keys up to {}{denied}</title>", bar.keys, bar.to));
        let red = (height * bar.touched).div_ceil(bar.keys.max(1));
        for (class, height) in [("bar", height), ("over", red)].into_iter().filter(|(_, height)| *height > 0)
        {
            let (y, width) = (HEIGHT + 12 - height, STEP - 6);
            put(
                page,
                format_args!(
                    "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>"
                ),
            );
        }
        page.push_str("</g>");
    }

    /// Its number of keys above it, which no line crosses out, and below it the highest peak.
    fn write_numbers(&self, page: &mut String) {
        let PlacedBar { bar, x, height } = *self;
        put(page, format_args!("<text x=\"{x}\" y=\"{}\">{}</text>", HEIGHT + 26, short(bar.to)));
        if bar.keys > 0 {
            let (y, keys) = ((HEIGHT + 9).saturating_sub(height).max(9), short(bar.keys));
            put(page, format_args!("<text class=\"count\" x=\"{x}\" y=\"{y}\">{keys}</text>"));
        }
    }
}

/// The place of a number on the axis of the rows; `None` if it is above all of them.
fn place(value: u64, rows: &[Bar]) -> Option<u64> {
    let (index, row) = rows.iter().enumerate().find(|(_, row)| row.to >= value)?;
    // A row begins above half its highest number. The first has only one.
    let part = if index == 0 { 16 } else { steps(value).saturating_sub(steps(row.to / 2)).min(16) };
    Some(STEP * index as u64 + 2 + STEP * part / 16)
}

/// A number on a logarithmic scale, in sixteenths of a doubling; 0 for none.
const fn steps(number: u64) -> u64 {
    if number == 0 {
        return 0;
    }
    let doublings = number.ilog2();
    let rest =
        if doublings >= 4 { (number >> (doublings - 4)) & 15 } else { (number << (4 - doublings)) & 15 };
    // One key has a visible bar.
    doublings as u64 * 16 + rest + 8
}

/// A number in at most four characters.
fn short(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..1_000_000 => format!("{}k", number / 1_000),
        1_000_000..1_000_000_000 => format!("{}M", number / 1_000_000),
        _ => format!("{}G", number / 1_000_000_000),
    }
}

/// Denials by weekday and hour.
fn week(page: &mut String, week: &Week) {
    let worst = week.denied.iter().flatten().copied().max().unwrap_or_default();
    if worst == 0 {
        return;
    }
    put(
        page,
        format_args!(
            "<h2>When</h2>\n<p class=\"soft\">Denials by weekday and hour, in UTC, at most {worst} in one. Hours without requests are left out.</p>\n"
        ),
    );
    page.push_str(
        "<svg viewBox=\"0 0 560 175\" width=\"560\" role=\"img\" aria-label=\"denials by weekday and hour\">",
    );
    for hour in (0..24u64).step_by(3) {
        put(page, format_args!("<text x=\"{}\" y=\"11\">{hour}</text>", 36 + hour * 21));
    }
    let days = DAYS.iter().zip(week.denied.iter().zip(&week.requests));
    for (row, (day, (denied, requests))) in days.enumerate() {
        let y = 18 + row as u64 * 22;
        put(page, format_args!("<text x=\"0\" y=\"{}\">{day}</text>", y + 14));
        for (hour, (denied, requests)) in denied.iter().zip(requests).enumerate() {
            if *requests == 0 {
                continue;
            }
            let (class, opacity) = match denied {
                0 => ("empty", 40),
                _ => ("cell", 15 + 85 * u128::from(*denied) / u128::from(worst)),
            };
            put(
                page,
                format_args!(
                    "<rect class=\"{class}\" fill-opacity=\"{opacity}%\" x=\"{}\" y=\"{y}\" width=\"19\" height=\"20\"><title>{day} {hour}:00: {denied} of {requests} denied</title></rect>",
                    36 + hour as u64 * 21
                ),
            );
        }
    }
    page.push_str("</svg>\n");
}

fn rest(page: &mut String, report: &Report) {
    if !report.overlaps.is_empty() {
        page.push_str("<h2>Limits that denied together</h2>\n<ul>\n");
        for overlap in &report.overlaps {
            let [one, other] = &overlap.limits;
            put(
                page,
                format_args!(
                    "<li>{} and {}: {}</li>\n",
                    safe(one),
                    safe(other),
                    many(overlap.denied, "request")
                ),
            );
        }
        page.push_str("</ul>\n");
    }
    page.push_str("<h2>About this report</h2>\n<ul>\n");
    for file in &report.input.files {
        put(
            page,
            format_args!(
                "<li>{}: {}, {}</li>\n",
                safe(&file.name),
                safe(&file.format),
                many(file.lines, "line")
            ),
        );
    }
    let examples = report.input.bad_examples.iter().chain(&report.input.undecidable_examples);
    let bad = report.input.bad_lines + report.input.undecidable;
    if bad > 0 {
        put(page, format_args!("<li>not in it: {}<ul>\n", many(bad, "line")));
        examples.for_each(|example| put(page, format_args!("<li>{}</li>\n", safe(example))));
        page.push_str("</ul></li>\n");
    }
    costs(report).iter().for_each(|cost| put(page, format_args!("<li>{cost}</li>\n")));
    report.notes.iter().for_each(|note| put(page, format_args!("<li>{}</li>\n", safe(note))));
    page.push_str("</ul>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a client sends is only text on the page: no tag, no attribute and no script comes of it.
    #[test]
    fn hostile_text_stays_text() {
        let hostile = "</td><script>alert('x')</script>\" onload=\"y\u{202e}\0&amp;";
        let key = TouchedKey {
            limit: "per-ip".to_owned(),
            key: hostile.to_owned(),
            requests: 2,
            denied: 1,
            share_percent: 100.0,
            denied_for_ms: 5,
            route: Some(hostile.to_owned()),
            user_agent: Some(hostile.to_owned()),
            is_first_denial: Some(true),
        };
        let mut report = Report { top: vec![key], ..Report::default() };
        report.input.bad_examples.push(hostile.to_owned());
        let remarks = [hostile.to_owned()];
        let suggested = SuggestedLimit { limit: hostile.to_owned(), policy: hostile, remarks: &remarks };
        let page = page(&report, &PageTitle { policy: hostile, against: None, suggested: Some(suggested) });
        assert_eq!(page.matches("<script").count(), 0);
        assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot; onload=&quot;y"));
        assert!(!page.contains(['\u{202e}', '\0']));
    }

    /// The story: of 303 keys 300 were untouched, yet the rows of eight more were red, left of the line of the limit. Red is a
    /// key that would have been denied, whatever its peak; the names of the limit and the knee have a line each.
    #[test]
    fn only_denied_keys_are_red() {
        let row = |to: u64, keys: u64, touched: u64| Bar { to, keys, touched };
        let histogram = vec![row(1, 280, 0), row(2, 10, 0), row(4, 2, 0), row(8, 8, 0), row(16, 4, 3)];
        let peaks = Peaks {
            window_ms: Some(60_000),
            limit: 5,
            p50: 1,
            p90: 1,
            p95: 2,
            p99: 8,
            p99_9: 16,
            max: 16,
            knee: Some(6),
            histogram,
        };
        let mut page = String::new();
        chart(&mut page, &peaks);
        let drawing = page.split_once(LEGEND).unwrap().1;
        assert_eq!(drawing.matches("class=\"over\"").count(), 1, "{page}");
        assert!(drawing.contains("<title>8 keys up to 8</title>"), "{page}");
        assert!(drawing.contains("<title>4 keys up to 16, 3 of them denied</title>"), "{page}");
        let [limit, knee] = ["limit", "knee"].map(|name| {
            let line = drawing.split(&format!("class=\"mark {name}\"")).nth(1).unwrap();
            let text = line.split("<text ").nth(1).unwrap();
            text.split("\"").nth(3).unwrap().parse::<u64>().unwrap()
        });
        assert!(knee >= limit + 14, "{page}");
        // 5 is a third of the way from 4 to 8, and 8 is the end of its row.
        assert_eq!(
            [4, 5, 8, 17].map(|value| place(value, &peaks.histogram)),
            [Some(3 * STEP + 2), Some(3 * STEP + 2 + STEP * 4 / 16), Some(4 * STEP + 2), None]
        );
    }

    /// Heights grow with numbers, and one key is visible.
    #[test]
    fn heights_are_logarithmic() {
        let heights: Vec<u64> = [0, 1, 2, 3, 4, 100, 1_000_000].into_iter().map(steps).collect();
        assert!(heights.is_sorted() && heights[1] > 0, "{heights:?}");
    }
}
