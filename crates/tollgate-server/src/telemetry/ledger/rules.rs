//! Series of other programs' rules, found by name. Names come from the file. Names that contain values of requests,
//! where a rule asks for that, have a separate bound, so that no traffic can displace the rules.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::names::{ALLOWED, DENIED, OTHERS, REQUEST_LIMIT, WOULD_ALLOW, WOULD_DENY, source_index};
use super::{AllSeries, Cell, Ledger, Series};
use crate::protocol::Protocol;
use tollgate_compat::Rule;

/// Maximum number of names with request values that have their own series. Any more are counted under the rule's name.
pub(in crate::telemetry) const VALUES_SHOWN: usize = 200;

/// The series of rules, by name.
#[derive(Default)]
pub(super) struct RuleSeries {
    /// Those of the active configuration, and the one for limits that requests carry.
    own: HashMap<Box<str>, Arc<Series>>,
    /// Those with request values. They outlive a configuration.
    values: HashMap<Box<str>, Arc<Series>>,
    /// The number of rules without their own series.
    pub(super) folded: usize,
}

impl RuleSeries {
    /// The series before any file is loaded.
    pub(super) fn first(known: &mut AllSeries) -> Self {
        Self {
            own: HashMap::from([(REQUEST_LIMIT.into(), known.series_of(REQUEST_LIMIT))]),
            ..Self::default()
        }
    }
}

impl Ledger {
    /// Registers the rules of a configuration, which replace those of the previous one.
    pub(in crate::telemetry) fn adopt_rules(&self, names: &[&str]) {
        let mut known = self.known();
        let mut rules = RuleSeries::first(&mut known);
        rules.values = self.rules.load().values.clone();
        for &name in names {
            let series = known.series_of(name);
            let is_folded = *series.name == *OTHERS;
            if rules.own.insert(name.into(), series).is_none() && is_folded {
                rules.folded += 1;
            }
        }
        self.rules.store(Arc::new(rules));
    }

    /// Counts the outcome of a rule.
    pub(in crate::telemetry) fn record_rule(&self, rule: &Rule<'_>, protocol: Protocol) {
        let outcome = match (rule.is_shadow, rule.is_denied) {
            (false, false) => ALLOWED,
            (false, true) => DENIED,
            (true, false) => WOULD_ALLOW,
            (true, true) => WOULD_DENY,
        };
        let cell = Cell { protocol, outcome, source: source_index(rule.source) };
        let series = self.series_of_rule(rule);
        series.count_one(cell);
        if rule.is_near {
            series.count_near(cell);
        }
    }

    fn series_of_rule(&self, rule: &Rule<'_>) -> Arc<Series> {
        let rules = self.rules.load();
        if let Some(detail) = rule.detail.as_deref() {
            if let Some(series) = rules.own.get(detail).or_else(|| rules.values.get(detail)) {
                return Arc::clone(series);
            }
            if rules.values.len() < VALUES_SHOWN {
                return self.open_values(detail, rule.name);
            }
        }
        match rules.own.get(rule.name) {
            Some(series) => Arc::clone(series),
            // The rule belongs to a configuration that was replaced while it decided.
            None => self.known().series_of(rule.name),
        }
    }

    /// Creates the series of a name with request values that was not found before.
    #[cold]
    fn open_values(&self, detail: &str, name: &str) -> Arc<Series> {
        let mut known = self.known();
        let before = self.rules.load();
        // Another thread may have created it meanwhile.
        if let Some(series) = before.values.get(detail) {
            return Arc::clone(series);
        }
        if before.values.len() >= VALUES_SHOWN {
            return known.series_of(name);
        }
        let series = known.series_beside(detail);
        let mut values = before.values.clone();
        values.insert(detail.into(), Arc::clone(&series));
        self.rules.store(Arc::new(RuleSeries { own: before.own.clone(), values, folded: before.folded }));
        series
    }
}
