//! Writes rules of other programs as a policy: one limit for each rule that can be expressed, with a note on what means
//! something else here and on what is now possible, and a comment instead of each rule that cannot. The text compiles.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write;
use std::slice;

use tollgate::policy::source::{Comparison, comparison, explained, must_be_declared, must_be_text};
use tollgate::policy::{Expression, LIMIT_NAME_BYTES_MAX, Negation, Policy, Severity};

/// One limit of a policy, or the reason why there is none.
pub(crate) struct Converted {
    /// Its name, which is made unique when it is written.
    pub(crate) name: String,
    /// The original rule, in its own words.
    pub(crate) origin: String,
    pub(crate) limit: Result<Native, String>,
    /// Whether the original rule refuses requests. Without a limit they would pass here.
    pub(crate) refuses: bool,
    /// Fields that have another meaning here.
    pub(crate) changes: Vec<String>,
    /// Abilities of the limit that the original lacks.
    pub(crate) possible: Option<&'static str>,
}

/// The rules of a domain, before they are written.
pub(crate) struct ConvertedDomain {
    pub(crate) limits: Vec<Converted>,
    /// The fields of all limits, as `defaults` of the policy has them; empty for none.
    pub(crate) defaults: &'static str,
    /// Differences in meaning that concern all limits.
    pub(crate) changes: Vec<String>,
    /// Differences in meaning where there are several limits.
    pub(crate) together: Option<&'static str>,
    /// The requests that the limits are made for, if others need an edit.
    pub(crate) made_for: Option<&'static str>,
}

/// The text of a policy, what changed in meaning, and the rules that it lacks.
#[derive(Debug)]
#[non_exhaustive]
pub struct Conversion {
    /// The policy file. It compiles.
    pub text: String,
    /// The number of limits in it.
    pub limits: usize,
    /// Differences in meaning, each with its rule. The comments of the text list them too.
    pub changes: Vec<String>,
    /// Each rule whose refusals no limit replaces, and why.
    pub lost: Vec<String>,
    /// The requests that the limits are made for, and what to edit for others. A comment of the text has it too.
    pub made_for: Option<&'static str>,
}

/// The fields of a limit.
#[derive(Default)]
pub(crate) struct Native {
    pub(crate) when: When,
    pub(crate) by: Vec<String>,
    pub(crate) rate: String,
    /// Where its windows begin; `None` where nothing is counted, or `defaults` says it.
    pub(crate) align: Option<&'static str>,
    pub(crate) is_shadow: bool,
}

/// The condition of a limit.
pub(crate) enum When {
    /// Conditions in CEL, all of which must hold; empty for always.
    Cel(Vec<String>),
    /// A condition for each attribute.
    Table(Vec<AttributeCondition>),
}

impl Default for When {
    fn default() -> Self {
        When::Cel(Vec::new())
    }
}

/// The values that one attribute must have, or must not have.
pub(crate) struct AttributeCondition {
    pub(crate) name: String,
    pub(crate) sense: Negation,
    pub(crate) values: Vec<String>,
}

impl When {
    /// The condition as one expression; empty for always, and for a table.
    fn cel(&self) -> String {
        match self {
            When::Cel(parts) => parts.join(AND),
            When::Table(_) => String::new(),
        }
    }

    /// The attributes that it names.
    fn names(&self) -> Vec<String> {
        match self {
            When::Table(conditions) => conditions.iter().map(|one| one.name.clone()).collect(),
            When::Cel(_) => Expression::new(&self.cel())
                .map(|expression| expression.attributes().map(str::to_owned).collect())
                .unwrap_or_default(),
        }
    }
}

/// The abilities of a limit that a fixed window lacks.
pub(crate) const WINDOWS: &str = "`algorithm: sliding-window` never admits more than the rate in any period, where a fixed window admits up to twice \
     as much around its edge; the default, a token bucket, admits a burst and then a steady rate";

/// Between conditions that must all hold.
pub(crate) const AND: &str = " && ";

/// Writes the rules of a domain as the text of a policy file. `format` is the name of the original's format.
pub(crate) fn policy(domain: &str, format: &str, mut converted: ConvertedDomain) -> Conversion {
    let made_for = converted.made_for.filter(|_| converted.limits.iter().any(|limit| limit.limit.is_ok()));
    let header = Header { domain, format, defaults: converted.defaults, made_for };
    leave_out_wrong(&header, &mut converted.limits);
    let ConvertedDomain { limits, mut changes, together, .. } = converted;
    let lost = limits.iter().filter(|limit| limit.refuses).filter_map(lost).collect();
    let written = || limits.iter().filter(|limit| limit.limit.is_ok());
    match written().count() {
        0 => changes.clear(),
        1 => {}
        _ => changes.extend(together.map(str::to_owned)),
    }
    changes.extend(spelling_changes(&limits));
    let general = changes.as_slice();
    let mut changes: Vec<String> = general.iter().map(|change| format!("every limit: {change}")).collect();
    for limit in written() {
        let origin = comment(&limit.origin);
        changes.extend(limit.changes.iter().map(|change| format!("{origin}: {}", comment(change))));
    }
    let text = text(&header, general, &limits);
    Conversion { text, limits: written().count(), changes, lost, made_for }
}

