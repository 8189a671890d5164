//! From one window to the next: how many places there should be. Vegas's estimate of the queue, with the guards that keep it from drifting,
//! on windows instead of single samples; pure, and in integers.
//!
//! A queue delays everybody, so it is estimated from two quantiles, and the smaller estimate counts: where slow and fast requests are mixed,
//! one of them may jump from one kind to the other. The baseline of each is what it was without a queue. It follows at once when latency is
//! lower, and hardly (5 % a minute) when it is higher, unless what was seen says that the places are not why: that with more in flight as
//! much more was done, and no slower. Then it is the service that has become slower, and the baseline follows, up to ten times what it was.

use std::collections::VecDeque;

use crate::time::Ticks;

use super::limit::LimitSettings;
use super::report::Reason;
use super::statistics::{Forgetting, Median, ONE, correlation, elasticity, log10, scaled, variation};
use super::window::Summary;

/// Windows that are remembered to tell what moves together.
const POINTS: usize = 20;
/// How many it takes to tell.
const POINTS_MIN: usize = 5;
/// Windows in which the most that were in flight is remembered.
const PEAKS: usize = 60;
/// The limit is at most so many times what was in flight.
const HEADROOM: u64 = 5;
/// How often a baseline may become this many times as high, in a minute: in thousandths.
const DRIFT_A_MINUTE: u64 = 50;
/// How far a baseline may follow a service that became slower: so many times the lowest it knew. Slower still is not slow but broken: calls
/// that all end at a timeout look just like it.
const FOLLOW_MAX: u64 = 6;
/// A baseline comes down to a lower latency by this part of the way with each window.
const FALL: u64 = 5;
/// The last windows, which tell whether the places are why it is slow.
const LAST: usize = 10;
const LAST_MIN: usize = 4;
/// How much what is in flight must have varied for that, in thousandths.
const DIFFER: u64 = 70;
/// After how many windows of rest there are a few more places, and for how many.
const PROBE_AFTER: u32 = 6;
const PROBE_LASTS: u32 = 4;
/// Refusals press if they are at least this part of what was asked.
const PRESSED: u64 = 50;
/// Fewest endings from which anything is concluded.
const ENDINGS_MIN: u64 = 10;

/// What was seen in one window.
#[derive(Clone, Copy, Debug)]
struct Point {
    in_flight: u64,
    throughput: u64,
    latency: u64,
}

/// One quantile of latency: of late, and without a queue.
#[derive(Clone, Debug)]
struct Track {
    median: Median,
    smooth: Forgetting,
    latest: u64,
    recent: u64,
    baseline: u64,
    /// The lowest, with the same drift but without following.
    anchor: u64,
}

/// The estimate.
#[derive(Debug)]
pub(super) struct Estimate {
    settings: LimitSettings,
    /// Places, in thousandths.
    limit: u64,
    tracks: [Track; 2],
    points: VecDeque<Point>,
    peaks: VecDeque<u64>,
    /// How many wait, in thousandths.
    queue: u64,
    /// How many do not, by the last window alone, in thousandths.
    busy: u64,
    response: Response,
    /// Whether the service has become slower, and the baselines are on their way.
    follows: bool,
    /// Windows in which nothing moved, and places that are there to see what they mean.
    rested: u32,
    probes: u64,
    pub(super) throughput_correlation: i64,
    pub(super) latency_correlation: i64,
    pub(super) reason: Reason,
}

/// What more in flight means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Response {
    /// As much more done, and no slower: there are not too many.
    More,
    /// Slower, and no more done: there are too many.
    Slower,
    /// Neither can be told.
    Unknown,
}

/// What a window calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Less(u64, Reason),
    More(u64, Reason),
    Hold,
}

impl Estimate {
    pub(super) fn new(settings: LimitSettings) -> Self {
        Self {
            limit: u64::from(settings.initial) * ONE,
            settings,
            tracks: [Track::new(), Track::new()],
            points: VecDeque::new(),
            peaks: VecDeque::new(),
            queue: 0,
            busy: 0,
            response: Response::Unknown,
            follows: false,
            rested: 0,
            probes: 0,
            throughput_correlation: 0,
            latency_correlation: 0,
            reason: Reason::Initial,
        }
    }

    /// Whole places.
    pub(super) fn limit(&self) -> u32 {
        u32::try_from(self.limit / ONE).unwrap_or(u32::MAX)
    }

    /// The higher quantile of late, and without a queue.
    pub(super) fn latencies(&self) -> Option<(Ticks, Ticks)> {
        let track = &self.tracks[1];
        (track.recent > 0).then(|| (Ticks::from_micros(track.recent), Ticks::from_micros(track.baseline)))
    }

    /// What half of the requests take, of late.
    pub(super) fn half(&self) -> Ticks {
        Ticks::from_micros(self.tracks[0].recent)
    }

