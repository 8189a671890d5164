//! The outcomes of each limit, counted by its name for the life of the process. A reload changes which limits apply,
//! but never the counts. A limit's index in a policy leads to its counters without a lookup by name.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use arc_swap::ArcSwap;
use tollgate::{Decision, Policy};

use super::names::{ALLOWED, OTHERS, OUTCOMES, REQUEST_LIMIT, SOURCES, USUAL, outcome_index, source_index};
use super::striped::StripedCounters;
use crate::protocol::Protocol;

pub(super) mod rules;

use rules::RuleSeries;

/// Maximum number of limits with their own series. Further limits, whether of one large policy or of many reloads, are
/// counted together.
pub(super) const LIMITS_SHOWN: usize = 500;
/// Maximum number of series of single limits. Any more are counted with the others.
pub(super) const SERIES_MAX: usize = 4_000;
/// Maximum number of policies that are found without a lock: the active one, and those of decisions in progress.
const PAGES_MAX: usize = 32;

/// Counters of one limit by outcome, source and protocol, followed by the counter of requests near the limit.
const CELLS_PER_PROTOCOL: usize = OUTCOMES.len() * SOURCES.len();
const NEAR: usize = CELLS_PER_PROTOCOL * Protocol::ALL.len();

/// The counters of one limit. They are allocated with the first outcome.
pub(super) struct Series {
    pub(super) name: Box<str>,
    cells: OnceLock<StripedCounters>,
}

/// One number of a limit, with its labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cell {
    pub(super) protocol: Protocol,
    pub(super) outcome: usize,
    pub(super) source: usize,
}

impl Series {
    fn new(name: &str) -> Self {
        Self { name: name.into(), cells: OnceLock::new() }
    }

    #[inline]
    fn cells(&self) -> &StripedCounters {
        self.cells.get_or_init(|| StripedCounters::new(NEAR + 1))
    }

    /// Counts one outcome.
    #[inline]
    fn count_one(&self, cell: Cell) {
        self.cells().add(cell.index(), 1);
    }

    /// Counts an outcome that came near the limit. An outcome in shadow is never near.
    #[inline]
    fn count_near(&self, cell: Cell) {
        if cell.outcome == ALLOWED {
            self.cells().add(NEAR, 1);
        }
    }

    fn sum(&self, index: usize) -> u64 {
        self.cells.get().map_or(0, |cells| cells.sum(index))
    }

    pub(super) fn near(&self) -> u64 {
        self.sum(NEAR)
    }

    pub(super) fn count(&self, cell: Cell) -> u64 {
        self.sum(cell.index())
    }

    /// All of its outcomes, and all of its sources.
    pub(super) fn totals(&self) -> ([u64; OUTCOMES.len()], [u64; SOURCES.len()]) {
        let (mut outcomes, mut sources) = ([0; OUTCOMES.len()], [0; SOURCES.len()]);
        for cell in Protocol::ALL.into_iter().filter(|_| self.cells.get().is_some()).flat_map(Cell::of) {
            let count = self.count(cell);
            outcomes[cell.outcome] += count;
            sources[cell.source] += count;
        }
        (outcomes, sources)
    }

    /// The numbers to show: those that are not zero, and for each protocol in use the two usual ones. The rate of
    /// denials is therefore zero, and not unknown, before the first denial.
    fn shown(&self) -> Vec<Cell> {
        let mut shown = Vec::new();
        for protocol in Protocol::ALL {
            let asked: Vec<Cell> = Cell::of(protocol).filter(|cell| self.count(*cell) > 0).collect();
            let pairs = USUAL.iter().filter(|pair| asked.iter().any(|cell| pair.contains(&cell.outcome)));
            let usual: Vec<usize> = pairs.flatten().copied().collect();
            let is_usual = |cell: &Cell| cell.source == 0 && usual.contains(&cell.outcome);
            shown.extend(Cell::of(protocol).filter(|cell| is_usual(cell) || asked.contains(cell)));
        }
        shown
    }
}

impl Cell {
    const fn index(self) -> usize {
        (self.protocol as usize * OUTCOMES.len() + self.outcome) * SOURCES.len() + self.source
    }

    fn of(protocol: Protocol) -> impl Iterator<Item = Cell> {
        let sources = move |outcome| (0..SOURCES.len()).map(move |source| Cell { protocol, outcome, source });
        (0..OUTCOMES.len()).flat_map(sources)
    }
}

/// The counters of each limit of one policy, in its order.
struct LedgerPage {
    /// Weak, so that a replaced policy can be freed. Its address stays reserved while this exists.
    policy: Weak<Policy>,
    series: Box<[Arc<Series>]>,
}

impl LedgerPage {
    #[inline]
    fn count(&self, decision: &Decision, protocol: Protocol) {
        for status in decision.limits() {
            let Some(series) = self.series.get(status.index) else {
                continue;
            };
            let cell =
                Cell { protocol, outcome: outcome_index(&status), source: source_index(status.source) };
            let outcome = status.outcome;
            let is_near = status.source.is_counted() && outcome.remaining < outcome.limit.div_ceil(5);
            series.count_one(cell);
            if is_near {
                series.count_near(cell);
            }
        }
    }
}

/// Every limit that was ever active, by name.
struct AllSeries {
    by_name: HashMap<Box<str>, Arc<Series>>,
    /// In order of appearance, the series for all others first.
    all: Vec<Arc<Series>>,
    /// How many of them are limits of policies, or compat rules.
    limits: usize,
    /// The number of names of the latest policy without their own series.
    folded: usize,
    /// Numbers that were shown before, by the index of their limit in `all`. A counter must not change its name.
    shown: HashSet<(usize, Cell)>,
}

