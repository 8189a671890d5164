//! One flood: residents that are decided throughout, victims that were throttled before, and new keys by the million. Each
//! answer is compared with an independent count, and every claim that does not hold is recorded.

use tollgate::algorithm::fixed_window::{Align, FixedWindow};
use tollgate::memory::Usage;
use tollgate::policy::Limit;
use tollgate::{CheckRequest, Decision, Engine, MemoryStore, Policy, Quota, Rate, Source, Ticks, Timestamp};

/// When the flood begins: the first instant of an hour.
const START: Timestamp = Timestamp::from_unix_seconds(1_700_002_800);
/// Flood keys for each look at a resident.
const KEYS_PER_LOOK: u64 = 10;
/// Maximum number of broken claims in a report; further ones are counted.
const BROKEN_LISTED: usize = 20;

/// The target of a flood, and its size.
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    /// New keys, each asked once.
    pub(crate) keys: u64,
    pub(crate) capacity_bytes: u64,
    /// Keys that are asked throughout.
    pub(crate) residents: u64,
    /// Keys that were exhausted before the flood.
    pub(crate) victims: u64,
    pub(crate) algorithm: Algorithm,
    /// Units in a period, and the most at once.
    pub(crate) units: u64,
    pub(crate) period: Ticks,
    /// Virtual time that the whole flood takes.
    pub(crate) lasts: Ticks,
    /// How often the store is looked at.
    pub(crate) looks: u64,
    pub(crate) expects: Expects,
}

/// How counters are kept: both kinds of small states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    TokenBucket,
    FixedWindow,
}

/// The effect that the flood must have on the store for the trial to prove anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expects {
    /// More keys stay live than fit: new ones share counters.
    Overflow,
    /// Keys go idle as fast as they come: their slots are used again and no counter is shared.
    Eviction,
}

/// The store at one point of the flood.
pub(crate) struct Row {
    pub(crate) keys: u64,
    pub(crate) elapsed: Ticks,
    pub(crate) usage: Usage,
    pub(crate) rss_bytes: Option<u64>,
    pub(crate) counts: Counts,
}

/// Counts of the answers so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Decisions about residents, and how many of them admitted.
    pub(crate) resident: u64,
    pub(crate) resident_admitted: u64,
    /// Flood keys with a counter of their own, with a shared one, and those that a shared one denied.
    pub(crate) own: u64,
    pub(crate) shared: u64,
    pub(crate) shared_denied: u64,
    /// Answers to victims, all of which must deny until their time has come.
    pub(crate) victim: u64,
}

/// The result of a trial.
pub(crate) struct Report {
    pub(crate) rows: Vec<Row>,
    pub(crate) counts: Counts,
    pub(crate) broken: Vec<String>,
    pub(crate) broken_in_all: u64,
}

/// The exact count of one key, in units times ticks, kept apart from the engine's arithmetic.
#[derive(Clone, Copy)]
struct Count {
    /// Token bucket: what is available. Fixed window: what was used.
    level: u128,
    at: Timestamp,
}

impl Plan {
    fn quota(&self) -> Result<Quota, tollgate::QuotaError> {
        let rate = Rate::per_ticks(self.units, self.period);
        match self.algorithm {
            Algorithm::TokenBucket => Quota::token_bucket(rate),
            Algorithm::FixedWindow => FixedWindow::new(rate, Align::Epoch).map(Quota::FixedWindow),
        }
    }

    fn unused(&self) -> Count {
        let level = match self.algorithm {
            Algorithm::TokenBucket => u128::from(self.units) * u128::from(self.period.as_micros()),
            Algorithm::FixedWindow => 0,
        };
        Count { level, at: START }
    }

    /// Whether one unit passes, by the count alone.
    fn admits(&self, count: &mut Count, now: Timestamp) -> bool {
        let (units, period) = (u128::from(self.units), u128::from(self.period.as_micros()));
        match self.algorithm {
            Algorithm::TokenBucket => {
                let gained = u128::from(now.since(count.at).as_micros()) * units;
                let level = (count.level + gained).min(units * period);
                let admitted = level >= period;
                *count = Count { level: if admitted { level - period } else { level }, at: now };
                admitted
            }
            Algorithm::FixedWindow => {
                let window = |at: Timestamp| at.unix_micros() / self.period.as_micros();
                let used = if window(now) == window(count.at) { count.level } else { 0 };
                let admitted = used < units;
                *count = Count { level: used + u128::from(admitted), at: now };
                admitted
            }
        }
    }

