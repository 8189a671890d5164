//! The peer address of a connection, as servers put it into the extensions of a request.

use std::net::{IpAddr, SocketAddr};

use http::Extensions;

/// The peer address of a connection, for servers that put it into the extensions themselves.
///
/// ```
/// use std::net::IpAddr;
/// use tollgate_tower::peer::Peer;
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Peer("203.0.113.7".parse::<IpAddr>()?));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// The peer address of a request: from [`Peer`], from a bare `SocketAddr`, or with the features `axum` and `tonic` from
/// their types. All requests without one count as one client.
#[must_use]
#[inline]
pub fn of(extensions: &Extensions) -> Option<IpAddr> {
    // The usual case under axum: a single extension, so no other type takes precedence.
    #[cfg(feature = "axum")]
    if extensions.len() == 1
        && let Some(connection) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(connection.0.ip());
    }
    all_of(extensions)
}

fn all_of(extensions: &Extensions) -> Option<IpAddr> {
    let peer = extensions.get::<Peer>().map(|peer| peer.0);
    let peer = peer.or_else(|| extensions.get::<SocketAddr>().map(SocketAddr::ip));
    #[cfg(feature = "axum")]
    let peer = peer.or_else(|| {
        let connection = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()?;
        Some(connection.0.ip())
    });
    #[cfg(feature = "tonic")]
    let peer = peer.or_else(|| {
        let connection = extensions.get::<tonic::transport::server::TcpConnectInfo>()?;
        connection.remote_addr().map(|address| address.ip())
    });
    peer
}
