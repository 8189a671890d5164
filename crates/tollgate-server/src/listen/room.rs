//! Room for connections: so many to a listener, and no more of all listeners than there are descriptors. A part of those belongs
//! to each listener alone, so that no crowd at one door closes the others.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Most connections at once to one listener. Further ones wait in the system's queue until one ends.
pub(super) const CONNECTIONS_MAX: u32 = 10_000;
/// File descriptors that are left to files, and the share of the others that connections may take, in per cent.
const FILES_RESERVED: usize = 64;
const FILES_SHARE: usize = 80;
/// The least that connections may take however few descriptors there are.
const CONNECTIONS_MIN: usize = 8;
/// What part of all descriptors for connections is one listener's own: an eighth, and one at least.
const OWN_PART: usize = 8;

/// The descriptors that the listeners of a process have for their connections.
pub(crate) struct House {
    own: usize,
    shared: Arc<Semaphore>,
}

impl House {
    /// For so many listeners.
    pub(crate) fn new(listeners: usize) -> Self {
        Self::of(descriptors().map_or(usize::MAX, share).min(Semaphore::MAX_PERMITS), listeners)
    }

    /// The same in front of upstreams, and the descriptors for connections to those: half of all, since each request that is sent
    /// on takes one on either side.
    pub(crate) fn before_upstreams(listeners: usize) -> (Self, Arc<Semaphore>) {
        let all = descriptors().map_or(usize::MAX, share).min(Semaphore::MAX_PERMITS);
        (Self::of(all - all / 2, listeners), Arc::new(Semaphore::new((all / 2).max(1))))
    }

    fn of(connections: usize, listeners: usize) -> Self {
        let own = (connections / OWN_PART).max(1);
        let shared = connections.saturating_sub(own.saturating_mul(listeners));
        Self { own, shared: Arc::new(Semaphore::new(shared)) }
    }

    /// The room of one listener.
    pub(crate) fn room(&self) -> Room {
        Room {
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX as usize)),
            own: Arc::new(Semaphore::new(self.own)),
            shared: Arc::clone(&self.shared),
        }
    }
}

/// Places for the connections of one listener.
pub(crate) struct Room {
    pub(super) places: Arc<Semaphore>,
    /// Descriptors that nobody else takes, and those that are anybody's.
    own: Arc<Semaphore>,
    shared: Arc<Semaphore>,
}

/// A place taken, and its descriptor.
pub(super) type Place = [OwnedSemaphorePermit; 2];

impl Room {
    /// A place, once there is one.
    pub(super) async fn place(&self) -> Result<Place, AcquireError> {
        let place = Arc::clone(&self.places).acquire_owned().await?;
        let (own, shared) = (Arc::clone(&self.own), Arc::clone(&self.shared));
        let descriptor = tokio::select! {
            biased; // What others cannot take is taken first.
            own = own.acquire_owned() => own?,
            shared = shared.acquire_owned() => shared?,
        };
        Ok([place, descriptor])
    }

    /// A place, if there is one.
    pub(super) fn place_now(&self) -> Option<Place> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let own = Arc::clone(&self.own).try_acquire_owned();
        let descriptor = own.or_else(|_| Arc::clone(&self.shared).try_acquire_owned()).ok()?;
        Some([place, descriptor])
    }

    /// How many places are taken.
    pub(super) fn taken(&self) -> usize {
        (CONNECTIONS_MAX as usize).saturating_sub(self.places.available_permits())
    }
}

/// How many of so many descriptors connections may take: a snapshot or a policy must still find one to be opened with.
fn share(descriptors: usize) -> usize {
    (descriptors / 100 * FILES_SHARE + descriptors % 100 * FILES_SHARE / 100)
        .saturating_sub(FILES_RESERVED)
        .max(CONNECTIONS_MIN)
}

/// How many descriptors the system gives this process, where it says so; elsewhere the pause after a refusal has to do.
fn descriptors() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::at_once::at_once;

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
            let all = |room: &Room| std::iter::from_fn(|| room.place_now()).collect::<Vec<Place>>();
            let crowd = all(&crowded);
            assert_eq!((crowd.len(), crowded.taken()), (connections - 2 * own, crowd.len()));
            assert_eq!((all(&second).len(), all(&third).len()), (own, own), "of {connections}");
            let (here, there) = (all(&second), all(&third));
            assert_eq!(crowd.len() + here.len() + there.len(), connections);
            drop(crowd);
            assert!(at_once(second.place()).is_ok(), "what is anybody's is free again");
        }
    }
}
