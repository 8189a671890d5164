//! The adaptive limit: permits, endings, modes. The simulation tests how well it adapts.

use std::sync::atomic::{AtomicU32, Ordering};

use super::T0;
use crate::{AdaptiveLimit, Cause, ChangeReason, Ending, LimitSettings, Priority, Ticket};
use tollgate::policy::Mode;
use tollgate::time::{Ticks, Timestamp};

fn settings() -> LimitSettings {
    LimitSettings { initial: 10, ..LimitSettings::default() }
}

/// Serves a hundred rounds of requests per second, each with this latency and ending.
fn serve(limit: &AdaptiveLimit, from: Timestamp, seconds: u64, took: Ticks, ending: Ending) -> Timestamp {
    let mut now = from;
    for _ in 0..seconds * 100 {
        let held: Vec<Ticket> = std::iter::from_fn(|| limit.try_begin(now)).collect();
        for ticket in held {
            limit.end(ticket, now + took, ending);
        }
        now = now + Ticks::from_millis(10);
    }
    now
}

/// There are as many permits as the limit, and each is returned however its request ends.
#[test]
fn permits_are_taken_and_given_back() {
    let limit = AdaptiveLimit::new(settings());
    for ending in [Ending::Success, Ending::Dropped, Ending::Ignored] {
        let held: Vec<Ticket> = std::iter::from_fn(|| limit.begin(T0)).collect();
        assert_eq!((held.len(), limit.in_flight()), (10, 10));
        for ticket in held {
            limit.end(ticket, T0, ending);
        }
        assert_eq!(limit.in_flight(), 0);
    }
    let report = limit.report(T0);
    assert_eq!((report.refused, report.limit, report.reason), (3, Some(10), ChangeReason::Initial));
    assert_eq!(limit.refusal(Priority::Read).cause, Cause::Concurrency);
}

/// Ten threads never hold more permits than the limit.
#[test]
fn threads_share_the_permits() {
    let limit = AdaptiveLimit::new(LimitSettings { max: 10, ..settings() });
    let (now, most) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                for round in 0..2_000 {
                    let at = T0 + Ticks::from_micros(round * 700);
                    if let Some(ticket) = limit.begin(at) {
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        now.fetch_sub(1, Ordering::SeqCst);
                        limit.end(ticket, at + Ticks::from_millis(2), Ending::Success);
                    }
                }
            });
        }
    });
    assert!(most.load(Ordering::SeqCst) <= 10);
    assert_eq!(limit.in_flight(), 0);
}

/// The limit grows while latency is constant and all permits are used. It does not grow while they are
/// unused.
#[test]
fn a_limit_grows_only_while_it_is_used() {
    let limit = AdaptiveLimit::new(settings());
    let now = serve(&limit, T0, 20, Ticks::from_millis(5), Ending::Success);
    assert!(limit.limit() > 20, "{}", limit.limit());
    assert_eq!(limit.report(now).reason, ChangeReason::QueueShort);
    let mut grown = limit.limit();
    for request in 0..3_000 {
        if request == 200 {
            // The window that began under load is over.
            grown = limit.limit();
        }
        let at = now + Ticks::from_millis(10 * request);
        let ticket = limit.begin(at).unwrap();
        limit.end(ticket, at + Ticks::from_millis(5), Ending::Success);
    }
    assert!(limit.limit() <= grown, "{} after {grown}", limit.limit());
}

/// Losses lower the limit, whatever the latency. A success at the timeout is a loss. A cancelled request does
/// not count.
#[test]
fn losses_lower_the_limit_and_cancellations_do_not() {
    let limit = AdaptiveLimit::new(settings());
    serve(&limit, T0, 20, Ticks::from_millis(5), Ending::Dropped);
    assert!(limit.limit() <= 3, "{}", limit.limit());
    let limit = AdaptiveLimit::new(LimitSettings { timeout: Ticks::from_millis(500), ..settings() });
    let now = serve(&limit, T0, 20, Ticks::from_millis(500), Ending::Success);
    assert!(limit.limit() <= 3, "{}", limit.limit());
    assert_eq!(limit.report(now).reason, ChangeReason::Dropped);
    let limit = AdaptiveLimit::new(settings());
    serve(&limit, T0, 120, Ticks::from_millis(5), Ending::Ignored);
    assert_eq!(limit.limit(), 10);
}

/// The limit never leaves its bounds.
#[test]
fn the_limit_stays_within_its_bounds() {
    let bounded = LimitSettings { min: 4, initial: 10, max: 12, ..LimitSettings::default() };
    let limit = AdaptiveLimit::new(bounded);
    let now = serve(&limit, T0, 30, Ticks::from_millis(5), Ending::Success);
    assert_eq!(limit.limit(), 12);
    serve(&limit, now, 60, Ticks::from_millis(5), Ending::Dropped);
    assert_eq!(limit.limit(), 4);
}

/// Shadow refuses nothing and counts what it would refuse; off learns nothing; the kill switch ends by
/// itself.
#[test]
fn modes_and_kill_switch() {
    let limit = AdaptiveLimit::new(LimitSettings { mode: Mode::Shadow, ..settings() });
    let held: Vec<Ticket> = (0..15).filter_map(|_| limit.begin(T0)).collect();
    assert_eq!((held.len(), limit.report(T0).would_refuse), (15, 5));
    limit.switch().set(Mode::Enforce);
    assert!(limit.begin(T0).is_none());
    limit.switch().kill(T0 + Ticks::from_secs(60));
    let more = limit.begin(T0).unwrap();
    assert_eq!(limit.in_flight(), 16);
    assert!(limit.begin(T0 + Ticks::from_secs(60)).is_none());
    for ticket in held.into_iter().chain([more]) {
        limit.end(ticket, T0, Ending::Ignored);
    }
    assert_eq!(limit.in_flight(), 0);
    limit.switch().set(Mode::Off);
    for request in 0..4_000 {
        let at = T0 + Ticks::from_millis(10 * request);
        let ticket = limit.begin(at).unwrap();
        limit.end(ticket, at, Ending::Dropped);
    }
    assert_eq!(limit.limit(), 10);
}
