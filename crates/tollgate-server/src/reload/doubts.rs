//! What a server doubts about a policy that it accepts, at the start and at each reload, in the same words.

use tollgate::policy::Finding;
use tollgate_tower::attributes::Reader;

use crate::policy_file::Loaded;
use crate::policy_spelling::{Supply, misspelt};
use crate::policy_warnings::{Doubts, Ends, UntrustedAttributes};

/// What the config says about the requests of HTTP that a policy is for.
#[derive(Debug)]
pub(crate) struct ServedRequests {
    /// How attributes are read, with the callers file.
    pub(crate) reader: Reader,
    /// Whether the config says which attributes there are.
    pub(crate) supply: Supply,
    /// Whether the server is a gateway.
    pub(crate) ends: Ends,
}

impl Default for ServedRequests {
    /// No config: callers may send any attribute.
    fn default() -> Self {
        Self { reader: Reader::default(), supply: Supply::Unknown, ends: Ends::Unknown }
    }
}

impl ServedRequests {
    /// The doubts about rules that are accepted, in the order of the file.
    pub(crate) fn doubts(&self, loaded: &Loaded) -> Vec<Finding> {
        let mut found = Vec::new();
        // The example shows what limits can be, and is not the operator's to correct.
        if loaded.is_example() {
            return found;
        }
        let doubts = Doubts { file: &loaded.name, policy: loaded.rules.policy() };
        if self.supply == Supply::Known {
            found.extend(misspelt(doubts, &self.reader, self.supply));
        }
        if self.ends == Ends::Seen {
            found.extend(UntrustedAttributes::of(&self.reader).warnings(doubts));
        }
        found.sort_by_key(|doubt| (doubt.line, doubt.column));
        found
    }

    /// Logs the doubts, and returns their texts.
    pub(super) fn warned(&self, loaded: &Loaded) -> Vec<String> {
        let warn = |doubt: Finding| {
            tracing::warn!(warning = %doubt, "the policy is accepted, and perhaps not what is meant");
            doubt.to_string()
        };
        self.doubts(loaded).into_iter().map(warn).collect()
    }
}
