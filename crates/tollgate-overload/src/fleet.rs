//! The fleet shedder: only critical traffic may use the reserve of a capacity. It is a pair of token buckets.
//! All traffic charges the bucket of the whole capacity. Other than critical traffic also charges the bucket
//! without the reserve, all or nothing. So it is a policy of two limits, charged by an
//! [`Engine`](tollgate::Engine) over any store: in memory for a node, in Redis or by leases for a fleet.
//!
//! Traffic that is not critical gets at most its share of rate and burst. So critical traffic within the
//! reserve is never refused. While there is little of it, the unused reserve is lost to the others.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tollgate::decision::Decision;
use tollgate::policy::{Consistency, Findings, Limit, Mode, Policy};
use tollgate::quota::Quota;
use tollgate::rate::{QuotaError, Rate};
use tollgate::request::CheckRequest;
use tollgate::time::{TICKS_PER_SECOND, Ticks, Timestamp};

use crate::document::{FleetScope, FleetSettings};
use crate::priority::Priority;
use crate::refusal::{Cause, Controller, Refusal};
use crate::report::ControllerReport;
use crate::statistics::{ONE, scaled};
use crate::switch::Switch;

/// The attribute that the two limits match.
const PRIORITY: &str = "priority";
/// The limit of the whole capacity.
const ALL: &str = "overload.fleet";
/// The limit without the reserve.
const GENERAL: &str = "overload.fleet.general";

/// Keeps capacity for critical traffic.
#[derive(Debug)]
pub struct FleetShedder {
    settings: FleetSettings,
    /// The whole capacity, and the capacity without the reserve.
    quotas: [Quota; 2],
    switch: Switch,
    refused: AtomicU64,
    would_refuse: AtomicU64,
}

impl FleetShedder {
    /// A shedder of this capacity.
    ///
    /// # Errors The capacity is not an exact quota, or the part that is not reserved is less than one
    /// request.
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

    /// The policy of the engine that counts the capacity, over the fleet's store or memory.
    ///
    /// # Errors None for an existing shedder.
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

    /// The mode and the kill switch.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// The request to the engine, unless the shedder is off.
    #[must_use]
    pub fn check_request(&self, priority: Priority, now: Timestamp) -> Option<CheckRequest<'static>> {
        if self.switch.mode(now) == Mode::Off {
            return None;
        }
        CheckRequest::new().with(PRIORITY, priority.as_str()).ok()
    }

    /// Applies the engine's decision.
    ///
    /// # Errors The request must be refused.
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

    /// The state of the shedder. The limit is the whole capacity in requests per second.
    #[must_use]
    pub fn report(&self, now: Timestamp) -> ControllerReport {
        let capacity = self.settings.capacity;
        ControllerReport {
            killed_until: self.switch.killed_until(now),
            limit: Some(scaled(capacity.units(), TICKS_PER_SECOND, capacity.period().as_micros())),
            refused: self.refused.load(Relaxed),
            would_refuse: self.would_refuse.load(Relaxed),
            ..ControllerReport::new(Controller::Fleet, self.switch.mode(now))
        }
    }
}
