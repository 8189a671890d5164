//! The result of a run under a fault: the worst key against what the fault allows, denials, latency, and the recovery
//! time.

use std::collections::BTreeMap;

use super::report::Measure;
use crate::checker::{Allowance, Bucket};
use crate::fleet::{QUIET_BIT, Terms};
use crate::record::{Mode, RecordedDecision};

/// After a fault, decisions are grouped by this many microseconds.
const PIECE: u64 = 100_000;
/// After a stall of the machine a node loses its store at most this often, in microseconds: recovery takes as long.
const RELAPSES: u64 = 1_000_000;
/// A group has recovered if this percentage of its decisions came from the store.
const WELL_PERCENT: usize = 95;

/// The faults of the store, by the clock of the record.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultSpans {
    /// Evidence that the fault spans: counts by name. Each must be above zero.
    pub(crate) evidence: Vec<(String, u64)>,
    /// Spans in which state may have been lost or a clock stepped: each allows the burst once.
    pub(crate) losses: Vec<(u64, u64)>,
    /// When nodes may have switched to their own buckets, until all are back: each allows the burst once.
    pub(crate) outages: Vec<u64>,
    /// The span in which one node alone was cut off. It adds its share to what the others get from the store.
    pub(crate) alone: Option<(u64, u64)>,
    /// When a clock stepped back, or may have: units may have vanished then.
    pub(crate) steps: Vec<u64>,
    /// When the store was healthy again.
    pub(crate) healthy: u64,
    /// Other measurements.
    pub(crate) measures: Vec<Measure>,
}

