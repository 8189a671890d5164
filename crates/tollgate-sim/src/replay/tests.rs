//! A replay decides exactly as the engine does, for every algorithm, and its range contains the truth.

mod clients;
mod range;

use std::collections::HashMap;
use std::io::Cursor;
use std::net::Ipv4Addr;

use tollgate::time::TICKS_PER_SECOND;
use tollgate::{CheckRequest, Engine, MemoryStore, Policy, Secret, Ticks, Timestamp};

use super::fixture::record;
use super::{Clients, Given, InputReport, MissingAttribute, Options, Replay, Report};
use crate::log::write::{Style, Truth};
use crate::log::{Mapping, Precision, Reader, Record};
use crate::random::Random;

const START: u64 = 1_700_000_000 * TICKS_PER_SECOND;

/// Policies with every algorithm, tiers, overrides, costs and several limits.
const POLICIES: [&str; 8] = [
    "limits: [{name: a, by: [user], rate: 3/s, burst: 5}]",
    "limits: [{name: a, by: [user], rate: 3/s, burst: 5, algorithm: gcra}]",
    "limits: [{name: a, by: [user], rate: 20/10s, algorithm: fixed-window}, {name: b, rate: 50/10s}]",
    "limits: [{name: a, by: [user], rate: 20/10s, algorithm: sliding-window}]",
    "limits: [{name: a, by: [user], rate: 9/3s, algorithm: sliding-log}, {name: b, by: [plan], rate: 9/s}]",
    "limits: [{name: a, by: [user], rate: 3/s, algorithm: leaky-bucket, queue: 4}]",
    "limits: [{name: a, by: [user], tier_by: plan, tiers: {free: 2/s, pro: 6/s}, overrides: {u1: 50/s}}]",
    "limits: [{name: a, by: [user], rate: 6/s, cost: size}, {name: b, by: [user], rate: 9/min, mode: shadow}]",
];

/// One request of the truth.
struct Sent {
    at: Timestamp,
    user: String,
    plan: &'static str,
    size: String,
}

/// A seeded log: a few busy users and many quiet ones.
fn requests(seed: u64, count: usize) -> Vec<Sent> {
    let (mut random, mut at) = (Random::new(seed), START);
    let mut all = Vec::new();
    for _ in 0..count {
        at += random.exponential(60_000);
        let number = if random.below(2) == 0 { random.below(3) } else { random.below(200) };
        let plan = if number % 2 == 0 { "free" } else { "pro" };
        let size = (1 + random.below(3)).to_string();
        all.push(Sent { at: Timestamp::from_unix_micros(at), user: format!("u{number}"), plan, size });
    }
    all
}

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

fn record_of(request: &Sent) -> Record<'_> {
    let attributes = vec![
        ("user".into(), request.user.as_str().into()),
        ("plan".into(), request.plan.into()),
        ("size".into(), request.size.as_str().into()),
    ];
    Record { attributes, ..record(request.at.unix_micros()) }
}

fn replayed(text: &str, options: Options, records: impl Iterator<Item = Record<'static>>) -> Report {
    let mut replay = Replay::new(policy(text), None, options, Given);
    for record in records {
        replay.push(&record).unwrap();
    }
    replay.finish(InputReport::default()).unwrap()
}

/// The decisions of the engine itself: denials in all, and by limit.
fn truth(text: &str, requests: &[Sent]) -> (u64, HashMap<String, u64>) {
    let store = MemoryStore::new(64 << 20, Timestamp::from_unix_micros(START));
    let engine = Engine::builder().policy(policy(text)).store(store).secret(Secret::repeatable(3)).build();
    let (mut denied, mut by_limit) = (0, HashMap::new());
    for request in requests {
        let asked = CheckRequest::new().with("user", &request.user).unwrap();
        let asked = asked.with("plan", request.plan).unwrap().with("size", &request.size).unwrap();
        let decision = engine.try_check(&asked, request.at).unwrap();
        denied += u64::from(!decision.is_allowed());
        for status in decision.limits().filter(|status| !status.outcome.is_allowed()) {
            *by_limit.entry(status.limit.name().to_owned()).or_default() += 1;
        }
    }
    (denied, by_limit)
}

