//! The format of a file, detected from its outermost structure.

use tollgate::policy::source::{Outline, outline};

/// One file: its name and its contents.
#[derive(Debug)]
pub struct Source {
    /// Its name in messages.
    pub name: String,
    /// Its contents.
    pub bytes: Vec<u8>,
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Tollgate's own.
    Native,
    /// envoyproxy/ratelimit's.
    Envoy,
    /// Limitador's.
    Limitador,
}

impl Format {
    /// Detects the format of a file by its outermost structure.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        match outline(bytes, &["limits", "descriptors"]) {
            // The limits of a policy without the line `limits:`.
            Outline::List if has(bytes, "rate") && !has(bytes, "max_value") && !has(bytes, "namespace") => {
                Format::Native
            }
            Outline::List => Format::Limitador,
            Outline::Table(fields) if fields.iter().any(|field| field == "limits") => Format::Native,
            Outline::Table(fields)
                if fields.iter().any(|field| field == "descriptors" || field == "domain") =>
            {
                Format::Envoy
            }
            _ => Format::Native,
        }
    }

    /// The name for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::Native => "Tollgate policy",
            Format::Envoy => "envoyproxy/ratelimit configuration",
            Format::Limitador => "Limitador limits",
        }
    }
}

fn has(bytes: &[u8], word: &str) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outermost structure decides the format, whatever else is wrong with a file.
    #[test]
    fn formats_are_detected_by_their_shape() {
        let cases = [
            ("limits: []", Format::Native),
            ("domain: d\nlimits: []", Format::Native),
            ("", Format::Native),
            ("text", Format::Native),
            ("{", Format::Native),
            ("rats: 1", Format::Native),
            ("domain: d\ndescriptors: []", Format::Envoy),
            ("# a comment\n---\ndescriptors: [", Format::Envoy),
            ("domain: d", Format::Envoy),
            ("{domain: {limits: 1}, descriptors: []}", Format::Envoy),
            ("[]", Format::Limitador),
            ("- {name: a, rate: 5/s}", Format::Native),
            ("- namespace: n", Format::Limitador),
            ("- limits: []", Format::Limitador),
        ];
        for (text, format) in cases {
            assert_eq!(Format::of(text.as_bytes()), format, "{text}");
        }
        assert_eq!(Format::of(b"\xff"), Format::Native);
    }
}
