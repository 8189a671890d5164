//! The numbers of a node, as nodes exchange them, and their sums over a fleet. A number that has no sum, such as what is
//! left of a counter that all nodes share, is taken once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::near::{Exhaustion, NearKey};
use super::overview;
use super::overview::RATE_SECONDS;
use super::recorder::Recorder;
use super::sentence::instant;
use crate::control::ControlPlane;
use crate::telemetry::history::SECONDS;
use crate::telemetry::names::{
    ALLOWED, DENIED, OTHERS, OUTCOMES, REQUEST_LIMIT, SOURCES, VERDICTS, WOULD_DENY,
};
use crate::telemetry::{ShardState, StoreMetrics, TopKey};
use tollgate::time::WallOffset;
use tollgate_overload::{ControllerReport, Priority};

/// Maximum number of keys that are shown.
pub(super) const KEYS_SHOWN: usize = 20;
/// Maximum number of keys, and of shards, of a node. More keys than are shown, because one that is busy in sum may be
/// less busy on each node.
pub(super) const KEYS_COUNTED: usize = 50;
const SHARDS_MAX: usize = 16;
/// How many points a trend has, and of how many seconds each is the sum.
const TREND_POINTS: usize = 60;
const TREND_SECONDS: usize = SECONDS / TREND_POINTS;
/// Indexes in [`OUTCOMES`].
const WAITED: usize = 1;
const NEVER: usize = 3;

/// Counts by name.
pub(super) type Counts = BTreeMap<String, u64>;

/// The numbers of one node, or the sums of several.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct NodeCounts {
    pub(super) verdicts: BTreeMap<String, VerdictCounts>,
    pub(super) limits: BTreeMap<String, LimitCounts>,
    pub(super) keys: Vec<KeyCounts>,
    pub(super) near: Vec<NearCounts>,
    /// Answers of the last seconds by source, and of the last minute.
    pub(super) sources: Counts,
    pub(super) sources_minute: Counts,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) store: Option<StoreCounts>,
    pub(super) controllers: Vec<ControllerCounts>,
    pub(super) holds: BTreeMap<String, HoldCounts>,
    /// Units of open reservations by limit.
    pub(super) reserved: Counts,
}

/// Decisions with one verdict.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub(super) struct VerdictCounts {
    pub(super) second: u64,
    /// The mean of the last minute.
    pub(super) a_second: u64,
    pub(super) quarter: u64,
}

/// The answers of one limit.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct LimitCounts {
    /// Outcomes of the last second.
    pub(super) second: Counts,
    /// Tenths a second, the mean of the last seconds.
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) would_deny: u64,
    /// In the last 15 minutes.
    pub(super) denied_quarter: u64,
    pub(super) would_deny_quarter: u64,
    /// Denials, with those in shadow, over the last 15 minutes.
    pub(super) trend: Vec<u32>,
    /// Whether no policy of these nodes has the limit any more.
    pub(super) is_removed: bool,
}

/// A frequent key.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct KeyCounts {
    pub(super) limit: String,
    pub(super) key: String,
    /// Empty if one of its values is too long to be known whole.
    pub(super) attributes: Vec<(String, String)>,
    pub(super) decisions: u64,
    pub(super) denied: u64,
    /// The decisions that a limit in shadow would have denied. Nodes of older versions do not say it.
    pub(super) would_deny: u64,
    pub(super) sources: Counts,
    pub(super) is_estimated: bool,
    /// The instant of the first of these decisions. Nodes of older versions do not say it.
    pub(super) since: Option<String>,
}

/// A key near its limit.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct NearCounts {
    pub(super) limit: String,
    pub(super) key: String,
    pub(super) attributes: Vec<(String, String)>,
    pub(super) remaining: u64,
    pub(super) of: u64,
    pub(super) exhausted: Exhaustion,
}

/// The shared store, in the last minute.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct StoreCounts {
    /// For each bound in nanoseconds the calls that took at most so long, and the number of all calls.
    pub(super) latency: Vec<(u64, u64)>,
    pub(super) timed: u64,
    pub(super) calls: u64,
    pub(super) requests: u64,
    pub(super) failures: u64,
    /// Counters with deferred charges, now.
    pub(super) deferred: u64,
    /// By address, how many nodes have each state of the breaker, and the calls in flight.
    pub(super) shards: BTreeMap<String, ShardCounts>,
}

