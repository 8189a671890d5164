//! Who is connected to a listener that anybody may reach: how many from each address, and who has to go when there is no place for
//! the next. The book holds those who are connected, and nobody else.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tollgate_tower::attributes::address::{Counted, Trusted};

pub(crate) use seat::Seat;

mod seat;

/// What part of a listener's places one address may take unless said: a half, and one at least.
const ADDRESS_PART: usize = 2;
/// How many connections are looked at to find one that has to go. It need not be the very first of all, and this is the bound on the work.
const LOOKS_MAX: usize = 64;
/// How long a connection may ask nothing before it may have to go: whoever has just come, or was just answered, is about to ask.
const GRACE: Duration = Duration::from_secs(1);

/// Who may have how many connections.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    /// Most from one address; the part above unless said.
    pub(crate) most: Option<u32>,
    /// Those who stand for many clients, and have no bound.
    pub(crate) trusted: Trusted,
    /// How many leading bits of an IPv6 address tell clients apart.
    pub(crate) ipv6_prefix: u8,
}

/// Who is connected.
#[derive(Debug)]
pub(crate) struct Crowd {
    bound: Bound,
    most: usize,
    start: Instant,
    /// Locked when a connection begins and when it ends, for a few steps each, and for a look at [`LOOKS_MAX`] of them.
    present: Mutex<Present>,
    /// Connections that were turned away for their address, and those that had to go. Relaxed: they guard nothing.
    turned_away: AtomicU64,
    sent_away: AtomicU64,
}

#[derive(Debug, Default)]
struct Present {
    /// In no order; each knows its place in the list.
    seats: Vec<Arc<Seat>>,
    /// How many of them are an address's; an address without any is not here.
    by_address: HashMap<IpAddr, usize>,
    /// Where the next look begins.
    hand: usize,
}

impl Crowd {
    /// Nobody yet, of at most `places`.
    pub(super) fn new(bound: Bound, places: usize) -> Self {
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

    /// A seat for a peer; none if its address has as many as it may.
    pub(super) fn sit(self: &Arc<Self>, peer: IpAddr) -> Option<Seated> {
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

    /// Sends one away who asks nothing: who has never asked before who rests after an answer, and whoever did so for longest. Tells whether
    /// there was one.
    pub(super) fn make_room(&self) -> bool {
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

    /// How many connections were turned away for their address, and how many had to go for others.
    pub(crate) fn numbers(&self) -> [u64; 2] {
        [&self.turned_away, &self.sent_away].map(|count| count.load(Ordering::Relaxed))
    }

    /// Most connections from one address.
    pub(super) const fn most(&self) -> usize {
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

/// A seat that is taken. Dropped, it is free again.
#[derive(Debug)]
pub(crate) struct Seated {
    pub(super) seat: Arc<Seat>,
    address: Option<IpAddr>,
    crowd: Option<Arc<Crowd>>,
}

impl Seated {
    /// Where nobody is counted.
    pub(super) fn uncounted() -> Self {
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

    /// How many connections and how many addresses are in the book.
    fn written(crowd: &Crowd) -> (usize, usize) {
        let present = crowd.present();
        (present.seats.len(), present.by_address.len())
    }

    /// An IPv4 address has its bound however it is spelled, an IPv6 address shares that of its network, and a trusted proxy has none. The
    /// book is empty when the last has gone.
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

    /// Unless said, one address leaves half of the places to others.
    #[tokio::test]
    async fn half_of_the_places_are_for_others() {
        for (places, most) in [(100_000, 50_000), (5, 2), (1, 1), (0, 1)] {
            assert_eq!(crowd(None, places).most(), most);
        }
        assert_eq!(crowd(Some(7), 5).most(), 7);
    }

    /// Who has never asked goes before who rests, and who has waited for longest before others. Nobody goes who is answered, or who has only
    /// just come, and nobody is told to go twice.
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

    /// However many there are, a look is at so many of them, and the next goes on from there.
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
        /// Whoever comes and goes in whatever order, the book is about those who are there.
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
