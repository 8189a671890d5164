//! Ranges of logs with stamps of whole seconds contain the truth, at every size and for whatever traffic.

use std::collections::HashMap;

use tollgate::time::TICKS_PER_SECOND;
use tollgate::{Ticks, Timestamp};

use super::{START, Sent, policy, truth};
use crate::limiter::Limiter;
use crate::log::{Precision, Record};
use crate::random::Random;
use crate::replay::bounds::OWN;
use crate::replay::scaled::{QUARTERS, resized};
use crate::replay::{Given, InputReport, Options, Range, Replay, Report};

/// A request and how long it took.
type Timed = (Sent, Ticks);

/// Bursts, steady streams and pauses of a few users.
fn traffic(random: &mut Random, is_timed: bool) -> Vec<Timed> {
    let (mut at, mut all) = (START + random.below(TICKS_PER_SECOND), Vec::new());
    let (users, mean) = (1 + random.below(6), 20_000 + random.below(600_000));
    for _ in 0..300 {
        at += match random.below(4) {
            0 => random.below(3_000),
            1 => random.below(6) * 500_000,
            _ => random.exponential(mean),
        };
        let user = format!("u{}", random.below(users));
        let duration = if is_timed { random.below(3 * TICKS_PER_SECOND) / 1_000 * 1_000 } else { 0 };
        let sent = Sent { at: Timestamp::from_unix_micros(at), user, plan: "free", size: "1".to_owned() };
        all.push((sent, Ticks::from_micros(duration)));
    }
    all
}

/// The report of the log that nginx would write: the second of the end, less the duration if it is logged.
fn reported(text: &str, requests: &[Timed], is_timed: bool) -> Report {
    let mut lines: Vec<&Timed> = requests.iter().collect();
    lines.sort_by_key(|(sent, duration)| sent.at + *duration);
    let mut replay = Replay::new(policy(text), None, Options::default(), Given);
    for (sent, duration) in lines {
        let end = (sent.at + *duration).unix_micros() / TICKS_PER_SECOND;
        let arrival = Timestamp::from_unix_seconds(end) - *duration;
        let duration = is_timed.then_some(*duration);
        let record = super::record_of(sent);
        replay.push(&Record { arrival, duration, precision: Precision::Second, ..record }).unwrap();
    }
    let report = replay.finish(InputReport::default()).unwrap();
    assert_eq!(report.input.late, 0);
    report
}

fn holds(range: Option<Range>, truth: u64) -> bool {
    range.is_some_and(|range| (range.low..=range.high).contains(&truth))
}

/// A random index below a number.
fn index(random: &mut Random, below: u64) -> usize {
    usize::try_from(random.below(below)).unwrap()
}

/// A policy of one limit, and whether its bounds are proven.
fn one_limit(random: &mut Random) -> (String, bool) {
    let period = ["1s", "2s", "3s", "10s", "1500ms", "1min"][index(random, 6)];
    let (units, burst) = (1 + random.below(12), 1 + random.below(15));
    let kinds = [
        format!("rate: {units}/{period}, burst: {burst}"),
        format!("rate: {units}/{period}, burst: {burst}, algorithm: gcra"),
        format!("rate: {units}/{period}, queue: {burst}, algorithm: leaky-bucket"),
        format!("rate: {units}/{period}, algorithm: sliding-log"),
        format!("rate: {units}/{period}, algorithm: sliding-window, precision: 8, estimate: strict"),
        format!("rate: {units}/{period}, algorithm: fixed-window"),
        format!("rate: {units}/10s, algorithm: sliding-window, precision: 10, estimate: strict"),
        format!("rate: {units}/min, algorithm: fixed-window, align: calendar"),
        format!("rate: {units}/{period}, algorithm: fixed-window, align: first-hit"),
        format!("rate: {units}/{period}, algorithm: sliding-window, precision: 1, estimate: interpolate"),
        format!("rate: {units}/500ms, algorithm: fixed-window"),
    ];
    let kind = index(random, kinds.len() as u64);
    (format!("limits: [{{name: a, by: [user], {}}}]", kinds[kind]), kind < 8)
}

