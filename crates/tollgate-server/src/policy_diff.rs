//! `tollgate policy diff`: shows what a candidate policy would change, in sentences and in decisions. The decisions are
//! those of a trace, on a clock that follows the trace, or those of a running server that evaluates both policies for a
//! while.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::policy::{Difference, FILE_BYTES_MAX};
use tollgate::request::COST_MAX;
use tollgate::{Secret, Timestamp};

use crate::cli::DiffArguments;
use crate::console::Console;
use crate::control::admin::{changes, fields};
use crate::disk;
use crate::json_error;
use crate::operate::{Client, blocking, show_fields};
use crate::policy_file;
use crate::policy_file::Rules;
use crate::request_json::Named;
use crate::service::comparison::{Pair, Tallied, Tally, offline};
use crate::text::plain;
use crate::time_text::instant;
use crate::{FAILURE, SUCCESS, USAGE};

/// Maximum length of a line of a trace.
const LINE_BYTES_MAX: usize = 1 << 20;
/// How often the state of a comparison on a server is polled.
const POLL: Duration = Duration::from_millis(500);

/// Compares, and returns whether anything differs.
pub(crate) fn run(arguments: &DiffArguments, console: &mut Console) -> u8 {
    match (arguments.live, &arguments.files[..]) {
        (false, [old, new]) => match here(old, new, arguments, console) {
            Ok(status) => status,
            Err(problem) => {
                console.error(problem);
                USAGE
            }
        },
        (true, [new]) => blocking(console, async |console| live(new, arguments, console).await),
        (live, _) => {
            let accepted = if live {
                "policy diff NEW --live"
            } else {
                "policy diff OLD NEW, or policy diff NEW --live"
            };
            console.error(format_args!("accepted: {accepted}"));
            USAGE
        }
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
        Some(path) => {
            let mut trace = Trace::open(path)?;
            let start = trace.first.as_ref().map_or(Timestamp::default(), |(_, at)| *at);
            let (one, other) = Secret::twins();
            let pair = Pair::new(offline(old, one, start), offline(new, other, start), start);
            let tally = Tally::default();
            trace.replay(&pair, &tally)?;
            Some(tally.tallied())
        }
    };
    if arguments.server.json {
        report_json(&difference, tallied.as_ref(), console);
    } else {
        report_text(&difference, tallied.as_ref(), console);
    }
    let is_same = difference.is_empty() && tallied.is_none_or(|tallied| tallied.changed == 0);
    Ok(if is_same { SUCCESS } else { FAILURE })
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
        number("changed"),
        number("decisions"),
        number("newly_denied"),
        number("newly_allowed")
    ));
    for (limit, count) in tallied["by_limit"].as_object().into_iter().flatten() {
        console.line(format_args!("  {count} by {}", plain(limit)));
    }
}

/// Compares a candidate with the policy of a running server.
async fn live(new: &Path, arguments: &DiffArguments, console: &mut Console) -> Result<u8, String> {
    let client = Client::new(&arguments.server)?;
    let text = disk::read(new, FILE_BYTES_MAX as u64).map_err(|error| disk::unreadable(new, &error))?;
    if text.len() > FILE_BYTES_MAX {
        return Err(format!("{}: more than {FILE_BYTES_MAX} bytes", new.display()));
    }
    let query =
        arguments.lasting.map_or(String::new(), |lasting| format!("?for={}ms", lasting.ceil_millis()));
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
    if arguments.server.json {
        console.line(&answer);
    } else {
        show_fields(&answer["policy"], console);
        show_changes(&answer["changes"], answer["unchanged"].as_u64().unwrap_or_default(), console);
        if answer["decisions"].is_object() {
            show_decisions(&answer["decisions"], console);
        }
    }
    let is_some = |name: &str| answer[name].as_array().is_some_and(|changes| !changes.is_empty());
    let changes = is_some("policy") || is_some("changes");
    let decisions = answer["decisions"]["changed"].as_u64().is_some_and(|changed| changed > 0);
    Ok(if changes || decisions { FAILURE } else { SUCCESS })
}

/// The time of a request in a trace.
#[derive(Deserialize)]
#[serde(untagged)]
enum At {
    Millis(u64),
    Text(String),
}

/// One line of a trace.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceEntry<'l> {
    at: At,
    #[serde(borrow)]
    attributes: Named<'l>,
    cost: Option<u64>,
}

/// Requests in order of time.
struct Trace {
    name: String,
    reader: BufReader<File>,
    number: u64,
    /// The line that was read to find the start of the trace.
    first: Option<(Vec<u8>, Timestamp)>,
}

impl Trace {
    fn open(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| disk::unreadable(path, &error))?;
        let mut trace = Self { name, reader: BufReader::new(file), number: 0, first: None };
        if let Some(line) = trace.line()? {
            let at = trace.entry(&line)?.1;
            trace.first = Some((line, at));
        }
        Ok(trace)
    }

    /// Lets both policies decide about every request.
    fn replay(&mut self, pair: &Pair, tally: &Tally) -> Result<(), String> {
        let mut last = Timestamp::default();
        let mut next = self.first.take().map(|(line, _)| line);
        while let Some(line) = next {
            let (entry, now) = self.entry(&line)?;
            if now < last {
                return Err(self.wrong("at: earlier than the line before; sort the trace by time"));
            }
            let wrong = |error: tollgate::RequestError| self.wrong(&error.to_string());
            let request =
                entry.attributes.request().map_err(wrong)?.cost(entry.cost.unwrap_or(1)).map_err(wrong)?;
            pair.ask(&request, now, tally);
            last = now;
            next = self.line()?;
        }
        Ok(())
    }

    fn entry<'l>(&self, line: &'l [u8]) -> Result<(TraceEntry<'l>, Timestamp), String> {
        let accepted = r#"{"at": "2030-01-31T12:00:00Z", "attributes": {"api_key": "k1"}, "cost": 1}"#;
        let entry: TraceEntry<'l> = serde_json::from_slice(line)
            .map_err(|error| self.wrong(&json_error::explained(&error, &accepted)))?;
        let at = match &entry.at {
            At::Millis(millis) => Timestamp::from_unix_micros(millis.saturating_mul(1_000)),
            At::Text(text) => instant(text).map_err(|error| self.wrong(&format!("at: {error}")))?,
        };
        match entry.cost {
            Some(cost) if cost > COST_MAX => Err(self.wrong(&format!("cost: at most {COST_MAX}"))),
            _ => Ok((entry, at)),
        }
    }

    /// The next line that is not empty.
    fn line(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            let mut line = Vec::new();
            let bounded =
                std::io::Read::take(&mut self.reader, LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line);
            let read = bounded.map_err(|error| format!("{}: {}", self.name, disk::plain_cause(&error)))?;
            self.number += 1;
            if read == 0 {
                return Ok(None);
            }
            if line.len() > LINE_BYTES_MAX {
                return Err(self.wrong(&format!("more than {LINE_BYTES_MAX} bytes")));
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    fn wrong(&self, what: &str) -> String {
        format!("{}:{}: {what}", self.name, self.number)
    }
}