/// The decisions of a replay are those of the engine, to the request, whatever the policy.
#[test]
fn a_replay_decides_as_the_engine_does() {
    for (index, text) in POLICIES.iter().enumerate() {
        for seed in 0..3 {
            let requests = requests(seed, 3_000);
            let mut replay = Replay::new(policy(text), None, Options::default(), Given);
            for request in &requests {
                replay.push(&record_of(request)).unwrap();
            }
            let report = replay.finish(InputReport::default()).unwrap();
            let (denied, by_limit) = truth(text, &requests);
            assert_eq!((report.totals.denied, report.totals.requests), (denied, 3_000), "policy {index}");
            assert!(
                by_limit.values().sum::<u64>() > 0,
                "policy {index} denies nothing, so it proves nothing"
            );
            for limit in &report.limits {
                let expected = by_limit.get(&limit.name).copied().unwrap_or_default();
                assert_eq!(limit.denied, expected, "policy {index}, limit {}", limit.name);
                let same = limit.sizes.iter().find(|size| size.times == "1").unwrap();
                assert_eq!((same.denied, same.touched), (limit.denied, limit.touched));
                let denied: Vec<u64> = limit.sizes.iter().map(|size| size.denied).collect();
                assert!(denied.is_sorted_by(|one, other| one >= other), "policy {index}: {denied:?}");
                // Each touched key is in one row of the peaks.
                let rows = &limit.peaks.as_ref().unwrap().histogram;
                assert_eq!(rows.iter().map(|row| row.touched).sum::<u64>(), limit.touched);
                assert!(rows.iter().all(|row| row.touched <= row.keys));
            }
        }
    }
}

/// The story: a log is written when requests end, so a line's place says little about its arrival. Sorted by end, the
/// same requests give the same report.
#[test]
fn the_order_of_lines_does_not_matter() {
    let text = POLICIES[2];
    let mut lines: Vec<(Timestamp, Ticks, Sent)> = Vec::new();
    let mut random = Random::new(5);
    for request in requests(9, 2_000) {
        let duration = Ticks::from_micros(random.below(3 * TICKS_PER_SECOND));
        lines.push((request.at + duration, duration, request));
    }
    let (denied, _) = truth(text, &lines.iter().map(|(_, _, request)| copy(request)).collect::<Vec<_>>());
    lines.sort_by_key(|(end, ..)| *end);
    let mut replay = Replay::new(policy(text), None, Options::default(), Given);
    for (_, duration, request) in &lines {
        replay.push(&Record { duration: Some(*duration), ..record_of(request) }).unwrap();
    }
    let report = replay.finish(InputReport::default()).unwrap();
    assert_eq!((report.totals.denied, report.input.late), (denied, 0));
}

fn copy(request: &Sent) -> Sent {
    Sent { at: request.at, user: request.user.clone(), plan: request.plan, size: request.size.clone() }
}

