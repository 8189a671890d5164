//! Encodes requests for the script: fixed records of little-endian doubles, which hold every number of a quota exactly.

use tollgate::algorithm::Charged;
use tollgate::algorithm::fixed_window::{Align, FixedWindow};
use tollgate::algorithm::reservoir::Reservoir;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::lease::{LeaseRequest, SHARE_SCALE};
use tollgate::quota::Quota;
use tollgate::rate::EXACT_MAX;
use tollgate::store::{Charge, Succession};
use tollgate::{Enforcement, Timestamp};

use super::{Operation, Tag};

/// Kinds of state, as numbered in the script.
const RESERVOIR: u8 = 1;
const EPOCH: u8 = 2;
const FIRST_HIT: u8 = 3;
const CALENDAR: u8 = 4;
const SLIDING: u8 = 5;
const LOG: u8 = 6;
const PERMITS: u8 = 7;

/// Maximum reported demand and maximum units due.
const REPORT_MAX: u64 = u32::MAX as u64;
const DUE_MAX: u64 = 1 << 40;

/// The quota that a state was counted under, if it is not the charge's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    /// Not given: the script replies with the state's tag.
    Unspecified,
    /// The state was counted under the first of these quotas, which has this tag, then the others, then the charge's.
    Lineage(Tag, Vec<Ancestor>),
    /// The fleet does not know the quota. The counter counts as exhausted.
    Unknown,
}

/// An earlier quota of a state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ancestor {
    pub(crate) compatibility: Compatibility,
    pub(crate) fields: QuotaFields,
    /// When the next quota became active.
    pub(crate) at: Timestamp,
    /// The end of the next quota's window that contains that instant.
    pub(crate) next_end: Timestamp,
}

/// How an earlier quota relates to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Compatibility {
    /// Its states must be converted.
    Different = 0,
    /// Its windows are the same, so counts keep their meaning.
    SameWindows = 1,
    /// It is equal.
    Same = 2,
}

/// A quota as the script reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct QuotaFields {
    kind: u8,
    fields: [u64; 5],
}

/// Which bounds of a calendar's windows are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CalendarBounds {
    /// The bounds of the current window.
    One,
    /// Also the end of the next window, needed after a clock stepped back.
    Two,
}

impl QuotaFields {
    pub(crate) fn of(quota: &Quota, now: Timestamp, bounds: CalendarBounds) -> Self {
        let (kind, [a, b, c, d]) = match quota {
            Quota::TokenBucket(_) | Quota::Gcra(_) | Quota::LeakyBucket(_) => {
                (RESERVOIR, bucket(quota).map_or([0; 4], |(bucket, immediate)| reservoir(bucket, immediate)))
            }
            Quota::FixedWindow(window) => return Self::of_window(window, now, bounds),
            Quota::SlidingWindow(window) => {
                let is_strict = u64::from(window.estimate() == Estimate::Strict);
                let sub = window.sub_window().as_micros();
                (SLIDING, [window.limit(), sub, u64::from(window.precision()), is_strict])
            }
            Quota::SlidingLog(log) => (LOG, [log.limit(), log.period().as_micros(), 0, 0]),
            Quota::Concurrency(permits) => (PERMITS, [permits.limit(), permits.ttl().as_micros(), 0, 0]),
        };
        Self { kind, fields: [a, b, c, d, 0] }
    }

    fn of_window(window: &FixedWindow, now: Timestamp, bounds: CalendarBounds) -> Self {
        let (limit, period) = (window.limit(), window.period().as_micros());
        let (kind, [c, d, e]) = match window.align() {
            Align::Epoch => (EPOCH, [0; 3]),
            Align::FirstHit => (FIRST_HIT, [0; 3]),
            Align::Calendar(calendar) => {
                let (start, end) = calendar.window(now);
                let latest = match bounds {
                    CalendarBounds::One => Timestamp::default(),
                    CalendarBounds::Two => window.latest_end(now),
                };
                (CALENDAR, [start, end, latest].map(Timestamp::unix_micros))
            }
        };
        Self { kind, fields: [limit, period, c, d, e] }
    }
}

impl Compatibility {
    fn of(from: &Quota, to: &Quota) -> Self {
        let has_same_windows = match (from, to) {
            _ if from == to => return Compatibility::Same,
            (Quota::FixedWindow(from), Quota::FixedWindow(to)) => {
                from.align() == to.align()
                    && (from.period() == to.period() || matches!(to.align(), Align::Calendar(_)))
            }
            (Quota::SlidingWindow(from), Quota::SlidingWindow(to)) => {
                (from.sub_window(), from.precision()) == (to.sub_window(), to.precision())
            }
            _ => false,
        };
        if has_same_windows { Compatibility::SameWindows } else { Compatibility::Different }
    }
}

