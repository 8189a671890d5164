//! Decisions a second by verdict, and the outcomes of single limits, over the last 15 minutes and 24 hours. One task
//! adds a measurement each second, from counters that exist anyway: decisions pay nothing, and the memory is fixed.

use std::collections::VecDeque;

use tollgate::{Ticks, Timestamp};

use super::Meter;
use super::names::{OUTCOMES, SOURCES, VERDICTS};
use super::scrape::verdict_cells;
use super::shared::StoreMetrics;

/// Number of seconds, and of minutes, that are kept.
pub(crate) const SECONDS: usize = 900;
pub(crate) const MINUTES: usize = 1_440;
/// Maximum number of limits with a history of their own: the first that had decisions. About 56 KiB each.
pub(crate) const LIMITS_MAX: usize = 32;
const SECONDS_IN_MINUTE: usize = 60;

/// The counters of one limit.
pub(crate) struct LimitTotals {
    pub(crate) name: Box<str>,
    /// In the order of [`OUTCOMES`].
    pub(crate) outcomes: [u64; OUTCOMES.len()],
    /// In the order of [`SOURCES`].
    pub(crate) sources: [u64; SOURCES.len()],
}

impl Meter {
    /// All decisions by verdict, in the order of [`VERDICTS`].
    pub(crate) fn verdict_counts(&self) -> [u64; VERDICTS.len()] {
        let mut counts = [0; VERDICTS.len()];
        for (index, _, _) in verdict_cells() {
            if let Some(count) = counts.get_mut(index % VERDICTS.len()) {
                *count += self.verdicts.sum(index);
            }
        }
        counts
    }

    /// The counters of every limit that has its own.
    pub(crate) fn limit_counts(&self) -> Vec<LimitTotals> {
        let counted = |series: std::sync::Arc<super::ledger::Series>| {
            let (outcomes, sources) = series.totals();
            LimitTotals { name: series.name.clone(), outcomes, sources }
        };
        self.ledger.limits().into_iter().map(counted).collect()
    }

    /// The numbers of the shared store, if there is one.
    pub(crate) fn store_metrics(&self) -> Option<StoreMetrics> {
        self.shared.get().map(|numbers| numbers())
    }

    /// The value of each sample of registered probes, by the name of its metric.
    pub(crate) fn probed(&self, now: Timestamp) -> Vec<(&'static str, u64)> {
        let probes = self.probes();
        probes.iter().flat_map(|probe| probe(now)).map(|sample| (sample.metric.name, sample.value)).collect()
    }
}

/// Several counters over time.
pub(crate) struct Track<const N: usize> {
    last: [u64; N],
    seconds: VecDeque<[u32; N]>,
    minutes: VecDeque<[u32; N]>,
    /// The minute in progress, and how many seconds of it are over.
    minute: [u32; N],
    minute_seconds: usize,
}

impl<const N: usize> Track<N> {
    /// Starts with these values of the counters: what was counted before is no part of the history.
    fn new(counts: [u64; N]) -> Self {
        Self {
            last: counts,
            seconds: VecDeque::with_capacity(SECONDS),
            minutes: VecDeque::with_capacity(MINUTES),
            minute: [0; N],
            minute_seconds: 0,
        }
    }

    /// Adds the counts since the last measurement as one second.
    fn add(&mut self, counts: [u64; N]) {
        let mut second = [0; N];
        for ((second, count), last) in second.iter_mut().zip(counts).zip(self.last) {
            *second = u32::try_from(count.saturating_sub(last)).unwrap_or(u32::MAX);
        }
        self.last = counts;
        pushed(&mut self.seconds, second, SECONDS);
        self.minute.iter_mut().zip(second).for_each(|(sum, count)| *sum = sum.saturating_add(count));
        self.minute_seconds += 1;
        if self.minute_seconds >= SECONDS_IN_MINUTE {
            pushed(&mut self.minutes, self.minute, MINUTES);
            (self.minute, self.minute_seconds) = ([0; N], 0);
        }
    }

    /// The sum of the latest `seconds`.
    pub(crate) fn recent(&self, seconds: usize) -> [u64; N] {
        let mut sum = [0; N];
        for second in self.seconds.iter().rev().take(seconds) {
            sum.iter_mut().zip(second).for_each(|(sum, count)| *sum += u64::from(*count));
        }
        sum
    }

    /// How many of the latest `seconds` were measured.
    pub(crate) fn measured(&self, seconds: usize) -> usize {
        self.seconds.len().min(seconds)
    }

    /// One counter by second, oldest first.
    pub(crate) fn seconds(&self, index: usize) -> Vec<u32> {
        self.seconds.iter().filter_map(|counts| counts.get(index).copied()).collect()
    }

