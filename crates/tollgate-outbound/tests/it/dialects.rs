//! The examples of docs/outbound-providers.md, and what no server should send.

use std::fmt::Write as _;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use tollgate::Timestamp;
use tollgate_outbound::dialect::{COUNT_MAX, WAIT_MAX, WINDOWS_MAX, read};
use tollgate_outbound::{ResponseView, Signals, ThrottleScope, Window, WindowUnit};

/// 2026-11-18T20:00:00Z
const RECEIVED: Timestamp = Timestamp::from_unix_seconds(1_795_032_000);

const PAGE: &str = include_str!("../../../../docs/outbound-providers.md");

/// A response as text: a status line, headers, and perhaps an empty line and a body.
fn read_text(text: &str) -> Signals {
    let (head, body) = text.split_once("\n\n").map_or((text, None), |(head, body)| (head, Some(body)));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status line");
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, text) = line.split_once(':').expect("a header");
        let name: HeaderName = name.parse().expect("a name");
        headers.append(name, HeaderValue::from_str(text.trim()).expect("a value"));
    }
    let status = status.parse::<StatusCode>().expect("a status");
    read(&ResponseView { status, headers: &headers, body: body.map(str::as_bytes), received: RECEIVED })
}

fn describe_window(window: &Window) -> String {
    let mut line = format!("{}:", window.name);
    if let Some(remaining) = window.remaining {
        let _ = write!(line, " {remaining}");
    }
    if let Some(limit) = window.limit {
        let _ = write!(line, " of {limit}");
    }
    line.push_str(match window.unit {
        WindowUnit::Requests => " left",
        WindowUnit::Cost => " units left",
        WindowUnit::Concurrent => " in flight left",
        _ => " unknown",
    });
    if let Some(wait) = window.resets_in {
        let _ = write!(line, ", full in {}", wait.readable());
    }
    if let Some(period) = window.period {
        let _ = write!(line, ", period {}", period.readable());
    }
    line
}

fn describe(signals: &Signals) -> String {
    let mut lines: Vec<String> = signals.windows.iter().map(describe_window).collect();
    if let Some(throttle) = signals.throttle {
        let scope = match throttle.scope {
            ThrottleScope::Bucket => "the bucket",
            ThrottleScope::Route => "the route",
            ThrottleScope::Everything => "everything",
            ThrottleScope::Shared => "a shared limit",
        };
        let mut line = format!("refused: {} of {scope}", throttle.kind.name());
        if let Some(wait) = throttle.retry_after {
            let _ = write!(line, ", again in {}", wait.readable());
        }
        lines.push(line);
    }
    if let Some(should_retry) = signals.should_retry {
        lines.push(format!("retry: {}", if should_retry { "yes" } else { "no" }));
    }
    if let Some(bucket) = &signals.bucket {
        lines.push(format!("bucket: {bucket}"));
    }
    if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
}

/// The blocks of a language in the page, in order.
fn blocks<'a>(page: &'a str, language: &'a str) -> impl Iterator<Item = &'a str> {
    let fence = format!("```{language}\n");
    let parts: Vec<&str> =
        page.split(&fence).skip(1).map(|part| part.split("\n```").next().unwrap()).collect();
    parts.into_iter()
}

