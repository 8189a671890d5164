//! Suggested limits keep what they promise: the burst of each key against all intervals, the range of coarse stamps
//! against the truth, and the suggested policy against the real engine.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tollgate::{CheckRequest, Engine, MemoryStore, Policy, Rate, Ticks, Timestamp};
use tollgate_sim::random::Random;
use tollgate_sim::suggest::{
    BurstRange, Doubt, Frontier, KeyNeed, KeyShare, LoggedRequest, MadeFor, TrafficSummary, WantedShare,
};

use crate::seeds::hold;

const SAVED: &str = "proptest-regressions/suggestions.txt";
const SECOND: Ticks = Ticks::from_secs(1);
/// Some instant, at the begin of a day.
const START: Timestamp = Timestamp::from_unix_seconds(20_000 * 86_400);

/// A request: its time and its cost.
type Sent = (Timestamp, u64);

fn rates() -> impl Strategy<Value = Vec<Rate>> {
    let rate = (1u64..2_000, prop::sample::select(vec![1u64, 60, 3_600]))
        .prop_map(|(units, seconds)| Rate::per_ticks(units, Ticks::from_secs(seconds)));
    prop::collection::vec(rate, 1..4)
}

/// Requests in order of time: bursts, steady streams and pauses.
fn requests(most: usize) -> impl Strategy<Value = Vec<Sent>> {
    let gap =
        prop_oneof![Just(0u64), 1u64..2_000, 1_000u64..3_000_000, Just(1_000_000u64), 0u64..200_000_000];
    prop::collection::vec((gap, 1u64..5), 1..most).prop_map(|gaps| {
        let mut now = START;
        let next = |(gap, cost): (u64, u64)| {
            now = now + Ticks::from_micros(gap);
            (now, cost)
        };
        gaps.into_iter().map(next).collect()
    })
}

/// The burst by its definition: the largest `units − rate × length` over all intervals from one request to another,
/// where an interval is shorter than its stamps say by `shorter`, and never shorter than nothing.
fn by_all_intervals(rate: Rate, sent: &[Sent], shorter: Ticks) -> u64 {
    let period = i128::from(rate.period().as_micros());
    let mut most = 0;
    for (first, (from, _)) in sent.iter().enumerate() {
        let mut units = 0;
        for (to, cost) in &sent[first..] {
            units += i128::from(*cost);
            let length = to.since(*from).as_micros().saturating_sub(shorter.as_micros());
            let credits = units * period - i128::from(rate.units()) * i128::from(length);
            most = most.max(u64::try_from((credits + period - 1).max(0) / period).unwrap());
        }
    }
    most
}

fn need(rates: &[Rate], sent: &[Sent], width: Ticks) -> Vec<BurstRange> {
    let mut need = KeyNeed::new(rates.len());
    sent.iter().for_each(|(at, cost)| need.add(rates, *at, width, *cost));
    (0..rates.len()).map(|index| need.burst(index)).collect()
}

/// One pass finds the burst that all intervals demand.
#[test]
fn the_burst_is_that_of_all_intervals() {
    hold(SAVED, (rates(), requests(60)), |(rates, sent)| {
        for (rate, found) in rates.iter().zip(need(&rates, &sent, Ticks::ZERO)) {
            let expected = by_all_intervals(*rate, &sent, Ticks::ZERO);
            prop_assert_eq!(found, BurstRange { least: expected, most: expected }, "{:?}", rate);
        }
        Ok(())
    });
}

/// The range of one-second stamps contains the truth. Its upper end is exactly what the stamps cannot exclude.
#[test]
fn the_range_of_coarse_stamps_contains_the_truth() {
    hold(SAVED, (rates(), requests(60)), |(rates, sent)| {
        let seconds = |at: Timestamp| Timestamp::from_unix_seconds(at.unix_micros() / 1_000_000);
        let stamped: Vec<Sent> = sent.iter().map(|(at, cost)| (seconds(*at), *cost)).collect();
        for (rate, range) in rates.iter().zip(need(&rates, &stamped, SECOND)) {
            let truth = by_all_intervals(*rate, &sent, Ticks::ZERO);
            prop_assert!(range.least <= truth && truth <= range.most, "{range:?} without {truth}, {rate:?}");
            prop_assert_eq!(range.most, by_all_intervals(*rate, &stamped, SECOND), "{:?}", rate);
        }
        Ok(())
    });
}

