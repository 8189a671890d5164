//! Sends webhooks no faster than their receivers accept. All events happen at once; each endpoint has a queue of its
//! own, from which one webhook leaves every 200 ms.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use reqwest::{Client, StatusCode};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::{Gate, KeyedGate, Quota, Rate};

/// Waits for the turn of the webhook, and sends it.
async fn send(
    gate: &KeyedGate,
    client: &Client,
    endpoint: &str,
    body: String,
) -> Result<StatusCode, Box<dyn Error + Send + Sync>> {
    // Fails at once if the queue is so long that the turn would come later.
    gate.until_ready(endpoint).within(Duration::from_secs(60)).await?;
    Ok(client.post(endpoint).body(body).send().await?.status())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // For each endpoint five a second, evenly spaced, and at most 1,000 that wait.
    let gate = Gate::keyed(Quota::leaky_bucket(Rate::per_second(5), 1_000)?)?;
    let client = Client::new();
    let receiver = receiver().await?;

    let start = Instant::now();
    let mut webhooks = JoinSet::new();
    for event in 1..=4 {
        for customer in ["acme", "globex"] {
            let (gate, client, endpoint) =
                (gate.clone(), client.clone(), format!("http://{receiver}/{customer}"));
            webhooks.spawn(async move {
                match send(&gate, &client, &endpoint, format!("event {event}")).await {
                    Ok(status) => {
                        println!("{:>4} ms  {customer}: event {event}, {status}", start.elapsed().as_millis())
                    }
                    Err(error) => eprintln!("{customer}: event {event} was not sent: {error}"),
                }
            });
        }
    }
    webhooks.join_all().await;
    Ok(())
}

/// Stands for the servers of your customers.
async fn receiver() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = Router::new().route("/{customer}", post(async || "thanks\n"));
    tokio::spawn(async { axum::serve(listener, app).await });
    Ok(address)
}
