//! Random cases: a quota with its oracle, and a trace with awkward steps: equal instants, boundaries, the exact tick of the
//! last retry advice, huge gaps, steps back, and costs from 0 to the maximum.

use proptest::prelude::*;
use tollgate::algorithm::Charged;
use tollgate::algorithm::calendar::{Calendar, CalendarUnit};
use tollgate::algorithm::concurrency::Concurrency;
use tollgate::algorithm::fixed_window::{Align, FixedWindow};
use tollgate::algorithm::leaky_bucket::LeakyBucket;
use tollgate::algorithm::reservoir::Reservoir;
use tollgate::algorithm::sliding_log::SlidingLog;
use tollgate::algorithm::sliding_window::{Estimate, SlidingWindow};
use tollgate::request::COST_MAX;
use tollgate::{Outcome, Quota, Rate, Ticks, Timestamp};

use crate::oracle::{Bucket, CivilUnit, Log, Oldest, Oracle, Permits, SubWindows, WindowCount, Windows};

/// Moves stop here, so that no trace reaches the last representable instant.
const LATEST: Timestamp = Timestamp::from_unix_seconds(3_000_000_000);
const DAY: u64 = 86_400;

/// How a step moves in time, relative to the period of the quota.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    Stay,
    Ticks(u64),
    Permille(u64),
    Periods(u64),
    Boundary(i64),
    Retry(i64),
    Days(u64),
    BackTicks(u64),
    BackPermille(u64),
    BackDays(u64),
}

/// The units that a step charges or refunds, relative to the capacity of the quota.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amount {
    Zero,
    Units(u64),
    Permille(u64),
    Capacity,
    OneTooMany,
    Huge,
}

/// A refund's knowledge of the time of its charge.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Knows {
    Instant,
    /// Its age, too high by this number of ticks.
    Age(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Charge(Move, Amount),
    /// Refunds one of the admitted charges, counted back from the last.
    Refund(Move, Amount, usize, Knows),
}

impl Step {
    pub(crate) const fn parts(self) -> (Move, Amount) {
        match self {
            Step::Charge(time, amount) | Step::Refund(time, amount, ..) => (time, amount),
        }
    }
}

/// The admitted charges of a trace, and the units of them that were not refunded.
#[derive(Default)]
pub(crate) struct Charges(Vec<Admitted>);

/// An admitted charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) at: Timestamp,
    pub(crate) kept: u64,
    counted_at: Timestamp,
}

/// The units of a refund.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refund {
    pub(crate) admission: usize,
    pub(crate) units: u64,
    pub(crate) charged: Charged,
}

impl Charges {
    /// Records the outcome of a charge.
    pub(crate) fn note(&mut self, subject: &Subject, outcome: &Outcome, units: u64, now: Timestamp) {
        if outcome.is_allowed() && units > 0 {
            let counted_at = subject.quota.counted_at(outcome, now);
            self.0.push(Admitted { at: now, kept: units, counted_at });
        }
    }

    /// Refunds units of a charge, at most those left of it. Returns `None` if there is no charge.
    pub(crate) fn take_back(
        &mut self,
        back: usize,
        units: u64,
        knows: Knows,
        now: Timestamp,
    ) -> Option<Refund> {
        let admission = self.0.len().checked_sub(1 + back % self.0.len().max(1))?;
        let one = self.0.get_mut(admission)?;
        let units = units.min(one.kept);
        one.kept -= units;
        let charged = match knows {
            Knows::Instant => Charged::At(one.counted_at),
            Knows::Age(more) => Charged::Within(now.since(one.at) + Ticks::from_micros(more)),
        };
        Some(Refund { admission, units, charged })
    }

    /// The units that were admitted and not refunded, in order.
    pub(crate) fn kept(&self) -> Vec<(Timestamp, u64)> {
        self.0.iter().map(|one| (one.at, one.kept)).collect()
    }
}

/// A quota and the definition that it must match.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) quota: Quota,
    definition: Definition,
    /// The unit of moves.
    pub(crate) period: Ticks,
    /// The distance of boundaries.
    grid: Ticks,
}

#[derive(Clone, Debug)]
enum Definition {
    Bucket(Bucket),
    Windows(WindowCount),
    SubWindows(SubWindows),
    Log(Log),
    Permits(Permits),
}

impl Subject {
    fn new(quota: Quota, definition: Definition, period: Ticks) -> Self {
        let grid = match &quota {
            Quota::SlidingWindow(window) => window.sub_window(),
            _ => period,
        };
        Self { quota, definition, period, grid }
    }

