//! The connection limit of a public listener: how many connections each address has, and which one is evicted when a
//! new one needs a permit. It lists open connections only.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tollgate_tower::attributes::address::{Counted, Trusted};

pub use activity::ConnectionActivity;

mod activity;

/// An address may have one part in this many of a listener's permits by default: a half, and at least one.
const ADDRESS_PART: usize = 2;
/// How many connections are examined to find one to evict. The choice need not be the best of all, and this bounds the
/// work.
const LOOKS_MAX: usize = 64;
/// How long a connection may be idle before it can be evicted. A client that has just connected, or was just answered,
/// is about to send a request.
const GRACE: Duration = Duration::from_secs(1);

/// The limits on connections from one address.
#[derive(Clone, Debug)]
pub struct AddressLimit {
    /// Maximum from one address; by default the part above.
    pub most: Option<u32>,
    /// Proxies that act for many clients, and have no limit.
    pub trusted: Trusted,
    /// How many leading bits of an IPv6 address identify a client.
    pub ipv6_prefix: u8,
}

/// The open connections.
#[derive(Debug)]
pub struct ConnectionTable {
    bound: AddressLimit,
    most: usize,
    start: Instant,
    /// Locked when a connection begins and when it ends, for a few steps each, and to examine [`LOOKS_MAX`] of them.
    open: Mutex<OpenConnections>,
    /// Connections that were refused because of their address, and those that were evicted. Relaxed: they guard
    /// nothing.
    refused: AtomicU64,
    evicted: AtomicU64,
}

#[derive(Debug, Default)]
struct OpenConnections {
    /// In no order; each entry knows its index in the list.
    entries: Vec<Arc<ConnectionActivity>>,
    /// The number of connections of each address. An address without any has no entry.
    by_address: HashMap<IpAddr, usize>,
    /// The index at which the next search begins.
    hand: usize,
}