    /// How many of those in flight are estimated to wait.
    pub(super) const fn queue(&self) -> u64 {
        self.queue.div_ceil(ONE)
    }

    /// Takes a window in, and tells whether the limit changed.
    pub(super) fn update(&mut self, seen: &Summary, elapsed: Ticks) -> bool {
        let before = self.limit;
        self.peaks.push_back(seen.peak);
        if self.peaks.len() > PEAKS {
            self.peaks.pop_front();
        }
        let change = self.change(seen, elapsed);
        let (least, most) = (u64::from(self.settings.min) * ONE, u64::from(self.settings.max) * ONE);
        let (limit, reason) = match change {
            Change::Less(by, reason) => (self.limit.saturating_sub(by), reason),
            Change::More(by, reason) => (self.limit.saturating_add(by), reason),
            Change::Hold => (self.limit, self.reason),
        };
        self.limit = limit.clamp(least, most);
        if self.limit != before {
            self.reason = reason;
        }
        self.limit != before
    }

    fn change(&mut self, seen: &Summary, elapsed: Ticks) -> Change {
        let ended = seen.samples + seen.dropped;
        // A few places at most, and never more than an eighth of them, so that a small limit does not swing.
        let step = log10(self.limit / ONE).max(ONE).min(self.limit / 8).max(ONE / 4);
        if ended < ENDINGS_MIN {
            // Too little to conclude from, unless nothing at all came back.
            let lost = seen.dropped > 0 && seen.samples == 0;
            return if lost { Change::Less(step, Reason::Dropped) } else { Change::Hold };
        }
        if seen.samples >= ENDINGS_MIN {
            self.learn(seen, elapsed);
        }
        if seen.dropped * 10 >= ended {
            return Change::Less((self.limit / 10).max(step), Reason::Dropped);
        }
        if seen.dropped * 100 >= ended {
            return Change::Less(step, Reason::Dropped);
        }
        let full = seen.refused > 0 || seen.peak * ONE >= self.limit;
        let change = self.by_queue(seen, step).or_else(|| self.guard(full, step)).unwrap_or_else(|| {
            let is_used = seen.peak * 2 * ONE >= self.limit;
            let little = little(self.limit, step);
            let quick = if self.queue < little / 2 { 3 * step } else { step };
            if self.queue < little && is_used {
                Change::More(quick, Reason::QueueShort)
            } else {
                Change::Hold
            }
        });
        if change == Change::Hold && full { self.probe() } else { self.rest(change) }
    }

    /// Fewer, if too many wait or the limit is far above what anybody used.
    fn by_queue(&self, seen: &Summary, step: u64) -> Option<Change> {
        // At most half of those in flight may wait, so latency at most doubles, whatever the logarithm says.
        let most = (6 * step).min(self.limit / 2).max(ONE);
        if self.queue > most && seen.samples >= ENDINGS_MIN {
            // Where hardly anybody finds no place, the places are not why it is slow, and fewer of them would only refuse somebody.
            if seen.refused * PRESSED < seen.samples + seen.refused {
                return Some(Change::Hold);
            }
            // What is far too long is shortened in a few windows, not in a minute of them; but not below what is at work.
            let much = if self.queue > 2 * most { self.limit / 10 } else { 0 };
            let room = self.limit.saturating_sub(self.busy + little(self.limit, step));
            let less = step.max(much).min(room);
            return Some(if self.follows || less == 0 {
                Change::Hold
            } else {
                Change::Less(less, Reason::QueueLong)
            });
        }
        let used = self.peaks.iter().max().copied().unwrap_or(0) * HEADROOM;
        let is_far = self.limit > used.max(u64::from(self.settings.initial)) * ONE;
        is_far.then_some(Change::Less(step, Reason::Headroom))
    }

    /// Nothing moves, so nothing is learnt, and the baseline may be wrong: now and then there are a few more places for a few windows, to see
    /// what that means.
    fn probe(&mut self) -> Change {
        self.rested += 1;
        if self.rested == PROBE_AFTER {
            self.probes = self.limit / 6;
            return Change::More(self.probes, Reason::Probe);
        }
        if self.rested >= PROBE_AFTER + PROBE_LASTS && !self.follows {
            return self.rest(Change::Less(self.probes, Reason::Probe));
        }
        Change::Hold
    }

    /// Something moves, or there is nothing to see.
    fn rest(&mut self, change: Change) -> Change {
        (self.rested, self.probes) = (0, 0);
        change
    }