/// Every response on the page says what the page says that it says.
#[test]
fn each_example_of_the_page_is_read_as_the_page_says() {
    let examples: Vec<(&str, &str)> = blocks(PAGE, "http").zip(blocks(PAGE, "text")).collect();
    assert_eq!(blocks(PAGE, "http").count(), blocks(PAGE, "text").count());
    assert!(examples.len() > 40, "{}", examples.len());
    let wrong: Vec<String> = examples
        .into_iter()
        .filter_map(|(response, expected)| {
            let read = describe(&read_text(response));
            (read != expected).then(|| format!("{response}\n\nreads as\n{read}\ninstead of\n{expected}\n"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n----\n"));
}

/// A reset and the number of seconds that it means.
fn spellings(seconds: u64) -> Vec<String> {
    let at = RECEIVED.unix_micros() / 1_000_000 + seconds;
    let date = jiff::Timestamp::from_second(i64::try_from(at).unwrap()).unwrap();
    let zoned = date.in_tz("UTC").unwrap();
    vec![
        seconds.to_string(),
        format!("{seconds}.000"),
        at.to_string(),
        format!("{at}.000"),
        format!("{at}000"),
        format!("{at}000000"),
        date.to_string(),
        zoned.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string(),
        zoned.strftime("%A, %d-%b-%y %H:%M:%S GMT").to_string(),
        zoned.strftime("%a %b %e %H:%M:%S %Y").to_string(),
        format!("{}m{}s", seconds / 60, seconds % 60),
        format!("{}ms", seconds * 1_000),
    ]
}

proptest! {
    /// A reset means the same in every spelling.
    #[test]
    fn a_reset_means_the_same_in_every_spelling(seconds in 0_u64..2_000_000) {
        for reset in spellings(seconds) {
            let text = format!("HTTP/1.1 200 OK\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: {reset}");
            let signals = read_text(&text);
            let wait = signals.windows[0].resets_in.map(|wait| wait.as_micros());
            prop_assert_eq!(wait, Some(seconds * 1_000_000), "{}", reset);
        }
    }

    /// A server whose clock is wrong says the same as one whose clock is right.
    #[test]
    fn the_clock_of_the_server_does_not_matter(seconds in 0_u64..100_000, skew in -900_000_i64..900_000) {
        let now = jiff::Timestamp::from_second(1_795_032_000 + skew).unwrap();
        let date = now.in_tz("UTC").unwrap().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        let reset = now.as_second() + i64::try_from(seconds).unwrap();
        let text = format!("HTTP/1.1 200 OK\nDate: {date}\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: {reset}");
        let wait = read_text(&text).windows[0].resets_in.map(|wait| wait.as_micros());
        prop_assert_eq!(wait, Some(seconds * 1_000_000));
    }

    /// Every dialect with a limit, a remainder and a reset gives the same three numbers.
    #[test]
    fn all_dialects_agree(limit in 1_u64..1_000_000, used in 0_u64..1_000_000, seconds in 0_u64..86_400) {
        let remaining = limit.saturating_sub(used);
        let at = 1_795_032_000 + seconds;
        let responses = [
            format!("RateLimit-Policy: \"x\";q={limit};w=60\nRateLimit: \"x\";r={remaining};t={seconds}"),
            format!("RateLimit: limit={limit}, remaining={remaining}, reset={seconds}"),
            format!("RateLimit-Limit: {limit}\nRateLimit-Remaining: {remaining}\nRateLimit-Reset: {seconds}"),
            format!("X-RateLimit-Limit: {limit}\nX-RateLimit-Remaining: {remaining}\nX-RateLimit-Reset: {at}"),
            format!("X-Rate-Limit-Limit: {limit}\nX-Rate-Limit-Remaining: {remaining}\nX-Rate-Limit-Reset: {at}"),
            format!(
                "x-ratelimit-limit-requests: {limit}\nx-ratelimit-remaining-requests: {remaining}\n\
                 x-ratelimit-reset-requests: {seconds}s"
            ),
        ];
        for response in responses {
            let signals = read_text(&format!("HTTP/1.1 200 OK\n{response}"));
            prop_assert_eq!(signals.windows.len(), 1, "{}", response);
            let window = &signals.windows[0];
            prop_assert_eq!((window.limit, window.remaining), (Some(limit), Some(remaining)), "{}", response);
            prop_assert_eq!(window.resets_in.map(|wait| wait.as_micros()), Some(seconds * 1_000_000));
        }
    }

    /// Malformed numbers count as absent, and never as another number.
    #[test]
    fn malformed_numbers_are_absent(text in "[-+a-zA-Z_ ]{1,12}|[0-9]{1,5}[-+xe][0-9]{0,5}|[0-9]+[.][0-9]+[.][0-9]+") {
        prop_assume!(!text.trim().is_empty());
        let signals = read_text(&format!("HTTP/1.1 200 OK\nX-RateLimit-Limit: 5\nX-RateLimit-Remaining: {text}"));
        prop_assert_eq!(signals.windows[0].remaining, None);
        let refused = read_text(&format!("HTTP/1.1 429 No\nRetry-After: {text}"));
        prop_assert_eq!(refused.throttle.unwrap().retry_after, None);
    }
}

/// A cached response has no windows.
#[test]
fn a_cached_response_has_no_windows() {
    let numbers = "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 60";
    assert_eq!(read_text(&format!("HTTP/1.1 200 OK\nAge: 0\n{numbers}")).windows.len(), 1);
    assert_eq!(read_text(&format!("HTTP/1.1 200 OK\nAge: 1\n{numbers}")).windows, []);
}

/// Absurd numbers are capped, and so is the number of windows.
#[test]
fn absurd_values_are_capped() {
    let nines = "9".repeat(20);
    let signals = read_text(&format!(
        "HTTP/1.1 429 No\nX-RateLimit-Limit: {nines}\nX-RateLimit-Remaining: {nines}\nX-RateLimit-Reset-After: {nines}\n\
         Retry-After: {nines}"
    ));
    let window = &signals.windows[0];
    assert_eq!((window.limit, window.remaining), (Some(COUNT_MAX), Some(COUNT_MAX)));
    assert_eq!(window.resets_in, Some(WAIT_MAX));
    assert_eq!(signals.throttle.unwrap().retry_after, Some(WAIT_MAX));
    let many: String = (0..100).map(|n| format!("x-ratelimit-remaining-w{n}: 1\n")).collect();
    assert_eq!(read_text(&format!("HTTP/1.1 200 OK\n{}", many.trim_end())).windows.len(), WINDOWS_MAX);
}