/// One shard of the store.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct ShardCounts {
    pub(super) breakers: Counts,
    pub(super) in_flight: u64,
}

/// An overload controller.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct ControllerCounts {
    pub(super) name: String,
    pub(super) mode: String,
    pub(super) in_flight: Option<u64>,
    pub(super) limit: Option<u64>,
    pub(super) shed: Counts,
    pub(super) would_shed: u64,
    pub(super) reason: String,
    /// When it last changed what it admits.
    pub(super) changed: Option<String>,
}

/// The reservations and permits that callers hold.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub(super) struct HoldCounts {
    pub(super) open: u64,
    pub(super) expired: u64,
}

impl NodeCounts {
    /// The numbers of this node.
    pub(super) fn of(control: &ControlPlane, recorder: &Recorder) -> Self {
        let (service, now) = (&control.service, control.service.now());
        let all = &recorder.history.all;
        let (second, minute, quarter) = (all.recent(1), all.recent(60), all.recent(SECONDS));
        let measured = all.measured(60).max(1) as u64;
        let verdict = |(index, name): (usize, &str)| {
            let a_second = minute[index].div_ceil(measured);
            let numbers = VerdictCounts { second: second[index], a_second, quarter: quarter[index] };
            (name.to_owned(), numbers)
        };
        let names = overview::limit_names(&control.service);
        let active = names.iter().filter_map(|name| Some((name.clone(), LimitCounts::of(recorder, name)?)));
        // What a limit denied stays shown when a reload removes it, as long as the time is shown.
        let is_gone = |known: &&str| {
            ![OTHERS, REQUEST_LIMIT].contains(known) && !names.iter().any(|name| name == known)
        };
        let gone = recorder.history.limits().filter(is_gone).filter(|_| service.compat().is_none());
        let removed = gone.filter_map(|name| {
            let counts = LimitCounts { is_removed: true, ..LimitCounts::of(recorder, name)? };
            (counts.denied_quarter + counts.would_deny_quarter > 0).then(|| (name.to_owned(), counts))
        });
        let wall = service.engine.maintenance().wall();
        let shedder = service.shedder();
        let controllers = shedder.map(|shedder| {
            let reports = shedder.reports().into_iter();
            let shed = |report: &ControllerReport| {
                let each = Priority::ALL.into_iter();
                let counts = each.map(|of| (of.as_str().to_owned(), shedder.refused(report.controller, of)));
                counts.filter(|(_, count)| *count > 0).collect()
            };
            reports.map(|report| ControllerCounts::of(&report, shed(&report), wall)).collect()
        });
        let hold = |(open, expired): (usize, u64)| HoldCounts { open: open as u64, expired };
        let holds = [
            ("reservations", hold(service.holds.reservations.held(now))),
            ("permits of concurrency limits", hold(service.holds.permits.held(now))),
            ("reports awaited", hold(service.holds.reports.held(now))),
        ];
        let mut reserved = Counts::new();
        service.holds.reservations.each(now, |reservation| {
            for (limit, units) in reservation.units() {
                match reserved.get_mut(limit) {
                    Some(sum) => *sum = sum.saturating_add(units),
                    None => drop(reserved.insert(limit.to_owned(), units)),
                }
            }
        });
        Self {
            verdicts: VERDICTS.into_iter().enumerate().map(verdict).collect(),
            limits: removed.chain(active).collect(),
            keys: service
                .meter
                .top(KEYS_COUNTED, now)
                .into_iter()
                .map(|key| KeyCounts::of(key, wall))
                .collect(),
            near: recorder.near.keys.iter().map(NearCounts::from).collect(),
            sources: named(recorder.sources(RATE_SECONDS)),
            sources_minute: named(recorder.sources(60)),
            store: recorder.store(60).map(|(before, now)| StoreCounts::of(before, now)),
            controllers: controllers.unwrap_or_default(),
            holds: holds.map(|(name, held)| (name.to_owned(), held)).into_iter().collect(),
            reserved,
        }
    }

