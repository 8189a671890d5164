//! The costs of calls: in the limits of the policy, and in the windows of a server.

use std::sync::Arc;

use crate::signal::WindowUnit;

/// The cost of one call, or the sum for several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

    /// A call of one unit.
    pub(crate) const fn one_call() -> Self {
        Self::of_call(1, Vec::new())
    }

    /// How many calls these are the costs of.
    pub(crate) const fn calls(&self) -> u64 {
        self.calls
    }

    /// The cost in a limit of the policy.
    pub(crate) fn in_limit(&self, name: &str) -> u64 {
        self.by_limit.iter().find(|(limit, _)| **limit == *name).map_or(self.stated, |(_, cost)| *cost)
    }

    /// The cost in a window of the server: the largest of the limits that follow it, or else of all.
    pub(crate) fn in_window(&self, name: &str, unit: WindowUnit) -> u64 {
        if unit != WindowUnit::Cost {
            return self.calls;
        }
        let own = self.by_limit.iter().filter(|(limit, _)| follows(limit, name)).map(|(_, cost)| *cost).max();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Several limits may follow one window, at different costs: the largest counts. Costs of several calls add up, and
    /// taking one away leaves the others.
    #[test]
    fn a_window_costs_what_its_limits_cost() {
        let limits = [("my-requests", 1), ("my-input-tokens", 40), ("my-output-tokens", 700)];
        let by_limit = limits.map(|(name, cost)| (Arc::from(name), cost)).to_vec();
        let call = Costs::of_call(3, by_limit);
        let cost = |costs: &Costs, window| costs.in_window(window, WindowUnit::Cost);
        assert_eq!(
            (cost(&call, "input-tokens"), cost(&call, "tokens"), cost(&call, "points")),
            (40, 700, 700)
        );
        assert_eq!((call.in_limit("my-requests"), call.in_limit("other")), (1, 3));
        let mut three = Costs::NONE;
        (0..3).for_each(|_| three.add(&call));
        assert_eq!(three, call.times(3));
        assert_eq!(three.in_window("requests", WindowUnit::Requests), 3);
        three.subtract(&call);
        assert_eq!(three, call.times(2));
    }
}