    /// One counter by minute, oldest first.
    pub(crate) fn minutes(&self, index: usize) -> Vec<u32> {
        self.minutes.iter().filter_map(|counts| counts.get(index).copied()).collect()
    }
}

fn pushed<T>(kept: &mut VecDeque<T>, latest: T, most: usize) {
    if kept.len() >= most {
        kept.pop_front();
    }
    kept.push_back(latest);
}

/// The history of all decisions, and of single limits.
pub(crate) struct History {
    pub(crate) all: Track<{ VERDICTS.len() }>,
    limits: Vec<(Box<str>, Track<{ OUTCOMES.len() }>)>,
    /// When the last measurement was made.
    at: Timestamp,
}

impl History {
    /// Begins with the current values of the counters.
    pub(crate) fn new(meter: &Meter, now: Timestamp) -> Self {
        Self { all: Track::new(meter.verdict_counts()), limits: Vec::new(), at: now }
    }

    /// Adds a measurement. Seconds in which none was made, such as while the machine slept, count nothing.
    pub(crate) fn measure(
        &mut self,
        verdicts: [u64; VERDICTS.len()],
        limits: &[LimitTotals],
        now: Timestamp,
    ) {
        let passed = usize::try_from(now.since(self.at).as_micros() / Ticks::from_secs(1).as_micros());
        let missed = passed.unwrap_or(SECONDS).saturating_sub(2).min(MINUTES * SECONDS_IN_MINUTE);
        for _ in 0..missed {
            self.all.add(self.all.last);
            self.limits.iter_mut().for_each(|(_, track)| track.add(track.last));
        }
        self.at = now;
        self.all.add(verdicts);
        for counts in limits {
            let has_room = self.limits.len() < LIMITS_MAX;
            match self.limits.iter_mut().find(|(name, _)| *name == counts.name) {
                Some((_, track)) => track.add(counts.outcomes),
                None if has_room && counts.outcomes.iter().any(|count| *count > 0) => {
                    // Its first decisions came after the last measurement.
                    let mut track = Track::new([0; OUTCOMES.len()]);
                    track.add(counts.outcomes);
                    self.limits.push((counts.name.clone(), track));
                }
                None => {}
            }
        }
    }

    /// The limits that have a history, also those that no policy has any more.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &str> {
        self.limits.iter().map(|(name, _)| &**name)
    }

    /// The history of a limit, if it has one.
    pub(crate) fn limit(&self, name: &str) -> Option<&Track<{ OUTCOMES.len() }>> {
        self.limits.iter().find(|(known, _)| **known == *name).map(|(_, track)| track)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(name: &str, allowed: u64) -> LimitTotals {
        let mut outcomes = [0; OUTCOMES.len()];
        outcomes[0] = allowed;
        LimitTotals { name: name.into(), outcomes, sources: [0; SOURCES.len()] }
    }

    fn verdicts(allowed: u64) -> [u64; VERDICTS.len()] {
        let mut counts = [0; VERDICTS.len()];
        counts[0] = allowed;
        counts
    }

    /// A day of measurements keeps 15 minutes by second and 24 hours by minute, and no more limits than the bound.
    #[test]
    fn the_memory_is_fixed() {
        let start = Timestamp::from_unix_seconds(1_700_000_000);
        let mut history = History::new(&Meter::new(), start);
        let names: Vec<String> = (0..LIMITS_MAX + 9).map(|number| format!("limit-{number}")).collect();
        for second in 1..=90_000_u64 {
            let limits: Vec<LimitTotals> = names.iter().map(|name| counts(name, second)).collect();
            let limits = if second.is_multiple_of(30) { &limits[..] } else { &limits[..1] };
            history.measure(verdicts(7 * second), limits, start + Ticks::from_secs(second));
        }
        assert_eq!(history.all.seconds(0), vec![7; SECONDS]);
        assert_eq!(history.all.minutes(0), vec![420; MINUTES]);
        assert_eq!((history.all.recent(10)[0], history.all.measured(10)), (70, 10));
        assert_eq!(history.limits.len(), LIMITS_MAX);
        assert!(history.limit("limit-0").is_some() && history.limit("limit-40").is_none());
    }

    /// A machine that slept has a gap of zeros, so that older measurements keep their age.
    #[test]
    fn a_gap_counts_nothing() {
        let start = Timestamp::from_unix_seconds(1_700_000_000);
        let mut history = History::new(&Meter::new(), start);
        history.measure(verdicts(5), &[], start + Ticks::from_secs(1));
        history.measure(verdicts(9), &[], start + Ticks::from_secs(31));
        let seconds = history.all.seconds(0);
        assert_eq!((seconds.len(), seconds[0], seconds[seconds.len() - 1]), (30, 5, 4));
        assert_eq!(seconds.iter().sum::<u32>(), 9);
    }
}