    pub(crate) fn oracle(&self) -> Box<dyn Oracle> {
        match self.definition.clone() {
            Definition::Bucket(oracle) => Box::new(oracle),
            Definition::Windows(oracle) => Box::new(oracle),
            Definition::SubWindows(oracle) => Box::new(oracle),
            Definition::Log(oracle) => Box::new(oracle),
            Definition::Permits(oracle) => Box::new(oracle),
        }
    }

    /// Whether a refund returns exactly what the definition does.
    pub(crate) fn returns_exactly(&self, refund: &Refund, now: Timestamp) -> bool {
        match (&self.quota, refund.charged) {
            (Quota::Concurrency(_), _) => true,
            (Quota::TokenBucket(_) | Quota::Gcra(_) | Quota::LeakyBucket(_), charged) => {
                charged.elapsed(now).is_zero()
            }
            (_, Charged::At(_)) => true,
            (_, Charged::Within(_)) => false,
        }
    }

    pub(crate) fn begins_with_a_hit(&self) -> bool {
        matches!(&self.quota, Quota::FixedWindow(window) if *window.align() == Align::FirstHit)
    }

    pub(crate) fn units(&self, amount: Amount) -> u64 {
        let capacity = self.quota.capacity();
        match amount {
            Amount::Zero => 0,
            Amount::Units(units) => units,
            Amount::Permille(part) => (capacity / 1_000 * part + capacity % 1_000 * part / 1_000).max(1),
            Amount::Capacity => capacity,
            Amount::OneTooMany => capacity + 1,
            Amount::Huge => COST_MAX,
        }
    }

    /// The instant after a move from `now`. `retry_at` is the retry instant of the last denial.
    pub(crate) fn go(&self, step: Move, now: Timestamp, retry_at: Timestamp) -> Timestamp {
        let period = self.period.as_micros();
        let part =
            |permille: u64| Ticks::from_micros(period / 1_000 * permille + period % 1_000 * permille / 1_000);
        let near = |at: Timestamp, off: i64| {
            let off_by = Ticks::from_micros(off.unsigned_abs());
            if off < 0 { at - off_by } else { at + off_by }.max(now)
        };
        let grid = self.grid.as_micros();
        let to = match step {
            Move::Stay => now,
            Move::Ticks(ticks) => now + Ticks::from_micros(ticks),
            Move::Permille(permille) => now + part(permille),
            Move::Periods(periods) => now + Ticks::from_micros(periods * period),
            Move::Boundary(off) => {
                near(Timestamp::from_unix_micros((now.unix_micros() / grid + 1) * grid), off)
            }
            Move::Retry(off) => near(retry_at, off),
            Move::Days(days) => now + Ticks::from_secs(days * DAY),
            Move::BackTicks(ticks) => now - Ticks::from_micros(ticks),
            Move::BackPermille(permille) => now - part(permille),
            Move::BackDays(days) => now - Ticks::from_secs(days * DAY),
        };
        if to > LATEST { now } else { to }
    }
}

fn forward() -> impl Strategy<Value = Move> {
    prop_oneof![
        2 => Just(Move::Stay),
        2 => (1u64..4).prop_map(Move::Ticks),
        4 => (1u64..1_200).prop_map(Move::Permille),
        1 => (1u64..3).prop_map(Move::Periods),
        3 => (-1i64..=1).prop_map(Move::Boundary),
        4 => (-1i64..=1).prop_map(Move::Retry),
        1 => (1u64..400).prop_map(Move::Days),
    ]
}

fn either_direction() -> impl Strategy<Value = Move> {
    prop_oneof![
        12 => forward(),
        1 => (1u64..4).prop_map(Move::BackTicks),
        2 => (1u64..2_500).prop_map(Move::BackPermille),
        1 => (1u64..800).prop_map(Move::BackDays),
    ]
}

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![
        1 => Just(Amount::Zero),
        6 => (1u64..4).prop_map(Amount::Units),
        4 => (1u64..1_000).prop_map(Amount::Permille),
        2 => Just(Amount::Capacity),
        1 => Just(Amount::OneTooMany),
        1 => Just(Amount::Huge),
    ]
}

/// Charges only, while time never steps back. The bounds hold for these traces.
pub(crate) fn steady() -> impl Strategy<Value = Vec<Step>> {
    let step = (forward(), amount()).prop_map(|(time, amount)| Step::Charge(time, amount));
    prop::collection::vec(step, 1..80)
}

