//! The connection limit of each listener, and the fd budget of all listeners and upstream connections together. Each
//! listener has a part of the descriptors for itself, and so have connections to upstreams, so that load at one
//! listener does not block the others.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tollgate_gateway::listen::{Bound, Crowd, Descriptors, Links};

use crate::process::descriptors;
use crate::telemetry::{Meter, Sample, names};

/// Maximum concurrent connections to a listener for decisions, and to the gateway's. Further ones wait in the system's
/// backlog until one ends.
const CONNECTIONS_MAX: u32 = 10_000;
const PUBLIC_CONNECTIONS_MAX: u32 = 100_000;
/// File descriptors that are reserved for files, and the share of the others for connections, in per cent.
const FILES_RESERVED: usize = 64;
const FILES_SHARE: usize = 80;
/// The minimum for connections, however few descriptors there are.
const CONNECTIONS_MIN: usize = 8;
/// Each listener has one part in this many of all connection descriptors for itself: an eighth, and at least one.
const OWN_PART: usize = 8;
/// Connections to upstreams have one part in this many for themselves: a quarter. An idle client needs none there.
const LINKS_PART: usize = 4;
/// Interval of the search for a connection to evict, while no permit is free.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The reason label of a connection that was ended without a fault of its own: its address had its maximum, or another
/// connection needed its permit.
const ENDINGS: [&str; 2] = ["address", "room"];

/// The descriptors for the connections of a process's listeners.
pub(crate) struct House {
    own: usize,
    shared: Arc<Semaphore>,
}

impl House {
    /// The budget for this many listeners, and the descriptors for connections to upstreams, where one of the listeners
    /// is the gateway's.
    pub(crate) fn new(listeners: usize, has_gateway: bool) -> (Self, Links) {
        let all = descriptors().map_or(usize::MAX, share).min(Semaphore::MAX_PERMITS);
        Self::and_links(all, listeners, has_gateway)
    }

    fn and_links(connections: usize, listeners: usize, has_gateway: bool) -> (Self, Links) {
        let own = if has_gateway { (connections / LINKS_PART).max(1) } else { 0 };
        let house = Self::of(connections.saturating_sub(own), listeners);
        let own = Arc::new(Semaphore::new(own));
        let shared = Arc::clone(&house.shared);
        (house, Links::new(Descriptors::new(own, shared)))
    }

    fn of(connections: usize, listeners: usize) -> Self {
        let own = (connections / OWN_PART).max(1);
        let shared = connections.saturating_sub(own.saturating_mul(listeners));
        Self { own, shared: Arc::new(Semaphore::new(shared)) }
    }

    /// The connection limit of a listener for decisions.
    pub(crate) fn room(&self) -> Room {
        self.room_for(CONNECTIONS_MAX)
    }

    /// The connection limit of the gateway's listener, which any client may reach.
    pub(crate) fn public_room(&self, bound: Bound) -> Room {
        let mut room = self.room_for(PUBLIC_CONNECTIONS_MAX);
        let descriptors = self.own.saturating_add(self.shared.available_permits());
        room.crowd = Some(Arc::new(Crowd::new(bound, descriptors.min(room.most as usize))));
        room
    }

    fn room_for(&self, most: u32) -> Room {
        let own = Arc::new(Semaphore::new(self.own));
        let descriptors = Descriptors::new(own, Arc::clone(&self.shared));
        Room { most, places: Arc::new(Semaphore::new(most as usize)), descriptors, crowd: None }
    }
}

/// The permits for the connections of one listener.
pub(crate) struct Room {
    pub(super) most: u32,
    pub(super) places: Arc<Semaphore>,
    descriptors: Descriptors,
    /// The open connections by address, on a public listener.
    pub(super) crowd: Option<Arc<Crowd>>,
}

/// A connection's permit, and its descriptor.
pub(super) type Place = [OwnedSemaphorePermit; 2];

impl Room {
    /// Waits for a permit.
    pub(super) async fn place(&self) -> Result<Place, AcquireError> {
        let place = Arc::clone(&self.places).acquire_owned().await?;
        Ok([place, self.descriptors.one().await?])
    }

