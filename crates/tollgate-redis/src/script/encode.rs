//! Requests as the script reads them: fixed records of little-endian doubles, which hold every number of a quota exactly.

use tollgate::Stance;
use tollgate::Timestamp;
use tollgate::algorithm::Charged;
use tollgate::algorithm::fixed_window::{Align, FixedWindow};
use tollgate::algorithm::reservoir::Reservoir;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::charge::{Charge, Succession};
use tollgate::lease::{LeaseRequest, SHARE_SCALE};
use tollgate::quota::{EXACT_MAX, Quota};

use super::{Operation, Tag};

/// The kinds of state that the script knows.
const RESERVOIR: u8 = 1;
const EPOCH: u8 = 2;
const FIRST_HIT: u8 = 3;
const CALENDAR: u8 = 4;
const SLIDING: u8 = 5;
const LOG: u8 = 6;
const PERMITS: u8 = 7;

/// The most of what is told of a want. What is due is at most so many units.
const REPORT_MAX: u64 = u32::MAX as u64;
const DUE_MAX: u64 = 1 << 40;

/// Where a state comes from that was counted under another quota.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    /// The script is to ask.
    Unspecified,
    /// It was counted under the first of these quotas, by this tag, then by the others, then by the charge's.
    Lineage(Tag, Vec<Ancestor>),
    /// Unknown knows the quota: the counter is taken to be exhausted.
    Unknown,
}

/// A quota that a state was counted under.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ancestor {
    pub(crate) compatibility: Compatibility,
    pub(crate) fields: QuotaFields,
    /// When the next followed.
    pub(crate) at: Timestamp,
    /// When the window of the next one ends that began with that.
    pub(crate) next_end: Timestamp,
}

/// How like a quota the one that follows it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Compatibility {
    /// Its states must be carried over.
    Different = 0,
    /// Its windows are the same, so that counts mean the same.
    SameWindows = 1,
    /// It is the same.
    Same = 2,
}

/// A quota as the script knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct QuotaFields {
    kind: u8,
    fields: [u64; 5],
}

/// How many bounds of a calendar's windows are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CalendarBounds {
    /// Those of the window around now.
    One,
    /// Also the end of the next, which is needed when a clock stepped back.
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
            // A refund may need both bounds, and a lineage is rare.
            fields: QuotaFields::of(step.from, step.at, CalendarBounds::Two),
            // Now is what the script's clock says.
            at: if step.at >= now { Timestamp::MAX } else { step.at },
            next_end,
        }
    }
}

/// The reservoir of a quota that is one, and the units that leave it without waiting.
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
    [pace.gain().get(), pace.price().get(), reservoir.units(), immediate]
}

/// The beginning of a request.
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
    let is_shadow = charge.stance() == Stance::Shadow;
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

/// The units that are wanted, in place of a charge's seconds.
pub(super) fn wanted_units(want: &LeaseRequest) -> u32 {
    u32::try_from(want.units).unwrap_or(u32::MAX)
}

/// What else is told of a want, behind all charges.
pub(super) fn want_details(body: &mut Vec<u8>, want: &LeaseRequest) {
    number(body, want.guaranteed.min(DUE_MAX));
    number(body, want.share.min(SHARE_SCALE));
    number(body, want.demand.min(REPORT_MAX));
}

/// Of a refund, behind all charges: the instant by which one was counted, or, below zero, how long ago that was at most.
pub(super) fn charged(body: &mut Vec<u8>, charged: Charged) {
    match charged {
        Charged::At(at) => number(body, at.unix_micros().min(EXACT_MAX)),
        Charged::Within(age) => {
            // One tick more, so that an age of nothing is below zero, too.
            let age = -i64::try_from(age.as_micros().min(EXACT_MAX - 1) + 1).unwrap_or(i64::MAX);
            body.extend((age as f64).to_le_bytes());
        }
    }
}

/// One charge to a counter whose states are of its own quota.
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
    // A cost beyond what fields can tell is above every capacity, and so is the first that they cannot.
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