impl Ancestor {
    /// One step of a lineage.
    pub(crate) fn of(step: &Succession<'_>, now: Timestamp) -> Self {
        let next_end = match step.to {
            Quota::FixedWindow(window) => window.window_end(step.at),
            _ => Timestamp::default(),
        };
        Self {
            compatibility: Compatibility::of(step.from, step.to),
            // A refund may need both bounds, and lineages are rare.
            fields: QuotaFields::of(step.from, step.at, CalendarBounds::Two),
            // The script's clock decides what is now.
            at: if step.at >= now { Timestamp::MAX } else { step.at },
            next_end,
        }
    }
}

/// The reservoir of a bucket quota, and the units it admits without waiting.
pub(super) fn bucket(quota: &Quota) -> Option<(&Reservoir, u64)> {
    match quota {
        Quota::TokenBucket(bucket) => Some((bucket.reservoir(), bucket.burst())),
        Quota::Gcra(bucket) => Some((bucket.reservoir(), bucket.burst())),
        Quota::LeakyBucket(bucket) => Some((bucket.shape().reservoir(), bucket.capacity() - bucket.queue())),
        _ => None,
    }
}

fn reservoir(reservoir: &Reservoir, immediate: u64) -> [u64; 4] {
    let pace = reservoir.pace();
    [pace.gain().get(), pace.unit_credits().get(), reservoir.units(), immediate]
}

/// Starts a request.
pub(crate) fn head(body: &mut Vec<u8>, operation: Operation, charges: u8) {
    body.extend([operation as u8, charges]);
}

/// One charge.
pub(crate) fn charge(
    body: &mut Vec<u8>,
    charge: &Charge<'_>,
    tag: Tag,
    fields: &QuotaFields,
    origin: &Origin,
    seconds: u32,
) {
    let origin_code = match origin {
        Origin::Unspecified => 0,
        Origin::Lineage(..) => 1,
        Origin::Unknown => 2,
    };
    let is_shadow = charge.enforcement() == Enforcement::Shadow;
    let permit = (fields.kind == PERMITS).then(|| charge.permit().0.to_le_bytes());
    record(
        body,
        [fields.kind, u8::from(is_shadow), origin_code],
        tag,
        seconds,
        charge.cost(),
        fields,
        permit,
    );
    if let Origin::Lineage(tag, ancestors) = origin {
        body.push(u8::try_from(ancestors.len()).unwrap_or(0));
        body.extend(tag.digits());
        ancestors.iter().for_each(|each| ancestor(body, each));
    }
}

/// The units wanted, in place of a charge's seconds.
pub(super) fn wanted_units(want: &LeaseRequest) -> u32 {
    u32::try_from(want.units).unwrap_or(u32::MAX)
}

/// The rest of a lease request, after all charges.
pub(super) fn want_details(body: &mut Vec<u8>, want: &LeaseRequest) {
    number(body, want.guaranteed.min(DUE_MAX));
    number(body, want.share.min(SHARE_SCALE));
    number(body, want.demand.min(REPORT_MAX));
}

/// After all charges of a refund: the instant of the charge, or, below zero, its maximum age.
pub(super) fn charged(body: &mut Vec<u8>, charged: Charged) {
    match charged {
        Charged::At(at) => number(body, at.unix_micros().min(EXACT_MAX)),
        Charged::Within(age) => {
            // One tick more, so that an age of zero is below zero, too.
            let age = -i64::try_from(age.as_micros().min(EXACT_MAX - 1) + 1).unwrap_or(i64::MAX);
            body.extend((age as f64).to_le_bytes());
        }
    }
}

/// One charge to a counter whose states have its own quota.
pub(super) fn plain(body: &mut Vec<u8>, tag: Tag, seconds: u32, cost: u64, fields: &QuotaFields) {
    record(body, [fields.kind, 0, 0], tag, seconds, cost, fields, None);
}

#[allow(clippy::too_many_arguments, reason = "these are the fields of a record, in order")]
fn record(
    body: &mut Vec<u8>,
    head: [u8; 3],
    tag: Tag,
    seconds: u32,
    cost: u64,
    fields: &QuotaFields,
    permit: Option<[u8; 8]>,
) {
    body.extend(head);
    body.extend(tag.digits());
    body.extend(seconds.to_le_bytes());
    // A larger cost exceeds every capacity, and so does this one.
    number(body, cost.min(EXACT_MAX + 1));
    let [a, b, c, d, e] = fields.fields;
    [a, b, c].into_iter().for_each(|each| number(body, each));
    match permit {
        Some(name) => body.extend(name),
        None => number(body, d),
    }
    if fields.kind == CALENDAR {
        number(body, e);
    }
}

fn ancestor(body: &mut Vec<u8>, ancestor: &Ancestor) {
    body.extend([ancestor.fields.kind, ancestor.compatibility as u8]);
    ancestor.fields.fields.iter().for_each(|&each| number(body, each));
    number(body, ancestor.at.unix_micros());
    number(body, ancestor.next_end.unix_micros());
}

/// A number below 2^53, which a double holds exactly.
fn number(body: &mut Vec<u8>, number: u64) {
    body.extend((number as f64).to_le_bytes());
}
