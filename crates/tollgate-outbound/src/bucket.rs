//! The state of one bucket of a server: open, frozen after a refusal, probed by one call, or recovering. It reads no
//! clock and wakes no waiter.

use std::sync::Arc;

use tollgate::{Ticks, Timestamp};

use crate::costs::Costs;
use crate::freeze::{Freeze, FreezeCause, Statement};
use crate::learned::{Departure, Learned, Replenish, WindowReport};
use crate::pace::Pace;
use crate::random::Random;
use crate::signal::{Signals, Throttle, ThrottleKind, ThrottleScope};

/// The first freeze after a refusal that does not say how long, and the longest. Each further one is twice as long.
const BACKOFF_FIRST: Ticks = Ticks::from_secs(1);
const BACKOFF_MAX: Ticks = Ticks::from_secs(64);
/// How long a quota of a day or of money is left alone if the server does not say until when.
const LONG_PAUSE: Ticks = Ticks::from_secs(300);
/// Failures in a row that open the circuit, and how long it stays open at first and at most.
const FAILURES_MAX: u32 = 5;
const CIRCUIT_FIRST: Ticks = Ticks::from_secs(1);
const CIRCUIT_MAX: Ticks = Ticks::from_secs(32);
/// After a freeze, calls in flight double each round trip up to as many as there were before it, and at least to this.
const RECOVERY_TARGET_MIN: u64 = 64;
/// Jitter after a freeze: a tenth of it, but no more than the second number, and the first besides.
const JITTER: Ticks = Ticks::from_millis(100);
const JITTER_MAX: Ticks = Ticks::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Open,
    Frozen(Freeze),
    /// One call is under way to find out whether the server takes calls again.
    Probing {
        probe: u64,
        cause: FreezeCause,
    },
    /// At most so many calls in flight: one more with each success up to the target, and then one more each round trip.
    Recovering(Recovery),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recovery {
    most: u64,
    target: u64,
    /// Successes since `most` grew last.
    successes: u64,
    /// Whether a call had to wait for `most` since it grew last.
    is_binding: bool,
}

impl Recovery {
    /// After the success of the probe.
    const fn new(target: u64) -> Self {
        Self { most: 2, target, successes: 0, is_binding: true }
    }

    /// The recovery after another success, or `None` if it is over: no call waits for it any more.
    fn grow(mut self) -> Option<Self> {
        self.successes += 1;
        let needed = if self.most < self.target { 1 } else { self.most };
        if self.successes >= needed {
            if self.most >= self.target && !self.is_binding {
                return None;
            }
            (self.most, self.successes, self.is_binding) = (self.most + 1, 0, false);
        }
        Some(self)
    }
}

/// When a call may leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Now,
    At(Timestamp),
    AfterResponse,
    /// Frozen until this instant.
    Frozen(Freeze),
}

/// How a bucket behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behaviour {
    pub(crate) replenish: Replenish,
    /// The shortest freeze after a refusal that does not say how long.
    pub(crate) freeze_min: Ticks,
    /// Whether only one call is sent until a response names the bucket.
    pub(crate) sends_one_first: bool,
}

/// The state of one bucket.
#[derive(Debug)]
pub(crate) struct Bucket {
    flow: Flow,
    pub(crate) in_flight: u64,
    /// Those among them that left after the last freeze began. Older calls may take long, and do not slow the recovery.
    in_flight_since_freeze: u64,
    in_flight_before_freeze: u64,
    learned: Learned,
    pace: Pace,
    behaviour: Behaviour,
    refusals_in_row: u32,
    failures_in_row: u32,
    pub(crate) refusals: u64,
    /// The number of the newest call that left before the bucket was frozen. Their responses are no evidence about the
    /// time after the freeze.
    frozen_at_call: u64,
}

impl Bucket {
    pub(crate) fn new(behaviour: Behaviour) -> Self {
        Self {
            flow: Flow::Open,
            in_flight: 0,
            in_flight_since_freeze: 0,
            in_flight_before_freeze: 0,
            learned: Learned::new(behaviour.replenish),
            pace: Pace::default(),
            behaviour,
            refusals_in_row: 0,
            failures_in_row: 0,
            refusals: 0,
            frozen_at_call: 0,
        }
    }

    /// Whether it is as good as a bucket that was never used.
    pub(crate) fn is_idle(&self, now: Timestamp) -> bool {
        let is_open = match self.flow {
            Flow::Open | Flow::Recovering(_) => true,
            Flow::Frozen(freeze) => freeze.until <= now,
            Flow::Probing { .. } => false,
        };
        is_open && self.in_flight == 0 && self.pace.next_at().is_none() && self.learned.is_empty(now)
    }

