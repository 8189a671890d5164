//! The breaker's transitions, each under a clock of its own.

use super::*;

const DEADLINE: Duration = Duration::from_millis(5);
const QUICK: Duration = Duration::from_micros(300);
const RANDOM: u64 = u64::MAX / 3;

fn after(start: Instant, millis: u64) -> Instant {
    start + Duration::from_millis(millis)
}

fn closed() -> (Breaker, Instant) {
    let start = Instant::now();
    (Breaker::new(DEADLINE, start), start)
}

fn opened() -> (Breaker, Instant) {
    let (breaker, start) = closed();
    (0..5).for_each(|_| breaker.failed(Severity::Counts, start, RANDOM));
    assert_eq!(breaker.state(), BreakerState::Open);
    (breaker, start)
}

/// Five consecutive failures open the breaker; four and a success do not.
#[test]
fn consecutive_failures_open_the_breaker() {
    let (breaker, start) = closed();
    for _ in 0..4 {
        (0..4).for_each(|_| breaker.failed(Severity::Counts, start, RANDOM));
        breaker.succeeded(QUICK, start, RANDOM);
        (0..8).for_each(|_| breaker.succeeded(QUICK, start, RANDOM));
    }
    assert!(breaker.admits());
    (0..5).for_each(|_| breaker.failed(Severity::Counts, start, RANDOM));
    assert!(!breaker.admits());
    assert_eq!(breaker.opened(), 1);
}

/// A second in which half of the calls were slow opens the breaker, even though all were answered.
#[test]
fn slow_answers_open_the_breaker() {
    let (breaker, start) = closed();
    for _ in 0..10 {
        breaker.succeeded(QUICK, start, RANDOM);
        breaker.succeeded(Duration::from_micros(4_100), start, RANDOM);
    }
    assert_eq!(breaker.state(), BreakerState::Open);
}

/// The same ratio in seconds of fewer than twenty calls does not open it.
#[test]
fn few_calls_do_not_open_the_breaker() {
    let (breaker, start) = closed();
    for second in 0..5 {
        (0..9).for_each(|_| breaker.succeeded(QUICK, after(start, second * 1_000), RANDOM));
        (0..9).for_each(|_| breaker.succeeded(DEADLINE, after(start, second * 1_000), RANDOM));
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
}

/// Failures that say nothing about the shard never open the breaker.
#[test]
fn harmless_failures_are_not_counted() {
    let (breaker, start) = closed();
    (0..1_000).for_each(|_| breaker.failed(Severity::None, start, RANDOM));
    assert!(breaker.admits());
    assert_eq!(breaker.away_for(start), None);
}

/// A refused password opens the breaker for ten seconds, even if it was open for less, and a new connection does not
/// shorten that.
#[test]
fn fatal_failures_open_the_breaker_for_long() {
    let (breaker, start) = closed();
    breaker.failed(Severity::Fatal, start, RANDOM);
    breaker.connected(start);
    assert!(!breaker.wants_probe(after(start, 9_999)));
    assert!(breaker.wants_probe(after(start, 10_000)));
    let (breaker, start) = opened();
    breaker.failed(Severity::Fatal, start, RANDOM);
    assert!(!breaker.wants_probe(after(start, 9_999)));
}

/// Pauses grow up to their maximum, with jitter.
#[test]
fn pauses_grow_and_are_jittered() {
    let (breaker, mut now) = closed();
    let mut longest = Vec::new();
    for _ in 0..6 {
        breaker.failed(Severity::Trips, now, u64::MAX);
        let mut waited = 0;
        while !breaker.wants_probe(after(now, waited)) {
            waited += 1;
        }
        longest.push(waited);
        now = after(now, waited);
    }
    assert!(longest.iter().all(|&waited| waited <= 200), "{longest:?}");
    assert_eq!(fraction(OPEN_MAX, 0), Duration::ZERO);
    assert_eq!(fraction(OPEN_MAX, 200_000), OPEN_MAX);
}

/// The breaker closes after three probes and steps of 1, 10 and 50 percent.
#[test]
fn breaker_closes_through_probes_and_steps() {
    let (breaker, start) = opened();
    let mut now = after(start, 1_000);
    for _ in 0..3 {
        assert!(breaker.wants_probe(now));
        assert!(!breaker.admits());
        breaker.probed(now);
    }
    for share in [1, 10, 50] {
        assert_eq!(breaker.state(), BreakerState::Ramping);
        let admitted = (0..1_000).filter(|_| breaker.admits()).count();
        assert_eq!(admitted, share * 10);
        breaker.succeeded(QUICK, now, RANDOM);
        breaker.tick(after(now, 0));
        now = after(now, 250);
        breaker.tick(now);
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
    assert!((0..1_000).all(|_| breaker.admits()));
}

/// Failures during recovery open the breaker again. Slow answers only delay it, and not forever.
#[test]
fn failed_recovery_starts_over() {
    let recovering = || {
        let (breaker, start) = opened();
        let now = after(start, 1_000);
        (0..3).for_each(|_| {
            breaker.wants_probe(now);
            breaker.probed(now);
        });
        (breaker, now)
    };
    let (breaker, now) = recovering();
    breaker.failed(Severity::Counts, now, RANDOM);
    assert_eq!(breaker.state(), BreakerState::Ramping);
    breaker.failed(Severity::Counts, now, RANDOM);
    assert_eq!(breaker.state(), BreakerState::Open);

    let (breaker, start) = recovering();
    let mut steps = 0;
    let mut now = start;
    while breaker.state() != BreakerState::Closed {
        breaker.succeeded(Duration::from_millis(3), now, RANDOM);
        now = after(now, 250);
        breaker.tick(now);
        steps += 1;
    }
    assert_eq!(steps, 9);
}

/// A failed probe opens the breaker again.
#[test]
fn failed_probe_opens_the_breaker() {
    let (breaker, start) = opened();
    let now = after(start, 1_000);
    assert!(breaker.wants_probe(now));
    breaker.probed(now);
    breaker.failed(Severity::Counts, now, RANDOM);
    assert_eq!(breaker.state(), BreakerState::Open);
}

/// An outage starts with the first of the failures that opened the breaker, spans short recoveries, and ends after half
/// a minute.
#[test]
fn flapping_store_is_one_outage() {
    let (breaker, start) = closed();
    (0..5).for_each(|millis| breaker.failed(Severity::Counts, after(start, millis), RANDOM));
    let recover = |from: Instant| {
        let mut now = after(from, 1_000);
        (0..3).for_each(|_| {
            breaker.wants_probe(now);
            breaker.probed(now);
        });
        while breaker.state() != BreakerState::Closed {
            now = after(now, 250);
            breaker.tick(now);
        }
        now
    };
    let well = recover(start);
    assert_eq!(breaker.away_for(well), Some(well - start));
    let again = after(well, 20_000);
    breaker.failed(Severity::Trips, again, RANDOM);
    assert_eq!(breaker.away_for(again), Some(again - start));
    let well = recover(again);
    assert_eq!(breaker.away_for(after(well, 31_000)), None);
    breaker.tick(after(well, 31_000));
    let later = after(well, 40_000);
    breaker.failed(Severity::Trips, later, RANDOM);
    assert_eq!(breaker.away_for(after(later, 7)), Some(Duration::from_millis(7)));
}
