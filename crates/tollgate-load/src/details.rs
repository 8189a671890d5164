//! Why requests were denied, as far as the answers show it: by which limit, and whether by a counter that keys share.

use std::collections::BTreeMap;

/// One answer in this many is examined where examining every answer would take too long.
const SAMPLED: u64 = 16;
/// Maximum limits that are counted by name; the rest is counted together.
const CAUSES_MAX: usize = 20;
/// The name for denials by other limits.
const OTHERS: &str = "(others)";

/// Why requests were denied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Denials by the name of the limit that caused them, where the answer has it.
    pub denied_by: BTreeMap<String, u64>,
    /// Answers that were examined for the source of their count.
    pub examined: u64,
    /// How many of those came from a counter that several keys share, because the server's memory is full.
    pub shared: u64,
    /// Whether the server reports that its memory is full, where its answers do not.
    pub is_memory_full: bool,
}

impl Details {
    /// Examines the body of an answer over HTTP: a decision, or those of a batch.
    pub(crate) fn look_at_json(&mut self, body: &[u8], turn: u64) {
        // A single decision that allows has no denial to look for.
        let mut rest = if body.starts_with(b"{\"allowed\":true") { &[] } else { body };
        while let Some(at) = find(rest, b"{\"allowed\":false,\"verdict\":\"") {
            rest = &rest[at + 1..];
            // The cause follows the verdict.
            if let Some(cause) = member(rest, b",\"cause\":\"") {
                self.deny(cause);
            }
        }
        if turn % SAMPLED == 1 {
            self.examined += 1;
            let is_shared = [&b"\"source\":\"overflow\""[..], b"\"source\":\"full\""];
            self.shared += u64::from(is_shared.iter().any(|source| find(body, source).is_some()));
        }
    }

    /// Records a denial by a limit of this name.
    pub(crate) fn deny(&mut self, cause: &[u8]) {
        let cause = String::from_utf8_lossy(cause);
        let is_known = self.denied_by.contains_key(&*cause) || self.denied_by.len() < CAUSES_MAX;
        let cause = if is_known { cause.into_owned() } else { OTHERS.to_owned() };
        *self.denied_by.entry(cause).or_default() += 1;
    }

    /// Adds the results of another part.
    pub(crate) fn add(&mut self, other: &Details) {
        for (cause, denied) in &other.denied_by {
            *self.denied_by.entry(cause.clone()).or_default() += denied;
        }
        self.examined += other.examined;
        self.shared += other.shared;
        self.is_memory_full |= other.is_memory_full;
    }

    /// The lines about `denied` denials for the user; empty if there is nothing to report.
    #[must_use]
    pub fn lines(&self, denied: u64) -> Vec<String> {
        let mut lines = Vec::new();
        if denied > 0 {
            let mut by: Vec<(&str, u64)> =
                self.denied_by.iter().map(|(name, count)| (&**name, *count)).collect();
            by.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
            let named: u64 = by.iter().map(|(_, count)| count).sum();
            let mut parts: Vec<String> =
                by.iter().map(|(name, count)| format!("{count} by {name}")).collect();
            if denied > named {
                parts.push(format!("{} by limits that the answers do not name", denied - named));
            }
            lines.push(format!("{denied} denied: {}", parts.join(", ")));
        }
        if self.shared > 0 {
            lines.push(format!(
                "The server's memory is full: {} of {} answers looked at come from counters that keys share. \
                 Start it with more --memory, or ask about fewer --keys.",
                self.shared, self.examined
            ));
        } else if self.is_memory_full {
            lines.push(
                "The server's memory is full, or was within the last minute: keys share counters. Start it with more \
                 --memory, or ask about fewer --keys."
                    .to_owned(),
            );
        }
        lines
    }
}

/// The text of the member that begins with `before`, if it is near the beginning of `json`.
fn member<'j>(json: &'j [u8], before: &[u8]) -> Option<&'j [u8]> {
    // The longest verdict is shorter than this.
    const NEAR: usize = 64;
    let at = find(json.get(..NEAR.min(json.len()))?, before)? + before.len();
    let text = &json[at..];
    let mut is_escaped = false;
    let end = text.iter().position(|&byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })?;
    Some(&text[..end])
}

pub(crate) fn find(buffer: &[u8], wanted: &[u8]) -> Option<usize> {
    buffer.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each denial of a batch is counted by its cause; allowed requests, and denials without a cause, are not.
    #[test]
    fn denials_are_counted_by_cause() {
        let body = br#"[{"allowed":false,"verdict":"deny","cause":"per-key","reason":"x","limits":[]},{"allowed":true,"verdict":"allow","limits":[{"name":"a","allowed":false,"source":"overflow"}]},{"allowed":false,"verdict":"never","cause":"a\"b"},{"allowed":false,"verdict":"deny"}]"#;
        let mut details = Details::default();
        details.look_at_json(body, 1);
        details.look_at_json(b"{}", 2);
        assert_eq!(details.denied_by, BTreeMap::from([("per-key".to_owned(), 1), (r#"a\"b"#.to_owned(), 1)]));
        assert_eq!((details.examined, details.shared), (1, 1));
        let lines = details.lines(3);
        assert!(
            lines[0].starts_with("3 denied: 1 by ")
                && lines[0].ends_with("1 by limits that the answers do not name")
        );
        assert!(lines[1].contains("memory is full: 1 of 1 answers"));
        assert!(Details::default().lines(0).is_empty());
    }

    /// The number of names is bounded.
    #[test]
    fn the_number_of_causes_is_bounded() {
        let mut details = Details::default();
        (0..1_000).for_each(|name: u64| details.deny(name.to_string().as_bytes()));
        assert_eq!((details.denied_by.len(), details.denied_by[OTHERS]), (CAUSES_MAX + 1, 980));
    }
}
