//! Whether a call is attempted again, and when. It sends nothing and reads no clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use tollgate::Ticks;

use crate::call::Repeatable;
use crate::random::Random;
use crate::signal::{Signals, ThrottleKind};

/// Maximum number of servers whose budget is kept. Beyond it, full budgets are dropped.
const BUDGETS_MAX: usize = 10_000;
/// Units of a budget for one retry.
const RETRY_UNITS: u64 = 100;

/// How calls are attempted again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetrySettings {
    /// Attempts of one call at most, the first included; 3 by default. 1 never retries.
    pub attempts_max: u32,
    /// The longest pause before the second attempt after a failure; 100 ms by default, and twice as long each time. The
    /// pause is random, from zero to this.
    pub pause_first: Duration,
    /// The longest pause of all; 20 s by default.
    pub pause_max: Duration,
    /// Retries after failures, as a percentage of the calls to the same server; 10 by default.
    pub budget_percent: u64,
    /// Retries that the budget of a server allows at once; 10 by default.
    pub budget_reserve: u64,
    /// After this time without a response the layer sends a second copy of a call that may be executed twice ("hedging"),
    /// and takes the first good response of the two; `None` by default, which never does. The copy leaves only if the
    /// limits admit it at once, is paid from the budget, and counts as an attempt.
    pub hedge_after: Option<Duration>,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            attempts_max: 3,
            pause_first: Duration::from_millis(100),
            pause_max: Duration::from_secs(20),
            budget_percent: 10,
            budget_reserve: 10,
            hedge_after: None,
        }
    }
}

impl RetrySettings {
    /// The pause after this many failed attempts: random, from zero to a bound that doubles ("full jitter").
    pub(crate) fn pause(&self, attempts: u32, random: &mut Random) -> Ticks {
        let doubled = self.pause_first.saturating_mul(1 << attempts.saturating_sub(1).min(20));
        random.up_to(Ticks::ceil_from(doubled.min(self.pause_max)))
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AttemptEnd<'s> {
    /// The status of the call, which is that of the response except for gRPC.
    Response(StatusCode, &'s Signals),
    /// Nothing was sent, or the server says that it has not looked at it.
    NotSent,
    /// It was sent, perhaps in part, and no response came.
    Unanswered,
}

/// Whether there is another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    No,
    /// The call enters the queue again: the server refused it unseen, and its bucket is frozen until it takes calls.
    Queue,
    /// After a pause, if the budget allows it.
    Pause,
}

/// Whether a call may be sent twice: its method is idempotent, or it carries a key by which the server recognises it.
pub(crate) fn is_repeatable(method: &Method, headers: &HeaderMap) -> bool {
    method.is_idempotent()
        || headers.contains_key("idempotency-key")
        || headers.contains_key("x-idempotency-key")
}

/// Whether an attempt that ended so may be followed by another.
pub(crate) fn decide(end: AttemptEnd<'_>, is_repeatable: Repeatable) -> Retry {
    let if_repeatable = if is_repeatable == Repeatable::Yes { Retry::Pause } else { Retry::No };
    let (status, signals) = match end {
        AttemptEnd::NotSent => return Retry::Pause,
        AttemptEnd::Unanswered => return if_repeatable,
        AttemptEnd::Response(status, signals) => (status, signals),
    };
    let is_asked_for = signals.should_retry == Some(true);
    match (signals.should_retry, signals.throttle.map(|throttle| throttle.kind)) {
        (Some(false), _) | (_, Some(ThrottleKind::Day | ThrottleKind::Money)) => Retry::No,
        (_, Some(ThrottleKind::Rate | ThrottleKind::Concurrency)) => Retry::Queue,
        // An overloaded server may have begun the work. It knows whether it has.
        (_, Some(ThrottleKind::Overload)) if is_asked_for || is_repeatable == Repeatable::Yes => Retry::Queue,
        (_, Some(ThrottleKind::Overload)) => Retry::No,
        (_, None) => match status.as_u16() {
            408 | 500 | 502 | 503 | 504 | 529 => if_repeatable,
            429 if is_asked_for => Retry::Pause, // A lock of the object: nothing was executed.
            400..=599 if is_asked_for => if_repeatable,
            _ => Retry::No,
        },
    }
}

/// Whether the server refused a call because of a limit, and has executed nothing of it.
pub(crate) fn is_refused_unseen(status: StatusCode, signals: &Signals, is_repeatable: Repeatable) -> bool {
    match signals.throttle.map(|throttle| throttle.kind) {
        None => false,
        // It may have begun the work.
        Some(ThrottleKind::Overload) => {
            is_repeatable == Repeatable::Yes || signals.should_retry == Some(true)
        }
        // GraphQL may have executed a part.
        Some(_) => !(status.is_success() && signals.should_retry == Some(false)),
    }
}

/// The retry budgets of all servers. Every caller of a server shares its budget.
#[derive(Debug)]
pub(crate) struct RetryBudgets {
    percent: u64,
    full: u64,
    /// The rest of the budget, in hundredths of a retry. A server that is not there has a full budget.
    left: HashMap<Arc<str>, u64>,
}

impl RetryBudgets {
    pub(crate) fn new(settings: &RetrySettings) -> Self {
        let full = settings.budget_reserve.saturating_mul(RETRY_UNITS);
        Self { percent: settings.budget_percent, full, left: HashMap::new() }
    }

    /// A first attempt pays a share of a retry in.
    pub(crate) fn deposit(&mut self, host: &str) {
        if let Some(left) = self.left.get_mut(host) {
            *left = left.saturating_add(self.percent);
            if *left >= self.full {
                self.left.remove(host);
            }
        }
    }

