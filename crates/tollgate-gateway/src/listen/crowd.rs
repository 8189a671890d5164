//! The connection limit of a public listener: how many connections each address has, and which one is evicted when a
//! new one needs a permit. It lists open connections only.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tollgate_tower::attributes::address::{Counted, Trusted};

pub use seat::Seat;

mod seat;

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
pub struct Bound {
    /// Maximum from one address; by default the part above.
    pub most: Option<u32>,
    /// Proxies that act for many clients, and have no limit.
    pub trusted: Trusted,
    /// How many leading bits of an IPv6 address identify a client.
    pub ipv6_prefix: u8,
}

/// The open connections.
#[derive(Debug)]
pub struct Crowd {
    bound: Bound,
    most: usize,
    start: Instant,
    /// Locked when a connection begins and when it ends, for a few steps each, and to examine [`LOOKS_MAX`] of them.
    present: Mutex<Present>,
    /// Connections that were refused because of their address, and those that were evicted. Relaxed: they guard
    /// nothing.
    turned_away: AtomicU64,
    sent_away: AtomicU64,
}

#[derive(Debug, Default)]
struct Present {
    /// In no order; each entry knows its index in the list.
    seats: Vec<Arc<Seat>>,
    /// The number of connections of each address. An address without any has no entry.
    by_address: HashMap<IpAddr, usize>,
    /// The index at which the next search begins.
    hand: usize,
}

impl Crowd {
    /// No connections yet, of at most `places`.
    pub fn new(bound: Bound, places: usize) -> Self {
        let most = bound.most.map_or((places / ADDRESS_PART).max(1), |most| most as usize);
        Self {
            bound,
            most,
            start: Instant::now(),
            present: Mutex::default(),
            turned_away: AtomicU64::new(0),
            sent_away: AtomicU64::new(0),
        }
    }

