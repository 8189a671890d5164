//! Header names and values, ready for any HTTP stack. Every value that a [`HeaderList`] holds is printable ASCII.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;

/// Maximum number of headers in one answer: all dialects that can be combined need fewer.
pub const HEADERS_MAX: usize = 32;
/// Longest value of one header, so that all of them stay below what clients and proxies accept.
pub const FIELD_BYTES_MAX: usize = 4_096;

/// Initial capacity for the values of a usual answer.
const TEXT_BYTES: usize = 256;

/// The largest number that a structured field may hold: 15 digits.
pub(super) const NUMBER_MAX: u64 = 999_999_999_999_999;

/// The headers of one answer, in the order to send them. All values share one buffer, so that an answer costs one
/// allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderList {
    text: String,
    entries: SmallVec<[HeaderEntry; 10]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeaderEntry {
    name: &'static str,
    end: usize,
}

impl HeaderList {
    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> + Clone {
        let starts = std::iter::once(0).chain(self.entries.iter().map(|entry| entry.end));
        starts.zip(&self.entries).map(|(start, entry)| (entry.name, &self.text[start..entry.end]))
    }

    /// Takes all values as one text, and each name with the range of its value, for callers that keep the text instead
    /// of copying from it. The list is empty afterwards.
    pub fn take_text(&mut self) -> (String, impl Iterator<Item = (&'static str, Range<usize>)>) {
        let mut start = 0;
        let entries = self
            .entries
            .drain(..)
            .map(move |entry| (entry.name, std::mem::replace(&mut start, entry.end)..entry.end));
        (std::mem::take(&mut self.text), entries)
    }

    /// The value of one header, whatever the case of its name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// How many headers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a header whose value is text.
    pub(super) fn text(&mut self, name: &'static str, value: &str) {
        self.write(name, |out| out.push_str(value));
    }

    /// Adds a header whose value is a number.
    pub(super) fn number(&mut self, name: &'static str, value: u64) {
        self.begin();
        push_number(&mut self.text, value);
        self.end(name);
    }

    /// Adds a header that `write` appends. A value that may not be sent leaves the list as it was. Every header passes
    /// through this function, so no name that an operator gives a limit can split a response.
    pub(super) fn write(&mut self, name: &'static str, write: impl FnOnce(&mut String)) {
        let start = self.begin();
        write(&mut self.text);
        let value = &self.text.as_bytes()[start..];
        let sendable = !value.is_empty()
            && value.len() <= FIELD_BYTES_MAX
            // No early exit, so that the compiler can check many bytes at once.
            && value.iter().fold(true, |printable, byte| printable & matches!(byte, b' '..=b'~'));
        if sendable {
            self.end(name);
        } else {
            self.text.truncate(start);
        }
    }

    /// Where the next value starts.
    #[inline]
    fn begin(&mut self) -> usize {
        if self.text.is_empty() {
            self.text.reserve(TEXT_BYTES);
        }
        self.text.len()
    }

    /// Makes the appended text the value of this header.
    #[inline]
    fn end(&mut self, name: &'static str) {
        if self.entries.len() < HEADERS_MAX {
            self.entries.push(HeaderEntry { name, end: self.text.len() });
        } else {
            self.text.truncate(self.entries.last().map_or(0, |last| last.end));
        }
    }
}

/// Appends a number, at most the largest that a structured field may hold.
pub(super) fn push_number(out: &mut String, value: u64) {
    out.push_str(itoa::Buffer::new().format(value.min(NUMBER_MAX)));
}

/// Appends formatted text.
pub(super) fn push(out: &mut String, arguments: fmt::Arguments<'_>) {
    // Writing to a string cannot fail; only the trait's signature allows it.
    let _ = fmt::Write::write_fmt(out, arguments);
}