    /// Adds the numbers of another node.
    pub(super) fn add(&mut self, other: Self) {
        for (name, counts) in other.verdicts {
            let sum = self.verdicts.entry(name).or_default();
            *sum = VerdictCounts {
                second: sum.second + counts.second,
                a_second: sum.a_second + counts.a_second,
                quarter: sum.quarter + counts.quarter,
            };
        }
        for (name, limit) in other.limits {
            let sum = self.limits.entry(name);
            sum.or_insert_with(|| LimitCounts { is_removed: true, ..LimitCounts::default() }).add(limit);
        }
        for key in other.keys {
            match self.keys.iter_mut().find(|known| known.limit == key.limit && known.key == key.key) {
                Some(known) => known.add(key),
                None => self.keys.push(key),
            }
        }
        self.keys.sort_by_key(|key| std::cmp::Reverse(key.decisions));
        for near in other.near {
            match self.near.iter_mut().find(|known| known.limit == near.limit && known.key == near.key) {
                // Nodes that share a counter see the same at different moments.
                Some(known) if near.remaining < known.remaining => *known = near,
                Some(_) => {}
                None => self.near.push(near),
            }
        }
        self.near.sort_by_key(|near| near.remaining.saturating_mul(1_000) / near.of.max(1));
        self.near.truncate(KEYS_SHOWN);
        add_counts(&mut self.sources, other.sources);
        add_counts(&mut self.sources_minute, other.sources_minute);
        if let Some(store) = other.store {
            self.store.get_or_insert_default().add(store);
        }
        for controller in other.controllers {
            match self.controllers.iter_mut().find(|known| known.name == controller.name) {
                Some(known) => known.add(controller),
                None => self.controllers.push(controller),
            }
        }
        for (name, held) in other.holds {
            let sum = self.holds.entry(name).or_default();
            *sum = HoldCounts { open: sum.open + held.open, expired: sum.expired + held.expired };
        }
        add_counts(&mut self.reserved, other.reserved);
    }
}

impl LimitCounts {
    fn of(recorder: &Recorder, name: &str) -> Option<Self> {
        let track = recorder.history.limit(name)?;
        let (recent, quarter) = (track.recent(RATE_SECONDS), track.recent(SECONDS));
        let measured = track.measured(RATE_SECONDS).max(1) as u64;
        let tenths = |count: u64| count * 10 / measured;
        Some(Self {
            second: OUTCOMES.into_iter().map(str::to_owned).zip(track.recent(1)).collect(),
            allowed: tenths(recent[ALLOWED] + recent[WAITED]),
            denied: tenths(recent[DENIED] + recent[NEVER]),
            would_deny: tenths(recent[WOULD_DENY]),
            denied_quarter: quarter[DENIED] + quarter[NEVER],
            would_deny_quarter: quarter[WOULD_DENY],
            trend: summed(&track.seconds(DENIED), &track.seconds(WOULD_DENY)),
            is_removed: false,
        })
    }

    fn add(&mut self, other: Self) {
        self.is_removed &= other.is_removed;
        add_counts(&mut self.second, other.second);
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.would_deny += other.would_deny;
        self.denied_quarter += other.denied_quarter;
        self.would_deny_quarter += other.would_deny_quarter;
        self.trend.resize(TREND_POINTS, 0);
        self.trend.iter_mut().zip(other.trend).for_each(|(sum, count)| *sum = sum.saturating_add(count));
    }
}

impl KeyCounts {
    fn of(key: TopKey, wall: WallOffset) -> Self {
        Self {
            since: Some(instant(key.since, wall)),
            limit: key.limit,
            key: key.key,
            attributes: key.attributes,
            decisions: key.decisions,
            denied: key.denied,
            would_deny: key.would_deny,
            sources: named(key.sources),
            is_estimated: key.is_estimated,
        }
    }

    fn add(&mut self, other: Self) {
        self.decisions += other.decisions;
        self.denied += other.denied;
        self.would_deny += other.would_deny;
        self.is_estimated |= other.is_estimated;
        // RFC 3339 in UTC sorts by time.
        self.since = self.since.take().into_iter().chain(other.since).min();
        add_counts(&mut self.sources, other.sources);
    }

    /// The most frequent source of its answers.
    pub(super) fn decided_by(&self) -> &str {
        let most = self.sources.iter().max_by_key(|(_, count)| **count);
        most.filter(|(_, count)| **count > 0).map_or("", |(source, _)| source)
    }
}

