//! Slots with a share for each client: requests and tunnels at one upstream, connections to all upstreams, uploads that
//! have not begun. A client waits for a slot of its own share first. So at most one share of each client waits for any
//! slot, and one client neither holds all slots nor fills the queue for them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tollgate_tower::attributes::Reader;
use tollgate_tower::attributes::address::Counted;

use crate::arrival::Arrival;

/// Maximum requests of one client that wait for a slot of its share. Each of them may hold a window of its body.
const WAITING_MAX: usize = 1_024;

/// The owner of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ShareOwner {
    /// One client, by the address that limits count it by.
    One(IpAddr),
    /// A trusted proxy that names no client. It represents many clients, and has no share.
    Many,
}

impl ShareOwner {
    /// The client of a request, as the limits identify it.
    pub(crate) fn of(arrival: &Arrival, reader: &Reader) -> Self {
        if reader.trusted.contains(arrival.client) {
            return ShareOwner::Many;
        }
        ShareOwner::One(Counted { address: arrival.client, ipv6_prefix: reader.ipv6_prefix }.network())
    }
}

/// Why no slot was free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The client's share is used up.
    Client,
    /// All slots are taken.
    All,
}

/// The slots and the shares of the clients.
#[derive(Debug)]
pub(crate) struct ClientShares {
    all: Arc<Semaphore>,
    /// Maximum slots of one client; `None` if one client may use all of them.
    per_client: Option<usize>,
    /// Clients that hold a slot or wait for one, and no others. The lock is held for one lookup when a request begins
    /// and one when it ends.
    clients: Mutex<HashMap<IpAddr, ClientShare>>,
}

/// One client's share.
#[derive(Debug)]
struct ClientShare {
    slots: Arc<Semaphore>,
    /// How many requests hold or await a slot. The share is removed when this is 0.
    members: usize,
}

impl ClientShares {
    /// This many slots, of which each client may use `per_client`.
    pub(crate) fn new(slots: usize, per_client: usize) -> Arc<Self> {
        Arc::new(Self {
            all: Arc::new(Semaphore::new(slots)),
            per_client: Some(per_client).filter(|share| *share < slots),
            clients: Mutex::default(),
        })
    }

    /// Unlimited slots in total, of which each client may use `per_client`.
    pub(crate) fn of_each_client(per_client: usize) -> Arc<Self> {
        Self::new(Semaphore::MAX_PERMITS, per_client)
    }

    /// The slots that this percentage of all is, at least one.
    pub(crate) fn part(slots: usize, percent: u32) -> usize {
        let percent = usize::try_from(percent).unwrap_or(usize::MAX);
        (slots.saturating_mul(percent) / 100).max(1)
    }

    /// Waits for a slot, at most for `timeout`. Returns it with the time that is left.
    ///
    /// # Errors
    /// When none is free in time, or too many requests of the client wait already.
    pub(crate) async fn take(
        self: &Arc<Self>,
        client: ShareOwner,
        timeout: Duration,
    ) -> Result<(Slot, Duration), Full> {
        let member = self.join(client)?;
        if let Ok(slot) = self.take_now(member.as_ref()) {
            return Ok((Slot { _permits: slot, _member: member }, timeout));
        }
        let begun = Instant::now();
        let until = begun + timeout;
        let own = match &member {
            None => None,
            Some(member) => {
                let own = timeout_at(until, Arc::clone(&member.slots).acquire_owned()).await;
                Some(own.map_err(|_| Full::Client)?.map_err(|_| Full::Client)?)
            }
        };
        let any = timeout_at(until, Arc::clone(&self.all).acquire_owned()).await;
        let any = any.map_err(|_| Full::All)?.map_err(|_| Full::All)?;
        let slot = Slot { _permits: (own, any), _member: member };
        Ok((slot, timeout.saturating_sub(begun.elapsed())))
    }

