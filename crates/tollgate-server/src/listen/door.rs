//! How a connection comes in: as it is, or through a handshake that is bounded in time and number.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::crowd::Seat;
use super::stream::Stream;
use crate::shutdown::{Stop, stopped};
use crate::tls::{Inside, Tls};

/// How long a handshake may take, its wait for a place included.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most handshakes at once on one listener. Not a few for each core: those that a client leaves half done would keep all others
/// out. This many can hold 64 MiB, and whoever would block them has to open 200 connections a second.
const HANDSHAKES_MAX: usize = 1_024;

/// The way in of one listener. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Door {
    /// Without TLS.
    Plain,
    /// With TLS.
    Tls {
        /// The certificates.
        tls: Arc<Tls>,
        /// What is spoken inside.
        inside: Inside,
        /// Places for handshakes.
        places: Arc<Semaphore>,
    },
}

impl Door {
    /// The door of a wire: with TLS if there is any.
    pub(crate) fn new(tls: Option<&Arc<Tls>>, inside: Inside) -> Self {
        tls.map_or(Door::Plain, |tls| Door::Tls {
            tls: Arc::clone(tls),
            inside,
            places: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
        })
    }

    /// Lets a connection in, or gives it up.
    pub(super) async fn open(&self, stream: TcpStream, seat: Arc<Seat>, mut stop: Stop) -> Option<Stream> {
        let Door::Tls { tls, inside, places } = self else {
            return Some(Stream::plain(stream, seat));
        };
        let handshake = async {
            let _place = places.acquire().await.ok()?;
            match tls.acceptor(*inside).accept(stream).await {
                Ok(stream) => Some(Stream::secure(stream, seat)),
                Err(error) => {
                    tracing::debug!(%error, "a handshake failed");
                    None
                }
            }
        };
        tokio::select! {
            opened = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake) => opened.ok().flatten(),
            () = stopped(&mut stop) => None, // Nothing was asked yet, so nobody waits for an answer.
        }
    }
}
