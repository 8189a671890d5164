//! Opens connections to the server.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::error::LoadError;

/// How long an answer may take before the run fails.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a connection with Nagle's algorithm off.
pub(crate) async fn connected(target: SocketAddr) -> Result<TcpStream, LoadError> {
    let failed = |error: std::io::Error| LoadError::Connect { target, reason: error.to_string() };
    let stream = TcpStream::connect(target).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    Ok(stream)
}
