//! `tollgate replay`: a log through a policy, from the files to the report. The crate `tollgate-sim` replays; here are
//! the config, the attributes, and the report as text, JSON and HTML.

use std::fs;
use std::path::{Path, PathBuf};

use ring::hmac;
use serde::Serialize;
use tollgate::policy::Limit;
use tollgate::{Clock, Policy, Ticks};
use tollgate_sim::log::{ArrivalWindow, Entry, FileReport, Mapping, Reader as LogReader, Record};
use tollgate_sim::replay::{
    Clients, InputFile, InputReport, MissingAttribute, Options, Replay, Report, TouchedKey, Unseen,
};
use tollgate_tower::attributes::Reader;

mod log_attributes;
mod request_reader;
mod text;
mod html;

pub(crate) use html::{PageTitle, SuggestedLimit, page};
pub(crate) use log_attributes::{LogAttributes, RECORDS_MAX};
pub(crate) use request_reader::RequestReader;
pub(crate) use text::{many, ranged, share};

use crate::cli::{ClientChoice, ColumnArguments, ReplayArguments};
use crate::config;
use crate::console::Console;
use crate::disk;
use crate::identity::Identity;
use crate::policy_file::{self, Rules};
use crate::text::{plain, unknown_name};
use crate::time_text::people;
use crate::{SUCCESS, USAGE};

/// How many lines are read between two looks at the clock.
const LOOK_EVERY: u64 = 16_384;
/// How often the progress is shown.
const SHOW_EVERY: Ticks = Ticks::from_millis(500);
/// Bytes of a key's hash that are shown.
const HASH_BYTES: usize = 8;
/// One line in so many may be no request: a public server is sent some garbage.
const UNREAD_PART: u64 = 4;
/// The name that stands for standard output.
const STANDARD_OUTPUT: &str = "-";

/// Replays, and writes the report.
pub(crate) fn run(arguments: &ReplayArguments, console: &mut Console) -> u8 {
    match carried_out(arguments, console) {
        Ok(()) => SUCCESS,
        Err(problem) => {
            console.end_progress();
            console.error(problem);
            USAGE
        }
    }
}

fn carried_out(arguments: &ReplayArguments, console: &mut Console) -> Result<(), String> {
    if arguments.against.is_some() && arguments.clients != ClientChoice::Gone {
        return Err("--against: accepted with --clients gone only, since a request that comes back under one policy has no \
                    partner under the other"
            .to_owned());
    }
    let reader = request_reader(arguments.config.as_deref())?;
    let credentials = Identity::of(&reader);
    let load = |path: &Path| native(path, &credentials);
    let policy = load(&arguments.policy)?;
    let against = arguments.against.as_deref().map(load).transpose()?;
    known_limits(&arguments.without, &policy, against.as_ref())?;
    let live = RequestReader::new(reader, std::iter::once(&policy).chain(&against));
    let mut logs = opened(&arguments.logs, &mapping(&arguments.columns))?;
    let options = Options {
        clients: clients(arguments.clients),
        without: arguments.without.clone(),
        unseen: Unseen::Refuse,
        precision: logs.precision(),
    };
    let sentences: Vec<String> = policy.limits().iter().map(Limit::sentence_without_keys).collect();
    let replay = Replay::new(policy, against, options, live);
    let mut report = replayed(replay, &mut logs, console)?;
    warn(&report.input.damage, unread(&logs, report.input.undecidable)?, console);
    if arguments.hash_keys {
        hash_keys(&mut report, sentences)?;
    }
    written(&report, arguments, console)
}

/// The report of logs replayed through a policy.
pub(crate) fn report_of(
    policy: Policy,
    logs: &[PathBuf],
    config: Option<&Path>,
    columns: &ColumnArguments,
    console: &mut Console,
) -> Result<Report, String> {
    let live = RequestReader::new(request_reader(config)?, std::iter::once(&policy));
    let mut logs = opened(logs, &mapping(columns))?;
    let options = Options { precision: logs.precision(), ..Options::default() };
    replayed(Replay::new(policy, None, options, live), &mut logs, console)
}

