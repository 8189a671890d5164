//! From what was counted to the report.

use tollgate::policy::{Limit, Mode};
use tollgate::time::TICKS_PER_SECOND;
use tollgate::{Quota, Ticks, Timestamp};

use super::bounds::OWN;
use super::distribution::{histogram, knee, quantile};
use super::key_map::table_bytes;
use super::keys::Key;
use super::report::{
    Denied, DeniedFor, LimitReport, MemoryUse, Minute, Overlap, Peaks, Range, SizeReport, StoreCost, Totals,
    TouchedKey, Week, percent, written,
};
use super::scaled::{QUARTERS, resized};
use super::sheet::{LimitSheet, Sheet, Stamps, TouchedCounts, Variant};

/// Most touched keys of a report.
const TOP_MAX: usize = 20;
/// The names of the sizes, with that of the limit itself.
const TIMES: [(u64, &str); 6] = [(2, "0.5"), (3, "0.75"), (4, "1"), (6, "1.5"), (8, "2"), (16, "4")];

impl Sheet {
    pub(super) fn totals(&self, still_waiting: u64) -> Totals {
        let first = self.first.unwrap_or_default();
        let clients = self.clients.len() as u64;
        let touched = self.touched_clients();
        let unrefused = self.beside[Variant::Unrefused as usize];
        let is_ranged = self.stamps == Stamps::WholeSeconds;
        let is_range_estimated = self.is_total_estimated();
        let shown = |at: Timestamp| match self.stamps {
            // The fraction is one that the replay chose.
            Stamps::WholeSeconds => written(at - Ticks::from_micros(at.unix_micros() % TICKS_PER_SECOND)),
            Stamps::Exact => written(at),
        };
        Totals {
            requests: self.requests,
            from: shown(first),
            to: shown(self.last),
            seconds: self.last.since(first).ceil_seconds(),
            decisions: self.decisions,
            allowed: self.decisions - self.denied,
            denied: self.denied,
            denied_percent: percent(self.denied, self.decisions),
            denied_range: is_ranged.then(|| self.denied_range()),
            is_range_estimated,
            clients,
            clients_touched: touched,
            clients_touched_percent: percent(touched, clients),
            clients_touched_range: is_ranged.then(|| self.touched_clients_range()),
            is_clients_range_estimated: is_range_estimated || self.is_touched_estimated(),
            unlimited: self.unlimited,
            faults: self.faults,
            already_refused: self.refused,
            without_refused: (self.refused > 0).then(|| Denied {
                requests: unrefused.decisions,
                denied: unrefused.denied,
                denied_percent: percent(unrefused.denied, unrefused.decisions),
                clients_touched: self.touched_clients_beside(Variant::Unrefused),
            }),
            retries: self.retries,
            retries_allowed: self.retries_allowed,
            still_waiting,
        }
    }

    pub(super) fn limit_reports(&self) -> Vec<LimitReport> {
        let each = self.policy.limits().iter().zip(&self.limits).zip(self.estimates().estimated);
        let report = |((limit, sheet), is_range_estimated): ((&Limit, &LimitSheet), bool)| LimitReport {
            is_range_estimated,
            ..sheet.report(limit, self.stamps)
        };
        each.map(report).collect()
    }

    /// The keys with the most denials, of all limits.
    pub(super) fn top(&self) -> Vec<TouchedKey> {
        let each = self.policy.limits().iter().zip(&self.limits);
        let mut all: Vec<TouchedKey> = each.flat_map(|(limit, sheet)| sheet.top(limit)).collect();
        all.sort_by(by_denials);
        all.truncate(TOP_MAX);
        all
    }

    pub(super) fn overlap_reports(&self) -> Vec<Overlap> {
        let name = |index: usize| {
            self.policy.limits().get(index).map(|limit| limit.name().to_owned()).unwrap_or_default()
        };
        let mut all: Vec<Overlap> = self
            .overlaps
            .iter()
            .map(|((one, other), denied)| Overlap { limits: [name(*one), name(*other)], denied: *denied })
            .collect();
        all.sort_by_key(|overlap| std::cmp::Reverse(overlap.denied));
        all
    }

