//! The time distance to a server: its clock compared with the local one, and its latency.

use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tollgate::Clock;

use super::node::{Node, error_text};
use super::report::{CheckFinding, Mark};
use super::rights::{is_forbidden, tidy};
use super::slot;
use crate::telemetry::Stopwatch;

/// How many samples a latency is measured from.
const ROUNDS: usize = 100;
/// How many times the clock is read. The fastest answer counts.
const LOOKS: usize = 5;
/// Clock offset from which a warning is reported, in microseconds.
const OFFSET_WARN: i64 = 1_000_000;
/// Clock offset from which calendar windows start at a visibly wrong time, in microseconds.
const OFFSET_FAIL: i64 = 300_000_000;

/// Its clock compared with that of this machine, in microseconds: positive if it is ahead.
pub(super) async fn offset(node: &Node) -> Option<i64> {
    let clock = Clock::precise();
    let mut best: Option<(Duration, i64)> = None;
    for _ in 0..LOOKS {
        let (watch, before) = (Stopwatch::start(), clock.now());
        let (seconds, micros): (i64, i64) = node.ask(&redis::cmd("TIME")).await.ok()?;
        let took = watch.elapsed();
        let middle = i64::try_from(before.unix_micros()).ok()? + i64::try_from(took.as_micros()).ok()? / 2;
        let offset = seconds.checked_mul(1_000_000)?.checked_add(micros)?.checked_sub(middle)?;
        if best.is_none_or(|(quickest, _)| took < quickest) {
            best = Some((took, offset));
        }
    }
    best.map(|(_, offset)| offset)
}

/// Judges a clock offset.
pub(super) fn clock(offset: i64) -> CheckFinding {
    let found = format!(
        "{} ms {}",
        millis_of(offset.unsigned_abs()),
        if offset < 0 { "behind this machine" } else { "ahead of this machine" }
    );
    let cure = "let both machines follow NTP; Tollgate counts by the store's clock, so windows begin when that says so";
    match offset.abs() {
        OFFSET_FAIL.. => CheckFinding::new(Mark::Fail, "clock", found).cured_by(cure),
        OFFSET_WARN.. => CheckFinding::new(Mark::Warn, "clock", found).cured_by(cure),
        _ => CheckFinding::ok("clock", found),
    }
}

/// The latency of a PING and of a script, compared with the deadline of a decision.
pub(super) async fn latency(node: &Node, slots: &[(u16, u16)], deadline: Duration) -> Vec<CheckFinding> {
    let Some(tag) = slot::tag_within(slots) else { return Vec::new() };
    let key = format!("tg:{{{tag}}}check-{:016x}", crate::random::next());
    let mut script = redis::cmd("EVAL");
    script
        .arg("local n = redis.call('TIME')[2]; redis.call('SET', KEYS[1], n, 'PX', 10000); return n")
        .arg(1)
        .arg(&key);
    let mut lines = Vec::new();
    for (what, command) in [("PING", redis::cmd("PING")), ("script", script)] {
        match measured(node, &command).await {
            Ok(times) => lines.push(judged(what, &times, deadline)),
            Err(error) if is_forbidden(&error) => {} // Reported by the check of rights.
            Err(error) => lines.push(CheckFinding::new(
                Mark::Fail,
                "latency",
                format!("{what}: {}", error_text(&error)),
            )),
        }
    }
    let _ = node.does(&tidy(&[&key])).await; // It expires by itself otherwise.
    lines
}

async fn measured(node: &Node, command: &Cmd) -> Result<Vec<Duration>, RedisError> {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let watch = Stopwatch::start();
        node.ask::<Value>(command).await?;
        times.push(watch.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

fn judged(what: &str, times: &[Duration], deadline: Duration) -> CheckFinding {
    let at = |place: usize| times.get(place.min(times.len().saturating_sub(1))).copied().unwrap_or_default();
    let (middle, late) = (at(times.len() / 2), at((times.len() * 99).div_ceil(100).saturating_sub(1)));
    let found = format!(
        "{what}: median {} ms, p99 {} ms of {} calls (deadline {} ms)",
        millis(middle),
        millis(late),
        times.len(),
        millis(deadline)
    );
    let cure = "put it nearer to its servers, see what else it does (SLOWLOG GET, LATENCY DOCTOR), or raise --store-deadline (50ms at most)";
    if middle >= deadline {
        return CheckFinding::new(Mark::Fail, "latency", found).cured_by(cure);
    }
    match late >= deadline / 2 {
        true => CheckFinding::new(Mark::Warn, "latency", found).cured_by(cure),
        false => CheckFinding::ok("latency", found),
    }
}

pub(super) fn millis(duration: Duration) -> String {
    millis_of(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

fn millis_of(micros: u64) -> String {
    format!("{}.{:02}", micros / 1_000, micros % 1_000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock is judged by the size of its offset, in both directions.
    #[test]
    fn clocks_are_judged() {
        assert_eq!((clock(999_999).mark, clock(-999_999).mark), (Mark::Ok, Mark::Ok));
        assert_eq!((clock(1_000_000).mark, clock(-299_999_999).mark), (Mark::Warn, Mark::Warn));
        assert_eq!((clock(300_000_000).mark, clock(-300_000_000).mark), (Mark::Fail, Mark::Fail));
        assert_eq!(clock(-1_234_567).found, "1234.56 ms behind this machine");
    }

    /// Latency is judged against the deadline: occasionally half of it is a warning, usually all of it is a failure.
    #[test]
    fn latency_is_judged_by_the_deadline() {
        let (short, half, long) =
            (Duration::from_micros(90), Duration::from_millis(3), Duration::from_millis(6));
        let of = |usual, worst| {
            let mut times = vec![usual; 97];
            times.extend([worst; 3]);
            judged("PING", &times, Duration::from_millis(5)).mark
        };
        assert_eq!(
            [of(short, short), of(short, half), of(half, long), of(long, long)],
            [Mark::Ok, Mark::Warn, Mark::Warn, Mark::Fail]
        );
    }
}