    /// Takes a slot, if one is free.
    ///
    /// # Errors
    /// When none is free.
    pub(crate) fn try_take(self: &Arc<Self>, client: ShareOwner) -> Result<Slot, Full> {
        let member = self.join(client)?;
        Ok(Slot { _permits: self.take_now(member.as_ref())?, _member: member })
    }

    fn take_now(&self, member: Option<&Member>) -> Result<Permits, Full> {
        let own = match member {
            None => None,
            Some(member) => Some(Arc::clone(&member.slots).try_acquire_owned().map_err(|_| Full::Client)?),
        };
        Ok((own, Arc::clone(&self.all).try_acquire_owned().map_err(|_| Full::All)?))
    }

    /// Joins the share of a client, to take one slot of it.
    fn join(self: &Arc<Self>, client: ShareOwner) -> Result<Option<Member>, Full> {
        let (ShareOwner::One(address), Some(per_client)) = (client, self.per_client) else { return Ok(None) };
        let mut clients = self.lock();
        let new = || ClientShare { slots: Arc::new(Semaphore::new(per_client)), members: 0 };
        let share = clients.entry(address).or_insert_with(new);
        if share.members >= per_client.saturating_add(WAITING_MAX) {
            return Err(Full::Client);
        }
        share.members += 1;
        Ok(Some(Member { shares: Arc::clone(self), address, slots: Arc::clone(&share.slots) }))
    }

