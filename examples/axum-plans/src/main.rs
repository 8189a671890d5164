//! An API whose callers have plans. The limits are in `policy.yaml`, the callers and their plans in `callers.yaml`.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::Engine;
use tollgate_tower::RateLimitLayer;
use tollgate_tower::attributes::callers::{ActiveCallers, Callers};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let callers = Callers::read("callers.yaml", &std::fs::read("callers.yaml")?)?;
    // A key that is not in the file is no identity: its requests count by address.
    let limits = RateLimitLayer::new(Engine::open("policy.yaml")?).callers(ActiveCallers::new(callers));
    let app = Router::new().route("/", get(async || "hello\n")).layer(limits);

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    // Limits by `ip` need the address of the peer.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
