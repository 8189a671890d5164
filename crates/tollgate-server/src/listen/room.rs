//! Room for connections: so many to a listener, and no more of all listeners and to all upstreams than there are descriptors. A part
//! of those belongs to each listener alone, and one to connections to upstreams, so that no crowd at one door closes the others.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{AcquireError, Notify, OwnedSemaphorePermit, Semaphore};

use super::crowd::{Bound, Crowd};
use crate::process::descriptors;
use crate::telemetry::{Meter, Sample, names};

/// Most connections at once to one listener of those who ask for decisions, and to the gateway's. Further ones wait in the system's
/// queue until one ends.
const CONNECTIONS_MAX: u32 = 10_000;
const PUBLIC_CONNECTIONS_MAX: u32 = 100_000;
/// File descriptors that are left to files, and the share of the others that connections may take, in per cent.
const FILES_RESERVED: usize = 64;
const FILES_SHARE: usize = 80;
/// The least that connections may take however few descriptors there are.
const CONNECTIONS_MIN: usize = 8;
/// What part of all descriptors for connections is one listener's own: an eighth, and one at least.
const OWN_PART: usize = 8;
/// What part of them is for connections to upstreams alone: a quarter. A client that rests needs none there.
const LINKS_PART: usize = 4;
/// How often it is looked who might go, where there is no place and nobody went.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Why a connection was ended that had done nothing wrong, as a label: its address had as many as it may, or others needed its place.
const ENDINGS: [&str; 2] = ["address", "room"];

/// The descriptors that the listeners of a process have for their connections.
pub(crate) struct House {
    own: usize,
    shared: Arc<Semaphore>,
}

impl House {
    /// For so many listeners, and the descriptors for connections to upstreams, where one of the listeners is the gateway's.
    pub(crate) fn new(listeners: usize, has_gateway: bool) -> (Self, Links) {
        let all = descriptors().map_or(usize::MAX, share).min(Semaphore::MAX_PERMITS);
        Self::and_links(all, listeners, has_gateway)
    }

    fn and_links(connections: usize, listeners: usize, has_gateway: bool) -> (Self, Links) {
        let own = if has_gateway { (connections / LINKS_PART).max(1) } else { 0 };
        let house = Self::of(connections.saturating_sub(own), listeners);
        let own = Arc::new(Semaphore::new(own));
        let shared = Arc::clone(&house.shared);
        let most = own.available_permits().saturating_add(shared.available_permits());
        (house, Links { most, descriptors: Descriptors { own, shared }, wanted: Arc::default() })
    }

    fn of(connections: usize, listeners: usize) -> Self {
        let own = (connections / OWN_PART).max(1);
        let shared = connections.saturating_sub(own.saturating_mul(listeners));
        Self { own, shared: Arc::new(Semaphore::new(shared)) }
    }

    /// The room of a listener for those who ask for decisions.
    pub(crate) fn room(&self) -> Room {
        self.room_for(CONNECTIONS_MAX)
    }

    /// The room of the listener in front of upstreams, which anybody may reach.
    pub(crate) fn public_room(&self, bound: Bound) -> Room {
        let mut room = self.room_for(PUBLIC_CONNECTIONS_MAX);
        let descriptors = self.own.saturating_add(self.shared.available_permits());
        room.crowd = Some(Arc::new(Crowd::new(bound, descriptors.min(room.most as usize))));
        room
    }

    fn room_for(&self, most: u32) -> Room {
        let own = Arc::new(Semaphore::new(self.own));
        let descriptors = Descriptors { own, shared: Arc::clone(&self.shared) };
        Room { most, places: Arc::new(Semaphore::new(most as usize)), descriptors, crowd: None }
    }
}

/// Descriptors that nobody else takes, and those that are anybody's.
#[derive(Clone)]
struct Descriptors {
    own: Arc<Semaphore>,
    shared: Arc<Semaphore>,
}