impl From<&NearKey> for NearCounts {
    fn from(near: &NearKey) -> Self {
        Self {
            limit: near.key.limit.clone(),
            key: near.key.key.clone(),
            attributes: near.key.attributes.clone(),
            remaining: near.remaining,
            of: near.limit,
            exhausted: near.exhausted,
        }
    }
}

impl StoreCounts {
    /// The difference of two readings.
    fn of(before: &StoreMetrics, now: &StoreMetrics) -> Self {
        let earlier = |index: usize| before.latency.0.get(index).map_or(0, |(_, count)| *count);
        let latency = now.latency.0.iter().enumerate();
        let latency = latency.map(|(index, (bound, count))| (*bound, count.saturating_sub(earlier(index))));
        let failed = |metrics: &StoreMetrics| metrics.failures.iter().map(|(_, count)| count).sum::<u64>();
        let shards = now.shards.iter().take(SHARDS_MAX).map(|shard| {
            let breakers = [(shard.state.name().to_owned(), 1)].into();
            (shard.address.clone(), ShardCounts { breakers, in_flight: shard.in_flight })
        });
        Self {
            latency: latency.collect(),
            timed: now.latency.1.saturating_sub(before.latency.1),
            calls: now.calls.saturating_sub(before.calls),
            requests: now.requests.saturating_sub(before.requests),
            failures: failed(now).saturating_sub(failed(before)),
            deferred: now.deferred,
            shards: shards.collect(),
        }
    }

    fn add(&mut self, other: Self) {
        // Nodes of another version may have other bounds, which have no sum.
        let has_same_bounds =
            self.latency.iter().map(|(bound, _)| bound).eq(other.latency.iter().map(|(bound, _)| bound));
        if self.latency.is_empty() {
            (self.latency, self.timed) = (other.latency, other.timed);
        } else if has_same_bounds {
            self.latency.iter_mut().zip(other.latency).for_each(|((_, sum), (_, count))| *sum += count);
            self.timed += other.timed;
        }
        self.calls += other.calls;
        self.requests += other.requests;
        self.failures += other.failures;
        self.deferred += other.deferred;
        for (address, shard) in other.shards {
            let sum = self.shards.entry(address).or_default();
            add_counts(&mut sum.breakers, shard.breakers);
            sum.in_flight += shard.in_flight;
        }
    }

    /// The time that so many thousandths of the calls took at most, as a bound in nanoseconds, or the largest bound if
    /// it is longer. `None` without calls.
    pub(super) fn quantile(&self, thousandths: u64) -> Option<Result<u64, u64>> {
        let wanted = (self.timed * thousandths).div_ceil(1_000);
        let found = self.latency.iter().find(|(_, count)| *count >= wanted);
        let last = self.latency.last().filter(|_| self.timed > 0)?;
        Some(found.map(|(nanos, _)| *nanos).ok_or(last.0))
    }
}

impl ShardCounts {
    /// Whether no node has an open breaker.
    pub(super) fn is_closed(&self) -> bool {
        self.breakers.keys().all(|state| state == ShardState::Closed.name())
    }
}

impl ControllerCounts {
    fn of(report: &ControllerReport, shed: Counts, wall: WallOffset) -> Self {
        Self {
            name: report.controller.as_str().to_owned(),
            mode: report.mode.name().to_owned(),
            in_flight: report.in_flight.map(u64::from),
            limit: report.limit,
            shed,
            would_shed: report.would_refuse,
            reason: report.reason.as_str().to_owned(),
            changed: report.changed_at.map(|at| instant(at, wall)),
        }
    }

    fn add(&mut self, other: Self) {
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        self.in_flight = sum(self.in_flight, other.in_flight);
        self.limit = sum(self.limit, other.limit);
        self.would_shed += other.would_shed;
        add_counts(&mut self.shed, other.shed);
        if other.mode != self.mode {
            self.mode = "not the same on all nodes".to_owned();
        }
        // RFC 3339 in UTC sorts by time.
        if other.changed > self.changed {
            (self.reason, self.changed) = (other.reason, other.changed);
        }
    }
}