/// With stamps of whole seconds the range of denials contains the truth.
#[test]
fn the_range_contains_the_truth() {
    for (text, is_open) in [
        ("limits: [{name: a, by: [user], rate: 1/s, burst: 3}]", true),
        ("limits: [{name: a, by: [user], rate: 2/s, burst: 2, algorithm: gcra}]", true),
        ("limits: [{name: a, by: [user], rate: 10/10s, algorithm: fixed-window}]", false),
        ("limits: [{name: a, by: [user], rate: 3/2s, algorithm: sliding-log}]", true),
        ("limits: [{name: a, by: [user], rate: 8/10s, algorithm: sliding-log}]", true),
        ("limits: [{name: a, by: [user], rate: 3/1500ms, algorithm: sliding-log}]", true),
        (
            "limits: [{name: a, by: [user], rate: 3/2s, algorithm: sliding-window, precision: 8, estimate: strict}]",
            true,
        ),
        (
            "limits: [{name: a, by: [user], rate: 9/10s, algorithm: sliding-window, precision: 10, estimate: strict}]",
            false,
        ),
    ] {
        for seed in 0..5 {
            let requests = requests(seed, 5_000);
            let (denied, _) = truth(text, &requests);
            let mut replay = Replay::new(policy(text), None, Options::default(), Given);
            for request in &requests {
                let second = request.at.unix_micros() / TICKS_PER_SECOND;
                let arrival = Timestamp::from_unix_seconds(second);
                replay.push(&Record { arrival, precision: Precision::Second, ..record_of(request) }).unwrap();
            }
            let report = replay.finish(InputReport::default()).unwrap();
            let range = report.totals.denied_range.unwrap();
            assert!((range.low..=range.high).contains(&denied), "{text}, seed {seed}: {range:?}, {denied}");
            assert_eq!(range.low < range.high, is_open, "{text}: {range:?}");
            assert_eq!(report.notes.len(), 1, "{:?}", report.notes);
            assert!(!report.limits[0].is_range_estimated && !report.notes[0].contains("estimate"), "{text}");
        }
    }
}

/// A range that is only two readings is called an estimate, and so are ranges of limits that depend on each other.
#[test]
fn estimates_are_called_so() {
    for (text, expected) in [
        (
            "limits: [{name: a, by: [user], rate: 3/10s, algorithm: sliding-window, estimate: interpolate}]",
            "an estimate for a:",
        ),
        (
            "limits: [{name: a, by: [user], rate: 3/2s, algorithm: fixed-window, align: first-hit}]",
            "an estimate for a:",
        ),
        (
            "limits: [{name: a, by: [user], rate: 1/s, burst: 3}, {name: b, rate: 5/s, burst: 5}]",
            "takes the denials of the others as they were",
        ),
    ] {
        let mut replay = Replay::new(policy(text), None, Options::default(), Given);
        for request in &requests(3, 5_000) {
            let arrival = Timestamp::from_unix_seconds(request.at.unix_micros() / TICKS_PER_SECOND);
            replay.push(&Record { arrival, precision: Precision::Second, ..record_of(request) }).unwrap();
        }
        let report = replay.finish(InputReport::default()).unwrap();
        assert!(report.notes[0].contains(expected), "{text}: {:?}", report.notes);
        assert!(report.limits.iter().all(|limit| limit.is_range_estimated), "{text}");
        assert!(report.totals.is_range_estimated && report.totals.is_clients_range_estimated, "{text}");
    }
}

/// A log that lacks an attribute that a limit counts by is refused: one counter for all would be wrong.
#[test]
fn a_missing_attribute_is_an_error() {
    let text = "limits: [{name: a, by: [user], rate: 1/s}, {name: per-key, by: [api_key], rate: 1/s}]";
    let requests = requests(1, 50);
    let pushed = |options: Options| {
        let mut replay = Replay::new(policy(text), None, options, Given);
        for request in &requests {
            replay.push(&record_of(request))?;
        }
        replay.finish(InputReport::default())
    };
    let missing = pushed(Options::default()).unwrap_err();
    let (limit, attribute) = ("per-key".to_owned(), "api_key".to_owned());
    let expected = MissingAttribute { limit, attribute, is_key: true, requests: 50 };
    assert_eq!(missing, expected);
    let without = Options { without: vec!["per-key".to_owned()], ..Options::default() };
    assert_eq!(pushed(without).unwrap().totals.requests, 50);
}

/// The story: where no request had the attribute of a cost, the report said that all would have been denied. Other attributes
/// that the log lacks are named in a note.
#[test]
fn a_missing_cost_is_an_error_and_other_attributes_are_named() {
    let finished = |text: &str| {
        let requests = requests(1, 50);
        let mut replay = Replay::new(policy(text), None, Options::default(), Given);
        requests.iter().for_each(|request| replay.push(&record_of(request)).unwrap());
        replay.finish(InputReport::default())
    };
    let missing = finished("limits: [{name: a, by: [user], rate: 9/s, cost: tokens * 2}]").unwrap_err();
    assert_eq!((missing.attribute.as_str(), missing.is_key), ("tokens", false));
    let report = finished("limits: [{name: a, by: [user], when: {region: eu}, rate: 9/s}]").unwrap();
    assert_eq!(
        report.notes,
        ["no request has region, which limit a depends on; log it, or map it in --config"]
    );
}

