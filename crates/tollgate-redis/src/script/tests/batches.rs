//! Several requests in one call are decided one after the other.

use std::sync::Arc;

use redis::Value;
use tollgate::policy::{Cost, Limit};
use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{CheckRequest, Engine, MemoryStore, Policy, Quota, Rate, Ticks, Timestamp};

use super::server::Server;
use super::twin::mark;
use crate::script::{Operation, ScriptRequest, ScriptResponse};

const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// Sends the same request several times in one call, and charges memory as often.
struct Batching {
    server: Arc<Server>,
    memory: MemoryStore,
    times: usize,
}

impl Store for Batching {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        charges.iter().for_each(mark);
        let mut request = ScriptRequest::new(Operation::Charge, charges, now);
        let asked = vec![request.encode().unwrap(); self.times];
        let value = self.server.call(&asked, &now.unix_micros().to_string()).await.unwrap();
        let Value::Array(values) = value else { panic!("{value:?}") };
        assert_eq!(values.len(), self.times);
        let mut last = Answers::new();
        for value in values {
            last = self.memory.charge_now(charges, now)?;
            assert_eq!(request.interpret(&value), ScriptResponse::Answers(last.clone()));
            request = ScriptRequest::new(Operation::Charge, charges, now);
        }
        Ok(last)
    }

    async fn refund(&self, _: &[Charge<'_>], _: Timestamp) -> Result<(), StoreFailure> {
        Ok(())
    }

    async fn reset(&self, _: &[Charge<'_>], _: Timestamp) -> Result<(), StoreFailure> {
        Ok(())
    }

    fn hold(&self, _: &Hold) {}
}

/// A batch that repeats one key charges it every time, up to the limit.
#[tokio::test]
async fn repeated_key_is_charged_every_time() {
    let server = Arc::new(Server::start().await);
    for times in [1, 2, 7, 64] {
        let quotas = [
            Quota::gcra(Rate::per_hour(20)).unwrap(),
            Quota::token_bucket(Rate::per_second(7).burst(30)).unwrap(),
            Quota::sliding_log(Rate::per_hour(25)).unwrap(),
        ];
        let limits = (0..).zip(quotas).map(|(number, quota): (u32, _)| {
            Limit::new(&number.to_string(), quota).by(["key"]).cost(Cost::Asked)
        });
        let store = Batching { server: Arc::clone(&server), memory: MemoryStore::new(1 << 20, START), times };
        let engine = Engine::builder().policy(Policy::new(limits.collect()).unwrap()).store(store).build();
        for second in 0..5 {
            let request = CheckRequest::new().with("key", "k").unwrap().cost(1).unwrap();
            engine.check(&request, START + Ticks::from_secs(second)).await;
        }
    }
    server.all_keys_expire().await;
}