/// Replays a trace through two policies, for `policy diff`. Every line must be a request.
pub(crate) fn compared(
    old: Policy,
    new: Policy,
    trace: &Path,
    console: &mut Console,
) -> Result<Report, String> {
    let live = RequestReader::new(Reader::default(), [&old, &new].into_iter());
    let mut logs = opened(&[trace.to_owned()], &Mapping::default())?;
    let options = Options { unseen: Unseen::Accept, precision: logs.precision(), ..Options::default() };
    let report = replayed(Replay::new(old, Some(new), options, live), &mut logs, console)?;
    let input = &report.input;
    let mut bad = input.damage.iter().chain(&input.bad_examples).chain(&input.undecidable_examples);
    match bad.next() {
        None => Ok(report),
        Some(example) => Err(example.clone()),
    }
}

/// Opens logs, and finds their formats.
pub(crate) fn opened(logs: &[PathBuf], mapping: &Mapping) -> Result<LogReader, String> {
    LogReader::open(logs, mapping).map_err(|error| error.to_string())
}

/// How the server reads requests.
pub(crate) fn request_reader(path: Option<&Path>) -> Result<Reader, String> {
    let mut config = config::load(path, &[])?;
    config.open_reader(Clock::precise().now())?;
    Ok(config.reader)
}

/// A policy of our own format.
pub(crate) fn native(path: &Path, identity: &Identity) -> Result<Policy, String> {
    let loaded = policy_file::load_for(Some(&path.to_owned()), identity.credentials());
    match loaded.map_err(|error| error.to_string())?.rules {
        Rules::Native(policy) => Ok(policy),
        Rules::Compat(..) => Err(format!(
            "{}: a configuration of another program; `tollgate policy convert` makes a policy of it, which can be replayed",
            path.display()
        )),
    }
}

/// Refuses limits that no policy has.
fn known_limits(names: &[String], policy: &Policy, against: Option<&Policy>) -> Result<(), String> {
    let limits = || policy.limits().iter().chain(against.into_iter().flat_map(Policy::limits));
    for name in names {
        if !limits().any(|limit| limit.name() == name) {
            let known: Vec<&str> = limits().map(Limit::name).collect();
            return Err(unknown_name(&format!("--without: no policy has a limit {name:?}"), name, &known));
        }
    }
    Ok(())
}

const fn clients(choice: ClientChoice) -> Clients {
    match choice {
        ClientChoice::Gone => Clients::Gone,
        ClientChoice::Retry => Clients::Retry,
        ClientChoice::Obey => Clients::Obey,
    }
}

pub(crate) fn mapping(columns: &ColumnArguments) -> Mapping {
    let ColumnArguments { time, keys, cost, status } = columns;
    let named =
        Mapping { time: time.clone(), cost: cost.clone(), status: status.clone(), ..Mapping::default() };
    keys.iter().fold(named, |mapping, key| mapping.with_key(key))
}

/// Reads the logs to their end.
fn replayed(
    mut replay: Replay<RequestReader>,
    logs: &mut LogReader,
    console: &mut Console,
) -> Result<Report, String> {
    let mut has = LogAttributes::default();
    let push = |record: &Record<'_>| {
        has.look(record);
        replay.push(record).map_err(|missing| explained(&missing, &has))
    };
    let lines = read_all(logs, push, console)?;
    let input = input(logs, lines);
    if replay.records() == 0 {
        return Err(no_requests(logs, lines));
    }
    let report = replay.finish(input).map_err(|missing| explained(&missing, &has))?;
    if report.totals.requests == 0 {
        let examples: String = report
            .input
            .undecidable_examples
            .iter()
            .map(|example| format!("\n  {}", plain(example)))
            .collect();
        return Err(format!("none of {} is a request that a server accepts:{examples}", many(lines, "line")));
    }
    unread(logs, report.input.undecidable)?;
    in_order(report.input.late, report.totals.requests, report.input.reorder_window_ms)?;
    Ok(report)
}

