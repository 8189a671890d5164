//! A quota as bytes and back. Only its numbers are written; the reader constructs the quota anew, so it is as valid as
//! any.

use super::fields::{FrameFields, Unread};
use crate::algorithm::calendar::{Calendar, CalendarUnit};
use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::{Align, FixedWindow};
use crate::algorithm::gcra::Gcra;
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::{Estimate, SlidingWindow};
use crate::algorithm::token_bucket::TokenBucket;
use crate::quota::Quota;
use crate::rate::{QuotaError, Rate};
use crate::time::Ticks;

const UNITS: [CalendarUnit; 6] = [
    CalendarUnit::Minute,
    CalendarUnit::Hour,
    CalendarUnit::Day,
    CalendarUnit::Week,
    CalendarUnit::Month,
    CalendarUnit::Year,
];

pub(super) fn write(fields: &mut FrameFields, quota: &Quota) {
    match quota {
        Quota::TokenBucket(bucket) => {
            fields.u8(0);
            write_rate(fields, bucket.rate());
        }
        Quota::Gcra(bucket) => {
            fields.u8(1);
            write_rate(fields, bucket.rate());
            fields.u64(bucket.burst());
        }
        Quota::FixedWindow(window) => {
            fields.u8(2);
            write_rate(fields, Rate::per_ticks(window.limit(), window.period()));
            write_align(fields, window.align());
        }
        Quota::SlidingWindow(window) => {
            fields.u8(3);
            write_rate(fields, Rate::per_ticks(window.limit(), window.period()));
            fields.u32(window.precision());
            fields.u8(u8::from(window.estimate() == Estimate::Strict));
        }
        Quota::SlidingLog(log) => {
            fields.u8(4);
            write_rate(fields, Rate::per_ticks(log.limit(), log.period()));
        }
        Quota::LeakyBucket(bucket) => {
            fields.u8(5);
            write_rate(fields, bucket.rate());
            fields.u64(bucket.queue());
        }
        Quota::Concurrency(permits) => {
            fields.u8(6);
            fields.u64(permits.limit());
            fields.u64(permits.ttl().as_micros());
        }
    }
}

pub(super) fn read(fields: &mut Unread<'_>) -> Result<Quota, String> {
    let made: Result<Quota, QuotaError> = match fields.u8()? {
        0 => TokenBucket::new(read_rate(fields)?).map(Quota::TokenBucket),
        1 => {
            let (rate, units) = (read_rate(fields)?, fields.u64()?);
            Gcra::with_capacity(rate, units).map(Quota::Gcra)
        }
        2 => {
            let (rate, align) = (read_rate(fields)?, read_align(fields)?);
            FixedWindow::new(rate, align).map(Quota::FixedWindow)
        }
        3 => {
            let (rate, precision) = (read_rate(fields)?, fields.u32()?);
            let estimate = if fields.u8()? == 1 { Estimate::Strict } else { Estimate::Interpolate };
            SlidingWindow::new(rate, precision, estimate).map(Quota::SlidingWindow)
        }
        4 => SlidingLog::new(read_rate(fields)?).map(Quota::SlidingLog),
        5 => {
            let (rate, queue) = (read_rate(fields)?, fields.u64()?);
            LeakyBucket::new(rate, queue).map(Quota::LeakyBucket)
        }
        6 => {
            let (permits, ttl) = (fields.u64()?, Ticks::from_micros(fields.u64()?));
            Concurrency::new(permits, ttl).map(Quota::Concurrency)
        }
        other => return Err(format!("there is no algorithm {other}")),
    };
    made.map_err(|error| format!("no quota: {error}"))
}

fn write_rate(fields: &mut FrameFields, rate: Rate) {
    fields.u64(rate.units());
    fields.u64(rate.period().as_micros());
    fields.option(rate.burst_units(), FrameFields::u64);
}

fn read_rate(fields: &mut Unread<'_>) -> Result<Rate, String> {
    let rate = Rate::per_ticks(fields.u64()?, Ticks::from_micros(fields.u64()?));
    Ok(match fields.option(Unread::u64)? {
        Some(units) => rate.burst(units),
        None => rate,
    })
}