    /// What moves together may say that there are too many, whatever the baseline.
    fn guard(&self, full: bool, step: u64) -> Option<Change> {
        if !full || self.points.len() < POINTS_MIN {
            return None;
        }
        // The baseline says that hardly anybody waits, and what was done that they do: the baseline is of an overloaded time.
        if self.response == Response::Slower && self.queue < little(self.limit, step) {
            return Some(Change::Less(step.max(self.limit / 10), Reason::LatencyRose));
        }
        let (throughput, latency) = (self.throughput_correlation, self.latency_correlation);
        if throughput < -300 {
            return Some(Change::Less(step, Reason::ThroughputFell));
        }
        let flat = variation(self.points.iter().map(|point| point.throughput)) < 200;
        let slower = latency > 500 && (throughput < 300 || flat) && self.queue >= ONE;
        slower.then_some(Change::Less(step, Reason::LatencyRose))
    }

    /// Takes in what the window tells of latency.
    fn learn(&mut self, seen: &Summary, elapsed: Ticks) {
        let (half, most) = (seen.p50.as_micros().max(1), seen.p90.as_micros().max(1));
        // What was seen when the service was twice as fast, or half, says nothing of it now.
        let known = self.tracks[0].recent;
        if known > 0 && (half > 2 * known || half * 2 < known) {
            self.points.clear();
        }
        self.points.push_back(Point {
            in_flight: seen.in_flight,
            throughput: scaled(seen.samples, 1_000_000_000, elapsed.as_micros()),
            latency: half,
        });
        if self.points.len() > POINTS {
            self.points.pop_front();
        }
        let points = self.points.iter();
        self.throughput_correlation =
            correlation(points.clone().map(|point| (point.in_flight, point.throughput)));
        self.latency_correlation = correlation(points.map(|point| (point.in_flight, point.latency)));
        self.response = self.respond();
        for (track, latency) in self.tracks.iter_mut().zip([half, most]) {
            track.add(latency, elapsed);
        }
        let times = self.tracks.iter().map(|track| track.recent / track.anchor.max(1)).min().unwrap_or(0);
        // Once it is known that the service has become slower, the baselines follow all the way: while the limit rests nothing more is told.
        self.follows = match self.response {
            Response::More => times < FOLLOW_MAX,
            Response::Slower => false,
            Response::Unknown => self.follows && times < FOLLOW_MAX,
        };
        if self.follows {
            self.tracks.iter_mut().for_each(Track::follow);
            self.follows =
                self.tracks.iter().all(|track| track.recent > track.baseline + track.baseline / 10);
        }
        // Of those that were there: where few are in flight few can wait, however slow it is.
        let there = self.limit.min(seen.peak * ONE);
        let waits = |track: &Track| scaled(there, track.recent.saturating_sub(track.baseline), track.recent);
        self.queue = self.tracks.iter().map(waits).min().unwrap_or(0);
        let works = |track: &Track| scaled(seen.in_flight, track.baseline.min(track.latest), track.latest);
        self.busy = self.tracks.iter().map(works).max().unwrap_or(0);
    }

    /// What more in flight meant of late.
    fn respond(&self) -> Response {
        // As few of the last windows as differ enough, so that nothing of an earlier time is among them.
        let of = |count: usize| self.points.iter().rev().take(count);
        let differ = |count: &usize| variation(of(*count).map(|point| point.in_flight)) >= DIFFER;
        let Some(count) = (LAST_MIN..=LAST.min(self.points.len())).find(differ) else {
            return Response::Unknown;
        };
        let last = of(count);
        let done = elasticity(last.clone().map(|point| (point.in_flight, point.throughput)));
        let slower = elasticity(last.map(|point| (point.in_flight, point.latency)));
        match (done, slower) {
            (Some(600..), Some(..=400)) => Response::More,
            (Some(..=300), Some(600..)) => Response::Slower,
            _ => Response::Unknown,
        }
    }
}

/// A queue that is shorter than it may be.
fn little(limit: u64, step: u64) -> u64 {
    (3 * step).min(limit / 4).max(ONE / 2)
}

impl Track {
    fn new() -> Self {
        Self {
            median: Median::default(),
            smooth: Forgetting::new(2),
            latest: 0,
            recent: 0,
            baseline: 0,
            anchor: 0,
        }
    }

    fn add(&mut self, latency: u64, elapsed: Ticks) {
        self.latest = latency;
        self.recent = self.smooth.add(self.median.add(latency)).max(1);
        if self.baseline == 0 {
            (self.baseline, self.anchor) = (self.recent, self.recent);
            return;
        }
        let drift = |value: u64| scaled(value, DRIFT_A_MINUTE * elapsed.as_micros(), ONE * 60_000_000).max(1);
        for low in [&mut self.baseline, &mut self.anchor] {
            *low = if self.recent < *low {
                *low - (*low - self.recent).div_ceil(FALL)
            } else {
                (*low + drift(*low)).min(self.recent)
            };
        }
    }

    /// The service has become slower, so that is its latency without a queue.
    fn follow(&mut self) {
        self.baseline += self.recent.saturating_sub(self.baseline).div_ceil(3);
    }
}
