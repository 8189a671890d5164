//! Metrics of a shared store: its calls, its failures, and its state. Bounded for any number of shards.

use super::exposition::Page;
use super::histogram::HistogramReading;
use super::names::{self, Metric, OTHERS, label};
use tollgate::lease::LeaseReport;

/// Maximum number of shards with their own series.
const SHARDS_MAX: usize = 64;
/// Maximum number of limits with their own series here.
const LIMITS_MAX: usize = 500;

/// The state of a shard's circuit breaker, in the order of [`STATES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardState {
    /// Every decision goes to the shard.
    Closed,
    /// No decision goes to the shard.
    Open,
    /// No decision goes to the shard, and a probe checks whether it answers.
    Probing,
    /// An increasing share of decisions goes to the shard.
    Ramping,
}

/// Every state with its name in metrics.
const STATES: [(ShardState, &str); 4] = [
    (ShardState::Closed, "closed"),
    (ShardState::Open, "open"),
    (ShardState::Probing, "probing"),
    (ShardState::Ramping, "ramping"),
];

impl ShardState {
    /// Its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        STATES.iter().find(|(state, _)| *state == self).map_or("", |(_, name)| name)
    }
}

/// One shard.
#[derive(Clone, Debug)]
pub(crate) struct ShardMetrics {
    pub(crate) address: String,
    pub(crate) state: ShardState,
    pub(crate) opened: u64,
    pub(crate) in_flight: u64,
    pub(crate) away_seconds: u64,
}

/// The leases of one limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitLeases {
    pub(crate) limit: String,
    pub(crate) keys: u64,
    pub(crate) units: u64,
}

/// All numbers of a shared store.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreMetrics {
    pub(crate) calls: u64,
    pub(crate) requests: u64,
    /// For each bound the number of calls that took at most so many nanoseconds, then the number of all calls, and the
    /// sum of their durations.
    pub(crate) latency: (Vec<(u64, u64)>, u64, u64),
    pub(crate) failures: Vec<(&'static str, u64)>,
    pub(crate) connected: u64,
    pub(crate) not_connected: u64,
    /// Refunds that wait to be sent.
    pub(crate) corrections: u64,
    /// Counters with deferred charges: units admitted without the store, to be reconciled.
    pub(crate) deferred: u64,
    /// Counters that were reconciled, and counters that were not, or perhaps not.
    pub(crate) reconciled: [u64; 2],
    /// How long limits that fail open were open, in seconds.
    pub(crate) open_seconds: u64,
    pub(crate) nodes: u64,
    pub(crate) outage_seconds: u64,
    /// Slots of a cluster that no node answered for recently.
    pub(crate) slots_unserved: u64,
    pub(crate) leases: LeaseReport,
    /// Every limit that may be leased.
    pub(crate) limits: Vec<LimitLeases>,
    pub(crate) shards: Vec<ShardMetrics>,
}

impl StoreMetrics {
    pub(super) fn show(&self, page: &mut Page) {
        let leases = &self.leases;
        for (metric, number) in [
            (&names::STORE_CALLS, self.calls),
            (&names::STORE_REQUESTS, self.requests),
            (&names::STORE_CORRECTIONS, self.corrections),
            (&names::STORE_DEFERRED, self.deferred),
            (&names::STORE_NODES, self.nodes),
            (&names::STORE_OPEN, self.open_seconds),
            (&names::STORE_OUTAGE, self.outage_seconds),
            (&names::STORE_SLOTS_UNSERVED, self.slots_unserved),
            (&names::LEASE_KEYS, leases.keys),
            (&names::LEASE_HELD, leases.held),
        ] {
            page.number(metric, &[], number);
        }
        let (buckets, count, sum_nanos) = self.latency.clone();
        page.histogram(&names::STORE_DURATION, &[], &HistogramReading { buckets, count, sum_nanos });
        for (class, count) in &self.failures {
            page.number(&names::STORE_FAILURES, &[(label::CLASS, class)], *count);
        }
        let [reconciled, dropped] = self.reconciled;
        for (metric, result, number) in [
            (&names::STORE_CONNECTIONS, "ok", self.connected),
            (&names::STORE_CONNECTIONS, "failed", self.not_connected),
            (&names::STORE_SETTLED, "ok", reconciled),
            (&names::STORE_SETTLED, "failed", dropped),
            (&names::LEASE_UNITS, "drawn", leases.acquired),
            (&names::LEASE_UNITS, "returned", leases.returned),
            (&names::LEASE_UNITS, "stranded", leases.stranded),
        ] {
            page.number(metric, &[(label::RESULT, result)], number);
        }
        self.show_limits(&names::LIMIT_LEASED, |limit| limit.keys, page);
        self.show_limits(&names::LIMIT_HELD, |limit| limit.units, page);
        self.show_shards(page);
    }