fn write_align(fields: &mut FrameFields, align: &Align) {
    match align {
        Align::Epoch => fields.u8(0),
        Align::FirstHit => fields.u8(1),
        Align::Calendar(calendar) if calendar.billing_day() > 1 => {
            fields.u8(3);
            fields.u8(calendar.billing_day());
            fields.text(calendar.zone());
        }
        Align::Calendar(calendar) => {
            fields.u8(2);
            let unit = UNITS.iter().position(|unit| *unit == calendar.unit());
            fields.u8(u8::try_from(unit.unwrap_or_default()).unwrap_or_default());
            fields.text(calendar.zone());
        }
    }
}

fn read_align(fields: &mut Unread<'_>) -> Result<Align, String> {
    match fields.u8()? {
        0 => Ok(Align::Epoch),
        1 => Ok(Align::FirstHit),
        2 => {
            let unit = UNITS.get(usize::from(fields.u8()?)).ok_or("there is no such calendar unit")?;
            let calendar = Calendar::new(*unit, fields.text()?).map_err(|error| error.to_string())?;
            Ok(Align::Calendar(calendar))
        }
        3 => {
            let (day, zone) = (fields.u8()?, fields.text()?);
            let months = Calendar::new(CalendarUnit::Month, zone).and_then(|months| months.billed_on(day));
            Ok(Align::Calendar(months.map_err(|error| error.to_string())?))
        }
        other => Err(format!("there is no alignment {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every quota is read as it was written, and none of the written bytes can be left out.
    #[test]
    fn quotas_are_read_as_they_were_written() {
        let rates = [
            Rate::per_second(100),
            Rate::per_second(9_999_991).burst(77),
            Rate::per_month(1),
            Rate::per_ticks(7, Ticks::from_micros(11)).burst(3),
        ];
        let calendars = UNITS.map(|unit| Align::Calendar(Calendar::new(unit, "Europe/Rome").unwrap()));
        let mut quotas: Vec<Quota> = Vec::new();
        for rate in rates {
            quotas.extend(Quota::token_bucket(rate));
            quotas.extend(Quota::gcra(rate));
            quotas.extend(Gcra::with_capacity(rate, 5).map(Quota::Gcra));
            for align in [Align::Epoch, Align::FirstHit].into_iter().chain(calendars.clone()) {
                quotas.extend(Quota::fixed_window(rate, align));
            }
            for (precision, estimate) in [(1, Estimate::Interpolate), (10, Estimate::Strict)] {
                quotas.extend(Quota::sliding_window(rate, precision, estimate));
            }
            quotas.extend(Quota::sliding_log(rate));
            quotas.extend([0, 9].into_iter().flat_map(|queue| Quota::leaky_bucket(rate, queue)));
        }
        quotas.extend(Concurrency::new(20, Ticks::from_micros(30_000_001)).map(Quota::Concurrency));
        assert!(quotas.len() > 40, "{}", quotas.len());
        for quota in quotas {
            let mut fields = FrameFields::default();
            write(&mut fields, &quota);
            assert_eq!(Unread::whole(fields.bytes(), read).as_ref(), Ok(&quota));
            for length in 0..fields.bytes().len() {
                assert!(Unread::whole(&fields.bytes()[..length], read).is_err(), "{quota:?} cut at {length}");
            }
        }
    }

    /// Numbers that no constructor accepts are rejected with its reason.
    #[test]
    fn invalid_quotas_are_refused() {
        let refused = |tag: u8, numbers: &[u64]| {
            let mut fields = FrameFields::default();
            fields.u8(tag);
            numbers.iter().for_each(|&number| fields.u64(number));
            fields.u8(0);
            Unread::whole(fields.bytes(), read).unwrap_err()
        };
        assert!(refused(0, &[0, 1_000_000]).contains("a rate of 0"));
        assert!(refused(0, &[u64::MAX, 1]).contains("faster than"));
        assert!(refused(4, &[1_000_000, 1 << 40]).contains("1 to 65536"));
        assert!(refused(9, &[]).contains("no algorithm 9"));
    }
}
