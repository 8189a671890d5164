//! Parsers of single values of the command line. Each message says what would be accepted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use tollgate::Value;
use tollgate_sim::suggest::{HEADROOM_WHOLE, KeyShare};

use crate::snapshot::SnapshotInterval;
pub(super) use crate::store::{nodes, store_deadline};
use crate::time_text::signed;
pub(super) use crate::time_text::{duration, instant};

#[cfg(test)]
mod tests;

/// Maximum decisions of one `decide`.
pub(super) const TIMES_MAX: u64 = 1_000_000;
/// Maximum length of the URL of an admin interface.
const URL_CHARS_MAX: usize = 255;
/// Minimum and maximum memory for counters.
const MEMORY_BYTES: (u64, u64) = (1 << 20, 1 << 40);

/// The address on which a protocol listens, or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenChoice {
    /// At this address.
    At(SocketAddr),
    /// It does not listen.
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

impl<'a> From<&'a GivenValue> for Value<'a> {
    fn from(given: &'a GivenValue) -> Self {
        match given {
            GivenValue::Text(text) => Value::Text(text),
            GivenValue::Number(number) => Value::Number(*number),
        }
    }
}

impl From<Value<'_>> for GivenValue {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Text(text) => GivenValue::Text(text.to_owned()),
            Value::Number(number) => GivenValue::Number(number),
        }
    }
}

/// Parses the URL of an admin interface: a scheme, a host and perhaps a port.
pub(super) fn admin_url(text: &str) -> Result<String, String> {
    let wrong =
        || "accepted: http:// or https:// with a host and perhaps a port, as http://10.0.0.5:8080".to_owned();
    let url = text.trim_end_matches('/');
    let uri: http::Uri = url.parse().map_err(|_| wrong())?;
    let is_plain = uri.path() == "/" && uri.query().is_none() && url.len() <= URL_CHARS_MAX;
    let has_user = uri.authority().is_none_or(|authority| authority.as_str().contains('@'));
    match uri.scheme_str() {
        Some("http" | "https") if is_plain && !has_user => Ok(url.to_owned()),
        _ => Err(wrong()),
    }
}

/// Parses the number of connections of a load generator.
pub(super) fn connections(text: &str) -> Result<usize, String> {
    within(text, 1, 10_000)
}

/// Parses the number of requests in flight on a connection.
pub(super) fn pipeline(text: &str) -> Result<usize, String> {
    within(text, 1, 1_000)
}

/// Parses the number of checks in a batch.
pub(super) fn batch(text: &str) -> Result<usize, String> {
    within(text, 1, 1_000)
}

fn within(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("accepted: a whole number from {least} to {most}"))
}

/// An address to listen on. `localhost` is the only name that is accepted: the resolution of another name would decide
/// which machines can connect.
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

/// An address to listen on, or `off`.
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

/// A share in per cent, such as `99.9%`, with up to four decimals.
pub(super) fn share(text: &str) -> Result<KeyShare, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    let share = decimal(number, 4).and_then(|ten_thousandths| u32::try_from(ten_thousandths).ok());
    share
        .and_then(KeyShare::from_millionths)
        .ok_or_else(|| "not a share; accepted: more than 0% and at most 100%, such as 99.9%".to_owned())
}

/// A factor from 1 to 10 with up to two decimals, in hundredths.
pub(super) fn headroom(text: &str) -> Result<u64, String> {
    let factor = decimal(text, 2).filter(|factor| (HEADROOM_WHOLE..=10 * HEADROOM_WHOLE).contains(factor));
    factor.ok_or_else(|| "not a factor; accepted: 1 to 10, such as 1.5".to_owned())
}

/// A decimal number with at most so many digits after its point, in units of the last of them.
fn decimal(text: &str, digits: usize) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || part.len() > digits || !is_number(whole) || !is_number(part) {
        return None;
    }
    format!("{whole}{part:0<digits$}").parse().ok()
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

/// Longest time for which a server goes on serving after the stop signal.
const DELAY_MAX: Duration = Duration::from_secs(600);

/// Parses that time.
pub(super) fn delay(text: &str) -> Result<Duration, String> {
    let accepted = "accepted: 0s to 10m, such as 5s";
    let delay = signed(text).ok_or_else(|| format!("not a duration; {accepted}"))?;
    let delay = Duration::try_from(delay).ok().filter(|delay| *delay <= DELAY_MAX);
    delay.ok_or_else(|| format!("out of range; {accepted}"))
}
