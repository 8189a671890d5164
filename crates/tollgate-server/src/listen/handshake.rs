//! How an accepted connection begins: directly, or with a TLS handshake that is bounded in time and number.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tollgate_gateway::listen::{ConnectionActivity, Stream};

use crate::shutdown::{Stop, stopped};
use crate::tls::{AlpnProtocol, Tls};

/// How long a handshake may take, including the wait for a permit.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum concurrent handshakes on one listener. A few per core would not do: handshakes that a client leaves
/// unfinished would block all others. This many can hold 64 MiB, and an attacker would have to open 200 connections a
/// second to block them.
const HANDSHAKES_MAX: usize = 1_024;

/// The TLS setup of one listener. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Handshake {
    /// Without TLS.
    Plain,
    /// With TLS.
    Tls {
        /// The certificates.
        tls: Arc<Tls>,
        /// The protocol inside TLS.
        alpn: AlpnProtocol,
        /// Permits for handshakes.
        permits: Arc<Semaphore>,
    },
}

impl Handshake {
    /// The setup for a protocol: with TLS if `tls` is set.
    pub(crate) fn new(tls: Option<&Arc<Tls>>, alpn: AlpnProtocol) -> Self {
        tls.map_or(Handshake::Plain, |tls| Handshake::Tls {
            tls: Arc::clone(tls),
            alpn,
            permits: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
        })
    }

    /// Completes the handshake, or gives the connection up.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        activity: Arc<ConnectionActivity>,
        mut stop: Stop,
    ) -> Option<Stream> {
        let Handshake::Tls { tls, alpn, permits } = self else {
            return Some(Stream::plain(stream, activity));
        };
        let handshake = async {
            let _permit = permits.acquire().await.ok()?;
            match tls.acceptor(*alpn).accept(stream).await {
                Ok(stream) => Some(Stream::secure(stream, activity)),
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
