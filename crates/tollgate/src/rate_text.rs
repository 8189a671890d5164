//! Numbers as people write them: counts (`1_000`, `10k`), periods (`5m`, `2 hours`) and rates (`100/s burst 200`,
//! `300 per 5m`).

use std::str::FromStr;

#[cfg(feature = "calendar")]
use crate::algorithm::calendar::CalendarUnit;
use crate::problem::{Problem, quoted};
use crate::rate::Rate;
use crate::time::Ticks;

/// Accepted forms of a rate, for messages.
#[cfg_attr(not(feature = "policy"), expect(unreachable_pub, reason = "the module `policy` exports it"))]
pub const RATES: &str =
    "a count and a period, such as 100/s, 5/min, 1_000/h, 10k/day, 300 per 5m or 100/s burst 200";
/// Accepted forms of a count, for messages.
const COUNTS: &str = "a whole number such as 200, 1_000, 10k or 1M";
/// Accepted forms of a period, for messages.
const PERIODS: &str = "a period such as 10ms, s, 5min, h, day, week, month or year";

/// A period as written: so many of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Period {
    pub(crate) count: u64,
    pub(crate) unit: TimeUnit,
}

/// A unit of time. A month is 30 days and a year 365, except in a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TimeUnit {
    Microsecond,
    Millisecond,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

/// A rate as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WrittenRate {
    pub(crate) units: u64,
    pub(crate) period: Period,
    pub(crate) burst: Option<u64>,
}

impl TimeUnit {
    const fn ticks(self) -> u64 {
        match self {
            TimeUnit::Microsecond => 1,
            TimeUnit::Millisecond => 1_000,
            TimeUnit::Second => 1_000_000,
            TimeUnit::Minute => 60 * 1_000_000,
            TimeUnit::Hour => 3_600 * 1_000_000,
            TimeUnit::Day => 86_400 * 1_000_000,
            TimeUnit::Week => 7 * 86_400 * 1_000_000,
            TimeUnit::Month => 30 * 86_400 * 1_000_000,
            TimeUnit::Year => 365 * 86_400 * 1_000_000,
        }
    }

    fn read(text: &str) -> Option<Self> {
        Some(match text.to_ascii_lowercase().as_str() {
            "us" | "µs" | "microsecond" | "microseconds" => TimeUnit::Microsecond,
            "ms" | "millisecond" | "milliseconds" => TimeUnit::Millisecond,
            "s" | "sec" | "secs" | "second" | "seconds" => TimeUnit::Second,
            "m" | "min" | "mins" | "minute" | "minutes" => TimeUnit::Minute,
            "h" | "hr" | "hrs" | "hour" | "hours" => TimeUnit::Hour,
            "d" | "day" | "days" => TimeUnit::Day,
            "w" | "week" | "weeks" => TimeUnit::Week,
            "mo" | "month" | "months" => TimeUnit::Month,
            "y" | "yr" | "year" | "years" => TimeUnit::Year,
            _ => return None,
        })
    }
}

impl TimeUnit {
    /// The unit that a text probably means.
    fn meant(text: &str) -> Option<&'static str> {
        const UNITS: [&str; 7] = ["s", "min", "h", "day", "week", "month", "year"];
        let text = text.to_ascii_lowercase();
        let begins = |unit: &&&str| text.starts_with(&unit[..1]) && text.len() <= unit.len() + 2;
        // `sc` means s, `mn` and `minuti` min, `mth` and `mois` month, `hs` h, `wk` week.
        let is_month = text.starts_with("mo") || text.starts_with("mt");
        match text.as_bytes().first()? {
            b'm' if is_month => Some("month"),
            b'm' if text.starts_with("mi") || text.starts_with("mn") => Some("min"),
            b'm' => None,
            _ => UNITS.iter().find(begins).copied(),
        }
    }
}

impl Period {
    /// Its length, at most [`Ticks::MAX`].
    pub(crate) const fn ticks(self) -> Ticks {
        Ticks::from_micros(self.count.saturating_mul(self.unit.ticks()))
    }

    /// The calendar's unit, if the period is exactly one of them.
    #[cfg(feature = "calendar")]
    pub(crate) const fn calendar(self) -> Option<CalendarUnit> {
        if self.count != 1 {
            return None;
        }
        match self.unit {
            TimeUnit::Minute => Some(CalendarUnit::Minute),
            TimeUnit::Hour => Some(CalendarUnit::Hour),
            TimeUnit::Day => Some(CalendarUnit::Day),
            TimeUnit::Week => Some(CalendarUnit::Week),
            TimeUnit::Month => Some(CalendarUnit::Month),
            TimeUnit::Year => Some(CalendarUnit::Year),
            TimeUnit::Microsecond | TimeUnit::Millisecond | TimeUnit::Second => None,
        }
    }
}