    fn leave(&self, address: IpAddr) {
        let mut clients = self.lock();
        if let Some(share) = clients.get_mut(&address) {
            share.members = share.members.saturating_sub(1);
            if share.members == 0 {
                clients.remove(&address);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, ClientShare>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A permit of the client's share, where it has one, and a permit of all slots.
type Permits = (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit);

/// A slot. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct Slot {
    _permits: Permits,
    _member: Option<Member>,
}

/// A request that holds or awaits a slot of a client's share.
#[derive(Debug)]
struct Member {
    shares: Arc<ClientShares>,
    address: IpAddr,
    slots: Arc<Semaphore>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shares.leave(self.address);
    }
}

#[cfg(test)]
mod tests {
    use tollgate_tower::attributes::address::Trusted;

    use super::*;
    use crate::arrival::Peer;

    fn one(last: u8) -> ShareOwner {
        ShareOwner::One(IpAddr::from([192, 0, 2, last]))
    }

    fn taken(shares: &Arc<ClientShares>, client: ShareOwner, count: usize) -> Vec<Slot> {
        (0..count).map(|_| shares.try_take(client).unwrap()).collect()
    }

    /// One client gets its share and no more; others get theirs; a proxy for many clients gets all that is free. No
    /// share remains afterwards.
    #[test]
    fn one_client_has_its_share() {
        let shares = ClientShares::new(8, 2);
        let first = taken(&shares, one(1), 2);
        assert_eq!(shares.try_take(one(1)).unwrap_err(), Full::Client);
        let others: Vec<Slot> = [2, 3].into_iter().flat_map(|last| taken(&shares, one(last), 2)).collect();
        let many = taken(&shares, ShareOwner::Many, 2);
        assert_eq!(shares.try_take(one(4)).unwrap_err(), Full::All);
        assert_eq!(shares.try_take(ShareOwner::Many).unwrap_err(), Full::All);
        drop(first);
        assert!(shares.try_take(one(1)).is_ok() && shares.try_take(one(4)).is_ok());
        drop((others, many));
        assert_eq!((shares.lock().len(), shares.all.available_permits()), (0, 8));
    }

    /// A client whose share is used up waits for its own slots. The queue for all slots stays open to other clients,
    /// which are served before it.
    #[tokio::test(start_paused = true)]
    async fn a_full_share_delays_no_other_client() {
        let shares = ClientShares::new(4, 3);
        let mut held = taken(&shares, one(1), 3);
        let beyond: Vec<_> = (0..100)
            .map(|_| {
                let shares = Arc::clone(&shares);
                tokio::spawn(async move { shares.take(one(1), Duration::from_secs(5)).await.map(drop) })
            })
            .collect();
        tokio::task::yield_now().await;
        for last in 2..50 {
            assert!(shares.take(one(last), Duration::from_secs(5)).await.is_ok(), "{last}");
        }
        let last = shares.try_take(one(2)).unwrap();
        assert_eq!(shares.take(one(3), Duration::from_secs(1)).await.unwrap_err(), Full::All);
        drop(last);
        held.pop();
        tokio::task::yield_now().await;
        let mut served = 0;
        for waiter in beyond {
            served += usize::from(waiter.await.unwrap().is_ok());
        }
        assert_eq!(served, 100, "one slot of its share serves them one after the other");
        drop(held);
        assert_eq!((shares.lock().len(), shares.all.available_permits()), (0, 4));
    }

    /// The wait ends in time. An error says which slots were full, and a success returns the time that is left.
    #[tokio::test(start_paused = true)]
    async fn waits_end_in_time() {
        let shares = ClientShares::new(4, 1);
        let held = shares.try_take(one(1)).unwrap();
        let second = Duration::from_secs(1);
        let begun = Instant::now();
        assert_eq!(shares.take(one(1), 5 * second).await.unwrap_err(), Full::Client);
        assert_eq!(begun.elapsed(), 5 * second);
        tokio::spawn(async move {
            tokio::time::sleep(2 * second).await;
            drop(held);
        });
        let (_slot, left) = shares.take(one(1), 5 * second).await.unwrap();
        assert_eq!(left, 3 * second);
    }

    /// The queue of one client is bounded: the next request is refused at once, and other clients are not affected.
    #[tokio::test(start_paused = true)]
    async fn the_queue_of_a_client_is_bounded() {
        let shares = ClientShares::new(4, 1);
        let held = shares.try_take(one(1)).unwrap();
        let wait = || {
            let shares = Arc::clone(&shares);
            tokio::spawn(async move { shares.take(one(1), Duration::from_secs(5)).await.map(drop) })
        };
        let waiting: Vec<_> = (0..WAITING_MAX).map(|_| wait()).collect();
        while shares.lock().values().map(|share| share.members).sum::<usize>() < 1 + WAITING_MAX {
            tokio::task::yield_now().await;
        }
        let begun = Instant::now();
        assert_eq!(shares.take(one(1), Duration::from_secs(5)).await.unwrap_err(), Full::Client);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert!(shares.try_take(one(2)).is_ok());
        drop(held);
        for waiter in waiting {
            assert!(waiter.await.unwrap().is_ok());
        }
        assert_eq!((shares.lock().len(), shares.all.available_permits()), (0, 4));
    }

    /// A share is at least one slot, and sets no bound where it is all of them.
    #[test]
    fn shares_of_few_slots() {
        for (slots, percent, share) in [(512, 25, 128), (3, 25, 1), (1, 25, 1), (10_000, 100, 10_000)] {
            assert_eq!(ClientShares::part(slots, percent), share);
        }
        assert_eq!(ClientShares::new(1, 1).per_client, None);
        assert_eq!(ClientShares::new(2, 1).per_client, Some(1));
    }

    /// A client is identified as in the limits: by an IPv6 network, or by the address that a trusted proxy names.
    #[test]
    fn clients_are_those_of_limits() {
        let reader =
            Reader { trusted: Trusted::new(vec!["10.0.0.0/8".parse().unwrap()]), ..Reader::default() };
        let of = |client: &str| {
            let client: IpAddr = client.parse().unwrap();
            let peer = Peer { address: client, is_secure: false };
            let arrival = Arrival {
                peer,
                client,
                is_trusted: false,
                host: "a.test".to_owned(),
                keys: Vec::new(),
                version: http::Version::HTTP_11,
            };
            ShareOwner::of(&arrival, &reader)
        };
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_eq!(of("10.1.2.3"), ShareOwner::Many);
    }
}