    /// Whether the budget pays for a retry.
    pub(crate) fn withdraw(&mut self, host: &Arc<str>) -> bool {
        if !self.left.contains_key(host) && self.left.len() >= BUDGETS_MAX {
            return false;
        }
        let left = self.left.entry(Arc::clone(host)).or_insert(self.full);
        let rest = left.checked_sub(RETRY_UNITS);
        *left = rest.unwrap_or(*left);
        rest.is_some()
    }

    /// A retry that was paid for is not sent after all.
    pub(crate) fn refund(&mut self, host: &str) {
        if let Some(left) = self.left.get_mut(host) {
            *left = left.saturating_add(RETRY_UNITS).min(self.full);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::{Throttle, ThrottleScope};

    fn throttled(kind: ThrottleKind) -> Signals {
        let throttle = Throttle { retry_after: None, scope: ThrottleScope::Bucket, kind };
        Signals { throttle: Some(throttle), ..Signals::default() }
    }

    /// Only calls that are safe to repeat are repeated after a failure; refused calls were not executed.
    #[test]
    fn only_what_is_safe_is_attempted_again() {
        use Repeatable::{No, Yes};
        use ThrottleKind::{Day, Money, Overload, Rate};
        let decided = |status: u16, signals: &Signals, repeatable| {
            decide(AttemptEnd::Response(StatusCode::from_u16(status).unwrap(), signals), repeatable)
        };
        let plain = Signals::default();
        let with = |should: bool| Signals { should_retry: Some(should), ..Signals::default() };
        assert_eq!(decided(200, &plain, Yes), Retry::No);
        assert_eq!(decided(503, &plain, Yes), Retry::Pause);
        assert_eq!(decided(503, &plain, No), Retry::No);
        assert_eq!(decided(503, &with(true), No), Retry::No);
        assert_eq!(decided(409, &plain, Yes), Retry::No);
        assert_eq!(decided(409, &with(true), Yes), Retry::Pause);
        assert_eq!(decided(409, &with(true), No), Retry::No);
        assert_eq!(decided(429, &with(true), No), Retry::Pause);
        assert_eq!(decided(200, &with(true), Yes), Retry::No);
        assert_eq!(decided(302, &with(true), Yes), Retry::No);
        assert_eq!(decided(503, &with(false), Yes), Retry::No);
        assert_eq!(decided(429, &throttled(Rate), No), Retry::Queue);
        assert_eq!(decided(429, &throttled(Day), Yes), Retry::No);
        assert_eq!(decided(429, &throttled(Money), Yes), Retry::No);
        assert_eq!(decided(503, &throttled(Overload), Yes), Retry::Queue);
        assert_eq!(decided(503, &throttled(Overload), No), Retry::No);
        let asked_for = Signals { should_retry: Some(true), ..throttled(Overload) };
        assert_eq!(decided(503, &asked_for, No), Retry::Queue);
        assert_eq!(decide(AttemptEnd::NotSent, No), Retry::Pause);
        assert_eq!(decide(AttemptEnd::Unanswered, No), Retry::No);
        assert_eq!(decide(AttemptEnd::Unanswered, Yes), Retry::Pause);
    }

    /// A refusal is an error only if nothing was executed: an overloaded server may have begun, and GraphQL may have
    /// executed a part.
    #[test]
    fn only_calls_that_were_not_executed_are_refused_unseen() {
        use Repeatable::{No, Yes};
        use ThrottleKind::{Day, Money, Overload, Rate};
        let unseen = |status: u16, signals: &Signals, repeatable| {
            is_refused_unseen(StatusCode::from_u16(status).unwrap(), signals, repeatable)
        };
        let never = |kind| Signals { should_retry: Some(false), ..throttled(kind) };
        for kind in [Rate, Day, Money] {
            assert!(unseen(429, &throttled(kind), No) && unseen(429, &never(kind), No), "{kind:?}");
        }
        assert!(unseen(200, &throttled(Rate), No) && !unseen(200, &never(Rate), Yes));
        assert!(unseen(503, &throttled(Overload), Yes) && !unseen(503, &throttled(Overload), No));
        assert!(!unseen(503, &Signals::default(), Yes));
    }

    /// A POST is repeatable only with a key by which the server recognises it.
    #[test]
    fn a_key_makes_a_post_repeatable() {
        let mut headers = HeaderMap::new();
        assert!(is_repeatable(&Method::PUT, &headers) && !is_repeatable(&Method::POST, &headers));
        headers.insert("idempotency-key", http::HeaderValue::from_static("k"));
        assert!(is_repeatable(&Method::POST, &headers));
    }

    /// A server that fails always is sent 10 retries and one for every ten calls.
    #[test]
    fn retries_are_a_tenth_of_the_calls() {
        let mut budgets = RetryBudgets::new(&RetrySettings::default());
        let host: Arc<str> = "api.example.com".into();
        let mut retries = 0;
        for _ in 0..1_000 {
            budgets.deposit(&host);
            while budgets.withdraw(&host) {
                retries += 1;
            }
        }
        assert!((109..=110).contains(&retries), "{retries}");
        assert!(budgets.withdraw(&"other.example.com".into()), "each server has its own budget");
    }

    /// Pauses are random below a bound that doubles and ends.
    #[test]
    fn pauses_have_full_jitter() {
        let settings = RetrySettings::default();
        let mut random = Random::seeded(3);
        for (attempts, most) in [(1, 100), (2, 200), (3, 400), (12, 20_000)] {
            let pauses: Vec<u64> =
                (0..400).map(|_| settings.pause(attempts, &mut random).as_micros() / 1_000).collect();
            let (low, high) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
            assert!(
                *low < most / 20 && *high > most - most / 20 && *high <= most,
                "{attempts}: {low} to {high}"
            );
        }
    }
}
