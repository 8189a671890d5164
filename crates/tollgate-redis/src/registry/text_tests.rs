//! Quotas and tags as text.

use std::time::Duration;

use tollgate::algorithm::calendar::{Calendar, CalendarUnit};
use tollgate::algorithm::fixed_window::{Align, FixedWindow};
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::{Quota, Rate, Ticks};

use super::claim::TagEntry;
use super::text;

/// Every quota survives being written and parsed.
#[test]
fn quotas_survive_as_text() {
    let calendar = |unit, zone| Align::Calendar(Calendar::new(unit, zone).unwrap());
    let window = |align| Quota::fixed_window(Rate::per_day(7), align).unwrap();
    let quotas = [
        Quota::token_bucket(Rate::per_second(9_999_991).burst(3)).unwrap(),
        Quota::token_bucket(Rate::per_minute(7)).unwrap(),
        Quota::gcra(Rate::per_hour(10).burst(4)).unwrap(),
        Quota::leaky_bucket(Rate::per_second(5).burst(2), 9).unwrap(),
        window(Align::Epoch),
        window(Align::FirstHit),
        window(calendar(CalendarUnit::Month, "Europe/Rome")),
        window(calendar(CalendarUnit::Minute, "UTC")),
        window(Align::Calendar(Calendar::new(CalendarUnit::Month, "UTC").unwrap().billed_on(15).unwrap())),
        Quota::FixedWindow(FixedWindow::counting(Ticks::from_secs(60), Align::Epoch).unwrap()),
        Quota::sliding_window(Rate::per_minute(60), 10, Estimate::Strict).unwrap(),
        Quota::sliding_window(Rate::per_minute(60), 1, Estimate::Interpolate).unwrap(),
        Quota::sliding_log(Rate::per_minute(60)).unwrap(),
        Quota::concurrency(60, Duration::from_secs(3)).unwrap(),
    ];
    for quota in quotas {
        let text = text::write(&quota);
        assert_eq!(text::parse(&text), Some(quota), "{text}");
        let entry = TagEntry { generation: 2, quota: text };
        assert_eq!(TagEntry::parse(entry.text().as_bytes()), Some(entry));
    }
    for wrong in [
        "",
        "gcra",
        "gcra 1 0 -",
        "gcra 1 1 - 9",
        "token-bucket -1 1 -",
        "magic 1 2",
        "fixed-window 1 1 eon UTC",
    ] {
        assert_eq!(text::parse(wrong), None, "{wrong}");
    }
}
