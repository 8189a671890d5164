//! The statistics of a replay: what is counted with each decision, and the report that follows from it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tollgate::policy::{Ended, Limit, Mode};
use tollgate::time::TICKS_PER_SECOND;
use tollgate::{Decision, Enforcement, LimitStatus, Policy, Quota, Source, Ticks, Timestamp, Verdict};

use super::bounds::{Denials, Extremes, OWN, SIZES, SIZES_AND_OWN};
use super::key_map::KeyMap;
use super::keys::Key;
use super::report::Range;
use super::run::{Attempt, Decided};
use super::scaled::{Asked, Kept, Sizes};
use super::touched::Touched;
use crate::log::{Precision, Record};

/// A run beside the main one, whose denials are only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// All requests of a second at its start.
    Together = 0,
    /// Without the requests that the live system refused.
    Unrefused = 1,
}

/// How many such runs there are.
const BESIDE: usize = 2;
/// The bits of a client: that of the main run, and those of the fewest and the most denials.
const MAIN: u8 = 1 << BESIDE;
const EXTREMES: [u8; 2] = [1 << 3, 1 << 4];

/// Whether a log has stamps of whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stamps {
    /// It has, so the truth is a range. A run with all requests of a second at its start is made beside the main one.
    WholeSeconds,
    /// All stamps are exact.
    Exact,
}

impl Variant {
    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The counts of a run beside the main one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VariantTotals {
    pub(super) decisions: u64,
    pub(super) denied: u64,
}

/// The counts of one limit.
#[derive(Debug)]
pub(super) struct LimitSheet {
    /// Its quotas, at every size.
    pub(super) quotas: Vec<Sizes>,
    pub(super) keys: KeyMap<Key>,
    pub(super) requests: u64,
    pub(super) denied: u64,
    pub(super) cause: u64,
    pub(super) delayed: u64,
    pub(super) leases: u64,
    pub(super) beside: [u64; BESIDE],
    pub(super) sizes: [u64; SIZES],
    /// Denials at both extremes that stamps of whole seconds leave open, the fewest and the most, at every size.
    extremes: [[u64; SIZES_AND_OWN]; 2],
    /// How many seconds stamps of whole seconds leave open; `None` where stamps are exact.
    width: Option<u64>,
    /// Why the extremes are estimates: a request had another cost than one, or came back, or the limit does more than to
    /// count requests.
    has_costs: bool,
    has_retries: bool,
    has_extras: bool,
    /// A key had requests of several clients, so a denial touches either of them.
    has_shared_keys: bool,
    /// The enforced limits that a request met beside this one.
    meets: Vec<bool>,
    pub(super) minutes: HashMap<u64, u64>,
}

impl LimitSheet {
    fn new(limit: &Limit, limits: usize, stamps: Stamps) -> Self {
        Self {
            quotas: limit.quotas().iter().map(|quota| Sizes::new(quota, limit.lease())).collect(),
            keys: KeyMap::default(),
            requests: 0,
            denied: 0,
            cause: 0,
            delayed: 0,
            leases: 0,
            beside: [0; BESIDE],
            sizes: [0; SIZES],
            extremes: [[0; SIZES_AND_OWN]; 2],
            width: (stamps == Stamps::WholeSeconds).then_some(1),
            has_costs: false,
            has_retries: false,
            has_extras: limit.block_for().is_some() || limit.failures().is_some(),
            has_shared_keys: false,
            meets: vec![false; limits],
            minutes: HashMap::new(),
        }
    }
}

/// All that is counted.
#[derive(Debug)]
pub(super) struct Sheet {
    pub(super) policy: Arc<Policy>,
    pub(super) stamps: Stamps,
    pub(super) limits: Vec<LimitSheet>,
    pub(super) first: Option<Timestamp>,
    pub(super) last: Timestamp,
    pub(super) requests: u64,
    pub(super) decisions: u64,
    pub(super) denied: u64,
    /// Denials at both extremes that stamps of whole seconds leave open.
    extremes: [u64; 2],
    /// Requests were not decided at an instant that their stamps allow.
    pub(super) is_displaced: bool,
    pub(super) unlimited: u64,
    pub(super) faults: u64,
    pub(super) refused: u64,
    pub(super) retries: u64,
    pub(super) retries_allowed: u64,
    pub(super) overflowed: u64,
    pub(super) calls: u64,
    pub(super) calls_with_leases: u64,
    pub(super) beside: [VariantTotals; BESIDE],
    /// Clients, each with the runs that denied it.
    pub(super) clients: KeyMap<u8>,
    pub(super) overlaps: BTreeMap<(usize, usize), u64>,
    pub(super) week_requests: [[u64; 24]; 7],
    pub(super) week_denied: [[u64; 24]; 7],
}

impl Sheet {
    pub(super) fn new(policy: Arc<Policy>, stamps: Stamps) -> Self {
        let count = policy.limits().len();
        let limits = policy.limits().iter().map(|limit| LimitSheet::new(limit, count, stamps)).collect();
        Self {
            policy,
            stamps,
            limits,
            first: None,
            last: Timestamp::default(),
            requests: 0,
            decisions: 0,
            denied: 0,
            extremes: [0; 2],
            is_displaced: false,
            unlimited: 0,
            faults: 0,
            refused: 0,
            retries: 0,
            retries_allowed: 0,
            overflowed: 0,
            calls: 0,
            calls_with_leases: 0,
            beside: [VariantTotals::default(); BESIDE],
            clients: KeyMap::default(),
            overlaps: BTreeMap::new(),
            week_requests: [[0; 24]; 7],
            week_denied: [[0; 24]; 7],
        }
    }

