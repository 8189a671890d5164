//! The body of the fuzz target of the outbound client.

use std::collections::BTreeSet;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tollgate::Timestamp;
use tollgate_outbound::ResponseView;
use tollgate_outbound::dialect::{COUNT_MAX, NAME_BYTES_MAX, WAIT_MAX, WINDOWS_MAX, read};

/// No response makes the readers of dialects panic, and what they read is within their bounds. The bytes are a status
/// line, headers, and a body behind an empty line.
pub fn response_dialects(bytes: &[u8]) {
    let end = bytes.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = end.map_or((bytes, None), |end| (&bytes[..end], Some(&bytes[end + 2..])));
    let mut lines = head.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let code = first.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let status = StatusCode::from_bytes(code).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut headers = HeaderMap::new();
    for line in lines.take(100) {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (name, text) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        if let (Ok(name), Ok(text)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(text.trim_ascii()))
        {
            headers.append(name, text);
        }
    }
    let received = Timestamp::from_unix_seconds(1_795_032_000);
    let response = ResponseView { status, headers: &headers, body, received };
    let signals = read(&response);
    assert!(signals.windows.len() <= WINDOWS_MAX);
    let names: BTreeSet<&str> = signals.windows.iter().map(|window| window.name.as_str()).collect();
    assert_eq!(names.len(), signals.windows.len(), "two windows have one name");
    for window in &signals.windows {
        let numbers = [window.limit, window.remaining];
        assert!(numbers.iter().flatten().all(|number| *number <= COUNT_MAX));
        assert!(window.limit.zip(window.remaining).is_none_or(|(limit, remaining)| remaining <= limit));
        assert!([window.resets_in, window.period].iter().flatten().all(|wait| *wait <= WAIT_MAX));
        assert!((1..=NAME_BYTES_MAX).contains(&window.name.len()));
    }
    if let Some(throttle) = signals.throttle {
        assert!(throttle.retry_after.is_none_or(|wait| wait <= WAIT_MAX));
        assert!(!status.is_redirection(), "a redirection refuses nothing");
    }
    assert!(signals.bucket.as_ref().is_none_or(|name| (1..=NAME_BYTES_MAX).contains(&name.len())));
    assert_eq!(read(&response), signals, "the same response reads differently");
}
