//! `tollgate callers`: adds, lists and removes callers of a file. Credentials are written as their SHA-256 and never
//! shown. Every other line stays unchanged, including comments. A file is replaced as a whole or not at all.

use std::fs;
use std::io::{BufRead, Write};
use std::path::Path;

use tollgate::{CredentialDigest, Value};
use tollgate_tower::attributes::callers::{
    CALLERS_MAX, CallerEntry, attribute_problem, credential_problem, entries,
};

use crate::callers::read;
use crate::cli::{CallersCommand, GivenAttribute, ListCallersArguments};
use crate::console::Console;
use crate::disk::{self, DiskError};
use crate::{FAILURE, SUCCESS};

/// The beginning of a new file.
const HEAD: &str = "# Known callers: each credential, as its SHA-256, and the attributes of its caller. `tollgate callers` edits this file.
callers:
";

/// Runs one of the commands, and returns its exit status.
///
/// # Errors
/// When the file or an argument cannot be used.
pub(crate) fn run(command: &CallersCommand, console: &mut Console) -> Result<u8, String> {
    let Edited { lines, status } = match command {
        CallersCommand::Add(add) => {
            secret(add.credential.as_deref()).and_then(|secret| added(&add.file, &secret, &add.attributes))
        }
        CallersCommand::Remove(remove) => {
            secret(remove.credential.as_deref()).and_then(|secret| removed(&remove.file, &secret))
        }
        CallersCommand::List(list) => listed(list),
    }?;
    lines.iter().for_each(|line| console.line(line));
    Ok(status)
}

struct Edited {
    lines: Vec<String>,
    status: u8,
}

impl Edited {
    fn one_line(line: String, status: u8) -> Self {
        Self { lines: vec![line], status }
    }
}

/// The given credential, or the first line of standard input.
fn secret(given: Option<&str>) -> Result<String, String> {
    let text = match given {
        Some(text) if text != "-" => text.to_owned(),
        _ => {
            let mut line = String::new();
            let read = std::io::stdin().lock().read_line(&mut line);
            read.map_err(|error| format!("standard input: {}", disk::plain_cause(&error)))?;
            line.trim_end_matches(['\r', '\n']).to_owned()
        }
    };
    if text.is_empty() {
        Err("no credential; name one, or write it to standard input".to_owned())
    } else {
        Ok(text)
    }
}

