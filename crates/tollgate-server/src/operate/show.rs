//! Prints answers of the admin API for people.

use serde_json::Value;
use tollgate::{Clock, Timestamp};

use super::table::{cell, table};
use crate::console::{Console, Style};
use crate::text::{grouped, plain};
use crate::time_text::{brief_instant, clock_text, people};

/// How the server says that a limit has one quota.
const ONLY_QUOTA: &str = "its only quota";

pub(super) fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

/// The meaning of a limit, without its name.
fn meaning(limit: &Value) -> String {
    let (name, sentence) = (text(limit, "name"), text(limit, "sentence"));
    let rest = sentence.strip_prefix(name).and_then(|rest| rest.strip_prefix(": "));
    plain(rest.unwrap_or(sentence))
}

pub(super) fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

/// A duration for people.
pub(super) fn seconds(value: &Value, name: &str) -> String {
    value[name].as_u64().map_or_else(|| "-".to_owned(), people)
}

/// Attributes in the syntax in which they are typed.
pub(super) fn pairs(value: &Value) -> String {
    let Some(map) = value.as_object() else { return String::new() };
    let pairs = map.iter().map(|(name, value)| match value {
        Value::String(text) => format!("{name}={text}"),
        other => format!("{name}:={other}"),
    });
    plain(&pairs.collect::<Vec<_>>().join(" "))
}

/// The time of day of an instant in RFC 3339, to the second.
pub(super) fn time_of_day(instant: &str) -> String {
    let time = instant.split_once('T').map_or(instant, |(_, time)| time);
    let seconds = time.split(['.', 'Z']).next().unwrap_or(time);
    format!("{}Z", plain(seconds))
}

/// The latest denial by a limit, if there is one.
fn last_denied(limit: &Value) -> Option<String> {
    let last = &limit["last_denied"];
    let at = time_of_day(last["at"].as_str()?);
    let ago = seconds(last, "ago_ms");
    let retry = last["retry_at"].as_str().map(time_of_day);
    let retry = retry.map(|retry| format!(", may come back at {retry}")).unwrap_or_default();
    let since = last["since"].as_str().map(time_of_day);
    let recent = match (last["denials"].as_u64(), since) {
        (Some(1), Some(since)) => format!("; 1 denial since {since}"),
        (Some(denials), Some(since)) => format!("; {denials} denials since {since}"),
        _ => String::new(),
    };
    Some(format!("last denied {at} ({ago} ago){retry}{recent}"))
}

/// Prints what is doubtful about the question itself.
fn doubts(answer: &Value, console: &mut Console) {
    if let Some(doubt) = answer["doubt"].as_str() {
        console.warning(plain(doubt));
    }
    for limit in list(answer, "incomplete") {
        let names: Vec<&str> = list(limit, "depends_on").iter().filter_map(Value::as_str).collect();
        let (limit, names) = (text(limit, "limit"), names.join(" and "));
        let explained = list(answer, "limits").iter().find(|explained| text(explained, "name") == limit);
        let denies = explained.is_some_and(|explained| {
            explained["counter"]["allowed"] == false && explained["counter"]["mode"] == "enforce"
        });
        let then = if denies { "; where it applies, it denies now" } else { "" };
        console.line(plain(&format!("incomplete: whether {limit} applies depends on {names}{then}")));
    }
}

/// The remaining quota of a limit that applies, or may apply to a request with more attributes.
fn counter_of(limit: &Value) -> &Value {
    if limit["state"].is_object() { &limit["state"] } else { &limit["counter"] }
}

/// Prints that no denial is remembered, if some are forgotten.
fn forgotten(answer: &Value, console: &mut Console) {
    if let Some(at) = answer["denials_forgotten_until"].as_str() {
        console.line(format_args!(
            "no denial of it is remembered; keys that were last denied before {} may be forgotten",
            plain(at)
        ));
    }
}

/// Prints under which name a credential is counted, shown and logged.
fn digests(answer: &Value, console: &mut Console) {
    for (name, digest) in answer["digests"].as_object().into_iter().flatten() {
        let digest = digest.as_str().unwrap_or_default();
        console.line(plain(&format!("{name} is known as {name}={digest}")));
    }
}

