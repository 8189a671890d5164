//! Calls a server that refuses the first call for a second. The others wait, one finds out when it is over, and the
//! refused call is sent again. A refusal for an hour is an error at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::StatusCode;
use axum::{Router, routing::get};
use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tollgate_outbound::{Basis, Outbound, OutboundLayer, Refusal};
use tower::{Layer, ServiceExt};

const CALLS: usize = 5;

#[tokio::main]
#[allow(clippy::print_stdout, reason = "an example prints to its user")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let origin = format!("http://{}", listener.local_addr()?);
    let url = format!("{origin}/items/17");
    tokio::spawn(async move { axum::serve(listener, server()).await });

    let outbound = Outbound::of_policy("limits: [{name: items, by: [host], rate: 100/s}]".parse()?);
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let client = OutboundLayer::new(outbound.clone()).layer(client);

    let first = client.clone().oneshot(Request::get(&url).body(Empty::new())?);
    let mut calls = vec![tokio::spawn(first)];
    while outbound.report().totals.throttled == 0 {
        tokio::task::yield_now().await;
    }
    // The server has refused the first call: these wait.
    for _ in 1..CALLS {
        calls.push(tokio::spawn(client.clone().oneshot(Request::get(&url).body(Empty::new())?)));
    }
    let mut answered = 0;
    for call in calls {
        answered += usize::from(call.await??.status() == StatusCode::OK);
    }
    let totals = outbound.report().totals;
    println!("{answered} of {CALLS} calls answered");
    println!("{} refused by the server, {} sent again", totals.throttled, totals.retries);

    let report = client.oneshot(Request::get(format!("{origin}/report")).body(Empty::new())?).await;
    if let Err(error) = report
        && error.refusal().and_then(Refusal::basis) == Some(Basis::Server)
        && let Some(response) = error.response()
    {
        println!("the report would have to wait for too long: {}", response.status());
    }
    Ok(())
}

/// A server that refuses its first call, and reports for an hour.
fn server() -> Router {
    let calls = Arc::new(AtomicUsize::new(0));
    let items = get(async move || match calls.fetch_add(1, Ordering::Relaxed) {
        0 => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]),
        _ => (StatusCode::OK, [("x-items", "1")]),
    });
    let report = get(async || (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "3600")]));
    Router::new().route("/items/{id}", items).route("/report", report)
}