/// Charges only, while time sometimes steps back by less than a period.
pub(crate) fn jittering() -> impl Strategy<Value = Vec<Step>> {
    let time = prop_oneof![
        4 => forward(),
        1 => (1u64..4).prop_map(Move::BackTicks),
        1 => (1u64..1_000).prop_map(Move::BackPermille),
    ];
    let step = (time, amount()).prop_map(|(time, amount)| Step::Charge(time, amount));
    prop::collection::vec(step, 1..80)
}

/// Charges and refunds of earlier charges, while time never steps back.
pub(crate) fn settling() -> impl Strategy<Value = Vec<Step>> {
    let which = prop_oneof![2 => Just(0usize), 4 => 0usize..20];
    let knows = prop_oneof![
        3 => Just(Knows::Instant),
        1 => Just(Knows::Age(0)),
        1 => (0u64..1_000_000).prop_map(Knows::Age),
    ];
    let step = prop_oneof![
        4 => (forward(), amount()).prop_map(|(time, amount)| Step::Charge(time, amount)),
        2 => (forward(), amount(), which, knows)
            .prop_map(|(time, amount, back, knows)| Step::Refund(time, amount, back, knows)),
    ];
    prop::collection::vec(step, 1..80)
}

/// Charges only, while time moves in both directions.
pub(crate) fn wild() -> impl Strategy<Value = Vec<Step>> {
    let step = (either_direction(), amount()).prop_map(|(time, amount)| Step::Charge(time, amount));
    prop::collection::vec(step, 1..60)
}

/// The start of a trace: the epoch, shortly after it, or a day of this century.
pub(crate) fn start() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        1 => Just(Timestamp::default()),
        2 => (0u64..10_000_000).prop_map(Timestamp::from_unix_micros),
        8 => (1_600_000_000_000_000u64..1_800_000_000_000_000).prop_map(Timestamp::from_unix_micros),
    ]
}

/// Rates from one a month to ten million a second.
pub(crate) fn rate() -> impl Strategy<Value = Rate> {
    let period = prop_oneof![
        1 => (1u64..100).prop_map(Ticks::from_micros),
        1 => Just(Ticks::from_millis(1)),
        4 => Just(Ticks::from_secs(1)),
        2 => Just(Ticks::from_secs(60)),
        1 => Just(Ticks::from_secs(3_600)),
        1 => Just(Ticks::from_secs(DAY)),
        1 => Just(Ticks::from_secs(30 * DAY)),
        2 => (1u64..100_000_000).prop_map(Ticks::from_micros),
    ];
    let units = prop_oneof![
        2 => Just(1u64),
        4 => 2u64..20,
        2 => 20u64..5_000,
        1 => prop::sample::select(vec![999_983u64, 1_000_000, 3_000_001, 9_999_991, 10_000_000]),
        1 => 1u64..10_000_000,
    ];
    (units, period).prop_filter_map("faster than 10 million a second", |(units, period)| {
        Rate::per_ticks(units, period).checked().ok()
    })
}

/// Rates with and without an explicit burst, which is often small.
fn bursting() -> impl Strategy<Value = Rate> {
    let burst = prop_oneof![
        3 => Just(None),
        4 => (1u64..30).prop_map(Some),
        1 => (1u64..1_000_000).prop_map(Some),
    ];
    (rate(), burst).prop_map(|(rate, burst)| match burst {
        None => rate,
        Some(burst) => rate.burst(burst),
    })
}

/// The definition of a bucket, with the user's own rate if the reservoir claims to count it exactly.
fn definition(rate: Rate, reservoir: &Reservoir, queue: u64) -> Definition {
    let (gain, price) = (reservoir.pace().gain().get(), reservoir.pace().unit_credits().get());
    let (units, period) = (rate.units(), rate.period().as_micros());
    let exact = u128::from(gain) * u128::from(period) == u128::from(units) * u128::from(price);
    let (units, period) = if exact { (units, period) } else { (gain, price) };
    Definition::Bucket(Bucket::shaping(units, period, reservoir.units() - queue, queue))
}

pub(crate) fn token_buckets() -> impl Strategy<Value = Subject> {
    bursting().prop_filter_map("does not fit", |rate| {
        let quota = Quota::token_bucket(rate).ok()?;
        let Quota::TokenBucket(bucket) = &quota else {
            return None;
        };
        let definition = definition(rate, bucket.reservoir(), 0);
        Some(Subject::new(quota, definition, rate.period()))
    })
}