/// Prints whether the request would pass, and why not if no limit explains it.
fn verdict(answer: &Value, console: &mut Console) {
    doubts(answer, console);
    for reason in ["blocked", "fault"] {
        if let Some(reason) = answer[reason].as_str() {
            console.line(format_args!("denied: {}", plain(reason)));
        }
    }
    if answer["unknown_credential"] == true {
        console.line("the callers file does not know this credential: such a request counts by its ip");
    }
    let calls = list(answer, "throttled");
    console.line(match (answer["allowed"].as_bool(), answer["carries_its_limit"] == true) {
        (None, true) if calls.is_empty() => {
            "such a call passes now if it asks for no more than its own limit at once: nothing is counted for its key"
        }
        (None, _) => "whether such a call passes now depends on the limit that it carries",
        (Some(true), true) => "such a call passes now, whatever limit it carries",
        (Some(false), true) => "such a call is denied now",
        (Some(true), false) if !list(answer, "incomplete").is_empty() => {
            "a request with these attributes alone passes now"
        }
        (Some(true), false) if answer["no_limit_applies"] != true => "such a request passes now",
        (Some(true), false) if calls.is_empty() => {
            "such a request passes now: no limit applies to it, so it is not counted"
        }
        (Some(true), false) => "no limit of the policy applies to such a request; calls that carry their own limit count this key",
        (Some(false), false) => "such a request is denied now",
    });
    let given = &answer["as_given"];
    if given.is_object() {
        let names: Vec<String> = list(given, "limits").iter().filter_map(Value::as_str).map(plain).collect();
        let what = if given["allowed"] == true { "passes" } else { "is denied" };
        let by = if names.is_empty() {
            "no limit applies".to_owned()
        } else {
            format!("it meets {}", names.join(", "))
        };
        console.line(format_args!(
            "that is how the gateway and /v1/authz read it; sent unchanged to /v1/check, RLS or RESP it {what}: {by}"
        ));
    }
}

/// Prints the answer of `get`.
pub(super) fn state(answer: &Value, console: &mut Console) {
    policy_trouble(answer, console);
    verdict(answer, console);
    throttled(answer, console);
    let limits = list(answer, "limits");
    if limits.is_empty() {
        if list(answer, "throttled").is_empty() && answer["carries_its_limit"] != true {
            console.line("no limit applies to it; `tollgate explain` says why");
        }
        digests(answer, console);
        return answers(answer, console);
    }
    let rows: Vec<Vec<String>> = limits
        .iter()
        .map(|limit| {
            let state = counter_of(limit);
            vec![
                cell(text(limit, "name")),
                left(state),
                // A key that is refused for a while was counted, whatever its counter holds now.
                if state["counted"] == true || text(state, "source") == "penalty" { "yes" } else { "none" }
                    .to_owned(),
                seconds(state, "next_unit_after_ms"),
                seconds(state, "reset_after_ms"),
                text(state, "mode").to_owned(),
                text(state, "source").to_owned(),
            ]
        })
        .collect();
    console.line("");
    lines(
        &["limit", "left", "counter", "next unit in", "all back in", "mode", "source"],
        &rows,
        &[],
        console,
    );
    for limit in limits.iter().filter(|limit| counter_of(limit)["refused_for_ms"].is_u64()) {
        let (name, state) = (plain(text(limit, "name")), counter_of(limit));
        let (rest, passes) = (seconds(state, "refused_for_ms"), seconds(state, "retry_after_ms"));
        console.line(format_args!(
            "{name}: refuses the key for another {rest} (block_for); the request passes in {passes}"
        ));
    }
    for limit in limits {
        if let Some(last) = last_denied(limit) {
            console.line(format_args!("{}: {last}", plain(text(limit, "name"))));
        }
        let open: Vec<&str> =
            list(counter_of(limit), "open_tiers").iter().filter_map(Value::as_str).collect();
        if !open.is_empty() {
            let (name, open) = (plain(text(limit, "name")), plain(&open.join(" and ")));
            console.line(format_args!(
                "{name}: this is a request without {open}; with one it counts apart, by tier"
            ));
        }
    }
    forgotten(answer, console);
    digests(answer, console);
    answers(answer, console);
}

