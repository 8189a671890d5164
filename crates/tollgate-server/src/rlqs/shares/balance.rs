//! From reports to assignments: the target of each bucket, what it may already have, and which buckets receive an
//! order.

use tollgate::Timestamp;

use super::*;

/// At a counter with more buckets than this, a bucket receives an instruction only when it is reported.
const NOTIFIED_IMMEDIATELY_MAX: usize = 64;
/// How often a counter with more buckets is divided again.
const DIVIDED_EVERY: Ticks = Ticks::from_millis(250);
/// The fraction of a limit that all new buckets together may get beyond it: one part in this many.
const FIRST_SHARES: u64 = 10;
/// The fraction of a limit that is reserved for buckets without demand: one part in this many.
const KEPT_FOR_IDLE: u64 = 10;

/// When a counter is divided again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Divide {
    /// Now if it has few buckets, else if its last division is old.
    IfSmall,
    /// If its last division is old.
    IfStale,
}

impl Shares {
    /// Returns an instruction for the bucket in the report, and one for each other bucket whose share changes.
    pub(super) fn balance(
        &mut self,
        id: SubscriptionId,
        age: Age,
        now: Timestamp,
    ) -> Vec<(SubscriptionId, Instruction)> {
        let others = self.others(id);
        for &other in &others {
            self.recount(other, now);
        }
        self.divide(id, now);
        let mut instructions = Vec::new();
        let mut raises = Vec::new();
        for other in others {
            let Some(current) = self.current(other, now) else { continue };
            let target = self.target(other, now);
            if target.rate < current.rate - current.rate / 8 || target.tokens < current.tokens / 2 {
                instructions.extend(self.grant(other, target, Age::Known, now));
            } else if target.rate > current.rate + current.rate / 8 {
                raises.push(other);
            }
        }
        let mut target = self.target(id, now);
        if age == Age::New {
            target = self.at_least_first(id, target);
        }
        let instruction = match self.kept(id, target, now) {
            Some(strategy) => Some((id, self.send(id, strategy, now))),
            None => self.grant(id, target, age, now),
        };
        instructions.extend(instruction);
        for other in raises {
            let (target, current) = (self.target(other, now), self.current(other, now).unwrap_or_default());
            let possible = self.within_budget(other, target, Age::Known, now);
            if possible.rate > current.rate + current.rate / 8 {
                instructions.extend(self.grant(other, target, Age::Known, now));
            }
        }
        instructions
    }

