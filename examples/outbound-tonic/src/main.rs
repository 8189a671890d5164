//! Calls a gRPC service that admits ten calls a second and refuses more with `RESOURCE_EXHAUSTED`. None is refused.

use tollgate_outbound::{Outbound, OutboundLayer, SendOnce};
use tollgate_tower::RateLimitLayer;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server, Uri};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::Layer;

const CALLS: usize = 6;

#[tokio::main]
#[allow(clippy::print_stdout, reason = "an example prints to its user")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?;
    let origin: Uri = format!("http://{}", incoming.local_addr()?).parse()?;
    let (_, health) = tonic_health::server::health_reporter();
    // Calls may arrive closer together than they left.
    let limits = RateLimitLayer::per_ip("10/s burst 5")?;
    tokio::spawn(Server::builder().layer(limits).add_service(health).serve_with_incoming(incoming));

    let policy = "limits: [{name: health, by: [host], algorithm: leaky-bucket, rate: 10/s, queue: 100}]";
    let outbound = Outbound::of_policy(policy.parse()?);
    let channel = Channel::builder(origin.clone()).connect().await?;
    // The bodies of gRPC requests are streams, which are sent once.
    let layer = OutboundLayer::builder(outbound.clone()).copy_body(SendOnce).build();
    // With the origin, so that limits by host know it.
    let client = HealthClient::with_origin(layer.layer(channel), origin);

    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.check(HealthCheckRequest::default()).await })
        })
        .collect();
    let mut answered = 0;
    for call in calls {
        answered += usize::from(call.await?.is_ok());
    }
    let totals = outbound.report().totals;
    println!("{answered} of {CALLS} calls answered");
    println!("{} waited, {} refused by the service", totals.waited, totals.throttled);
    Ok(())
}