/// The remaining units of a limit, or the policy's verdict if it does not count.
fn left(state: &Value) -> String {
    match (state["limit"].is_null(), state["allowed"] == true) {
        (true, true) => "unlimited".to_owned(),
        (_, false) if text(state, "source") == "penalty" => "blocked".to_owned(),
        (true, false) => "deny".to_owned(),
        (false, _) => {
            ["remaining", "limit"].map(|name| grouped(state[name].as_u64().unwrap_or(0))).join(" of ")
        }
    }
}

pub(super) fn lines(titles: &[&str], rows: &[Vec<String>], optional: &[&str], console: &mut Console) {
    let table = table(titles, rows, optional, console.cut());
    for (index, line) in table.iter().enumerate() {
        let line = if index == 0 { console.painted(line, Style::Title) } else { line.clone() };
        console.line(line);
    }
}

/// Prints the counters of commands whose calls carry their limit.
fn throttled(answer: &Value, console: &mut Console) {
    for throttled in list(answer, "throttled") {
        let (command, rest) = (text(throttled, "command"), seconds(throttled, "reset_after_ms"));
        console.line(format_args!("{}, by limits of its own: all back in {rest}", plain(command)));
    }
}

/// Prints the answer of `explain`.
pub(super) fn explanation(answer: &Value, console: &mut Console) {
    policy_trouble(answer, console);
    verdict(answer, console);
    throttled(answer, console);
    for limit in list(answer, "limits") {
        let state = &limit["state"];
        let what = match (limit["applies"] == true, state["allowed"] == true, text(state, "mode")) {
            (false, ..) => "does not apply".to_owned(),
            (true, true, _) if state["limit"].is_null() => "passes, unlimited".to_owned(),
            (true, true, _) => format!("passes, {} left", left(state)),
            (true, false, "shadow") => "would deny, but only counts".to_owned(),
            (true, false, _) => "denies".to_owned(),
        };
        console.line(format_args!("\n{}: {what}", plain(text(limit, "name"))));
        console.line(format_args!("  {}", meaning(limit)));
        let (quota, chosen) = (text(state, "quota"), text(state, "chosen"));
        // The meaning of a limit with one quota says it already.
        if !matches!(chosen, "" | ONLY_QUOTA) {
            console.line(format_args!("  quota: {} ({})", plain(quota), plain(chosen)));
        }
        if !matches!(text(state, "source"), "" | "exact" | "policy") {
            console.line(format_args!("  source: {}", plain(text(state, "source"))));
        }
        if let Some(expiring) = limit.get("effective_override") {
            console.line(format_args!("  override: {}", override_text(expiring)));
        }
        for change in list(limit, "what_would_change_it") {
            console.line(format_args!("  - {}", plain(change.as_str().unwrap_or_default())));
        }
        if let Some(last) = last_denied(limit) {
            console.line(format_args!("  - {last}"));
        }
    }
    if let Some(more) = answer["left_off"].as_u64().filter(|more| *more > 0) {
        console.line(format_args!("\nand {more} more limits that do not apply"));
    }
    forgotten(answer, console);
    digests(answer, console);
    answers(answer, console);
}

fn override_text(expiring: &Value) -> String {
    let until = text(expiring, "until");
    match (text(expiring, "override"), expiring["percent"].as_u64()) {
        (_, Some(percent)) => format!("enforced for {percent} % of keys until {until}"),
        (state, None) => format!("{state} until {until}"),
    }
}

