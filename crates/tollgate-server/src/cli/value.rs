//! How single values of the command line are read. Each message says what would be accepted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use jiff::{SignedDuration, Span, SpanRelativeTo};
use tollgate::{Ticks, Timestamp};

use super::NodesChoice;

/// Most decisions of one `decide`.
pub(super) const TIMES_MAX: u64 = 1_000_000;
/// Least and most memory for counters.
const MEMORY_BYTES: (u64, u64) = (1 << 20, 1 << 40);

/// Where a wire listens, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenChoice {
    /// At this address.
    At(SocketAddr),
    /// Nowhere.
    Off,
}

impl ListenChoice {
    /// The address, if there is one.
    #[must_use]
    pub const fn address(self) -> Option<SocketAddr> {
        match self {
            ListenChoice::At(address) => Some(address),
            ListenChoice::Off => None,
        }
    }
}

/// How often counters are written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotInterval {
    /// Only at the end.
    Off,
    /// This often, and at the end.
    Every(Duration),
}

/// One attribute, as it was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenAttribute {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: GivenValue,
}

/// The value of an attribute, as it was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GivenValue {
    /// Text, even if it looks like a number.
    Text(String),
    /// A whole number.
    Number(i64),
}

/// How many connections a load generator may open.
pub(super) fn connections(text: &str) -> Result<usize, String> {
    within(text, 1, 10_000)
}

/// How many requests a connection may have under way.
pub(super) fn pipeline(text: &str) -> Result<usize, String> {
    within(text, 1, 1_000)
}

/// How many checks a batch may have.
pub(super) fn batch(text: &str) -> Result<usize, String> {
    within(text, 1, 1_000)
}

fn within(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("accepted: a whole number from {least} to {most}"))
}

/// An address to listen on. `localhost` is the one name: what another name resolves to would decide who can connect.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    let port = text.trim_start_matches(':');
    let meant = if u16::from_str(port).is_ok() { port } else { "8080" };
    Err(format!("not an address and a port; accepted: 127.0.0.1:{meant}, [::1]:{meant} or localhost:{meant}"))
}

/// The same, or `off`.
pub(super) fn listen(text: &str) -> Result<ListenChoice, String> {
    if text.eq_ignore_ascii_case("off") {
        return Ok(ListenChoice::Off);
    }
    address(text).map(ListenChoice::At).map_err(|error| format!("{error}, or off"))
}

/// A size in bytes: `1048576`, `64MiB`, `1 GiB`, `500MB`.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let accepted = "accepted: 1MiB to 1TiB, written as 67108864, 64MiB, 1GiB or 500MB";
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(digits);
    let count: u64 = count.parse().map_err(|_| accepted.to_owned())?;
    let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" | "k" => 1 << 10,
        "mib" | "m" => 1 << 20,
        "gib" | "g" => 1 << 30,
        "tib" | "t" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(format!("unknown unit {:?}; {accepted}", unit.trim())),
    };
    let bytes = count.checked_mul(unit).filter(|bytes| (MEMORY_BYTES.0..=MEMORY_BYTES.1).contains(bytes));
    bytes.ok_or_else(|| format!("out of range; {accepted}"))
}

/// `name=text` or `name:=number`.
pub(super) fn attribute(text: &str) -> Result<GivenAttribute, String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(
            "an attribute has a name and a value; accepted: name=text, or name:=5 for a number".to_owned()
        );
    };
    if let Some(name) = name.strip_suffix(':') {
        let number = value.parse().map_err(|_| {
            format!("{value:?} is not a whole number; accepted: {name}:=5, or {name}={value} for text")
        })?;
        return Ok(GivenAttribute { name: name.to_owned(), value: GivenValue::Number(number) });
    }
    Ok(GivenAttribute { name: name.to_owned(), value: GivenValue::Text(value.to_owned()) })
}

