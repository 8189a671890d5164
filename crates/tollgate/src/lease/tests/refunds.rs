//! What nodes give back to a counter that they draw from: units that nobody spent, and what was spent and cancelled.

use super::*;
use crate::algorithm::concurrency::PermitId;
use crate::algorithm::sliding_window::Estimate;
use crate::charge::Family;
use crate::engine::Reservation;
use crate::key::Fingerprint;
use crate::lease::PARTS;
use crate::policy::Cost;

const PERIOD: Ticks = Ticks::from_secs(2);
const UNITS: u64 = 60;
const LIFETIME: Ticks = Ticks::from_secs(60);

fn fleet(quota: &Quota) -> Fleet {
    let lending = Lending::new(MemoryStore::new(16 << 20, START), 3);
    let node = |_| {
        let limit = Limit::new("limit", quota.clone()).by(["key"]).cost(Cost::Asked);
        let limit = limit.consistency(Consistency::Leased).lease(50_000, Ticks::from_millis(250));
        Engine::with_store(
            Policy::new(vec![limit]).unwrap(),
            Leased::new(lending.clone(), 1_000),
            Secret::repeatable(7),
        )
    };
    Fleet { nodes: (0..3).map(node).collect(), now: START }
}

fn asking(cost: u64) -> CheckRequest<'static> {
    CheckRequest::new().with("key", "k").unwrap().cost(cost).unwrap()
}

/// Units that passed and were kept, and what all nodes held right before.
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
            block_on(self.fleet.nodes[node].reserve(&asking(cost), LIFETIME, self.fleet.now));
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
        let settled = block_on(self.fleet.nodes[node].cancel(&mut reservation, self.fleet.now)).unwrap();
        self.refunded += settled.refunded;
        self.kept[entry].units = 0;
    }

    /// The most by which an interval that begins with an admission exceeds what the quota gives and what was held then, in
    /// units × ticks; an interval of a window's length for quotas that have windows.
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

/// Whatever a fleet draws, gives back and cancels: no interval keeps more than the definition gives and what was held when it
/// began.
#[test]
fn no_interval_keeps_more_than_its_bound_and_what_was_held() {
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
                match trace.below(8) {
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
            let drawn: u64 = trace.fleet.nodes.iter().map(|node| node.store().report().drawn).sum();
            assert!(drawn > 20 && trace.refunded > 20, "{name}: {drawn} drawn, {} refunded", trace.refunded);
            assert!(trace.most_above(&quota) <= 0, "{name}, seed {seed}: {}", trace.most_above(&quota));
        }
    }
}

/// The story of a late return: 10 in 10 s, of which a node draws 5 at 0 s. 5 others pass at 7 s, and the node returns its 5:
/// those go back to 0 s, make room for 5 until 10 s, and for nothing more then.
#[test]
fn returned_units_go_back_to_the_instant_of_their_draw() {
    let rate = Rate::per_ticks(10, Ticks::from_secs(10));
    for quota in [Quota::sliding_log(rate), Quota::sliding_window(rate, 10, Estimate::Strict)] {
        let quota = quota.unwrap();
        let memory = Lending::new(MemoryStore::new(1 << 20, START), 1);
        let family = Family::single(&Secret::repeatable(7), &[b"limit"], quota.clone());
        let charge = |cost| Charge {
            key: family.overflow(Fingerprint { tag: 1, rest: 0 }),
            family: &family,
            number: 0,
            quota: &quota,
            cost,
            stance: crate::decision::Stance::Enforced,
            permit: PermitId(0),
            group: None,
            lease: Some(crate::policy::Lease::default()),
            charged_at: None,
        };
        let at = |seconds| START + Ticks::from_secs(seconds);
        let admits = |cost, seconds| {
            block_on(memory.charge(&[charge(cost)], at(seconds))).unwrap()[0].outcome.is_allowed()
        };
        let want = Want { units: 4, due: PARTS * 10, part: PARTS, report: 0 };
        let loans = block_on(memory.lend(&[charge(1)], &[want], at(0))).unwrap();
        let drawn_at = loans[0].answer.counted_at(&quota);
        assert_eq!((loans[0].extra, drawn_at <= at(0)), (4, true));
        assert!(admits(5, 7) && !admits(1, 7));
        let receipt = loans[0].receipt.clone().unwrap();
        block_on(memory.take_back(&receipt, 4, drawn_at, at(7))).unwrap();
        assert!(admits(4, 7), "{}: what is returned makes room", quota.algorithm());
        assert!(!admits(2, 11), "{}: 9 were kept since 7 s", quota.algorithm());
    }
}
