//! Calls a payment provider that admits ten calls a second. Twenty calls begin at once, and none is refused.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tokio::time::{Duration, Instant};
use tollgate_outbound::{Outbound, OutboundLayer, OutboundMiddleware};

const CALLS: usize = 20;
/// The server admits this many calls in any second. Calls may arrive closer together than they left.
const ADMITTED: usize = 15;

#[tokio::main]
#[allow(clippy::print_stdout, reason = "an example prints to its user")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/charges", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, provider()).await });

    let outbound = Outbound::open("policy.yaml")?;
    let layer = OutboundLayer::new(outbound.clone());
    let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new())
        .with(OutboundMiddleware::from(layer))
        .build();

    let calls: Vec<_> = (0..CALLS).map(|_| tokio::spawn(client.get(&url).send())).collect();
    let mut paid = 0;
    for call in calls {
        paid += usize::from(call.await??.status() == StatusCode::OK);
    }
    let totals = outbound.report().totals;
    println!("{paid} of {CALLS} charges paid");
    println!("{} waited, {} refused by the provider", totals.waited, totals.throttled);
    Ok(())
}

/// A provider that refuses the call after the last one it admits in a second.
fn provider() -> Router {
    let admitted: Arc<Mutex<VecDeque<Instant>>> = Arc::default();
    Router::new().route(
        "/charges",
        get(async move || {
            let (now, mut admitted) =
                (Instant::now(), admitted.lock().unwrap_or_else(PoisonError::into_inner));
            admitted.retain(|at| now - *at < Duration::from_secs(1));
            if admitted.len() >= ADMITTED {
                return (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]);
            }
            admitted.push_back(now);
            (StatusCode::OK, [("retry-after", "0")])
        }),
    )
}
