//! The audit log: which operator did what and when. Entries go to the log under the target `audit`, and the latest stay
//! in memory for operators who may read them. Attempts refused by role are logged too. An entry never contains a token.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::token::{Role, TokenHolder};
use super::view::Instant;
use crate::text::plain;

/// Maximum number of entries in memory.
const ENTRIES_MAX: usize = 1_000;
/// Maximum length of a text of an entry, in characters: it may quote the request.
const TEXT_CHARS_MAX: usize = 256;

/// One action, or an attempt that was refused.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AuditEntry {
    at: Instant,
    who: String,
    role: Role,
    verb: &'static str,
    about: String,
    outcome: String,
}

impl AuditEntry {
    /// Its texts: when, who, what, about what, and the outcome.
    pub(super) fn fields(&self) -> [String; 5] {
        let who = format!("{} ({})", self.who, self.role.name());
        [self.at.text(), who, self.verb.to_owned(), self.about.clone(), self.outcome.clone()]
    }
}

/// The latest entries, oldest first.
#[derive(Default)]
pub(super) struct Audit(Mutex<VecDeque<AuditEntry>>);

impl Audit {
    /// Writes an entry.
    pub(super) fn write(
        &self,
        who: &TokenHolder,
        verb: &'static str,
        about: &str,
        outcome: &str,
        at: Instant,
    ) {
        let entry = AuditEntry {
            at,
            who: who.name.clone(),
            role: who.role,
            verb,
            about: shortened(about),
            outcome: shortened(outcome),
        };
        // Texts may contain anything from a request. Escaping keeps them from ending a line or moving a terminal's
        // cursor.
        tracing::info!(
            target: "audit",
            who = %plain(&entry.who),
            role = entry.role.name(),
            verb,
            about = %plain(&entry.about),
            outcome = %plain(&entry.outcome),
            "an operator's action"
        );
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= ENTRIES_MAX {
            entries.pop_front();
        }
        entries.push_back(entry);
    }

    /// The latest `most`, newest first.
    pub(super) fn latest(&self, most: usize) -> Vec<AuditEntry> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().rev().take(most).cloned().collect()
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The log keeps the newest entries, bounded in number and in length.
    #[test]
    fn entries_are_bounded() {
        let (audit, who) = (Audit::default(), TokenHolder { name: "alice".into(), role: Role::Operator });
        let at = Instant::new(tollgate::Timestamp::default(), tollgate::time::WallOffset::NONE);
        for number in 0..ENTRIES_MAX + 5 {
            audit.write(&who, "reset", &format!("{number} {}", "x".repeat(9_999)), "done", at);
        }
        let kept = audit.latest(usize::MAX);
        assert_eq!(kept.len(), ENTRIES_MAX);
        assert!(kept[0].about.starts_with(&format!("{} xxx", ENTRIES_MAX + 4)));
        assert_eq!(kept[0].about.chars().count(), TEXT_CHARS_MAX + 1);
    }
}
