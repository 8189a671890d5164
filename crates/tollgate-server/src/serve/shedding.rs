//! The controllers of overload at their start: what they are told by the config, and where the fleet's capacity is counted.

use std::sync::Arc;

use tollgate::overload::{FleetScope, FleetShedder, Plan};
use tollgate::{Clock, Engine};
use tollgate_tower::shed::Shedder;

use crate::store::Stores;

/// The controllers at work.
pub(super) struct Shedding {
    pub(super) shedder: Arc<Shedder>,
    /// What counts a capacity of the whole fleet, where servers share a store.
    pub(super) capacity: Option<Arc<Engine<Stores>>>,
}

/// The controllers of a plan. What counts a capacity of the whole fleet is an engine of its own beside the one of
/// the limits: its units are drawn ahead of time as theirs are, so a request waits for the store no longer than without it; and while the
/// store is away each server has its share.
pub(super) fn start(plan: Plan, engine: &Engine<Stores>, clock: &Clock) -> Result<Shedding, String> {
    let is_of_fleet = plan.fleet.as_ref().is_some_and(|fleet| fleet.scope == FleetScope::Fleet);
    let shedder =
        Shedder::new(plan, clock.clone()).map_err(|error| format!("overload.fleet.capacity: {error}"))?;
    let policy = shedder.controllers().fleet.as_ref().map(FleetShedder::policy).transpose();
    let policy = policy.map_err(|error| format!("overload.fleet: {error}"))?;
    match (engine.store(), policy) {
        (Stores::Redis(fleet), Some(policy)) if is_of_fleet => {
            let capacity = Arc::new(engine.sibling(policy, Stores::Redis(Arc::clone(fleet))));
            let shedder = Arc::new(shedder.counting(Arc::clone(&capacity)));
            Ok(Shedding { shedder, capacity: Some(capacity) })
        }
        _ => Ok(Shedding { shedder: Arc::new(shedder), capacity: None }),
    }
}