/// One user with a burst of five at a limit of one a minute, burst two.
fn burst() -> impl Iterator<Item = Record<'static>> {
    (0..5).map(|_| Record { attributes: vec![("user".into(), "u".into())], ..record(START) })
}

/// A client that is gone is denied three times; one that retries comes back at its Retry-After; one that obeys sends
/// one request after the other, and the last still waits when the log ends.
#[test]
fn clients_come_back_as_assumed() {
    let text = "limits: [{name: a, by: [user], rate: 1/min, burst: 2}]";
    let with = |clients: Clients| replayed(text, Options { clients, ..Options::default() }, burst()).totals;
    let gone = with(Clients::Gone);
    assert_eq!((gone.decisions, gone.denied, gone.retries), (5, 3, 0));
    let retry = with(Clients::Retry);
    assert_eq!((retry.decisions, retry.retries, retry.retries_allowed), (8, 3, 1));
    let later = burst().chain([Record {
        attributes: vec![("user".into(), "other".into())],
        ..record(START + 125 * TICKS_PER_SECOND)
    }]);
    let options = Options { clients: Clients::Obey, ..Options::default() };
    let obey = replayed(text, options, later).totals;
    // The third passes after one minute, the fourth after two, and the fifth, which was denied then, waits.
    assert_eq!((obey.requests, obey.retries_allowed, obey.still_waiting), (6, 2, 1));
}

/// Requests that the live system refused are counted apart, with and without them.
#[test]
fn refused_requests_are_shown_with_and_without() {
    let text = "limits: [{name: a, by: [user], rate: 1/min, burst: 2}]";
    let records = burst().enumerate().map(|(index, record)| Record { refused: index < 3, ..record });
    let totals = replayed(text, Options::default(), records).totals;
    let without = totals.without_refused.unwrap();
    assert_eq!((totals.denied, totals.already_refused), (3, 3));
    assert_eq!((without.requests, without.denied), (2, 0));
}

/// The story: other sizes of a limit that counts failures counted every request, so that four times the limit denied more
/// than the limit itself. They count failures, and so do peaks and the burst that denies nothing.
#[test]
fn other_sizes_of_a_limit_that_counts_failures_count_failures() {
    let text = "limits: [{name: a, by: [user], rate: 3/min, count: failures}]";
    let with = |failures: u64| {
        let record = move |index: u64| Record {
            status: Some(if index % 10 < failures { 401 } else { 200 }),
            attributes: vec![("user".into(), "u".into())],
            ..record(START + index * 100_000)
        };
        let report = replayed(text, Options::default(), (0..40).map(record));
        let limit = report.limits.into_iter().next().unwrap();
        let denied: Vec<u64> = limit.sizes.iter().map(|size| size.denied).collect();
        (denied, limit.peaks.unwrap().max, limit.burst_for_none)
    };
    assert_eq!(with(0), (vec![0; 6], 0, Some(1)));
    let (denied, peak, burst) = with(1);
    assert_eq!((peak, burst), (4, Some(5)));
    assert!(denied[2] > 0 && denied.is_sorted_by(|one, other| one >= other), "{denied:?}");
    assert_eq!(denied[4..], [0, 0]);
}

