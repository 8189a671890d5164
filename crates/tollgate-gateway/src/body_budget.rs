//! The memory budget for bodies that are held, to be priced or until a small one is complete. There is a total, and a
//! share of it for each client, so that no client uses it up. Memory is counted as bytes come; an announced length
//! takes none.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::shares::ShareOwner;

/// Maximum bytes of bodies that one route holds to price them.
const BYTES_MAX: usize = 256 << 20;
/// One client may use one part in this many.
const CLIENTS_MIN: usize = 8;

/// The memory budget.
pub(crate) struct BodyBudget {
    bytes_max: usize,
    held: Mutex<Held>,
}

/// Bytes held, in total and by each client that holds any.
#[derive(Default)]
struct Held {
    bytes: usize,
    clients: HashMap<ShareOwner, usize>,
}

impl BodyBudget {
    pub(crate) fn new() -> Arc<Self> {
        Self::of(BYTES_MAX)
    }

    /// A budget of this many bytes.
    pub(crate) fn of(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, held: Mutex::default() })
    }

    /// Opens an account for the body of a client. It holds nothing yet.
    pub(crate) fn enter(self: &Arc<Self>, client: ShareOwner) -> Arc<BodyReservation> {
        let (bytes, is_refused) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(BodyReservation { budget: Arc::clone(self), client, bytes, is_refused })
    }

    /// The lock is held for a few additions. A panic in between leaves consistent numbers.
    fn with<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        change(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The memory of one body. It is released when the last handle is dropped.
pub(crate) struct BodyReservation {
    budget: Arc<BodyBudget>,
    client: ShareOwner,
    /// Relaxed, as the flag: one task changes and reads them.
    bytes: AtomicUsize,
    is_refused: AtomicBool,
}

impl BodyReservation {
    /// Takes this many more bytes from the budget. Returns false if they do not fit.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let most = self.budget.bytes_max;
        let most_own = match self.client {
            ShareOwner::One(_) => most / CLIENTS_MIN,
            ShareOwner::Many => most,
        };
        let is_taken = self.budget.with(|held| {
            let own = held.clients.get(&self.client).copied().unwrap_or(0);
            if bytes > most.saturating_sub(held.bytes) || bytes > most_own.saturating_sub(own) {
                return false;
            }
            held.bytes += bytes;
            held.clients.insert(self.client, own + bytes);
            true
        });
        if is_taken {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        } else {
            self.is_refused.store(true, Ordering::Relaxed);
        }
        is_taken
    }

    /// Whether a part of the body did not fit.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        let bytes = self.bytes.load(Ordering::Relaxed);
        if bytes == 0 {
            return;
        }
        self.budget.with(|held| {
            held.bytes = held.bytes.saturating_sub(bytes);
            let left = held.clients.get(&self.client).map_or(0, |own| own.saturating_sub(bytes));
            if left == 0 {
                held.clients.remove(&self.client);
            } else {
                held.clients.insert(self.client, left);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One client gets its share and no more, all clients together get the whole, and released memory can be used
    /// again.
    #[test]
    fn a_client_cannot_take_the_share_of_others() {
        let budget = BodyBudget::of(8 * 100);
        let client = |number: u8| ShareOwner::One(std::net::IpAddr::from([192, 0, 2, number]));
        let (one, same) = (budget.enter(client(1)), budget.enter(client(1)));
        assert!(one.take(60) && same.take(40) && !same.take(1));
        assert!(same.is_refused() && !one.is_refused());
        let others: Vec<_> = (2..9).map(|number| budget.enter(client(number))).collect();
        assert!(others.iter().all(|other| other.take(100)));
        let late = budget.enter(client(9));
        assert!(!late.take(1));
        drop(one);
        assert!(late.take(60) && !late.take(1));
        drop((same, others, late));
        budget.with(|held| assert_eq!((held.bytes, held.clients.len()), (0, 0)));
    }

    /// A proxy that acts for many clients may use the whole budget, and no entry remains for bodies that took
    /// nothing.
    #[test]
    fn many_clients_have_all_of_it() {
        let budget = BodyBudget::of(800);
        let stay = budget.enter(ShareOwner::Many);
        assert!(stay.take(0) && stay.take(800) && !stay.take(1));
        drop((stay, budget.enter(ShareOwner::Many)));
        budget.with(|held| assert_eq!((held.bytes, held.clients.len()), (0, 0)));
    }
}