/// An instant as RFC 3339 writes it.
pub(crate) fn instant(text: &str) -> Result<Timestamp, String> {
    let accepted = "accepted: 1970-01-01T00:00:00Z to 2112-09-17T00:00:00Z, such as 2030-01-31T12:00:00Z";
    let instant: jiff::Timestamp = text.parse().map_err(|_| format!("not a time of RFC 3339; {accepted}"))?;
    u64::try_from(instant.as_microsecond())
        .ok()
        .filter(|&micros| micros <= Timestamp::MAX.unix_micros())
        .map(Timestamp::from_unix_micros)
        .ok_or_else(|| format!("out of range; {accepted}"))
}

/// A duration such as `100ms`, `1h 30m` or `7d`; a day has 24 hours.
pub(crate) fn duration(text: &str) -> Result<Ticks, String> {
    let accepted = "accepted: 0s and more, such as 100ms, 2s, 1h30m or 7d";
    let duration = signed(text).ok_or_else(|| format!("not a duration; {accepted}"))?;
    let duration = Duration::try_from(duration).map_err(|_| format!("time only moves on; {accepted}"))?;
    Ok(Ticks::ceil_from(duration))
}

/// A duration of any sign. Months and years have no length that everybody agrees on.
fn signed(text: &str) -> Option<SignedDuration> {
    let span: Span = text.parse().ok()?;
    span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()
}

/// Shortest and longest time that a decision may wait for its store.
const STORE_DEADLINES: (Ticks, Ticks) = (Ticks::from_millis(1), Ticks::from_millis(50));

/// How long a decision may wait for its store.
pub(crate) fn store_deadline(text: &str) -> Result<Ticks, String> {
    let accepted = "accepted: 1ms to 50ms, such as 5ms";
    let deadline = duration(text).map_err(|_| format!("not a duration; {accepted}"))?;
    let deadline =
        Some(deadline).filter(|deadline| (STORE_DEADLINES.0..=STORE_DEADLINES.1).contains(deadline));
    deadline.ok_or_else(|| format!("out of range; {accepted}"))
}

/// How many servers share a store.
pub(crate) fn nodes(text: &str) -> Result<NodesChoice, String> {
    match text {
        "auto" => Ok(NodesChoice::Counted),
        _ => {
            let number = text.parse().ok().filter(|number| (1..=10_000).contains(number));
            number
                .map(NodesChoice::Fixed)
                .ok_or_else(|| "accepted: auto, or a whole number from 1 to 10000".to_owned())
        }
    }
}

/// Shortest and longest time between two snapshots.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(86_400));

/// `off`, or a duration.
pub(super) fn interval(text: &str) -> Result<SnapshotInterval, String> {
    let accepted = "accepted: off, or 100ms to 24h, such as 10s";
    if text == "off" {
        return Ok(SnapshotInterval::Off);
    }
    let interval = signed(text).ok_or_else(|| format!("not a duration; {accepted}"))?;
    let interval = Duration::try_from(interval).ok();
    let interval = interval.filter(|interval| (INTERVALS.0..=INTERVALS.1).contains(interval));
    interval.map(SnapshotInterval::Every).ok_or_else(|| format!("out of range; {accepted}"))
}

/// Longest time that a server which was told to stop goes on serving.
const DELAY_MAX: Duration = Duration::from_secs(600);

