//! Computes answers from what the script found: the time, and each counter before the charge. The script has decided by
//! the same functions; these also say what remains and when it resets.

use smallvec::SmallVec;
use tollgate::algorithm::reservoir::Reservoir;
use tollgate::algorithm::{fixed_window, sliding_window};
use tollgate::store::{Answers, Charge, ChargeAnswer};
use tollgate::{Enforcement, Outcome, Quota, Source, Ticks, Timestamp, Verdict};

use super::encode::bucket;
use super::reply::number;
use super::request::Lent;

/// A counter before the charge.
enum FoundCounter<'c> {
    /// A bucket: its missing credits, and the units it admits without waiting.
    Bucket(&'c Reservoir, u64, u64),
    Fixed(&'c fixed_window::FixedWindow, fixed_window::State),
    Sliding(&'c sliding_window::SlidingWindow, sliding_window::State),
}

/// The part of the script's reply for each counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    Counters,
    /// Behind each counter, the units lent and the fleet's demand.
    CountersAndLoans,
}

/// The answers of several counters. Either all are charged or none.
pub(super) fn answers(bytes: &[u8], charges: &[Charge<'_>]) -> Option<Answers> {
    Some(read(bytes, each(charges), Contents::Counters)?.answers)
}

/// The answers, with the units that each counter lent.
pub(super) fn lent(bytes: &[u8], charges: &[Charge<'_>]) -> Option<Lent> {
    read(bytes, each(charges), Contents::CountersAndLoans)
}

/// The units that one counter lent, without a charge.
pub(super) fn lent_by(bytes: &[u8], quota: &Quota) -> Option<Lent> {
    read(bytes, [(quota, 0, Enforcement::Enforced)].into_iter(), Contents::CountersAndLoans)
}

fn each<'q>(charges: &'q [Charge<'_>]) -> impl Iterator<Item = (&'q Quota, u64, Enforcement)> {
    charges.iter().map(|charge| (charge.quota(), charge.cost(), charge.enforcement()))
}

/// Reads the time and each counter, and the loans if the reply holds them.
fn read<'q>(
    bytes: &[u8],
    charges: impl Iterator<Item = (&'q Quota, u64, Enforcement)>,
    contents: Contents,
) -> Option<Lent> {
    let (now, mut rest) = bytes.split_at_checked(8)?;
    let now = Timestamp::from_unix_micros(number(now)?);
    let mut is_admitted = true;
    let mut fleet_demands: SmallVec<[Option<u64>; 6]> = SmallVec::new();
    let mut seen: SmallVec<[(FoundCounter<'_>, Outcome, u64, u64); 6]> = SmallVec::new();
    for (quota, cost, enforcement) in charges {
        let found = FoundCounter::read(&mut rest, quota)?;
        let lends = contents == Contents::CountersAndLoans;
        let units = if lends { number(take(&mut rest, 8)?)? } else { 0 };
        if lends {
            fleet_demands.push(Some(number(take(&mut rest, 8)?)?).filter(|&fleet_demand| fleet_demand > 0));
        }
        let outcome = found.charged(cost, now);
        is_admitted &= enforcement == Enforcement::Shadow || outcome.is_allowed();
        seen.push((found, outcome, cost, units));
    }
    let units = seen.iter().map(|(_, _, _, units)| *units).collect();
    let answers = seen.into_iter().map(|(found, outcome, cost, units)| {
        let outcome = match outcome.is_allowed() {
            // Denied requests charge nothing, so an admitted counter is answered without the charge.
            true if !is_admitted => found.charged(0, now),
            true if units > 0 => Outcome { verdict: outcome.verdict, ..found.charged(cost + units, now) },
            _ => outcome,
        };
        ChargeAnswer::new(outcome, Source::Exact).charged(now)
    });
    rest.is_empty().then(|| Lent { answers: answers.collect(), units, fleet_demands, now })
}

impl<'c> FoundCounter<'c> {
    fn lacking(lack: u64, quota: &'c Quota) -> Option<Self> {
        let (reservoir, immediate) = bucket(quota)?;
        (lack <= reservoir.credits()).then_some(Self::Bucket(reservoir, lack, immediate))
    }

    fn read(bytes: &mut &[u8], quota: &'c Quota) -> Option<Self> {
        Some(match quota {
            Quota::FixedWindow(window) => {
                let ends_at = Timestamp::from_unix_micros(number(take(bytes, 8)?)?);
                Self::Fixed(window, fixed_window::State::new(ends_at, number(take(bytes, 8)?)?))
            }
            Quota::SlidingWindow(window) => {
                let length = u16::from_le_bytes(take(bytes, 2)?.try_into().ok()?);
                Self::Sliding(window, sub_windows(take(bytes, usize::from(length))?)?)
            }
            quota => Self::lacking(number(take(bytes, 8)?)?, quota)?,
        })
    }

    /// The outcome of a charge.
    fn charged(&self, cost: u64, now: Timestamp) -> Outcome {
        match self {
            Self::Bucket(reservoir, missing, immediate) => {
                let (left, verdict) = reservoir.take(*missing, cost);
                let pace = reservoir.pace();
                let queued = left.saturating_sub(immediate * pace.unit_credits().get());
                let verdict = match verdict {
                    Verdict::Allow if cost > 0 && queued > 0 => {
                        Verdict::Wait(Ticks::from_micros(pace.gain().div_ceil(queued)))
                    }
                    other => other,
                };
                reservoir.outcome(left, verdict)
            }
            Self::Fixed(window, state) => fixed_window::charge(window, *state, now, cost).1,
            Self::Sliding(window, state) => sliding_window::charge(window, state.clone(), now, cost).1,
        }
    }
}

fn take<'b>(bytes: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

/// The newest sub-window and the counts, in MessagePack. Empty for an unused key.
fn sub_windows(mut bytes: &[u8]) -> Option<sliding_window::State> {
    let mut numbers: SmallVec<[u64; 16]> = SmallVec::new();
    while !bytes.is_empty() {
        numbers.push(packed(&mut bytes)?);
    }
    Some(match numbers.split_first() {
        Some((&newest, counts)) => sliding_window::State::new(newest, counts),
        None => sliding_window::State::default(),
    })
}

/// A non-negative number in MessagePack.
fn packed(bytes: &mut &[u8]) -> Option<u64> {
    let width = match take(bytes, 1)?[0] {
        small @ 0..=0x7f => return Some(u64::from(small)),
        0xcc => 1,
        0xcd => 2,
        0xce => 4,
        0xcf => 8,
        _ => return None,
    };
    Some(take(bytes, width)?.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of every width are parsed; other types are rejected.
    #[test]
    fn numbers_of_every_width_are_parsed() {
        let bytes =
            [0x07, 0xcc, 0x80, 0xcd, 0x01, 0x00, 0xce, 0x00, 0x01, 0x00, 0x00, 0xcf, 0, 0, 0, 1, 0, 0, 0, 0];
        let state = sub_windows(&bytes).unwrap();
        assert_eq!((state.newest(), state.counts()), (7, &[128, 256, 65_536, 1 << 32][..]));
        for wrong in [&[0xcc][..], &[0xcf, 0, 0], &[0xe0], &[0xcb, 0, 0, 0, 0, 0, 0, 0, 0], &[0xc0]] {
            assert!(sub_windows(wrong).is_none(), "{wrong:?}");
        }
    }
}
