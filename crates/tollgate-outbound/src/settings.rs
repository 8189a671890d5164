//! The settings of an [`Outbound`](crate::Outbound).

use std::time::Duration;

use crate::learned::Replenish;
use crate::retry::RetrySettings;

/// Which of the server's numbers correct the counters of the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Learning {
    /// None. Calls are still held back by what the server says is left.
    Off,
    /// Only those that leave less than our own counter.
    Shrink,
    /// Both those that leave less, and those that leave more while calls wait for our own counter.
    #[default]
    Follow,
}

/// How calls wait, and how the server's answers are read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// How long a call waits at most that does not say so itself; a minute by default.
    pub max_wait: Duration,
    /// How many calls may wait for one bucket; 10,000 by default.
    pub queue_max: usize,
    /// How the server's counters fill up again.
    pub replenish: Replenish,
    /// The shortest pause after a refusal that does not say how long; by default a second, and longer each time.
    pub freeze_min: Duration,
    /// Whether the server names a bucket for each route, as Discord does. Then one call of an unknown route is sent, and
    /// the others wait for its answer. The layer takes the channel, guild or webhook in the path as the scope of a call.
    pub discovers_buckets: bool,
    /// The attributes that tell apart what the server counts apart, besides the host; by default `api_key`. Calls that
    /// differ in one of them share no numbers and freezes of the server. That it fails holds for all of them.
    pub identity: Vec<String>,
    /// Which of the server's numbers correct the counters of the policy.
    pub learning: Learning,
    /// How long a call may be under way before its estimated cost is final; ten minutes by default.
    pub call_max: Duration,
    /// How calls are attempted again.
    pub retry: RetrySettings,
    /// The seed of jitter, for tests that must repeat themselves; random by default.
    pub seed: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_wait: Duration::from_secs(60),
            queue_max: 10_000,
            replenish: Replenish::AtReset,
            freeze_min: Duration::ZERO,
            discovers_buckets: false,
            identity: vec!["api_key".to_owned()],
            learning: Learning::Follow,
            call_max: Duration::from_secs(600),
            retry: RetrySettings::default(),
            seed: None,
        }
    }
}
