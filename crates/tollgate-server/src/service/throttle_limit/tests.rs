//! redis-cell's answers, and properties that hold for any numbers.

use proptest::prelude::*;

use super::*;

const NOW: i64 = 1_700_000_000 * SECOND;

/// A key and its limit.
struct Cell {
    limit: Limit,
    tat: Option<i64>,
}

impl Cell {
    fn new(max_burst: i64, count: i64, period: i64) -> Self {
        Self { limit: Limit::beyond_one(max_burst, count, period).unwrap(), tat: None }
    }

    fn charge(&mut self, now: i64, quantity: i64) -> Charged {
        let (charged, tat) = self.limit.charge(self.tat, now, quantity);
        self.tat = tat.or(self.tat);
        charged
    }

    /// The five numbers of `CL.THROTTLE`.
    fn answer(&mut self, now: i64, quantity: i64) -> [i64; 5] {
        let charged = self.charge(now, quantity);
        let retry_after = charged.retry_after.map_or(-1, seconds_up);
        let reset_after = seconds_up(charged.reset_after);
        [charged.limited.into(), charged.most, charged.remaining, retry_after, reset_after]
    }
}

/// Thirty a minute and a burst of fifteen more: the example of redis-cell's manual.
#[test]
fn the_manuals_example() {
    let mut cell = Cell::new(15, 30, 60);
    assert_eq!(cell.answer(NOW, 1), [0, 16, 15, -1, 2]);
    for left in (1..15).rev() {
        assert_eq!(cell.answer(NOW, 1)[2], left);
    }
    assert_eq!(cell.answer(NOW, 1), [0, 16, 0, -1, 32]);
    assert_eq!(cell.answer(NOW, 1), [1, 16, 0, 2, 32]);
}

/// A request larger than the burst can never pass: there is no retry time, and nothing is charged.
#[test]
fn never() {
    assert_eq!(Cell::new(0, 1, 10).answer(NOW, 5), [1, 1, 1, -1, 0]);
    let mut cell = Cell::new(4, 1, 1);
    assert_eq!(cell.answer(NOW, 6), [1, 5, 5, -1, 0]);
    assert_eq!(cell.answer(NOW, 5), [0, 5, 0, -1, 5]);
    assert_eq!(cell.answer(NOW, 6), [1, 5, 0, -1, 5]);
}

/// One a second with a burst of five, over ten seconds: the sequence of redis-cell's own test.
#[test]
fn a_walk_in_time() {
    let mut cell = Cell::new(4, 1, 1);
    let ms = |milliseconds: i64| NOW + milliseconds * MILLISECOND;
    for remaining in [4, 3, 2, 1, 0] {
        assert_eq!(cell.answer(NOW, 1), [0, 5, remaining, -1, 5 - remaining]);
    }
    assert_eq!(cell.answer(NOW, 1), [1, 5, 0, 1, 5]);
    assert_eq!(cell.answer(ms(3_000), 1), [0, 5, 2, -1, 3]);
    assert_eq!(cell.answer(ms(3_100), 1), [0, 5, 1, -1, 4]);
    assert_eq!(cell.answer(ms(4_000), 1), [0, 5, 1, -1, 4]);
    assert_eq!(cell.answer(ms(8_000), 1), [0, 5, 4, -1, 1]);
    assert_eq!(cell.answer(ms(9_500), 1), [0, 5, 4, -1, 1]);
    assert_eq!(cell.answer(ms(9_500), 0), [0, 5, 4, -1, 1]);
    assert_eq!(cell.answer(ms(9_500), 2), [0, 5, 2, -1, 3]);
    assert_eq!(cell.answer(ms(9_500), 5), [1, 5, 2, 3, 3]);
}

/// Seconds are rounded up from whole milliseconds. Less than a millisecond is rounded down.
#[test]
fn rounding() {
    assert_eq!([0, 999_999, 1_000_000, 999_999_999, 1_000_000_000].map(seconds_up), [0, 0, 1, 1, 1]);
    assert_eq!([1_000_999_999, 1_001_000_000, -1, -1_500_000_000].map(seconds_up), [1, 2, 0, -1]);
    assert_eq!([600_000_000, 1_999_999_999, -1_500_000_000].map(seconds_down), [0, 1, -1]);
    assert_eq!([i128::MAX, i128::MIN].map(seconds_up), [i64::MAX, i64::MIN]);
}

/// Rates above a thousand a second are limited too, down to units of less than a microsecond.
#[test]
fn fast_rates() {
    let mut cell = Cell::new(99, 5_000, 1);
    assert_eq!(cell.answer(NOW, 100), [0, 100, 0, -1, 1]);
    assert_eq!(cell.answer(NOW, 1), [1, 100, 0, 0, 1]); // 200 µs from now, which rounds down to nothing.
    assert_eq!(cell.answer(NOW + 200 * MICROSECOND, 1)[0], 0);
    let mut cell = Cell::new(9, 4_000_000, 1);
    assert_eq!(cell.answer(NOW, 4), [0, 10, 6, -1, 0]);
    assert_eq!(cell.answer(NOW, 7)[0], 1);
    assert_eq!(Limit::beyond_one(9, 2_000_000_000, 1), None);
}

