//! The estimate of the concurrency limit, updated per window. Vegas's estimate of the queue with guards
//! against drift, on windows instead of single samples; pure, and in integers.
//!
//! A queue delays all requests, so it is estimated from two quantiles and the smaller estimate counts: where
//! slow and fast requests are mixed, one quantile may jump between the kinds. The baseline of a quantile is
//! its latency without a queue. It is_following a lower latency quickly and a higher one hardly (5 % a minute),
//! unless more requests in flight bring as much more throughput at the same latency. Then the service itself
//! became slower, and the baseline is_following, up to [`FOLLOW_MAX`] times.

use std::collections::VecDeque;

use tollgate::time::Ticks;

use crate::document::LimitSettings;
use crate::report::ChangeReason;
use crate::statistics::{Median, ONE, RunningMean, correlation, elasticity, log10, scaled, variation};
use crate::window::{Occupancy, Summary};

/// Windows remembered for the correlations.
const POINTS: usize = 20;
/// The minimum number of windows for a correlation.
const POINTS_MIN: usize = 5;
/// Windows over which the peak of requests in flight is remembered.
const PEAK_WINDOWS: usize = 60;
/// The limit is at most this many times the peak in flight.
const HEADROOM: u64 = 5;
/// How much a baseline may rise per minute, in thousandths.
const DRIFT_PER_MINUTE: u64 = 50;
/// How far a baseline may follow a service that became slower: this many times the lowest known latency.
/// Beyond that it counts as broken, since calls that all time out look the same.
const FOLLOW_MAX: u64 = 6;
/// A baseline falls towards a lower latency by the difference divided by this, per window.
const FALL_DIVISOR: u64 = 5;
/// The number of recent windows that tell whether the limit causes the latency.
const RECENT_WINDOWS: usize = 10;
const RECENT_WINDOWS_MIN: usize = 4;
/// How much the requests in flight must have varied for that, in thousandths.
const VARIATION_MIN: u64 = 70;
/// After this many windows without a change, the limit is raised to probe, and for this many windows.
const PROBE_AFTER: u32 = 6;
const PROBE_WINDOWS: u32 = 4;
/// Refusals matter if they are at least one in this many requests.
const REFUSAL_RATIO: u64 = 50;
/// The minimum number of ended requests for a conclusion.
const ENDED_MIN: u64 = 10;

/// The observations of one window.
#[derive(Clone, Copy, Debug)]
struct Point {
    in_flight: u64,
    throughput: u64,
    latency: u64,
}

/// One quantile of latency: recent, and without a queue.
#[derive(Clone, Debug)]
struct LatencyTrack {
    median: Median,
    mean: RunningMean,
    latest: u64,
    recent: u64,
    baseline: u64,
    /// The lowest baseline, which drifts but does not follow.
    anchor: u64,
}

/// The estimate of a concurrency limit.
#[derive(Debug)]
pub(crate) struct LimitEstimate {
    settings: LimitSettings,
    /// The limit, in thousandths.
    limit: u64,
    tracks: [LatencyTrack; 2],
    points: VecDeque<Point>,
    peaks: VecDeque<u64>,
    /// The number of waiting requests, in thousandths.
    queue: u64,
    /// The number of requests in service in the last window, in thousandths.
    busy: u64,
    response: LoadResponse,
    /// Whether the service became slower, and the baselines follow.
    is_following: bool,
    /// Windows without a change, and by how much the limit was raised to probe.
    unchanged: u32,
    probe_size: u64,
    pub(crate) throughput_correlation: i64,
    pub(crate) latency_correlation: i64,
    pub(crate) reason: ChangeReason,
}

/// The effect of more requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadResponse {
    /// Proportionally more throughput at the same latency: there are not too many.
    More,
    /// More latency and no more throughput: there are too many.
    Slower,
    /// Unclear.
    Unknown,
}

/// The change that a window calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitChange {
    Less(u64, ChangeReason),
    More(u64, ChangeReason),
    Hold,
}

impl LimitEstimate {
    pub(crate) fn new(settings: LimitSettings) -> Self {
        Self {
            limit: u64::from(settings.initial) * ONE,
            settings,
            tracks: [LatencyTrack::new(), LatencyTrack::new()],
            points: VecDeque::new(),
            peaks: VecDeque::new(),
            queue: 0,
            busy: 0,
            response: LoadResponse::Unknown,
            is_following: false,
            unchanged: 0,
            probe_size: 0,
            throughput_correlation: 0,
            latency_correlation: 0,
            reason: ChangeReason::Initial,
        }
    }

    /// The limit.
    pub(crate) fn limit(&self) -> u32 {
        u32::try_from(self.limit / ONE).unwrap_or(u32::MAX)
    }

    /// The higher quantile: recent, and without a queue.
    pub(crate) fn latencies(&self) -> Option<(Ticks, Ticks)> {
        let track = &self.tracks[1];
        (track.recent > 0).then(|| (Ticks::from_micros(track.recent), Ticks::from_micros(track.baseline)))
    }