    /// Waits for a permit. On a public listener it evicts idle connections meanwhile.
    pub(super) async fn made_place(&self) -> Result<Place, AcquireError> {
        let Some(crowd) = &self.crowd else { return self.place().await };
        loop {
            crowd.make_room();
            if let Ok(place) = tokio::time::timeout(LOOK_EVERY, self.place()).await {
                return place;
            }
        }
    }

    /// Takes a permit, if one is free.
    pub(super) fn place_now(&self) -> Option<Place> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some([place, self.descriptors.one_now()?])
    }

    /// Registers the metric of ended connections, on a public listener.
    pub(crate) fn show(&self, meter: &Meter) {
        let Some(crowd) = self.crowd.clone() else { return };
        meter.probe(move |_| {
            let counts = ENDINGS.into_iter().zip(crowd.numbers());
            let sample = |(reason, value)| Sample {
                metric: &names::GATEWAY_ENDED,
                label: Some((names::label::REASON, reason)),
                value,
            };
            counts.map(sample).collect()
        });
    }

    /// How many permits are taken.
    pub(super) fn taken(&self) -> usize {
        (self.most as usize).saturating_sub(self.places.available_permits())
    }
}

/// How many of these descriptors connections may use. Some remain free, so that a snapshot or a policy can be opened.
fn share(descriptors: usize) -> usize {
    (descriptors / 100 * FILES_SHARE + descriptors % 100 * FILES_SHARE / 100)
        .saturating_sub(FILES_RESERVED)
        .max(CONNECTIONS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::fuzzing::at_once;

    fn all(room: &Room) -> Vec<Place> {
        std::iter::from_fn(|| room.place_now()).collect()
    }

    fn public(house: &House) -> Room {
        let trusted = tollgate_tower::attributes::address::Trusted::new(Vec::new());
        house.public_room(Bound { most: None, trusted, ipv6_prefix: 64 })
    }

    /// Connections never take the last descriptors.
    #[test]
    fn descriptors_are_left_for_files() {
        assert_eq!(share(1_024), 755);
        assert_eq!(share(128), 38);
        assert_eq!((share(64), share(0)), (8, 8));
        assert_eq!(share(usize::MAX), usize::MAX / 100 * 80 + 12 - 64);
        assert!(descriptors().is_none_or(|descriptors| descriptors > 0));
    }

    /// A listener whose clients take all that they can leaves each other listener its own part; together they take no
    /// more than all.
    #[test]
    fn each_listener_has_places_of_its_own() {
        for (connections, own) in [(755, 94), (38, 4), (8, 1)] {
            let house = House::of(connections, 3);
            let [crowded, second, third] = [house.room(), house.room(), house.room()];
            let crowd = all(&crowded);
            assert_eq!((crowd.len(), crowded.taken()), (connections - 2 * own, crowd.len()));
            assert_eq!((all(&second).len(), all(&third).len()), (own, own), "of {connections}");
            let (here, there) = (all(&second), all(&third));
            assert_eq!(crowd.len() + here.len() + there.len(), connections);
            drop(crowd);
            assert!(at_once(second.place()).is_ok(), "what is anybody's is free again");
        }
    }
    /// Idle clients of the gateway, however many, leave a quarter of all descriptors to connections to upstreams; with
    /// few clients, upstreams have more.
    #[test]
    fn upstreams_have_links_of_their_own() {
        for (connections, own) in [(15_936, 3_984), (755, 188), (8, 2)] {
            let (house, links) = House::and_links(connections, 2, true);
            let crowd: Vec<Place> = [public(&house), house.room()].iter().flat_map(all).collect();
            let linked: Vec<_> = std::iter::from_fn(|| links.one_now()).collect();
            assert_eq!((crowd.len(), linked.len()), (connections - own, own), "of {connections}");
            drop(crowd);
            assert!(at_once(links.one()).is_ok(), "what is anybody's may be a link");
        }
        let (house, _) = House::and_links(share(20_000), 2, true);
        assert!(
            all(&public(&house)).len() >= 10_000,
            "twenty thousand descriptors are for ten thousand clients"
        );
    }
}