/// Reads logs to their end, and shows how far it is. Returns the number of lines.
pub(crate) fn read_all(
    logs: &mut LogReader,
    mut each: impl FnMut(&Record<'_>) -> Result<(), String>,
    console: &mut Console,
) -> Result<u64, String> {
    let clock = Clock::precise();
    let (start, mut shown, mut lines) = (clock.now(), clock.now(), 0u64);
    loop {
        match logs.read().map_err(|error| error.to_string())? {
            Entry::Record(record) => each(&record)?,
            Entry::Bad => {}
            Entry::End => break,
        }
        lines += 1;
        if lines.is_multiple_of(LOOK_EVERY) && clock.now().since(shown) >= SHOW_EVERY {
            shown = clock.now();
            console.progress(progress(logs, lines, shown.since(start)));
        }
    }
    console.end_progress();
    Ok(lines)
}

/// The reason why logs with so many lines have no request.
pub(crate) fn no_requests(logs: &LogReader, lines: u64) -> String {
    let damage = damage(logs);
    let examples = logs.examples().iter().map(ToString::to_string);
    let listed: String = damage.iter().cloned().chain(examples).map(|line| format!("\n  {line}")).collect();
    match (lines, damage.is_empty()) {
        (0, true) => "the log is empty: give one that has requests".to_owned(),
        (0, false) => format!("the log is damaged, and has no requests before that:{listed}"),
        (lines, _) => format!("no requests in {}{listed}", many(lines, "line")),
    }
}

/// A warning about lines that are no requests: those that could not be read, and those that no server accepts.
///
/// # Errors
/// More than one line in [`UNREAD_PART`] is none, so the log is not what it was taken for.
pub(crate) fn unread(logs: &LogReader, undecidable: u64) -> Result<Option<String>, String> {
    let (lines, unread) = (logs.records() + logs.bad_lines(), logs.bad_lines() + undecidable);
    if unread.saturating_mul(UNREAD_PART) > lines {
        let examples: String = logs.examples().iter().map(|example| format!("\n  {example}")).collect();
        return Err(format!(
            "{unread} of {lines} lines are no requests, so a report of the others would mislead; give a log with at most a \
             quarter of such lines, and each format as its own file{examples}"
        ));
    }
    Ok((unread > 0)
        .then(|| format!("{unread} of {lines} lines are no requests, and are left out of the report")))
}

/// Warns of a log that is not whole.
pub(crate) fn warn(damage: &[String], unread: Option<String>, console: &mut Console) {
    damage.iter().cloned().chain(unread).for_each(|warning| console.warning(warning));
}

/// Refuses a log whose lines are not in the order of time: its requests would be counted at instants at which they did not
/// come.
pub(crate) fn in_order(late: u64, requests: u64, window_ms: u64) -> Result<(), String> {
    if !ArrivalWindow::is_unordered(late, requests) {
        return Ok(());
    }
    Err(format!(
        "{late} of {requests} requests are in the log more than {} after later ones: it is not in the order of time, so no \
         count would be right; sort it by time, or turn it round with `tac` if it begins with the newest",
        people(window_ms)
    ))
}

/// The files that ended early, each with the reason.
pub(crate) fn damage(logs: &LogReader) -> Vec<String> {
    let damaged = |file: &FileReport| {
        let damage = plain(file.damage.as_ref()?);
        Some(format!("{}: {damage}", plain(&file.name)))
    };
    logs.files().filter_map(damaged).collect()
}

/// How far the reading is, and how long the rest takes if it goes on like this.
fn progress(logs: &LogReader, lines: u64, elapsed: Ticks) -> String {
    let progress = logs.progress();
    let Some(total) = progress.total.filter(|total| *total > 0 && progress.read > 0) else {
        return format!("{lines} lines");
    };
    let left = u128::from(elapsed.ceil_millis()) * u128::from(total.saturating_sub(progress.read))
        / u128::from(progress.read);
    let percent = u128::from(progress.read) * 100 / u128::from(total);
    format!("{lines} lines, {percent} %, about {} left", people(u64::try_from(left).unwrap_or(u64::MAX)))
}

/// The settings of the reader of the files.
fn input(logs: &LogReader, lines: u64) -> InputReport {
    let file = |file: &FileReport| InputFile {
        name: file.name.clone(),
        format: file.detection.as_ref().map_or_else(|| "empty".to_owned(), ToString::to_string),
        lines: file.records + file.bad,
    };
    InputReport {
        files: logs.files().map(file).collect(),
        lines,
        damage: damage(logs),
        bad_lines: logs.bad_lines(),
        bad_examples: logs.examples().iter().map(ToString::to_string).collect(),
        ..InputReport::default()
    }
}

/// Advice about an attribute that the log does not have.
fn explained(missing: &MissingAttribute, has: &LogAttributes) -> String {
    let MissingAttribute { limit, attribute, is_key, requests } = missing;
    let needs = if *is_key { "counts by" } else { "computes the cost from" };
    format!(
        "limit {limit} {needs} {attribute}, which none of {} of the log has; {}; or leave the limit out with --without \
         {limit}",
        many(*requests, "request"),
        has.cure(attribute)
    )
}

/// Replaces the text of keys by hashes under a key that is not kept, and the sentences of limits by those without keys.
fn hash_keys(report: &mut Report, sentences: Vec<String>) -> Result<(), String> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| format!("the system gives no random bytes: {error}"))?;
    let secret = hmac::Key::new(hmac::HMAC_SHA256, &secret);
    let hash = |key: &mut TouchedKey| {
        key.user_agent = key.user_agent.as_deref().map(without_addresses);
        let tag = hmac::sign(&secret, key.key.as_bytes());
        key.key = tag.as_ref().iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    };
    report.top.iter_mut().for_each(hash);
    report.limits.iter_mut().filter_map(|limit| limit.worst_key.as_mut()).for_each(hash);
    if let Some(against) = &mut report.against {
        against.newly_denied.top.iter_mut().chain(&mut against.freed.top).for_each(hash);
    }
    for (limit, sentence) in report.limits.iter_mut().zip(sentences) {
        limit.sentence = sentence;
    }
    // An example may have any key in it.
    report.input.bad_examples.clear();
    report.input.undecidable_examples.clear();
    Ok(())
}

