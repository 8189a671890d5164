//! Returns of nodes to a shared counter: expired units, and refunds of cancelled reservations.

use super::*;
use crate::algorithm::sliding_window::Estimate;
use crate::engine::Reservation;
use crate::key::Fingerprint;
use crate::lease::SHARE_SCALE;
use crate::policy::Cost;
use crate::store::Family;

const PERIOD: Ticks = Ticks::from_secs(2);
const UNITS: u64 = 60;
const LIFETIME: Ticks = Ticks::from_secs(60);

fn fleet(quota: &Quota) -> Fleet {
    let lending = MemoryLender::new(MemoryStore::new(16 << 20, START), 3);
    let node = |_| {
        let limit = Limit::new("limit", quota.clone()).by(["key"]).cost(Cost::Asked);
        let limit = limit.consistency(Consistency::Leased).lease(50_000, Ticks::from_millis(250));
        Engine::builder()
            .policy(Policy::new(vec![limit]).unwrap())
            .store(LeasedStore::new(lending.clone(), 1_000))
            .secret(Secret::repeatable(7))
            .build()
    };
    Fleet { nodes: (0..3).map(node).collect(), now: START }
}

fn asking(cost: u64) -> CheckRequest<'static> {
    CheckRequest::new().with("key", "k").unwrap().cost(cost).unwrap()
}

/// Admitted units that were kept, and the units that all nodes held right before.
struct Kept {
    at: Timestamp,
    units: u64,
    held: u64,
}

struct Trace {
    fleet: Fleet,
    seed: u64,
    kept: Vec<Kept>,
    open: Vec<(usize, Reservation, usize)>,
    refunded: u64,
}

impl Trace {
    fn below(&mut self, bound: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 8) % bound
    }

    fn held(&self) -> u64 {
        self.fleet.nodes.iter().map(|node| node.store().report().held).sum()
    }

    fn reserve(&mut self) {
        let (node, cost) = (usize::try_from(self.below(3)).unwrap(), 1 + self.below(2));
        let held = self.held();
        let (_, reservation) =
            block_on(self.fleet.nodes[node].reservations().reserve(&asking(cost), LIFETIME, self.fleet.now));
        if let Some(reservation) = reservation {
            self.open.push((node, reservation, self.kept.len()));
            self.kept.push(Kept { at: self.fleet.now, units: cost, held });
        }
    }

    fn cancel(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let place = usize::try_from(self.below(self.open.len() as u64)).unwrap();
        let (node, mut reservation, entry) = self.open.swap_remove(place);
        let settled =
            block_on(self.fleet.nodes[node].reservations().cancel(&mut reservation, self.fleet.now)).unwrap();
        self.refunded += settled.refunded;
        self.kept[entry].units = 0;
    }

    /// Gives back what passed by attributes and an age, at another node than the one that it passed at.
    fn refund(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let place = usize::try_from(self.below(self.open.len() as u64)).unwrap();
        let (node, _, entry) = self.open.swap_remove(place);
        let units = std::mem::take(&mut self.kept[entry].units);
        let within = self.fleet.now.since(self.kept[entry].at);
        let node = &self.fleet.nodes[(node + 1) % self.fleet.nodes.len()];
        block_on(node.ledger().refund(&asking(units), &[], within, self.fleet.now)).unwrap();
    }

    /// The largest excess of any interval that begins with an admission over the quota plus the units held at
    /// its start, in units × ticks. For quotas with windows, the interval is as long as a window.
    fn most_above(&self, quota: &Quota) -> i128 {
        let (units, period) = (i128::from(UNITS), i128::from(PERIOD.as_micros()));
        let mut most = i128::MIN;
        for (first, from) in self.kept.iter().enumerate() {
            let mut sum = 0;
            for to in &self.kept[first..] {
                let passed = i128::from(to.at.since(from.at).as_micros());
                let gained = match quota {
                    Quota::TokenBucket(_) | Quota::Gcra(_) => units * passed,
                    _ if passed < period => 0,
                    _ => break,
                };
                sum += i128::from(to.units);
                most = most.max((sum - units - i128::from(from.held)) * period - gained);
            }
        }
        most
    }
}

/// However a fleet acquires, returns and cancels units, no interval keeps more than the quota plus the units
/// held when it began.
#[test]
fn no_interval_exceeds_its_bound_plus_held_units() {
    let rate = Rate::per_ticks(UNITS, PERIOD);
    let quotas = [
        Quota::token_bucket(rate),
        Quota::gcra(rate),
        Quota::sliding_window(rate, 10, Estimate::Strict),
        Quota::sliding_window(rate, 1, Estimate::Strict),
    ];
    for quota in quotas.map(Result::unwrap) {
        for seed in [1, 2, 3] {
            let fleet = fleet(&quota);
            let mut trace = Trace { fleet, seed, kept: Vec::new(), open: Vec::new(), refunded: 0 };
            for _ in 0..1_500 {
                match trace.below(9) {
                    8 => trace.refund(),
                    0..4 => trace.reserve(),
                    4 | 5 => trace.cancel(),
                    6 => trace.fleet.pass(Ticks::from_micros(1)),
                    _ => {
                        let time = trace.below(60_000);
                        trace.fleet.pass(Ticks::from_micros(time));
                    }
                }
            }
            let name = quota.algorithm();
            let acquired: u64 = trace.fleet.nodes.iter().map(|node| node.store().report().acquired).sum();
            assert!(
                acquired > 20 && trace.refunded > 20,
                "{name}: {acquired} acquired, {} refunded",
                trace.refunded
            );
            assert!(trace.most_above(&quota) <= 0, "{name}, seed {seed}: {}", trace.most_above(&quota));
        }
    }
}

/// Regression: of 10 in 10 s a node acquires 5 at 0 s. 5 others pass at 7 s, and the node returns its 5. They
/// count at 0 s, so they free capacity until 10 s and no longer.
#[test]
fn returned_units_count_at_their_acquisition() {
    let rate = Rate::per_ticks(10, Ticks::from_secs(10));
    for quota in [Quota::sliding_log(rate), Quota::sliding_window(rate, 10, Estimate::Strict)] {
        let quota = quota.unwrap();
        let memory = MemoryLender::new(MemoryStore::new(1 << 20, START), 1);
        let family = Family::single(&Secret::repeatable(7), &[b"limit"], quota.clone());
        let key = family.overflow(Fingerprint { tag: 1, rest: 0 });
        let lease = Some(crate::store::Lease::default());
        let charge = |cost| Charge { lease, ..Charge::new(key, &family, 0, &quota, cost) };
        let at = |seconds| START + Ticks::from_secs(seconds);
        let admits = |cost, seconds| {
            block_on(memory.charge(&[charge(cost)], at(seconds))).unwrap()[0].outcome.is_allowed()
        };
        let request = LeaseRequest { units: 4, guaranteed: SHARE_SCALE * 10, share: SHARE_SCALE, demand: 0 };
        let loans = block_on(memory.lend(&[charge(1)], &[request], at(0))).unwrap();
        let acquired_at = loans[0].answer.counted_at(&quota);
        assert_eq!((loans[0].extra, acquired_at <= at(0)), (4, true));
        assert!(admits(5, 7) && !admits(1, 7));
        let receipt = loans[0].receipt.clone().unwrap();
        block_on(memory.return_units(&receipt, 4, acquired_at, at(7))).unwrap();
        assert!(admits(4, 7), "{}: what is returned makes room", quota.algorithm());
        assert!(!admits(2, 11), "{}: 9 were kept since 7 s", quota.algorithm());
    }
}