impl Descriptors {
    /// One of them, once there is one.
    async fn one(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        let (own, shared) = (Arc::clone(&self.own), Arc::clone(&self.shared));
        tokio::select! {
            biased; // What others cannot take is taken first.
            own = own.acquire_owned() => own,
            shared = shared.acquire_owned() => shared,
        }
    }

    /// One of them, if there is one.
    fn one_now(&self) -> Option<OwnedSemaphorePermit> {
        let own = Arc::clone(&self.own).try_acquire_owned();
        own.or_else(|_| Arc::clone(&self.shared).try_acquire_owned()).ok()
    }
}

/// The descriptors for connections to upstreams.
#[derive(Clone)]
pub(crate) struct Links {
    most: usize,
    descriptors: Descriptors,
    /// Notified when there is none for a connection that is needed.
    wanted: Arc<Notify>,
}

impl Links {
    /// Only so many, for a test.
    #[cfg(test)]
    pub(crate) fn of(links: usize) -> Self {
        let (own, shared) = (Arc::new(Semaphore::new(links)), Arc::new(Semaphore::new(0)));
        Self { most: links, descriptors: Descriptors { own, shared }, wanted: Arc::default() }
    }

    /// How many there are at most, where no listener needs what it shares with them.
    pub(crate) const fn most(&self) -> usize {
        self.most
    }

    /// Returns when one was needed and there was none.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// One of them, once there is one.
    pub(crate) async fn one(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        if let Some(one) = self.descriptors.one_now() {
            return Ok(one);
        }
        self.wanted.notify_one();
        self.descriptors.one().await
    }
}

/// Places for the connections of one listener.
pub(crate) struct Room {
    pub(super) most: u32,
    pub(super) places: Arc<Semaphore>,
    descriptors: Descriptors,
    /// Who is there, where anybody may be.
    pub(super) crowd: Option<Arc<Crowd>>,
}

/// A place taken, and its descriptor.
pub(super) type Place = [OwnedSemaphorePermit; 2];

impl Room {
    /// A place, once there is one.
    pub(super) async fn place(&self) -> Result<Place, AcquireError> {
        let place = Arc::clone(&self.places).acquire_owned().await?;
        Ok([place, self.descriptors.one().await?])
    }

    /// A place, once somebody has gone who asked nothing, where anybody may be, or who was done.
    pub(super) async fn made_place(&self) -> Result<Place, AcquireError> {
        let Some(crowd) = &self.crowd else { return self.place().await };
        loop {
            crowd.make_room();
            if let Ok(place) = tokio::time::timeout(LOOK_EVERY, self.place()).await {
                return place;
            }
        }
    }

    /// A place, if there is one.
    pub(super) fn place_now(&self) -> Option<Place> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some([place, self.descriptors.one_now()?])
    }

    /// Shows how many connections had to go, where anybody may come.
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

    /// How many places are taken.
    pub(super) fn taken(&self) -> usize {
        (self.most as usize).saturating_sub(self.places.available_permits())
    }
}

/// How many of so many descriptors connections may take: a snapshot or a policy must still find one to be opened with.
fn share(descriptors: usize) -> usize {
    (descriptors / 100 * FILES_SHARE + descriptors % 100 * FILES_SHARE / 100)
        .saturating_sub(FILES_RESERVED)
        .max(CONNECTIONS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::at_once::at_once;

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

    /// A listener whose clients take all that they can leaves each other one its own part; together they take no more than all.
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
    /// However many clients rest at the gateway, connections to upstreams have a quarter of all descriptors; where clients are few they
    /// have more.
    #[test]
    fn upstreams_have_links_of_their_own() {
        for (connections, own) in [(15_936, 3_984), (755, 188), (8, 2)] {
            let (house, links) = House::and_links(connections, 2, true);
            let crowd: Vec<Place> = [public(&house), house.room()].iter().flat_map(all).collect();
            let linked: Vec<_> = std::iter::from_fn(|| links.descriptors.one_now()).collect();
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