/// The range contains the denials and the touched keys of the engine, of the limit itself and of each other size, whether
/// the log has durations or not, or it is called an estimate everywhere. Most ranges are narrow enough to say something.
#[test]
fn ranges_contain_the_truth_at_every_size() {
    let (mut decided, mut bounded) = (0, 0);
    for seed in 0..600 {
        let (random, is_timed) = (&mut Random::new(seed), seed % 2 == 0);
        let (text, is_bounded) = one_limit(random);
        let requests = traffic(random, is_timed);
        let report = reported(&text, &requests, is_timed);
        let limit = &report.limits[0];
        let flags = [
            limit.is_range_estimated,
            report.totals.is_range_estimated,
            report.totals.is_clients_range_estimated,
            report.notes[0].contains("an estimate for a"),
        ];
        assert_eq!(flags, [!is_bounded; 4], "{text}, seed {seed}");
        if !is_bounded {
            continue;
        }
        bounded += 1;
        let sent: Vec<Sent> = requests.iter().map(|(sent, _)| super::copy(sent)).collect();
        let (denied, _) = truth(&text, &sent);
        assert!(holds(report.totals.denied_range, denied), "{text}, seed {seed}: {denied}, {limit:?}");
        let quota = policy(&text).limits()[0].quotas()[0].clone();
        for (place, size) in limit.sizes.iter().enumerate() {
            let quarters = [2, 3, 4, 6, 8, 16][place];
            let at_size = if quarters == 4 { quota.clone() } else { resized(&quota, quarters).unwrap() };
            let mut keys: HashMap<&str, (Limiter, bool)> = HashMap::new();
            let mut denied = 0;
            for request in &sent {
                let (limiter, is_touched) =
                    keys.entry(&request.user).or_insert_with(|| (Limiter::new(at_size.clone()), false));
                let is_denied = !limiter.charge(request.at, 1).is_allowed();
                *is_touched |= is_denied;
                denied += u64::from(is_denied);
            }
            let touched = keys.values().filter(|(_, is_touched)| *is_touched).count() as u64;
            assert!(holds(size.denied_range, denied), "{text}, seed {seed}: {denied}, {size:?}");
            assert!(holds(size.touched_range, touched), "{text}, seed {seed}: {touched}, {size:?}");
            let range = size.denied_range.unwrap();
            decided += u64::from((range.high - range.low) * 5 <= 300);
        }
    }
    assert!(decided * 2 > bounded * QUARTERS.len() as u64, "{decided} ranges say something");
    assert_eq!(OWN, QUARTERS.len());
}

/// The story: with `$request_time` and stamps of whole seconds, a fixed window had a single number that was not the truth.
/// Of small logs every range contains the denials of all instants that the stamps allow, and is hardly wider than that.
#[test]
fn small_logs_hold_every_instant() {
    let text = "limits: [{name: a, by: [user], rate: 2/10s, algorithm: fixed-window}]";
    let quota = policy(text).limits()[0].quotas()[0].clone();
    let mut wide = 0;
    for seed in 0..100 {
        let random = &mut Random::new(seed);
        let mut lines: Vec<(u64, u64)> = Vec::new();
        for _ in 0..3 + random.below(5) {
            let duration = [0, 300_000, 500_000, 1_500_000, 2_500_000][index(random, 5)];
            lines.push((START / TICKS_PER_SECOND + 8 + random.below(5), duration));
        }
        lines.sort_unstable();
        let sent = |into: u64, (second, duration): (u64, u64)| {
            let at = Timestamp::from_unix_micros(second * TICKS_PER_SECOND + into - duration);
            Sent { at, user: "u".to_owned(), plan: "free", size: "1".to_owned() }
        };
        let timed: Vec<Timed> =
            lines.iter().map(|line| (sent(0, *line), Ticks::from_micros(line.1))).collect();
        let Range { low, high } = reported(text, &timed, true).totals.denied_range.unwrap();
        let (mut fewest, mut most) = (u64::MAX, 0);
        for _ in 0..300 {
            let mut each: Vec<Sent> = Vec::new();
            for line in &lines {
                let into = [0, 499_999, 500_000, 999_999, random.below(TICKS_PER_SECOND)][index(random, 5)];
                each.push(sent(into, *line));
            }
            each.sort_by_key(|sent| sent.at);
            let mut limiter = Limiter::new(quota.clone());
            let denied = each.iter().filter(|sent| !limiter.charge(sent.at, 1).is_allowed()).count() as u64;
            (fewest, most) = (fewest.min(denied), most.max(denied));
        }
        assert!(low <= fewest && most <= high, "{lines:?}: {low} to {high}, truth {fewest} to {most}");
        wide += (fewest - low) + (high - most);
    }
    assert!(wide <= 100, "the ranges of 100 logs are {wide} denials too wide");
}

/// The range of several limits is an estimate, and said to be. It has held in all these cases.
#[test]
fn ranges_of_several_limits_hold_in_many_cases() {
    for seed in 0..200 {
        let random = &mut Random::new(seed);
        let (rate, burst, all) = (1 + random.below(5), 1 + random.below(8), 1 + random.below(10));
        let text = format!(
            "limits: [{{name: a, by: [user], rate: {rate}/s, burst: {burst}}}, {{name: b, rate: {all}/s, burst: {all}}}]"
        );
        let requests = traffic(random, false);
        let report = reported(&text, &requests, false);
        let sent: Vec<Sent> = requests.iter().map(|(sent, _)| super::copy(sent)).collect();
        let (denied, _) = truth(&text, &sent);
        let is_called = report.totals.is_range_estimated && report.notes[0].contains("an estimate for");
        assert!(is_called || report.totals.denied_range == Some(Range { low: 0, high: 0 }), "{text}");
        assert!(
            holds(report.totals.denied_range, denied),
            "{text}, seed {seed}: {denied}, {:?}",
            report.totals
        );
    }
}

