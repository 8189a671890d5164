//! The fleet shedder: of a capacity, what is not critical may use all but a reserve. It is a pair of ordinary token buckets, one of the
//! whole capacity that everybody pays into, and one of what is not reserved that the others pay into as well, both or none. So it needs no
//! arithmetic of its own: it is a policy of two limits, and an [`Engine`](crate::Engine) over any store charges them: in memory for
//! a node, in Redis or by leases for a fleet.
//!
//! What follows from the arithmetic: what is not critical gets at most its share of rate and burst, so critical traffic that stays within
//! the reserve is never refused, whatever the others do; and while there is little of it, nothing of the reserve is lost to anybody but the
//! others, which is what a reserve is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::decision::Decision;
use crate::policy::{Consistency, Findings, Limit, Mode, Policy};
use crate::quota::{Quota, QuotaError, Rate};
use crate::request::CheckRequest;
use crate::time::{TICKS_PER_SECOND, Ticks, Timestamp};

use super::document::{FleetScope, FleetSettings};
use super::priority::Priority;
use super::refusal::{Cause, Controller, Refusal};
use super::report::Report;
use super::statistics::{ONE, scaled};
use super::switch::Switch;

/// The attribute that the two limits look at.
const PRIORITY: &str = "priority";
/// The limit of the whole capacity.
const ALL: &str = "overload.fleet";
/// The limit of what is not reserved.
const GENERAL: &str = "overload.fleet.general";

/// Keeps capacity for critical traffic.
#[derive(Debug)]
pub struct FleetShedder {
    settings: FleetSettings,
    /// Of the whole, and of what is not reserved.
    quotas: [Quota; 2],
    switch: Switch,
    refused: AtomicU64,
    would_refuse: AtomicU64,
}

impl FleetShedder {
    /// A shedder of this capacity.
    ///
    /// # Errors
    /// The capacity is no exact quota, or so small that less than one request of it is not reserved.
    pub fn new(settings: FleetSettings) -> Result<Self, QuotaError> {
        let burst = settings.capacity.burst_units().unwrap_or(settings.capacity.units());
        let rest = ONE.saturating_sub(settings.reserve);
        let general = scaled(burst, rest, ONE);
        // In thousandths of a longer period, so that no share of a small capacity is rounded away.
        let period = Ticks::from_micros(settings.capacity.period().as_micros().saturating_mul(ONE));
        let rate = Rate::per_ticks(settings.capacity.units().saturating_mul(rest), period).burst(general);
        Ok(Self {
            quotas: [Quota::token_bucket(settings.capacity.burst(burst))?, Quota::token_bucket(rate)?],
            switch: Switch::new(settings.mode),
            settings,
            refused: AtomicU64::new(0),
            would_refuse: AtomicU64::new(0),
        })
    }

    /// The policy of an engine that counts for it: over the fleet's store, or over memory.
    ///
    /// # Errors
    /// None that a shedder that exists could cause.
    pub fn policy(&self) -> Result<Policy, Findings> {
        let consistency = match self.settings.scope {
            FleetScope::Fleet => Consistency::Leased,
            FleetScope::Node => Consistency::Exact,
        };
        let [all, general] = self.quotas.clone();
        let general = Limit::new(GENERAL, general).when_one_of(PRIORITY, ["test", "read", "write"]);
        let both = [Limit::new(ALL, all), general];
        Policy::new(both.into_iter().map(|limit| limit.consistency(consistency)).collect())
    }

    /// Its mode and its kill switch.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// What to ask the engine about a request, unless the shedder is off.
    #[must_use]
    pub fn question(&self, priority: Priority, now: Timestamp) -> Option<CheckRequest<'static>> {
        if self.switch.mode(now) == Mode::Off {
            return None;
        }
        CheckRequest::new().with(PRIORITY, priority.as_str()).ok()
    }

    /// What the engine's answer means.
    ///
    /// # Errors
    /// The request is to be refused.
    pub fn judge(&self, decision: &Decision, priority: Priority, now: Timestamp) -> Result<(), Refusal> {
        if decision.is_allowed() {
            return Ok(());
        }
        match self.switch.mode(now) {
            Mode::Enforce => {
                self.refused.fetch_add(1, Relaxed);
                Err(Cause::Capacity.refusal(priority))
            }
            Mode::Shadow => {
                self.would_refuse.fetch_add(1, Relaxed);
                Ok(())
            }
            Mode::Off => Ok(()),
        }
    }

    /// The state of it. Its limit is the whole capacity in requests a second.
    #[must_use]
    pub fn report(&self, now: Timestamp) -> Report {
        let capacity = self.settings.capacity;
        Report {
            killed_until: self.switch.killed_until(now),
            limit: Some(scaled(capacity.units(), TICKS_PER_SECOND, capacity.period().as_micros())),
            refused: self.refused.load(Relaxed),
            would_refuse: self.would_refuse.load(Relaxed),
            ..Report::new(Controller::Fleet, self.switch.mode(now))
        }
    }
}