pub(super) fn reset(answer: &Value, console: &mut Console) {
    doubts(answer, console);
    let texts = |name: &str| -> Vec<String> {
        list(answer, name).iter().filter_map(Value::as_str).map(plain).collect()
    };
    let (limits, untouched, shared) = (texts("limits"), texts("untouched"), texts("shared"));
    let which = if limits.is_empty() { String::new() } else { format!(": {}", limits.join(", ")) };
    let counters = answer["counters"].as_u64().unwrap_or_default();
    match counters {
        0 if answer["unknown_credential"] == true => console.line(
            "the callers file does not know this credential, so nothing was reset: its requests are counted by ip; \
             name the ip, or add it with `tollgate callers add`",
        ),
        0 if !untouched.is_empty() => console.line(format_args!(
            "no counter existed: nothing was counted for these attributes by {}",
            untouched.join(", ")
        )),
        0 if shared.is_empty() => {
            console.line("no limit has a counter for these attributes, so nothing was reset");
        }
        0 => console.line("nothing was reset"),
        1 => console.line(format_args!("1 counter reset{which}")),
        _ => console.line(format_args!("{counters} counters reset{which}")),
    }
    if !shared.is_empty() {
        console.line(format_args!(
            "the server's memory is full: {} counts these attributes in a counter that other keys share, which stays",
            shared.join(", ")
        ));
    }
    for reason in texts("not_counted") {
        console.line(reason);
    }
}

pub(super) fn block(answer: &Value, console: &mut Console) {
    console.line(format_args!("{} is blocked until {}", pairs(&answer["attributes"]), text(answer, "until")));
}

pub(super) fn unblocked(answer: &Value, console: &mut Console) {
    doubts(answer, console);
    console.line(if answer["unblocked"] == true {
        "unblocked"
    } else {
        "there is no block of exactly these attributes"
    });
    for block in list(answer, "still_blocked_by") {
        let (attributes, until) = (pairs(&block["attributes"]), text(block, "until"));
        console.line(format_args!("still blocked, by a block of {attributes} until {until}"));
    }
}

pub(super) fn overridden(answer: &Value, console: &mut Console) {
    console.line(override_text(answer));
    for other in list(answer, "milder") {
        console.line(format_args!("until it ends, a milder override holds: {}", about(other)));
    }
}

/// An override with the limits it applies to.
fn about(other: &Value) -> String {
    match other["limit"].as_str() {
        Some(limit) => format!("{} is {}", plain(limit), override_text(other)),
        None => format!("all limits are {}", override_text(other)),
    }
}

pub(super) fn restored(answer: &Value, console: &mut Console) {
    let others = list(answer, "still_overridden");
    console.line(match (answer["restored"] == true, others.is_empty()) {
        (true, true) => "restored: the policy holds again",
        (true, false) => "restored, but the policy does not hold yet",
        (false, _) => "there was nothing to restore",
    });
    for other in others {
        let which = other["limit"].as_str().map_or_else(|| "--all".to_owned(), plain);
        console
            .line(format_args!("still overridden: {}; `tollgate restore {which}` ends that", about(other)));
    }
}

/// Prints the changed fields of the whole policy like changed limits.
pub(crate) fn show_fields(policy: &Value, console: &mut Console) {
    for change in policy.as_array().into_iter().flatten() {
        let text = |name: &str| plain(change[name].as_str().unwrap_or_default());
        console.line(format_args!("changed policy: {}", text("field")));
        console.line(format_args!("  - {}", text("before")));
        console.line(format_args!("  + {}", text("after")));
    }
}

pub(super) fn reloaded(answer: &Value, console: &mut Console) {
    let also = list(answer, "also");
    match (answer["reloaded"] == true, also.is_empty()) {
        (true, _) => console.line("reloaded"),
        (false, true) => console.line("nothing to reload: the file is active"),
        (false, false) => console.line("the policy is the same"),
    }
    show_fields(&answer["policy"], console);
    for change in list(answer, "changes") {
        let fields: Vec<&str> = list(change, "fields").iter().filter_map(Value::as_str).collect();
        let fields = if fields.is_empty() { String::new() } else { format!(": {}", fields.join(", ")) };
        console.line(format_args!("{} {}{fields}", text(change, "change"), plain(text(change, "name"))));
        if text(change, "change") == "changed" && fields.is_empty() {
            console.line(format_args!("  - {}", plain(text(change, "before"))));
            console.line(format_args!("  + {}", plain(text(change, "after"))));
        }
    }
    for (what, means) in [
        ("restarted", ": it counts by other counters than before"),
        ("resumed", ": it counts again by the counters that it had earlier"),
    ] {
        for limit in list(answer, what) {
            console.line(format_args!("{what} {}{means}", plain(limit.as_str().unwrap_or_default())));
        }
    }
    for what in also {
        console.line(plain(what.as_str().unwrap_or_default()));
    }
    for warning in list(answer, "warnings") {
        console.problem(plain(warning.as_str().unwrap_or_default()));
    }
}