/// Requests of one user at whole seconds: as many in each second.
fn each_second(counts: impl IntoIterator<Item = (u64, u64)>) -> Vec<Timed> {
    let sent = |second: u64| Sent {
        at: Timestamp::from_unix_micros(START + second * TICKS_PER_SECOND),
        user: "u".to_owned(),
        plan: "free",
        size: "1".to_owned(),
    };
    let repeated = |(second, count)| (0..count).map(move |_| (sent(second), Ticks::ZERO));
    counts.into_iter().flat_map(repeated).collect()
}

/// The story: of 80 requests in ten seconds at 2/s, burst 6, the fewest denials were 54. The last request comes before the
/// end of its second, so fewer than 6 + 2 × 10 pass, and 55 are denied: with each key the fewest were one too few.
#[test]
fn a_second_ends_before_the_next_begins() {
    let report = reported(
        "limits: [{name: a, by: [user], rate: 2/s, burst: 6}]",
        &each_second((0..10).map(|second| (second, 8))),
        false,
    );
    assert_eq!(report.totals.denied_range, Some(Range { low: 55, high: 58 }));
}

/// The story: of a log in whole seconds a burst of 1 "would have denied no request", when it denies 0 to 71,005. With the
/// burst that is named the engine denies nothing, whatever the instants; with less than the lower one it denies something.
#[test]
fn the_burst_that_denies_nothing_holds_for_all_instants() {
    for seed in 0..200 {
        let (random, is_timed) = (&mut Random::new(seed), seed % 2 == 0);
        let units = 1 + random.below(12);
        let period = match random.below(3) {
            0 => "1s",
            1 => "10s",
            _ => "1min",
        };
        let text =
            |burst: u64| format!("limits: [{{name: a, by: [user], rate: {units}/{period}, burst: {burst}}}]");
        let requests = traffic(random, is_timed);
        let report = reported(&text(1 + random.below(9)), &requests, is_timed);
        let Range { low, high } = report.limits[0].burst_for_none_range.unwrap();
        assert_eq!(report.limits[0].burst_for_none, Some(high));
        let sent: Vec<Sent> = requests.iter().map(|(sent, _)| super::copy(sent)).collect();
        assert_eq!(truth(&text(high), &sent).0, 0, "{}, seed {seed}", text(high));
        assert!(low < 2 || truth(&text(low - 1), &sent).0 > 0, "{}, seed {seed}", text(low - 1));
        // The report of that limit says the same.
        let denied = |burst| reported(&text(burst), &requests, is_timed).totals.denied_range.unwrap();
        assert_eq!(denied(high).high, 0, "{}, seed {seed}", text(high));
        assert!(low < 2 || denied(low - 1).low > 0, "{}, seed {seed}", text(low - 1));
    }
}

/// The story: beside a limit that denied most of a flood, one that denied nothing needed "a burst of 33000". What another
/// limit denies is not charged here, so it needs no burst either.
#[test]
fn the_burst_that_denies_nothing_takes_the_other_limits_as_they_are() {
    let text = "limits: [{name: a, by: [user], rate: 1/min, burst: 3}, {name: b, by: [user], rate: 1/min, burst: 60}]";
    let report = reported(text, &each_second([(0, 500)]), false);
    assert_eq!(report.limits[1].denied, 0);
    assert_eq!(report.limits[1].burst_for_none, Some(4));
}

/// The story: a log that began with milliseconds and went on in whole seconds had single numbers, and no word on it. The
/// reader of the files knows the coarsest stamps before the first record; without it, a note says what is missing.
#[test]
fn a_log_of_two_precisions_has_a_range_or_says_why_not() {
    let text = "limits: [{name: a, by: [user], rate: 2/s, burst: 3}]";
    let random = &mut Random::new(1);
    let sent: Vec<Sent> = traffic(random, false).into_iter().map(|(sent, _)| sent).collect();
    let (denied, _) = truth(text, &sent);
    for precision in [Precision::Second, Precision::Exact] {
        let options = Options { precision, ..Options::default() };
        let mut replay = Replay::new(policy(text), None, options, Given);
        for (index, request) in sent.iter().enumerate() {
            let second = Timestamp::from_unix_seconds(request.at.unix_micros() / TICKS_PER_SECOND);
            let record = super::record_of(request);
            let record = match index {
                0..100 => record,
                _ => Record { arrival: second, precision: Precision::Second, ..record },
            };
            replay.push(&record).unwrap();
        }
        let report = replay.finish(InputReport::default()).unwrap();
        match precision {
            Precision::Second => assert!(holds(report.totals.denied_range, denied), "{:?}", report.totals),
            Precision::Exact => {
                assert_eq!(report.totals.denied_range, None);
                assert!(
                    report.notes[0].contains("200 records have stamps of whole seconds"),
                    "{:?}",
                    report.notes
                );
            }
        }
    }
}
