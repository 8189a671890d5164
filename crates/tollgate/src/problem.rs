//! The problem with one value that a person wrote, and the accepted values.

/// Longest piece of the user's text that a message repeats, in characters.
pub(crate) const QUOTED_MAX: usize = 60;

/// A problem with one value, without its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", explained(message, accepted))]
pub struct Problem {
    /// The problem.
    pub message: String,
    /// The accepted values.
    pub accepted: String,
}

impl Problem {
    /// A problem with the accepted values.
    pub fn new(message: impl Into<String>, accepted: impl Into<String>) -> Self {
        Self { message: message.into(), accepted: accepted.into() }
    }
}

/// The sentence, for messages that are made of several.
impl From<Problem> for String {
    fn from(problem: Problem) -> String {
        problem.to_string()
    }
}

/// A problem and the accepted values, in one sentence. A question, such as "did you mean limits?", ends its own.
#[must_use]
#[cfg_attr(not(feature = "policy"), expect(unreachable_pub, reason = "the module `policy` exports it"))]
pub fn explained(message: &str, accepted: &str) -> String {
    let mark = if message.ends_with('?') { "" } else { ";" };
    if accepted.is_empty() { message.to_owned() } else { format!("{message}{mark} accepted: {accepted}") }
}

/// The user's own text for a message: shortened, and without control characters that could fool a terminal.
#[must_use]
#[cfg_attr(not(feature = "policy"), expect(unreachable_pub, reason = "the module `policy` exports it"))]
pub fn quoted(text: &str) -> String {
    let mut shown: String =
        text.chars().take(QUOTED_MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(QUOTED_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

/// The cause of a system's error in plain words, without the number that only the system knows: `permission denied`.
#[must_use]
#[cfg_attr(not(feature = "policy"), expect(unreachable_pub, reason = "the module `policy` exports it"))]
pub fn plain_cause(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    if text.starts_with("failed to lookup address information") {
        return "no address is known for this name".to_owned();
    }
    let Some((words, _)) = text.split_once(" (os error ") else { return text };
    let mut letters = words.chars();
    letters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A person reads the system's words, and not its number.
    #[test]
    fn causes_have_no_number_of_the_system() {
        let missing = std::io::Error::from_raw_os_error(2);
        assert_eq!(plain_cause(&missing), "no such file or directory");
        let lookup = "failed to lookup address information: Name or service not known";
        assert_eq!(plain_cause(&lookup), "no address is known for this name");
        assert_eq!(plain_cause(&"the peer is gone"), "the peer is gone");
    }

    /// The user's text cannot fill the screen or move the cursor.
    #[test]
    fn quoted_text_is_short_and_harmless() {
        assert_eq!(quoted("a\u{1b}[2J"), "a\u{fffd}[2J");
        assert_eq!(quoted(&"x".repeat(1000)).chars().count(), QUOTED_MAX + 3);
    }
}
