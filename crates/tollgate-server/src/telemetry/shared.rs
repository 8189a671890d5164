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
    /// Writes the numbers of one metric, if it belongs here.
    pub(super) fn show(&self, metric: &Metric, page: &mut Page) {
        let mut one = |wanted: &Metric, number: u64| {
            if metric == wanted {
                page.number(metric, &[], number);
            }
        };
        one(&names::STORE_CALLS, self.calls);
        one(&names::STORE_REQUESTS, self.requests);
        one(&names::STORE_CORRECTIONS, self.corrections);
        one(&names::STORE_DEFERRED, self.deferred);
        one(&names::STORE_NODES, self.nodes);
        one(&names::STORE_OPEN, self.open_seconds);
        one(&names::STORE_OUTAGE, self.outage_seconds);
        one(&names::STORE_SLOTS_UNSERVED, self.slots_unserved);
        one(&names::LEASE_KEYS, self.leases.keys);
        one(&names::LEASE_HELD, self.leases.held);
        if *metric == names::STORE_DURATION {
            let (buckets, count, sum_nanos) = self.latency.clone();
            page.histogram(metric, &[], &HistogramReading { buckets, count, sum_nanos });
        } else if *metric == names::STORE_FAILURES {
            self.failures
                .iter()
                .for_each(|(class, count)| page.number(metric, &[(label::CLASS, class)], *count));
        } else if *metric == names::STORE_CONNECTIONS {
            page.number(metric, &[(label::RESULT, "ok")], self.connected);
            page.number(metric, &[(label::RESULT, "failed")], self.not_connected);
        } else if *metric == names::STORE_SETTLED {
            let [reconciled, dropped] = self.reconciled;
            page.number(metric, &[(label::RESULT, "ok")], reconciled);
            page.number(metric, &[(label::RESULT, "failed")], dropped);
        } else if *metric == names::LEASE_UNITS {
            let LeaseReport { acquired, returned, stranded, .. } = self.leases;
            for (result, units) in [("drawn", acquired), ("returned", returned), ("stranded", stranded)] {
                page.number(metric, &[(label::RESULT, result)], units);
            }
        } else if *metric == names::LIMIT_LEASED {
            self.show_limits(metric, |limit| limit.keys, page);
        } else if *metric == names::LIMIT_HELD {
            self.show_limits(metric, |limit| limit.units, page);
        } else {
            self.show_shards(metric, page);
        }
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

    fn show_shards(&self, metric: &Metric, page: &mut Page) {
        let (shown, others) = self.shards.split_at(self.shards.len().min(SHARDS_MAX));
        let mut each = |number: fn(&ShardMetrics) -> u64, folded: fn(u64, u64) -> u64| {
            for shard in shown {
                page.number(metric, &[(label::SHARD, &shard.address)], number(shard));
            }
            if let Some(number) = others.iter().map(number).reduce(folded) {
                page.number(metric, &[(label::SHARD, OTHERS)], number);
            }
        };
        if *metric == names::STORE_OPENED {
            each(|shard| shard.opened, |one, other| one + other);
        } else if *metric == names::STORE_IN_FLIGHT {
            each(|shard| shard.in_flight, |one, other| one + other);
        } else if *metric == names::STORE_AWAY {
            each(|shard| shard.away_seconds, u64::max);
        } else if *metric == names::STORE_BREAKER {
            for shard in shown {
                for (state, name) in STATES {
                    let labels = [(label::SHARD, shard.address.as_str()), (label::STATE, name)];
                    page.number(metric, &labels, u64::from(shard.state == state));
                }
            }
        } else if *metric == names::STORE_SHARDS {
            for (state, name) in STATES {
                let count = self.shards.iter().filter(|shard| shard.state == state).count() as u64;
                page.number(metric, &[(label::STATE, name)], count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(numbers: &StoreMetrics) -> String {
        let mut page = Page::default();
        names::ALL.iter().for_each(|metric| numbers.show(metric, &mut page));
        page.into_text()
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