pub(crate) fn gcras() -> impl Strategy<Value = Subject> {
    bursting().prop_filter_map("does not fit", |rate| {
        let quota = Quota::gcra(rate).ok()?;
        let Quota::Gcra(gcra) = &quota else { return None };
        let definition = definition(rate, gcra.reservoir(), 0);
        Some(Subject::new(quota, definition, rate.period()))
    })
}

pub(crate) fn leaky_buckets() -> impl Strategy<Value = Subject> {
    let queue = prop_oneof![Just(0u64), 1u64..20, 20u64..10_000];
    (bursting(), queue).prop_filter_map("does not fit", |(rate, queue)| {
        let bucket = LeakyBucket::new(rate, queue).ok()?;
        let definition = definition(rate, bucket.shape().reservoir(), queue);
        Some(Subject::new(Quota::LeakyBucket(bucket), definition, rate.period()))
    })
}

pub(crate) fn fixed_windows() -> impl Strategy<Value = Subject> {
    (rate(), prop::bool::ANY).prop_filter_map("does not fit", |(rate, first_hit)| {
        let period = i128::from(rate.period().as_micros());
        let (align, windows) = if first_hit {
            (Align::FirstHit, Windows::FromHit(period))
        } else {
            (Align::Epoch, Windows::Multiples(period))
        };
        let quota = Quota::FixedWindow(FixedWindow::new(rate, align).ok()?);
        let definition = Definition::Windows(WindowCount::new(rate.units(), windows));
        Some(Subject::new(quota, definition, rate.period()))
    })
}

/// Calendar windows in zones with a constant offset since the epoch, so that civil arithmetic gives their bounds.
pub(crate) fn calendars() -> impl Strategy<Value = Subject> {
    let unit = prop::sample::select(vec![
        (CalendarUnit::Day, CivilUnit::Day, DAY),
        (CalendarUnit::Week, CivilUnit::Week, 7 * DAY),
        (CalendarUnit::Month, CivilUnit::Month, 30 * DAY),
        (CalendarUnit::Year, CivilUnit::Year, 365 * DAY),
    ]);
    let zone = prop::sample::select(vec![("UTC", 0), ("Asia/Kolkata", 19_800), ("Asia/Dubai", 14_400)]);
    (1u64..1_000, unit, zone).prop_filter_map("does not fit", |(limit, unit, zone)| {
        let rate = Rate::per_ticks(limit, Ticks::from_secs(unit.2));
        let calendar = Calendar::new(unit.0, zone.0).ok()?;
        let quota = Quota::FixedWindow(FixedWindow::new(rate, Align::Calendar(calendar)).ok()?);
        let windows = Windows::Civil(unit.1, zone.1 * 1_000_000);
        let definition = Definition::Windows(WindowCount::new(limit, windows));
        Some(Subject::new(quota, definition, rate.period()))
    })
}

pub(crate) fn sliding_windows() -> impl Strategy<Value = Subject> {
    let precision = prop_oneof![Just(1u32), Just(10), 2u32..=60];
    (rate(), precision, prop::bool::ANY).prop_filter_map("does not fit", |(rate, precision, strict)| {
        let (estimate, oldest) =
            if strict { (Estimate::Strict, Oldest::Whole) } else { (Estimate::Interpolate, Oldest::Share) };
        let window = SlidingWindow::new(rate, precision, estimate).ok()?;
        let length = rate.period().as_micros().div_ceil(u64::from(precision));
        let definition = SubWindows::new(rate.units(), length, precision, oldest);
        Some(Subject::new(Quota::SlidingWindow(window), Definition::SubWindows(definition), rate.period()))
    })
}

pub(crate) fn sliding_logs() -> impl Strategy<Value = Subject> {
    rate().prop_filter_map("does not fit", |rate| {
        let quota = Quota::SlidingLog(SlidingLog::new(rate).ok()?);
        let definition = Definition::Log(Log::new(rate.units(), rate.period().as_micros()));
        Some(Subject::new(quota, definition, rate.period()))
    })
}

pub(crate) fn permits() -> impl Strategy<Value = Subject> {
    let limit = prop_oneof![1u64..20, 20u64..1_000_000];
    (limit, 1u64..100_000_000).prop_filter_map("does not fit", |(limit, ttl)| {
        let quota = Quota::Concurrency(Concurrency::new(limit, Ticks::from_micros(ttl)).ok()?);
        let definition = Definition::Permits(Permits::new(limit, ttl));
        Some(Subject::new(quota, definition, Ticks::from_micros(ttl)))
    })
}