/// The text and the entries of a file. Both are empty if there is no file.
fn opened(path: &Path) -> Result<(String, Vec<CallerEntry>), String> {
    if !path.exists() {
        return Ok((HEAD.to_owned(), Vec::new()));
    }
    let bytes = read(path)?;
    let found = entries(&path.display().to_string(), &bytes).map_err(|findings| findings.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{}: not UTF-8", path.display()))?;
    Ok((text, found))
}

/// All hexadecimal digits of a credential's SHA-256. For a digest, the digits it has.
fn digits(secret: &str) -> String {
    match CredentialDigest::parse(secret) {
        Some(_) => secret.trim_start_matches("sha256:").to_ascii_lowercase(),
        None => {
            let hashed = CredentialDigest::hashed_part(secret);
            let digest = ring::digest::digest(&ring::digest::SHA256, hashed.as_bytes());
            digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
        }
    }
}

fn added(path: &Path, secret: &str, attributes: &[GivenAttribute]) -> Result<Edited, String> {
    if let Some(problem) = credential_problem(secret) {
        return Err(format!("the credential {problem}"));
    }
    let (mut text, found) = opened(path)?;
    let digest = CredentialDigest::of_value(secret);
    if let Some(known) = found.iter().find(|entry| entry.digest == digest) {
        let place = format!("{}:{}", path.display(), known.line);
        return Ok(Edited::one_line(
            format!("{digest} is known already: {place}; remove it first to change it"),
            FAILURE,
        ));
    }
    if found.len() >= CALLERS_MAX {
        return Err(format!(
            "{}: has {CALLERS_MAX} callers, which is all that a file may have",
            path.display()
        ));
    }
    let mut fields = vec![format!("sha256: {}", digits(secret))];
    for (index, attribute) in attributes.iter().enumerate() {
        if attributes.iter().take(index).any(|before| before.name == attribute.name) {
            return Err(format!("{} is given twice; name each attribute once", attribute.name));
        }
        let value = Value::from(&attribute.value).to_string();
        if let Some(problem) = attribute_problem(&attribute.name, &value) {
            return Err(format!("{}: {problem}", attribute.name));
        }
        fields.push(format!("{}: {}", quoted(&attribute.name), quoted(&value)));
    }
    text = appended(&text, &found, &format!("- {{{}}}", fields.join(", "))).ok_or_else(|| {
        format!("{}: its list is not one caller to a line at the end; add the caller by hand", path.display())
    })?;
    written(path, &text, found.len() + 1)?;
    Ok(Edited::one_line(format!("{digest} added; {} known", counted(found.len() + 1)), SUCCESS))
}

/// The text with one more entry after the last.
fn appended(text: &str, found: &[CallerEntry], entry: &str) -> Option<String> {
    let mut text = text.to_owned();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let indent = match found.last() {
        Some(last) => {
            let line = text.lines().nth(usize::try_from(last.line).ok()?.checked_sub(1)?)?;
            let dash = line.find('-')?;
            line.get(..dash).filter(|before| before.chars().all(|c| c == ' '))?.to_owned()
        }
        // An empty list in brackets is replaced by a list in lines.
        None => {
            text = text.replace("callers: []", "callers:");
            "  ".to_owned()
        }
    };
    Some(format!("{text}{indent}{entry}\n"))
}

fn removed(path: &Path, secret: &str) -> Result<Edited, String> {
    let (text, found) = opened(path)?;
    let digest = CredentialDigest::of_value(secret);
    let Some(place) = found.iter().position(|entry| entry.digest == digest) else {
        return Ok(Edited::one_line(
            format!("{digest} is not in {}; nothing was removed", path.display()),
            FAILURE,
        ));
    };
    let lines: Vec<&str> = text.lines().collect();
    let start =
        found.get(place).and_then(|entry| usize::try_from(entry.line).ok()).unwrap_or(1).saturating_sub(1);
    let next = found.get(place + 1).and_then(|entry| usize::try_from(entry.line).ok());
    // An entry continues while lines are indented deeper than its dash. Later lines belong to the next entry, or to
    // none.
    let dash = lines.get(start).and_then(|line| line.find('-')).unwrap_or(0);
    let is_inside = |line: &&&str| {
        line.len() > dash + 1 && line.get(..=dash).is_some_and(|before| before.trim().is_empty())
    };
    let end = start + 1 + lines.iter().skip(start + 1).take_while(is_inside).count();
    let end = next.map_or(end, |next| end.min(next.saturating_sub(1)));
    let kept: Vec<&str> = lines
        .iter()
        .enumerate()
        .filter(|(line, _)| !(start..end).contains(line))
        .map(|(_, line)| *line)
        .collect();
    let text = kept.join("\n") + "\n";
    let left = entries("", text.as_bytes()).map_err(|_| ()).unwrap_or_default();
    let is_right = left.len() + 1 == found.len() && left.iter().all(|entry| entry.digest != digest);
    if !is_right {
        let line = start + 1;
        return Err(format!(
            "{}:{line}: the caller does not stand on lines of its own; remove it by hand",
            path.display()
        ));
    }
    written(path, &text, left.len())?;
    Ok(Edited::one_line(format!("{digest} removed; {} known", counted(left.len())), SUCCESS))
}

fn listed(arguments: &ListCallersArguments) -> Result<Edited, String> {
    let path = &arguments.file;
    let bytes = read(path)?;
    let found = entries(&path.display().to_string(), &bytes).map_err(|findings| findings.to_string())?;
    if arguments.json {
        let one = |entry: &CallerEntry| {
            let attributes: serde_json::Map<String, serde_json::Value> =
                entry.caller.attributes().map(|(name, value)| (name.to_owned(), value.into())).collect();
            serde_json::json!({ "digest": entry.digest.to_string(), "attributes": attributes })
        };
        let callers: Vec<serde_json::Value> = found.iter().map(one).collect();
        return Ok(Edited::one_line(serde_json::json!({ "callers": callers }).to_string(), SUCCESS));
    }
    let line = |entry: &CallerEntry| {
        let attributes: Vec<String> =
            entry.caller.attributes().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{}  {}", entry.digest, attributes.join(" ")).trim_end().to_owned()
    };
    let mut lines: Vec<String> = found.iter().map(line).collect();
    lines.push(format!("{} known", counted(found.len())));
    Ok(Edited { lines, status: SUCCESS })
}

fn counted(number: usize) -> String {
    if number == 1 { "1 caller".to_owned() } else { format!("{number} callers") }
}

/// Quotes a text so that YAML reads it as that text.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '@');
    let begins_plainly = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    let is_word = !matches!(
        text.to_ascii_lowercase().as_str(),
        "null" | "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n"
    );
    if begins_plainly && is_word && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "''"))
    }
}

/// Replaces the file, if the new text parses to this number of callers.
fn written(path: &Path, text: &str, callers: usize) -> Result<(), String> {
    let name = path.display();
    let read = entries(&name.to_string(), text.as_bytes()).map_err(|findings| findings.to_string());
    if read.map(|read| read.len()) != Ok(callers) {
        return Err(format!("{name}: its list is not one caller to a line; edit it by hand"));
    }
    // A symbolic link is followed, so that it stays one.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let permissions = fs::metadata(&target).ok().map(|found| found.permissions());
    let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = target
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| format!("{name}: no name of a file"))?;
    let replaced = disk::replace(directory, file, |file| {
        file.write_all(text.as_bytes()).map_err(DiskError::at("writing"))
    });
    replaced.map_err(|error| format!("{name}: {error}"))?;
    match permissions.map(|permissions| fs::set_permissions(&target, permissions)) {
        Some(Err(error)) => {
            let cause = disk::plain_cause(&error);
            Err(format!("{name}: written, but its permissions are not what they were: {cause}"))
        }
        _ => Ok(()),
    }
}