    pub(super) const fn week(&self) -> Week {
        Week { requests: self.week_requests, denied: self.week_denied }
    }

    pub(super) fn store_cost(&self) -> StoreCost {
        StoreCost {
            calls: self.calls,
            calls_with_leases: self.calls_with_leases,
            leases: self.limits.iter().map(|limit| limit.leases).sum(),
        }
    }

    /// The memory of the statistics and of the counters, which take so many bytes.
    pub(super) fn memory(&self, counter_bytes: u64) -> MemoryUse {
        let of_limit = |limit: &LimitSheet| {
            table_bytes(&limit.keys) + limit.keys.values().map(Key::pointed_bytes).sum::<usize>()
        };
        let statistics = self.limits.iter().map(of_limit).sum::<usize>() + table_bytes(&self.clients);
        let keys: u64 = self.limits.iter().map(|limit| limit.keys.len() as u64).sum();
        MemoryUse { keys, bytes_per_key: (statistics as u64 + counter_bytes).div_ceil(keys.max(1)) }
    }
}

impl LimitSheet {
    fn report(&self, limit: &Limit, stamps: Stamps) -> LimitReport {
        let keys = self.keys.values().filter(|key| key.requests > 0).count() as u64;
        let counts = self.touched();
        let touched = counts.main[OWN];
        let is_ranged = stamps == Stamps::WholeSeconds;
        let burst_for_none = self.burst_for_none();
        LimitReport {
            name: limit.name().to_owned(),
            sentence: limit.sentence(),
            is_shadow: limit.mode() == Mode::Shadow,
            requests: self.requests,
            denied: self.denied,
            denied_percent: percent(self.denied, self.requests),
            denied_range: is_ranged.then(|| self.denied_range()),
            is_range_estimated: false,
            cause: self.cause,
            delayed: self.delayed,
            keys,
            touched,
            touched_percent: percent(touched, keys),
            touched_range: is_ranged.then(|| self.touched_range(&counts)),
            denied_for_ms: self.denied_for(),
            worst_minute: self.worst_minute(),
            worst_key: self.top(limit).into_iter().next(),
            sizes: self.size_reports(limit, (keys, &counts), is_ranged),
            peaks: self.peaks(limit),
            burst_for_none: burst_for_none.map(|range| range.high),
            burst_for_none_range: burst_for_none.filter(|_| is_ranged),
            leases: self.quotas.iter().any(|quota| quota.lease.is_some()).then_some(self.leases),
        }
    }

    fn denied_for(&self) -> DeniedFor {
        let denied = self.keys.values().filter(|key| key.denied > 0);
        let mut times: Vec<u64> = denied.map(|key| key.denied_for().ceil_millis()).collect();
        times.sort_unstable();
        DeniedFor { median: quantile(&times, 500), p99: quantile(&times, 990), max: quantile(&times, 1_000) }
    }

    fn worst_minute(&self) -> Option<Minute> {
        // Of several the first, so that the report is the same each time.
        let worst = self.minutes.iter().max_by_key(|(minute, denied)| (**denied, u64::MAX - **minute));
        worst.map(|(minute, denied)| {
            let at = Timestamp::from_unix_micros(minute * 60 * TICKS_PER_SECOND);
            Minute { at: written(at), denied: *denied }
        })
    }

