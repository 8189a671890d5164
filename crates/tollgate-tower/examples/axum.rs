//! An axum service with limits:
//!
//! ```sh
//! cargo run -p tollgate-tower --example axum
//! for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{http_code} ' -H 'X-Key: me' 127.0.0.1:3000/; done
//! ```

use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use tollgate::headers::{Exposure, HeaderPolicy};
use tollgate::{Engine, Policy};
use tollgate_tower::RateLimitLayer;
use tollgate_tower::attributes::source::{Source, header_of_client};

const POLICY: &str = "
limits:
  - {name: per-caller, by: [caller], rate: 5/min}
  - {name: searches, when: {path: /search}, by: [caller], rate: 2/min}
";

#[tokio::main]
#[allow(clippy::print_stdout, reason = "an example prints to its user")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy: Policy = POLICY.parse()?;
    policy.sentences().iter().for_each(|sentence| println!("{sentence}"));
    let limits = RateLimitLayer::new(Engine::builder().policy(policy).build())
        // The caller is identified by its key, or else by its address.
        .attribute("caller", header_of_client("x-key")?.hashed().or(Source::Client))
        .headers(HeaderPolicy { anonymous: Exposure::Full, ..HeaderPolicy::default() })
        .skip(|request| request.uri.path() == "/healthz");
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route("/search", get(async || "found\n"))
        .route("/healthz", get(async || "ok\n"))
        .layer(limits);
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