/// The same for stamps from which a duration was subtracted, so that they are no whole seconds.
#[test]
fn stamps_need_not_be_whole_seconds() {
    hold(SAVED, (rates(), requests(60), 0u64..1_000_000), |(rates, sent, before)| {
        let stamps = sent.iter().map(|(at, cost)| {
            let early = at.unix_micros() * 7_919 % (before + 1);
            (Timestamp::from_unix_micros(at.unix_micros() - early), *cost)
        });
        let mut stamped: Vec<Sent> = stamps.collect();
        stamped.sort_by_key(|(at, _)| *at);
        for (rate, range) in rates.iter().zip(need(&rates, &stamped, SECOND)) {
            let truth = by_all_intervals(*rate, &sent, Ticks::ZERO);
            prop_assert!(range.least <= truth && truth <= range.most, "{range:?} without {truth}, {rate:?}");
        }
        Ok(())
    });
}

fn engine(rate: Rate, burst: u64) -> Engine {
    let (units, seconds) = (rate.units(), rate.period().ceil_seconds());
    let text = format!("limits: [{{name: per-key, by: [key], rate: {units}/{seconds}s, burst: {burst}}}]");
    let policy: Policy = text.parse().unwrap();
    Engine::builder().policy(policy).store(MemoryStore::new(16 << 20, START)).build()
}

/// The keys that the engine denies at least one request.
fn touched(engine: &Engine, traffic: &[(String, Sent)]) -> BTreeSet<String> {
    let denied = traffic.iter().filter(|(key, (at, cost))| {
        let request = CheckRequest::new().with("key", key.as_str()).unwrap().cost(*cost).unwrap();
        !engine.try_check(&request, *at).unwrap().is_allowed()
    });
    denied.map(|(key, _)| key.clone()).collect()
}

/// The engine agrees: with the burst it denies nothing, and with one unit less it denies something.
#[test]
fn the_burst_is_the_smallest_for_the_engine() {
    hold(SAVED, (rates(), requests(40)), |(rates, sent)| {
        let traffic: Vec<(String, Sent)> = sent.iter().map(|sent| ("k".to_owned(), *sent)).collect();
        for (rate, range) in rates.iter().zip(need(&rates, &sent, Ticks::ZERO)) {
            prop_assert!(touched(&engine(*rate, range.most), &traffic).is_empty(), "{rate:?} {range:?}");
            if range.most > 1 {
                prop_assert!(
                    !touched(&engine(*rate, range.most - 1), &traffic).is_empty(),
                    "{rate:?} {range:?}"
                );
            }
        }
        Ok(())
    });
}

/// Traffic of several keys, in order of time.
fn traffic() -> impl Strategy<Value = Vec<(String, Sent)>> {
    prop::collection::vec(requests(25), 1..20).prop_map(|keys| {
        let of_key = |(key, sent): (usize, Vec<Sent>)| {
            sent.into_iter().map(move |sent| (format!("k{key}"), sent)).collect::<Vec<_>>()
        };
        let mut all: Vec<(String, Sent)> = keys.into_iter().enumerate().flat_map(of_key).collect();
        all.sort_by_key(|(_, (at, _))| *at);
        all
    })
}

fn frontier(rates: &[Rate], share: KeyShare, traffic: &[(String, Sent)], width: Ticks) -> Frontier {
    frontier_of(rates, WantedShare::Exactly(share), traffic, width)
}

fn frontier_of(rates: &[Rate], wanted: WantedShare, traffic: &[(String, Sent)], width: Ticks) -> Frontier {
    let mut summary = TrafficSummary::new(rates.to_vec(), wanted);
    for (key, (at, cost)) in traffic {
        summary.add(key, LoggedRequest { at: *at, width, duration: Ticks::ZERO, cost: *cost }).unwrap();
    }
    summary.finish()
}

fn per_minute() -> Vec<Rate> {
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000].map(Rate::per_minute).to_vec()
}