fn named(counts: [u64; SOURCES.len()]) -> Counts {
    let each = SOURCES.into_iter().zip(counts).filter(|(_, count)| *count > 0);
    each.map(|(source, count)| (source.name().to_owned(), count)).collect()
}

fn add_counts(sums: &mut Counts, counts: Counts) {
    for (name, count) in counts {
        *sums.entry(name).or_default() += count;
    }
}

/// The sums of two counters over longer intervals, oldest first, as many as a trend has.
fn summed(one: &[u32], other: &[u32]) -> Vec<u32> {
    let both: Vec<u32> = one.iter().zip(other).map(|(one, other)| one.saturating_add(*other)).collect();
    let mut trend: Vec<u32> = both
        .rchunks(TREND_SECONDS)
        .map(|seconds| seconds.iter().fold(0_u32, |sum, count| sum.saturating_add(*count)))
        .collect();
    trend.resize(TREND_POINTS, 0);
    trend.reverse();
    trend
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trend ends now, whatever was measured before.
    #[test]
    fn a_trend_ends_now() {
        let trend = summed(&[1; 20], &[1; 20]);
        assert_eq!((trend.len(), trend[59], trend[58], trend[57]), (60, 30, 10, 0));
        assert_eq!(summed(&[1; SECONDS], &[0; SECONDS]), vec![15; 60]);
    }

    /// A quantile is that of the calls of all nodes between the readings, not of all calls.
    #[test]
    fn quantiles_are_of_the_last_minute() {
        let reading = |latency: Vec<(u64, u64)>, calls: u64| StoreMetrics {
            latency: (latency, calls, 0),
            ..StoreMetrics::default()
        };
        let before = reading(vec![(1_000, 90), (2_000, 100)], 100);
        let now = reading(vec![(1_000, 90), (2_000, 110)], 110);
        let mut numbers = StoreCounts::of(&before, &now);
        assert_eq!(numbers.quantile(500), Some(Ok(2_000)));
        assert_eq!(StoreCounts::of(&now, &now).quantile(500), None);
        numbers.add(StoreCounts {
            latency: vec![(1_000, 30), (2_000, 30)],
            timed: 40,
            ..StoreCounts::default()
        });
        assert_eq!((numbers.timed, numbers.quantile(500)), (50, Some(Ok(1_000))));
        assert_eq!(numbers.quantile(990), Some(Err(2_000)));
    }

    /// Counts are summed, a key of several nodes is one, and what is left of a shared counter is not summed.
    #[test]
    fn a_fleet_is_the_sum_of_its_nodes() {
        let node = |decisions: u64, remaining: u64| NodeCounts {
            verdicts: [("deny".to_owned(), VerdictCounts { second: 1, a_second: 2, quarter: 3 })].into(),
            limits: [(
                "a".to_owned(),
                LimitCounts { denied: 15, trend: vec![1; 60], ..LimitCounts::default() },
            )]
            .into(),
            keys: vec![KeyCounts {
                limit: "a".to_owned(),
                key: "k".to_owned(),
                decisions,
                would_deny: 2,
                sources: [("lease".to_owned(), 1)].into(),
                ..KeyCounts::default()
            }],
            near: vec![NearCounts {
                limit: "a".to_owned(),
                key: "k".to_owned(),
                remaining,
                of: 10,
                ..NearCounts::default()
            }],
            ..NodeCounts::default()
        };
        let mut sum = node(5, 2);
        sum.add(node(7, 1));
        assert_eq!(sum.verdicts["deny"], VerdictCounts { second: 2, a_second: 4, quarter: 6 });
        assert_eq!((sum.limits["a"].denied, sum.limits["a"].trend[59]), (30, 2));
        assert_eq!((sum.keys.len(), sum.keys[0].decisions, sum.keys[0].decided_by()), (1, 12, "lease"));
        assert_eq!(sum.keys[0].would_deny, 4);
        assert_eq!((sum.near.len(), sum.near[0].remaining), (1, 1));
        let text = serde_json::to_string(&sum).unwrap();
        let read: NodeCounts = serde_json::from_str(&text).unwrap();
        assert_eq!(read.keys[0].decisions, 12);
        assert!(serde_json::from_str::<NodeCounts>("{\"later\": 1}").is_ok(), "of another version");
    }
}
