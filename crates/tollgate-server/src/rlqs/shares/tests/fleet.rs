//! Simulated Envoys that follow Envoy's source, a counter, and a clock that advances in steps.

use std::collections::VecDeque;

use super::*;
use crate::rlqs::grant::Strategy;

pub(super) const STEP: Ticks = Ticks::from_millis(10);
const STEPS_PER_SECOND: u64 = 100;
pub(super) const COUNTER: CounterId = CounterId(1, 1);
const REPORT_EVERY: u64 = 500;

pub(super) fn seconds(seconds: u64) -> Ticks {
    Ticks::from_secs(seconds)
}

/// Requests that arrive at an Envoy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    per_second: u64,
    at_first: u64,
}

impl Load {
    pub(super) fn steady(per_second: u64) -> Self {
        Self { per_second, at_first: 0 }
    }

    /// One request, and no more.
    pub(super) fn once() -> Self {
        Self { per_second: 0, at_first: 1 }
    }
}

#[derive(Debug)]
pub(super) struct Envoy {
    pub(super) load: Load,
    stream: u64,
    arrears: u64,
    pub(super) strategy: Option<Strategy>,
    /// In billionths of a token.
    tokens: u64,
    expires: u64,
    inbox: VecDeque<(u64, Instruction)>,
    allowed: u64,
    denied: u64,
    has_bucket: bool,
    reports_at: u64,
    is_lost: bool,
    pub(super) reports: u64,
    pub(super) replaced: u64,
    pub(super) refused: u64,
}

pub(super) struct Fleet {
    pub(super) shares: Shares,
    pub(super) now: Timestamp,
    step: u64,
    parameters: QuotaParameters,
    /// In billionths of a unit.
    left: u64,
    pub(super) envoys: Vec<Envoy>,
    /// Requests per second that other callers send to the counter.
    pub(super) elsewhere: u64,
    elsewhere_arrears: u64,
    pub(super) admitted_elsewhere: u64,
    /// Transit time of an assignment, in steps.
    pub(super) latency: u64,
    /// Whether a replaced bucket keeps the fill ratio of the old one, as Envoy does since 1.33. Otherwise it starts
    /// full.
    pub(super) keeps_ratio: bool,
    admitted: u64,
    /// Admitted requests that are never reported.
    pub(super) unreported: u64,
    /// In thousandths of requests per second.
    pub(super) most_followed: u64,
    least_beyond: i128,
    pub(super) most_beyond_rate: u64,
}

impl Fleet {
    pub(super) fn new(parameters: QuotaParameters, envoys: &[(Load, u64)]) -> Self {
        let mut fleet = Self {
            shares: Shares::default(),
            now: Timestamp::from_unix_seconds(1_700_000_000),
            step: 0,
            parameters,
            left: parameters.capacity * NANO,
            envoys: Vec::new(),
            elsewhere: 0,
            elsewhere_arrears: 0,
            admitted_elsewhere: 0,
            latency: 2,
            keeps_ratio: true,
            admitted: 0,
            unreported: 0,
            most_followed: 0,
            least_beyond: 0,
            most_beyond_rate: 0,
        };
        envoys.iter().for_each(|&(load, phase)| fleet.join(load, phase));
        fleet
    }

    /// Adds an Envoy whose reports go out `phase` milliseconds after those of an Envoy that joined at the start.
    pub(super) fn join(&mut self, load: Load, phase: u64) {
        let phase = phase / 10 % REPORT_EVERY;
        let next = self.step / REPORT_EVERY * REPORT_EVERY + phase;
        let stream = self.envoys.len() as u64 + 1_000 * self.step;
        self.envoys.push(Envoy {
            load,
            stream,
            arrears: load.at_first * STEPS_PER_SECOND,
            strategy: None,
            tokens: 0,
            expires: 0,
            inbox: VecDeque::new(),
            allowed: 0,
            denied: 0,
            has_bucket: false,
            reports_at: if next > self.step { next } else { next + REPORT_EVERY },
            is_lost: false,
            reports: 0,
            replaced: 0,
            refused: 0,
        });
    }

    /// Breaks the stream of an Envoy permanently. The Envoy continues with its assignment until that expires.
    pub(super) fn lose(&mut self, which: usize) {
        let envoy = &mut self.envoys[which];
        if envoy.is_lost {
            return;
        }
        envoy.is_lost = true;
        self.unreported += envoy.allowed;
        self.shares.leave(envoy.stream, self.now);
    }

    pub(super) fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Starts the window anew.
    pub(super) fn refill(&mut self) {
        self.left = self.parameters.capacity * NANO;
    }

    /// Advances the time without any event.
    pub(super) fn idle(&mut self, time: Ticks) {
        self.now = self.now + time;
    }

    /// The rate that each Envoy follows, in whole requests per second.
    pub(super) fn rates(&self) -> Vec<u64> {
        self.envoys.iter().map(|envoy| envoy.rate() / NANO).collect()
    }