impl FaultSpans {
    /// A stall of the machine takes the store away as a fault does: from the first decision without it, and again
    /// whenever a node that had recovered may have lost it once more. Spans of the fault itself are not added again.
    pub(super) fn stood_still(&mut self, excused: &[RecordedDecision]) {
        let away = self.outages.iter().min().map(|&began| began..self.healthy + RELAPSES);
        let is_news = |seen: &&RecordedDecision| !away.as_ref().is_some_and(|away| away.contains(&seen.sent));
        let without = || excused.iter().filter(|seen| seen.mode != Mode::Exact).filter(is_news);
        let span = without().map(|seen| seen.sent).min().zip(without().map(|seen| seen.sent).max());
        if let Some((first, last)) = span {
            self.outages.extend((first..=last).step_by(usize::try_from(RELAPSES).unwrap()));
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assessment {
    pub(crate) decisions: usize,
    pub(crate) nodes: u64,
    pub(crate) modes: BTreeMap<Mode, usize>,
    /// Maximum number of units that a key was admitted above burst and refill, without allowances. Negative if none
    /// was.
    pub(crate) over: i64,
    /// The same above the allowances; above zero the promise is broken. By the store alone, and by all sources that
    /// count.
    pub(crate) broken_exact: i64,
    pub(crate) broken_counted: i64,
    /// Unexplained denials of the store, with the vanished units that would explain them; and any denial of a quiet
    /// key.
    pub(crate) unexplained: usize,
    /// Of the worst hot key, and of the worst quiet one.
    pub(crate) vanished: [u64; 2],
    pub(crate) quiet_denied: usize,
    /// Decisions later than twice their deadline while the machine was not stalled.
    pub(crate) late: usize,
    /// Microseconds.
    pub(crate) slowest: u64,
    pub(crate) p9999: u64,
    /// Milliseconds from recovery until the store gave the first answer, nearly all answers, and all.
    pub(crate) first: Option<u64>,
    pub(crate) nearly: Option<u64>,
    pub(crate) all: Option<u64>,
    /// Decisions without the store, apart from those during stalls of the machine; and the number of those.
    pub(crate) without: usize,
    pub(crate) excused: usize,
}

/// Checks a record. `sober` is the record without decisions that were late or missed the store because the machine was
/// busy.
pub(crate) fn assess(
    seen: &[RecordedDecision],
    sober: &[RecordedDecision],
    spans: &FaultSpans,
    terms: &Terms,
) -> Assessment {
    let mut assessment = Assessment { decisions: seen.len(), over: i64::MIN, ..Assessment::default() };
    assessment.broken_exact = i64::MIN;
    assessment.broken_counted = i64::MIN;
    let mut keys: BTreeMap<u32, Vec<RecordedDecision>> = BTreeMap::new();
    for one in seen {
        *assessment.modes.entry(one.mode).or_default() += 1;
        keys.entry(one.key).or_default().push(*one);
    }
    let nodes = seen.iter().map(|seen| u64::from(seen.node) + 1).max().unwrap_or(1);
    assessment.nodes = nodes;
    for (key, seen) in &keys {
        let is_quiet = *key & QUIET_BIT != 0;
        let (bucket, ahead) = if is_quiet { (terms.quiet, 0) } else { (terms.hot, terms.ahead) };
        let leased = Bucket { burst: bucket.burst + ahead * nodes, ..bucket };
        assessment.add_key([bucket, leased], is_quiet, seen, spans, nodes);
    }
    assessment.late = sober.iter().filter(|seen| seen.late).count();
    let mut took: Vec<u64> = seen.iter().map(RecordedDecision::took).collect();
    took.sort_unstable();
    assessment.slowest = took.last().copied().unwrap_or_default();
    assessment.p9999 = took.get(took.len() * 9_999 / 10_000).copied().unwrap_or_default();
    let answered = sober.iter().filter(|seen| seen.sent >= spans.healthy && seen.mode == Mode::Exact);
    assessment.first = answered.map(|seen| (seen.replied - spans.healthy) / 1_000).min();
    (assessment.nearly, assessment.all) = recovery(sober, spans.healthy);
    assessment.without = sober.iter().filter(|seen| seen.mode != Mode::Exact).count();
    assessment
}

impl Assessment {
    /// Adds the result of one key, for its quota alone and with what nodes may lease of it.
    fn add_key(
        &mut self,
        [bucket, leased]: [Bucket; 2],
        quiet: bool,
        seen: &[RecordedDecision],
        spans: &FaultSpans,
        nodes: u64,
    ) {
        let allow = |(from, to)| Allowance { from, to, units: bucket.burst };
        // A share of the burst is at least one unit, so many nodes have more than the burst.
        let stand_in = |(from, to)| Allowance { from, to, units: bucket.burst.max(nodes) };
        let losses: Vec<Allowance> = spans.losses.iter().copied().map(allow).collect();
        let without = seen.iter().filter(|seen| seen.mode != Mode::Exact).map(|seen| seen.replied);
        let back = without.max().unwrap_or_default();
        let outages: Vec<Allowance> =
            spans.outages.iter().map(|&began| stand_in((began, began.max(back)))).collect();
        let exact = seen.iter().filter(|seen| seen.mode == Mode::Exact);
        // Units admitted without being counted are reported separately, with their own maximum.
        let counted = || seen.iter().filter(|seen| matches!(seen.mode, Mode::Exact | Mode::Local));
        let units = |excess: Option<crate::checker::Excess>| excess.map_or(i64::MIN, |excess| excess.units);
        self.over = self.over.max(units(bucket.excess(counted(), &[])));
        self.broken_exact = self.broken_exact.max(units(leased.excess(exact, &losses)));
        let shares = spans.alone.map(|(from, to)| {
            let to = to.max(back);
            // The refill of the node's share meanwhile, rounded up.
            let units = (bucket.limit * (to - from)).div_ceil(bucket.period * nodes);
            Allowance { from, to, units }
        });
        let both = [losses, outages, shares.into_iter().collect()].concat();
        self.broken_counted = self.broken_counted.max(units(leased.excess(counted(), &both)));
        // With leases a denial says nothing about the store: other nodes may hold the units.
        if leased != bucket {
            return;
        }
        match bucket.vanished(seen, &spans.steps) {
            Some(units) => {
                let worst = &mut self.vanished[usize::from(quiet)];
                *worst = units.max(*worst);
            }
            None => self.unexplained += bucket.wrong_denials(seen, &[]).len(),
        }
        if quiet {
            self.quiet_denied += seen.iter().filter(|seen| !seen.admitted).count();
        }
    }
}

/// How long after `healthy` the store answered nearly all of a group, and when the last decision without it was sent;
/// in milliseconds.
fn recovery(seen: &[RecordedDecision], healthy: u64) -> (Option<u64>, Option<u64>) {
    let mut pieces: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for one in seen.iter().filter(|seen| seen.sent >= healthy) {
        let piece = pieces.entry((one.sent - healthy) / PIECE).or_default();
        piece.0 += usize::from(one.mode == Mode::Exact);
        piece.1 += 1;
    }
    let well = pieces.iter().find(|(_, (exact, all))| exact * 100 >= all * WELL_PERCENT);
    let nearly = well.map(|(piece, _)| piece * PIECE / 1_000);
    let last_piece = pieces.keys().next_back().copied().unwrap_or_default();
    let without = seen.iter().filter(|seen| seen.sent >= healthy && seen.mode != Mode::Exact);
    let last = without.map(|seen| seen.sent - healthy).max().map_or(0, |last| last + 1);
    // Known only if a whole group came after it.
    let all = (last / PIECE < last_piece).then_some(last / 1_000);
    (nearly, all)
}