    /// When a key that was exhausted at the start is admitted again.
    fn retry_at(&self) -> Timestamp {
        match self.algorithm {
            Algorithm::TokenBucket => {
                START + Ticks::from_micros(self.period.as_micros().div_ceil(self.units))
            }
            Algorithm::FixedWindow => START + self.period,
        }
    }
}

struct Flood<'p> {
    plan: &'p Plan,
    engine: Engine,
    residents: Vec<Count>,
    /// Whether the victims' time has come.
    released: bool,
    report: Report,
}

/// Runs a plan. Each look at the store is passed to `progress`.
pub(crate) fn run(plan: &Plan, mut progress: impl FnMut(&Row)) -> Result<Report, Box<dyn std::error::Error>> {
    let policy = Policy::new(vec![Limit::new("flooded", plan.quota()?).by(["key"])])?;
    let engine = Engine::builder().policy(policy).store(MemoryStore::new(plan.capacity_bytes, START)).build();
    let residents = vec![plan.unused(); usize::try_from(plan.residents)?];
    let report = Report { rows: Vec::new(), counts: Counts::default(), broken: Vec::new(), broken_in_all: 0 };
    let mut flood = Flood { plan, engine, residents, released: false, report };
    flood.look(0, START, &mut progress);
    flood.settle_in();
    let mut random = Random(0x70_11_6A_7E);
    for key in 0..plan.keys {
        let now = START + Ticks::from_micros(plan.lasts.as_micros() * key / plan.keys);
        flood.release(now);
        flood.arrival(key, now);
        if key % KEYS_PER_LOOK == 0 {
            flood.resident(random.skewed(plan.residents), now);
        }
        if (key + 1) % (plan.keys / plan.looks) == 0 {
            flood.throttled(now);
            flood.look(key + 1, now, &mut progress);
        }
    }
    flood.release(plan.retry_at());
    flood.conclude();
    Ok(flood.report)
}