    /// Counts a decision of the main run.
    pub(super) fn count(&mut self, decided: &Decided<'_, '_>) {
        let Decided { attempt, decision, client, now, .. } = *decided;
        let is_denied = !decision.is_allowed();
        self.first.get_or_insert(now);
        self.last = self.last.max(now);
        self.decisions += 1;
        self.denied += u64::from(is_denied);
        match attempt {
            Attempt::First => {
                self.requests += 1;
                self.refused += u64::from(decided.record.refused);
            }
            Attempt::Again => {
                self.retries += 1;
                self.retries_allowed += u64::from(!is_denied);
            }
        }
        self.unlimited += u64::from(decision.meets_no_limit());
        self.faults += u64::from(decision.fault().is_some());
        *self.clients.entry(client).or_default() |= if is_denied { MAIN } else { 0 };
        let (day, hour) = day_and_hour(now);
        self.week_requests[day][hour] += 1;
        self.week_denied[day][hour] += u64::from(is_denied);
        self.count_limits(decided);
        if is_denied {
            self.count_denial(decision);
        }
    }

    /// Counts the status of each limit.
    fn count_limits(&mut self, decided: &Decided<'_, '_>) {
        let decision = decided.decision;
        let refusing = decision.limits().filter(refuses).count();
        if self.stamps == Stamps::WholeSeconds {
            self.note_meetings(decision);
        }
        let (mut is_counted, mut needs_store) = (false, false);
        let mut is_denied = [decision.fault().is_some(); 2];
        for status in decision.limits() {
            let Some(sheet) = self.limits.get_mut(status.index) else { continue };
            let (extremes, leased) = sheet.count(&status, decided, refusing);
            is_counted |= status.source.is_counted();
            needs_store |= status.source.is_counted() && leased.is_none_or(|is_new| is_new);
            self.overflowed += u64::from(status.source == Source::Overflow);
            if status.enforcement == Enforcement::Enforced {
                is_denied = [0, 1].map(|extreme: usize| is_denied[extreme] || extremes[extreme].has(OWN));
            }
        }
        self.calls += u64::from(is_counted);
        self.calls_with_leases += u64::from(needs_store);
        for ((count, bit), is_denied) in self.extremes.iter_mut().zip(EXTREMES).zip(is_denied) {
            if is_denied {
                *count += 1;
                *self.clients.entry(decided.client).or_default() |= bit;
            }
        }
    }

    /// Notes which limits a request meets together.
    fn note_meetings(&mut self, decision: &Decision) {
        for status in decision.limits() {
            let Some(sheet) = self.limits.get_mut(status.index) else { continue };
            let others = decision.limits().filter(|other| other.index != status.index);
            for other in others.filter(|other| other.enforcement == Enforcement::Enforced) {
                sheet.meets.get_mut(other.index).into_iter().for_each(|meets| *meets = true);
            }
        }
    }