    /// The recent median latency.
    pub(crate) fn median_latency(&self) -> Ticks {
        Ticks::from_micros(self.tracks[0].recent)
    }

    /// The estimated number of requests in flight that wait.
    pub(crate) const fn queue(&self) -> u64 {
        self.queue.div_ceil(ONE)
    }

    /// Adds a window. Returns whether the limit changed.
    pub(crate) fn update(&mut self, seen: &Summary, elapsed: Ticks) -> bool {
        let before = self.limit;
        self.peaks.push_back(seen.peak);
        if self.peaks.len() > PEAK_WINDOWS {
            self.peaks.pop_front();
        }
        let change = self.change(seen, elapsed);
        let (least, most) = (u64::from(self.settings.min) * ONE, u64::from(self.settings.max) * ONE);
        let (limit, reason) = match change {
            LimitChange::Less(by, reason) => (self.limit.saturating_sub(by), reason),
            LimitChange::More(by, reason) => (self.limit.saturating_add(by), reason),
            LimitChange::Hold => (self.limit, self.reason),
        };
        self.limit = limit.clamp(least, most);
        if self.limit != before {
            self.reason = reason;
        }
        self.limit != before
    }

    fn change(&mut self, seen: &Summary, elapsed: Ticks) -> LimitChange {
        let ended = seen.samples + seen.dropped;
        // A few permits at a time, and at most an eighth of them, so that a small limit does not swing.
        let step = log10(self.limit / ONE).max(ONE).min(self.limit / 8).max(ONE / 4);
        if ended < ENDED_MIN {
            // Too few requests for a conclusion, unless all of them were lost.
            let lost = seen.dropped > 0 && seen.samples == 0;
            return if lost { LimitChange::Less(step, ChangeReason::Dropped) } else { LimitChange::Hold };
        }
        if seen.samples >= ENDED_MIN {
            self.learn(seen, elapsed);
        }
        if seen.dropped * 10 >= ended {
            return LimitChange::Less((self.limit / 10).max(step), ChangeReason::Dropped);
        }
        if seen.dropped * 100 >= ended {
            return LimitChange::Less(step, ChangeReason::Dropped);
        }
        let is_full = seen.refused > 0 || seen.peak * ONE >= self.limit;
        let occupancy = if is_full { Occupancy::Full } else { Occupancy::Free };
        let change =
            self.lower_for_queue(seen, step).or_else(|| self.guard(occupancy, step)).unwrap_or_else(|| {
                let is_used = seen.peak * 2 * ONE >= self.limit;
                let short = short_queue(self.limit, step);
                let quick = if self.queue < short / 2 { 3 * step } else { step };
                if self.queue < short && is_used {
                    LimitChange::More(quick, ChangeReason::QueueShort)
                } else {
                    LimitChange::Hold
                }
            });
        if change == LimitChange::Hold && is_full { self.probe() } else { self.reset_probe(change) }
    }

    /// Lowers the limit if too many wait, or if it is far above the peak.
    fn lower_for_queue(&self, seen: &Summary, step: u64) -> Option<LimitChange> {
        // At most half of the requests in flight may wait, so that latency at most doubles, whatever the
        // logarithm is.
        let most = (6 * step).min(self.limit / 2).max(ONE);
        if self.queue > most && seen.samples >= ENDED_MIN {
            // With hardly any refusals the limit does not cause the latency, and lowering it would only
            // refuse requests.
            if seen.refused * REFUSAL_RATIO < seen.samples + seen.refused {
                return Some(LimitChange::Hold);
            }
            // A queue that is far too long is shortened within a few windows, but not below the requests in
            // service.
            let much = if self.queue > 2 * most { self.limit / 10 } else { 0 };
            let room = self.limit.saturating_sub(self.busy + short_queue(self.limit, step));
            let less = step.max(much).min(room);
            return Some(if self.is_following || less == 0 {
                LimitChange::Hold
            } else {
                LimitChange::Less(less, ChangeReason::QueueLong)
            });
        }
        let used = self.peaks.iter().max().copied().unwrap_or(0) * HEADROOM;
        let is_far = self.limit > used.max(u64::from(self.settings.initial)) * ONE;
        is_far.then_some(LimitChange::Less(step, ChangeReason::Headroom))
    }

    /// Without changes nothing is learnt, and the baseline may be wrong. Now and then the limit is raised for
    /// a few windows to probe.
    fn probe(&mut self) -> LimitChange {
        self.unchanged += 1;
        if self.unchanged == PROBE_AFTER {
            self.probe_size = self.limit / 6;
            return LimitChange::More(self.probe_size, ChangeReason::Probe);
        }
        if self.unchanged >= PROBE_AFTER + PROBE_WINDOWS && !self.is_following {
            return self.reset_probe(LimitChange::Less(self.probe_size, ChangeReason::Probe));
        }
        LimitChange::Hold
    }

