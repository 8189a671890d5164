//! How an accepted connection begins: directly, or with a TLS handshake that is bounded in time and number.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tollgate_gateway::listen::{Seat, Stream};

use crate::shutdown::{Stop, stopped};
use crate::tls::{Inside, Tls};

/// How long a handshake may take, including the wait for a permit.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum concurrent handshakes on one listener. A few per core would not do: handshakes that a client leaves
/// unfinished would block all others. This many can hold 64 MiB, and an attacker would have to open 200 connections a
/// second to block them.
const HANDSHAKES_MAX: usize = 1_024;

/// The TLS setup of one listener. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Door {
    /// Without TLS.
    Plain,
    /// With TLS.
    Tls {
        /// The certificates.
        tls: Arc<Tls>,
        /// The protocol inside TLS.
        inside: Inside,
        /// Permits for handshakes.
        places: Arc<Semaphore>,
    },
}

impl Door {
    /// The setup for a protocol: with TLS if `tls` is set.
    pub(crate) fn new(tls: Option<&Arc<Tls>>, inside: Inside) -> Self {
        tls.map_or(Door::Plain, |tls| Door::Tls {
            tls: Arc::clone(tls),
            inside,
            places: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
        })
    }

    /// Completes the handshake, or gives the connection up.
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
            () = stopped(&mut stop) => None, // No request was sent yet, so no client waits for an answer.
        }
    }
}
