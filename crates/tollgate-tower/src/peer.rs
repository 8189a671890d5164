//! The address of a connection's other end, as servers put it into a request's extensions.

use std::net::{IpAddr, SocketAddr};

use http::Extensions;

/// The address of the connection's other end, for a server that puts it into the extensions itself.
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

/// The peer, from wherever a server has put it: [`Peer`], a bare address, or with the features `axum` and `tonic` what these
/// put there. Those who have none count as one client.
#[must_use]
#[inline]
pub fn of(extensions: &Extensions) -> Option<IpAddr> {
    // One that is alone is overruled by no other.
    #[cfg(feature = "axum")]
    if extensions.len() == 1
        && let Some(info) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(info.0.ip());
    }
    all_of(extensions)
}

fn all_of(extensions: &Extensions) -> Option<IpAddr> {
    let told = extensions.get::<Peer>().map(|peer| peer.0);
    let told = told.or_else(|| extensions.get::<SocketAddr>().map(SocketAddr::ip));
    #[cfg(feature = "axum")]
    let told =
        told.or_else(|| extensions.get::<axum::extract::ConnectInfo<SocketAddr>>().map(|info| info.0.ip()));
    #[cfg(feature = "tonic")]
    let told = told.or_else(|| {
        let info = extensions.get::<tonic::transport::server::TcpConnectInfo>()?;
        info.remote_addr().map(|address| address.ip())
    });
    told
}