/// A suggestion denies no more than it promises, with and without head-room, with exact and with coarse stamps.
#[test]
fn suggested_limits_touch_no_more_keys_than_promised() {
    let cases = (traffic(), 1u32..=1_000_000, 100u64..300, prop::bool::ANY);
    hold(SAVED, cases, |(traffic, millionths, headroom, is_coarse)| {
        let share = KeyShare::from_millionths(millionths).unwrap();
        let width = if is_coarse { SECOND } else { Ticks::ZERO };
        let stamp = |at: Timestamp| {
            let micros = at.unix_micros();
            Timestamp::from_unix_micros(if is_coarse { micros / 1_000_000 * 1_000_000 } else { micros })
        };
        let logged: Vec<(String, Sent)> =
            traffic.iter().map(|(key, (at, cost))| (key.clone(), (stamp(*at), *cost))).collect();
        let found = frontier(&per_minute(), share, &logged, width);
        let untouched = |rate, burst| found.keys - touched(&engine(rate, burst), &traffic).len() as u64;
        for point in &found.points {
            prop_assert!(untouched(point.rate, point.burst.most) >= share.of(found.keys), "{point:?}");
            prop_assert_eq!(untouched(point.rate, point.burst_of_all), found.keys, "{:?}", point);
        }
        if let Some(suggestion) = found.suggest(headroom) {
            let kept = untouched(suggestion.rate, suggestion.burst);
            prop_assert!(kept >= share.of(found.keys), "{suggestion:?}");
            let chosen = found.points[suggestion.index];
            prop_assert!(suggestion.rate.units() >= chosen.rate.units());
            prop_assert!(found.points[..suggestion.index].iter().all(|p| p.burst.most > p.rate.units()));
        }
        Ok(())
    });
}

/// Days are compared if the log covers at least half of them. Fewer than 100 keys, and days that differ too much, are
/// doubts.
#[test]
fn doubts_are_raised() {
    let share = KeyShare::from_millionths(990_000).unwrap();
    let hours = |hours: u64| START + Ticks::from_secs(hours * 3_600);
    let at_once = |keys: u64, hour: u64, count: u64| {
        (0..keys).flat_map(move |key| (0..count).map(move |_| (format!("k{key}"), (hours(hour), 1))))
    };
    let whole = |days: u64| [("end".to_owned(), (hours(days * 24), 1))];
    let steady: Vec<_> =
        at_once(100, 0, 4).chain(at_once(100, 30, 6)).chain(at_once(100, 49, 90)).chain(whole(2)).collect();
    let mut steady = steady;
    steady.sort_by_key(|(_, (at, _))| *at);
    let found = frontier(&per_minute(), share, &steady, Ticks::ZERO);
    let days: Vec<(bool, u64)> = found.days.iter().map(|day| (day.is_covered, day.bursts[3])).collect();
    assert_eq!(days, [(true, 4), (true, 6), (false, 90)]);
    assert_eq!(found.suggest(100).unwrap().doubts, []);
    let spread: Vec<_> = at_once(99, 0, 4).chain(at_once(99, 30, 9)).chain(at_once(1, 47, 1)).collect();
    let found = frontier(&per_minute(), share, &spread, Ticks::ZERO);
    let suggestion = found.suggest(150).unwrap();
    assert_eq!((suggestion.rate.units(), suggestion.burst), (15, 14));
    let days = Doubt::DaysDiffer { least: (hours(0), 4), most: (hours(24), 9) };
    let few = Doubt::FewKeys { keys: 99, share, needed: 100 };
    assert_eq!(suggestion.doubts, [few, days]);
    assert!(frontier(&per_minute(), share, &[], Ticks::ZERO).suggest(100).is_none());
    // One stamp of another year makes no log longer.
    let mut short: Vec<_> = at_once(100, 0, 2).collect();
    short.push(("late".to_owned(), (hours(9_000), 1)));
    let found = frontier(&per_minute(), share, &short, Ticks::ZERO);
    let doubt = Doubt::ShortLog { covered: Ticks::ZERO, period: Ticks::from_secs(60) };
    assert_eq!(found.suggest(100).unwrap().doubts, [doubt]);
}

