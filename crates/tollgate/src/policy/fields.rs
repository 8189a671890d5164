//! Reads the fields of a table. Each accessor reports a problem with its position and what would be accepted.

use crate::policy::document::{Entry, Node, Tree};
use crate::policy::finding::{Position, Problem, Report, nearest, quoted};
use crate::rate_text;

/// The fields of one table.
#[derive(Clone, Copy)]
pub struct Fields<'n> {
    at: Position,
    entries: &'n [Entry],
    /// The prefix of a field's name in findings.
    within: &'static str,
}

impl<'n> Fields<'n> {
    /// The fields of `node`. If it is not a table, that is reported for `field`.
    pub fn of(node: &'n Node, field: &str, accepted: &str, report: &mut Report) -> Option<Self> {
        match &node.tree {
            Tree::Table(entries) => Some(Self { at: node.at, entries, within: "" }),
            _ => {
                report.error(node.at, field, Problem::new(format!("is {}", node.kind()), accepted));
                None
            }
        }
    }

    /// The same fields, which findings call `within.name`.
    #[must_use]
    pub const fn within(self, within: &'static str) -> Self {
        Self { within, ..self }
    }

    /// The name of a field in findings.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        let dot = if self.within.is_empty() { "" } else { "." };
        format!("{}{dot}{name}", self.within)
    }

    /// Reports every field that is not in `known`.
    pub fn only(&self, known: &[&str], report: &mut Report) {
        for entry in self.entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let message = match nearest(&entry.key, known.iter().copied()) {
                Some(meant) => format!("unknown field; did you mean {meant}?"),
                None if entry.key == "<<" => "merge keys are not YAML 1.2; write the fields out".to_owned(),
                None => "unknown field".to_owned(),
            };
            report.error(entry.at, &self.path(&quoted(&entry.key)), Problem::new(message, known.join(", ")));
        }
    }

    /// Whether the field is there.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    /// The position of the value of a field such as `rate`, `when.path` or `by[2]`; that of the table if the field is
    /// missing.
    #[must_use]
    pub fn place(&self, path: &str) -> Position {
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let Some(entry) = self.entry(&path[..end]) else {
            return self.at;
        };
        let rest = path[end..].trim_start_matches(['.', '[']).trim_end_matches(']');
        let part = match &entry.node.tree {
            Tree::List(items) => rest.parse().ok().and_then(|i: usize| items.get(i)),
            Tree::Table(entries) => entries
                .iter()
                .find(|entry| !rest.is_empty() && quoted(&entry.key) == rest)
                .map(|entry| &entry.node),
            Tree::Empty | Tree::Text(_) => None,
        };
        part.map_or(entry.node.at, |node| node.at)
    }

    /// The position of the name of a field.
    #[must_use]
    pub fn key_position(&self, name: &str) -> Position {
        self.entry(name).map_or(self.at, |entry| entry.at)
    }

    /// The value of a field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'n Node> {
        self.entry(name).map(|entry| &entry.node)
    }

    /// A field that is text.
    pub fn text(&self, name: &str, accepted: &str, report: &mut Report) -> Option<&'n str> {
        text(self.get(name)?, &self.path(name), accepted, report)
    }

    /// A field that is a whole number of at most `max`.
    pub fn count(&self, name: &str, max: u64, report: &mut Report) -> Option<u64> {
        count(self.get(name)?, &self.path(name), max, report)
    }

    /// A field that is one of a few words.
    pub fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)], report: &mut Report) -> Option<T> {
        let words: Vec<&str> = choices.iter().map(|&(word, _)| word).collect();
        let accepted = words.join(", ");
        let given = self.text(name, &accepted, report)?;
        let found = choices.iter().find(|&&(word, _)| word == given);
        if found.is_none() {
            let message = match nearest(given, words.iter().copied()) {
                Some(meant) => format!("{} is unknown; did you mean {meant}?", quoted(given)),
                None => format!("{} is unknown", quoted(given)),
            };
            report.error(self.place(name), &self.path(name), Problem::new(message, accepted));
        }
        found.map(|&(_, value)| value)
    }

    /// The entries, in the file's order.
    pub fn iter(&self) -> std::slice::Iter<'n, Entry> {
        self.entries.iter()
    }

    fn entry(&self, name: &str) -> Option<&'n Entry> {
        self.entries.iter().find(|entry| entry.key == name)
    }
}

/// A value that is text.
pub fn text<'n>(node: &'n Node, field: &str, accepted: &str, report: &mut Report) -> Option<&'n str> {
    match &node.tree {
        Tree::Text(text) => Some(text),
        _ => {
            let message = match node.tree {
                Tree::Empty => "has no value".to_owned(),
                _ => format!("is {}", node.kind()),
            };
            report.error(node.at, field, Problem::new(message, accepted));
            None
        }
    }
}

/// A value that is a whole number of at most `max`.
pub fn count(node: &Node, field: &str, max: u64, report: &mut Report) -> Option<u64> {
    let accepted = format!("a whole number up to {max}");
    let written = text(node, field, &accepted, report)?;
    match rate_text::count(written.trim()) {
        Ok(number) if number <= max => Some(number),
        Ok(_) => {
            let message = format!("{} is too large", quoted(written));
            report.error(node.at, field, Problem::new(message, accepted));
            None
        }
        Err(problem) => {
            report.error(node.at, field, problem);
            None
        }
    }
}
