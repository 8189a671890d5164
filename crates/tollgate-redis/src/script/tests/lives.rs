//! Key lifetimes: every key expires, and none before its state is obsolete. Also debits.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::{Clock, Quota, Ticks, Timestamp};

use super::direct::{ClockSource, engine, quotas, take};
use super::server::Server;
use crate::script::Operation;

/// The extra lifetime that the script adds.
const SPARE: Duration = Duration::from_secs(2);

fn millis(ticks: Ticks) -> Duration {
    Duration::from_micros(ticks.as_micros())
}

/// By Redis's clock, a key lives at least until its counter is reset, and at most two seconds longer than its quota
/// remembers.
#[tokio::test]
async fn keys_live_as_long_as_their_states() {
    let server = Arc::new(Server::start().await);
    for (name, quota) in quotas() {
        let engine = engine(&server, &quota, ClockSource::Redis, Operation::Charge);
        for (step, cost) in [1, 3, 2, 0, 9].into_iter().enumerate() {
            let since = Instant::now();
            let decision = take(&engine, "k", cost, Clock::precise().now()).await;
            let outcome = decision.limits().next().unwrap().outcome;
            let key = format!("{:?}", engine.store().key.lock().unwrap().unwrap());
            let life: i64 = server.command(&["PTTL", &key]).await;
            let life = Duration::from_millis(u64::try_from(life).expect("it has a life"));
            let waited = since.elapsed();
            let least = millis(outcome.reset_after).saturating_sub(waited);
            assert!(life + Duration::from_millis(1) >= least, "{name}, step {step}: {life:?} for {least:?}");
            assert!(life <= millis(quota.memory()) + SPARE, "{name}, step {step}: {life:?}");
        }
    }
    let forever: i64 = server.command(&["DBSIZE"]).await;
    assert!(forever > 0);
    server.all_keys_expire().await;
}

/// A reset leaves no key, and a full refund leaves one that expires soon.
#[tokio::test]
async fn unused_counter_leaves_no_key() {
    let server = Arc::new(Server::start().await);
    for (name, quota) in quotas() {
        let engine = engine(&server, &quota, ClockSource::Redis, Operation::Charge);
        let request = tollgate::CheckRequest::new().with("key", "k").unwrap().cost(3).unwrap();
        // A leaky bucket refunds nothing to a request that has left the queue.
        let gives_back = !matches!(quota, tollgate::Quota::LeakyBucket(_));
        for is_reset in [true, false].into_iter().filter(|is_reset| *is_reset || gives_back) {
            let now = Clock::precise().now();
            let mut decision = take(&engine, "k", 3, now).await;
            match decision.take_permit() {
                _ if is_reset => drop(engine.operator().reset(&request, &[], now).await.unwrap()),
                Some(permit) => engine.reservations().release(&permit, now).await.unwrap(),
                None => engine.ledger().refund(&request, &[], Ticks::ZERO, now).await.unwrap(),
            }
            let key = format!("{:?}", engine.store().key.lock().unwrap().unwrap());
            let life: i64 = server.command(&["PTTL", &key]).await;
            // The key of a full bucket stays for the extra lifetime, in case the clock steps back.
            let most = if is_reset { 0 } else { SPARE.as_millis().try_into().unwrap() };
            assert!(life <= most && life != -1, "{name}: {life} ms");
        }
    }
}

/// A debit charges what remains, down to nothing and never below.
#[tokio::test]
async fn debit_charges_what_remains() {
    let server = Arc::new(Server::start().await);
    let now = Timestamp::from_unix_seconds(1_700_000_000);
    for (name, quota) in quotas() {
        if matches!(quota, Quota::Concurrency(_)) {
            continue;
        }
        let engine = engine(&server, &quota, ClockSource::Injected, Operation::Debit);
        let mut left = Vec::new();
        for cost in [3, 0, 4, 9, 1, 1 << 40] {
            let decision = take(&engine, "k", cost, now).await;
            left.push(decision.limits().next().unwrap().outcome.remaining);
        }
        assert_eq!(left, [7, 7, 3, 0, 0, 0], "{name}");
        let whole = take(&engine, "other", 1 << 40, now).await;
        assert_eq!(whole.limits().next().unwrap().outcome.remaining, 0, "{name}");
    }
    server.all_keys_expire().await;
}
