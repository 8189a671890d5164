//! Doubts about a policy that a server accepts, in the same words at the start and at each reload.

use tollgate::policy::Finding;
use tollgate_tower::attributes::Reader;

use crate::policy_file::Loaded;
use crate::policy_spelling::{Supply, misspelt};
use crate::policy_warnings::{Doubts, Ends, UntrustedAttributes};

/// Most doubts that have a line of the log each.
const LINES_MAX: usize = 3;

/// The requests of HTTP that a policy is for, as the config describes them.
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
        let doubts: Vec<String> = self.doubts(loaded).iter().map(ToString::to_string).collect();
        for warning in lines(&doubts) {
            tracing::warn!(warning, "the policy is accepted, and perhaps not what is meant");
        }
        doubts
    }
}

/// The doubts as they are logged: a line each, or one line that counts many of them and names the first.
fn lines(doubts: &[String]) -> Vec<String> {
    if doubts.len() <= LINES_MAX {
        return doubts.to_vec();
    }
    let first: Vec<&str> = doubts.iter().take(LINES_MAX).map(String::as_str).collect();
    let more = doubts.len() - first.len();
    vec![format!(
        "{} warnings; `tollgate policy check` with --config lists them: {}; and {more} more",
        doubts.len(),
        first.join("; ")
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: a converted file of 24 limits had a long line of the log for each of them at every start.
    #[test]
    fn many_doubts_are_one_line() {
        let doubts: Vec<String> = (1..=24).map(|index| format!("doubt {index}")).collect();
        assert_eq!(lines(&doubts[..3]), doubts[..3]);
        let expected = "24 warnings; `tollgate policy check` with --config lists them: doubt 1; doubt 2; doubt 3; and 21 more";
        assert_eq!(lines(&doubts), [expected]);
    }
}
