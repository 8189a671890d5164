//! The contenders: one trait that the loop of every contender implements, and the list of them.

use crate::lower_bound::{self, LowerBound};
use crate::peers::governor::{Direct, Keyed};
use crate::peers::{limitador::Limitador, pingora::PingoraLimits, throttlecrab::Throttlecrab};
use crate::quota::{self, Quota};
use crate::workload::{Requests, Sequence};
use crate::{Failure, clock::CachedClock};

/// Something that decides about requests. The loop over the requests is the contender's own, so that each is compiled
/// without a virtual call for each decision; every result passes through `black_box` whole.
pub trait Contender: Send + Sync {
    /// Decides about each request and says how many were admitted.
    fn decide(&self, requests: Requests<'_>) -> usize;

    /// The same, when no other thread asks meanwhile: for a contender that is not made for threads.
    fn decide_alone(&self, requests: Requests<'_>) -> usize {
        self.decide(requests)
    }

    /// How many requests to decide between two looks at the clock.
    fn chunk(&self) -> usize {
        1_024
    }
}

/// Which contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// governor keyed by `String` in a `DashMap`.
    GovernorString,
    /// governor keyed by `u64` in a `DashMap`.
    GovernorU64,
    /// governor with one cell.
    GovernorDirect,
    /// throttlecrab, behind a mutex where threads share it.
    Throttlecrab,
    /// limitador's storage in memory.
    Limitador,
    /// pingora-limits, which estimates.
    PingoraLimits,
    /// The least that a keyed decision costs here.
    LowerBound,
    /// The same, 16 decisions at a time.
    LowerBoundBatch,
    /// Tollgate's `Gate::check`.
    Tollgate,
    /// Tollgate's `Gate::check_batch_at`, 16 decisions at a time.
    TollgateBatch,
}

impl Kind {
    /// All that this build has.
    pub const BUILT: &'static [Kind] = &[
        Kind::GovernorString,
        Kind::GovernorU64,
        Kind::GovernorDirect,
        Kind::Throttlecrab,
        Kind::Limitador,
        Kind::PingoraLimits,
        Kind::LowerBound,
        Kind::LowerBoundBatch,
        Kind::Tollgate,
        Kind::TollgateBatch,
    ];

    /// Its name in `--only`, tables and the CSV file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::GovernorString => "governor-string",
            Kind::GovernorU64 => "governor-u64",
            Kind::GovernorDirect => "governor-direct",
            Kind::Throttlecrab => "throttlecrab",
            Kind::Limitador => "limitador",
            Kind::PingoraLimits => "pingora-limits",
            Kind::LowerBound => "lower-bound",
            Kind::LowerBoundBatch => "lower-bound-batch",
            Kind::Tollgate => "tollgate",
            Kind::TollgateBatch => "tollgate-batch",
        }
    }

    /// The contender of this name.
    ///
    /// # Errors
    /// When this build has none.
    pub fn named(name: &str) -> Result<Kind, Failure> {
        let known = Kind::BUILT.iter().copied().find(|kind| kind.name() == name);
        known.ok_or_else(|| format!("{name}: this build has no such contender").into())
    }

    /// Whether it can hold so many keys here: one cell holds one, and ten million counters of limitador fill 10 GiB.
    #[must_use]
    pub const fn holds(self, keys: usize) -> bool {
        match self {
            Kind::GovernorDirect => keys == 1,
            Kind::Limitador => keys <= 1_000_000,
            _ => true,
        }
    }

    /// Builds it for so many keys.
    ///
    /// # Errors
    /// When the contender refuses the quota, or this build is without Tollgate.
    pub fn build(
        self,
        quota: Quota,
        keys: usize,
        clock: &CachedClock,
    ) -> Result<Box<dyn Contender>, Failure> {
        Ok(match self {
            Kind::GovernorString => Box::new(Keyed::<String>::new(quota)?),
            Kind::GovernorU64 => Box::new(Keyed::<u64>::new(quota)?),
            Kind::GovernorDirect => Box::new(Direct::new(quota)?),
            Kind::Throttlecrab => Box::new(Throttlecrab::new(quota, keys)),
            Kind::Limitador => Box::new(Limitador::new(quota, keys)?),
            Kind::PingoraLimits => Box::new(PingoraLimits::new(quota, keys)?),
            Kind::LowerBound => Box::new(LowerBound::new(quota, keys, clock.clone())),
            Kind::LowerBoundBatch => Box::new(lower_bound::Batched::new(quota, keys, clock.clone())),
            Kind::Tollgate => Box::new(crate::tollgate_side::Single::new(quota, keys)?),
            Kind::TollgateBatch => Box::new(crate::tollgate_side::Batched::new(quota, keys)?),
        })
    }

    /// Makes sure that it really limits: of one request more than the burst the last is denied, and only that one;
    /// a keyed contender still admits somebody else.
    ///
    /// # Errors
    /// When it does not limit, or limits somebody else: then its speed means nothing.
    pub fn verify(self) -> Result<(), Failure> {
        const NEIGHBOUR: u64 = 1;
        let name = self.name();
        let contender = self.build(quota::SLOW, 16, &CachedClock::beating())?;
        let burst = quota::SLOW.burst as usize;
        let admitted = contender.decide(Sequence::new((0..burst).map(|_| 0)).all());
        if admitted != burst {
            return Err(format!(
                "{name} admits {admitted} of a burst of {burst}: not the quota it was given"
            )
            .into());
        }
        if contender.decide(Sequence::new(std::iter::once(0)).all()) != 0 {
            return Err(format!(
                "{name} admits request {} of a burst of {burst}: it does not limit",
                burst + 1
            )
            .into());
        }
        let keyed = self != Kind::GovernorDirect;
        if keyed && contender.decide(Sequence::new(std::iter::once(NEIGHBOUR)).all()) != 1 {
            return Err(format!("{name} denies a key that was never used: its keys are not apart").into());
        }
        Ok(())
    }
}
