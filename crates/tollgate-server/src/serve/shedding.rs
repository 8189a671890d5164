//! Starts the overload controllers from the config, and selects where the fleet's capacity is counted.

use std::sync::Arc;

use tollgate::{Clock, Engine};
use tollgate_overload::{FleetScope, FleetShedder, Plan};
use tollgate_tower::shed::Shedder;

use crate::service::Overload;
use crate::store::Stores;

/// Creates the controllers of a plan. A capacity of the whole fleet is counted by a second engine beside the one for
/// limits. Its units are leased ahead of time like those of limits, so a request waits for the store no longer than
/// without it. While the store is unreachable, each server has its share.
pub(super) fn start(plan: Plan, engine: &Engine<Stores>, clock: &Clock) -> Result<Overload, String> {
    let is_of_fleet = plan.fleet.as_ref().is_some_and(|fleet| fleet.scope == FleetScope::Fleet);
    let shedder =
        Shedder::new(plan, clock.clone()).map_err(|error| format!("overload.fleet.capacity: {error}"))?;
    let policy = shedder.controllers().fleet.as_ref().map(FleetShedder::policy).transpose();
    let policy = policy.map_err(|error| format!("overload.fleet: {error}"))?;
    match (engine.store(), policy) {
        (Stores::Redis(fleet), Some(policy)) if is_of_fleet => {
            let capacity =
                Arc::new(engine.maintenance().siblings().sibling(policy, Stores::Redis(Arc::clone(fleet))));
            let shedder = Arc::new(shedder.counting(Arc::clone(&capacity)));
            Ok(Overload { shedder, capacity: Some(capacity) })
        }
        _ => Ok(Overload { shedder: Arc::new(shedder), capacity: None }),
    }
}