    fn show_limits(&self, metric: &Metric, number: fn(&LimitLeases) -> u64, page: &mut Page) {
        let (shown, others) = self.limits.split_at(self.limits.len().min(LIMITS_MAX));
        for limit in shown {
            page.number(metric, &[(label::LIMIT, &limit.limit)], number(limit));
        }
        if !others.is_empty() {
            page.number(metric, &[(label::LIMIT, OTHERS)], others.iter().map(number).sum());
        }
    }

    fn show_shards(&self, page: &mut Page) {
        let (shown, others) = self.shards.split_at(self.shards.len().min(SHARDS_MAX));
        let mut each = |metric, number: fn(&ShardMetrics) -> u64, folded: fn(u64, u64) -> u64| {
            for shard in shown {
                page.number(metric, &[(label::SHARD, &shard.address)], number(shard));
            }
            if let Some(number) = others.iter().map(number).reduce(folded) {
                page.number(metric, &[(label::SHARD, OTHERS)], number);
            }
        };
        each(&names::STORE_OPENED, |shard| shard.opened, |one, other| one + other);
        each(&names::STORE_IN_FLIGHT, |shard| shard.in_flight, |one, other| one + other);
        each(&names::STORE_AWAY, |shard| shard.away_seconds, u64::max);
        for shard in shown {
            for (state, name) in STATES {
                let labels = [(label::SHARD, shard.address.as_str()), (label::STATE, name)];
                page.number(&names::STORE_BREAKER, &labels, u64::from(shard.state == state));
            }
        }
        for (state, name) in STATES {
            let count = self.shards.iter().filter(|shard| shard.state == state).count() as u64;
            page.number(&names::STORE_SHARDS, &[(label::STATE, name)], count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(numbers: &StoreMetrics) -> String {
        let mut page = Page::default();
        numbers.show(&mut page);
        page.into_text().split_inclusive('\n').filter(|line| !line.starts_with('#')).collect()
    }

    fn shard(number: usize, state: ShardState) -> ShardMetrics {
        ShardMetrics {
            address: format!("h:{number}"),
            state,
            opened: 1,
            in_flight: 2,
            away_seconds: number as u64,
        }
    }

    /// A shard has its numbers under its address, and exactly one of four states.
    #[test]
    fn a_shard_has_one_state() {
        let numbers = StoreMetrics {
            shards: vec![shard(1, ShardState::Open)],
            failures: vec![("timeout", 7)],
            ..StoreMetrics::default()
        };
        let page = shown(&numbers);
        for line in [
            "tollgate_store_breaker{shard=\"h:1\",state=\"open\"} 1",
            "tollgate_store_breaker{shard=\"h:1\",state=\"closed\"} 0",
            "tollgate_store_shards{state=\"open\"} 1",
            "tollgate_store_away_seconds{shard=\"h:1\"} 1",
            "tollgate_store_failures_total{class=\"timeout\"} 7",
            "tollgate_store_call_duration_seconds_count 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }

    /// With any number of leased limits the page has a bounded number of lines, and the sums are complete.
    #[test]
    fn many_limits_are_folded() {
        let limit = |number: u64| LimitLeases { limit: format!("l{number}"), keys: 1, units: number };
        let page =
            shown(&StoreMetrics { limits: (0..1_000).map(limit).collect(), ..StoreMetrics::default() });
        for line in [
            "tollgate_limit_leased_keys{limit=\"l0\"} 1",
            "tollgate_limit_leased_keys{limit=\"(others)\"} 500",
            "tollgate_limit_held_units{limit=\"l499\"} 499",
            "tollgate_limit_held_units{limit=\"(others)\"} 374750",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}");
        }
        assert!(!page.contains("l500"), "{page}");
    }

    /// With any number of shards the page has a bounded number of lines, and the sums are complete.
    #[test]
    fn many_shards_are_folded() {
        let shards: Vec<ShardMetrics> = (0..1_000).map(|number| shard(number, ShardState::Closed)).collect();
        let page = shown(&StoreMetrics { shards, ..StoreMetrics::default() });
        assert!(page.lines().count() < 600, "{}", page.lines().count());
        assert!(page.contains("tollgate_store_in_flight{shard=\"(others)\"} 1872\n"), "{page}");
        assert!(page.contains("tollgate_store_away_seconds{shard=\"(others)\"} 999\n"), "{page}");
        assert!(page.contains("tollgate_store_shards{state=\"closed\"} 1000\n"), "{page}");
    }
}
