//! `tollgate policy diff`: shows what a candidate policy would change, in sentences and in decisions. The decisions are
//! those of a trace, on a clock that follows the trace, or those of a running server that evaluates both policies for a
//! while, or for its requests of the last hour.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::policy::{Difference, FILE_BYTES_MAX};
use tollgate_sim::replay::{Comparison, Report, TouchedKey};

use crate::cli::DiffArguments;
use crate::console::Console;
use crate::control::admin::{changes, fields};
use crate::disk;
use crate::operate::{Client, blocking, show_fields};
use crate::policy_file;
use crate::policy_file::Rules;
use crate::replay;
use crate::service::comparison::{ChangedCount, ChangedKey, Tallied};
use crate::text::{grouped, plain};
use crate::{FAILURE, SUCCESS};

/// How often the state of a comparison on a server is polled.
const POLL: Duration = Duration::from_millis(500);

/// Compares, and returns whether anything differs.
///
/// # Errors
/// When the policies cannot be compared.
pub(crate) fn run(arguments: &DiffArguments, console: &mut Console) -> Result<u8, String> {
    match (arguments.live, &arguments.files[..]) {
        (false, [old, new]) => here(old, new, arguments, console),
        (true, [new]) => blocking(compare_with_server(new, arguments, console))?,
        (true, files) => Err(format!(
            "--live: {} files are given, and the policy of the server is the old one; accepted: policy diff NEW --live",
            files.len()
        )),
        (false, _) => Err("one file is given, and nothing to compare it with; accepted: policy diff OLD NEW, or policy diff \
                           NEW --live"
            .to_owned()),
    }
}

/// Compares two files, and the decisions about a trace.
fn here(old: &Path, new: &Path, arguments: &DiffArguments, console: &mut Console) -> Result<u8, String> {
    let load = |path: &Path| policy_file::load(Some(&path.to_owned())).map_err(|error| error.to_string());
    let native = |path: &Path| match load(path)?.rules {
        Rules::Native(policy) => Ok(policy),
        Rules::Compat(..) => Err(format!(
            "{}: a configuration of another program; `tollgate policy convert` makes a policy of it, which can be compared",
            path.display()
        )),
    };
    let (old, new) = (native(old)?, native(new)?);
    let difference = old.difference(&new);
    let tallied = match &arguments.trace {
        None => None,
        Some(path) => Some(tallied(&replay::compared(old, new, path, console)?)),
    };
    if arguments.server.json {
        report_json(&difference, tallied.as_ref(), console);
    } else {
        report_text(&difference, tallied.as_ref(), console);
    }
    let is_same = difference.is_empty() && tallied.is_none_or(|tallied| tallied.changed == 0);
    Ok(if is_same { SUCCESS } else { FAILURE })
}

/// The decisions that differ.
fn tallied(report: &Report) -> Tallied {
    let mut tallied = Tallied { decisions: report.totals.decisions, ..Tallied::default() };
    if let Some(Comparison { newly_denied, freed, .. }) = &report.against {
        (tallied.newly_denied, tallied.newly_allowed) = (newly_denied.requests, freed.requests);
        tallied.changed = newly_denied.requests + freed.requests;
        for (limit, count) in &newly_denied.by_limit {
            tallied.by_limit.entry(limit.clone()).or_default().newly_denied = *count;
        }
        for (limit, count) in &freed.by_limit {
            tallied.by_limit.entry(limit.clone()).or_default().newly_allowed = *count;
        }
        tallied.keys_changed = newly_denied.clients + freed.clients;
        let of_key =
            |key: &TouchedKey, count| ChangedKey { limit: key.limit.clone(), key: key.key.clone(), count };
        let denied = newly_denied
            .top
            .iter()
            .map(|key| of_key(key, ChangedCount { newly_denied: key.denied, newly_allowed: 0 }));
        let allowed = freed
            .top
            .iter()
            .map(|key| of_key(key, ChangedCount { newly_denied: 0, newly_allowed: key.denied }));
        tallied.keys = denied.chain(allowed).collect();
        tallied.keys.sort_by_key(|key| std::cmp::Reverse(key.count.sum()));
    }
    tallied
}

fn report_json(difference: &Difference, tallied: Option<&Tallied>, console: &mut Console) {
    let (policy, changes) = (json!(fields(&difference.fields)), json!(changes(difference)));
    let mut document = json!({ "policy": policy, "changes": changes, "unchanged": difference.unchanged });
    if let Some(tallied) = tallied {
        document["decisions"] = json!(tallied);
    }
    console.line(document);
}

fn report_text(difference: &Difference, tallied: Option<&Tallied>, console: &mut Console) {
    show_fields(&json!(fields(&difference.fields)), console);
    show_changes(&json!(changes(difference)), difference.unchanged as u64, console);
    if let Some(tallied) = tallied {
        show_decisions(&json!(tallied), console);
    }
}