/// Prints why the policy file on disk is not the active policy, while that is so.
pub(super) fn policy_trouble(answer: &Value, console: &mut Console) {
    let policy = &answer["policy"];
    let Some(problem) = policy["error"]["text"].as_str() else { return };
    let since = time_of_day(text(&policy["error"], "at"));
    let name = plain(text(policy, "name"));
    let line = format!("{name}: the file is not active since {since}; the policy before it stays active:");
    let line = console.painted(&line, Style::Bad);
    console.line(line);
    for line in problem.lines() {
        console.line(format_args!("  {}", plain(line)));
    }
    console.line("");
}

/// The mode of a limit for a column: that of its override, with its end, or that of the policy.
fn mode(limit: &Value, now: Timestamp) -> String {
    let percent_of = |mode: &str, percent: u64| match percent {
        100 => mode.to_owned(),
        _ => format!("{mode} {percent} %"),
    };
    let Some(expiring) = limit.get("effective_override") else {
        return percent_of(text(limit, "mode"), limit["percent"].as_u64().unwrap_or(100));
    };
    let mode = match expiring["percent"].as_u64() {
        Some(percent) => percent_of("enforce", percent),
        None => text(expiring, "override").to_owned(),
    };
    format!("{mode} until {}", brief_instant(text(expiring, "until"), now))
}

pub(super) fn limits(answer: &Value, console: &mut Console) {
    let now = Clock::precise().now();
    policy_trouble(answer, console);
    if let Some(all) = answer.get("all") {
        console.line(format_args!("all limits: {}\n", override_text(all)));
    }
    let rows: Vec<Vec<String>> = list(answer, "limits")
        .iter()
        .map(|limit| {
            let unused =
                if limit["applied"] == false { "; no request yet since this server started" } else { "" };
            vec![cell(text(limit, "name")), mode(limit, now), format!("{}{unused}", meaning(limit))]
        })
        .collect();
    let compat = list(answer, "compat");
    if compat.is_empty() {
        lines(&["limit", "mode", "meaning"], &rows, &[], console);
    }
    for sentence in compat.iter().filter_map(Value::as_str) {
        console.line(format_args!("{}", cell(sentence)));
    }
    if let Some(more) = answer["left_off"].as_u64().filter(|more| *more > 0) {
        console.line(format_args!("and {more} more"));
    }
    let overload: Vec<Vec<String>> = list(answer, "overload")
        .iter()
        .map(|expiring| vec![text(expiring, "controller").to_owned(), override_text(expiring)])
        .collect();
    if !overload.is_empty() {
        console.line("");
        lines(&["overload", "override"], &overload, &[], console);
    }
    let blocks: Vec<Vec<String>> = list(answer, "blocks")
        .iter()
        .map(|block| vec![pairs(&block["attributes"]), text(block, "until").to_owned()])
        .collect();
    if !blocks.is_empty() {
        console.line("");
        lines(&["blocked", "until"], &blocks, &[], console);
    }
}

pub(super) fn audit(answer: &Value, console: &mut Console) {
    let mut titles = vec!["at", "who", "role", "verb", "about", "outcome"];
    if !list(answer, "nodes").is_empty() {
        titles.insert(1, "node");
    }
    let shown = |name: &str, entry: &Value| match name {
        "outcome" => plain(text(entry, name)),
        _ => cell(text(entry, name)),
    };
    let row = |entry: &Value| titles.iter().map(|name| shown(name, entry)).collect();
    let rows: Vec<Vec<String>> = list(answer, "entries").iter().map(row).collect();
    match rows.is_empty() {
        true => console.line("no operator has changed anything yet"),
        false => lines(&titles, &rows, &[], console),
    }
    nodes(answer, "the actions on", console);
}