impl WrittenRate {
    /// The rate that it means.
    pub(crate) const fn rate(self) -> Rate {
        let rate = Rate::per_ticks(self.units, self.period.ticks());
        match self.burst {
            Some(burst) => rate.burst(burst),
            None => rate,
        }
    }
}

impl FromStr for Rate {
    type Err = Problem;

    /// Reads a rate as a policy file has it.
    ///
    /// ```
    /// use tollgate::Rate;
    /// assert_eq!("100/s burst 200".parse(), Ok(Rate::per_second(100).burst(200)));
    /// ```
    fn from_str(text: &str) -> Result<Self, Problem> {
        rate(text).map(WrittenRate::rate)
    }
}

/// Reads a rate.
pub(crate) fn rate(text: &str) -> Result<WrittenRate, Problem> {
    let trimmed = text.trim();
    let (body, burst) = match trimmed.split_once("burst") {
        Some((body, burst)) => (body.trim_end(), Some(count(burst.trim())?)),
        None => (trimmed, None),
    };
    let Some((left, right)) = halves(body) else {
        return Err(without_period(body));
    };
    if inverted(left, right) {
        let message = format!("{} is upside down: the count comes first", quoted(trimmed));
        let unit = if left.is_empty() { "s" } else { left };
        return Err(Problem::new(message, format!("{right}/{unit}, if that is what was meant")));
    }
    Ok(WrittenRate { units: count(left)?, period: period(right)?, burst })
}

/// The text before and after the first `/` or word for it.
fn halves(body: &str) -> Option<(&str, &str)> {
    if let Some((left, right)) = body.split_once('/') {
        return Some((left.trim(), right.trim()));
    }
    let padded = |word: &str| {
        let found = body.find(word)?;
        let (before, after) = (&body[..found], &body[found + word.len()..]);
        let apart = (before.is_empty() || before.ends_with(' ')) && after.starts_with(' ');
        apart.then(|| (before.trim(), after.trim()))
    };
    ["per", "every", "each"].into_iter().find_map(padded)
}

/// Whether what should be the count is a period, and what should be the period a count.
fn inverted(left: &str, right: &str) -> bool {
    let counts = |text: &str| count(text).is_ok();
    counts(right) && (left.is_empty() || (!counts(left) && period(left).is_ok()))
}

fn without_period(body: &str) -> Problem {
    if count(body).is_ok() {
        let accepted = format!("a period with it, such as {body}/s or {body}/min");
        return Problem::new(format!("{} has no period", quoted(body)), accepted);
    }
    Problem::new(format!("{} is not a rate", quoted(body)), RATES)
}

/// Reads a period: a unit, or a count and a unit.
pub(crate) fn period(text: &str) -> Result<Period, Problem> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let problem = |message: String| Problem::new(message, PERIODS);
    if unit.is_empty() {
        return Err(problem(format!("{} has no unit of time", quoted(text))));
    }
    if unit == "M" {
        let message = "M could be minutes or months".to_owned();
        return Err(Problem::new(message, "min or month"));
    }
    if matches!(unit, "ns" | "nanosecond" | "nanoseconds") {
        let message = format!("{} is finer than the clock, which ticks in microseconds", quoted(text));
        return Err(problem(message));
    }
    if unit.starts_with(['-', '.', '+']) {
        let message = format!("{} is not a period of a positive whole number of units", quoted(text));
        return Err(problem(message));
    }
    let Some(unit) = TimeUnit::read(unit) else {
        let meant = TimeUnit::meant(unit).map(|meant| format!("; did you mean {number}{meant}?"));
        let message = format!("{} is not a unit of time{}", quoted(unit), meant.unwrap_or_default());
        return Err(problem(message));
    };
    let count = if number.is_empty() { 1 } else { count(number)? };
    if count == 0 {
        return Err(problem(format!("{} is no time at all", quoted(text))));
    }
    Ok(Period { count, unit })
}

