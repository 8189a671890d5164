//! Which numbers an answer shows: all enforced limits as policies, and among those the ones that matter now.

use smallvec::SmallVec;

use crate::decision::{Decision, Reason};
use crate::time::Timestamp;

use super::jitter::Retry;
use super::policy::{Audience, Caller, Disclosure, Exposure, HeaderPolicy, Unit};
use super::reading::{LimitReading, readings};

/// The numbers of a decision that headers can show, before any dialect writes them.
#[derive(Debug)]
pub(super) struct Sheet<'a> {
    /// Every enforced limit, in the policy's order. Only [`Sheet::owned`] are shown.
    readings: SmallVec<[LimitReading<'a>; 4]>,
    /// Which of them matter now, the most urgent first: every violated limit, otherwise the caller's own limit that is
    /// closest to exhaustion. On a denial nothing else is listed, because `Retry-After` must not be earlier than any
    /// window beside it.
    chosen: SmallVec<[usize; 4]>,
    /// When to retry, if the request was denied and the caller may know it.
    pub(super) retry: Option<Retry>,
    /// Whether the request passes.
    pub(super) allowed: bool,
    /// The cost that the request asked for.
    pub(super) cost: Option<u64>,
    /// The wall time.
    pub(super) now: Timestamp,
    /// Whether quotas may be disclosed, in headers and bodies.
    pub(super) disclosed: bool,
    disclosure: Disclosure,
}

impl<'a> Sheet<'a> {
    pub(super) fn of(
        decision: &'a Decision,
        policy: &'a HeaderPolicy,
        audience: Audience,
        now: Timestamp,
    ) -> Self {
        let exposure = match audience.caller {
            Caller::Authenticated => Exposure::Full,
            Caller::Anonymous => policy.anonymous,
        };
        let mut sheet = Self {
            readings: SmallVec::new(),
            chosen: SmallVec::new(),
            retry: None,
            allowed: decision.is_allowed(),
            cost: audience.cost,
            now,
            disclosed: false,
            disclosure: policy.disclosure,
        };
        // Extended in the struct itself: readings are large to move.
        sheet.readings.extend(readings(decision, policy));
        sheet.choose();
        sheet.disclosed = exposure == Exposure::Full && sheet.calls_for_disclosure();
        // Sent at every other level: a caller that does not know when to retry retries at once.
        let silent = exposure == Exposure::None && policy.disclosure == Disclosure::Never;
        if !silent && let Some(retry_after) = decision.retry_after() {
            sheet.retry = match decision.reason() {
                Some(Reason::Blocked | Reason::Penalty) => Some(Retry::at_its_end(retry_after)),
                _ => sheet.most_urgent().and_then(|reading| Retry::of(reading, now)),
            };
        }
        sheet
    }

    fn chosen(&self) -> impl Iterator<Item = &LimitReading<'a>> + Clone {
        self.chosen.iter().filter_map(|&index| self.readings.get(index))
    }

    /// The limit that matters most, the caller's or the platform's: for the retry time, and for words that disclose
    /// nothing else of it.
    pub(super) fn most_urgent(&self) -> Option<&LimitReading<'a>> {
        self.chosen().next()
    }

    /// The caller's own limits, in the policy's order.
    pub(super) fn owned(&self) -> impl Iterator<Item = &LimitReading<'a>> + Clone {
        self.readings.iter().filter(|reading| reading.is_owned())
    }

    /// The limits to list with their numbers, the most urgent first. A limit that could not be counted has no numbers.
    pub(super) fn listed(&self) -> impl Iterator<Item = &LimitReading<'a>> + Clone {
        self.chosen().filter(|reading| reading.is_known() && reading.is_owned())
    }

    /// The most urgent limit among those listed.
    pub(super) fn tightest(&self) -> Option<&LimitReading<'a>> {
        self.listed().next()
    }

    /// The most urgent limit among those that count a unit, for dialects that show each unit apart.
    pub(super) fn tightest_of(&self, unit: Unit) -> Option<&LimitReading<'a>> {
        self.readings
            .iter()
            .filter(|reading| self.may_list(reading) && reading.unit == unit && !reading.is_concurrency())
            .min_by_key(|reading| reading.urgency())
    }

    /// The limits that refused the request, the caller's and the platform's, the most urgent first.
    pub(super) fn refusing(&self) -> impl Iterator<Item = &LimitReading<'a>> + Clone {
        self.chosen().filter(|reading| reading.is_violated())
    }

    /// The caller's own limits that refused the request, the most urgent first.
    pub(super) fn violated(&self) -> impl Iterator<Item = &LimitReading<'a>> + Clone {
        self.refusing().filter(|reading| reading.is_owned())
    }

    fn choose(&mut self) {
        if let [only] = &self.readings[..] {
            if only.is_violated() || self.may_list(only) {
                self.chosen.push(0);
            }
            return;
        }
        let urgency = |&index: &usize| self.readings.get(index).map(LimitReading::urgency);
        let may_list =
            |index: &usize| self.readings.get(*index).is_some_and(|reading| self.may_list(reading));
        let is_violated = |index: &usize| self.readings.get(*index).is_some_and(LimitReading::is_violated);
        let mut violated: SmallVec<[usize; 4]> = (0..self.readings.len()).filter(is_violated).collect();
        if violated.is_empty() {
            violated.extend((0..self.readings.len()).filter(may_list).min_by_key(urgency));
        } else {
            violated.sort_by_key(urgency);
        }
        self.chosen = violated;
    }

    fn may_list(&self, reading: &LimitReading<'_>) -> bool {
        let hidden =
            self.disclosure == Disclosure::NearExhaustion && self.allowed && !reading.is_near_exhaustion();
        reading.is_known() && reading.is_owned() && !hidden
    }

    fn calls_for_disclosure(&self) -> bool {
        match self.disclosure {
            Disclosure::Always => true,
            Disclosure::NearExhaustion => !self.allowed || !self.chosen.is_empty(),
            Disclosure::DeniedOnly => !self.allowed,
            Disclosure::Never => false,
        }
    }
}
