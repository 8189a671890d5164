//! An engine whose counters live in Redis: `cargo run -p tollgate-redis --example engine -- redis://127.0.0.1:6379`.
//! docs/library-engine.md shows it, and a test runs it twice against one server.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use tollgate::{CheckRequest, Engine};
use tollgate_redis::RedisStore;

const POLICY: &str = "limits: [{name: per-key, by: [api_key], rate: 5/h, on_store_failure: deny}]";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    // Connects, and learns the secret with which the processes of a fleet hash keys.
    let store = RedisStore::connect(url).await?;
    let engine = Engine::builder().policy(POLICY.parse()?).store(store).build();

    let request = CheckRequest::new().with("api_key", "k-42")?;
    for _ in 0..3 {
        let decision = engine.check(&request, engine.now()).await;
        let source = decision.limits().next().map_or("none", |status| status.source.name());
        println!("allowed: {}, source: {source}", decision.is_allowed());
    }
    engine.store().leave().await;
    Ok(())
}
