//! Quotas as text, as nodes store them for each other. The format changes only together with the prefix of keys.

use std::str::SplitWhitespace;
use std::time::Duration;

use tollgate::algorithm::calendar::{Calendar, CalendarUnit};
use tollgate::algorithm::fixed_window::{Align, FixedWindow};
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::rate::EXACT_MAX;
use tollgate::{Quota, Rate, Ticks};

/// Stands for a rate without a burst.
const NONE: &str = "-";

/// Names of calendar units.
const UNITS: [(&str, CalendarUnit); 6] = [
    ("minute", CalendarUnit::Minute),
    ("hour", CalendarUnit::Hour),
    ("day", CalendarUnit::Day),
    ("week", CalendarUnit::Week),
    ("month", CalendarUnit::Month),
    ("year", CalendarUnit::Year),
];

/// Formats a quota.
pub(super) fn write(quota: &Quota) -> String {
    let name = quota.algorithm();
    match quota {
        Quota::TokenBucket(bucket) => format!("{name} {}", rate(bucket.rate())),
        Quota::Gcra(bucket) => format!("{name} {}", rate(bucket.rate())),
        Quota::LeakyBucket(bucket) => format!("{name} {} {}", rate(bucket.rate()), bucket.queue()),
        Quota::FixedWindow(window) => {
            format!("{name} {} {} {}", window.limit(), window.period().as_micros(), align(window.align()))
        }
        Quota::SlidingWindow(window) => {
            let estimate = match window.estimate() {
                Estimate::Strict => "strict",
                Estimate::Interpolate => "interpolate",
            };
            let (limit, period) = (window.limit(), window.period().as_micros());
            format!("{name} {limit} {period} {} {estimate}", window.precision())
        }
        Quota::SlidingLog(log) => format!("{name} {} {}", log.limit(), log.period().as_micros()),
        Quota::Concurrency(permits) => {
            format!("{name} {} {}", permits.limit(), permits.ttl().as_micros())
        }
    }
}

fn rate(rate: Rate) -> String {
    let burst = rate.burst_units().map_or_else(|| NONE.to_owned(), |burst| burst.to_string());
    format!("{} {} {burst}", rate.units(), rate.period().as_micros())
}

fn align(align: &Align) -> String {
    match align {
        Align::Epoch => "epoch".to_owned(),
        Align::FirstHit => "first-hit".to_owned(),
        Align::Calendar(calendar) => {
            let unit = UNITS.iter().find(|(_, unit)| *unit == calendar.unit());
            let unit = unit.map_or(NONE, |(name, _)| *name);
            match calendar.billing_day() {
                1 => format!("{unit} {}", calendar.zone()),
                day => format!("{unit}/{day} {}", calendar.zone()),
            }
        }
    }
}

/// Parses a quota. None for unknown text, such as that of a newer release.
pub(super) fn parse(text: &str) -> Option<Quota> {
    let mut words = text.split_whitespace();
    let words = &mut words;
    let quota = match words.next()? {
        "token-bucket" => Quota::token_bucket(read_rate(words)?).ok()?,
        "gcra" => Quota::gcra(read_rate(words)?).ok()?,
        "leaky-bucket" => {
            let rate = read_rate(words)?;
            Quota::leaky_bucket(rate, number(words)?).ok()?
        }
        "fixed-window" => {
            let (limit, period) = (number(words)?, Ticks::from_micros(number(words)?));
            let align = read_align(words)?;
            Quota::FixedWindow(if limit == EXACT_MAX {
                FixedWindow::counting(period, align).ok()?
            } else {
                FixedWindow::new(Rate::per_ticks(limit, period), align).ok()?
            })
        }
        "sliding-window" => {
            let rate = window_rate(words)?;
            let precision = words.next()?.parse().ok()?;
            let estimate = match words.next()? {
                "strict" => Estimate::Strict,
                "interpolate" => Estimate::Interpolate,
                _ => return None,
            };
            Quota::sliding_window(rate, precision, estimate).ok()?
        }
        "sliding-log" => Quota::sliding_log(window_rate(words)?).ok()?,
        "concurrency" => Quota::concurrency(number(words)?, Duration::from_micros(number(words)?)).ok()?,
        _ => return None,
    };
    words.next().is_none().then_some(quota)
}

fn number(words: &mut SplitWhitespace<'_>) -> Option<u64> {
    words.next()?.parse().ok()
}

fn window_rate(words: &mut SplitWhitespace<'_>) -> Option<Rate> {
    Some(Rate::per_ticks(number(words)?, Ticks::from_micros(number(words)?)))
}

fn read_rate(words: &mut SplitWhitespace<'_>) -> Option<Rate> {
    let rate = window_rate(words)?;
    match words.next()? {
        NONE => Some(rate),
        burst => Some(rate.burst(burst.parse().ok()?)),
    }
}

fn read_align(words: &mut SplitWhitespace<'_>) -> Option<Align> {
    Some(match words.next()? {
        "epoch" => Align::Epoch,
        "first-hit" => Align::FirstHit,
        name => {
            let (name, day) = match name.split_once('/') {
                Some((name, day)) => (name, Some(day.parse().ok()?)),
                None => (name, None),
            };
            let (_, unit) = UNITS.iter().find(|(known, _)| *known == name)?;
            let calendar = Calendar::new(*unit, words.next()?).ok()?;
            Align::Calendar(match day {
                Some(day) => calendar.billed_on(day).ok()?,
                None => calendar,
            })
        }
    })
}
