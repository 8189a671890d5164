//! Puts records in the order in which their requests arrived. A log is in the order in which requests ended, so records
//! wait here, second by second, until no earlier one can follow. Stamps of whole seconds hide when in the second a
//! request came: each record gets two instants, one for each extreme.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use tollgate::time::TICKS_PER_SECOND;
use tollgate::{Ticks, Timestamp};

use super::key_map::KeyMap;
use super::stored::StoredRecord;
use crate::log::{ArrivalWindow, Precision, Record};

/// Maximum number of records that wait. Each takes about half a kilobyte.
const WAITING_MAX: usize = 1 << 18;

/// A record with the instants at which its request is decided.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) record: StoredRecord,
    /// The client, as a number.
    pub(super) client: u64,
    /// Where stamps are whole seconds: spread evenly over the second, client by client. Otherwise the stamp.
    pub(super) evenly: Timestamp,
    /// Where stamps are whole seconds: the start of the second, with all others. Otherwise the stamp.
    pub(super) together: Timestamp,
}

/// Records that wait for earlier ones.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    seconds: BTreeMap<u64, Vec<(u64, StoredRecord)>>,
    waiting: usize,
    window: ArrivalWindow,
    /// The second from which on nothing was released yet.
    open: u64,
    late: u64,
    pool: Vec<StoredRecord>,
    lists: Vec<Vec<(u64, StoredRecord)>>,
    /// How many requests a client has in the second, and how many of them have their instant.
    shares: KeyMap<(u64, u64)>,
}

impl Arrivals {
    /// Adds a record of the client.
    pub(super) fn push(&mut self, record: &Record<'_>, client: u64) {
        let mut stored = self.pool.pop().unwrap_or_default();
        stored.store(record);
        let second = record.arrival.unix_micros() / TICKS_PER_SECOND;
        self.window.add(record.arrival, record.duration.unwrap_or_default());
        self.late += u64::from(second < self.open);
        let lists = &mut self.lists;
        let list = self.seconds.entry(second.max(self.open));
        list.or_insert_with(|| lists.pop().unwrap_or_default()).push((client, stored));
        self.waiting += 1;
    }

    /// The requests of the next second that is complete, in order of time, into an empty list. Returns whether there is
    /// one.
    pub(super) fn ready(&mut self, into: &mut Vec<Arrival>) -> bool {
        let Some((&second, _)) = self.seconds.first_key_value() else { return false };
        let end = Timestamp::from_unix_seconds(second.saturating_add(1));
        let is_next = self.window.is_complete(end) || self.waiting > WAITING_MAX;
        is_next && self.release(into)
    }

    /// The requests of the next second, complete or not.
    pub(super) fn release(&mut self, into: &mut Vec<Arrival>) -> bool {
        let Some((second, mut list)) = self.seconds.pop_first() else { return false };
        self.waiting -= list.len();
        self.open = second + 1;
        self.shares.clear();
        for (client, record) in &list {
            if record.precision() == Precision::Second {
                self.shares.entry(*client).or_default().0 += 1;
            }
        }
        let start = Timestamp::from_unix_seconds(second);
        for (client, record) in list.drain(..) {
            let (evenly, together) = match (record.precision(), self.shares.get_mut(&client)) {
                (Precision::Second, Some((of, number))) => {
                    let into_second = (2 * *number + 1) * TICKS_PER_SECOND / (2 * *of);
                    *number += 1;
                    (start + Ticks::from_micros(into_second), start)
                }
                _ => (record.arrival().max(start), record.arrival().max(start)),
            };
            into.push(Arrival { record, client, evenly, together });
        }
        self.lists.push(list);
        // Stable: requests of one instant stay in the order of the log.
        into.sort_by_key(|arrival| arrival.evenly);
        true
    }

    /// Takes a record back, so that its buffers are used again.
    pub(super) fn recycle(&mut self, record: StoredRecord) {
        self.pool.push(record);
    }

    /// Records that came later than the window allows. They are decided at the earliest instant that is left.
    pub(super) const fn late(&self) -> u64 {
        self.late
    }