/// Zero units, or a period of zero, is not a rate.
#[test]
fn zero_rates() {
    for (count, period) in [(0, 60), (30, 0), (0, 0)] {
        assert_eq!(Limit::beyond_one(15, count, period), None);
    }
}

/// A quantity of zero changes nothing, and a negative quantity gives units back, even more than were taken.
#[test]
fn looking_and_giving_back() {
    let mut cell = Cell::new(4, 1, 1);
    assert_eq!(cell.answer(NOW, 0), [0, 5, 5, -1, 0]);
    assert_eq!(cell.answer(NOW, 3), [0, 5, 2, -1, 3]);
    assert_eq!(cell.answer(NOW, 0), [0, 5, 2, -1, 3]);
    assert_eq!(cell.answer(NOW, -2), [0, 5, 4, -1, 1]);
    assert_eq!(cell.answer(NOW, -3), [0, 5, 7, -1, -2]);
    assert_eq!(cell.answer(NOW, 0), [0, 5, 5, -1, 0]);
}

/// The numbers with which redis-cell's own arithmetic wraps around and admits too much.
#[test]
fn nothing_wraps() {
    let mut cell = Cell::new(0, 1, 2);
    assert_eq!(cell.answer(NOW, 4_611_686_019), [1, 1, 1, -1, 0]);
    let mut cell = Cell::new(i64::MAX, 1, i64::MAX);
    assert_eq!(cell.answer(NOW, 1)[..2], [0, i64::MAX]);
    assert!(cell.tat.is_some_and(|tat| tat > NOW));
}

fn any_number() -> impl Strategy<Value = i64> {
    prop_oneof![any::<i64>(), -3..=3i64, Just(i64::MIN), Just(i64::MAX), 1..100_000i64]
}

proptest! {
    /// Any numbers get an answer, and a denial changes nothing.
    #[test]
    fn any_numbers_are_answered(
        numbers in [any_number(), any_number(), any_number(), any_number()],
        stored in proptest::option::of(any_number()),
        now in any_number(),
    ) {
        let [max_burst, count, period, quantity] = numbers;
        for limit in [Limit::beyond_one(max_burst, count, period), Limit::in_all(max_burst, count, period)] {
            let Some(limit) = limit else { continue };
            let (charged, tat) = limit.charge(stored, now, quantity);
            prop_assert_eq!(charged.limited, tat.is_none());
            prop_assert!(charged.limited || charged.retry_after.is_none());
            let _ = (seconds_up(charged.reset_after), seconds_down(charged.reset_after), limit.refused());
        }
    }

    /// Retry advice is exact: a nanosecond early is denied, on time is admitted. The units admitted at one instant
    /// never exceed the limit.
    #[test]
    fn the_limit_holds(
        max_burst in 0..50i64,
        count in 1..100_000i64,
        period in 1..100_000i64,
        steps in proptest::collection::vec((0..2_000_000_000i64, 0..60i64), 1..60),
    ) {
        let Some(limit) = Limit::beyond_one(max_burst, count, period) else { return Ok(()) };
        let mut cell = Cell { limit, tat: None };
        let (mut now, mut given) = (NOW, Vec::new());
        for (pause, quantity) in steps {
            now += pause;
            let before = cell.tat;
            let charged = cell.charge(now, quantity);
            if let Some(wait) = charged.retry_after {
                let at = now + i64::try_from(wait).unwrap();
                prop_assert!(limit.charge(before, at - 1, quantity).0.limited);
                prop_assert!(!limit.charge(before, at, quantity).0.limited);
            }
            if !charged.limited {
                given.push((now, quantity));
            }
            prop_assert!(charged.remaining >= 0);
        }
        // In any interval the admitted units are at most the burst plus what the rate gives in that interval.
        for (first, &(start, _)) in given.iter().enumerate() {
            let mut sum = 0;
            for &(end, quantity) in &given[first..] {
                sum += quantity;
                let allowed = i128::from(end - start) / i128::from(limit.interval) + i128::from(max_burst) + 1;
                prop_assert!(i128::from(sum) <= allowed, "{sum} in {} ns, allowed {allowed}", end - start);
            }
        }
    }

    /// The remaining units can be charged, and one unit more cannot, if a unit takes whole microseconds.
    #[test]
    fn remaining_units_are_admitted(
        max_burst in 0..50i64,
        count in proptest::sample::select(vec![1i64, 2, 3, 4, 5, 6, 12, 60, 1_000, 60_000]),
        taken in 0..60i64,
        later in 0..5_000_000_000i64,
    ) {
        let mut cell = Cell::new(max_burst, count, 60);
        cell.charge(NOW, taken);
        let now = NOW + later;
        let remaining = cell.charge(now, 0).remaining;
        prop_assert!(!cell.limit.charge(cell.tat, now, remaining).0.limited || remaining == 0);
        prop_assert!(cell.limit.charge(cell.tat, now, remaining + 1).0.limited);
    }
}
