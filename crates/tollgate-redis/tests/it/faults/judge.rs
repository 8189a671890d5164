//! What a run under a fault comes to: the worst key against what the fault allows, denials, latency, and how soon all was well.

use std::collections::BTreeMap;

use super::report::Measure;
use crate::checker::{Allowance, Bucket};
use crate::fleet::{QUIET_BIT, Terms};
use crate::record::{Mode, Seen};

/// After a fault, decisions are looked at in pieces of this many microseconds.
const PIECE: u64 = 100_000;
/// A node whose machine stands still loses its store at most this often, in microseconds: until it has it back takes as long.
const RELAPSES: u64 = 1_000_000;
/// A piece is well again if this share of its decisions, in percent, came from the store.
const WELL_PERCENT: usize = 95;

/// What was done to the store, by the clock of the record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Happened {
    /// Proof that it happened: what was counted, and how often. Each must be above zero.
    pub(crate) evidence: Vec<(String, u64)>,
    /// Spans in which state may have been lost, or a clock has stepped: once the burst each.
    pub(crate) losses: Vec<(u64, u64)>,
    /// Times from which on nodes may have gone over to their own buckets, until all are back: once the burst each.
    pub(crate) outages: Vec<u64>,
    /// When one node alone was cut off, and until when: it has its share on top of what the others get from the store.
    pub(crate) alone: Option<(u64, u64)>,
    /// When a clock stepped back, or may be taken to have: units may have vanished then.
    pub(crate) steps: Vec<u64>,
    /// When the store was healthy again.
    pub(crate) healthy: u64,
    /// What was measured beside.
    pub(crate) measures: Vec<Measure>,
}