impl Flood<'_> {
    fn broken(&mut self, what: impl FnOnce() -> String) {
        self.report.broken_in_all += 1;
        if self.report.broken.len() < BROKEN_LISTED {
            self.report.broken.push(what());
        }
    }

    fn ask(&self, key: &str, now: Timestamp) -> (Decision, Source) {
        let request = CheckRequest::new().with("key", key).unwrap_or_default();
        #[allow(clippy::unwrap_used, reason = "memory never waits")]
        let decision = self.engine.try_check(&request, now).unwrap();
        let source = decision.limits().next().map_or(Source::Open, |status| status.source);
        (decision, source)
    }

    /// Before the flood: every resident is known, and every victim has nothing left.
    fn settle_in(&mut self) {
        for resident in 0..self.plan.residents {
            self.resident(resident, START);
        }
        for victim in 0..self.plan.victims {
            for _ in 0..self.plan.units {
                if !self.ask(&victim_name(victim), START).0.is_allowed() {
                    self.broken(|| format!("victim {victim} was denied before it was exhausted"));
                }
            }
        }
    }

    /// Claim: a resident is answered by its own counter, exactly as an independent count says.
    fn resident(&mut self, resident: u64, now: Timestamp) {
        let (decision, source) = self.ask(&format!("resident-{resident}"), now);
        let place = usize::try_from(resident).unwrap_or(0);
        let expected = self.plan.admits(&mut self.residents[place], now);
        self.report.counts.resident += 1;
        self.report.counts.resident_admitted += u64::from(decision.is_allowed());
        if source != Source::Exact || decision.is_allowed() != expected {
            self.broken(|| {
                format!("resident {resident}: {:?} from {source:?}, expected {expected}", decision.verdict())
            });
        }
    }

    /// Decides about a new key.
    fn arrival(&mut self, key: u64, now: Timestamp) {
        let (decision, source) = self.ask(&format!("{:016x}", mixed(key)), now);
        let counts = &mut self.report.counts;
        match source {
            Source::Exact => counts.own += 1,
            _ => counts.shared += 1,
        }
        let denied = !decision.is_allowed();
        counts.shared_denied += u64::from(denied);
        if denied && source == Source::Exact {
            self.broken(|| format!("new key {key} was denied by a counter of its own"));
        }
    }

    /// Claim: a throttled key stays so until the true retry time, and gets that time.
    fn throttled(&mut self, now: Timestamp) {
        let retry_at = self.plan.retry_at();
        if self.released {
            return;
        }
        for victim in 0..self.plan.victims {
            let (decision, source) = self.ask(&victim_name(victim), now);
            self.report.counts.victim += 1;
            if decision.retry_after() != Some(retry_at.since(now)) || source != Source::Exact {
                self.broken(|| {
                    format!("victim {victim} at {now:?}: {:?} from {source:?}", decision.verdict())
                });
            }
        }
    }

    /// Claim: one tick before the true retry time every victim is denied, and at it admitted. During the flood if the time
    /// comes then, else after it.
    fn release(&mut self, now: Timestamp) {
        let retry_at = self.plan.retry_at();
        if self.released || now < retry_at {
            return;
        }
        self.released = true;
        for (now, expected) in [(retry_at - Ticks::ONE, false), (retry_at, true)] {
            for victim in 0..self.plan.victims {
                let (decision, _) = self.ask(&victim_name(victim), now);
                self.report.counts.victim += 1;
                if decision.is_allowed() != expected {
                    self.broken(|| format!("victim {victim} at {now:?}: {:?}", decision.verdict()));
                }
            }
        }
    }

    fn look(&mut self, keys: u64, now: Timestamp, progress: &mut impl FnMut(&Row)) {
        let usage = self.engine.store().usage(now);
        let row = Row {
            keys,
            elapsed: now.since(START),
            usage,
            rss_bytes: rss_bytes(),
            counts: self.report.counts,
        };
        progress(&row);
        if usage.bytes > usage.capacity_bytes || usage.capacity_bytes > self.plan.capacity_bytes {
            self.broken(|| format!("the store takes {} bytes of {}", usage.bytes, self.plan.capacity_bytes));
        }
        self.report.rows.push(row);
    }

    /// Claim: the flood did to the store what the trial is about; otherwise the rest proves nothing.
    fn conclude(&mut self) {
        let counts = self.report.counts;
        let overflow = self.report.rows.iter().map(|row| row.usage.overflow_keys).max().unwrap_or(0);
        match self.plan.expects {
            Expects::Overflow if counts.shared == 0 => {
                self.broken(|| "no key ever shared a counter".to_owned())
            }
            Expects::Eviction if counts.shared > 0 => {
                self.broken(|| {
                    format!("{} keys shared a counter although idle ones had room", counts.shared)
                });
            }
            _ => {}
        }
        let bytes = self.report.rows.last().map_or(0, |row| row.usage.bytes);
        if self.plan.expects == Expects::Eviction && bytes / 16 > counts.own {
            self.broken(|| {
                "no slot was ever used twice: the flood is too small to prove eviction".to_owned()
            });
        }
        if overflow > 8 {
            self.broken(|| format!("one limit has {overflow} shared counters"));
        }
        let denied = counts.resident - counts.resident_admitted;
        if counts.resident_admitted == 0 || denied == 0 {
            self.broken(|| "residents were not both admitted and denied".to_owned());
        }
    }
}

fn victim_name(victim: u64) -> String {
    format!("victim-{victim}")
}

/// A number for each number, no two alike: SplitMix64's last steps.
const fn mixed(number: u64) -> u64 {
    let word = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

struct Random(u64);

impl Random {
    /// A number below `most`, small ones more often than large ones, so that some residents are hot and some are calm.
    fn skewed(&mut self, most: u64) -> u64 {
        let mut next = || {
            self.0 = self.0.wrapping_add(1);
            mixed(self.0) % most
        };
        next().min(next()).min(next())
    }
}

/// Memory that the process has resident, where the system tells.
fn rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