/// A user agent with `*` for each mail address.
fn without_addresses(agent: &str) -> String {
    let is_address = |word: &str| word.contains('@') || word.contains("%40");
    let words = agent.split(' ').map(|word| if is_address(word) { "*" } else { word });
    words.collect::<Vec<&str>>().join(" ")
}

/// The report with the names of its files.
#[derive(Serialize)]
struct NamedReport<'r> {
    policy: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    against_policy: Option<&'r str>,
    #[serde(flatten)]
    report: &'r Report,
}

/// Writes the report wherever it is wanted.
fn written(report: &Report, arguments: &ReplayArguments, console: &mut Console) -> Result<(), String> {
    let policy = arguments.policy.display().to_string();
    let against = arguments.against.as_ref().map(|path| path.display().to_string());
    let named = NamedReport { policy: &policy, against_policy: against.as_deref(), report };
    let json = || serde_json::to_string_pretty(&named).map_err(|error| error.to_string());
    // The report is shown before a file fails to be written, so that no long replay is in vain.
    let json_file = arguments.json.as_ref().filter(|path| path.as_os_str() != STANDARD_OUTPUT);
    let shows_text = arguments.json.is_none() || json_file.is_some();
    if shows_text {
        text::show(report, (&policy, against.as_deref()), console);
    } else {
        console.line(json()?);
    }
    if let Some(path) = &arguments.html {
        let title = PageTitle { policy: &policy, against: against.as_deref(), suggested: None };
        save(path, &page(report, &title))?;
    }
    if let Some(path) = json_file {
        save(path, &(json()? + "\n"))?;
    }
    for path in arguments.html.iter().chain(json_file).filter(|_| shows_text) {
        console.line(format_args!("written: {}", path.display()));
    }
    Ok(())
}

pub(crate) fn save(path: &Path, content: &str) -> Result<(), String> {
    fs::write(path, content).map_err(|error| {
        let (reason, _) = disk::refusal(&error);
        format!("{}: {reason}; name a file that can be written", path.display())
    })
}