/// The story: 403 keys were enough for a share of 99.9 %, which is all of them, so three abusers decided the limit. The number
/// of keys follows from the share; the few that decide are named, and so is the share that leaves them out.
#[test]
fn a_few_keys_that_decide_are_named() {
    let share = KeyShare::from_millionths(999_000).unwrap();
    let minute = |minute: u64| START + Ticks::from_secs(minute * 60);
    let mut traffic: Vec<(String, Sent)> = Vec::new();
    for at in (0..20).map(minute) {
        for key in 0..403 {
            let count = if key < 3 { 90 + key } else { 1 + key % 2 };
            traffic.extend((0..count).map(|_| (format!("k{key}"), (at, 1))));
        }
    }
    let found = frontier(&per_minute(), share, &traffic, Ticks::ZERO);
    let wanted = found.suggest(100).unwrap();
    assert_eq!(wanted.doubts, [Doubt::FewKeys { keys: 403, share, needed: 1_000 }]);
    assert_eq!((found.unlike.keys, found.unlike.names.join(" ").as_str()), (3, "k2 k1 k0"));
    let others = found.suggest_for(MadeFor::Others, 100).unwrap();
    assert_eq!((others.rate.units(), others.burst, others.doubts.as_slice()), (2, 2, &[][..]));
    // It is the suggestion if no share is wanted.
    let again = frontier_of(&per_minute(), WantedShare::Finest, &traffic, Ticks::ZERO);
    assert_eq!(again.suggest(100).unwrap(), others);
    assert_eq!(again.suggest_for(MadeFor::All, 100).unwrap().rate.units(), 100);
}

/// Requests of eight minutes: each of the ordinary keys sends up to four at once in a minute, each abuser sixty or more.
fn with_abusers(ordinary: u64, abusers: u64, seed: u64) -> Vec<(String, Sent)> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for minute in 0..8 {
        for key in 0..ordinary + abusers {
            let (name, count) = match key.checked_sub(ordinary) {
                Some(abuser) => (format!("abuser{abuser}"), 60 + random.below(60)),
                None => (format!("k{key}"), random.below(5)),
            };
            let at = START + Ticks::from_micros(minute * 60_000_000 + random.below(50_000_000));
            all.extend((0..count).map(|number| (name.clone(), (at + Ticks::from_millis(number), 1))));
        }
    }
    all.sort_by_key(|(_, (at, _))| *at);
    all
}

/// The truth is known: of ordinary keys and a few abusers the engine denies exactly the abusers, and no key at all by the
/// second choice. Without abusers no key is left out, and where a fifth of the keys are abusers none of them is, either: the
/// limit leaves out no more than the share that it names.
#[test]
fn the_few_are_left_out_and_the_many_are_not() {
    for (ordinary, abusers) in [(300, 3), (300, 0), (240, 60), (120, 1), (1_200, 30)] {
        for seed in 0..3 {
            let traffic = with_abusers(ordinary, abusers, seed);
            let found = frontier_of(&per_minute(), WantedShare::Finest, &traffic, Ticks::ZERO);
            let is_few = abusers > 0 && abusers * 20 <= ordinary + abusers;
            assert_eq!(found.unlike.keys, if is_few { abusers } else { 0 }, "{ordinary} {abusers} {seed}");
            let suggestion = found.suggest(150).unwrap();
            assert_eq!(suggestion.doubts, []);
            let touched_by = |rate, burst| touched(&engine(rate, burst), &traffic);
            let denied = touched_by(suggestion.rate, suggestion.burst);
            if is_few {
                let others = found.others();
                assert_eq!(suggestion.made_for, MadeFor::Others);
                let honest = denied.iter().filter(|key| !key.starts_with("abuser")).count() as u64;
                assert_eq!(denied.len() as u64 - honest, abusers, "{denied:?}");
                assert!(honest <= others - KeyShare::USUAL.of(others), "{denied:?}");
                assert!(
                    found.unlike.names.iter().all(|name| name.starts_with("abuser")),
                    "{:?}",
                    found.unlike
                );
                let all = found.suggest_for(MadeFor::All, 150).unwrap();
                assert!(touched_by(all.rate, all.burst).is_empty(), "{all:?}");
            } else {
                assert_eq!(suggestion.made_for, MadeFor::Share(found.share));
                assert!(denied.len() as u64 <= found.keys - found.share.of(found.keys), "{denied:?}");
            }
        }
    }
}

