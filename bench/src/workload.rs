//! The requests: which keys, in which order. All of it is made before the clock starts, and laid out in the order of use,
//! so that reading a key costs what it costs a server that just received it: next to nothing.

use tollgate_sim::random::Random;

use crate::contender::Contender;
use crate::quota::{self, Quota};

/// How many requests are made before they repeat. Far more than caches hold.
const SEQUENCE_LENGTH: usize = 1 << 22;
/// Enough for one key: the processor's nearest cache keeps them.
const HOT_LENGTH: usize = 1 << 12;
/// How many keys are made at a time to fill a contender.
const FILL_BLOCK: usize = 1 << 12;

/// A pattern of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// One key, far above its limit: denied nearly always.
    Hot,
    /// One key below its limit: admitted always, so every decision writes.
    HotAdmitted,
    /// A million keys, each as likely as the other.
    Uniform1M,
    /// A million keys, the n-th 1/n as likely as the first.
    Zipf1M,
    /// Ten million keys, each as likely as the other.
    Uniform10M,
}

impl Workload {
    /// All of them.
    pub const ALL: [Workload; 5] =
        [Workload::Hot, Workload::HotAdmitted, Workload::Uniform1M, Workload::Zipf1M, Workload::Uniform10M];

    /// Its name in `--workloads` and in the CSV file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Workload::Hot => "hot",
            Workload::HotAdmitted => "hot-admitted",
            Workload::Uniform1M => "uniform-1m",
            Workload::Zipf1M => "zipf-1m",
            Workload::Uniform10M => "uniform-10m",
        }
    }

    /// Its name in tables.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Workload::Hot => "one hot key",
            Workload::HotAdmitted => "one hot key, all admitted",
            Workload::Uniform1M => "1M keys, uniform",
            Workload::Zipf1M => "1M keys, zipf 1.0",
            Workload::Uniform10M => "10M keys, uniform",
        }
    }

    /// How many keys are live.
    #[must_use]
    pub const fn keys(self) -> usize {
        match self {
            Workload::Hot | Workload::HotAdmitted => 1,
            Workload::Uniform1M | Workload::Zipf1M => 1_000_000,
            Workload::Uniform10M => 10_000_000,
        }
    }

    /// The limit of each key.
    #[must_use]
    pub const fn quota(self) -> Quota {
        match self {
            Workload::HotAdmitted => quota::WIDE,
            _ => quota::USER,
        }
    }

    /// Its requests, in order. The same in every run.
    #[must_use]
    pub fn sequence(self) -> Sequence {
        let mut random = Random::new(0x7011_6a7e);
        let keys = self.keys() as u64;
        match self {
            Workload::Hot | Workload::HotAdmitted => Sequence::new((0..HOT_LENGTH).map(|_| 0)),
            Workload::Uniform1M | Workload::Uniform10M => {
                Sequence::new((0..SEQUENCE_LENGTH).map(|_| random.below(keys)))
            }
            Workload::Zipf1M => {
                let zipf = Zipf::new(self.keys());
                Sequence::new((0..SEQUENCE_LENGTH).map(|_| zipf.draw(&mut random)))
            }
        }
    }
}

/// The key of the `id`-th user, as an API would have it.
#[must_use]
pub fn key(id: u64) -> String {
    format!("user-{id:07}")
}

/// Some requests, in order: the key as text, and as a number for the contender that takes numbers.
#[derive(Clone, Copy, Debug)]
pub struct Requests<'a> {
    /// The keys as users have them.
    pub keys: &'a [String],
    /// The same keys as numbers.
    pub ids: &'a [u64],
}

/// All the requests of a workload.
#[derive(Debug)]
pub struct Sequence {
    keys: Vec<String>,
    ids: Vec<u64>,
}

impl Sequence {
    /// Requests by these users.
    pub fn new(ids: impl Iterator<Item = u64>) -> Self {
        let ids: Vec<u64> = ids.collect();
        Self { keys: ids.iter().map(|&id| key(id)).collect(), ids }
    }

    /// All of them at once.
    #[must_use]
    pub fn all(&self) -> Requests<'_> {
        Requests { keys: &self.keys, ids: &self.ids }
    }

    /// The next `length` requests from `start` on, and where to go on; starts over at the end.
    #[must_use]
    #[inline]
    pub fn chunk(&self, start: usize, length: usize) -> (Requests<'_>, usize) {
        let start = if start + length > self.keys.len() { 0 } else { start };
        let end = (start + length).min(self.keys.len());
        (Requests { keys: &self.keys[start..end], ids: &self.ids[start..end] }, end)
    }

    /// Where one of several threads starts, so that they do not walk in step.
    #[must_use]
    pub fn start(&self, thread: usize, threads: usize) -> usize {
        self.keys.len() / threads * thread
    }
}

/// Asks a contender about each of `keys` users once, so that all of them are live. Returns how many were admitted.
pub fn fill(contender: &dyn Contender, keys: usize) -> usize {
    let mut admitted = 0;
    for start in (0..keys).step_by(FILL_BLOCK) {
        let end = (start + FILL_BLOCK).min(keys);
        admitted += contender.decide(Sequence::new(start as u64..end as u64).all());
    }
    admitted
}

/// Draws n with a probability proportional to 1/n, by looking a fraction up in the summed probabilities.
struct Zipf {
    summed: Vec<f64>,
}

impl Zipf {
    fn new(keys: usize) -> Self {
        let mut sum = 0.0;
        let summed = (1..=keys)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        Self { summed }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let total = self.summed.last().copied().unwrap_or_default();
        let point = (random.bits() >> 11) as f64 / (1u64 << 53) as f64 * total;
        let rank = self.summed.partition_point(|&sum| sum <= point);
        rank.min(self.summed.len() - 1) as u64
    }
}