    /// Resets the probe after a change.
    fn reset_probe(&mut self, change: LimitChange) -> LimitChange {
        (self.unchanged, self.probe_size) = (0, 0);
        change
    }

    /// The correlations may show that there are too many, whatever the baseline is.
    fn guard(&self, occupancy: Occupancy, step: u64) -> Option<LimitChange> {
        if occupancy == Occupancy::Free || self.points.len() < POINTS_MIN {
            return None;
        }
        // By the baseline hardly any request waits, yet more in flight only adds latency: the baseline stems
        // from an overload.
        if self.response == LoadResponse::Slower && self.queue < short_queue(self.limit, step) {
            return Some(LimitChange::Less(step.max(self.limit / 10), ChangeReason::LatencyRose));
        }
        let (throughput, latency) = (self.throughput_correlation, self.latency_correlation);
        if throughput < -300 {
            return Some(LimitChange::Less(step, ChangeReason::ThroughputFell));
        }
        let flat = variation(self.points.iter().map(|point| point.throughput)) < 200;
        let slower = latency > 500 && (throughput < 300 || flat) && self.queue >= ONE;
        slower.then_some(LimitChange::Less(step, ChangeReason::LatencyRose))
    }

    /// Updates the latencies from a window.
    fn learn(&mut self, seen: &Summary, elapsed: Ticks) {
        let (half, most) = (seen.p50.as_micros().max(1), seen.p90.as_micros().max(1));
        // Observations of a service twice or half as fast no longer apply.
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
        self.response = self.load_response();
        for (track, latency) in self.tracks.iter_mut().zip([half, most]) {
            track.add(latency, elapsed);
        }
        let times = self.tracks.iter().map(|track| track.recent / track.anchor.max(1)).min().unwrap_or(0);
        // Once the service is known to be slower, the baselines follow all the way, since a constant limit
        // gives no new information.
        self.is_following = match self.response {
            LoadResponse::More => times < FOLLOW_MAX,
            LoadResponse::Slower => false,
            LoadResponse::Unknown => self.is_following && times < FOLLOW_MAX,
        };
        if self.is_following {
            self.tracks.iter_mut().for_each(LatencyTrack::follow);
            self.is_following =
                self.tracks.iter().all(|track| track.recent > track.baseline + track.baseline / 10);
        }
        // Of the requests that were in flight: with few in flight, few can wait, however slow they are.
        let in_flight = self.limit.min(seen.peak * ONE);
        let waits = |track: &LatencyTrack| {
            scaled(in_flight, track.recent.saturating_sub(track.baseline), track.recent)
        };
        self.queue = self.tracks.iter().map(waits).min().unwrap_or(0);
        let works =
            |track: &LatencyTrack| scaled(seen.in_flight, track.baseline.min(track.latest), track.latest);
        self.busy = self.tracks.iter().map(works).max().unwrap_or(0);
    }

    /// The recent effect of more requests in flight.
    fn load_response(&self) -> LoadResponse {
        // As few of the last windows as vary enough, so that no outdated one is among them.
        let of = |count: usize| self.points.iter().rev().take(count);
        let varies = |count: &usize| variation(of(*count).map(|point| point.in_flight)) >= VARIATION_MIN;
        let Some(count) = (RECENT_WINDOWS_MIN..=RECENT_WINDOWS.min(self.points.len())).find(varies) else {
            return LoadResponse::Unknown;
        };
        let last = of(count);
        let done = elasticity(last.clone().map(|point| (point.in_flight, point.throughput)));
        let slower = elasticity(last.map(|point| (point.in_flight, point.latency)));
        match (done, slower) {
            (Some(600..), Some(..=400)) => LoadResponse::More,
            (Some(..=300), Some(600..)) => LoadResponse::Slower,
            _ => LoadResponse::Unknown,
        }
    }
}

/// A short queue.
fn short_queue(limit: u64, step: u64) -> u64 {
    (3 * step).min(limit / 4).max(ONE / 2)
}

impl LatencyTrack {
    fn new() -> Self {
        Self {
            median: Median::default(),
            mean: RunningMean::new(2),
            latest: 0,
            recent: 0,
            baseline: 0,
            anchor: 0,
        }
    }

    fn add(&mut self, latency: u64, elapsed: Ticks) {
        self.latest = latency;
        self.recent = self.mean.add(self.median.add(latency)).max(1);
        if self.baseline == 0 {
            (self.baseline, self.anchor) = (self.recent, self.recent);
            return;
        }
        let drift =
            |value: u64| scaled(value, DRIFT_PER_MINUTE * elapsed.as_micros(), ONE * 60_000_000).max(1);
        for low in [&mut self.baseline, &mut self.anchor] {
            *low = if self.recent < *low {
                *low - (*low - self.recent).div_ceil(FALL_DIVISOR)
            } else {
                (*low + drift(*low)).min(self.recent)
            };
        }
    }

    /// The service became slower, so the recent latency is its latency without a queue.
    fn follow(&mut self) {
        self.baseline += self.recent.saturating_sub(self.baseline).div_ceil(3);
    }
}
