//! A tonic service with limits: its health service accepts three calls a minute from each address. A refused call gets
//! `RESOURCE_EXHAUSTED` with a `RetryInfo`.
//!
//! ```sh
//! cargo run -p tollgate-tower --example tonic
//! ```

use tollgate_tower::RateLimitLayer;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

#[tokio::main]
#[allow(clippy::print_stdout, reason = "an example prints to its user")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = RateLimitLayer::per_ip("3/min")?;
    let (_, health) = tonic_health::server::health_reporter();
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3001".to_owned());
    let incoming = TcpIncoming::bind(address.parse()?)?;
    println!("listening on {}", incoming.local_addr()?);
    Server::builder().layer(limits).add_service(health).serve_with_incoming(incoming).await?;
    Ok(())
}