impl Happened {
    /// The machine stood still too, which takes the store away as a fault does: from the first decision without it, and again whenever a
    /// node that had it back may have lost it once more. What the fault itself took away is no news.
    pub(super) fn stood_still(&mut self, excused: &[Seen]) {
        let away = self.outages.iter().min().map(|&began| began..self.healthy + RELAPSES);
        let is_news = |seen: &&Seen| !away.as_ref().is_some_and(|away| away.contains(&seen.sent));
        let without = || excused.iter().filter(|seen| seen.mode != Mode::Exact).filter(is_news);
        let span = without().map(|seen| seen.sent).min().zip(without().map(|seen| seen.sent).max());
        if let Some((first, last)) = span {
            self.outages.extend((first..=last).step_by(usize::try_from(RELAPSES).unwrap()));
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judged {
    pub(crate) decisions: usize,
    pub(crate) nodes: u64,
    pub(crate) modes: BTreeMap<Mode, usize>,
    /// Most units that a key was admitted above burst and refill, nothing allowed for. Negative if none was.
    pub(crate) over: i64,
    /// The same beyond what the promise allows; above zero it is broken. By the store alone, and by all that counted.
    pub(crate) broken_exact: i64,
    pub(crate) broken_counted: i64,
    /// Denials of the store that no charge explains, and units that vanished, if that explains them; and any denial of a quiet key.
    pub(crate) unexplained: usize,
    /// Of the worst hot key, and of the worst quiet one.
    pub(crate) vanished: [u64; 2],
    pub(crate) quiet_denied: usize,
    /// Decisions after twice their deadline, while the machine had time for them.
    pub(crate) late: usize,
    /// Microseconds.
    pub(crate) slowest: u64,
    pub(crate) p9999: u64,
    /// Milliseconds from health until the store answered for the first time, answered nearly all, and all.
    pub(crate) first: Option<u64>,
    pub(crate) nearly: Option<u64>,
    pub(crate) all: Option<u64>,
    /// Decisions without the store, those apart that the machine itself was too busy for; and how many those are.
    pub(crate) without: usize,
    pub(crate) excused: usize,
}

/// Judges a record. `sober` is the same without the decisions that were late or missed the store because the machine was busy with
/// something else.
pub(crate) fn judge(seen: &[Seen], sober: &[Seen], happened: &Happened, terms: &Terms) -> Judged {
    let mut judged = Judged { decisions: seen.len(), over: i64::MIN, ..Judged::default() };
    judged.broken_exact = i64::MIN;
    judged.broken_counted = i64::MIN;
    let mut keys: BTreeMap<u32, Vec<Seen>> = BTreeMap::new();
    for one in seen {
        *judged.modes.entry(one.mode).or_default() += 1;
        keys.entry(one.key).or_default().push(*one);
    }
    let nodes = seen.iter().map(|seen| u64::from(seen.node) + 1).max().unwrap_or(1);
    judged.nodes = nodes;
    for (key, seen) in &keys {
        let is_quiet = *key & QUIET_BIT != 0;
        let (bucket, ahead) = if is_quiet { (terms.quiet, 0) } else { (terms.hot, terms.ahead) };
        let leased = Bucket { burst: bucket.burst + ahead * nodes, ..bucket };
        judged.add_key([bucket, leased], is_quiet, seen, happened, nodes);
    }
    judged.late = sober.iter().filter(|seen| seen.late).count();
    let mut took: Vec<u64> = seen.iter().map(Seen::took).collect();
    took.sort_unstable();
    judged.slowest = took.last().copied().unwrap_or_default();
    judged.p9999 = took.get(took.len() * 9_999 / 10_000).copied().unwrap_or_default();
    let answered = sober.iter().filter(|seen| seen.sent >= happened.healthy && seen.mode == Mode::Exact);
    judged.first = answered.map(|seen| (seen.replied - happened.healthy) / 1_000).min();
    (judged.nearly, judged.all) = recovery(sober, happened.healthy);
    judged.without = sober.iter().filter(|seen| seen.mode != Mode::Exact).count();
    judged
}

impl Judged {
    /// Adds what became of one key: of its quota, and of the same with what nodes may hold of it ahead of time.
    fn add_key(
        &mut self,
        [bucket, leased]: [Bucket; 2],
        quiet: bool,
        seen: &[Seen],
        happened: &Happened,
        nodes: u64,
    ) {
        let allow = |(from, to)| Allowance { from, to, units: bucket.burst };
        // A share of the burst is at least one unit, so many nodes have more than the burst.
        let stand_in = |(from, to)| Allowance { from, to, units: bucket.burst.max(nodes) };
        let losses: Vec<Allowance> = happened.losses.iter().copied().map(allow).collect();
        let without = seen.iter().filter(|seen| seen.mode != Mode::Exact).map(|seen| seen.replied);
        let back = without.max().unwrap_or_default();
        let outages: Vec<Allowance> =
            happened.outages.iter().map(|&began| stand_in((began, began.max(back)))).collect();
        let exact = seen.iter().filter(|seen| seen.mode == Mode::Exact);
        // What was let pass without being counted is counted apart, and has a ceiling of its own.
        let counted = || seen.iter().filter(|seen| matches!(seen.mode, Mode::Exact | Mode::Local));
        let units = |excess: Option<crate::checker::Excess>| excess.map_or(i64::MIN, |excess| excess.units);
        self.over = self.over.max(units(bucket.excess(counted(), &[])));
        self.broken_exact = self.broken_exact.max(units(leased.excess(exact, &losses)));
        let shares = happened.alone.map(|(from, to)| {
            let to = to.max(back);
            // What the node's share refills meanwhile, rounded up.
            let units = (bucket.limit * (to - from)).div_ceil(bucket.period * nodes);
            Allowance { from, to, units }
        });
        let both = [losses, outages, shares.into_iter().collect()].concat();
        self.broken_counted = self.broken_counted.max(units(leased.excess(counted(), &both)));
        // Who holds nothing is denied what others hold: where nodes hold units, a denial says nothing about the store.
        if leased != bucket {
            return;
        }
        match bucket.vanished(seen, &happened.steps) {
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

/// How long after `healthy` the store answered nearly all of a piece, and when the last decision without it was sent; in milliseconds.
fn recovery(seen: &[Seen], healthy: u64) -> (Option<u64>, Option<u64>) {
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
    // Known only if some whole piece came after it.
    let all = (last / PIECE < last_piece).then_some(last / 1_000);
    (nearly, all)
}