/// Reads a count: decimal digits, `_` between them, and at the end perhaps `k`, `M` or `G`.
pub(crate) fn count(text: &str) -> Result<u64, Problem> {
    let problem = |what: &str| Problem::new(format!("{} {what}", quoted(text)), COUNTS);
    if text.is_empty() {
        return Err(Problem::new("a count is missing", COUNTS));
    }
    let (digits, factor) = match text.as_bytes()[text.len() - 1] {
        b'k' | b'K' => (&text[..text.len() - 1], 1_000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        b'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    let grouped = !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
    if digits.is_empty() || !grouped || !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_') {
        return Err(problem(oddity(text)));
    }
    let too_large = || problem("is larger than anything can count");
    let digits = digits.replace('_', "");
    let number: u64 = digits.parse().map_err(|_| too_large())?;
    number.checked_mul(factor).ok_or_else(too_large)
}

/// The problem with a text that is not a count.
fn oddity(text: &str) -> &'static str {
    let lower = text.trim_start_matches(['+', '-', '.']).to_ascii_lowercase();
    if lower == "nan" || lower == "inf" || lower == "infinity" {
        "is not a number that counts"
    } else if text.starts_with('-') {
        "is negative"
    } else if text.contains(',') {
        "has a comma; group digits with _"
    } else if text.contains('.') {
        "is not a whole number"
    } else if text.ends_with('m') {
        "has the suffix m, which is milli; a million is M"
    } else {
        "is not a whole number in decimal"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates read as English.
    #[test]
    fn rates_are_read() {
        let hour = Ticks::from_secs(3600);
        for (text, wanted) in [
            ("100/s", Rate::per_second(100)),
            ("5/min", Rate::per_minute(5)),
            ("1_000/h", Rate::per_hour(1000)),
            ("10k/day", Rate::per_day(10_000)),
            ("1M/month", Rate::per_month(1_000_000)),
            ("300 per 5m", Rate::per_ticks(300, Ticks::from_secs(300))),
            ("100/s burst 200", Rate::per_second(100).burst(200)),
            ("10 per second", Rate::per_second(10)),
            ("10 every 2 hours", Rate::per_ticks(10, hour + hour)),
            (" 1 / week ", Rate::per_ticks(1, Ticks::from_secs(7 * 86_400))),
            ("1/year", Rate::per_ticks(1, Ticks::from_secs(365 * 86_400))),
            ("1/250ms", Rate::per_ticks(1, Ticks::from_millis(250))),
            ("7 per perfect", Rate::per_second(0)),
        ] {
            if wanted.units() == 0 {
                assert!(text.parse::<Rate>().is_err(), "{text}");
            } else {
                assert_eq!(text.parse::<Rate>(), Ok(wanted), "{text}");
            }
        }
    }

    /// Errors name the problem and offer the probable spelling.
    #[test]
    fn bad_rates_are_explained() {
        for (text, wanted) in [
            ("s/100", "upside down: the count comes first; accepted: 100/s"),
            ("1s/100", "upside down: the count comes first; accepted: 100/1s"),
            ("per 100", "upside down"),
            ("minute per 5", "accepted: 5/minute"),
            ("100", "100 has no period; accepted: a period with it, such as 100/s"),
            ("100/60", "60 has no unit of time"),
            ("-5/s", "-5 is negative"),
            ("1.5/s", "1.5 is not a whole number"),
            (".nan/s", "not a number that counts"),
            ("inf/s", "not a number that counts"),
            ("1,000/s", "group digits with _"),
            ("10m/day", "a million is M"),
            ("5/M", "M could be minutes or months; accepted: min or month"),
            ("5/fortnight", "fortnight is not a unit of time; accepted"),
            ("5/mn", "mn is not a unit of time; did you mean min?"),
            ("5 per 2mn", "mn is not a unit of time; did you mean 2min?"),
            ("5/sc", "did you mean s?"),
            ("5/wk", "did you mean week?"),
            ("5/mth", "did you mean month?"),
            ("5/dai", "did you mean day?"),
            ("5/soon", "soon is not a unit of time; accepted"),
            ("5/100ns", "finer than the clock"),
            ("5/0s", "0s is no time at all"),
            ("5/-1s", "not a period of a positive whole number"),
            ("99999999999999999999/s", "larger than anything can count"),
            ("20000000000G/s", "larger than anything can count"),
            ("lots", "lots is not a rate"),
            ("", "is not a rate"),
            ("100/s burst", "a count is missing"),
            ("1e6/s", "not a whole number in decimal"),
            ("1__0/s", "not a whole number in decimal"),
        ] {
            let problem = rate(text).unwrap_err().to_string();
            assert!(problem.contains(wanted), "{text}: {problem}");
        }
    }
}