    /// When a call may leave.
    pub(crate) fn admission(&mut self, costs: &Costs, now: Timestamp) -> Admission {
        match &mut self.flow {
            Flow::Frozen(freeze) if now < freeze.until => return Admission::Frozen(*freeze),
            Flow::Probing { .. } => return Admission::AfterResponse,
            Flow::Frozen(_) => return Admission::Now,
            Flow::Recovering(recovery) if self.in_flight_since_freeze >= recovery.most => {
                recovery.is_binding = true;
                return Admission::AfterResponse;
            }
            Flow::Open | Flow::Recovering(_) => {}
        }
        if self.behaviour.sends_one_first && self.in_flight > 0 {
            return Admission::AfterResponse;
        }
        let pace = self.pace.next_at().filter(|at| *at > now).map_or(Departure::Now, Departure::At);
        match self.learned.departure(costs, now).later(pace) {
            Departure::Now => Admission::Now,
            Departure::At(at) => Admission::At(at),
            Departure::AfterResponse => Admission::AfterResponse,
        }
    }

    /// The state of the freeze, for reports.
    pub(crate) fn frozen(&self, now: Timestamp) -> Option<Freeze> {
        match self.flow {
            Flow::Frozen(freeze) if now < freeze.until => Some(freeze),
            _ => None,
        }
    }

    pub(crate) fn windows(&self) -> Vec<WindowReport> {
        self.learned.report()
    }

    pub(crate) fn left_for(&self, limit: &str) -> Option<u64> {
        self.learned.left_for(limit)
    }

    /// When the last of the calls that cost this together could leave.
    pub(crate) fn forecast(&self, costs: &Costs, now: Timestamp) -> Timestamp {
        self.learned.forecast(costs, now).max(self.opens_at(costs, now))
    }

    /// No earlier than this do calls of these costs together leave.
    pub(crate) fn earliest(&self, costs: &Costs, now: Timestamp) -> Timestamp {
        self.learned.earliest(costs, now).max(self.opens_at(costs, now))
    }

    /// Whether a call need not wait for a later instant than this.
    pub(crate) fn opens_by(&self, latest: Timestamp, costs: &Costs, now: Timestamp) -> bool {
        let is_late = matches!(self.learned.departure(costs, now), Departure::At(at) if at > latest);
        !is_late && self.opens_at(costs, now) <= latest
    }

    /// No earlier than this do calls of these costs together leave by the freeze and the pace.
    fn opens_at(&self, costs: &Costs, now: Timestamp) -> Timestamp {
        let frozen = self.frozen(now).map_or(now, |freeze| freeze.until);
        self.pace.earliest(costs.calls(), self.in_flight, frozen)
    }

    /// A call leaves. After a freeze it is the probe.
    pub(crate) fn send(&mut self, number: u64, costs: &Arc<Costs>, now: Timestamp) {
        if let Flow::Frozen(freeze) = self.flow {
            self.flow = Flow::Probing { probe: number, cause: freeze.cause };
            if matches!(freeze.cause, FreezeCause::Throttled(_)) {
                self.pace.resume(freeze.until);
            }
        }
        self.in_flight += 1;
        self.in_flight_since_freeze += 1;
        self.pace.send(now);
        self.learned.send(number, Arc::clone(costs), now);
    }

    /// A call did not leave after all.
    pub(crate) fn unsend(&mut self, number: u64, now: Timestamp) {
        self.end(number, now);
        self.learned.unsend(number);
    }

    /// The end of a call without any response. Its caller may have gone away, so it is no failure of the server.
    pub(crate) fn abandon(&mut self, number: u64, now: Timestamp) {
        self.end(number, now);
        self.learned.close(number, now);
    }

    /// One call less in flight. If it was the probe, the next call is.
    fn end(&mut self, number: u64, now: Timestamp) {
        self.count_end(number);
        if let Flow::Probing { probe, cause } = self.flow
            && probe == number
        {
            self.flow = Flow::Frozen(Freeze { until: now, cause, statement: None });
        }
    }

    /// Counts a call in flight that left before it was known that this bucket counts it.
    pub(crate) fn count_in(&mut self, number: u64, costs: Arc<Costs>, at: Timestamp) {
        self.in_flight += 1;
        if number > self.frozen_at_call {
            self.in_flight_since_freeze += 1;
        }
        self.learned.send(number, costs, at);
    }

    /// Every call up to this number has left.
    pub(crate) fn note_newest(&mut self, newest: u64) {
        self.learned.note_newest(newest);
    }

    const fn count_end(&mut self, number: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if number > self.frozen_at_call {
            self.in_flight_since_freeze = self.in_flight_since_freeze.saturating_sub(1);
        }
    }

