//! Room for bodies that are held, to be priced or until all of a small one is there: so much in all, and a part of it for those of one
//! client, so that none takes it from the others. It is taken as bytes come: what is only announced takes none.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::body::BodyError;
use super::shares::Client;
use super::upload::Lent;

/// Most bytes of bodies that one route holds to price them.
const BYTES_MAX: usize = 256 << 20;
/// The part of them that one client may have.
const CLIENTS_MIN: usize = 8;

/// The room.
pub(super) struct Room {
    bytes_max: usize,
    held: Mutex<Held>,
}

/// What is held, in all and by each client that holds anything.
#[derive(Default)]
struct Held {
    bytes: usize,
    clients: HashMap<Client, usize>,
}

impl Room {
    pub(super) fn new() -> Arc<Self> {
        Self::of(BYTES_MAX)
    }

    /// For so many bytes.
    pub(super) fn of(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, held: Mutex::default() })
    }

    /// Room for the body of a client, which has none yet.
    pub(super) fn enter(self: &Arc<Self>, client: Client) -> Arc<Stay> {
        let (bytes, is_refused) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Stay { room: Arc::clone(self), client, bytes, is_refused })
    }

    /// Locked for a few additions; whoever panics meanwhile leaves numbers that are whole.
    fn with<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        change(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The room of one body. It is given back when the last who knows it has gone.
pub(super) struct Stay {
    room: Arc<Room>,
    client: Client,
    /// Relaxed, as the flag: one task changes and reads them.
    bytes: AtomicUsize,
    is_refused: AtomicBool,
}

impl Stay {
    /// Takes so many bytes more, if there is room for them.
    pub(super) fn take(&self, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let most = self.room.bytes_max;
        let most_own = match self.client {
            Client::One(_) => most / CLIENTS_MIN,
            Client::Many => most,
        };
        let is_taken = self.room.with(|held| {
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

    /// Whether there was no room for all of it.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let bytes = self.bytes.load(Ordering::Relaxed);
        if bytes == 0 {
            return;
        }
        self.room.with(|held| {
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

/// A body that takes room as it comes.
pub(super) struct Roomed {
    pub(super) body: Lent,
    pub(super) stay: Arc<Stay>,
}

impl Body for Roomed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(bytes) = frame.data_ref()
            && !this.stay.take(bytes.len())
        {
            return Poll::Ready(Some(Err("there is no room for the body".into())));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One client has its part and no more, all together have the whole, and what was taken is there again.
    #[test]
    fn nobody_takes_it_from_others() {
        let room = Room::of(8 * 100);
        let client = |number: u8| Client::One(std::net::IpAddr::from([192, 0, 2, number]));
        let (one, same) = (room.enter(client(1)), room.enter(client(1)));
        assert!(one.take(60) && same.take(40) && !same.take(1));
        assert!(same.is_refused() && !one.is_refused());
        let others: Vec<_> = (2..9).map(|number| room.enter(client(number))).collect();
        assert!(others.iter().all(|other| other.take(100)));
        let late = room.enter(client(9));
        assert!(!late.take(1));
        drop(one);
        assert!(late.take(60) && !late.take(1));
        drop((same, others, late));
        room.with(|held| assert_eq!((held.bytes, held.clients.len()), (0, 0)));
    }

    /// A proxy for many clients has all of it, and nothing that was never taken is remembered.
    #[test]
    fn many_clients_have_all_of_it() {
        let room = Room::of(800);
        let stay = room.enter(Client::Many);
        assert!(stay.take(0) && stay.take(800) && !stay.take(1));
        drop((stay, room.enter(Client::Many)));
        room.with(|held| assert_eq!((held.bytes, held.clients.len()), (0, 0)));
    }
}