/// How long to go on.
pub(super) fn delay(text: &str) -> Result<Duration, String> {
    let accepted = "accepted: 0s to 10m, such as 5s";
    let delay = signed(text).ok_or_else(|| format!("not a duration; {accepted}"))?;
    let delay = Duration::try_from(delay).ok().filter(|delay| *delay <= DELAY_MAX);
    delay.ok_or_else(|| format!("out of range; {accepted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes are read with the units that people write, and nonsense is refused with what would be accepted.
    #[test]
    fn sizes() {
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("1 GiB"), Ok(1 << 30));
        assert_eq!(size("2000000"), Ok(2_000_000));
        assert_eq!(size("500MB"), Ok(500_000_000));
        for wrong in
            ["", "-1", "0", "1KiB", "1.5GiB", "64 MiBs", "99999999999999999999", "18446744073709551615g"]
        {
            assert!(size(wrong).is_err_and(|message| message.contains("accepted: 1MiB")), "{wrong}");
        }
    }

    /// A server that was told to stop goes on for a while at most.
    #[test]
    fn delays() {
        assert_eq!(delay("0s"), Ok(Duration::ZERO));
        assert_eq!(delay("5s"), Ok(Duration::from_secs(5)));
        for wrong in ["", "-1s", "5", "11m", "off"] {
            assert!(delay(wrong).is_err_and(|message| message.contains("accepted: 0s to 10m")), "{wrong}");
        }
    }

    /// Snapshots are written at a sensible pace, or not.
    #[test]
    fn intervals() {
        assert_eq!(interval("off"), Ok(SnapshotInterval::Off));
        assert_eq!(interval("10s"), Ok(SnapshotInterval::Every(Duration::from_secs(10))));
        for wrong in ["", "0s", "-1s", "10", "2d", "99ms", "never"] {
            assert!(interval(wrong).is_err_and(|message| message.contains("accepted: off")), "{wrong}");
        }
    }

    /// A port alone is what people type first, so the message repeats it in the form that works.
    #[test]
    fn addresses() {
        assert_eq!(address("127.0.0.1:0").map(|a| a.port()), Ok(0));
        assert!(address("localhost:9").is_ok_and(|a| a.ip().is_loopback()));
        assert!(address(":9000").is_err_and(|message| message.contains("127.0.0.1:9000")));
        assert!(address("example.com:80").is_err());
    }

    /// A wire can be switched off, and the message says so.
    #[test]
    fn listening_is_a_choice() {
        assert_eq!(listen("off"), Ok(ListenChoice::Off));
        assert!(listen("127.0.0.1:0").is_ok_and(|choice| choice.address().is_some()));
        assert!(
            listen("6380")
                .is_err_and(|message| message.contains("127.0.0.1:6380") && message.ends_with(", or off"))
        );
    }

    /// Text stays text, however much it looks like a number.
    #[test]
    fn attributes() {
        let text = |name: &str, value: &str| GivenAttribute {
            name: name.into(),
            value: GivenValue::Text(value.into()),
        };
        assert_eq!(attribute("a=5"), Ok(text("a", "5")));
        assert_eq!(attribute("a=b=c"), Ok(text("a", "b=c")));
        assert_eq!(attribute("a="), Ok(text("a", "")));
        assert_eq!(
            attribute("a:=-5"),
            Ok(GivenAttribute { name: "a".into(), value: GivenValue::Number(-5) })
        );
        assert!(attribute("a:=x").is_err_and(|message| message.contains("a=x for text")));
        assert!(attribute("a").is_err());
    }

    /// Times and durations outside of what Tollgate can name are refused, not bent.
    #[test]
    fn times() {
        assert_eq!(instant("1970-01-01T00:00:01Z"), Ok(Timestamp::from_unix_seconds(1)));
        assert!(instant("1969-12-31T23:59:59Z").is_err());
        assert!(instant("2113-01-01T00:00:00Z").is_err());
        assert!(instant("tomorrow").is_err());
        assert_eq!(duration("100ms"), Ok(Ticks::from_millis(100)));
        assert_eq!(duration("1m 30s"), Ok(Ticks::from_secs(90)));
        assert_eq!(duration("1.5h"), Ok(Ticks::from_secs(5_400)));
        assert_eq!(duration("7d"), duration("168h"));
        assert_eq!(duration("1w 1d 12h"), Ok(Ticks::from_secs(8 * 86_400 + 43_200)));
        for wrong in ["", "-1s", "-1d", "100", "1mo", "1y", "d"] {
            assert!(duration(wrong).is_err_and(|message| message.contains("or 7d")), "{wrong}");
        }
    }
}
