//! What calls cost: in the limits of the policy, and in the windows of a server.

use std::sync::Arc;

use crate::signal::WindowUnit;

/// What one call costs, or what several cost together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    /// How many calls these are.
    calls: u64,
    /// The cost that the calls state.
    stated: u64,
    /// The cost in each limit that counts them, by its name.
    by_limit: Vec<(Arc<str>, u64)>,
}

impl Costs {
    /// No call.
    pub(crate) const NONE: Costs = Costs { calls: 0, stated: 0, by_limit: Vec::new() };

    /// The costs of one call.
    pub(crate) const fn of_call(stated: u64, by_limit: Vec<(Arc<str>, u64)>) -> Self {
        Self { calls: 1, stated, by_limit }
    }

    /// The cost in a limit of the policy.
    pub(crate) fn in_limit(&self, name: &str) -> u64 {
        self.by_limit.iter().find(|(limit, _)| **limit == *name).map_or(self.stated, |(_, cost)| *cost)
    }

    /// The cost in a window of the server: that of the limit which follows it, or else the largest.
    pub(crate) fn in_window(&self, name: &str, unit: WindowUnit) -> u64 {
        if unit != WindowUnit::Cost {
            return self.calls;
        }
        let own = self.by_limit.iter().find(|(limit, _)| follows(limit, name)).map(|(_, cost)| *cost);
        own.unwrap_or_else(|| self.by_limit.iter().map(|(_, cost)| *cost).fold(self.stated, u64::max))
    }

    /// The costs of this many such calls.
    pub(crate) fn times(&self, calls: u64) -> Self {
        let by_limit =
            self.by_limit.iter().map(|(limit, cost)| (Arc::clone(limit), cost.saturating_mul(calls)));
        let (stated, by_limit) = (self.stated.saturating_mul(calls), by_limit.collect());
        Self { calls: self.calls.saturating_mul(calls), stated, by_limit }
    }

    pub(crate) fn add(&mut self, other: &Costs) {
        self.combine(other, u64::saturating_add);
    }

    pub(crate) fn subtract(&mut self, other: &Costs) {
        self.combine(other, u64::saturating_sub);
    }

    fn combine(&mut self, other: &Costs, with: impl Fn(u64, u64) -> u64) {
        self.calls = with(self.calls, other.calls);
        self.stated = with(self.stated, other.stated);
        for (limit, cost) in &other.by_limit {
            match self.by_limit.iter_mut().find(|(known, _)| known == limit) {
                Some((_, sum)) => *sum = with(*sum, *cost),
                None => self.by_limit.push((Arc::clone(limit), with(0, *cost))),
            }
        }
    }
}

/// Whether a limit follows a window of the server: it has the window's name, or ends with it (`openai-tokens` follows
/// `tokens`).
pub(crate) fn follows(limit: &str, window: &str) -> bool {
    limit.strip_suffix(window).is_some_and(|rest| rest.is_empty() || rest.ends_with('-'))
}
