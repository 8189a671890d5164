//! Reads the logs of a suggestion. The attributes of a request are those that the server would see, by the same config,
//! and its key is the one that a limit would count by.

use tollgate::policy::By;
use tollgate::{CheckRequest, Policy, Ticks};
use tollgate_sim::log::{Entry, Precision, Reader as LogReader, Record};
use tollgate_sim::replay::{Describe, Undecidable};
use tollgate_sim::suggest::{KEYS_MAX, LoggedRequest, TrafficSummary};

use super::SEPARATOR;
use super::report::LogNotes;
use crate::cli::SuggestArguments;
use crate::console::Console;
use crate::identity::Identity;
use crate::replay::{self, LogAttributes, RECORDS_MAX, RequestReader, many};
use crate::text::plain;

/// How much later than its stamp of whole seconds a request may have come.
const SECOND: Ticks = Ticks::from_secs(1);

/// Reads the logs into the summary.
///
/// # Errors
/// When a log cannot be read, when no request has the attributes, or when there are too many keys.
pub(super) fn read(
    arguments: &SuggestArguments,
    summary: &mut TrafficSummary,
    console: &mut Console,
) -> Result<LogNotes, String> {
    let reader = replay::request_reader(arguments.config.as_deref())?;
    let policy = counting(&arguments.by, &Identity::of(&reader))?;
    let by = policy.limits().first().map_or(&[][..], |limit| limit.by());
    let live = RequestReader::new(reader, std::iter::once(&policy));
    let mut logs = replay::opened(&arguments.logs, &replay::mapping(&arguments.columns))?;
    let mut notes = LogNotes::default();
    let mut has = LogAttributes::default();
    let each = |record: &Record<'_>| {
        has.look(record);
        add(record, (&live, by), summary, &mut notes)
    };
    let lines = replay::read_all(&mut logs, each, console)?;
    if summary.keys() == 0 {
        return Err(match (notes.without_key, &notes.undecidable_example) {
            (0, Some(example)) => {
                format!(
                    "none of {} is a request that a server accepts:\n  {}",
                    many(lines, "line"),
                    plain(example)
                )
            }
            (0, None) => replay::no_requests(&logs, lines),
            (without, _) => missing(without, &arguments.by, &has),
        });
    }
    notes.sources = sources(&logs);
    notes.damage = replay::damage(&logs);
    replay::warn(&notes.damage, replay::unread(&logs, notes.undecidable)?, console);
    Ok(notes)
}

/// The problem with arguments without `--by`: the attributes that the first lines of the log have, and the command to try.
///
/// # Errors
/// When a log cannot be read, or its first lines are no requests.
pub(super) fn by_is_missing(arguments: &SuggestArguments) -> Result<String, String> {
    let mut logs = replay::opened(&arguments.logs, &replay::mapping(&arguments.columns))?;
    let (mut has, mut lines) = (LogAttributes::default(), 0);
    while lines < u64::from(RECORDS_MAX) {
        match logs.read().map_err(|error| error.to_string())? {
            Entry::Record(record) => has.look(&record),
            Entry::Bad => {}
            Entry::End => break,
        }
        lines += 1;
    }
    if logs.records() == 0 {
        return Err(replay::no_requests(&logs, lines));
    }
    let log = match arguments.logs.as_slice() {
        [one] => plain(&one.display().to_string()).to_string(),
        _ => "LOG".to_owned(),
    };
    let key = has.usual_key().unwrap_or_else(|| "--by NAME".to_owned());
    Ok(format!(
        "--by NAME is missing, the attribute that the limit counts by; the log has {}; try `tollgate suggest {key} {log}`",
        has.listed()
    ))
}

/// A policy that counts by these attributes, so that keys are those of a limit.
fn counting(by: &[String], identity: &Identity) -> Result<Policy, String> {
    // A list of JSON is one of YAML.
    let names = serde_json::to_string(by).map_err(|error| error.to_string())?;
    let text = format!("limits: [{{name: suggested, by: {names}, rate: 1/s}}]");
    let compiled = Policy::compile_for("--by", text.as_bytes(), identity.credentials());
    compiled.map_err(|findings| findings.to_string())
}

/// Adds a request of the log.
fn add(
    record: &Record<'_>,
    (live, by): (&RequestReader, &[By]),
    summary: &mut TrafficSummary,
    notes: &mut LogNotes,
) -> Result<(), String> {
    let found = match live.describe(record, |request| key(request, by).map(|key| (key, request.units()))) {
        Ok(found) => found,
        Err(Undecidable(reason)) => {
            notes.undecidable += 1;
            notes.undecidable_example.get_or_insert(reason);
            return Ok(());
        }
    };
    let Some((key, cost)) = found else {
        notes.without_key += 1;
        return Ok(());
    };
    notes.refused += u64::from(record.refused);
    let request = LoggedRequest {
        at: record.arrival,
        width: if record.precision == Precision::Second { SECOND } else { Ticks::ZERO },
        duration: record.duration.unwrap_or_default(),
        cost,
    };
    summary
        .add(&key, request)
        .map_err(|_| format!("more than {KEYS_MAX} keys; count by less, or give a part of the log"))
}

/// The key that a limit would count the request by; `None` if an attribute is missing.
fn key(request: &CheckRequest<'_>, by: &[By]) -> Option<String> {
    let mut key = String::new();
    for by in by {
        let given = request.attributes().iter().find(|given| given.name == by.name())?;
        key.push_str(&by.key_text(given.value));
        key.push(SEPARATOR);
    }
    Some(key)
}

fn missing(requests: u64, by: &[String], has: &LogAttributes) -> String {
    let first = by.first().map(String::as_str).unwrap_or_default();
    format!("none of {} has {}; {}", many(requests, "request"), by.join(" and "), has.cure(first))
}

/// The requests that were read, and the lines that could not be.
fn sources(logs: &LogReader) -> Vec<String> {
    let mut lines: Vec<String> = logs
        .files()
        .map(|file| {
            let format = file.detection.as_ref().map_or_else(|| "empty".to_owned(), ToString::to_string);
            format!("{}: {format}", plain(&file.name))
        })
        .collect();
    if logs.bad_lines() > 0 {
        let example = logs.examples().first().map_or_else(String::new, |bad| format!(", such as {bad}"));
        lines.push(format!("not requests: {}{example}", many(logs.bad_lines(), "line")));
    }
    lines
}