    /// Registers a connection of a peer; `None` if its address has its maximum.
    pub fn sit(self: &Arc<Self>, peer: IpAddr) -> Option<Seated> {
        let counted = Counted { address: peer, ipv6_prefix: self.bound.ipv6_prefix };
        let address = (!self.bound.trusted.contains(peer)).then(|| counted.network());
        let mut present = self.present();
        if let Some(address) = address {
            let taken = present.by_address.get(&address).copied().unwrap_or(0);
            if taken >= self.most {
                self.turned_away.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            present.by_address.insert(address, taken + 1);
        }
        let seat = Arc::new(Seat::taken(self.start, present.seats.len()));
        present.seats.push(Arc::clone(&seat));
        drop(present);
        Some(Seated { seat, address, crowd: Some(Arc::clone(self)) })
    }

    /// Evicts an idle connection. One that never sent a request goes before one that is idle after an answer, and then
    /// the longest idle one goes first. Returns whether there was one.
    pub fn make_room(&self) -> bool {
        let mut present = self.present();
        let count = present.seats.len();
        let (looks, hand) = (count.min(LOOKS_MAX), present.hand);
        let seen = (0..looks).filter_map(|step| present.seats.get((hand + step) % count));
        let idle = seen.filter_map(|seat| Some((seat.wish(GRACE)?, seat)));
        let chosen = idle.max_by_key(|(wish, _)| *wish).map(|(_, seat)| Arc::clone(seat));
        present.hand = if count == 0 { 0 } else { (hand + looks) % count };
        drop(present);
        let Some(seat) = chosen else { return false };
        seat.send_away();
        self.sent_away.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// How many connections were refused because of their address, and how many were evicted.
    pub fn numbers(&self) -> [u64; 2] {
        [&self.turned_away, &self.sent_away].map(|count| count.load(Ordering::Relaxed))
    }

    /// Maximum connections from one address.
    pub const fn most(&self) -> usize {
        self.most
    }

    fn leave(&self, seat: &Seat, address: Option<IpAddr>) {
        let mut present = self.present();
        let index = seat.index();
        if index < present.seats.len() {
            present.seats.swap_remove(index);
            if let Some(moved) = present.seats.get(index) {
                moved.moved_to(index);
            }
        }
        let Some(address) = address else { return };
        let left = present.by_address.get(&address).map_or(0, |taken| taken.saturating_sub(1));
        match left {
            0 => drop(present.by_address.remove(&address)),
            left => drop(present.by_address.insert(address, left)),
        }
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered connection. Dropping it removes the entry.
#[derive(Debug)]
pub struct Seated {
    /// Its entry.
    pub seat: Arc<Seat>,
    address: Option<IpAddr>,
    crowd: Option<Arc<Crowd>>,
}

impl Seated {
    /// For a listener that does not count addresses.
    pub fn uncounted() -> Self {
        Self { seat: Arc::new(Seat::taken(Instant::now(), 0)), address: None, crowd: None }
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        if let Some(crowd) = &self.crowd {
            crowd.leave(&self.seat, self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn crowd(most: Option<u32>, places: usize) -> Arc<Crowd> {
        let trusted = Trusted::new(vec!["10.0.0.0/8".parse().unwrap()]);
        Arc::new(Crowd::new(Bound { most, trusted, ipv6_prefix: 64 }, places))
    }

    fn sit(crowd: &Arc<Crowd>, peer: &str) -> Option<Seated> {
        crowd.sit(peer.parse().unwrap())
    }

    /// The number of listed connections, and of listed addresses.
    fn written(crowd: &Crowd) -> (usize, usize) {
        let present = crowd.present();
        (present.seats.len(), present.by_address.len())
    }

    /// All spellings of an IPv4 address share one limit, an IPv6 address shares that of its network, and a trusted
    /// proxy has none. The list is empty when the last connection has ended.
    #[tokio::test]
    async fn each_address_has_its_bound() {
        let crowd = crowd(Some(2), 100);
        let first = [sit(&crowd, "192.0.2.1").unwrap(), sit(&crowd, "::ffff:192.0.2.1").unwrap()];
        assert!(sit(&crowd, "192.0.2.1").is_none() && sit(&crowd, "64:ff9b::192.0.2.1").is_none());
        let other = sit(&crowd, "192.0.2.2").unwrap();
        let six = [sit(&crowd, "2001:db8::1").unwrap(), sit(&crowd, "2001:db8::ffff:0:0:2").unwrap()];
        assert!(sit(&crowd, "2001:db8::3").is_none());
        let next = sit(&crowd, "2001:db8:0:1::3").unwrap();
        let proxies: Vec<Seated> = (0..50).map(|_| sit(&crowd, "10.1.2.3").unwrap()).collect();
        assert_eq!(written(&crowd), (56, 4));
        assert_eq!(crowd.numbers(), [3, 0]);
        drop(first);
        assert!(sit(&crowd, "192.0.2.1").is_some());
        drop((other, six, next, proxies));
        assert_eq!(written(&crowd), (0, 0));
    }

    /// By default one address leaves half of the permits to others.
    #[tokio::test]
    async fn half_of_the_places_are_for_others() {
        for (places, most) in [(100_000, 50_000), (5, 2), (1, 1), (0, 1)] {
            assert_eq!(crowd(None, places).most(), most);
        }
        assert_eq!(crowd(Some(7), 5).most(), 7);
    }

    /// A connection that never sent a request is evicted before an idle one, and the longest waiting one first. A
    /// connection that is being answered, or that is new, is not evicted, and none is evicted twice.
    #[tokio::test(start_paused = true)]
    async fn those_who_ask_nothing_make_room() {
        let crowd = crowd(None, 100);
        let names = ["rested", "silent", "busy", "late"];
        let seats = names.map(|_| sit(&crowd, "192.0.2.1").unwrap());
        let tasks = names.map(|_| tokio::spawn(std::future::pending::<()>()));
        for (seated, task) in seats.iter().zip(&tasks) {
            seated.seat.is_served_by(task.abort_handle());
        }
        let second = GRACE + Duration::from_millis(1);
        seats[0].seat.begin();
        seats[2].seat.begin();
        seats[0].seat.end();
        assert!(!crowd.make_room(), "all have only just come");
        tokio::time::advance(second).await;
        seats[3].seat.begin();
        seats[3].seat.end();
        let gone = || {
            let told = crowd.make_room();
            let gone = seats.iter().zip(names).filter(|(seated, _)| seated.seat.is_leaving());
            (told, gone.map(|(_, name)| name).collect::<Vec<_>>())
        };
        assert_eq!(gone(), (true, vec!["silent"]));
        assert_eq!(gone(), (true, vec!["rested", "silent"]));
        assert_eq!(gone(), (false, vec!["rested", "silent"]));
        tokio::time::advance(second).await;
        assert_eq!(gone(), (true, vec!["rested", "silent", "late"]));
        assert!(!gone().0, "only one is left, and that one is answered");
        seats[2].seat.end();
        tokio::time::advance(second).await;
        assert!(gone().0);
        let [rested, silent, busy, late] = tasks;
        for task in [rested, silent, busy, late] {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        assert_eq!(crowd.numbers(), [0, 4]);
    }

    /// Each search examines at most `LOOKS_MAX` connections, and the next one continues from there.
    #[tokio::test(start_paused = true)]
    async fn all_are_looked_at_in_turn() {
        let crowd = crowd(None, 10_000);
        let seats: Vec<Seated> = (0..1_000).map(|_| sit(&crowd, "10.0.0.1").unwrap()).collect();
        seats.iter().for_each(|seated| seated.seat.begin());
        let task = tokio::spawn(std::future::pending::<()>());
        seats[990].seat.is_served_by(task.abort_handle());
        seats[990].seat.end();
        tokio::time::advance(GRACE * 2).await;
        let looks = (1..=16).find(|_| crowd.make_room());
        assert_eq!(looks, Some(16));
        assert!(task.await.unwrap_err().is_cancelled());
    }

    proptest! {
        /// After any sequence of connects and disconnects, the list contains exactly the open connections.
        #[test]
        fn the_book_is_about_those_who_are_there(steps in prop::collection::vec((0..6_u8, any::<prop::sample::Index>()), 0..200)) {
            let crowd = crowd(Some(3), 100);
            let mut here: Vec<(u8, Seated)> = Vec::new();
            for (step, at) in steps {
                if step < 4 {
                    let taken = here.iter().filter(|(who, _)| *who == step).count();
                    let seated = sit(&crowd, &format!("192.0.2.{step}"));
                    prop_assert_eq!(seated.is_some(), taken < 3);
                    here.extend(seated.map(|seated| (step, seated)));
                } else if !here.is_empty() {
                    here.swap_remove(at.index(here.len()));
                }
                let present = crowd.present();
                prop_assert_eq!(present.seats.len(), here.len());
                prop_assert_eq!(present.by_address.values().sum::<usize>(), here.len());
                prop_assert!(present.by_address.values().all(|taken| (1..=3).contains(taken)));
                prop_assert!(present.seats.iter().enumerate().all(|(index, seat)| seat.index() == index));
            }
        }
    }
}