    /// Counts what only denials have: their cause, and limits that deny together.
    fn count_denial(&mut self, decision: &Decision) {
        if let Some(sheet) = decision.cause().and_then(|cause| self.limits.get_mut(cause.index)) {
            sheet.cause += 1;
        }
        let mut refusing = decision.limits().filter(refuses);
        while let Some(one) = refusing.next() {
            for other in refusing.clone() {
                *self.overlaps.entry((one.index, other.index)).or_default() += 1;
            }
        }
    }

    /// Counts a decision of a run beside the main one.
    pub(super) fn count_beside(&mut self, beside: Variant, decided: &Decided<'_, '_>) {
        let totals = &mut self.beside[beside as usize];
        totals.decisions += 1;
        if decided.decision.is_allowed() {
            return;
        }
        totals.denied += 1;
        *self.clients.entry(decided.client).or_default() |= beside.bit();
        for status in decided.decision.limits().filter(|status| !status.outcome.is_allowed()) {
            let Some(sheet) = self.limits.get_mut(status.index) else { continue };
            sheet.beside[beside as usize] += 1;
            sheet.keys.entry(status.key_hash).or_default().runs |= beside.bit();
        }
    }

    /// The range of denials that stamps of whole seconds leave open. With several limits that deny it is an estimate.
    pub(super) fn denied_range(&self) -> Range {
        let [fewest, most] = self.extremes;
        Range::of([self.denied, self.beside[Variant::Together as usize].denied, fewest, most])
    }

    /// The same of touched clients.
    pub(super) fn touched_clients_range(&self) -> Range {
        let [fewest, most] = EXTREMES.map(|bit| self.clients_with(bit));
        let together = self.touched_clients_beside(Variant::Together);
        Range::of([self.touched_clients(), together, fewest, most])
    }

    /// Whether the main run denied a client.
    #[cfg(test)]
    pub(super) fn is_touched(&self, client: u64) -> bool {
        self.clients.get(&client).is_some_and(|runs| runs & MAIN != 0)
    }

    fn clients_with(&self, bit: u8) -> u64 {
        self.clients.values().filter(|runs| **runs & bit != 0).count() as u64
    }

    /// Which limits have a range that is an estimate, or a number where there is no range.
    pub(super) fn estimates(&self) -> Estimates {
        let has_requests = |sheet: &LimitSheet| sheet.requests > 0;
        let unproven: Vec<bool> =
            self.limits.iter().map(|sheet| has_requests(sheet) && sheet.is_unproven()).collect();
        let mut entangled = vec![false; unproven.len()];
        // What one limit denies changes what the other counts, and so on.
        loop {
            let is_known = |index: usize| unproven[index] || entangled[index];
            let is_next = |index: &usize| !is_known(*index) && self.is_entangled(*index, is_known);
            let Some(next) = (0..unproven.len()).find(is_next) else { break };
            entangled[next] = true;
        }
        let is_estimated = |(index, sheet): (usize, &LimitSheet)| {
            unproven[index] || entangled[index] || (self.is_displaced && has_requests(sheet))
        };
        let estimated = self.limits.iter().enumerate().map(is_estimated).collect();
        Estimates { unproven, entangled, estimated }
    }

    /// Whether the denials in all are an estimate. A limit in shadow has no part in them.
    pub(super) fn is_total_estimated(&self) -> bool {
        let estimated = self.estimates().estimated;
        let mut each = self.policy.limits().iter().zip(estimated);
        each.any(|(limit, is_estimated)| is_estimated && limit.mode() != Mode::Shadow)
    }

    /// Whether the range of a limit depends on what another one denies, or it denies beside another one.
    fn is_entangled(&self, index: usize, is_estimated: impl Fn(usize) -> bool) -> bool {
        let may_deny = |index: usize| is_estimated(index) || self.limits[index].denied_range().high > 0;
        let mut others = self.limits[index].meets.iter().enumerate().filter(|(_, meets)| **meets);
        let is_met = |other: usize| self.limits[other].meets[index];
        others.any(|(other, _)| may_deny(other) || (is_met(other) && may_deny(index)))
    }