    pub(super) fn run(&mut self, time: Ticks) {
        for _ in 0..time.as_micros() / STEP.as_micros() {
            self.step += 1;
            self.now = self.now + STEP;
            if self.parameters.is_steady {
                let more = self.left + self.parameters.rate / STEPS_PER_SECOND;
                self.left = more.min(self.parameters.capacity * NANO);
            }
            self.ask_elsewhere();
            if self.step.is_multiple_of(10) && !self.shares.due_acquisitions(self.now).is_empty() {
                self.acquire(0);
            }
            for which in 0..self.envoys.len() {
                self.envoys[which].read(self.step, self.keeps_ratio);
                let (admitted, is_first) = self.envoys[which].serve(self.step);
                self.admitted += admitted;
                self.unreported += if self.envoys[which].is_lost { admitted } else { 0 };
                if !self.envoys[which].is_lost && (is_first || self.envoys[which].reports_at <= self.step) {
                    self.report(which);
                }
            }
            let followed: u64 = self.envoys.iter().map(Envoy::rate).sum();
            self.most_followed = self.most_followed.max(followed / (NANO / 1_000));
            let earned = u128::from(self.step) * u128::from(self.parameters.rate)
                / u128::from(STEPS_PER_SECOND * NANO);
            let beyond = i128::from(self.admitted) - i128::try_from(earned).unwrap();
            self.least_beyond = self.least_beyond.min(beyond);
            let most = u64::try_from(beyond - self.least_beyond).unwrap();
            self.most_beyond_rate = self.most_beyond_rate.max(most);
        }
    }

    fn ask_elsewhere(&mut self) {
        self.elsewhere_arrears += self.elsewhere;
        while self.elsewhere_arrears >= STEPS_PER_SECOND {
            self.elsewhere_arrears -= STEPS_PER_SECOND;
            if self.left >= NANO {
                self.left -= NANO;
                self.admitted_elsewhere += 1;
            }
        }
    }

    /// Takes the due units and `more`.
    fn acquire(&mut self, more: u64) {
        let taken = self.shares.acquire(COUNTER, self.parameters, more, self.left / NANO, self.now);
        self.left -= taken * NANO;
    }

    fn report(&mut self, which: usize) {
        let envoy = &mut self.envoys[which];
        if envoy.reports_at <= self.step {
            envoy.reports_at += REPORT_EVERY;
        }
        if !envoy.has_bucket {
            return;
        }
        envoy.reports += 1;
        let usage =
            Usage { allowed: std::mem::take(&mut envoy.allowed), denied: std::mem::take(&mut envoy.denied) };
        let subscription = SubscriptionId { stream: envoy.stream, bucket: 7 };
        let is_known = self.shares.used(subscription, usage.allowed, self.now).contains(&COUNTER);
        self.acquire(if is_known { 0 } else { usage.allowed });
        let look = BucketCounter { counter: COUNTER, parameters: self.parameters, cost: 1 };
        let instructions =
            self.shares.report(subscription, usage, &BucketVerdict::Limited(vec![look]), self.now);
        assert!(
            instructions.iter().any(|(addressee, _)| *addressee == subscription),
            "every report is answered"
        );
        for (addressee, instruction) in instructions {
            let envoy = self.envoys.iter_mut().find(|envoy| envoy.stream == addressee.stream).unwrap();
            assert!(!envoy.is_lost, "no instruction goes to a lost Envoy");
            envoy.inbox.push_back((self.step + self.latency, instruction));
        }
    }
}

impl Envoy {
    fn rate(&self) -> u64 {
        self.strategy.map_or(0, |strategy| strategy.share().rate)
    }

    /// Reads the messages that have arrived, and drops expired assignments.
    fn read(&mut self, step: u64, keeps_ratio: bool) {
        while let Some(&(at, instruction)) = self.inbox.front()
            && at <= step
        {
            self.inbox.pop_front();
            if self.is_lost {
                continue;
            }
            let Instruction::Assign(assignment) = instruction else {
                (self.strategy, self.has_bucket) = (None, false);
                continue;
            };
            self.expires = step + u64::from(assignment.ttl_seconds) * STEPS_PER_SECOND;
            if self.strategy == Some(assignment.strategy) {
                continue;
            }
            let most = assignment.strategy.share().tokens * NANO;
            let before = self.strategy.map(|strategy| strategy.share().tokens).filter(|&tokens| tokens > 0);
            self.tokens = match before {
                // Whole tokens, as in Envoy.
                Some(before) if keeps_ratio => {
                    let kept = u128::from(self.tokens) * u128::from(most) / u128::from(before * NANO);
                    u64::try_from(kept).unwrap() / NANO * NANO
                }
                _ => most,
            };
            self.strategy = Some(assignment.strategy);
            self.replaced += 1;
        }
        if self.expires <= step {
            self.strategy = None;
        }
    }

    /// Admits what the assignment allows. Returns the number of admitted requests, and whether this was the first
    /// request of the bucket.
    fn serve(&mut self, step: u64) -> (u64, bool) {
        let share = self.strategy.map(Strategy::share).unwrap_or_default();
        self.tokens = (self.tokens + share.rate / STEPS_PER_SECOND).min(share.tokens * NANO);
        self.arrears += self.load.per_second;
        let (mut admitted, mut is_first) = (0, false);
        while self.arrears >= STEPS_PER_SECOND {
            self.arrears -= STEPS_PER_SECOND;
            if self.tokens >= NANO {
                self.tokens -= NANO;
                (admitted, self.allowed) = (admitted + 1, self.allowed + 1);
            } else {
                (self.denied, self.refused) = (self.denied + 1, self.refused + 1);
            }
            is_first |= !self.has_bucket && step > 0;
            self.has_bucket = true;
        }
        (admitted, is_first)
    }
}