    /// The keys with the most denials.
    fn top(&self, limit: &Limit) -> Vec<TouchedKey> {
        let denied = self.keys.values().filter_map(|key| Some((key, key.touched.as_deref()?)));
        let mut keys: Vec<_> = denied.collect();
        keys.sort_by(|(one, text), (other, than)| {
            other.denied.cmp(&one.denied).then_with(|| text.text().cmp(than.text()))
        });
        let touched = keys.into_iter().take(TOP_MAX).map(|(key, touched)| TouchedKey {
            limit: limit.name().to_owned(),
            key: touched.text().to_owned(),
            requests: key.requests,
            denied: key.denied,
            share_percent: percent(key.denied, self.denied),
            denied_for_ms: key.denied_for().ceil_millis(),
            route: touched.route(),
            user_agent: touched.user_agent(),
            is_first_denial: None,
        });
        touched.collect()
    }

    fn size_reports(
        &self,
        limit: &Limit,
        (keys, counts): (u64, &TouchedCounts),
        is_ranged: bool,
    ) -> Vec<SizeReport> {
        let Some(quota) = default_quota(limit) else { return Vec::new() };
        if !self.quotas.iter().any(super::scaled::Sizes::is_resized) {
            return Vec::new();
        }
        let report = |(quarters, times): (u64, &'static str)| {
            let size = QUARTERS.iter().position(|known| *known == quarters);
            let (denied, touched) = match size {
                None => (self.denied, counts.main[OWN]),
                Some(size) => (self.sizes[size], counts.main[size]),
            };
            let ranges = || match size {
                None => (self.denied_range(), self.touched_range(counts)),
                Some(size) => (self.denied_range_at(size), counts.range_at(size)),
            };
            let (denied_range, touched_range) = is_ranged.then(ranges).unzip();
            let resized = if size.is_none() { Some(quota.clone()) } else { resized(quota, quarters) };
            SizeReport {
                times,
                quota: resized.map(|quota| limit.amount(&quota)).unwrap_or_default(),
                denied,
                denied_percent: percent(denied, self.requests),
                denied_range,
                touched,
                touched_percent: percent(touched, keys),
                touched_range,
            }
        };
        TIMES.into_iter().map(report).collect()
    }

    fn peaks(&self, limit: &Limit) -> Option<Peaks> {
        let quota = default_quota(limit)?;
        let sorted = |is_wanted: fn(&Key) -> bool| {
            let wanted = self.keys.values().filter(|key| key.requests > 0 && is_wanted(key));
            let mut peaks: Vec<u64> = wanted.map(|key| key.used.peak).collect();
            peaks.sort_unstable();
            peaks
        };
        let (peaks, touched) = (sorted(|_| true), sorted(|key| key.sizes.has(OWN)));
        Some(Peaks {
            window_ms: quota.rate().map(|rate| rate.period().ceil_millis()),
            limit: quota.rate().map_or_else(|| quota.capacity(), |rate| rate.units()),
            p50: quantile(&peaks, 500),
            p90: quantile(&peaks, 900),
            p95: quantile(&peaks, 950),
            p99: quantile(&peaks, 990),
            p99_9: quantile(&peaks, 999),
            max: quantile(&peaks, 1_000),
            knee: knee(&peaks),
            histogram: histogram(&peaks, &touched),
        })
    }

    /// The largest burst that any key needs; `None` where a limit has no burst.
    fn burst_for_none(&self) -> Option<Range> {
        let burst = |key: &Key| self.quotas.get(usize::from(key.quota))?.burst_of(&key.used);
        let bursts = self.keys.values().filter(|key| key.requests > 0).filter_map(burst);
        bursts.reduce(|one, other| Range { low: one.low.max(other.low), high: one.high.max(other.high) })
    }
}

/// The quota of keys without a tier or an override.
fn default_quota(limit: &Limit) -> Option<&Quota> {
    limit.quota(limit.default_quota()).or_else(|| limit.quotas().first())
}

/// The most denials first, then by name, so that the report is the same each time.
fn by_denials(one: &TouchedKey, other: &TouchedKey) -> std::cmp::Ordering {
    let names = |key: &TouchedKey| (key.limit.clone(), key.key.clone());
    other.denied.cmp(&one.denied).then_with(|| names(one).cmp(&names(other)))
}
