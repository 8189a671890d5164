//! Parses the script's replies.

use redis::Value;
use smallvec::SmallVec;
use tollgate::store::{Answers, Charge, ChargeAnswer};
use tollgate::{Outcome, Source, Ticks, Timestamp, Verdict};

use super::request::Lent;
use super::{Tag, found};

/// Bytes of the answer to one charge.
const ANSWER_BYTES: usize = 33;
/// Bytes of one loan.
const LENT_BYTES: usize = 16;

/// The script's reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly every reply is the large one, and it lives for a moment"
)]
pub(super) enum ScriptReply {
    /// The charges were admitted or denied.
    Answers(Answers),
    /// The charges were admitted or denied, and units were lent.
    Lent(Lent),
    /// The operation succeeded without a result.
    Done,
    /// The states of these charges, by index, have these tags, which are not their quota's.
    Unknown(Vec<(usize, Tag)>),
    /// The calendar windows sent do not contain this instant.
    Bounds(Timestamp),
    /// The state of this charge, by index, is malformed.
    Malformed(usize),
    /// The script rejected the request.
    Refused(String),
    /// The reply is malformed.
    Unreadable,
}

impl ScriptReply {
    /// Parses the reply to a request with these charges.
    pub(super) fn read(value: &Value, charges: &[Charge<'_>]) -> Self {
        let read = match value {
            Value::BulkString(bytes) => Self::parse(bytes, charges),
            _ => None,
        };
        read.unwrap_or(ScriptReply::Unreadable)
    }

    fn parse(bytes: &[u8], charges: &[Charge<'_>]) -> Option<Self> {
        let (&status, rest) = bytes.split_first()?;
        Some(match status {
            // Status 8: a refund was dropped. It need not be retried.
            0 | 8 if rest.is_empty() => ScriptReply::Done,
            0 if rest.len() == 8 + ANSWER_BYTES * charges.len() => {
                let (now, rest) = rest.split_at_checked(8)?;
                let now = Timestamp::from_unix_micros(number(now)?);
                let each = rest.chunks_exact(ANSWER_BYTES).zip(charges);
                ScriptReply::Answers(
                    each.map(|(bytes, charge)| answer(bytes, charge.quota().capacity(), now))
                        .collect::<Option<_>>()?,
                )
            }
            1 => {
                let tags =
                    rest.chunks_exact(4).map(|part| Some((usize::from(part[0]), Tag::parse(&part[1..])?)));
                ScriptReply::Unknown(tags.collect::<Option<_>>()?)
            }
            2 => ScriptReply::Bounds(Timestamp::from_unix_micros(number(rest)?)),
            3 => ScriptReply::Malformed(usize::from(*rest.first()?)),
            7 => ScriptReply::Lent(found::lent(rest, charges)?),
            6 => ScriptReply::Lent(lent(rest, charges)?),
            5 => ScriptReply::Answers(found::answers(rest, charges)?),
            4 => ScriptReply::Refused(String::from_utf8_lossy(rest).into_owned()),
            _ => return None,
        })
    }
}

/// The time, and for each charge its answer, the units lent and the fleet's demand.
fn lent(bytes: &[u8], charges: &[Charge<'_>]) -> Option<Lent> {
    let capacities = charges.iter().map(|charge| charge.quota().capacity());
    lent_of(bytes, capacities)
}

/// Parses loans of counters with these capacities.
pub(super) fn lent_of(bytes: &[u8], capacities: impl ExactSizeIterator<Item = u64>) -> Option<Lent> {
    let (now, rest) = bytes.split_at_checked(8)?;
    let now = Timestamp::from_unix_micros(number(now)?);
    if rest.len() != (ANSWER_BYTES + LENT_BYTES) * capacities.len() {
        return None;
    }
    let (mut answers, mut units, mut fleet_demands) = (Answers::new(), SmallVec::new(), SmallVec::new());
    for (bytes, capacity) in rest.chunks_exact(ANSWER_BYTES + LENT_BYTES).zip(capacities) {
        let (outcome_bytes, lent) = bytes.split_at_checked(ANSWER_BYTES)?;
        answers.push(answer(outcome_bytes, capacity, now)?);
        let (lent, fleet_demand) = lent.split_at_checked(8)?;
        units.push(number(lent)?);
        fleet_demands.push(Some(number(fleet_demand)?).filter(|&fleet_demand| fleet_demand > 0));
    }
    Some(Lent { answers, units, fleet_demands, now })
}

fn answer(bytes: &[u8], limit: u64, now: Timestamp) -> Option<ChargeAnswer> {
    let (&verdict, numbers) = bytes.split_first()?;
    let mut numbers = numbers.chunks_exact(8).map(number);
    let mut next = || numbers.next().flatten();
    let time = Ticks::from_micros(next()?);
    let verdict = match verdict {
        0 => Verdict::Allow,
        1 => Verdict::Wait(time),
        2 => Verdict::Deny { retry_after: time },
        3 => Verdict::Never,
        _ => return None,
    };
    let outcome = Outcome {
        verdict,
        limit,
        remaining: next()?,
        next_unit_after: Ticks::from_micros(next()?),
        reset_after: Ticks::from_micros(next()?),
    };
    Some(ChargeAnswer::new(outcome, Source::Exact).charged(now))
}

/// A whole number from a double; none if it has a fraction or is out of range.
pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    let number = f64::from_le_bytes(bytes.try_into().ok()?);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the comparison finds what was lost"
    )]
    let whole = number as u64;
    (whole as f64 == number).then_some(whole)
}