    /// How long records wait for earlier ones.
    pub(super) fn window(&self) -> Ticks {
        self.window.length()
    }
}

/// The client's address according to a proxy.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The client of a record, as a number: its address and user, and those of the named attributes that the log has.
pub(super) fn client_of(record: &Record<'_>, names: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    record.client.hash(&mut hasher);
    record.user.hash(&mut hasher);
    let forwarded = record.headers.iter().filter(|(name, _)| name == FORWARDED_FOR);
    forwarded.for_each(|(_, client)| client.hash(&mut hasher));
    for (name, value) in &record.attributes {
        if names.iter().any(|known| known == name) {
            value.hash(&mut hasher);
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::fixture::record;

    fn instants(arrivals: &mut Arrivals) -> Vec<(u64, u64)> {
        let (mut all, mut some) = (Vec::new(), Vec::new());
        while arrivals.release(&mut some) {
            for arrival in some.drain(..) {
                all.push((arrival.evenly.unix_micros(), arrival.together.unix_micros()));
                arrivals.recycle(arrival.record);
            }
        }
        all
    }

    /// Records come out in order of arrival, although a log is in the order in which requests end.
    #[test]
    fn a_long_request_comes_before_the_short_ones_that_it_outlived() {
        let mut arrivals = Arrivals::default();
        for second in [10u64, 11, 12] {
            arrivals.push(&record(second * TICKS_PER_SECOND), 1);
        }
        let long = Record { duration: Some(Ticks::from_secs(5)), ..record(9 * TICKS_PER_SECOND) };
        arrivals.push(&long, 1);
        let evenly: Vec<u64> = instants(&mut arrivals).iter().map(|(at, _)| at / TICKS_PER_SECOND).collect();
        assert_eq!((evenly, arrivals.late()), (vec![9, 10, 11, 12], 0));
    }

    /// A record that is later than the window is kept, and counted.
    #[test]
    fn time_that_goes_backwards_loses_nothing() {
        let (mut arrivals, mut ready) = (Arrivals::default(), Vec::new());
        for second in [100u64, 110, 111, 50] {
            arrivals.push(&record(second * TICKS_PER_SECOND), 1);
            while arrivals.ready(&mut ready) {}
        }
        assert_eq!((ready.len(), arrivals.late()), (2, 1));
        assert_eq!(instants(&mut arrivals).len(), 2);
    }

    /// The story: after one stamp in the future no record waited, so all that followed were decided in the order of the
    /// log. It is decided last, and the others in the order of their arrival.
    #[test]
    fn one_stamp_in_the_future_changes_nothing_else() {
        let (mut arrivals, mut ready) = (Arrivals::default(), Vec::new());
        for second in [100u64, 9_999_999, 102, 101, 104, 103, 106, 105, 108, 107] {
            arrivals.push(&record(second * TICKS_PER_SECOND), 1);
            while arrivals.ready(&mut ready) {}
        }
        let mut all: Vec<u64> = ready.iter().map(|arrival| arrival.evenly.unix_micros()).collect();
        assert!(!all.is_empty(), "records leave before the end of the log");
        all.extend(instants(&mut arrivals).iter().map(|(at, _)| *at));
        let seconds: Vec<u64> = all.iter().map(|at| at / TICKS_PER_SECOND).collect();
        assert_eq!(
            (seconds, arrivals.late()),
            (vec![100, 101, 102, 103, 104, 105, 106, 107, 108, 9_999_999], 0)
        );
    }

    /// Each client's requests of one second are spread evenly over it, or all at its start.
    #[test]
    fn a_second_is_spread_client_by_client() {
        let mut arrivals = Arrivals::default();
        for client in [1, 1, 2, 1, 1] {
            let stamp = record(7 * TICKS_PER_SECOND);
            arrivals.push(&Record { precision: Precision::Second, ..stamp }, client);
        }
        let start = 7 * TICKS_PER_SECOND;
        let evenly = [125_000, 375_000, 500_000, 625_000, 875_000].map(|into| (start + into, start));
        assert_eq!(instants(&mut arrivals), evenly);
    }
}