/// Leaves out each limit that does not compile, with the reason, so that the others can still be written. That is rare,
/// so the limits are compiled one by one only if all of them together do not compile.
fn leave_out_wrong(header: &Header<'_>, limits: &mut [Converted]) {
    if problem(&text(header, &[], limits)).is_none() {
        return;
    }
    for converted in limits.iter_mut().filter(|converted| converted.limit.is_ok()) {
        if let Some(why) = problem(&text(header, &[], slice::from_ref(converted))) {
            converted.limit = Err(why);
        }
    }
}

/// The attributes whose values a policy compares by more than their text, as no original does.
fn spelling_changes(limits: &[Converted]) -> Vec<String> {
    let natives = || limits.iter().filter_map(|converted| converted.limit.as_ref().ok());
    let texts = texts(limits);
    let compared: BTreeSet<String> = natives().flat_map(|native| native.when.names()).collect();
    let counted: BTreeSet<String> = natives().flat_map(|native| native.by.iter().cloned()).collect();
    let names = compared.union(&counted).filter(|name| !texts.contains(*name));
    let change = |name: &String| {
        match comparison(name)? {
        Comparison::Address => Some(format!(
            "all spellings of an address in {name} count alike, and an IPv6 address by its /64; \
             `attributes: [{{{name}: text}}]` counts the texts"
        )),
        Comparison::Other => compared.contains(name).then(|| {
            format!(
                "a condition on {name} holds for other spellings, too; `attributes: [{{{name}: text}}]` compares the texts"
            )
        }),
    }
    };
    names.filter_map(change).collect()
}

/// Why a text is not a valid policy.
pub(crate) fn problem(text: &str) -> Option<String> {
    let findings = Policy::compile("the converted policy", text.as_bytes()).err()?;
    let error = findings.iter().find(|finding| finding.severity == Severity::Error)?;
    Some(format!("a policy refuses it: {}", explained(&error.message, &error.accepted)))
}

fn lost(converted: &Converted) -> Option<String> {
    let why = converted.limit.as_ref().err()?;
    Some(format!("{}: {}", comment(&converted.origin), comment(why)))
}

/// The beginning of a file.
struct Header<'h> {
    domain: &'h str,
    format: &'h str,
    defaults: &'static str,
    made_for: Option<&'static str>,
}

fn text(header: &Header<'_>, changes: &[String], limits: &[Converted]) -> String {
    let Header { domain, format, defaults, made_for } = header;
    let mut text = format!(
        "# Converted from {format}. The counters start anew. CHANGED says what means something else here,\n\
         # `now possible` what a limit could do better.\n"
    );
    if let Some(made_for) = made_for {
        let _ = writeln!(text, "# {made_for}");
    }
    for change in changes {
        let _ = writeln!(text, "# CHANGED for every limit: {}", comment(change));
    }
    let written = || limits.iter().filter(|limit| limit.limit.is_ok());
    let possible: BTreeSet<&str> = written().filter_map(|limit| limit.possible).collect();
    for possible in possible {
        let _ = writeln!(text, "# now possible: {possible}");
    }
    let _ = writeln!(text, "domain: {}", plain(domain));
    text.push_str(&declared(limits));
    if !defaults.is_empty() && written().next().is_some() {
        let _ = writeln!(text, "defaults: {{ {defaults} }}");
    }
    text.push_str("limits:");
    let mut names = HashSet::new();
    if written().next().is_none() {
        text.push_str(" []");
    }
    text.push('\n');
    for converted in limits {
        let _ = writeln!(text, "\n  # {}", comment(&converted.origin));
        let native = match &converted.limit {
            Err(why) => {
                let note =
                    if converted.refuses { "NOT CONVERTED" } else { "LEFT OUT, as it refuses nothing" };
                let _ = writeln!(text, "  # {note}: {}", comment(why));
                continue;
            }
            Ok(native) => native,
        };
        for change in &converted.changes {
            let _ = writeln!(text, "  # CHANGED: {}", comment(change));
        }
        write_limit(&mut text, &unique(&converted.name, &mut names), native);
    }
    text
}

