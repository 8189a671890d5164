//! How long a request waits for earlier ones. Servers write a line when the answer ends, so a slow request comes after
//! quick ones that arrived later. One line with a wrong clock, and one very long request, change nothing.

use tollgate::{Ticks, Timestamp};

/// How much longer than the durations a request waits: several processes write one log, not quite in order.
const MORE: Ticks = Ticks::from_secs(2);
/// The durations that are counted apart, in seconds. Requests wait for the longest at most.
const BOUNDS: [u64; 13] = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 3_600];
/// One request in so many may take longer than the window is made for.
const LONGER_PART: u64 = 1_000;
/// Requests that are further apart may be so because one has a wrong clock.
const NEAR: Ticks = Ticks::from_secs(3_600);
/// After how many requests the window may become shorter.
const REVIEW_EVERY: u64 = 4_096;
/// One request in so many may be late. A log with more is not in the order of time, so no count of it would be right.
const LATE_PART: u64 = 100;

/// Decides when no earlier request can follow in the log any more. Requests are in the log in the order of their ends.
#[derive(Clone, Debug, Default)]
pub struct ArrivalWindow {
    /// How many requests took up to each of the bounds.
    durations: [u64; BOUNDS.len()],
    requests: u64,
    longest: Ticks,
    /// The index of the bound that the window is made for.
    bound: usize,
    /// The end of the request before.
    previous: Option<Timestamp>,
    /// The earliest and the latest end. Each is that of two requests in a row, so that one wrong clock does not count.
    ends: Option<(Timestamp, Timestamp)>,
    /// The earliest and the latest end, where of requests that are near each other both count.
    span: Option<(Timestamp, Timestamp)>,
}

impl ArrivalWindow {
    /// Adds the next request of the log.
    pub fn add(&mut self, arrival: Timestamp, duration: Ticks) {
        self.requests += 1;
        self.longest = self.longest.max(duration);
        let seconds = duration.ceil_seconds();
        let bound = BOUNDS.iter().position(|bound| *bound >= seconds).unwrap_or(BOUNDS.len() - 1);
        if let Some(count) = self.durations.get_mut(bound) {
            *count += 1;
        }
        if bound > self.bound || self.requests.is_multiple_of(REVIEW_EVERY) {
            self.bound = self.suitable_bound();
        }
        let end = arrival + duration;
        if let Some(previous) = self.previous.replace(end) {
            let (lower, upper) = (end.min(previous), end.max(previous));
            let (first, last) = self.ends.unwrap_or((upper, lower));
            self.ends = Some((first.min(upper), last.max(lower)));
            let (start, end) = if upper.since(lower) <= NEAR { (lower, upper) } else { (upper, lower) };
            let (first, last) = self.span.unwrap_or((start, end));
            self.span = Some((first.min(start), last.max(end)));
        }
    }

    /// The smallest bound that few enough requests exceed.
    fn suitable_bound(&self) -> usize {
        let mut longer = 0;
        let exceeded = self.durations.iter().rposition(|count| {
            longer += count;
            longer * LONGER_PART > self.requests
        });
        exceeded.unwrap_or_default()
    }

    /// Whether every request that came before this instant is in the log already.
    #[must_use]
    pub fn is_complete(&self, until: Timestamp) -> bool {
        self.ends.is_some_and(|(_, last)| until + self.length() < last)
    }

    /// How long requests wait now.
    #[must_use]
    pub fn length(&self) -> Ticks {
        let bound = BOUNDS.get(self.bound).copied().unwrap_or_default();
        Ticks::from_secs(bound).min(self.longest) + MORE
    }

    /// How much time the log covers, without single requests that are far from the one before.
    #[must_use]
    pub fn covered(&self) -> Ticks {
        self.span.map_or(Ticks::ZERO, |(first, last)| last.since(first))
    }

    /// Whether so many late requests mean that the log is not in the order of time.
    #[must_use]
    pub const fn is_unordered(late: u64, requests: u64) -> bool {
        late.saturating_mul(LATE_PART) > requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    /// A window of requests, each with its arrival and its duration in seconds.
    fn window(requests: impl IntoIterator<Item = (u64, u64)>) -> ArrivalWindow {
        let mut window = ArrivalWindow::default();
        for (arrival, duration) in requests {
            window.add(at(arrival), Ticks::from_secs(duration));
        }
        window
    }

    /// Requests wait as long as requests take, and two seconds more.
    #[test]
    fn requests_wait_as_long_as_requests_take() {
        for (durations, expected) in
            [(vec![], 2), (vec![0, 0], 2), (vec![0, 5, 1], 7), (vec![0, 90_000], 3_602)]
        {
            let window = window(durations.iter().map(|duration| (1_000_000, *duration)));
            assert_eq!(window.length(), Ticks::from_secs(expected), "{durations:?}");
        }
    }

    /// The story: one request of two hours made all later ones wait for an hour, a million of them in memory.
    #[test]
    fn one_very_long_request_does_not_make_the_others_wait() {
        let quick = |from: u64| (from..from + 10_000).map(|second| (second, 1));
        let before = window(quick(1_000_000).chain([(1_002_800, 7_200)]).chain(quick(1_010_000)));
        assert_eq!(before.length(), Ticks::from_secs(3));
        let first = window([(1_000_000, 7_200)].into_iter().chain(quick(1_007_200)));
        assert_eq!(first.length(), Ticks::from_secs(3));
        let many = window(quick(1_000_000).chain((0..30).map(|second| (1_010_000 + second, 7_200))));
        assert_eq!(many.length(), Ticks::from_secs(3_602));
    }

    /// The story: after one stamp of next year, every request was decided at once, in the order of the log.
    #[test]
    fn one_wrong_clock_does_not_move_the_window() {
        let day = 86_400;
        for wrong in [1, 400 * day] {
            let seconds = [100 * day, 100 * day, wrong, 100 * day + 1, 100 * day + 9, 100 * day + 10];
            let window = window(seconds.map(|second| (second, 0)));
            assert!(window.is_complete(at(100 * day + 6)), "{wrong}");
            assert!(!window.is_complete(at(100 * day + 7)), "{wrong}");
            assert_eq!(window.covered(), Ticks::from_secs(10), "{wrong}");
        }
    }

    /// The story: of a log of 92 seconds whose first request was alone for 15, a message said that it covers 77.
    #[test]
    fn a_log_covers_the_time_from_its_first_request_to_its_last() {
        let window = window([15, 30, 31, 107].map(|second| (1_000_000 + second, 0)));
        assert_eq!(window.covered(), Ticks::from_secs(92));
    }
}
