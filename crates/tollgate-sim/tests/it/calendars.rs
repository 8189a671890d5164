//! Calendar windows in real time zones: they cover all time, never overlap, and follow the wall clock.

use std::ops::Range;

use proptest::prelude::*;
use tollgate::algorithm::calendar::{Calendar, CalendarUnit};
use tollgate::{Ticks, Timestamp};

use crate::seeds::hold;

const SAVED: &str = "proptest-regressions/calendars.txt";
const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

/// Zones with offsets of whole, half and quarter hours, with clock changes around midnight, and with skipped days.
const ZONES: [&str; 18] = [
    "UTC",
    "Europe/Rome",
    "Europe/London",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "America/Havana",
    "America/Asuncion",
    "America/Nuuk",
    "Africa/Cairo",
    "Africa/Monrovia",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Asia/Gaza",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Antarctica/Troll",
];

/// A unit, with the shortest and longest window it may have, in seconds.
fn units() -> impl Strategy<Value = (CalendarUnit, u64, u64)> {
    prop::sample::select(vec![
        (CalendarUnit::Minute, 60, 119),
        (CalendarUnit::Hour, HOUR, 2 * HOUR - 1),
        (CalendarUnit::Day, DAY - 3 * HOUR, 2 * DAY),
        (CalendarUnit::Week, 6 * DAY, 8 * DAY),
        (CalendarUnit::Month, 27 * DAY, 32 * DAY),
        (CalendarUnit::Year, 364 * DAY, 367 * DAY),
    ])
}

/// Each window contains the instant it was looked up for, meets its neighbours, has the length of its unit, and is found
/// from every instant inside.
#[test]
fn windows_cover_all_time_and_never_overlap() {
    // From two years after the epoch, so that the epoch cuts no window, to the last representable year.
    let instants = 2 * 366 * DAY * 1_000_000..4_400_000_000_000_000u64;
    let cases = (units(), prop::sample::select(ZONES.to_vec()), instants);
    hold(SAVED, cases, |((unit, shortest, longest), zone, micros)| {
        let now = Timestamp::from_unix_micros(micros);
        let calendar = Calendar::new(unit, zone).unwrap();
        let (start, end) = calendar.window(now);
        prop_assert!(start <= now && now < end);
        let length = end.since(start);
        prop_assert!(
            (Ticks::from_secs(shortest)..=Ticks::from_secs(longest)).contains(&length),
            "{:?}",
            length
        );
        for inside in [start, end - Ticks::ONE] {
            prop_assert_eq!(calendar.window(inside), (start, end));
            prop_assert_eq!(Calendar::new(unit, zone).unwrap().window(inside), (start, end));
        }
        prop_assert_eq!(calendar.window(end).0, end);
        prop_assert_eq!(calendar.window(start - Ticks::ONE).1, start);
        Ok(())
    });
}

/// A billing month begins with the first instant of its billing day, or of the last day of a month that is too short.
/// There is one for each month. The oracle is the wall clock of the zone, which shows another date one second before.
#[test]
fn billing_months_begin_on_the_billing_day() {
    let instants = 2 * 366 * DAY..4_000_000_000u64;
    let cases = (1u8..=31, prop::sample::select(ZONES.to_vec()), instants);
    hold(SAVED, cases, |(day, zone, second)| {
        let now = Timestamp::from_unix_seconds(second);
        let calendar = Calendar::new(CalendarUnit::Month, zone).unwrap().billed_on(day).unwrap();
        let (start, end) = calendar.window(now);
        prop_assert!(start <= now && now < end);
        prop_assert_eq!(calendar.window(end).0, end);
        prop_assert_eq!(calendar.window(start - Ticks::ONE).1, start);
        let is_samoa = zone == "Pacific/Apia";
        let zone = jiff::tz::TimeZone::get(zone).unwrap();
        let date = |at: Timestamp| {
            let second = i64::try_from(at.unix_micros() / 1_000_000).unwrap();
            zone.to_datetime(jiff::Timestamp::from_second(second).unwrap()).date()
        };
        let months = |date: jiff::civil::Date| i32::from(date.year()) * 12 + i32::from(date.month());
        let [first, next] = [start, end].map(date);
        for begin in [first, next] {
            let due = i8::try_from(day).unwrap().min(begin.days_in_month());
            // Samoa skipped 30 December 2011, so the window of that day began on the 31st.
            let skipped = is_samoa && begin == jiff::civil::date(2011, 12, 31) && due == 30;
            prop_assert!(begin.day() == due || skipped, "{begin} for day {day}");
        }
        prop_assert_eq!(months(next), months(first) + 1);
        let before = date(Timestamp::from_unix_seconds(start.unix_micros() / 1_000_000 - 1));
        prop_assert!(before < first, "{before} before {first}");
        Ok(())
    });
}

/// Walks from window to window, so that the test meets every clock change of these years.
fn walk(unit: CalendarUnit, zone: &str, years: Range<u64>) {
    let calendar = Calendar::new(unit, zone).unwrap();
    let [begin, last] =
        [years.start, years.end].map(|year| Timestamp::from_unix_seconds((year - 1970) * 365 * DAY));
    let (_, mut now) = calendar.window(begin);
    while now < last {
        let (start, end) = calendar.window(now);
        assert_eq!(start, now, "{unit:?} in {zone}");
        assert_eq!(calendar.window(end - Ticks::ONE), (start, end), "{unit:?} in {zone}");
        now = end;
    }
}

/// The days, weeks, months and years of each zone since 1973, when all offsets were whole minutes, and the hours of some
/// years.
#[test]
fn windows_follow_each_other_without_gaps() {
    for zone in ZONES {
        walk(CalendarUnit::Day, zone, 1973..2040);
        walk(CalendarUnit::Week, zone, 1973..2040);
        walk(CalendarUnit::Month, zone, 1973..2040);
        walk(CalendarUnit::Year, zone, 1973..2040);
    }
    for zone in ["Europe/Rome", "Australia/Lord_Howe", "America/St_Johns"] {
        walk(CalendarUnit::Hour, zone, 2008..2012);
    }
}