    /// Whether the range of touched clients is an estimate.
    pub(super) fn is_touched_estimated(&self) -> bool {
        let is_shared = |sheet: &LimitSheet| sheet.has_shared_keys && sheet.denied_range().high > 0;
        self.stamps == Stamps::WholeSeconds && self.limits.iter().any(is_shared)
    }

    /// Clients that the main run denied.
    pub(super) fn touched_clients(&self) -> u64 {
        self.clients_with(MAIN)
    }

    /// Clients that another run denied.
    pub(super) fn touched_clients_beside(&self, beside: Variant) -> u64 {
        self.clients_with(beside.bit())
    }
}

impl LimitSheet {
    /// Counts the status of a request that so many limits deny. Returns the extremes that stamps of whole seconds leave
    /// open, and whether it needs a new lease; `None` if the limit is not leased.
    fn count(
        &mut self,
        status: &LimitStatus<'_>,
        decided: &Decided<'_, '_>,
        refusing: usize,
    ) -> (Extremes, Option<bool>) {
        let now = decided.now;
        let width = self.width_of(decided);
        self.requests += 1;
        let key = self.keys.entry(status.key_hash).or_default();
        key.requests += 1;
        if key.requests == 1 {
            key.client = decided.client;
        }
        self.has_shared_keys |= key.client != decided.client;
        self.has_costs |= status.cost != 1;
        let is_denied = !status.outcome.is_allowed();
        self.delayed += u64::from(matches!(status.outcome.verdict, Verdict::Wait(_)));
        let mut denials = Denials::default();
        if is_denied {
            denials.add(OWN);
            self.denied += 1;
            *self.minutes.entry(now.unix_micros() / (60 * TICKS_PER_SECOND)).or_default() += 1;
            key.deny(now, status.retry_advice().unwrap_or(Ticks::ZERO));
            let touched = key.touched.get_or_insert_with(|| {
                Box::new(Touched::new(status.limit, decided.request, status.descriptor))
            });
            touched.count(decided.record);
        } else {
            key.admit(now);
        }
        let place = status.quota.and_then(|quota| place_of(status.limit, quota));
        let Some((place, sizes)) = place.and_then(|place| Some((place, self.quotas.get(place)?))) else {
            note_extremes(&mut self.extremes, key, [denials; 2]);
            return ([denials; 2], None);
        };
        let place = u16::try_from(place).unwrap_or(u16::MAX);
        if key.quota != place {
            // Another tier has other numbers.
            self.has_extras |= key.requests > 1;
            key.used.restart();
            key.quota = place;
        }
        let kept = match decided.record.status {
            _ if refusing > usize::from(refuses(status)) => Kept::DeniedElsewhere,
            Some(ended) if status.limit.failures().is_some_and(|of| !of.count(Ended::Status(ended))) => {
                Kept::Succeeded
            }
            _ => Kept::Yes,
        };
        let asked = Asked { now, cost: status.cost, kept };
        let in_flight = status.outcome.limit.saturating_sub(status.outcome.remaining);
        denials.add_all(sizes.charge(&mut key.used, asked, in_flight));
        key.sizes.add_all(denials);
        for (size, denied) in self.sizes.iter_mut().enumerate() {
            *denied += u64::from(denials.has(size));
        }
        let bounds = width.and_then(|width| sizes.bound(&mut key.used, asked, width));
        let extremes = bounds.unwrap_or([denials; 2]);
        note_extremes(&mut self.extremes, key, extremes);
        let leased = sizes.lease.map(|lease| !is_denied && key.take_leased(status.cost, lease, now));
        self.leases += u64::from(leased == Some(true));
        (extremes, leased)
    }

    /// How many seconds the log leaves open for a request. `None` where stamps are exact, and for requests that came back,
    /// whose instants follow from decisions.
    fn width_of(&mut self, decided: &Decided<'_, '_>) -> Option<u64> {
        let width = self.width.as_mut()?;
        if decided.attempt == Attempt::Again {
            self.has_retries = true;
            return None;
        }
        let Record { arrival, precision, .. } = decided.record;
        if *precision == Precision::Second && !arrival.unix_micros().is_multiple_of(TICKS_PER_SECOND) {
            // The stamp less a duration.
            *width = 2;
        }
        Some(*width)
    }