/// A limit of requests in flight follows the durations of the log.
#[test]
fn permits_return_when_requests_end() {
    let text = "limits: [{name: a, by: [user], concurrency: 2}]";
    let timed = |millis: u64| {
        let at = |index: u64| START + index * 100_000;
        let duration = Some(Ticks::from_millis(millis));
        let record = move |index| Record {
            duration,
            attributes: vec![("user".into(), "u".into())],
            ..record(at(index))
        };
        replayed(text, Options::default(), (0..10).map(record))
    };
    assert_eq!(timed(150).totals.denied, 0);
    let long = timed(1_000);
    assert_eq!((long.totals.denied, long.limits[0].peaks.as_ref().unwrap().max), (8, 2));
}

/// Another policy beside: who is newly denied, who is freed, and the sentence.
#[test]
fn two_policies_are_compared() {
    let [old, new] = [3, 1]
        .map(|burst| policy(&format!("limits: [{{name: a, by: [user], rate: 1/min, burst: {burst}}}]")));
    let mut replay = Replay::new(old, Some(new), Options::default(), Given);
    for record in burst() {
        replay.push(&Record { target: Some("/export?x=1".into()), ..record }).unwrap();
    }
    let against = replay.finish(InputReport::default()).unwrap().against.unwrap();
    assert_eq!(
        (against.newly_denied.requests, against.newly_denied.clients, against.freed.requests),
        (2, 1, 0)
    );
    let sentence = "This change would have newly denied 40 % of 5 requests (2; 1 client, mostly /export; none for the first time), \
         and freed nothing.";
    assert_eq!(against.sentence, sentence);
}

/// The story: 27 clients were denied for the first time, and the sentence had only the three that were denied before, with
/// far more requests. It names the others, and they are the first of the list.
#[test]
fn clients_that_are_denied_for_the_first_time_are_named() {
    let [old, new] = [5, 2]
        .map(|burst| policy(&format!("limits: [{{name: a, by: [user], rate: 1/min, burst: {burst}}}]")));
    let mut replay = Replay::new(old, Some(new), Options::default(), Given);
    let mut push = |user: &str, count: u64, target: &str| {
        for _ in 0..count {
            let record = Record {
                target: Some(target.to_owned().into()),
                attributes: vec![("user".into(), user.to_owned().into())],
                ..record(START)
            };
            replay.push(&record).unwrap();
        }
    };
    push("exporter", 50, "/export");
    push("ann", 3, "/login");
    push("bob", 4, "/search");
    push("eve", 2, "/home");
    let against = replay.finish(InputReport::default()).unwrap().against.unwrap();
    assert_eq!(
        against.sentence,
        "This change would have newly denied 10 % of 59 requests (6; 3 clients, mostly /export; 2 for the first time: \
         /search, /login), and freed nothing."
            .replace("mostly", "most often")
    );
    let listed: Vec<(&str, Option<bool>)> =
        against.newly_denied.top.iter().map(|key| (key.key.as_str(), key.is_first_denial)).collect();
    assert_eq!(listed, [("bob", Some(true)), ("ann", Some(true)), ("exporter", Some(false))]);
    assert_eq!(against.by_limit, [("a".to_owned(), against.denied)]);
}

/// The same log gives the same report, to the byte.
#[test]
fn a_report_is_deterministic() {
    let report = || {
        let requests = requests(4, 2_000);
        let mut replay = Replay::new(policy(POLICIES[4]), None, Options::default(), Given);
        for request in &requests {
            replay.push(&record_of(request)).unwrap();
        }
        format!("{:?}", replay.finish(InputReport::default()).unwrap())
    };
    assert_eq!(report(), report());
}

/// The requests of a log in a style, in whole milliseconds.
fn styled(style: Style, seed: u64) -> Vec<Truth> {
    let mut random = Random::new(seed);
    let truths = requests(seed, 2_000).into_iter().map(|request| {
        let arrival = Timestamp::from_unix_micros(request.at.unix_micros() / 1_000 * 1_000);
        let number: u8 = request.user.trim_start_matches('u').parse().unwrap();
        let mut truth = Truth::new(arrival, Ipv4Addr::new(192, 0, 2, number).into());
        truth.duration =
            if style.has_duration() { Ticks::from_millis(random.below(3_000)) } else { Ticks::ZERO };
        truth.attributes = vec![("api_key".to_owned(), truth.client.to_string())];
        truth
    });
    truths.collect()
}