/// The counters of all limits.
pub(super) struct Ledger {
    pages: ArcSwap<Vec<Arc<LedgerPage>>>,
    /// Locked when a new policy is seen, and while counters are read.
    known: Mutex<AllSeries>,
    /// Rules of other programs' files. Changed only while `known` is locked.
    rules: ArcSwap<RuleSeries>,
}

/// One series to show.
pub(super) struct Shown {
    pub(super) limit: Arc<Series>,
    pub(super) cell: Cell,
    pub(super) count: u64,
}

impl Ledger {
    pub(super) fn new() -> Self {
        let others = Arc::new(Series::new(OTHERS));
        let mut known = AllSeries {
            by_name: HashMap::from([(OTHERS.into(), Arc::clone(&others))]),
            all: vec![others],
            limits: 0,
            folded: 0,
            shown: HashSet::new(),
        };
        known.series_beside(REQUEST_LIMIT);
        let rules = ArcSwap::from_pointee(RuleSeries::first(&mut known));
        Self { pages: ArcSwap::from_pointee(Vec::new()), known: Mutex::new(known), rules }
    }

    /// Counts the outcome of each limit.
    #[inline]
    pub(super) fn record(&self, decision: &Decision, protocol: Protocol) {
        let policy = decision.policy();
        let pages = self.pages.load();
        match pages.iter().find(|page| page.policy.as_ptr() == Arc::as_ptr(policy)) {
            Some(page) => page.count(decision, protocol),
            None => self.open(policy).count(decision, protocol),
        }
    }

    /// Registers a policy, so that its limits are shown before the first decision.
    pub(super) fn adopt(&self, policy: &Arc<Policy>) {
        let _ = self.open(policy);
    }

    /// Creates the page of a policy that was not among the recent ones.
    #[cold]
    fn open(&self, policy: &Arc<Policy>) -> Arc<LedgerPage> {
        let mut known = self.known();
        let pages = self.pages.load();
        // Another thread may have created it meanwhile.
        if let Some(page) = pages.iter().find(|page| page.policy.as_ptr() == Arc::as_ptr(policy)) {
            return Arc::clone(page);
        }
        let series = known.series(policy);
        let page = Arc::new(LedgerPage { policy: Arc::downgrade(policy), series });
        let mut recent = vec![Arc::clone(&page)];
        // A policy without strong references makes no more decisions.
        let alive = pages.iter().filter(|page| page.policy.strong_count() > 0);
        recent.extend(alive.take(PAGES_MAX - 1).cloned());
        self.pages.store(Arc::new(recent));
        page
    }

    fn known(&self) -> MutexGuard<'_, AllSeries> {
        // No code panics while the lock is held, and partly registered counters are still valid.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a limit applied to any decision of this process; `None` for one that is counted with others.
    pub(super) fn has_applied(&self, name: &str) -> Option<bool> {
        self.known().by_name.get(name).map(|series| series.cells.get().is_some())
    }

    /// The number of limits of the latest policy that are counted with others.
    pub(super) fn folded(&self) -> usize {
        self.known().folded + self.rules.load().folded
    }

    /// The limits with series. Series that belong to no file are included only if they counted anything.
    pub(super) fn limits(&self) -> Vec<Arc<Series>> {
        let known = self.known();
        let is_shown = |series: &&Arc<Series>| {
            ![OTHERS, REQUEST_LIMIT].contains(&&*series.name) || series.cells.get().is_some()
        };
        known.all.iter().filter(is_shown).cloned().collect()
    }

    /// Every series of single limits: at most [`SERIES_MAX`], and one for each kind of number of the others.
    pub(super) fn shown(&self) -> Vec<Shown> {
        let mut known = self.known();
        let AllSeries { all, shown, .. } = &mut *known;
        let (mut listed, mut others) = (Vec::new(), HashMap::new());
        for (place, limit) in all.iter().enumerate() {
            for cell in limit.shown() {
                let count = limit.count(cell);
                let is_own = place > 0
                    && (shown.contains(&(place, cell))
                        || (shown.len() < SERIES_MAX && shown.insert((place, cell))));
                if is_own {
                    listed.push(Shown { limit: Arc::clone(limit), cell, count });
                } else {
                    *others.entry(cell).or_insert(0_u64) += count;
                }
            }
        }
        if let Some(common) = all.first() {
            let mut others: Vec<(Cell, u64)> = others.into_iter().collect();
            others.sort_by_key(|(cell, _)| cell.index());
            let named = |(cell, count)| Shown { limit: Arc::clone(common), cell, count };
            listed.extend(others.into_iter().map(named));
        }
        listed
    }
}

impl AllSeries {
    /// The counters of a policy's limits. A known name keeps its counters.
    fn series(&mut self, policy: &Policy) -> Box<[Arc<Series>]> {
        let series: Box<[Arc<Series>]> =
            policy.limits().iter().map(|limit| self.series_of(limit.name())).collect();
        self.folded = series.iter().filter(|series| &*series.name == OTHERS).count();
        series
    }

    fn series_of(&mut self, name: &str) -> Arc<Series> {
        if let Some(series) = self.by_name.get(name) {
            return Arc::clone(series);
        }
        if self.limits == LIMITS_SHOWN {
            return Arc::clone(&self.all[0]);
        }
        self.limits += 1;
        self.series_beside(name)
    }

    /// The counters of a name whose number is bounded elsewhere.
    fn series_beside(&mut self, name: &str) -> Arc<Series> {
        if let Some(series) = self.by_name.get(name) {
            return Arc::clone(series);
        }
        let series = Arc::new(Series::new(name));
        self.by_name.insert(name.into(), Arc::clone(&series));
        self.all.push(Arc::clone(&series));
        series
    }
}
