//! The trace of a request, from W3C's `traceparent` header: version, trace, span, flags.

use std::future::Future;

use hyper::HeaderMap;

tokio::task_local! {
    /// The trace of the request that this task answers.
    static PARENT: Parent;
}

/// The span that a request was sent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    pub(super) trace: u128,
    pub(super) span: u64,
    /// Whether the caller samples this trace.
    pub(super) is_sampled: bool,
}

impl Parent {
    /// Reads the trace from the headers of a request, if they contain one.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        headers.get("traceparent").and_then(|header| Self::read(header.as_bytes()))
    }

    /// Parses a header. An invalid header counts as none: the request is answered, but not traced with the caller.
    fn read(header: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(header).ok()?;
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // Version 0 has four parts. A later version may have more, and begins the same way.
        let is_known = version != "ff" && (version != "00" || parts.next().is_none());
        let _ = digits(version, 2)?;
        let parent = Self {
            trace: digits(trace, 32)?,
            span: u64::try_from(digits(span, 16)?).ok()?,
            is_sampled: digits(flags, 2)? & 1 == 1,
        };
        (is_known && parent.trace != 0 && parent.span != 0).then_some(parent)
    }

    /// Runs a future as part of this trace.
    pub(crate) fn scope<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        PARENT.scope(self, future)
    }

    /// The trace that this task is part of.
    pub(super) fn current() -> Option<Self> {
        PARENT.try_with(|parent| *parent).ok()
    }
}

/// Parses exactly `count` lower-case hexadecimal digits.
fn digits(text: &str, count: usize) -> Option<u128> {
    let are_digits = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    (text.len() == count && are_digits).then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// The standard's example is accepted, and what the standard forbids is not.
    #[test]
    fn only_what_the_standard_allows_is_read() {
        let parent = Parent::read(GOOD.as_bytes()).unwrap();
        assert_eq!(parent.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((parent.span, parent.is_sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert!(!Parent::read(GOOD.replace("-01", "-00").as_bytes()).unwrap().is_sampled);
        assert!(Parent::read(GOOD.replacen("00-", "01-", 1).as_bytes()).is_some());
        assert!(Parent::read(format!("{}-more", GOOD.replacen("00-", "01-", 1)).as_bytes()).is_some());
        let wrong = [
            String::new(),
            GOOD.to_uppercase(),
            format!("{GOOD}-more"),
            GOOD.replacen("00-", "ff-", 1),
            GOOD.replacen("00-", "+0-", 1),
            GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            GOOD.replace("00f067aa0ba902b7", "00f067aa0ba902b"),
            GOOD.replace("-01", "-0x"),
            "é".repeat(30),
        ];
        for text in wrong {
            assert_eq!(Parent::read(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Parent::read(b"\xff\xfe"), None);
    }
}