    /// Whether the range that stamps of whole seconds leave open is an estimate, whatever other limits do.
    fn is_unproven(&self) -> bool {
        let is_bounded = || self.quotas.iter().all(Sizes::is_bounded);
        self.width.is_some() && (self.has_costs || self.has_retries || self.has_extras || !is_bounded())
    }

    /// The range of denials that stamps of whole seconds leave open.
    pub(super) fn denied_range(&self) -> Range {
        let together = self.beside[Variant::Together as usize];
        let [fewest, most] = self.extremes.map(|sizes| sizes[OWN]);
        Range::of([self.denied, together, fewest, most])
    }

    /// The same at another size.
    pub(super) fn denied_range_at(&self, size: usize) -> Range {
        let [fewest, most] = self.extremes.map(|sizes| sizes[size]);
        Range::of([self.sizes[size], fewest, most])
    }

    /// The range of touched keys.
    pub(super) fn touched_range(&self, touched: &TouchedCounts) -> Range {
        let TouchedCounts { main, fewest, most } = touched;
        Range::of([main[OWN], self.touched_beside(Variant::Together), fewest[OWN], most[OWN]])
    }

    /// The keys that each size denies.
    pub(super) fn touched(&self) -> TouchedCounts {
        let mut counts = TouchedCounts::default();
        let TouchedCounts { main, fewest, most } = &mut counts;
        for key in self.keys.values() {
            let [low, high] = key.extremes;
            for (counts, denials) in [(&mut *main, key.sizes), (&mut *fewest, low), (&mut *most, high)] {
                for (size, count) in counts.iter_mut().enumerate() {
                    *count += u64::from(denials.has(size));
                }
            }
        }
        counts
    }

    /// Keys that a run beside the main one denied.
    pub(super) fn touched_beside(&self, beside: Variant) -> u64 {
        self.keys.values().filter(|key| key.runs & beside.bit() != 0).count() as u64
    }
}

/// The limits whose numbers are an estimate.
#[derive(Clone, Debug)]
pub(super) struct Estimates {
    /// By themselves.
    pub(super) unproven: Vec<bool>,
    /// Because of limits beside them.
    pub(super) entangled: Vec<bool>,
    /// For any reason.
    pub(super) estimated: Vec<bool>,
}

/// How many keys each size denies: in the main run, and at both extremes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TouchedCounts {
    pub(super) main: [u64; SIZES_AND_OWN],
    fewest: [u64; SIZES_AND_OWN],
    most: [u64; SIZES_AND_OWN],
}

impl TouchedCounts {
    /// The range at another size.
    pub(super) fn range_at(&self, size: usize) -> Range {
        Range::of([self.main[size], self.fewest[size], self.most[size]])
    }
}

/// Counts a request at both extremes that its stamp leaves open.
fn note_extremes(extremes: &mut [[u64; SIZES_AND_OWN]; 2], key: &mut Key, bounds: Extremes) {
    for ((counts, known), denials) in extremes.iter_mut().zip(&mut key.extremes).zip(bounds) {
        known.add_all(denials);
        for (size, count) in counts.iter_mut().enumerate() {
            *count += u64::from(denials.has(size));
        }
    }
}

/// Whether an enforced limit denies the request.
fn refuses(status: &LimitStatus<'_>) -> bool {
    status.enforcement == Enforcement::Enforced && !status.outcome.is_allowed()
}

/// The index of a quota among those of its limit.
fn place_of(limit: &Limit, quota: &Quota) -> Option<usize> {
    limit.quotas().iter().position(|known| std::ptr::eq(known, quota))
}

/// Whether a limit takes part in decisions at all.
pub(super) fn is_on(limit: &Limit, without: &[String]) -> bool {
    limit.mode() != Mode::Off && !without.iter().any(|name| name == limit.name())
}

/// The weekday, from Monday, and the hour.
fn day_and_hour(at: Timestamp) -> (usize, usize) {
    let hours = at.unix_micros() / (3_600 * TICKS_PER_SECOND);
    // The first day of Unix time was a Thursday.
    let day = usize::try_from((hours / 24 + 3) % 7).unwrap_or(0);
    (day, usize::try_from(hours % 24).unwrap_or(0))
}