    /// The other buckets at its counters, if there are few.
    fn others(&self, id: SubscriptionId) -> Vec<SubscriptionId> {
        let Some(subscription) = self.subscriptions.get(&id) else { return Vec::new() };
        let counters =
            || subscription.counters.iter().filter_map(|attached| self.counters.get(&attached.counter));
        if counters().any(|counter| counter.subscriptions.len() > NOTIFIED_IMMEDIATELY_MAX) {
            return Vec::new();
        }
        let mut others: Vec<SubscriptionId> = counters()
            .flat_map(|counter| counter.subscriptions.iter().copied())
            .filter(|&other| other != id)
            .collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    /// Divides the counters of a bucket, and the counters of its neighbours that are not divided yet.
    fn divide(&mut self, id: SubscriptionId, now: Timestamp) {
        let Some(subscription) = self.subscriptions.get(&id) else { return };
        for attached in subscription.counters.clone() {
            self.divide_counter(attached.counter, now, Divide::IfSmall);
        }
    }

    fn divide_counter(&mut self, id: CounterId, now: Timestamp, when: Divide) {
        let Some(counter) = self.counters.get(&id) else { return };
        let is_small = counter.subscriptions.len() <= NOTIFIED_IMMEDIATELY_MAX;
        let is_fresh = |(since, _): &(Timestamp, Level)| {
            !(when == Divide::IfSmall && is_small) && now.since(*since) < DIVIDED_EVERY
        };
        if counter.level.as_ref().is_some_and(is_fresh) {
            return;
        }
        let whole = counter.whole(counter.budget(now));
        let claims = counter.subscriptions.iter().filter_map(|subscription| {
            let subscription = self.subscriptions.get(subscription)?;
            let attached = subscription.counters.iter().find(|attached| attached.counter == id)?;
            Some(claim(subscription, attached.cost, whole, counter.subscriptions.len()))
        });
        let level = Level::new(whole, claims.collect());
        if let Some(counter) = self.counters.get_mut(&id) {
            counter.level = Some((now, level));
        }
    }

    /// The target of a bucket: the smallest share that any of its counters gives it.
    fn target(&mut self, id: SubscriptionId, now: Timestamp) -> Share {
        let Some(subscription) = self.subscriptions.get(&id) else { return Share::default() };
        for attached in subscription.counters.clone() {
            self.divide_counter(attached.counter, now, Divide::IfStale);
        }
        let Some(subscription) = self.subscriptions.get(&id) else { return Share::default() };
        let shares = subscription.counters.iter().filter_map(|attached| {
            let counter = self.counters.get(&attached.counter)?;
            let (budget, (_, level)) = (counter.budget(now), counter.level?);
            let whole = counter.whole(budget);
            let share = level
                .share(claim(subscription, attached.cost, whole, counter.subscriptions.len()))
                .min(whole);
            let part =
                |of: u64| u128::from(of) * u128::from(share) / u128::from(whole) / u128::from(attached.cost);
            let tokens = u64::try_from(part(budget.tokens)).unwrap_or(u64::MAX);
            Some(Share {
                rate: u64::try_from(part(budget.rate)).unwrap_or(u64::MAX),
                tokens: tokens.max(u64::from(budget.tokens > 0)),
            })
        });
        let least = |one: Share, other: Share| Share {
            rate: one.rate.min(other.rate),
            tokens: one.tokens.min(other.tokens),
        };
        shares.reduce(least).unwrap_or_default()
    }

    /// The target of a new bucket. It is at least the first share, even while the counter owes so much that nothing is
    /// assigned. [`Self::within_budget`] bounds the sum for all new buckets.
    fn at_least_first(&self, id: SubscriptionId, target: Share) -> Share {
        let Some(subscription) = self.subscriptions.get(&id) else { return target };
        let firsts = subscription.counters.iter().filter_map(|attached| {
            let counter = self.counters.get(&attached.counter)?;
            Some(counter.parameters.refill(counter.horizon()) / FIRST_SHARES / attached.cost)
        });
        let first = firsts.min().unwrap_or(0);
        Share { rate: target.rate.max(first), tokens: target.tokens.max(u64::from(first > 0)) }
    }

    /// Limits a target to what its counters can give beside the grants that others may be following. Without such room,
    /// a new bucket may have half of the remaining first shares, which are a tenth of the limit beyond the limit. First
    /// shares are computed from the limit, not from the currently assigned part. While something is owed that part is
    /// smaller, but others may still follow the whole limit. A new bucket would then get nothing until they have given
    /// it up.
    fn within_budget(&self, id: SubscriptionId, target: Share, age: Age, now: Timestamp) -> Share {
        let Some(subscription) = self.subscriptions.get(&id) else { return Share::default() };
        let mut possible = target;
        for attached in &subscription.counters {
            let Some(counter) = self.counters.get(&attached.counter) else { continue };
            let (budget, mine) = (counter.budget(now), subscription.counted.times(attached.cost));
            let room = |all: u64, beside: u64, whole: u64, first_of: u64| {
                let room = i128::from(all) - i128::from(beside);
                let first = (i128::from(first_of + whole / FIRST_SHARES) - i128::from(beside)) / 2;
                let room = if age == Age::New { room.max(first) } else { room };
                u64::try_from(room.max(0)).unwrap_or(u64::MAX) / attached.cost
            };
            let (parameters, out) = (&counter.parameters, counter.out);
            let (rates, other_tokens) =
                (out.rate.saturating_sub(mine.rate), out.tokens.saturating_sub(mine.tokens));
            let first_of = budget.rate.max(parameters.refill(counter.horizon()));
            possible.rate = possible.rate.min(room(budget.rate, rates, parameters.rate, first_of));
            // Tokens are spent immediately, so only tokens that are really left count.
            let tokens = room(budget.tokens, other_tokens, parameters.capacity, budget.tokens);
            possible.tokens = possible.tokens.min(tokens.max(1));
        }
        possible
    }

    /// Grants a bucket as much of its target as there is room for.
    fn grant(
        &mut self,
        id: SubscriptionId,
        target: Share,
        age: Age,
        now: Timestamp,
    ) -> Option<(SubscriptionId, Instruction)> {
        let possible = self.within_budget(id, target, age, now);
        let subscription = self.subscriptions.get(&id)?;
        let strategy = if target.tokens == 0 {
            Strategy::DenyAll
        } else {
            let mut strategy = Strategy::bucket(possible, subscription.nominal);
            let last = subscription.grants.current(now).map(|grant| grant.strategy);
            if let Some(last) = last
                && strategy.looks_like(last)
                && let Strategy::TokenBucket { max_tokens, .. } = &mut strategy
            {
                *max_tokens = max_tokens.saturating_add(1); // So that Envoy sees that it is another.
            }
            strategy
        };
        Some((id, self.send(id, strategy, now)))
    }

    /// The bucket's current strategy, if it is close enough to the target and fits. Sending it again only extends it,
    /// and Envoy keeps its tokens.
    fn kept(&self, id: SubscriptionId, target: Share, now: Timestamp) -> Option<Strategy> {
        let subscription = self.subscriptions.get(&id)?;
        let strategy = subscription.grants.current(now)?.strategy;
        let share = strategy.share();
        let is_near = |one: u64, other: u64, part: u64| one.abs_diff(other) <= one.max(other) / part;
        let fits = self.within_budget(id, share, Age::Known, now) == share;
        let is_bucket = matches!(strategy, Strategy::TokenBucket { .. }) && target.tokens > 0;
        let has_nominal = strategy == Strategy::bucket(share, subscription.nominal);
        (is_bucket
            && has_nominal
            && fits
            && is_near(share.rate, target.rate, 16)
            && is_near(share.tokens, target.tokens, 4))
        .then_some(strategy)
    }

    /// The share last sent to a bucket.
    fn current(&self, id: SubscriptionId, now: Timestamp) -> Option<Share> {
        let subscription = self.subscriptions.get(&id)?;
        subscription.grants.current(now).map(|grant| grant.strategy.share())
    }
}

/// The units per second that a bucket wants from a counter: its demand with headroom, or an equal part while the demand
/// is unknown. It always includes a little for the next request.
fn claim(subscription: &Subscription, cost: u64, whole: Nano, subscriptions: usize) -> Nano {
    let subscriptions = subscriptions.max(1) as u64;
    let asked = match subscription.demand {
        None => whole / subscriptions,
        Some(demand) => with_head_room(demand).min(subscription.ceiling).saturating_mul(cost),
    };
    asked.max(whole / KEPT_FOR_IDLE / subscriptions).min(whole)
}