/// The declaration of all attributes, if the name of one could be taken for something else. Declared names are read as
/// attributes.
fn declared(limits: &[Converted]) -> String {
    let natives = || limits.iter().filter_map(|converted| converted.limit.as_ref().ok());
    let named = natives().flat_map(|native| native.by.iter().cloned().chain(native.when.names()));
    let names: BTreeSet<String> = named.collect();
    let texts = texts(limits);
    if texts.is_empty() && !names.iter().any(|name| must_be_declared(name)) {
        return String::new();
    }
    let item = |name: &String| match texts.contains(name) {
        true => format!("{{ {}: text }}", plain(name)),
        false => plain(name),
    };
    let names: Vec<String> = names.iter().map(item).collect();
    format!("attributes: [{}]\n", names.join(", "))
}

/// The attributes that must be declared as texts: the original compares their values as text, whatever they look like.
fn texts(limits: &[Converted]) -> BTreeSet<String> {
    let natives = limits.iter().filter_map(|converted| converted.limit.as_ref().ok());
    natives.flat_map(|native| must_be_text(&native.when.cel())).collect()
}

fn write_limit(text: &mut String, name: &str, native: &Native) {
    let _ = writeln!(text, "  - name: {}", plain(name));
    match &native.when {
        When::Cel(parts) => write_condition(text, parts),
        When::Table(conditions) => write_table(text, conditions),
    }
    if !native.by.is_empty() {
        let by: Vec<String> = native.by.iter().map(|name| plain(name)).collect();
        let _ = writeln!(text, "    by: [{}]", by.join(", "));
    }
    let _ = writeln!(text, "    rate: {}", native.rate);
    if let Some(align) = native.align {
        let _ = writeln!(text, "    algorithm: fixed-window\n    align: {align}");
    }
    if native.is_shadow {
        text.push_str("    mode: shadow\n");
    }
}

/// Writes a condition: a long one with a line for each part, in a block, as its text needs no escape there.
fn write_condition(text: &mut String, parts: &[String]) {
    let condition = parts.join(AND);
    let is_plain = condition.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    let _ = match parts {
        [] => Ok(()),
        [_, ..] if condition.len() <= LINE_CHARS || !is_plain || condition.starts_with(' ') => {
            writeln!(text, "    when: {}", quoted(&condition))
        }
        [first, rest @ ..] => {
            let _ = writeln!(text, "    when: >-\n      {first}");
            rest.iter().try_for_each(|part| writeln!(text, "      && {part}"))
        }
    };
}

/// Writes a condition for each attribute, on one line if that is short.
fn write_table(text: &mut String, conditions: &[AttributeCondition]) {
    let written = |condition: &AttributeCondition| {
        let values = match condition.values.as_slice() {
            [one] => plain(one),
            several => {
                let several: Vec<String> = several.iter().map(|value| plain(value)).collect();
                format!("[{}]", several.join(", "))
            }
        };
        match condition.sense {
            Negation::Is => format!("{}: {values}", plain(&condition.name)),
            Negation::IsNot => format!("{}: {{ not: {values} }}", plain(&condition.name)),
        }
    };
    let written: Vec<String> = conditions.iter().map(written).collect();
    let line = written.join(", ");
    if written.is_empty() {
        return;
    }
    if line.len() <= LINE_CHARS {
        let _ = writeln!(text, "    when: {{ {line} }}");
        return;
    }
    text.push_str("    when:\n");
    for condition in written {
        let _ = writeln!(text, "      {condition}");
    }
}

/// A valid name that is not yet used.
fn unique(name: &str, taken: &mut HashSet<String>) -> String {
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' })
        .take(LIMIT_NAME_BYTES_MAX.saturating_sub(8))
        .collect();
    let plain = plain.trim_matches('-').to_owned();
    let plain = if plain.is_empty() { "limit".to_owned() } else { plain };
    let mut candidate = plain.clone();
    for number in 2.. {
        if taken.insert(candidate.clone()) {
            break;
        }
        candidate = format!("{plain}-{number}");
    }
    candidate
}

/// A text as YAML has it: without quotes where every reader of YAML takes it for the same text.
fn plain(text: &str) -> String {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    let begins = text.starts_with(|first: char| first.is_ascii_alphabetic() || "_/".contains(first));
    let is_plain = begins && text.bytes().all(is_letter) && !WORDS.contains(&&*text.to_ascii_lowercase());
    if is_plain { text.to_owned() } else { quoted(text) }
}

/// A text in double quotes, which YAML reads as JSON does.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Maximum length of a condition that is written on one line.
const LINE_CHARS: usize = 80;

/// The rate of a rule that refuses all its requests.
pub(crate) const REFUSED: &str = "deny";

/// Keeps a comment on one line.
fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A text in CEL's single quotes.
pub(crate) fn cel_text(text: &str) -> String {
    let mut quoted = String::from("'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}

/// Whether CEL accepts this as the name of an attribute.
pub(crate) fn is_name(text: &str) -> bool {
    const RESERVED: [&str; 6] = ["true", "false", "null", "in", "has", "limit"];
    let mut letters = text.chars();
    letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !RESERVED.contains(&text)
}