impl ConnectionTable {
    /// No connections yet, of at most `permits`.
    pub fn new(bound: AddressLimit, permits: usize) -> Self {
        let most = bound.most.map_or((permits / ADDRESS_PART).max(1), |most| most as usize);
        Self {
            bound,
            most,
            start: Instant::now(),
            open: Mutex::default(),
            refused: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Registers a connection of a peer; `None` if its address has its maximum.
    pub fn register(self: &Arc<Self>, peer: IpAddr) -> Option<Registration> {
        let counted = Counted { address: peer, ipv6_prefix: self.bound.ipv6_prefix };
        let address = (!self.bound.trusted.contains(peer)).then(|| counted.network());
        let mut open = self.open();
        if let Some(address) = address {
            let taken = open.by_address.get(&address).copied().unwrap_or(0);
            if taken >= self.most {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            open.by_address.insert(address, taken + 1);
        }
        let activity = Arc::new(ConnectionActivity::taken(self.start, open.entries.len()));
        open.entries.push(Arc::clone(&activity));
        drop(open);
        Some(Registration { activity, address, connection_table: Some(Arc::clone(self)) })
    }

    /// Evicts an idle connection. One that never sent a request goes before one that is idle after an answer, and then
    /// the longest idle one goes first. Returns whether there was one.
    pub fn evict_idle(&self) -> bool {
        let mut open = self.open();
        let count = open.entries.len();
        let (looks, hand) = (count.min(LOOKS_MAX), open.hand);
        let seen = (0..looks).filter_map(|step| open.entries.get((hand + step) % count));
        let idle = seen.filter_map(|activity| Some((activity.eviction_priority(GRACE)?, activity)));
        let chosen = idle
            .max_by_key(|(eviction_priority, _)| *eviction_priority)
            .map(|(_, activity)| Arc::clone(activity));
        open.hand = if count == 0 { 0 } else { (hand + looks) % count };
        drop(open);
        let Some(activity) = chosen else { return false };
        activity.evict();
        self.evicted.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// How many connections were refused because of their address, and how many were evicted.
    pub fn counts(&self) -> [u64; 2] {
        [&self.refused, &self.evicted].map(|count| count.load(Ordering::Relaxed))
    }

    /// Maximum connections from one address.
    pub const fn most(&self) -> usize {
        self.most
    }

    fn leave(&self, activity: &ConnectionActivity, address: Option<IpAddr>) {
        let mut open = self.open();
        let index = activity.index();
        if index < open.entries.len() {
            open.entries.swap_remove(index);
            if let Some(moved) = open.entries.get(index) {
                moved.moved_to(index);
            }
        }
        let Some(address) = address else { return };
        let left = open.by_address.get(&address).map_or(0, |taken| taken.saturating_sub(1));
        match left {
            0 => drop(open.by_address.remove(&address)),
            left => drop(open.by_address.insert(address, left)),
        }
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered connection. Dropping it removes the entry.
#[derive(Debug)]
pub struct Registration {
    /// Its entry.
    pub activity: Arc<ConnectionActivity>,
    address: Option<IpAddr>,
    connection_table: Option<Arc<ConnectionTable>>,
}

impl Registration {
    /// For a listener that does not count addresses.
    pub fn uncounted() -> Self {
        Self {
            activity: Arc::new(ConnectionActivity::taken(Instant::now(), 0)),
            address: None,
            connection_table: None,
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(connection_table) = &self.connection_table {
            connection_table.leave(&self.activity, self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn connection_table(most: Option<u32>, permits: usize) -> Arc<ConnectionTable> {
        let trusted = Trusted::new(vec!["10.0.0.0/8".parse().unwrap()]);
        Arc::new(ConnectionTable::new(AddressLimit { most, trusted, ipv6_prefix: 64 }, permits))
    }

    fn register(connection_table: &Arc<ConnectionTable>, peer: &str) -> Option<Registration> {
        connection_table.register(peer.parse().unwrap())
    }

    /// The number of listed connections, and of listed addresses.
    fn written(connection_table: &ConnectionTable) -> (usize, usize) {
        let open = connection_table.open();
        (open.entries.len(), open.by_address.len())
    }

    /// All spellings of an IPv4 address share one limit, an IPv6 address shares that of its network, and a trusted
    /// proxy has none. The list is empty when the last connection has ended.
    #[tokio::test]
    async fn each_address_has_its_bound() {
        let connection_table = connection_table(Some(2), 100);
        let first = [
            register(&connection_table, "192.0.2.1").unwrap(),
            register(&connection_table, "::ffff:192.0.2.1").unwrap(),
        ];
        assert!(
            register(&connection_table, "192.0.2.1").is_none()
                && register(&connection_table, "64:ff9b::192.0.2.1").is_none()
        );
        let other = register(&connection_table, "192.0.2.2").unwrap();
        let six = [
            register(&connection_table, "2001:db8::1").unwrap(),
            register(&connection_table, "2001:db8::ffff:0:0:2").unwrap(),
        ];
        assert!(register(&connection_table, "2001:db8::3").is_none());
        let next = register(&connection_table, "2001:db8:0:1::3").unwrap();
        let proxies: Vec<Registration> =
            (0..50).map(|_| register(&connection_table, "10.1.2.3").unwrap()).collect();
        assert_eq!(written(&connection_table), (56, 4));
        assert_eq!(connection_table.counts(), [3, 0]);
        drop(first);
        assert!(register(&connection_table, "192.0.2.1").is_some());
        drop((other, six, next, proxies));
        assert_eq!(written(&connection_table), (0, 0));
    }

    /// By default one address leaves half of the permits to others.
    #[tokio::test]
    async fn half_of_the_permits_are_for_other_addresses() {
        for (permits, most) in [(100_000, 50_000), (5, 2), (1, 1), (0, 1)] {
            assert_eq!(connection_table(None, permits).most(), most);
        }
        assert_eq!(connection_table(Some(7), 5).most(), 7);
    }

    /// A connection that never sent a request is evicted before an idle one, and the longest waiting one first. A
    /// connection that is being answered, or that is new, is not evicted, and none is evicted twice.
    #[tokio::test(start_paused = true)]
    async fn those_who_ask_nothing_make_room() {
        let connection_table = connection_table(None, 100);
        let names = ["rested", "silent", "busy", "late"];
        let entries = names.map(|_| register(&connection_table, "192.0.2.1").unwrap());
        let tasks = names.map(|_| tokio::spawn(std::future::pending::<()>()));
        for (registration, task) in entries.iter().zip(&tasks) {
            registration.activity.is_served_by(task.abort_handle());
        }
        let second = GRACE + Duration::from_millis(1);
        entries[0].activity.begin();
        entries[2].activity.begin();
        entries[0].activity.end();
        assert!(!connection_table.evict_idle(), "all have only just come");
        tokio::time::advance(second).await;
        entries[3].activity.begin();
        entries[3].activity.end();
        let gone = || {
            let evicted = connection_table.evict_idle();
            let gone =
                entries.iter().zip(names).filter(|(registration, _)| registration.activity.is_evicted());
            (evicted, gone.map(|(_, name)| name).collect::<Vec<_>>())
        };
        assert_eq!(gone(), (true, vec!["silent"]));
        assert_eq!(gone(), (true, vec!["rested", "silent"]));
        assert_eq!(gone(), (false, vec!["rested", "silent"]));
        tokio::time::advance(second).await;
        assert_eq!(gone(), (true, vec!["rested", "silent", "late"]));
        assert!(!gone().0, "only one is left, and that one is answered");
        entries[2].activity.end();
        tokio::time::advance(second).await;
        assert!(gone().0);
        let [rested, silent, busy, late] = tasks;
        for task in [rested, silent, busy, late] {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        assert_eq!(connection_table.counts(), [0, 4]);
    }

    /// Each search examines at most `LOOKS_MAX` connections, and the next one continues from there.
    #[tokio::test(start_paused = true)]
    async fn all_are_looked_at_in_turn() {
        let connection_table = connection_table(None, 10_000);
        let entries: Vec<Registration> =
            (0..1_000).map(|_| register(&connection_table, "10.0.0.1").unwrap()).collect();
        entries.iter().for_each(|registration| registration.activity.begin());
        let task = tokio::spawn(std::future::pending::<()>());
        entries[990].activity.is_served_by(task.abort_handle());
        entries[990].activity.end();
        tokio::time::advance(GRACE * 2).await;
        let looks = (1..=16).find(|_| connection_table.evict_idle());
        assert_eq!(looks, Some(16));
        assert!(task.await.unwrap_err().is_cancelled());
    }

    proptest! {
        /// After any sequence of connects and disconnects, the list contains exactly the open connections.
        #[test]
        fn the_book_is_about_those_who_are_there(steps in prop::collection::vec((0..6_u8, any::<prop::sample::Index>()), 0..200)) {
            let connection_table = connection_table(Some(3), 100);
            let mut here: Vec<(u8, Registration)> = Vec::new();
            for (step, at) in steps {
                if step < 4 {
                    let taken = here.iter().filter(|(who, _)| *who == step).count();
                    let registration = register(&connection_table, &format!("192.0.2.{step}"));
                    prop_assert_eq!(registration.is_some(), taken < 3);
                    here.extend(registration.map(|registration| (step, registration)));
                } else if !here.is_empty() {
                    here.swap_remove(at.index(here.len()));
                }
                let open = connection_table.open();
                prop_assert_eq!(open.entries.len(), here.len());
                prop_assert_eq!(open.by_address.values().sum::<usize>(), here.len());
                prop_assert!(open.by_address.values().all(|taken| (1..=3).contains(taken)));
                prop_assert!(open.entries.iter().enumerate().all(|(index, activity)| activity.index() == index));
            }
        }
    }
}