    /// A response that is no refusal for this bucket.
    pub(crate) fn answer(&mut self, number: u64, signals: &Signals, now: Timestamp) {
        self.count_end(number);
        self.learned.accept(number, &signals.windows, now);
        self.learned.close(number, now);
        self.pace.count_taken();
        if number <= self.frozen_at_call {
            return; // It left before the freeze.
        }
        self.refusals_in_row = 0;
        self.failures_in_row = 0;
        self.pace.speed_up();
        self.flow = match self.flow {
            Flow::Probing { probe, .. } if probe == number => {
                Flow::Recovering(Recovery::new(self.in_flight_before_freeze.max(RECOVERY_TARGET_MIN)))
            }
            Flow::Recovering(recovery) => recovery.grow().map_or(Flow::Open, Flow::Recovering),
            other => other,
        };
    }

    /// A response that refuses the call in this bucket. Returns the freeze.
    pub(crate) fn refuse(
        &mut self,
        number: u64,
        throttle: &Throttle,
        signals: &Signals,
        random: &mut Random,
        now: Timestamp,
    ) -> Freeze {
        self.refusals += 1;
        let is_news = number > self.frozen_at_call;
        self.end(number, now);
        self.learned.accept(number, &signals.windows, now);
        self.learned.close(number, now);
        if is_news {
            self.refusals_in_row += 1;
            self.failures_in_row = 0; // A server that refuses calls works.
            let is_blind = signals.windows.is_empty();
            if is_blind && throttle.kind == ThrottleKind::Rate && throttle.scope != ThrottleScope::Shared {
                self.pace.slow_down(now);
            }
        }
        let announced = throttle.retry_after.filter(|wait| !wait.is_zero()).or_else(|| reset_of(signals));
        let wait = announced.unwrap_or_else(|| self.backoff(throttle.kind));
        let tenth = Ticks::from_micros(wait.as_micros() / 10).min(JITTER_MAX);
        let jitter = random.up_to(tenth + JITTER);
        let cause = FreezeCause::Throttled(throttle.kind);
        let statement = announced.map(|wait| Statement { at: now, wait });
        self.freeze(Freeze { until: now + wait + jitter, cause, statement }, now)
    }

    /// How long to wait if the server does not say.
    fn backoff(&self, kind: ThrottleKind) -> Ticks {
        if kind.is_long() {
            return LONG_PAUSE;
        }
        let doubled = BACKOFF_FIRST.as_micros() << self.refusals_in_row.saturating_sub(1).min(6);
        Ticks::from_micros(doubled).min(BACKOFF_MAX).max(self.behaviour.freeze_min)
    }

    /// The call failed: no response, or one that says that the server is broken. Returns a freeze if it is one failure
    /// too many. One is enough for the probe of a failing server. The probe after a refusal says nothing about the
    /// refusal if it fails: the next call is the probe.
    pub(crate) fn fail(&mut self, number: u64, random: &mut Random, now: Timestamp) -> Option<Freeze> {
        let is_news = number > self.frozen_at_call;
        let was_probe = matches!(
            self.flow,
            Flow::Probing { probe, cause: FreezeCause::Failing(_) } if probe == number
        );
        self.abandon(number, now);
        if !is_news {
            return None;
        }
        self.failures_in_row = self.failures_in_row.saturating_add(1);
        let over = self.failures_in_row.checked_sub(FAILURES_MAX);
        let over = if was_probe { Some(over.unwrap_or(0)) } else { over }?;
        let wait = Ticks::from_micros(CIRCUIT_FIRST.as_micros() << over.min(5)).min(CIRCUIT_MAX);
        let wait = wait + random.up_to(Ticks::from_micros(wait.as_micros() / 10));
        let cause = FreezeCause::Failing(self.failures_in_row);
        Some(self.freeze(Freeze { until: now + wait, cause, statement: None }, now))
    }

    /// Freezes the bucket, or keeps a freeze that ends later.
    pub(crate) fn freeze(&mut self, freeze: Freeze, now: Timestamp) -> Freeze {
        if let Some(known) = self.frozen(now)
            && known.until >= freeze.until
        {
            return known;
        }
        if self.flow == Flow::Open {
            self.in_flight_before_freeze = self.in_flight;
        }
        self.flow = Flow::Frozen(freeze);
        freeze
    }

    /// An operator ends the freeze: the next call finds out whether the server takes calls again. The server's numbers
    /// are forgotten, since they may say the same as its refusal.
    pub(crate) fn thaw(&mut self, now: Timestamp) -> Option<Freeze> {
        let frozen = self.frozen(now)?;
        self.flow = Flow::Frozen(Freeze { until: now, ..frozen });
        self.learned.forget();
        Some(frozen)
    }

    /// Every call up to this number left before the freeze.
    pub(crate) fn mark_frozen(&mut self, newest: u64) {
        self.frozen_at_call = self.frozen_at_call.max(newest);
        self.in_flight_since_freeze = 0;
    }
}

/// When the server's used-up counters are full again.
fn reset_of(signals: &Signals) -> Option<Ticks> {
    let used_up = signals.windows.iter().filter(|window| window.remaining == Some(0));
    used_up.filter_map(|window| window.resets_in).max().filter(|wait| !wait.is_zero())
}