/// Prints which nodes are part of a view, and which did not answer. Nothing for a view of one node.
pub(super) fn nodes(answer: &Value, what: &str, console: &mut Console) {
    let nodes = list(answer, "nodes");
    let (answered, silent): (Vec<&Value>, Vec<&Value>) =
        nodes.iter().partition(|node| node["answered"] == true);
    if nodes.is_empty() {
        return;
    }
    let names: Vec<String> = answered.iter().map(|node| plain(text(node, "name"))).collect();
    let count = if names.len() == 1 { "1 node".to_owned() } else { format!("{} nodes", names.len()) };
    console.line(format_args!("\n{what} {count}: {}", names.join(", ")));
    for node in silent {
        let line = format!("{} is missing: {}", text(node, "name"), text(node, "problem"));
        let line = console.painted(&plain(&line), Style::Bad);
        console.line(line);
    }
}

/// Prints what each node says about a request, if several were asked.
fn answers(answer: &Value, console: &mut Console) {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for reply in list(answer, "answers") {
        let (node, reply) = (cell(text(reply, "node")), &reply["answer"]);
        let passes = match reply["allowed"].as_bool() {
            Some(true) => "passes",
            Some(false) => "denied",
            None => "depends on its limit",
        };
        let of_limit = |limit: &Value| {
            let state = &limit["state"];
            format!("{} {} ({})", text(limit, "name"), left(state), text(state, "source"))
        };
        let applied = list(reply, "limits").iter().filter(|limit| limit["state"].is_object());
        let mut left: Vec<String> = applied.map(of_limit).collect();
        left.extend(reply["blocked"].as_str().map(str::to_owned));
        rows.push(vec![node, passes.to_owned(), plain(&left.join(", "))]);
    }
    if !rows.is_empty() {
        console.line("");
        lines(&["node", "such a request", "left"], &rows, &[], console);
    }
    nodes(answer, "the answers of", console);
}

/// Prints the nodes of a fleet.
pub(super) fn fleet(answer: &Value, console: &mut Console) {
    let row = |node: &Value| {
        let column = |name| cell(text(node, name));
        let state = if node["this"] == true { "this".to_owned() } else { column("state") };
        let admin = node["admin"].as_str().map_or_else(|| "none".to_owned(), cell);
        let policy = node["policy"].as_str().map_or_else(|| "-".to_owned(), cell);
        let clock = match node["clock_ms"].as_i64() {
            Some(ms) => clock_text(ms).unwrap_or_else(|| "in step".to_owned()),
            None => "-".to_owned(),
        };
        let (seen, version, started) = (column("last_seen"), column("version"), column("started"));
        vec![column("name"), state, seen, clock, version, policy, started, admin]
    };
    let rows: Vec<Vec<String>> = list(answer, "nodes").iter().map(row).collect();
    let titles = ["node", "state", "last seen", "clock", "version", "policy", "started", "admin"];
    lines(&titles, &rows, &["started", "last seen", "version", "clock", "policy"], console);
    let missed = |node: &&Value| matches!(text(node, "state"), "silent" | "lost");
    for node in list(answer, "nodes").iter().filter(missed) {
        let line = format!(
            "{} is {}: its last heartbeat was at {}; it hangs, was killed, or does not reach the store",
            text(node, "name"),
            text(node, "state"),
            text(node, "last_seen")
        );
        console.line(console.painted(&plain(&line), Style::Bad));
    }
    let nodes = list(answer, "nodes");
    let alone: Vec<&str> =
        nodes.iter().filter(|node| node["own_token"] == true).map(|node| text(node, "name")).collect();
    if nodes.len() > 1 && !alone.is_empty() {
        let line = format!(
            "no common token: made at its start by {}; views cannot show such a node together with others; give all nodes \
             the same TOLLGATE_ADMIN_TOKEN or --admin-tokens",
            alone.join(", ")
        );
        console.line(console.painted(&plain(&line), Style::Bad));
    }
    if let Some(problem) = answer["problem"].as_str() {
        let at = answer["listed_at"].as_str().map_or_else(String::new, |at| format!(" of {at}"));
        console.line(format_args!("the list{at} may be old: {}", plain(problem)));
    }
    match answer["unshared"].as_u64().unwrap_or_default() {
        0 => {}
        unshared => console.line(format_args!(
            "{unshared} of this node's blocks and overrides are not in the store yet; the other nodes do not have them"
        )),
    }
}