/// Days are compared without the few, also where they came on some days only.
#[test]
fn days_are_compared_without_the_few() {
    let day = |day: u64| START + Ticks::from_secs(day * 86_400);
    let of_day = |index: u64, abusers: u64| {
        (0..300 + abusers).flat_map(move |key| {
            let count = if key < 300 { 4 + index } else { 200 };
            (0..count).map(move |_| (format!("k{key}"), (day(index), 1)))
        })
    };
    let traffic: Vec<(String, Sent)> =
        of_day(0, 0).chain(of_day(1, 3)).chain(of_day(2, 1)).chain(of_day(3, 0)).collect();
    let found = frontier_of(&per_minute(), WantedShare::Finest, &traffic, Ticks::ZERO);
    let suggestion = found.suggest(100).unwrap();
    assert_eq!((found.unlike.keys, suggestion.made_for), (3, MadeFor::Others));
    let days: Vec<u64> =
        found.bursts_of_days(suggestion.made_for, suggestion.index).map(|(_, burst)| burst).collect();
    assert_eq!((days, suggestion.needed, suggestion.doubts), (vec![4, 5, 6], 7, vec![]));
}

/// The story: 99.9 % was the share also of 200 keys, of which it is all, so that the first suggestion of a new user was
/// refused. Without a wanted share it is the finest that the keys of the whole log can carry, also for days that had fewer.
#[test]
fn the_share_follows_from_the_keys_of_the_whole_log() {
    let day = |day: u64| START + Ticks::from_secs(day * 86_400);
    let of_day = |index: u64, keys: u64| {
        (0..keys)
            .flat_map(move |key| (0..1 + key % 7 + index).map(move |_| (format!("k{key}"), (day(index), 1))))
    };
    for (keys, millionths) in
        [(100, 990_000), (200, 995_000), (403, 995_000), (600, 998_000), (1_000, 999_000)]
    {
        let traffic: Vec<(String, Sent)> = of_day(0, 50).chain(of_day(1, keys)).chain(of_day(2, 1)).collect();
        let found = frontier_of(&per_minute(), WantedShare::Finest, &traffic, Ticks::ZERO);
        let share = KeyShare::from_millionths(millionths).unwrap();
        let expected = frontier(&per_minute(), share, &traffic, Ticks::ZERO);
        assert_eq!(found.share, share, "{keys}");
        let doubts = found.suggest(100).unwrap().doubts;
        assert!(!doubts.iter().any(|doubt| matches!(doubt, Doubt::FewKeys { .. })), "{keys}: {doubts:?}");
        assert_eq!((found.points, found.days), (expected.points, expected.days));
    }
}

/// The story: the lower end of a burst was a unit too low, since a stamp was taken to hide all of a second. Two requests of
/// one second need a burst of two at any rate below 1/s.
#[test]
fn two_requests_of_one_second_need_two() {
    let needed = need(&[Rate::per_minute(1), Rate::per_second(1)], &[(START, 1), (START, 1)], SECOND);
    assert_eq!(needed, [BurstRange { least: 2, most: 2 }; 2]);
}

/// A log is in the order in which requests end. The order in which they came is restored, so nothing changes.
#[test]
fn the_order_of_a_log_does_not_matter() {
    let cases = (traffic(), prop::collection::vec(0u64..20_000_000, 500));
    hold(SAVED, cases, |(traffic, durations)| {
        let share = KeyShare::from_millionths(900_000).unwrap();
        let expected = frontier(&per_minute(), share, &traffic, Ticks::ZERO);
        let mut ended: Vec<(&str, LoggedRequest)> = traffic
            .iter()
            .zip(durations.iter().cycle())
            .map(|((key, (at, cost)), duration)| {
                let duration = Ticks::from_micros(*duration);
                (key.as_str(), LoggedRequest { at: *at, width: Ticks::ZERO, duration, cost: *cost })
            })
            .collect();
        // The first request tells how long requests take. Later ones are in the order of their ends.
        let longest = LoggedRequest { duration: Ticks::from_secs(20), ..ended[0].1 };
        ended[0].1 = longest;
        ended[1..].sort_by_key(|(_, request)| request.at + request.duration);
        let mut summary = TrafficSummary::new(per_minute(), WantedShare::Exactly(share));
        for (key, request) in ended {
            summary.add(key, request).unwrap();
        }
        let found = summary.finish();
        prop_assert_eq!((found.points, found.days, found.late), (expected.points, expected.days, 0));
        Ok(())
    });
}