/// Policies that count by what the style has. Where stamps are whole seconds, the range of several limits is an estimate,
/// so there is one limit then.
fn policies(style: Style) -> Vec<String> {
    // An archive has no client, so all requests are one key.
    let (by, times) = match style {
        Style::Har => ("", 6),
        Style::Csv | Style::Ndjson | Style::Decisions => ("by: [api_key], ", 1),
        _ => ("by: [ip], ", 1),
    };
    let (two, four, ten) = (2 * times, 4 * times, 10 * times);
    let limits = match style.precision() {
        Precision::Exact => vec![
            format!("{{name: a, {by}rate: {two}/s, burst: {four}}}"),
            format!(
                "{{name: a, {by}rate: {ten}/10s, algorithm: fixed-window}}, {{name: b, rate: 12/s, burst: 30}}"
            ),
            format!("{{name: a, {by}rate: {ten}/10s, algorithm: sliding-window}}"),
            format!("{{name: a, {by}rate: {two}/s, algorithm: leaky-bucket, queue: 2}}"),
        ],
        Precision::Second => vec![
            format!("{{name: a, {by}rate: {two}/s, burst: {four}}}"),
            format!("{{name: a, {by}rate: {two}/s, burst: {two}, algorithm: gcra}}"),
            format!("{{name: a, {by}rate: {ten}/5s, algorithm: sliding-log}}"),
        ],
    };
    limits.into_iter().map(|limits| format!("limits: [{limits}]")).collect()
}

/// Written in any format, and read again, a log gives the decisions of the engine, to the request. Where stamps are
/// whole seconds, the range contains them.
#[test]
fn every_format_gives_the_decisions_of_the_engine() {
    for style in Style::ALL {
        for text in policies(style) {
            (0..3).for_each(|seed| a_log_gives_the_decisions_of_the_engine(style, &text, seed));
        }
    }
}

fn a_log_gives_the_decisions_of_the_engine(style: Style, text: &str, seed: u64) {
    let truths = styled(style, seed);
    let store = MemoryStore::new(64 << 20, Timestamp::from_unix_micros(START));
    let engine = Engine::builder().policy(policy(text)).store(store).build();
    let (mut denied, mut by_limit) = (0, vec![0; policy(text).limits().len()]);
    for truth in &truths {
        let client = truth.client.to_string();
        let asked = CheckRequest::new().with("ip", &client).unwrap().with("api_key", &client).unwrap();
        let decision = engine.try_check(&asked, truth.arrival).unwrap();
        denied += u64::from(!decision.is_allowed());
        for status in decision.limits().filter(|status| !status.outcome.is_allowed()) {
            by_limit[status.index] += 1;
        }
    }
    assert!(denied > 50, "{style:?} denies {denied} under {text}, too few to prove anything");
    let log = Cursor::new(style.log(&truths));
    let mut reader = Reader::stream_as(style.format(), "log", log, &Mapping::default()).unwrap();
    let options = Options { precision: reader.precision(), ..Options::default() };
    let mut replay = Replay::new(policy(text), None, options, Given);
    reader.for_each(|record| replay.push(&record).unwrap()).unwrap();
    let report = replay.finish(InputReport::default()).unwrap();
    assert_eq!((report.totals.requests, report.input.late), (2_000, 0), "{style:?}");
    match report.totals.denied_range {
        None => {
            let found: Vec<u64> = report.limits.iter().map(|limit| limit.denied).collect();
            assert_eq!((report.totals.denied, found), (denied, by_limit), "{style:?}, {text}, seed {seed}");
        }
        Some(range) => {
            assert_eq!(style.precision(), Precision::Second, "{style:?}");
            assert!(!report.limits[0].is_range_estimated, "{style:?}, {text}");
            let holds = (range.low..=range.high).contains(&denied);
            assert!(holds, "{style:?}, {text}, seed {seed}: {range:?}, {denied}");
        }
    }
}