fn show_changes(changes: &Value, unchanged: u64, console: &mut Console) {
    for change in changes.as_array().into_iter().flatten() {
        let text = |name: &str| plain(change[name].as_str().unwrap_or_default());
        let fields: Vec<&str> =
            change["fields"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let fields = if fields.is_empty() { String::new() } else { format!(": {}", fields.join(", ")) };
        console.line(format_args!("{} {}{fields}", text("change"), text("name")));
        for (mark, name) in [("-", "before"), ("+", "after")] {
            if change.get(name).is_some() {
                console.line(format_args!("  {mark} {}", text(name)));
            }
        }
    }
    console.line(format_args!("{unchanged} unchanged"));
}

fn show_decisions(tallied: &Value, console: &mut Console) {
    let number = |name: &str| tallied[name].as_u64().unwrap_or_default();
    console.line(format_args!(
        "\n{} of {} decisions change: {} newly denied, {} newly allowed",
        grouped(number("changed")),
        grouped(number("decisions")),
        grouped(number("newly_denied")),
        grouped(number("newly_allowed"))
    ));
    let counted = |count: &Value| {
        let part = |name: &str, words: &str| {
            count[name].as_u64().filter(|count| *count > 0).map(|count| format!("{} {words}", grouped(count)))
        };
        let parts = [part("newly_denied", "newly denied"), part("newly_allowed", "newly allowed")];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    };
    for (limit, count) in tallied["by_limit"].as_object().into_iter().flatten() {
        console.line(format_args!("  by {}: {}", plain(limit), counted(count)));
    }
    let keys = tallied["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
    let all = number("keys_changed");
    if all > 0 {
        let of_all =
            if all > keys.len() as u64 { format!(", the first of {}", grouped(all)) } else { String::new() };
        console.line(format_args!("keys most affected{of_all}:"));
    }
    for key in keys {
        let text = |name: &str| plain(key[name].as_str().unwrap_or_default());
        console.line(format_args!("  {} {}: {}", text("limit"), text("key"), counted(key)));
    }
}

/// Which requests of the last hour were compared.
fn show_past(decisions: &Value, console: &mut Console) {
    let text = |value: &Value| value.as_str().map(plain);
    if let (Some(from), Some(to)) = (text(&decisions["from"]), text(&decisions["to"])) {
        console.line(format_args!("\nrequests from {from} to {to}"));
    }
    for note in decisions["notes"].as_array().into_iter().flatten().filter_map(text) {
        console.line(format_args!("note: {note}"));
    }
}

/// Compares a candidate with the policy of a running server.
async fn compare_with_server(
    new: &Path,
    arguments: &DiffArguments,
    console: &mut Console,
) -> Result<u8, String> {
    let client = Client::new(&arguments.server)?;
    let text = disk::read(new, FILE_BYTES_MAX as u64).map_err(|error| disk::unreadable(new, &error))?;
    if text.len() > FILE_BYTES_MAX {
        return Err(format!("{}: more than {FILE_BYTES_MAX} bytes", new.display()));
    }
    let query = match (arguments.lasting, arguments.last) {
        (Some(lasting), _) => format!("?for={}ms", lasting.ceil_millis()),
        (None, Some(last)) => format!("?last={}ms&fleet=auto", last.ceil_millis()),
        (None, None) => String::new(),
    };
    let mut answer =
        client.send("POST", &format!("/admin/v1/policy/diff{query}"), text, "application/yaml").await?;
    if let Some(id) = answer["comparison"]["id"].as_str() {
        let path = format!("/admin/v1/policy/diff/{id}");
        let standing = loop {
            let standing = client.call("GET", &path, None).await?;
            if standing["running"] != true {
                break standing;
            }
            tokio::time::sleep(POLL).await;
        };
        answer["decisions"] = standing;
    }
    if let Some(notice) = client.notice() {
        console.warning(notice);
    }
    if arguments.server.json {
        console.line(&answer);
    } else {
        show_fields(&answer["policy"], console);
        show_changes(&answer["changes"], answer["unchanged"].as_u64().unwrap_or_default(), console);
        if arguments.last.is_some() {
            show_past(&answer["decisions"], console);
        }
        if answer["decisions"].is_object() {
            show_decisions(&answer["decisions"], console);
        } else {
            console.line(
                "only the texts of the policies were compared; --last 1h compares what they decide about the requests of the \
                 last hour, --for 10m those of the next ten minutes",
            );
        }
    }
    let is_some = |name: &str| answer[name].as_array().is_some_and(|changes| !changes.is_empty());
    let changes = is_some("policy") || is_some("changes");
    let decisions = answer["decisions"]["changed"].as_u64().is_some_and(|changed| changed > 0);
    Ok(if changes || decisions { FAILURE } else { SUCCESS })
}
