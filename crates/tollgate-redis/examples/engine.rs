//! An engine whose counters live in Redis: `cargo run -p tollgate-redis --example engine -- redis://127.0.0.1:6379`.
//! docs/library.md shows it, and a test runs it twice against one server.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use tollgate::{CheckRequest, Clock, Engine, Policy, Secret};
use tollgate_redis::{RedisStore, Settings};

const POLICY: &str = "limits: [{name: per-key, by: [api_key], rate: 5/h, on_store_failure: deny}]";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let (policy, _) = Policy::compile("policy.yaml", POLICY.as_bytes())?;
    // Connecting goes on in the background: a process starts without its store.
    let store = RedisStore::connect(Settings::parse(&url)?)?;
    let engine = Engine::with_store(policy, store, Secret::random());
    // The processes of a fleet hash keys with one secret, which the store keeps.
    engine.store().join(|secret| engine.maintenance().rekey(secret)).await;
    // Connects to every shard, so that the first decision does not wait for that.
    engine.store().warm(Duration::from_secs(2)).await;

    let clock = Clock::precise();
    let request = CheckRequest::new().with("api_key", "k-42")?;
    for _ in 0..3 {
        let decision = engine.check(&request, clock.now()).await;
        let source = decision.limits().next().map_or("none", |status| status.source.name());
        println!("allowed: {}, source: {source}", decision.is_allowed());
    }
    engine.store().leave().await;
    Ok(())
}
